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
from kvbaton.answering import Answering
from kvbaton.choosing import Choosing
from kvbaton.clock import Clock
from kvbaton.codecs.plan import CodecPlan
from kvbaton.conversation import Conversation, Turn, warned
from kvbaton.decoding import Answer, Decoding, TokenWatch
from kvbaton.engines.base import Engine
from kvbaton.errors import BatonUnavailable, Filtered, KvbatonError, NotTrusted, Superseded
from kvbaton.following import Following, Look
from kvbaton.forecasts import Foresight
from kvbaton.gating import TextGate
from kvbaton.opening import TICKET_S, expiry_ms
from kvbaton.policy.filters import TextFilter
from kvbaton.policy.fitting import FitStrategy
from kvbaton.policy.rules import StaleRule
from kvbaton.prompts import Messages, Prompt, PromptWriter, user_turn
from kvbaton.reasons import reason_of
from kvbaton.references import (
    NotUsed,
    bearers,
    not_opened,
    open_current,
    references_in,
    signers_of,
)
from kvbaton.relay import Relay
from kvbaton.reusing import answer_aside, covers, own_prefix, stored_prefix
from kvbaton.sending import Cutting, Sender
from kvbaton.shadowing import seeded, shadow_of
from kvbaton.shipping import Packing
from kvbaton.sources import Spans, mode_of
from kvbaton.taking import (
    Taker,
    Taking,
    agreed_tokens,
    decoding_of,
    known_fields,
    require_window,
    stale_rule,
)
from kvbaton.tracked import Tracked
from kvbaton.types import (
    Baton,
    BatonRef,
    Fidelity,
    FidelityClass,
    Importance,
    Mode,
    Outcome,
    Receipt,
    Route,
    Terms,
)

DEFAULT_REPAIR = Repair()
SUMMARIZE = "Summarize what was said so far in a few sentences, with all names and numbers."

DEADLINE_S = 60.0
"""Default time to the first token of a take."""

Log = Callable[[Receipt], None]
WatchFor = Callable[[Fidelity, Decoding], TokenWatch | None]


class Agent(Tracked):
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
        Store full segments while decoding, so that a hand-off has only the tail left to do; by
        default where there are no filters, which are asked before anything is stored.
    deadline_s
        Seconds to the first token of a take, where the call names none.
    log
        Called with every receipt.
    watch_for
        The watch of the first tokens of an answer from a cache of some fidelity, or None.
    filters
        Asked for the text that a cache stands for, before it is handed off and before it is taken.
    following
        The agent's view of the ledger; none by default.
    choosing
        Chooses how whole turns are encoded; by default they go by the relay's plan.
    """

    def __init__(  # noqa: PLR0913 - all but three have defaults and are named
        self,
        name: str,
        engine: Engine,
        relay: Relay,
        *,
        system: str | None = None,
        preamble: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        stream: bool | None = None,
        deadline_s: float = DEADLINE_S,
        log: Log | None = None,
        watch_for: WatchFor | None = None,
        filters: Sequence[TextFilter] = (),
        following: Following | None = None,
        choosing: Choosing | None = None,
    ) -> None:
        self.name, self.engine, self.relay = name, engine, relay
        self.writer = PromptWriter(engine.chat, system, preamble, tools)
        self.stream = not filters if stream is None else stream
        self.deadline_s, self.log, self.gate = deadline_s, log, TextGate(engine, tuple(filters))
        self.watch_for: WatchFor = watch_for or (lambda fidelity, how: None)
        self.following, self.choosing = following or Following(None, name), choosing
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
        sources: Sequence[Turn | Baton | BatonRef | str] = (),
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
        sources
            What else the prompt was made from, for the ledger: turns, batons, artefacts.
        options
            Fields of ``Decoding``: ``max_new_tokens``, ``sampling``, ``stop``, ``on_text``,
            ``hand_off_when``, ``ignore_eos``.

        Raises
        ------
        EmptyInput, InputError
            There is nothing to answer, or messages that the template refuses.
        WindowExceeded
            The prompt does not fit the model's window.
        Superseded
            The conversation builds on a stale context, and the owner's policy refuses that.
        """
        how = decoding_of(options)
        account = Account(Outcome.NO_BATON, Mode.CONTINUE, Route.TEXT, labels=labels or {})
        account.sources = tuple(map(self._node_of, sources))
        known = self.conversation
        if known is None or prompt is None or messages is not None:
            return self._answer_reusing(self.writer.fresh(prompt, messages), how, account)
        wanted = self.writer.going_on(known.ids, [user_turn(prompt)]).behind(known)
        account.look = self._look(account.clock)
        account.look.at_own(known.built_on)
        account.warnings = tuple(account.look.warnings)
        account.signers, account.built_on = known.signers, known.built_on
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
        answering = Answering(self.name, self.relay, self.following)
        return self._kept(answering.turn(talk, wanted, nothing, account))

    def _answer_reusing(self, wanted: Prompt, how: Decoding, account: Account) -> Turn:
        """Answer a fresh prompt from the agent's own cache, from the store, or from nothing."""
        require_window(self.engine, wanted)
        known = self.conversation
        if known is not None and covers(known, wanted.ids):
            return self._answer_from(known, wanted, how, account)
        found = self.relay.find_prefix(wanted.ids)
        stored = found[-1].span.stop if found else 0
        own = agreed_tokens(self.engine, known, wanted)
        if known is not None and own > 0 and own >= stored:
            cache = own_prefix(self.relay, known, own, wanted, how, account)
        else:
            cache = stored_prefix(
                self.relay, found, stored, wanted, how, account, deadline_s=self.deadline_s
            )
        return self._answer(cache, wanted, how, account)

    def _answer_from(
        self, known: Conversation, wanted: Prompt, how: Decoding, account: Account
    ) -> Turn:
        """Go on in the agent's own cache."""
        require_window(self.engine, wanted)
        account.reused, account.held = known.cache.length, known.stored()
        account.pending = min(len(known.ids), len(wanted.ids)) - known.cache.length
        account.parents, account.hops, account.signers = known.parents, known.hops, known.signers
        account.built_on = known.built_on
        account.inherit(known.inherited, known.cache.length)
        return self._answer(known.cache, wanted, how, account)

    def foresee(
        self, prompt: str, *, max_new_tokens: int = 256, new_tokens: int = 64
    ) -> Foresight | None:
        """What to expect of answering a prompt and handing the turn off, before it is answered:
        how long the answer will be, and how soon a receiver's first token by each route.

        Parameters
        ----------
        max_new_tokens
            The most that the answer may have.
        new_tokens
            Tokens that the receiver will add.

        Returns
        -------
        Foresight or None
            None where nothing was measured (``kvbaton policy calibrate``), or this agent has not
            answered enough yet.
        """
        forecasts, known = self.relay.deciding.forecasts, self.conversation
        if forecasts is None:
            return None
        wanted = self.writer.fresh(prompt, None)
        if known is not None:
            wanted = self.writer.going_on(known.ids, [user_turn(prompt)]).behind(known)
        return forecasts.foresee(
            len(wanted.ids),
            agent=self.name,
            at_most=max_new_tokens,
            new_tokens=new_tokens,
            store=self.relay.store.url,
        )

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
        asked = self.writer.going_on(turn.conversation.ids[: turn.tokens], [user_turn(instruction)])
        how = Decoding(max_new_tokens=max_new_tokens)
        return answer_aside(self.relay, turn, asked.ids, how).text.strip()

    # -- hand off -------------------------------------------------------------------------------

    def hand_off(  # noqa: PLR0913 - all but one have defaults and are named
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
        noise: float = 0.0,
        importance: bool = False,
        expires_s: float | None = None,
        to_domain: str | None = None,
        ref: str | None = None,
        expect: int | None = None,
        **terms: Any,
    ) -> Baton:
        """Hand a turn's context off: store what is not in the store yet, and the signed baton.

        Where a filter takes something out of the text, the baton is one of text only.

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
        noise
            Relative size of noise to add to keys and values.  It guarantees nothing.
        importance
            Record how much attention the tokens get, so that a receiver whose window is too small
            can keep what matters.  Costs a pass over the last tokens.
        expires_s
            Seconds after which nobody may take the baton any more; by default it does not expire.
        to_domain
            Another trust domain that the baton is for: it gets text only, without system prompt
            and reasoning.
        ref
            Name that stands for the current one of such contexts: it is moved to this baton, and
            whatever builds on the one before it is stale from then on.
        expect
            Where the ref stands, as far as you know: 0 for nowhere yet.  By default where this
            agent last saw it, or where it stands now.
        terms
            Fields of ``Terms``: ``instruction``, ``summary``, ``goal``, ``round``, ``receiver``.

        Raises
        ------
        InputError
            There is no shared preamble, the mode or a term is not known, spans are named for
            another mode or for another domain, or a time or level makes no sense.
        SliceError
            Spans that are empty, overlap or reach outside; a model whose cache cannot be sliced.
        Filtered
            A filter refused the text; nothing was handed off.
        LossySource
            The plan would quantize what has been quantized before.
        StaleTurn
            The cache has moved on and window layers no longer hold the turn's state.
        StoreError
            The store could not take it.
        NotTrusted
            The context comes from a baton whose key was revoked since.
        RefConflict
            The ref stands elsewhere than expected; there is no new baton.
        LedgerError
            A ref is named, and there is no ledger, or it cannot be used; there is no new baton,
            unless the ledger was lost in the middle of it.
        """
        cut = Cutting(mode, spans, private=private, clean=clean, keep=keep)
        packing = Packing(plan, requantize, noise)
        place = self.following.place(ref, expect)
        return self._sender().hand_off(
            turn,
            cut,
            packing,
            Terms(**known_fields(terms, Terms)),
            importance=importance,
            expires_ms=expiry_ms(expires_s),
            to_domain=to_domain,
            place=place,
        )

    def _sender(self) -> Sender:
        return Sender(
            self.name, self.relay, self.gate, self.following, (self.writer.system or "",),
            self.choosing,
        )  # fmt: skip

    def ticket(
        self,
        baton: Baton | BatonRef | str,
        audience: str,
        *,
        uses: int = 1,
        expires_s: float = TICKET_S,
        after_s: float = 0.0,
    ) -> str:
        """A signed ticket that lets ``audience`` take one of this agent's batons.

        Parameters
        ----------
        audience
            Name of the agent that may take it.
        uses
            How often; 0 for any number of times.
        expires_s, after_s
            Seconds until it is no longer, and until it is first, valid.

        Raises
        ------
        InputError
            A number or the name makes no sense.
        SettingsError
            There is no key that may sign for this agent.
        """
        name = baton if isinstance(baton, str) else baton.id
        return self.relay.opening.ticket(
            name, self.name, audience, uses=uses, expires_s=expires_s, after_s=after_s
        )

    # -- take -----------------------------------------------------------------------------------

    def take(  # noqa: PLR0913 - all have defaults and are named
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
        importance: Importance | str = Importance.ORDINARY,
        ticket: str | Sequence[str] | None = None,
        stale: StaleRule | str | None = None,
        tags: Sequence[str] = (),
        labels: Mapping[str, str] | None = None,
        sources: Sequence[Turn | Baton | BatonRef | str] = (),
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
        importance
            ``critical`` computes some of the tokens again on top of the received cache, and goes
            by text where they differ, or cannot be computed.
        ticket
            The sender's permission, where the trust domain asks for one; one for each baton.
        stale
            What becomes of a baton whose context is no longer the current one: ``label`` goes on
            and says so in the receipt, ``fetch`` takes the newer one in its place, ``refuse``
            does not use it.  The owner's policy may be stricter.
        tags
            Of the task: the owner's policy may accept exact caches only for some.
        labels
            Your own, for the receipt, such as ``{"conversation": ..., "arm": ...}``; roll-outs
            assign by ``conversation``.
        sources
            What else the instruction was made from, for the ledger: turns, batons, artefacts.
        options
            Fields of ``Decoding``.

        Raises
        ------
        NotTrusted, BatonUnavailable, Filtered, Superseded
            A baton cannot be used and there are no messages to answer instead.
        BatonRefused
            ``strict``, and a baton's cache was not used.
        WindowExceeded
            What the receiver would read does not fit the window, and ``overflow`` cannot help.
        EmptyInput
            The receiver adds no tokens.
        """
        how, clock = decoding_of(options), Clock()
        references, said = references_in(given, instruction)
        limit_s = self.deadline_s if deadline_s is None else deadline_s
        named = None if mode is None else mode_of(mode)
        terms = Taking.of(
            limit_s, minimum, self.engine.function, repair, overflow, route, importance,
            strict=strict,
        )  # fmt: skip
        look = self._look(clock, stale, limit_s)
        try:
            opened, reasons, warnings = open_current(
                self.relay, self.gate, references, bearers(self.name, ticket, len(references)),
                clock, mode=named, deadline_s=limit_s, look=look,
            )  # fmt: skip
        except (NotTrusted, BatonUnavailable, Filtered, Superseded) as error:
            if messages is None or strict:
                raise
            return self._without_baton(error, messages, how, clock, labels or {}, look)
        wanted_mode = named or opened[0].manifest.mode
        account = Account(Outcome.USED, wanted_mode, Route.BATON, clock=clock, baton=opened[0])
        account.batons, account.labels = tuple(one.id for one in opened), labels or {}
        account.reasons, account.warnings = reasons, (
            *warnings, *look.warnings, *look.replaced, *self.relay.deciding.troubles(),
        )  # fmt: skip
        account.signers, account.built_on = signers_of(opened), account.batons
        account.look, account.sources = look, tuple(map(self._node_of, sources))
        terms = replace(terms, receiving=look.receiving(self.name, account.labels, tags))
        taker = Taker(self.name, self.relay, self.writer, self.conversation, how, account, terms)
        if wanted_mode is Mode.SLICE:
            wanted, cache = taker.joined(opened, said)
        else:
            wanted, cache = taker.whole(opened[0], said, messages)
        account.label()
        decided = account.decision
        if decided is not None and decided.shadow:
            how = seeded(how)  # both draw alike, or they could not be compared

        def shadowed(turn: Turn) -> Turn:
            if decided is None or not decided.shadow:
                return turn
            report = shadow_of(
                turn, replace(taker, how=how), opened, said, messages, route=decided.chosen
            )
            return replace(turn, receipt=replace(turn.receipt, shadow=report))

        return self._answer(
            cache, wanted, how, account, strict=strict, finish=shadowed,
            watch_for=lambda: self.watch_for(account.fidelity, how),
        )  # fmt: skip

    def _look(
        self, clock: Clock, stale: StaleRule | str | None = None, deadline_s: float | None = None
    ) -> Look:
        """A look at the freshness of what is used, by the caller's rule or the owner's."""
        rules = self.relay.deciding.rules_of(self.name).rules
        return self.following.look(
            clock, asked=stale_rule(stale), rules=rules, deadline_s=deadline_s
        )

    def _without_baton(
        self,
        error: NotUsed,
        messages: Messages,
        how: Decoding,
        clock: Clock,
        labels: Mapping[str, str],
        look: Look,
    ) -> Turn:
        """Answer the caller's own messages; nothing of the baton is used."""
        outcome, reason = not_opened(error)
        account = Account(
            outcome, Mode.CONTINUE, Route.TEXT, clock=clock, reasons=(reason,), labels=labels
        )
        account.look, account.warnings = look.without_batons(), tuple(look.warnings)
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
        watch_for: Callable[[], TokenWatch | None] = lambda: None,
        strict: bool = False,
        finish: Callable[[Turn], Turn] = lambda turn: turn,
    ) -> Turn:
        """Decode behind whatever is attached, keep the conversation, log the receipt."""
        stream = self.stream
        if stream and self.choosing is not None:
            stream = self.choosing.expects_exact(len(wanted.ids), how.max_new_tokens)
        answering = Answering(self.name, self.relay, self.following, stream=stream)
        turn = answering.answer(cache, wanted, how, account, watch_for=watch_for, strict=strict)
        turn = self._kept(finish(turn))
        store = self.relay.store.url if account.baton is None else account.baton.ref.store
        self.relay.deciding.learn(turn.receipt, store)
        return turn if turn.fired is None else self._passed_on(turn, turn.fired.receiver)

    def _kept(self, turn: Turn) -> Turn:
        """A turn, whose conversation is the agent's from now on; that its receipt cannot be logged
        is a warning, the answer is there all the same."""
        self.conversation = turn.conversation
        try:
            if self.log is not None:
                self.log(turn.receipt)
        except KvbatonError as error:
            return warned(turn, reason_of(error))
        return turn

    def _passed_on(self, turn: Turn, receiver: str) -> Turn:
        """The turn with its baton, or with a warning where there is none: the answer is there all
        the same."""
        try:
            return replace(turn, baton=self.hand_off(turn, receiver=receiver))
        except Filtered as error:
            return warned(turn, not_opened(error)[1])
        except KvbatonError as error:
            return warned(turn, reason_of(error))
