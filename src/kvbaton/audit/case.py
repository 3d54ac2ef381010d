"""One unit made real: a sender that has read and said something, and batons for every treatment.

Each treatment has a store and a relay of its own, so that no cache of one can be found by another.
The receiver is a plain agent that takes a plain baton; what makes a control is inside the baton.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from kvbaton.account import Account
from kvbaton.agent import Agent, WatchFor
from kvbaton.audit.tasks.schema import Unit
from kvbaton.audit.treatments import Attached, Content, Control, Treatment, treatment
from kvbaton.backing import Source
from kvbaton.bench.given import given_ids, put_into_its_mouth
from kvbaton.clock import Clock
from kvbaton.codecs.plan import CodecPlan
from kvbaton.conversation import Turn
from kvbaton.deciding import Calibrated
from kvbaton.decoding import Decoding
from kvbaton.errors import InputError, SliceError
from kvbaton.joining import Join
from kvbaton.prompts import Hung, Prompt, SlicePrompt
from kvbaton.relay import CHECKED, Checks, Relay
from kvbaton.seals import TrustDomain
from kvbaton.shipping import Packing
from kvbaton.sources import Spans, whole_source
from kvbaton.stores import Store
from kvbaton.taking import room_for
from kvbaton.types import (
    JSON,
    Baton,
    BatonRef,
    FidelityClass,
    Mode,
    Outcome,
    Role,
    Route,
    Span,
    TokenRun,
    common_prefix,
)

DEADLINE_S = 3600.0
"""An audit waits: a take that gave up for lack of time would say nothing of its route."""
TEXT = treatment("T0")
"""What the whole conversation is read from, whatever is attached."""
RECEIVER_SYSTEM = "You answer questions about what you are given. You answer in one sentence."
"""The receiver's own beginning, where slices hang behind one."""


@dataclass(frozen=True)
class Equipment:
    """What an audit runs on.

    Parameters
    ----------
    engine
        Model of sender and receiver.
    domain
        Trust domain of the batons.
    plan_of
        The codec plan of a profile; raises where it was not measured on the model.
    calibrations, watch_for
        As agents of this machine have them.
    store
        A new, empty store that exists inside of the block only.
    """

    engine: Any
    domain: TrustDomain
    plan_of: Callable[[str], CodecPlan | None]
    calibrations: Calibrated
    watch_for: WatchFor | None
    store: Callable[[], AbstractContextManager[Store]]
    checks: Checks = CHECKED

    def relay(self, stores: ExitStack, *, checked: bool = True) -> Relay:
        """A relay with a new store of its own, which ``stores`` closes.

        Controls attach a wrong cache on purpose, so theirs are not ``checked``.
        """
        return Relay(
            self.engine,
            stores.enter_context(self.store()),
            self.domain,
            calibrations=self.calibrations,
            max_lossy_hops=None,
            checks=replace(self.checks, tokens=checked),
        )


@dataclass(frozen=True)
class Sent:
    """A baton of a treatment, and what making it took."""

    baton: Baton
    seconds: float
    """Wall seconds of the hand-off."""


class Receiver(Agent):
    """An agent that can also take a slice that stands where it was computed."""

    def take_in_place(
        self, part: Baton, whole: Baton, instruction: str, *, known: int, **options: Any
    ) -> Turn:
        """Prefill the first ``known`` ids of a conversation and attach a cache of the rest."""
        how = Decoding(**options)
        account = Account(Outcome.USED, Mode.SLICE, Route.BATON, clock=Clock(), baton=part)
        with account.clock.phase("get"):
            opened = self.relay.open(part.ref, deadline_s=self.deadline_s)
        asked = self.writer.behind_baton(whole, instruction, same_tokenizer=True)
        hung = Hung(opened, (TokenRun(0, len(opened.transcript.ids)),), known, ())
        wanted = SlicePrompt(
            asked.ids, asked.spans, asked.messages, asked.opens_reasoning, asked.known,
            own_tokens=known, slices=(hung,),
        )  # fmt: skip
        counted = self.engine.computed_tokens()
        with account.clock.phase("own_prefill"):
            cache = self.engine.new_cache(room_for(self.engine, wanted, 0, how))
            self.engine.forward(cache, wanted.ids[:known])
        Join(
            self.relay,
            wanted,
            account,
            repair=None,
            minimum=FidelityClass.APPROXIMATE,
            function=self.engine.function,
        ).hang(cache, deadline_s=self.deadline_s)
        account.computed_before = self.engine.computed_tokens() - counted
        account.start = cache.length
        return self._answer(cache, wanted, how, account)


class Case:
    """A unit with its sender's turn, and batons made of it on demand.

    Parameters
    ----------
    equipment
        Model, stores, codecs.
    unit
        The task.
    others
        Messages of other units, of which controls get their numbers.
    known
        The record of the unit, where its sender has spoken before: it says the same again, and
        what was timed then is not timed anew.  None lets it speak.

    Raises
    ------
    KvbatonError
        The sender cannot read the unit.
    """

    def __init__(
        self,
        equipment: Equipment,
        unit: Unit,
        others: Sequence[Unit],
        *,
        known: JSON | None = None,
    ) -> None:
        self.equipment, self.engine, self.unit, self._others = (
            equipment,
            equipment.engine,
            unit,
            others,
        )
        self._known = known or {}
        self._relays: dict[str, Relay] = {}
        self._stores = ExitStack()
        self._sent: dict[str, Sent] = {}
        self.turn, self.sender_s = self._speak()
        self.prompt_tokens = self.turn.tokens - len(self.turn.ids)
        self.tokenize_s = self._tokenizing()

    # -- the sender -----------------------------------------------------------------------------

    def _speak(self) -> tuple[Turn, dict[str, float]]:
        """The sender's turn, and its seconds: to the first token, and of decoding."""
        sender, read = self._agent(self.relay("sender")), self.unit.messages
        if not self._known and not self.unit.message:
            turn = sender.run(messages=read, max_new_tokens=self.unit.message_tokens)
            self.engine.wait_for_device()
            first = turn.receipt.seconds["ttft"]
            return turn, {
                "prefill_s": first, "decode_s": turn.receipt.seconds["total"] - first,
            }  # fmt: skip
        turn = sender.run(messages=read, max_new_tokens=1)
        first = turn.receipt.seconds["ttft"]
        ids = self._known.get("message_ids") or given_ids(self.engine, turn, self.unit.message)
        self.engine.wait_for_device()
        start = time.perf_counter()
        turn = put_into_its_mouth(self.engine, turn, ids, one_by_one=True)
        self.engine.wait_for_device()
        measured = {"prefill_s": first, "decode_s": time.perf_counter() - start}
        return turn, dict(self._known.get("sender", measured))

    def _tokenizing(self) -> float:
        """Seconds to turn what the sender read and said into ids again."""
        if self._known:
            return float(self._known["sender"]["tokenize_s"])
        text = self.engine.chat.text_of(self.turn.conversation.ids[: self.turn.tokens])
        self.engine.tokenizer.encode(text, add_special_tokens=False)  # warm
        start = time.perf_counter()
        self.engine.tokenizer.encode(text, add_special_tokens=False)
        return time.perf_counter() - start

    # -- stores and relays ----------------------------------------------------------------------

    def relay(self, name: str, *, checked: bool = True) -> Relay:
        """The relay of a treatment, with a store of its own."""
        if name not in self._relays:
            self._relays[name] = self.equipment.relay(self._stores, checked=checked)
        return self._relays[name]

    def _agent(self, relay: Relay, system: str | None = None) -> Receiver:
        return Receiver(
            "receiver",
            self.engine,
            relay,
            system=system,
            stream=False,
            deadline_s=DEADLINE_S,
            watch_for=self.equipment.watch_for,
        )

    def close(self) -> None:
        """Let go of stores and batons."""
        self._stores.close()
        self._relays.clear()
        self._sent.clear()

    # -- batons ---------------------------------------------------------------------------------

    def sent(self, treatment: Treatment) -> Sent:
        """The baton of a treatment; that of its content for one that attaches nothing.

        Raises
        ------
        KvbatonError
            The treatment is impossible for this model.
        """
        if treatment.name not in self._sent:
            self._sent[treatment.name] = self._send(treatment)
        return self._sent[treatment.name]

    def _send(self, treatment: Treatment) -> Sent:
        hand_off = self._ready(treatment)
        self.engine.wait_for_device()
        start = time.perf_counter()
        baton = hand_off()
        seconds = time.perf_counter() - start
        known = self._known.get("hand_off", {}).get(treatment.name)
        return Sent(baton, float(known["seconds"]) if known else seconds)

    def _ready(self, treatment: Treatment) -> Callable[[], Baton]:
        """The hand-off of a treatment, with everything that is not part of it already done."""
        relay = self.relay(treatment.name, checked=treatment.control is None)
        agent = self._agent(relay)
        if treatment.content is Content.SLICE:
            spans = cast("Spans", treatment.spans)
            return lambda: agent.hand_off(self.turn, spans=spans)
        if treatment.content is Content.PROMPT:  # its sender reads, and says nothing
            read = agent.prefill(messages=self.unit.messages)
            return lambda: agent.hand_off(read)
        if treatment.attached is Attached.GENERATED:
            return lambda: self._generated(relay)
        source, shown = self._whole(treatment)
        plan = self.equipment.plan_of(treatment.profile)
        return lambda: relay.hand_off(
            source,
            sender="sender",
            text=self.engine.chat.text_of(source.ids),
            spans=shown,
            messages=tuple(self.turn.messages),
            packing=Packing(plan),
        )

    def _whole(self, treatment: Treatment) -> tuple[Source, tuple[Span, ...]]:
        """The turn's context with the cache that the treatment calls for."""
        source, spans = whole_source(self.turn, Mode.CONTINUE)
        source = replace(source, held=())
        if treatment.attached is Attached.PROMPT:
            return replace(source, cached=self.prompt_tokens), spans
        if treatment.control is not None:
            cache = self._control_cache(treatment.control, source.cached)
            return replace(source, cache=cache), spans
        return source, spans

    def _generated(self, relay: Relay) -> Baton:
        """The message alone, as a slice that will stand where it was computed."""
        run = TokenRun(self.prompt_tokens, self.turn.tokens - self.prompt_tokens)
        source = self.turn.conversation.source(self.turn.tokens, self.turn.cached, (run,))
        if source.packed_cached == 0:
            raise SliceError("the sender's message has no keys and values", at="$.spans")
        ids = source.packed_ids
        return relay.hand_off(
            replace(source, held=()),
            sender="sender",
            text=self.engine.chat.text_of(ids),
            mode=Mode.SLICE,
            spans=(Span(Role.GENERATED, TokenRun(0, len(ids))),),
        )

    def _control_cache(self, control: Control, tokens: int) -> Any:
        """A cache of ``tokens`` positions whose numbers are not those of the sender's ids."""
        if control is Control.OTHER:
            cache = self.engine.new_cache(tokens)
            self.engine.forward(cache, self._other_ids(tokens))
            return cache
        own = self.turn.conversation.cache
        cache = self.relay("sender").copy_prefix(own, tokens, room=0)
        if control is Control.ZEROED:
            for layer in cache.layers:
                layer.k_store.zero_()
                layer.v_store.zero_()
            return cache
        generator = torch.Generator().manual_seed(tokens)
        for layer in cache.layers:
            # each in an order of its own: attention does not see an order that both have
            for store in (layer.k_store, layer.v_store):
                order = torch.randperm(tokens, generator=generator).to(store.device)
                store[:, :, :tokens] = store[:, :, order]
        return cache

    def _other_ids(self, tokens: int) -> tuple[int, ...]:
        """The first ``tokens`` ids of other units' conversations, one behind the other.

        Raises
        ------
        InputError
            All units have this very conversation.
        """
        others = [one for one in self._others if one.messages != self.unit.messages]
        if not others:
            raise InputError(
                "there is no other conversation to take a wrong cache from",
                hint="audit at least two units whose senders read different things",
            )
        ids: list[int] = []
        while len(ids) < tokens:
            for other in others:
                ids.extend(self.engine.chat.render(list(other.messages)).ids)
                if len(ids) >= tokens:
                    break
        return tuple(ids[:tokens])

    # -- the receiver ---------------------------------------------------------------------------

    def receiver(self, treatment: Treatment) -> Receiver:
        """A receiver that has read nothing yet."""
        system = RECEIVER_SYSTEM if treatment.content is Content.SLICE else None
        return self._agent(self.relay(treatment.name, checked=treatment.control is None), system)

    def take(self, treatment: Treatment, instruction: str, **options: Any) -> Turn:
        """Let a new receiver answer an instruction.

        Where a cache is attached, manifest and transcript are read from the store as another
        process would; by text they are at hand.
        """
        baton, receiver = self.sent(treatment).baton, self.receiver(treatment)
        if treatment.attached is Attached.GENERATED:
            whole = self.sent(TEXT).baton
            return receiver.take_in_place(
                baton, whole, instruction, known=self.prompt_tokens, **options
            )
        given: Baton | BatonRef = baton.ref
        if treatment.attached is Attached.NOTHING:
            given, options = baton, options | {"route": Route.TEXT}
        if treatment.content is Content.SLICE:
            options |= {} if treatment.repair else {"repair": None}
        return receiver.take(given, instruction=instruction, **options)

    def prompts(self, treatment: Treatment) -> list[Prompt]:
        """What the receiver reads for each of the unit's questions."""
        baton = self.sent(TEXT if treatment.content is Content.WHOLE else treatment).baton
        writer = self.receiver(treatment).writer
        if treatment.content is Content.SLICE:
            return [writer.behind_slices([baton], q.text) for q in self.unit.questions]
        return [
            writer.behind_baton(baton, q.text, same_tokenizer=True) for q in self.unit.questions
        ]


def shared_tokens(prompts: Sequence[Prompt]) -> int:
    """How many ids all prompts begin with alike; each keeps at least one of its own."""
    first, *rest = (prompt.ids for prompt in prompts)
    alike = min(len(prompt.ids) for prompt in prompts) - 1
    return min((common_prefix(first[:alike], other[:alike]) for other in rest), default=alike)
