"""Answering: decoding behind a cache, full segments stored meanwhile, and the receipt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kvbaton.account import Account
from kvbaton.conversation import Conversation, Turn
from kvbaton.decoding import Answer, Decoding, TokenWatch, decode
from kvbaton.engines.base import Engine, Overtaken
from kvbaton.following import Following
from kvbaton.hedging import Hedge
from kvbaton.outbox import Outbox
from kvbaton.prompts import Prompt
from kvbaton.relay import Relay
from kvbaton.taking import refused, room_for
from kvbaton.types import Reason, Receipt


class Answering:
    """Answers of one agent.

    Parameters
    ----------
    name
        The agent's.
    relay
        Its engine answers; full segments go to its store.
    following
        Notes what is answered.
    stream
        Whether segments are stored while the engine still decodes.
    """

    def __init__(
        self, name: str, relay: Relay, following: Following, *, stream: bool = False
    ) -> None:
        self.name, self.relay, self.following, self.stream = name, relay, following, stream

    @property
    def engine(self) -> Engine:
        """The model that answers."""
        return self.relay.engine

    def answer(
        self,
        cache: Any,
        wanted: Prompt,
        how: Decoding,
        account: Account,
        *,
        watch_for: Callable[[], TokenWatch | None] = lambda: None,
        strict: bool = False,
    ) -> Turn:
        """Decode behind whatever is attached, keep the conversation, write the receipt.

        Where the watch finds the first tokens odd, nothing has been shown yet, and the answer
        begins anew from the ids.
        """
        account.label()
        if account.hedge is not None and cache is None:
            talk, answer = self._hedged(account.hedge, wanted, how, account, watch_for)
        else:
            watch = watch_for() if cache is not None else None
            talk, answer = self._decoded(cache, wanted, how, account, watch)
        if answer.alarm is not None:
            account.give_up(answer, answer.alarm)
            if strict:
                raise refused(answer.alarm)
            talk, answer = self._decoded(None, wanted, how, account, None)
        return self._conclude(talk, wanted, answer, account)

    def _hedged(
        self,
        hedge: Hedge,
        wanted: Prompt,
        how: Decoding,
        account: Account,
        watch_for: Callable[[], TokenWatch | None],
    ) -> tuple[Conversation, Answer]:
        """Prefill text while a cache is on its way, and go on with whichever is first."""
        counted = self.engine.computed_tokens()
        try:
            try:
                return self._decoded(None, wanted, how, account, None, hedge.late.arrived)
            except Overtaken:
                cache = hedge.enter(hedge.late.conclude())
                account.computed_before += self.engine.computed_tokens() - counted
            return self._decoded(cache, wanted, how, account, watch_for())
        finally:
            hedge.late.let_go()

    def _decoded(
        self,
        cache: Any,
        wanted: Prompt,
        how: Decoding,
        account: Account,
        watch: TokenWatch | None,
        overtaken: Callable[[], bool] | None = None,
    ) -> tuple[Conversation, Answer]:
        if cache is None:
            account.reused = account.pending = account.start = 0
            cache = self.engine.new_cache(room_for(self.engine, wanted, 0, how))
            cache.overtaken = overtaken
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
            signers=account.signers,
        )
        if self.stream:
            known = account.held, account.inherited
            talk.outbox = Outbox(self.relay, cache, *known, sender=self.name)
        clock = account.clock

        def settled(sampled: Sequence[int]) -> None:
            if talk.outbox is not None:
                talk.outbox.offer(cache.length, lambda: (*wanted.ids, *sampled))

        def first_token() -> None:
            cache.overtaken = None
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
        return self.turn(talk, wanted, answer, account)

    def turn(self, talk: Conversation, wanted: Prompt, answer: Answer, account: Account) -> Turn:
        """The turn with its receipt."""
        account.clock.seconds["total"] = account.clock.elapsed()
        receipt = account.receipt(
            answer, agent=self.name, model=self.engine.name, context_tokens=len(wanted.ids)
        )
        receipt = self._followed(receipt, account)
        talk.built_on = (receipt.id,)
        return Turn(
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

    def _followed(self, receipt: Receipt, account: Account) -> Receipt:
        """The receipt with what the ledger says, and the note of it on its way to the ledger."""
        late: tuple[Reason, ...] = ()
        if account.look is not None:
            freshness, late = account.look.conclude(receipt)
            receipt = replace(receipt, freshness=freshness)
        made_from = tuple(dict.fromkeys((*account.built_on, *account.sources)))
        troubles = self.following.note_answer(receipt, made_from)
        new = [one for one in (*late, *troubles) if one not in receipt.warnings]
        return replace(receipt, warnings=(*receipt.warnings, *new)) if new else receipt
