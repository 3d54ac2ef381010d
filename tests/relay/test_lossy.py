"""Lossy batons: measured, passed on untouched, and given up after too many hops."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kvbaton import codecs
from kvbaton.agent import Agent
from kvbaton.codecs import CodecChain, CodecPlan, Int, uniform
from kvbaton.errors import LossySource
from kvbaton.stores import Key, Kind, MemoryStore
from kvbaton.types import FidelityClass, Outcome, ReasonCode, Route

LONG = "Hello there, you plan and code. " * 4
RECORD, OTHER_RECORD = "ca" * 32, "0b" * 32


def plan_of(bits: int, name: str = "eight", record: str = RECORD) -> CodecPlan:
    """Keys per channel, values per token, all layers alike."""
    keys = CodecChain((Int(bits=bits, axis="channel", group=8),))
    values = CodecChain((Int(bits=bits, axis="token", group=8),))
    return uniform(name, keys, values, 2).calibrated(record)


def known(function: str) -> frozenset[str]:
    """The records that these tests pretend to have measured."""
    return frozenset({RECORD, OTHER_RECORD})


@pytest.fixture
def lossy_agent(agent_of: Any, engine: Any) -> Callable[..., Agent]:
    """Makes agents that encode at 8 bits."""
    layers = len(engine.layout.layers)
    plan = uniform("eight", *plan_of(8).layers[0], layers).calibrated(RECORD)

    def make(name: str, **options: Any) -> Agent:
        options.setdefault("plan", plan)
        options.setdefault("calibrations", known)
        made: Agent = agent_of(name, **options)
        return made

    return make


def test_a_lossy_baton_is_smaller_and_says_so(lossy_agent: Any, agent_of: Any) -> None:
    """Fidelity, codec and calibration record stand in every segment, the manifest, the receipt."""
    plain = agent_of("e", store=MemoryStore())
    exact = plain.hand_off(plain.run(LONG, max_new_tokens=9))
    sender = lossy_agent("a")
    baton = sender.hand_off(sender.run(LONG, max_new_tokens=9))
    for fidelity in (baton.manifest.fidelity, *(r.fidelity for r in baton.manifest.segments)):
        assert (fidelity.kind, fidelity.codec) == (FidelityClass.LOSSY, "eight")
        assert fidelity.calibration == RECORD
    assert sum(r.size_bytes for r in baton.manifest.segments) < sum(
        r.size_bytes for r in exact.manifest.segments
    )
    turn = lossy_agent("b").take(baton, "Go on", max_new_tokens=5)
    assert turn.receipt.route is Route.BATON
    assert turn.receipt.fidelity == baton.manifest.fidelity
    assert turn.receipt.hops.lossy == 1


def test_what_was_not_measured_is_refused(lossy_agent: Any, agent_of: Any) -> None:
    """Without the calibration record the ids are prefilled, and the command is named."""
    sender = lossy_agent("a")
    baton = sender.hand_off(sender.run(LONG, max_new_tokens=9))
    turn = agent_of("b").take(baton, "Go on", max_new_tokens=5)
    (reason,) = turn.receipt.reasons
    assert (turn.receipt.route, reason.code) == (Route.TEXT, ReasonCode.CALIBRATION)
    assert "kvbaton tune-codec tiny-llama" in reason.sentence


def test_lossy_segments_are_passed_on_untouched(lossy_agent: Any) -> None:
    """Ten hops: what was inherited has the same address, bit for bit, and is never re-quantized."""
    pair = [lossy_agent("a", max_lossy_hops=None), lossy_agent("b", max_lossy_hops=None)]
    turn = pair[0].run(LONG, max_new_tokens=9)
    seen: list[str] = []
    for hop in range(10):
        baton = pair[hop % 2].hand_off(turn)
        addresses = [r.address for r in baton.manifest.segments]
        assert addresses[: len(seen)] == seen
        seen = addresses
        turn = pair[(hop + 1) % 2].take(baton, f"Go on {hop}", max_new_tokens=5)
        assert turn.receipt.route is Route.BATON
        assert turn.receipt.hops.lossy == hop + 1
        assert turn.conversation.held == baton.manifest.segments


def test_the_receivers_cache_is_what_the_codec_gives(lossy_agent: Any, engine: Any) -> None:
    """What is attached is decode(encode(x)) of the sender's cache, layer by layer."""
    sender = lossy_agent("a", stream=False)
    turn = sender.run(LONG, max_new_tokens=9)
    baton = sender.hand_off(turn)
    taken = lossy_agent("b").take(baton, "Go on", max_new_tokens=1)
    plan, layout = sender.relay.plan, engine.layout
    from kvbaton.wire.structure import layer_places

    for layer in range(len(layout.layers)):
        for ref in baton.manifest.segments:
            first, count = ref.span.first, ref.span.count
            sent = turn.conversation.cache.layer_view(layer, first, count)
            got = taken.conversation.cache.layer_view(layer, first, count)
            places = layer_places(layout, layer, first)
            for chain, place, x, y in zip(plan.chains(layer), places, sent, got, strict=True):
                stored = {t.name[2:]: t.data for t in chain.encode(x.contiguous(), place)}
                want = chain.decode(stored, layout.dtype, tuple(x.shape), place)
                assert torch.equal(y, want)


def test_what_attended_to_lossy_tokens_is_lossy(agent_of: Any, lossy_agent: Any) -> None:
    """A receiver that stores its own tokens losslessly does not make the context exact again."""
    sender = lossy_agent("a")
    baton = sender.hand_off(sender.run(LONG, max_new_tokens=9))
    receiver = agent_of("b", calibrations=known)
    onward = receiver.hand_off(receiver.take(baton, "Go on", max_new_tokens=20))
    own = onward.manifest.segments[len(baton.manifest.segments) :]
    assert {r.fidelity.kind for r in own} == {FidelityClass.LOSSY}
    assert onward.manifest.fidelity.kind is FidelityClass.LOSSY


def test_quantizing_twice_is_refused_unless_it_is_forced(lossy_agent: Any, engine: Any) -> None:
    """Naming another lossy plan for a lossy source is an error; forced, it is marked."""
    layers = len(engine.layout.layers)
    four = uniform("four", *plan_of(4).layers[0], layers).calibrated(OTHER_RECORD)
    sender, receiver = lossy_agent("a"), lossy_agent("b")
    baton = sender.hand_off(sender.run(LONG, max_new_tokens=9))
    turn = receiver.take(baton, "Go on", max_new_tokens=5)
    with pytest.raises(LossySource, match="'eight'"):
        receiver.hand_off(turn, plan=four)
    forced = receiver.hand_off(turn, plan=four, requantize=True)
    assert "eight+four" in {r.fidelity.codec for r in forced.manifest.segments}
    refused = lossy_agent("c").take(forced, "Go on", max_new_tokens=2)
    assert refused.receipt.reasons[0].code is ReasonCode.CALIBRATION
    again = sender.hand_off(sender.run(LONG, max_new_tokens=9), plan=four)
    assert {r.fidelity.codec for r in again.manifest.segments} == {"four"}


def test_a_part_of_a_lossy_segment_is_stored_losslessly(lossy_agent: Any, store: Any) -> None:
    """Where a segment is not used whole, what was decoded from it is not quantized again."""
    sender, receiver = lossy_agent("a"), lossy_agent("b")
    baton = sender.hand_off(sender.run(LONG, max_new_tokens=9))
    ids = baton.transcript.ids
    messages = [{"role": "user", "content": LONG + "And more."}]
    turn = receiver.take(baton, messages=messages, max_new_tokens=9)
    assert turn.receipt.route is Route.PARTIAL
    assert 0 < turn.receipt.reused_tokens < len(ids)
    onward = receiver.hand_off(turn)
    last = lossy_agent("c").take(onward, "Go on", max_new_tokens=1)
    assert last.receipt.route is Route.BATON
    count = turn.receipt.reused_tokens
    for mine, theirs in zip(
        last.conversation.cache.layers, turn.conversation.cache.layers, strict=True
    ):
        assert torch.equal(mine.k_store[:, :, :count], theirs.k_store[:, :, :count])


def test_after_three_lossy_hops_the_ids_are_read_again(lossy_agent: Any) -> None:
    """The fourth receiver prefills and starts a fresh baton of no hops."""
    turn = lossy_agent("a").run(LONG, max_new_tokens=9)
    sender = lossy_agent("a0")
    for hop in range(4):
        baton = sender.hand_off(turn)
        sender = lossy_agent(f"a{hop + 1}")
        turn = sender.take(baton, f"Go on {hop}", max_new_tokens=5)
        worn_out = hop == 3
        assert turn.receipt.route is (Route.TEXT if worn_out else Route.BATON)
    assert turn.receipt.outcome is Outcome.KV_UNUSABLE
    assert turn.receipt.reasons[0].code is ReasonCode.HOPS
    fresh = sender.hand_off(turn)
    assert fresh.manifest.hops.lossy == 1


def test_lossy_segments_are_streamed_while_decoding(lossy_agent: Any, store: Any) -> None:
    """A hand-off after the last token writes at most one more segment."""
    sender = lossy_agent("a")
    turn = sender.run(LONG, max_new_tokens=40)
    sender.conversation.stored()
    before = len(list(store.list(Kind.SEGMENT)))
    baton = sender.hand_off(turn)
    assert len(list(store.list(Kind.SEGMENT))) - before <= 1
    assert baton.manifest.fidelity.kind is FidelityClass.LOSSY


def test_an_unknown_codec_is_named_and_the_ids_are_read(
    lossy_agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A header with a codec that is not there says what would bring it."""
    sender = lossy_agent("a")
    baton = sender.hand_off(sender.run(LONG, max_new_tokens=9))
    monkeypatch.setattr(sys.modules["kvbaton.codecs.storage"], "CODECS", {"raw": codecs.Raw})
    turn = lossy_agent("b").take(baton, "Go on", max_new_tokens=5)
    (reason,) = turn.receipt.reasons
    assert (turn.receipt.route, reason.code) == (Route.TEXT, ReasonCode.CODEC_UNKNOWN)
    assert reason.at.startswith("$.segments[0].codecs[0]")
    assert "int" in reason.sentence


def test_slices_of_lossy_caches_keep_their_codec(lossy_agent: Any) -> None:
    """A moved lossy segment is approximate, and still says by which codec and record."""
    sender, receiver = lossy_agent("a", system="You plan"), lossy_agent("b", system="You code")
    baton = sender.hand_off(sender.run(LONG, max_new_tokens=9), spans="prompt")
    turn = receiver.take(baton, "Go on", max_new_tokens=5, repair=None)
    fidelity = turn.receipt.fidelity
    assert (fidelity.kind, fidelity.codec, fidelity.calibration) == (
        FidelityClass.APPROXIMATE,
        "eight",
        RECORD,
    )
    onward = receiver.hand_off(turn)
    moved = [r.address for r in onward.manifest.segments if r.moved]
    assert moved == [r.address for r in baton.manifest.segments]


def test_a_lost_lossy_segment_is_made_again_losslessly(lossy_agent: Any, store: Any) -> None:
    """What the store has lost is stored from the receiver's cache, without losing more."""
    sender, receiver = lossy_agent("a"), lossy_agent("b")
    baton = sender.hand_off(sender.run(LONG, max_new_tokens=9))
    turn = receiver.take(baton, "Go on", max_new_tokens=5)
    store.delete(Key(Kind.SEGMENT, baton.manifest.segments[0].address))
    onward = receiver.hand_off(turn)
    assert onward.manifest.segments[0].fidelity.codec == "eight"
    assert onward.manifest.segments[0].address != baton.manifest.segments[0].address
    last = lossy_agent("c").take(onward, "Go on", max_new_tokens=1)
    assert last.receipt.route is Route.BATON


def test_memory_that_runs_out_while_decoding_leaves_the_text_route(
    lossy_agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The half-filled cache is gone, the ids are prefilled, and the next take goes by baton."""
    sender, receiver = lossy_agent("a"), lossy_agent("b")
    baton = sender.hand_off(sender.run(LONG, max_new_tokens=9))
    slots: list[Any] = []
    make, decode, asked = receiver.engine.slot, CodecChain.decode, [0]

    def slot(*args: Any, **options: Any) -> Any:
        made = make(*args, **options)
        slots.append(weakref.ref(made))
        return made

    def failing(self: CodecChain, *args: Any, **options: Any) -> Any:
        asked[0] += 1
        if asked[0] == 3:
            raise MemoryError
        return decode(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(receiver.engine, "slot", slot)
        patch.setattr(CodecChain, "decode", failing)
        turn = receiver.take(baton, "Go on", max_new_tokens=5)
    (reason,) = turn.receipt.reasons
    assert (turn.receipt.route, reason.code) == (Route.TEXT, ReasonCode.MEMORY)
    gc.collect()
    assert [one() for one in slots] == [None]
    again = lossy_agent("c").take(baton, "Go on", max_new_tokens=5)
    assert again.receipt.route is Route.BATON


def test_a_beginning_that_is_reused_keeps_what_it_has_lost(lossy_agent: Any, agent_of: Any) -> None:
    """The receiver's own beginning, copied from a lossy conversation, makes the next one lossy."""
    sender = lossy_agent("a", system="You plan")
    baton = sender.hand_off(sender.run(LONG, max_new_tokens=9))
    exact = agent_of("c")
    part = exact.hand_off(exact.run("You code. " * 4, max_new_tokens=3), spans="prompt")
    receiver = lossy_agent("b", system="You plan")
    receiver.take(baton, "Go on", max_new_tokens=3)
    turn = receiver.take(part, "Go on", max_new_tokens=3, repair=None)
    assert turn.receipt.route is Route.BATON
    assert turn.receipt.fidelity.kind is FidelityClass.APPROXIMATE
    assert turn.receipt.fidelity.codec == "eight"
    fresh = lossy_agent("d", system="You plan").take(part, "Go on", max_new_tokens=3, repair=None)
    assert fresh.receipt.fidelity.codec == "raw"
