"""Taking batons: the prompt that a receiver reads, and the cache that covers its beginning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

from kvbaton.account import Account
from kvbaton.alignment.recompute import Repair
from kvbaton.backing import Taken
from kvbaton.clock import Clock
from kvbaton.conversation import Conversation
from kvbaton.deciding import SOMEBODY, Receiving
from kvbaton.decoding import Decoding
from kvbaton.engines.base import Engine
from kvbaton.errors import (
    BatonRefused,
    InputError,
    WindowExceeded,
)
from kvbaton.hedging import Hedge, keep_fields
from kvbaton.joining import Join, own_beginning
from kvbaton.policy import fitting
from kvbaton.policy.gates import HOP_GATES
from kvbaton.policy.rules import BeyondHops, StaleRule
from kvbaton.prompts import Messages, Prompt, PromptWriter, SlicePrompt, packed_spans
from kvbaton.relay import Relay
from kvbaton.types import (
    Baton,
    BlockScores,
    Deny,
    FidelityClass,
    FunctionId,
    Hops,
    Importance,
    Mode,
    Move,
    Outcome,
    Reason,
    ReasonCode,
    Route,
    Terms,
    TokenRun,
    common_prefix,
)

_E = TypeVar("_E", bound=StrEnum)

OVERTOOK = Reason(
    ReasonCode.OVERTOOK, "the cache was late, and came while text was being prefilled"
)
ASKED = Reason(ReasonCode.ASKED_FOR_TEXT, "the caller asked for the text route")


@dataclass(frozen=True)
class Taking:
    """On what terms batons are taken.

    ``repair`` says which positions of slices are computed again, ``overflow`` what stays when the
    window is too small; ``strict`` refuses to fall back; ``by_text`` prefills the ids whatever the
    cache is good for; ``importance`` says how closely the cache is looked at; ``receiving`` is who
    takes them for what.
    """

    deadline_s: float
    minimum: FidelityClass
    function: FunctionId
    repair: Repair | None = None
    overflow: str = fitting.FitStrategy.REFUSE.value
    strict: bool = False
    by_text: bool = False
    importance: Importance = Importance.ORDINARY
    receiving: Receiving = SOMEBODY

    @classmethod
    def of(
        cls,
        deadline_s: float,
        minimum: FidelityClass | str,
        function: FunctionId,
        repair: Repair | float | None,
        overflow: str,
        route: Route | str | None,
        importance: Importance | str,
        *,
        strict: bool,
    ) -> Taking:
        """The terms that a caller has named.

        Raises
        ------
        InputError
            One of them makes no sense.
        """
        return cls(
            deadline_s,
            _named(FidelityClass, minimum, "fidelity"),
            function,
            Repair(float(repair)) if isinstance(repair, float | int) else repair,
            _named(fitting.FitStrategy, overflow, "strategy for a window that is too small").value,
            strict,
            text_only(route),
            _named(Importance, importance, "importance"),
        )


def _named(kind: type[_E], given: str, what: str) -> _E:
    try:
        return kind(given)
    except ValueError:
        raise InputError(
            f"there is no {what} {str(given)[:40]!r}", hint=f"known: {', '.join(kind)}"
        ) from None


def require_window(engine: Engine, wanted: Prompt) -> None:
    """Raise ``WindowExceeded`` where a prompt is longer than the model's window."""
    if len(wanted.ids) > engine.max_tokens:
        raise WindowExceeded(
            f"the prompt has {len(wanted.ids)} tokens, the model's window holds "
            f"{engine.max_tokens}",
            hint="shorten the input, or use a model with a longer window",
        )


def room_for(engine: Engine, wanted: Prompt, reused: int, how: Decoding) -> int:
    """Positions to make room for behind a reused prefix."""
    return len(wanted.ids) - reused + min(how.max_new_tokens, engine.default_room)


def agreed_tokens(engine: Engine, known: Conversation | None, wanted: Prompt) -> int:
    """Positions of an own cache that a diverging prompt can reuse."""
    if known is None or engine.layout.window_layers:
        return 0
    agreed = common_prefix(known.ids, wanted.ids)
    return min(agreed, known.cache.length, len(wanted.ids) - 1)


@dataclass(frozen=True)
class Taker:
    """Takes batons for one answer of one agent.

    Both ways return the prompt and a cache of its beginning, or None on route ``text``; the
    account says what was taken.  ``known`` is the agent's last conversation.
    """

    name: str
    relay: Relay
    writer: PromptWriter
    known: Conversation | None
    how: Decoding
    account: Account
    terms: Taking

    @property
    def engine(self) -> Engine:
        """The receiver's model."""
        return self.relay.engine

    # -- one baton ------------------------------------------------------------------------------

    def whole(
        self, baton: Baton, instruction: str, messages: Messages | None
    ) -> tuple[Prompt, Any]:
        """Go on in the sender's conversation, or behind the common preamble."""
        account = self.account
        account.hops = baton.manifest.hops
        wanted = self._prompt_for(baton, instruction, messages)
        agreed = common_prefix(baton.transcript.ids, wanted.ids)
        if agreed < len(baton.transcript.ids):
            account.first_divergence = agreed
        wanted, moves = self._fitted(baton, wanted, agreed, instruction, messages)
        if moves == () or self.terms.by_text:
            self._as_text()
            cache = None
        else:
            cache = self._attached(baton, wanted, agreed, moves)
            if cache is None and self._summary_stands(baton):
                wanted = self._behind_summary(baton.manifest.terms, instruction, messages)
        self._require_used()
        require_window(self.engine, wanted)
        return wanted, cache

    def _prompt_for(self, baton: Baton, instruction: str, messages: Messages | None) -> Prompt:
        """The receiver's prompt, by mode."""
        account = self.account
        said = instruction or ("" if messages else baton.manifest.terms.instruction)
        if account.mode is Mode.SHARED_PREFIX:
            return self.writer.behind_preamble(said, messages)
        if not said and messages:
            return self.writer.render(messages)
        if self.writer.two_system_prompts(baton):
            account.warnings += (
                Reason(
                    ReasonCode.TWO_SYSTEM_PROMPTS,
                    f"the conversation began with another system prompt than {self.name}'s own, "
                    "which stands in its new turn",
                ),
            )
        differing = baton.manifest.function.differing(self.terms.function)
        return self.writer.behind_baton(baton, said, same_tokenizer="tokenizer" not in differing)

    def _attached(
        self, baton: Baton, wanted: Prompt, agreed: int, moves: Sequence[Move] | None
    ) -> Any:
        """The baton's cache, attached as far as the prompt agrees with it; None on route text."""
        account, tokens = self.account, len(wanted.ids)
        if moves is not None:
            agreed = sum(move.run.count for move in moves)
        reusable = min(agreed, tokens - 1)
        restore = keep_fields(account, but=frozenset({"clock"}))
        taken = self.relay.take(
            baton,
            prompt_tokens=tokens,
            reusable=reusable,
            room=room_for(self.engine, wanted, reusable, self.how),
            deadline_s=self._kv_deadline(account.clock, tokens),
            minimum=self.terms.minimum,
            function=self.terms.function,
            moves=moves,
            importance=self.terms.importance,
            receiving=self.terms.receiving,
            hedged=not self.terms.strict,
        )
        pending = baton.manifest.pending_tokens
        whole = moves is None and agreed == len(baton.transcript.ids)

        def enter(taken: Taken) -> Any:
            cache = account.enter(taken)
            account.parents = (baton.id,)
            account.pending = pending if whole and cache is not None else account.pending
            return cache

        def enter_late(taken: Taken) -> Any:
            restore()
            cache = enter(taken)
            account.warnings += (OVERTOOK,)
            account.label()
            return cache

        cache = enter(taken)
        if cache is None:
            self._gave_up()
            account.hedge = None if taken.late is None else Hedge(taken.late, enter_late)
        return cache

    def _as_text(self) -> None:
        """The cache is left alone: the summary stands for it, or the caller wants text."""
        if self.terms.by_text:
            self.account.reasons += (ASKED,)
        self._gave_up()

    def _gave_up(self) -> None:
        """Nothing of the baton's cache is used."""
        account = self.account
        account.route, account.outcome = Route.TEXT, Outcome.KV_UNUSABLE
        account.hops, account.parents = Hops(), ()

    def _kv_deadline(self, clock: Clock, tokens: int) -> float:
        """When to give the cache up, so that a prefill as text still makes the deadline."""
        speed, deadline_s = self.engine.prefill_tokens_per_s, self.terms.deadline_s
        prefill_s = tokens / speed if speed else 0.0
        left = deadline_s - clock.elapsed()
        return max(left - prefill_s, min(left, 0.1 * deadline_s))

    # -- fitting the window ---------------------------------------------------------------------

    def _fitted(
        self,
        baton: Baton,
        wanted: Prompt,
        agreed: int,
        instruction: str,
        messages: Messages | None = None,
    ) -> tuple[Prompt, tuple[Move, ...] | None]:
        """The prompt that fits the window, and what of the baton stays: None for all of it.

        Decided before anything is loaded.  Empty moves say that nothing stays: the sender's
        summary stands for it.
        """
        if self.terms.overflow == fitting.FitStrategy.REFUSE:
            return wanted, None  # refused like any prompt that is too long
        listing, engine = baton.manifest, self.engine
        context = min(agreed, listing.cached_tokens)
        summary = listing.terms.summary
        found = fitting.fit(
            fitting.Overflow(
                context_tokens=context,
                new_tokens=len(wanted.ids) - context,
                room_tokens=min(self.how.max_new_tokens, engine.max_tokens),
                max_tokens=engine.max_tokens,
                spans=listing.spans,
                importance=_importance(listing.importance),
                summary=summary,
                summary_tokens=self._tokens_of(summary),
                fixed=self.relay.slice_refusal(baton, len(wanted.ids)) or "",
            ),
            self.terms.overflow,
        )
        if isinstance(found, Deny):
            raise WindowExceeded(found.reason.sentence)
        if found.reason is None:
            return wanted, None
        self.account.reasons += (found.reason,)
        if found.summary:
            return self._behind_summary(listing.terms, instruction, messages), ()
        runs = [move.run for move in found.moves]
        rest = TokenRun(context, len(wanted.ids) - context)
        fitted = replace(
            wanted,
            ids=found.kept(wanted.ids) + wanted.ids[context:],
            spans=packed_spans(wanted.spans, [*runs, rest]),
            known=max(0, wanted.known - context + found.tokens),
        )
        return fitted, found.moves

    def _behind_summary(self, terms: Terms, instruction: str, messages: Messages | None) -> Prompt:
        """The sender's summary in place of the context, and what is to be done."""
        if not instruction and messages:
            told = [dict(message) for message in messages]
            first = next((one for one in told if one.get("role") == "user"), told[0])
            first["content"] = f"{terms.summary}\n\n{first.get('content', '')}"
            return self.writer.render(told)
        said = instruction or terms.instruction
        return self.writer.fresh(f"{terms.summary}\n\n{said}".strip(), None)

    def _summary_stands(self, baton: Baton) -> bool:
        """Whether a cache that was handed on too often is replaced by its sender's summary."""
        decision = self.account.decision
        if self.account.mode is not Mode.CONTINUE:
            return False
        if decision is None or decision.decided_by not in HOP_GATES:
            return False
        rules = self.relay.deciding.rules_of(self.name).rules
        if rules.beyond_hops is not BeyondHops.SUMMARY or not baton.manifest.terms.summary.strip():
            return False
        stands = Reason(ReasonCode.SUMMARIZED, "the sender's summary stands for the context")
        self.account.reasons += (stands,)
        return True

    def _tokens_of(self, text: str) -> int:
        return len(self.writer.fresh(text, None).ids) if text.strip() else 0

    # -- slices ---------------------------------------------------------------------------------

    def joined(self, batons: Sequence[Baton], instruction: str) -> tuple[Prompt, Any]:
        """Hang slices of one or several batons behind the agent's own beginning."""
        account, function = self.account, self.terms.function
        said = instruction or batons[0].manifest.terms.instruction
        account.hops = Hops(
            max(b.manifest.hops.exact for b in batons), max(b.manifest.hops.lossy for b in batons)
        )
        wanted: Prompt
        foreign = [b for b in batons if _is_mere_text(b, function)]
        if foreign:
            wanted, cache = self.writer.slices_as_text(batons, said), None
            account.route, account.reasons = Route.TEXT, (_foreign(foreign[0]),)
            require_window(self.engine, wanted)
        elif self.terms.by_text:
            wanted, cache = self.writer.behind_slices(batons, said), None
            self._as_text()
            require_window(self.engine, wanted)
        else:
            wanted = prompt = self.writer.behind_slices(batons, said)
            require_window(self.engine, wanted)
            counted = self.engine.computed_tokens()
            cache = self._hang(prompt)
            account.computed_before = self.engine.computed_tokens() - counted
        if account.route is Route.TEXT:
            self._gave_up()
        else:
            account.parents = account.batons
        self._require_used()
        return wanted, cache

    def _hang(self, prompt: SlicePrompt) -> Any:
        """A cache of the agent's own beginning with the slices' caches behind it."""
        known, account = self.known, self.account
        agreed = agreed_tokens(self.engine, known, prompt)
        if known is not None and agreed >= prompt.own_tokens:  # its beginning may be inexact
            account.signers = tuple(sorted({*account.signers, *known.signers}))
            account.inherit(known.inherited, prompt.own_tokens)
            if account.inherited:
                account.built_on = tuple(dict.fromkeys((*account.built_on, *known.built_on)))
                worn, own = account.hops, known.hops
                account.hops = Hops(max(worn.exact, own.exact), max(worn.lossy, own.lossy))
        with account.clock.phase("own_prefill"):
            cache = own_beginning(
                self.relay,
                prompt,
                known.cache if known is not None else None,
                agreed=agreed,
                deadline_s=self.terms.deadline_s,
            )
        Join(
            self.relay,
            prompt,
            account,
            repair=self.terms.repair,
            minimum=self.terms.minimum,
            function=self.terms.function,
            importance=self.terms.importance,
            receiving=self.terms.receiving,
        ).hang(cache, deadline_s=self.terms.deadline_s)
        account.start = cache.length
        return cache

    def _require_used(self) -> None:
        """Refuse to fall back where the caller does not want to."""
        account = self.account
        sliced = account.mode is Mode.SLICE and account.route is not Route.BATON
        if self.terms.strict and (account.route is Route.TEXT or sliced):
            raise refused(account.reasons[0])


def decoding_of(options: Mapping[str, Any]) -> Decoding:
    """How to decode, from options by name.

    Raises
    ------
    InputError
        One of them is not known.
    """
    return Decoding(**known_fields(options, Decoding))


def known_fields(options: Mapping[str, Any], kind: Any) -> Mapping[str, Any]:
    """The options, if all of them are fields of a dataclass.

    Raises
    ------
    InputError
        One of them is not.
    """
    known = kind.__dataclass_fields__
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InputError(
            f"unknown option {unknown[0]!r}", hint=f"known: {', '.join(sorted(known))}"
        )
    return options


def _importance(scores: BlockScores | None) -> fitting.Importance | None:
    if scores is None:
        return None
    return fitting.Importance(scores.block_tokens, tuple(map(float, scores.scores)))


def stale_rule(given: StaleRule | str | None) -> StaleRule | None:
    """The rule for stale batons that a caller has named.

    Raises
    ------
    InputError
        There is none of that name.
    """
    return None if given is None else _named(StaleRule, given, "rule for stale batons")


def text_only(route: Route | str | None) -> bool:
    """Whether the caller wants the text route.

    Raises
    ------
    InputError
        Another route is named: whether a cache can be used is not the caller's to say.
    """
    if route not in (None, Route.TEXT):
        raise InputError(
            f"a take cannot be forced to route {str(route)[:40]!r}",
            hint="route='text' never uses the cache; strict=True refuses to fall back",
        )
    return route is not None


def refused(reason: Reason) -> BatonRefused:
    """The error of a caller who does not want to fall back."""
    return BatonRefused(
        f"the baton's cache was not used: {reason.sentence}",
        reason_code=reason.code.value,
        at=reason.at,
    )


def _is_mere_text(baton: Baton, function: FunctionId) -> bool:
    """Whether a baton's ids may not stand in a prompt: they mean nothing here, or come from
    another trust domain."""
    differing = baton.manifest.function.differing(function)
    return "tokenizer" in differing or baton.manifest.export is not None


def _foreign(baton: Baton) -> Reason:
    if baton.manifest.export is not None:
        return Reason(ReasonCode.NO_KV, "the baton is one of text only, from another trust domain")
    return Reason(
        ReasonCode.FUNCTION_DIFFERS,
        f"the slice of {baton.manifest.sender!r} comes from another tokenizer",
    )
