"""Agents: thin, over the relay.

An agent keeps its conversation and its cache across turns.  ``run`` answers, ``hand_off`` passes
what is computed on, ``take`` goes on from what another agent has computed, and every answer
carries a receipt that says what was reused and why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvbaton.account import Account
from kvbaton.alignment.recompute import Repair
from kvbaton.backing import covered
from kvbaton.clock import Clock
from kvbaton.codecs.plan import CodecPlan
from kvbaton.conversation import Conversation, Turn
from kvbaton.decoding import Answer, Decoding, TokenWatch, decode
from kvbaton.engines.base import Engine
from kvbaton.errors import (
    BatonUnavailable,
    InputError,
    NotTrusted,
)
from kvbaton.outbox import Outbox
from kvbaton.policy.fitting import FitStrategy
from kvbaton.prompts import (
    Messages,
    Prompt,
    PromptWriter,
    user_turn,
)
from kvbaton.reasons import unavailable_reason
from kvbaton.relay import Relay
from kvbaton.sources import Spans, computed_alone, importance_of, slice_source, whole_source
from kvbaton.taking import (
    Taker,
    Taking,
    agreed_tokens,
    refused,
    require_window,
    room_for,
    text_only,
)
from kvbaton.types import (
    Baton,
    BatonRef,
    Fidelity,
    FidelityClass,
    Mode,
    Outcome,
    Reason,
    ReasonCode,
    Receipt,
    Route,
    SegmentRef,
    Terms,
    common_prefix,
)

ID_DIGITS = 64
DEFAULT_REPAIR = Repair()
SUMMARIZE = "Summarize what was said so far in a few sentences, with all names and numbers."

DEADLINE_S = 60.0
"""Default time to the first token of a take."""

Log = Callable[[Receipt], None]
WatchFor = Callable[[Fidelity, Decoding], TokenWatch | None]


class Agent:
    """One agent: a name, an engine, a relay to hand over through.

    Parameters
    ----------
    name
        How receipts and batons call it.
    engine
        Loaded by ``kvbaton.load`` or ``kvbaton.wrap``.
    relay
        Store and trust domain.
    system
        The agent's own system prompt.
    preamble
        Text that several agents share, from a ``Context``; it opens every conversation.
    tools
        Tool descriptions, as chat templates take them.
    stream
        Store full segments while decoding, so that a hand-off has only the tail left to do.
    deadline_s
        Seconds to the first token of a take, where the call names none.
    log
        Called with every receipt.
    watch_for
        The watch of the first tokens of an answer from a cache of some fidelity, or None.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        relay: Relay,
        *,
        system: str | None = None,
        preamble: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        stream: bool = True,
        deadline_s: float = DEADLINE_S,
        log: Log | None = None,
        watch_for: WatchFor | None = None,
    ) -> None:
        self.name, self.engine, self.relay = name, engine, relay
        self.writer = PromptWriter(engine.chat, system, preamble, tools)
        self.stream, self.deadline_s, self.log = stream, deadline_s, log
        self.watch_for: WatchFor = watch_for or (lambda fidelity, how: None)
        self.conversation: Conversation | None = None

    def forget(self) -> None:
        """Drop the conversation and its cache."""
        self.conversation = None

    # -- run ------------------------------------------------------------------------------------

    def run(
        self,
        prompt: str | None = None,
        *,
        messages: Messages | None = None,
        labels: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Turn:
        """Answer a prompt, or a whole list of chat messages.

        A prompt goes on in the agent's conversation; messages are rendered anew, and whatever
        they have in common with the conversation, or with a prefix in the store, is reused.

        Parameters
        ----------
        prompt, messages
            One of the two.
        labels
            Your own, for the receipt.
        options
            Fields of ``Decoding``: ``max_new_tokens``, ``sampling``, ``stop``, ``on_text``,
            ``hand_off_when``, ``ignore_eos``.

        Raises
        ------
        EmptyInput, InputError
            There is nothing to answer, or messages that the template refuses.
        WindowExceeded
            The prompt does not fit the model's window.
        """
        how = _decoding(options)
        account = Account(Outcome.NO_BATON, Mode.CONTINUE, Route.TEXT, labels=labels or {})
        known = self.conversation
        if known is None or prompt is None or messages is not None:
            return self._answer_reusing(self.writer.fresh(prompt, messages), how, account)
        wanted = self.writer.going_on(known.ids, [user_turn(prompt)]).behind(known)
        with known.cache.exclusive():
            half_done = known.cache.length > len(known.ids)  # by a turn that failed
        if half_done:
            return self._answer_reusing(wanted, how, account)
        return self._answer_from(known, wanted, how, account)

    def prefill(self, prompt: str | None = None, *, messages: Messages | None = None) -> Turn:
        """Read a prompt, or chat messages, without answering: a turn to hand off as it is.

        Its receiver draws the conclusions.  The conversation is the agent's own afterwards.

        Raises
        ------
        EmptyInput, InputError
            There is nothing to read.
        WindowExceeded
            The prompt does not fit the model's window.
        """
        account = Account(Outcome.NO_BATON, Mode.CONTINUE, Route.TEXT)
        wanted = self.writer.prefill_only(prompt, messages)
        require_window(self.engine, wanted)
        cache = self.engine.new_cache(len(wanted.ids))
        counted = self.engine.computed_tokens()
        self.engine.forward(cache, wanted.ids)
        account.computed_before = self.engine.computed_tokens() - counted
        nothing = Answer((), "", "", 0, 0.0)
        talk = Conversation(cache, list(wanted.ids), list(wanted.spans), list(wanted.messages))
        return self._turn(talk, wanted, nothing, account)

    def _answer_reusing(self, wanted: Prompt, how: Decoding, account: Account) -> Turn:
        """Answer a fresh prompt from the agent's own cache, from the store, or from nothing."""
        require_window(self.engine, wanted)
        known = self.conversation
        if known is not None and _covers(known, wanted.ids):
            return self._answer_from(known, wanted, how, account)
        found = self.relay.find_prefix(wanted.ids)
        stored = found[-1].span.stop if found else 0
        own = agreed_tokens(self.engine, known, wanted)
        if known is not None and own > 0 and own >= stored:
            cache = self._own_prefix(known, own, wanted, how, account)
        else:
            cache = self._stored_prefix(found, stored, wanted, how, account)
        return self._answer(cache, wanted, how, account)

    def _own_prefix(
        self, known: Conversation, agreed: int, wanted: Prompt, how: Decoding, account: Account
    ) -> Any:
        """A copy of what a diverging prompt has in common with the agent's own cache."""
        account.first_divergence = account.reused = agreed
        account.parents, account.hops = known.parents, known.hops
        account.held = covered(known.stored(), agreed)
        account.inherit(known.inherited, agreed)
        return self.relay.copy_prefix(
            known.cache, agreed, room=room_for(self.engine, wanted, agreed, how)
        )

    def _stored_prefix(
        self,
        found: Sequence[SegmentRef],
        tokens: int,
        wanted: Prompt,
        how: Decoding,
        account: Account,
    ) -> Any:
        """The beginning of the prompt, if the store holds it."""
        if not found:
            return None
        room = room_for(self.engine, wanted, tokens, how)
        taken = self.relay.attach(found, wanted.ids, tokens, room=room, deadline_s=self.deadline_s)
        cache = account.enter(taken)
        if cache is not None:
            account.reasons = (
                Reason(ReasonCode.PREFIX_HIT, f"the store holds the first {tokens} tokens"),
            )
        return cache

    def _answer_from(
        self, known: Conversation, wanted: Prompt, how: Decoding, account: Account
    ) -> Turn:
        """Go on in the agent's own cache."""
        require_window(self.engine, wanted)
        account.reused, account.held = known.cache.length, known.stored()
        account.pending = min(len(known.ids), len(wanted.ids)) - known.cache.length
        account.parents, account.hops = known.parents, known.hops
        account.inherit(known.inherited, known.cache.length)
        return self._answer(known.cache, wanted, how, account)

    def summarize(
        self, turn: Turn, instruction: str = SUMMARIZE, *, max_new_tokens: int = 160
    ) -> str:
        """The model's own summary of a turn's context; the conversation is left as it is.

        ``hand_off(turn, summary=agent.summarize(turn))`` lets a receiver whose window is too
        small go on from it.

        Raises
        ------
        WindowExceeded
            There is no room left to summarize in.
        """
        talk = turn.conversation
        ids = talk.ids[: turn.tokens]
        asked = self.writer.going_on(ids, [user_turn(instruction)])
        wanted = Prompt((*ids, *asked.ids), (), ())
        require_window(self.engine, wanted)
        how, start = Decoding(max_new_tokens=max_new_tokens), 0
        room = room_for(self.engine, wanted, turn.cached, how)
        if self.engine.layout.window_layers:
            cache = self.engine.new_cache(turn.cached + room)
        else:
            cache, start = self.relay.copy_prefix(talk.cache, turn.cached, room=room), turn.cached
        return decode(self.engine, cache, wanted.ids[start:], how, after=start).text.strip()

    # -- hand off -------------------------------------------------------------------------------

    def hand_off(
        self,
        turn: Turn,
        *,
        mode: Mode | str | None = None,
        spans: Spans | None = None,
        private: bool = False,
        clean: bool = False,
        keep: float = 1.0,
        plan: CodecPlan | None = None,
        requantize: bool = False,
        importance: bool = False,
        **terms: Any,
    ) -> Baton:
        """Hand a turn's context off: store what is not in the store yet, and the baton.

        Parameters
        ----------
        mode
            ``continue`` by default; ``slice`` where spans are named.  ``shared-prefix`` hands off
            the shared preamble only.
        spans
            What a slice is made of: ``prompt`` (what was read), ``generated`` (the answer),
            ``all``, ``turn`` (what this turn added, question and answer), or ranges
            ``(first, stop)`` of the turn's tokens.
        private
            Let selections by name include the system prompt and reasoning.  Whatever is left
            out, later tokens have attended to it.
        clean
            Compute the slice anew without what is left out, so that nothing has attended to it.
        keep
            Of the slice, leave only this share: the blocks that the last tokens look at most.
        plan
            Encode everything by this codec plan instead of the agent's own.
        requantize
            Let the plan quantize again what has been quantized before; it is marked.
        importance
            Record how much attention the tokens get, so that a receiver whose window is too small
            can keep what matters.  Costs a pass over the last tokens.
        terms
            Fields of ``Terms``: ``instruction``, ``summary``, ``goal``, ``round``, ``receiver``.

        Raises
        ------
        InputError
            There is no shared preamble, the mode or a term is not known, or spans are named for
            another mode.
        SliceError
            Spans that are empty, overlap or reach outside; a model whose cache cannot be sliced.
        LossySource
            The plan would quantize what has been quantized before.
        StaleTurn
            The cache has moved on and window layers no longer hold the turn's state.
        StoreError
            The store could not take it.
        """
        named = spans is not None or private or clean or keep != 1.0
        wanted = _mode(mode) if mode is not None else Mode.SLICE if named else Mode.CONTINUE
        if named and wanted is not Mode.SLICE:
            raise InputError(f"spans are handed off in mode 'slice', not {wanted.value!r}")
        conversation = turn.conversation
        if wanted is Mode.SLICE:
            source, shown = slice_source(
                self.engine, turn, "all" if spans is None else spans, private=private, keep=keep
            )
            if clean:
                source = computed_alone(self.engine, source)
        else:
            source, shown = whole_source(turn, wanted)
        whole = wanted is Mode.CONTINUE
        baton = self.relay.hand_off(
            source,
            sender=self.name,
            mode=wanted,
            text=self.engine.chat.text_of(source.packed_ids),
            spans=shown,
            messages=tuple(turn.messages) if whole else (),
            terms=Terms(**_known(terms, Terms)),
            plan=plan,
            requantize=requantize,
            importance=importance_of(self.engine, source) if importance and whole else None,
        )
        if wanted is not Mode.SLICE and plan is None:
            conversation.shipped(baton.manifest.segments)
        return baton

    # -- take -----------------------------------------------------------------------------------

    def take(
        self,
        *given: Baton | BatonRef | str,
        instruction: str = "",
        messages: Messages | None = None,
        mode: Mode | str | None = None,
        deadline_s: float | None = None,
        strict: bool = False,
        minimum: FidelityClass | str = FidelityClass.APPROXIMATE,
        repair: Repair | float | None = DEFAULT_REPAIR,
        overflow: FitStrategy | str = FitStrategy.REFUSE,
        route: Route | str | None = None,
        labels: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Turn:
        """Go on from a baton, or from slices of several.

        Parameters
        ----------
        given
            A baton, its reference, or its id in this agent's store; several of them in mode
            ``slice``, in the order in which they are to be read.  A last string that is no id is
            the instruction: ``take(baton, "Write the code.")``.
        instruction
            What the receiver is to do; a new turn behind what it takes.  Without one the sender's
            own instruction in the baton is used.
        messages
            The caller's own messages: used when the baton is not trusted or not available, and,
            where there is no instruction, as the prompt whose common prefix is reused.
        mode
            The baton's own mode by default.  ``slice`` hangs it behind the receiver's own
            beginning, without what is private in it.
        deadline_s
            Seconds to the first token, the agent's own by default; past it, what is left is
            prefilled as text.
        strict
            Raise instead of falling back.
        minimum
            The least fidelity that is acceptable.
        repair
            Which tokens of slices are computed again behind the receiver's own beginning: a
            ``Repair``, a share of them for its default choice, or None for none.
        overflow
            What stays when context and new tokens exceed the window: ``refuse``, ``drop-oldest``,
            ``importance`` (as the sender recorded it), or ``summary`` (the sender's, as text).
        route
            ``text`` prefills the ids whatever the cache is good for: one arm of an experiment.
        labels
            Your own, for the receipt, such as ``{"conversation": ..., "arm": ...}``.
        options
            Fields of ``Decoding``.

        Raises
        ------
        NotTrusted, BatonUnavailable
            A baton cannot be used and there are no messages to answer instead.
        BatonRefused
            ``strict``, and a baton's cache was not used.
        WindowExceeded
            What the receiver would read does not fit the window, and ``overflow`` cannot help.
        EmptyInput
            The receiver adds no tokens.
        """
        how, clock = _decoding(options), Clock()
        references, said = _references(given, instruction)
        limit_s = self.deadline_s if deadline_s is None else deadline_s
        try:
            with clock.phase("get"):
                opened = [self.relay.open(one, deadline_s=limit_s) for one in references]
        except (NotTrusted, BatonUnavailable) as error:
            if messages is None or strict:
                raise
            return self._without_baton(error, messages, how, clock, labels or {})
        wanted_mode = _mode(mode) if mode is not None else opened[0].manifest.mode
        if len(opened) > 1 and wanted_mode is not Mode.SLICE:
            raise InputError(
                f"several batons cannot be taken in mode {wanted_mode.value!r}",
                hint="mode='slice' hangs one behind the other",
            )
        account = Account(Outcome.USED, wanted_mode, Route.BATON, clock=clock, baton=opened[0])
        account.batons, account.labels = tuple(baton.id for baton in opened), labels or {}
        terms = Taking(
            limit_s,
            FidelityClass(minimum),
            self.engine.function,
            Repair(float(repair)) if isinstance(repair, float | int) else repair,
            overflow,
            strict,
            text_only(route),
        )
        taker = Taker(self.name, self.relay, self.writer, self.conversation, how, account, terms)
        if wanted_mode is Mode.SLICE:
            wanted, cache = taker.joined(opened, said)
        else:
            wanted, cache = taker.whole(opened[0], said, messages)
        watch = None if cache is None else self.watch_for(account.fidelity, how)
        return self._answer(cache, wanted, how, account, watch=watch, strict=strict)

    def _without_baton(
        self,
        error: NotTrusted | BatonUnavailable,
        messages: Messages,
        how: Decoding,
        clock: Clock,
        labels: Mapping[str, str],
    ) -> Turn:
        """Answer the caller's own messages; nothing of the baton is used."""
        if isinstance(error, NotTrusted):
            reason = Reason(ReasonCode.DOMAIN_DIFFERS, error.sentence, error.at)
            outcome = Outcome.NOT_TRUSTED
        else:
            reason, outcome = unavailable_reason(error), Outcome.UNAVAILABLE
        account = Account(outcome, Mode.CONTINUE, Route.TEXT, clock=clock, reasons=(reason,))
        account.labels = labels
        wanted = self.writer.render(messages)
        require_window(self.engine, wanted)
        return self._answer(None, wanted, how, account)

    # -- answer ---------------------------------------------------------------------------------

    def _answer(
        self,
        cache: Any,
        wanted: Prompt,
        how: Decoding,
        account: Account,
        *,
        watch: TokenWatch | None = None,
        strict: bool = False,
    ) -> Turn:
        """Decode behind whatever is attached, keep the conversation, write the receipt.

        Where the watch finds the first tokens odd, nothing has been shown yet, and the answer
        begins anew from the ids.
        """
        talk, answer = self._decoded(cache, wanted, how, account, watch)
        if answer.alarm is not None:
            account.give_up(answer, answer.alarm)
            if strict:
                raise refused(answer.alarm)
            talk, answer = self._decoded(None, wanted, how, account, None)
        return self._conclude(talk, wanted, answer, account)

    def _decoded(
        self,
        cache: Any,
        wanted: Prompt,
        how: Decoding,
        account: Account,
        watch: TokenWatch | None,
    ) -> tuple[Conversation, Answer]:
        if cache is None:
            account.reused = account.pending = account.start = 0
            cache = self.engine.new_cache(room_for(self.engine, wanted, 0, how))
        start = account.reused if account.start is None else account.start
        talk = Conversation(
            cache,
            list(wanted.ids),
            list(wanted.spans),
            list(wanted.messages),
            account.held,
            account.parents,
            account.hops,
            inherited=account.inherited,
        )
        if self.stream:
            talk.outbox = Outbox(self.relay, cache, account.held, account.inherited)
        clock = account.clock

        def settled(sampled: Sequence[int]) -> None:
            if talk.outbox is not None:
                talk.outbox.offer(cache.length, lambda: (*wanted.ids, *sampled))

        def first_token() -> None:
            clock.seconds["ttft"] = clock.elapsed()

        try:
            answer = decode(
                self.engine,
                cache,
                wanted.ids[start:],
                how,
                after=start,
                settled=settled,
                first_token=first_token,
                watch=watch,
            )
        finally:
            if talk.outbox is not None:
                talk.outbox.close()
        return talk, answer

    def _conclude(
        self, talk: Conversation, wanted: Prompt, answer: Answer, account: Account
    ) -> Turn:
        chat, clock = self.engine.chat, account.clock
        talk.ids.extend(answer.ids)
        talk.spans.extend(
            chat.answer_spans(
                answer.ids, first=len(wanted.ids), inside_reasoning=wanted.opens_reasoning
            )
        )
        said = [i for i in answer.ids if i not in chat.stop_ids]
        talk.messages.append({"role": "assistant", "content": chat.text_of(said)})
        clock.seconds["first_forward"] = answer.ttft_s
        held_back_s = answer.shown_s - answer.ttft_s
        clock.seconds["shown"] = clock.seconds.get("ttft", 0.0) + max(0.0, held_back_s)
        turn = self._turn(talk, wanted, answer, account)
        if answer.fired is not None:
            return replace(turn, baton=self.hand_off(turn, receiver=answer.fired.receiver))
        return turn

    def _turn(self, talk: Conversation, wanted: Prompt, answer: Answer, account: Account) -> Turn:
        """The turn with its receipt; the agent's conversation from now on."""
        account.clock.seconds["total"] = account.clock.elapsed()
        receipt = account.receipt(
            answer, agent=self.name, model=self.engine.name, context_tokens=len(wanted.ids)
        )
        turn = Turn(
            agent=self.name,
            text=answer.text,
            ids=answer.ids,
            receipt=receipt,
            finish=answer.finish,
            conversation=talk,
            tokens=len(talk.ids),
            cached=talk.cache.length,
            known=wanted.known,
            fired=answer.fired,
        )
        self.conversation = talk
        if self.log is not None:
            self.log(receipt)
        return turn


def _decoding(options: Mapping[str, Any]) -> Decoding:
    return Decoding(**_known(options, Decoding))


def _known(options: Mapping[str, Any], kind: Any) -> Mapping[str, Any]:
    """The options, if all of them are fields of a dataclass."""
    known = kind.__dataclass_fields__
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InputError(
            f"unknown option {unknown[0]!r}", hint=f"known: {', '.join(sorted(known))}"
        )
    return options


def _references(
    given: Sequence[Baton | BatonRef | str], instruction: str
) -> tuple[list[Baton | BatonRef | str], str]:
    """Batons and the instruction, which may come as the last string."""
    several, said = list(given), instruction
    last = several[-1] if len(several) > 1 else None
    if isinstance(last, str) and not said and not _is_id(last):
        said = last
        several.pop()
    if not several:
        raise InputError("there is no baton to take")
    for index, one in enumerate(several[1:], start=1):
        if isinstance(one, str) and not _is_id(one):
            raise InputError(f"{one[:40]!r} is no baton's id", at=f"$.batons[{index}]")
    return several, said


def _is_id(text: str) -> bool:
    return len(text) == ID_DIGITS and all(c in "0123456789abcdef" for c in text)


def _mode(mode: Mode | str) -> Mode:
    try:
        return Mode(mode)
    except ValueError:
        raise InputError(
            f"unknown mode {mode!r}", hint=f"known: {', '.join(m.value for m in Mode)}"
        ) from None


def _covers(known: Conversation, ids: Sequence[int]) -> bool:
    """Whether ``ids`` begin with everything that the conversation's cache holds, and go on."""
    cached = known.cache.length
    return len(ids) > cached and common_prefix(known.ids, ids) >= cached
