"""The flow on a real, tiny model: what is reused, what is computed, what is written, in order."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from kvbaton.context import Context
from kvbaton.stores import Key, Kind
from kvbaton.types import Mode, Outcome, ReasonCode, Route, common_prefix

LONG = "Hello there, you plan and code. " * 4


def segment_bytes(store: Any) -> int:
    """Bytes of all segments in a store."""
    return sum(entry.size_bytes for entry in store.list(Kind.SEGMENT))


def test_a_taker_computes_pending_and_new_tokens_only(agent_of: Any, engine: Any) -> None:
    """Everything the sender computed is reused; an independent hook counts what was fed."""
    sender, receiver = agent_of("a", system="You plan"), agent_of("b")
    turn = sender.run(LONG, max_new_tokens=20)
    baton = sender.hand_off(turn)
    fed: list[int] = []
    hook = engine.model.model.norm.register_forward_hook(
        lambda module, args, out: fed.append(args[0].shape[1])
    )
    taken = receiver.take(baton.id, "Go on", max_new_tokens=8)
    hook.remove()
    receipt = taken.receipt
    assert (receipt.outcome, receipt.route) == (Outcome.USED, Route.BATON)
    assert receipt.reused_tokens == baton.manifest.cached_tokens == turn.cached
    new = receipt.context_tokens - turn.tokens
    assert receipt.pending_tokens == 1
    assert receipt.computed_tokens == 1 + new == fed[0]
    assert fed[1:] == [1] * (receipt.generated_tokens - 1)


def test_the_answer_is_the_one_of_the_text_route(agent_of: Any) -> None:
    """Greedy decoding from the baton gives the same tokens as prefilling its ids and the turn."""
    sender = agent_of("a", system="You plan")
    turn = sender.run(LONG, max_new_tokens=20)
    baton = sender.hand_off(turn)
    by_baton = agent_of("b").take(baton, "Go on", max_new_tokens=24)
    foreign = agent_of("c").take(baton, "Go on", max_new_tokens=24, deadline_s=0.0)
    assert foreign.receipt.route is Route.TEXT
    assert by_baton.ids == foreign.ids
    assert by_baton.conversation.ids == foreign.conversation.ids


@pytest.mark.parametrize("family", ["engine", "window_engine"])
def test_five_hops_equal_one_agent_bit_for_bit(
    agent_of: Any, family: str, request: pytest.FixtureRequest
) -> None:
    """Two agents that hand over five times end with the cache of one agent that did it alone."""
    engine = request.getfixturevalue(family)
    alone = agent_of("alone", engine=engine, stream=False)
    pair = [agent_of("a", engine=engine), agent_of("b", engine=engine)]
    single = alone.run(LONG, max_new_tokens=9)
    turn = pair[0].run(LONG, max_new_tokens=9)
    for hop in range(5):
        instruction = f"Go on {hop}"
        baton = pair[hop % 2].hand_off(turn)
        turn = pair[(hop + 1) % 2].take(baton, instruction, max_new_tokens=9)
        single = alone.run(instruction, max_new_tokens=9)
        assert turn.receipt.route is Route.BATON
        assert turn.receipt.hops.exact == hop + 1
        assert turn.conversation.ids == single.conversation.ids
    mine, theirs = turn.conversation.cache, single.conversation.cache
    for one, other in zip(mine.layers, theirs.layers, strict=True):
        assert torch.equal(one.keys, other.keys)
        assert torch.equal(one.values, other.values)
    assert torch.equal(engine.forward(mine, [5]), engine.forward(theirs, [5]))


def test_each_hop_writes_only_new_segments(agent_of: Any, store: Any) -> None:
    """A hop writes at most the new tokens and one re-cut segment, and lists the old addresses."""
    a, b = agent_of("a"), agent_of("b")
    first = a.hand_off(a.run(LONG, max_new_tokens=9))
    turn = b.take(first, "Go on", max_new_tokens=9)
    second = b.hand_off(turn)
    full = [ref for ref in first.manifest.segments if ref.span.count == 16]
    assert second.manifest.segments[: len(full)] == tuple(full)
    grown = second.manifest.cached_tokens - first.manifest.cached_tokens
    per_token = full[0].size_bytes / 16
    new_bytes = sum(r.size_bytes for r in second.manifest.segments[len(full) :])
    assert new_bytes <= (grown + 16) * per_token * 1.5


def test_a_second_hand_off_writes_no_segment_bytes(agent_of: Any, store: Any) -> None:
    """Segments are content-addressed: the same context is in the store already."""
    a = agent_of("a")
    turn = a.run(LONG, max_new_tokens=9)
    first = a.hand_off(turn)
    size = segment_bytes(store)
    second = a.hand_off(turn)
    assert second.bytes_written == 0
    assert segment_bytes(store) == size
    assert second.manifest.segments == first.manifest.segments
    assert second.bytes_deduplicated == sum(r.size_bytes for r in first.manifest.segments)


def test_layer_0_is_attached_before_the_last_layer_arrives(agent_of: Any, store: Any) -> None:
    """Layers stream: the first is in place while later ones are still being read."""
    from kvbaton.testing import FaultyStore

    watched = FaultyStore(store)
    sender = agent_of("a", store=watched)
    baton = sender.hand_off(sender.run(LONG, max_new_tokens=9))
    seen: list[tuple[int, int]] = []

    def observe(event: str, facts: Any) -> None:
        if event == "layer-attached":
            seen.append((facts["layer"], watched.count("read", Kind.SEGMENT)))

    agent_of("b", store=watched, observer=observe).take(baton, "Go on", max_new_tokens=2)
    layers = [layer for layer, _ in seen]
    assert layers == sorted(layers)
    reads_at_first, reads_at_last = seen[0][1], seen[-1][1]
    assert reads_at_first < reads_at_last
    assert reads_at_first <= reads_at_last - (len(seen) - 1)


def test_full_segments_are_stored_before_the_senders_last_token(agent_of: Any) -> None:
    """The outbox stores what is settled while the decode loop goes on."""
    events: list[str] = []
    first_stored = threading.Event()

    def observe(event: str, facts: Any) -> None:
        events.append(event)
        first_stored.set()

    def on_text(piece: str) -> None:
        if events or len(pieces) == 1:
            assert first_stored.wait(timeout=60)
        pieces.append(piece)
        events.append("text")

    pieces: list[str] = []
    agent = agent_of("a", observer=observe)
    turn = agent.run(LONG, max_new_tokens=30, on_text=on_text)
    baton = agent.hand_off(turn)
    last_token = len(events) - 1 - events[::-1].index("text")
    assert events.index("segment-stored") < last_token
    assert events[-1] == "baton-stored"
    assert events.count("segment-stored") == len(baton.manifest.segments)


def test_a_prefix_hit_serves_before_prefill(agent_of: Any) -> None:
    """Another agent with the same beginning loads it instead of prefilling it."""
    a, b = agent_of("a", system="You plan"), agent_of("b", system="You plan")
    turn = a.run(LONG, max_new_tokens=5)
    a.hand_off(turn)
    again = b.run(LONG, max_new_tokens=5)
    assert again.ids == turn.ids
    assert again.receipt.reasons[0].code is ReasonCode.PREFIX_HIT
    assert again.receipt.reused_tokens == again.receipt.context_tokens // 16 * 16
    assert again.receipt.computed_tokens == again.receipt.context_tokens % 16


def test_a_prefix_record_is_believed_only_with_the_same_tokens(agent_of: Any, store: Any) -> None:
    """A record that lists other ids under the same key is a miss: ids are compared."""
    from dataclasses import replace

    from kvbaton.seals.statement import sign
    from kvbaton.wire.prefix import PAYLOAD_TYPE, encode_prefix, stored_record

    a = agent_of("a")
    turn = a.run(LONG, max_new_tokens=5)
    a.hand_off(turn)
    for entry in list(store.list(Kind.PREFIX)):
        record = stored_record(store.get(entry.key, limit_bytes=1 << 20))
        forged = replace(record, ids=(record.ids[0] + 1, *record.ids[1:]))
        store.delete(entry.key)
        signer = a.relay.domain.signers.signer("a", "local")
        store.put(entry.key, [sign(PAYLOAD_TYPE, encode_prefix(forged), signer)])
    again = agent_of("b").run(LONG, max_new_tokens=5)
    assert again.receipt.reused_tokens == 0
    assert again.ids == turn.ids


def test_an_agent_keeps_its_cache_across_turns(agent_of: Any) -> None:
    """A second prompt computes the pending token and the new turn only."""
    a = agent_of("a")
    first = a.run(LONG, max_new_tokens=5)
    second = a.run("Go on", max_new_tokens=5)
    assert second.receipt.reused_tokens == first.cached
    assert second.receipt.computed_tokens == second.receipt.context_tokens - first.cached
    assert second.conversation.ids[: first.tokens] == first.conversation.ids[: first.tokens]


def test_messages_reuse_what_they_have_in_common(agent_of: Any) -> None:
    """``run(messages=...)`` goes on in the own cache, or copies what it agrees with."""
    a = agent_of("a", stream=False)
    opening = [{"role": "user", "content": LONG}]
    turn = a.run(messages=opening, max_new_tokens=5)
    assert turn.receipt.reused_tokens == 0
    changed = [{"role": "user", "content": LONG + "Hi"}]
    other = a.run(messages=changed, max_new_tokens=5)
    agreed = common_prefix(turn.conversation.ids, other.conversation.ids)
    assert other.receipt.first_divergence == other.receipt.reused_tokens == agreed > 16
    assert other.ids == agent_of("b", stream=False).run(messages=changed, max_new_tokens=5).ids
    assert a.hand_off(turn).manifest.cached_tokens == turn.cached


def test_shared_prefix_reuses_the_preamble_for_every_role(agent_of: Any) -> None:
    """Agents with different roles reuse the common preamble exactly, and only that."""
    preamble = Context(documents={"notes": LONG}).text
    a = agent_of("a", preamble=preamble, system="You plan")
    b = agent_of("b", preamble=preamble, system="You code", stream=False)
    baton = a.hand_off(a.run("Hello", max_new_tokens=5), mode="shared-prefix")
    turn = b.take(baton, "Go on", max_new_tokens=5)
    assert turn.receipt.mode is Mode.SHARED_PREFIX
    assert turn.receipt.reused_tokens == baton.manifest.cached_tokens
    alone = agent_of("c", preamble=preamble, system="You code", stream=False)
    alone.relay.store = type(alone.relay.store)()
    assert alone.run("Go on", max_new_tokens=5).ids == turn.ids


def test_a_receiver_with_a_system_prompt_is_warned_of_two(agent_of: Any) -> None:
    """In continue mode the receiver's own system prompt stands in its new turn, said so."""
    a = agent_of("a", system="You plan")
    baton = a.hand_off(a.run("Hello", max_new_tokens=5))
    turn = agent_of("b", system="You code").take(baton, "Go on", max_new_tokens=5)
    assert [w.code for w in turn.receipt.warnings] == [ReasonCode.TWO_SYSTEM_PROMPTS]
    text = a.engine.chat.text_of(turn.conversation.ids)
    assert "You code" in text.split("Go on")[0].rsplit("user", 1)[1]
    quiet = agent_of("c").take(baton, "Go on", max_new_tokens=5)
    assert quiet.receipt.warnings == ()


def test_a_baton_in_process_answers_even_when_the_store_lost_it(agent_of: Any, store: Any) -> None:
    """A ``Baton`` carries manifest and transcript: without segments its ids are prefilled."""
    a = agent_of("a")
    baton = a.hand_off(a.run(LONG, max_new_tokens=5))
    want = agent_of("b").take(baton, "Go on", max_new_tokens=5)
    for kind in Kind:
        for entry in list(store.list(kind)):
            store.delete(entry.key)
    turn = agent_of("c").take(baton, "Go on", max_new_tokens=5)
    assert (turn.receipt.outcome, turn.receipt.route) == (Outcome.KV_UNUSABLE, Route.TEXT)
    assert turn.receipt.reasons[0].code is ReasonCode.SEGMENT_MISSING
    assert turn.receipt.reasons[0].at == "$.segments[0]"
    assert turn.ids == want.ids


def test_terms_travel_with_the_baton(agent_of: Any, store: Any) -> None:
    """Instruction, summary, goal, round and receiver are in the manifest; the instruction is the
    default of a take."""
    a = agent_of("a")
    baton = a.hand_off(
        a.run("Hello", max_new_tokens=5),
        instruction="Go on", summary="S", goal="G", round=3, receiver="b",
    )  # fmt: skip
    opened = a.relay.open(baton.id)
    terms = opened.manifest.terms
    assert (terms.instruction, terms.summary, terms.goal, terms.round, terms.receiver) == (
        "Go on", "S", "G", 3, "b",
    )  # fmt: skip
    by_default = agent_of("b").take(baton.id, max_new_tokens=5)
    said = agent_of("c").take(baton.id, "Go on", max_new_tokens=5)
    assert by_default.conversation.ids == said.conversation.ids


def test_the_manifest_is_what_the_store_holds(agent_of: Any, store: Any) -> None:
    """What ``hand_off`` returns and what ``open`` reads are the same manifest and transcript."""
    a = agent_of("a", system="You plan")
    turn = a.run(LONG, max_new_tokens=5)
    baton = a.hand_off(turn)
    opened = a.relay.open(baton.ref)
    assert opened.manifest == baton.manifest
    assert opened.transcript == baton.transcript
    assert store.exists(Key(Kind.BATON, baton.id))
    assert sum(s.run.count for s in opened.manifest.spans) == len(opened.transcript.ids)
