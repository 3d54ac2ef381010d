"""Slices: parts of a sender's cache behind the receiver's own beginning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.relay.conftest import make_engine

from kvbaton.alignment.recompute import Repair
from kvbaton.errors import BatonRefused, EmptyInput, InputError, SliceError
from kvbaton.stores import Key, Kind
from kvbaton.types import FidelityClass, Mode, Outcome, ReasonCode, Role, Route, TokenRun

LONG = "Hello there, you plan and code. " * 4
EXACT_AGAIN = Repair(1.0)
"""Every row of the slices is computed again: then nothing is left of the approximation."""


def ids_of(turn: Any, run: TokenRun) -> list[int]:
    """The turn's ids at a run."""
    return turn.conversation.ids[run.first : run.stop]


# --- what is handed off --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spans", "roles"),
    [
        ("prompt", {Role.TASK}),
        ("generated", {Role.GENERATED}),
        ("all", {Role.TASK, Role.GENERATED}),
        ("turn", {Role.TASK, Role.GENERATED}),
    ],
)
def test_a_slice_is_made_of_roles_without_private_ones(
    agent_of: Any, spans: str, roles: set[Role]
) -> None:
    """What was read, what was said, or both: never the system prompt, unless it is asked for."""
    sender = agent_of("a", system="You plan")
    turn = sender.run(LONG, max_new_tokens=20)
    baton = sender.hand_off(turn, spans=spans)
    assert baton.manifest.mode is Mode.SLICE
    assert {span.role for span in baton.manifest.spans} == roles
    wanted = [i for s in turn.spans if s.role in roles for i in ids_of(turn, s.run)]
    assert list(baton.transcript.ids) == wanted
    assert baton.transcript.messages == ()
    assert "You plan" not in baton.transcript.text


def test_private_roles_come_along_when_they_are_asked_for(agent_of: Any) -> None:
    """``private=True`` lets a slice hold the system prompt, too."""
    sender = agent_of("a", system="You plan")
    turn = sender.run(LONG, max_new_tokens=20)
    baton = sender.hand_off(turn, spans="all", private=True)
    assert baton.transcript.ids == tuple(turn.conversation.ids)
    assert baton.manifest.fidelity.kind is FidelityClass.EXACT


def test_bytes_of_tokens_that_are_left_out_do_not_leave(agent_of: Any, store: Any) -> None:
    """Segments of a slice are cut at its ends, not at the grid alone."""
    sender = agent_of("a", system="You plan", stream=False)
    turn = sender.run(LONG, max_new_tokens=20)
    baton = sender.hand_off(turn, spans=[(21, 40)])
    assert [(r.span.first, r.span.count) for r in baton.manifest.segments] == [(21, 11), (32, 8)]
    assert [r.run for r in baton.manifest.segments] == [TokenRun(0, 11), TokenRun(11, 8)]
    assert len(list(store.list(Kind.SEGMENT))) == 2


def test_ranges_stand_one_behind_the_other(agent_of: Any) -> None:
    """Several ranges are packed; their original positions stay with the segments."""
    sender = agent_of("a", stream=False)
    turn = sender.run(LONG, max_new_tokens=20)
    baton = sender.hand_off(turn, spans=[(0, 10), (20, 30)])
    first, second = baton.manifest.segments[0], baton.manifest.segments[1]
    assert (first.shift, second.shift) == (None, -10)
    assert baton.manifest.fidelity.kind is FidelityClass.APPROXIMATE
    assert list(baton.transcript.ids) == turn.conversation.ids[:10] + turn.conversation.ids[20:30]


def test_a_prompt_can_be_handed_off_before_anything_is_decoded(agent_of: Any) -> None:
    """A zero-decode hand-off: the sender reads, the receiver concludes."""
    sender = agent_of("a", system="You plan")
    turn = sender.prefill(LONG)
    assert (turn.ids, turn.text, turn.receipt.generated_tokens) == ((), "", 0)
    assert turn.receipt.computed_tokens == turn.tokens == turn.cached
    baton = sender.hand_off(turn, spans="prompt")
    assert baton.manifest.pending_tokens == 0
    taken = agent_of("b").take(baton, "Go on", max_new_tokens=5)
    assert taken.receipt.route is Route.BATON
    whole = agent_of("c").take(sender.hand_off(turn), "Go on", max_new_tokens=5)
    assert whole.receipt.reused_tokens == turn.cached


def test_a_slice_can_be_thinned_out_by_attention(agent_of: Any) -> None:
    """``keep`` leaves the blocks that the last tokens look at, with the first and the last one."""
    sender = agent_of("a", stream=False)
    turn = sender.run(LONG * 2, max_new_tokens=20)
    whole = sender.hand_off(turn, spans="prompt")
    thin = sender.hand_off(turn, spans="prompt", keep=0.5)
    wanted, kept = len(whole.transcript.ids), len(thin.transcript.ids)
    assert wanted / 3 < kept < wanted
    assert thin.transcript.ids[:16] == whole.transcript.ids[:16]
    taken = agent_of("b").take(thin, "Go on", max_new_tokens=3)
    assert taken.receipt.route is Route.BATON
    with pytest.raises(SliceError) as caught:
        sender.hand_off(turn, spans="prompt", keep=0.0)
    assert caught.value.at == "$.keep"


def test_a_receiver_can_compute_the_first_layers_itself(agent_of: Any, engine: Any) -> None:
    """``Repair(1.0, layers=n)`` computes n layers of every row, and keeps the deeper ones."""
    sender = agent_of("a", system="You plan")
    baton = sender.hand_off(sender.run(LONG, max_new_tokens=20), spans="prompt")
    turn = agent_of("b", system="You code").take(
        baton, "Go on", max_new_tokens=1, repair=Repair(1.0, layers=1)
    )
    assert turn.receipt.recomputed_token_layers == len(baton.transcript.ids)
    untouched = agent_of("c", system="You code").take(baton, "Go on", max_new_tokens=1, repair=None)
    own = len(engine.chat.leading("You code", None).ids)
    run = slice(own, own + len(baton.transcript.ids))
    mine, theirs = turn.conversation.cache.layers[-1], untouched.conversation.cache.layers[-1]
    assert torch.equal(mine.values[:, :, run], theirs.values[:, :, run])


@pytest.mark.parametrize(
    ("spans", "at"),
    [
        ([], "$.spans"),
        ([(3, 3)], "$.spans[0]"),
        ([(0, 5), (4, 8)], "$.spans[1]"),
        ([(6, 8), (0, 5)], "$.spans[1]"),
        ([(0, 10_000)], "$.spans[0]"),
        ([(-1, 5)], "$.spans[0]"),
        ("answers", "$.spans"),
    ],
)
def test_bad_slices_name_their_place(agent_of: Any, spans: Any, at: str, store: Any) -> None:
    """Empty, overlapping, outside or out of order: refused, and nothing is stored."""
    sender = agent_of("a", stream=False)
    turn = sender.run(LONG, max_new_tokens=3)
    with pytest.raises(SliceError) as caught:
        sender.hand_off(turn, spans=spans)
    assert caught.value.at == at
    assert not list(store.list(Kind.BATON))


def test_slices_of_window_layers_are_refused(agent_of: Any, window_engine: Any) -> None:
    """A window layer keeps its end only, at the sender and at the receiver."""
    sender = agent_of("a", engine=window_engine)
    turn = sender.run(LONG, max_new_tokens=3)
    with pytest.raises(SliceError, match="window"):
        sender.hand_off(turn, spans="prompt")
    whole = sender.hand_off(turn)
    taken = agent_of("b", engine=window_engine).take(whole, "Go on", mode="slice", max_new_tokens=3)
    assert taken.receipt.route is Route.TEXT
    assert taken.receipt.reasons[0].code is ReasonCode.SLICE_REFUSED


def test_other_modes_take_no_spans(agent_of: Any) -> None:
    """Spans are for slices."""
    sender = agent_of("a")
    turn = sender.run(LONG, max_new_tokens=3)
    with pytest.raises(InputError):
        sender.hand_off(turn, mode="continue", spans="prompt")


# --- how it is taken -----------------------------------------------------------------------------


def test_a_slice_hangs_behind_the_receivers_own_beginning(agent_of: Any, engine: Any) -> None:
    """The receiver reads its own system prompt, the slice's ids, and its new turn."""
    sender, receiver = agent_of("a", system="You plan"), agent_of("b", system="You code")
    baton = sender.hand_off(sender.run(LONG, max_new_tokens=20), spans="prompt")
    turn = receiver.take(baton, "Go on", max_new_tokens=5, repair=None)
    ids, own = turn.conversation.ids, engine.chat.leading("You code", None).ids
    slice_ids = baton.transcript.ids
    assert tuple(ids[: len(own)]) == own
    assert tuple(ids[len(own) : len(own) + len(slice_ids)]) == slice_ids
    receipt = turn.receipt
    assert (receipt.outcome, receipt.route, receipt.mode) == (
        Outcome.USED,
        Route.BATON,
        Mode.SLICE,
    )
    assert receipt.reused_tokens == len(slice_ids)
    assert receipt.computed_tokens == receipt.context_tokens - len(slice_ids)
    assert receipt.fidelity.kind is FidelityClass.APPROXIMATE
    assert receipt.hops.lossy == 1


def test_keys_of_a_slice_stand_where_the_receiver_reads_them(agent_of: Any, engine: Any) -> None:
    """In layer 0, which no attention has touched, a slice equals the text route's cache."""
    sender = agent_of("a", system="You plan")
    baton = sender.hand_off(sender.run(LONG, max_new_tokens=20), spans="prompt")
    turn = agent_of("b", system="You code").take(baton, "Go on", max_new_tokens=1, repair=None)
    plain = engine.new_cache(len(turn.conversation.ids))
    engine.forward(plain, turn.conversation.ids[: turn.cached])
    mine, theirs = turn.conversation.cache.layers[0], plain.layers[0]
    torch.testing.assert_close(mine.keys, theirs.keys, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mine.values, theirs.values, rtol=1e-5, atol=1e-5)


def test_a_slice_that_is_repaired_wholly_gives_the_text_routes_cache(
    agent_of: Any, engine: Any
) -> None:
    """Recomputing every row leaves nothing of the approximation, for several slices as well."""
    senders = [agent_of(name, system="You plan") for name in "ab"]
    batons = [
        sender.hand_off(sender.run(LONG * n, max_new_tokens=9), spans="all")
        for n, sender in enumerate(senders, 1)
    ]
    turn = agent_of("r").take(*batons, "Go on", mode="slice", repair=EXACT_AGAIN, max_new_tokens=4)
    assert turn.receipt.route is Route.BATON
    assert turn.receipt.reused_tokens == 0
    assert turn.receipt.recomputed_token_layers > 0
    plain = engine.new_cache(len(turn.conversation.ids))
    engine.forward(plain, turn.conversation.ids[: turn.cached])
    for mine, theirs in zip(turn.conversation.cache.layers, plain.layers, strict=True):
        torch.testing.assert_close(mine.keys, theirs.keys, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(mine.values, theirs.values, rtol=1e-4, atol=1e-4)


def test_slices_of_several_senders_are_joined_in_the_given_order(agent_of: Any) -> None:
    """The join of a fan-out: each slice, closed as a turn, behind the one before."""
    texts = ["You plan. " * 3, "You code. " * 4, "Hello there. " * 5]
    batons = []
    for name, text in zip("abc", texts, strict=True):
        sender = agent_of(name)
        batons.append(sender.hand_off(sender.run(text, max_new_tokens=6), spans="all"))
    turn = agent_of("r").take(*batons[::-1], "Go on", max_new_tokens=4)
    said = agent_of("r").engine.chat.text_of(turn.conversation.ids)
    places = [said.index(text.strip()) for text in texts[::-1]]
    assert places == sorted(places)
    assert turn.receipt.batons == tuple(b.id for b in batons[::-1])
    assert turn.receipt.route is Route.BATON
    assert turn.conversation.parents == turn.receipt.batons


def test_one_lost_slice_of_several_is_computed_from_its_ids(
    agent_of: Any, engine: Any, store: Any
) -> None:
    """The others are attached around it: the route is partial, and says what was missing."""
    batons = []
    for name, text in (("a", "You plan. " * 9), ("b", "You code. " * 9), ("c", "Hello. " * 9)):
        sender = agent_of(name)
        batons.append(sender.hand_off(sender.prefill(text), spans="all"))
    store.delete(Key(Kind.SEGMENT, batons[1].manifest.segments[0].address))
    turn = agent_of("r").take(*batons, "Go on", max_new_tokens=4, repair=EXACT_AGAIN)
    assert turn.receipt.route is Route.PARTIAL
    assert turn.receipt.reasons[0].code is ReasonCode.SEGMENT_MISSING
    plain = engine.new_cache(len(turn.conversation.ids))
    engine.forward(plain, turn.conversation.ids[: turn.cached])
    for mine, theirs in zip(turn.conversation.cache.layers, plain.layers, strict=True):
        torch.testing.assert_close(mine.values, theirs.values, rtol=1e-4, atol=1e-4)
    with pytest.raises(BatonRefused):
        agent_of("s").take(*batons, "Go on", max_new_tokens=4, strict=True)


def test_lost_slices_are_read_as_text(agent_of: Any, engine: Any, store: Any) -> None:
    """With no cache left the answer is the one of prefilling the same ids, and hops begin anew."""
    sender = agent_of("a")
    baton = sender.hand_off(sender.run(LONG, max_new_tokens=9), spans="all")
    for ref in baton.manifest.segments:
        store.delete(Key(Kind.SEGMENT, ref.address))
    turn = agent_of("r").take(baton, "Go on", max_new_tokens=9)
    assert (turn.receipt.route, turn.receipt.outcome) == (Route.TEXT, Outcome.KV_UNUSABLE)
    assert (turn.receipt.reused_tokens, turn.receipt.hops.lossy) == (0, 0)
    assert turn.receipt.computed_tokens == turn.receipt.context_tokens
    cache = engine.new_cache(999)
    ids = turn.conversation.ids[: turn.receipt.context_tokens]
    expected = []
    for _ in turn.ids:
        logits = engine.forward(cache, ids)
        expected.append(int(logits.argmax()))
        ids = expected[-1:]
    assert list(turn.ids) == expected


def test_a_whole_baton_can_be_hung_without_what_is_private(agent_of: Any) -> None:
    """Taken as a slice, a sender's conversation comes without its system prompt."""
    sender = agent_of("a", system="You plan")
    turn = sender.run(LONG, max_new_tokens=9)
    baton = sender.hand_off(turn)
    taken = agent_of("b", system="You code").take(
        baton, "Go on", mode="slice", max_new_tokens=3, repair=None
    )
    said = sender.engine.chat.text_of(taken.conversation.ids)
    assert "You plan\n" not in said.replace(LONG.strip(), "")
    private = sum(s.run.count for s in turn.spans if s.role is Role.SYSTEM)
    assert taken.receipt.reused_tokens == turn.cached - private
    assert taken.receipt.route is Route.BATON


def test_a_clean_slice_has_attended_to_nothing_else(agent_of: Any, engine: Any) -> None:
    """``clean=True`` computes the slice's tokens from nothing but themselves."""
    sender = agent_of("a", system="You plan", stream=False)
    turn = sender.run(LONG, max_new_tokens=9)
    clean = sender.hand_off(turn, spans="prompt", clean=True)
    dirty = sender.hand_off(turn, spans="prompt")
    assert clean.transcript.ids == dirty.transcript.ids
    assert [r.address for r in clean.manifest.segments] != [
        r.address for r in dirty.manifest.segments
    ]
    assert clean.manifest.fidelity.kind is FidelityClass.EXACT
    taken = sender.relay.attach(
        clean.manifest.segments, clean.transcript.ids, clean.manifest.cached_tokens, room=4,
        deadline_s=60,
    )  # fmt: skip
    alone = engine.new_cache(99)
    engine.forward(alone, clean.transcript.ids)
    for mine, theirs in zip(taken.cache.layers, alone.layers, strict=True):
        assert torch.equal(mine.values, theirs.values)


def test_slices_need_the_senders_tokenizer(agent_of: Any) -> None:
    """Under another tokenizer a slice's ids mean nothing: its text is read instead."""
    sender = agent_of("a")
    baton = sender.hand_off(sender.run(LONG, max_new_tokens=9), spans="prompt")
    parts = tuple(
        (k, "f" * 64 if k == "tokenizer" else v) for k, v in baton.manifest.function.parts
    )
    foreign = replace(
        baton,
        manifest=replace(
            baton.manifest, function=replace(baton.manifest.function, digest="0" * 64, parts=parts)
        ),
    )
    turn = agent_of("b").take(foreign, "Go on", max_new_tokens=3)
    assert turn.receipt.route is Route.TEXT
    assert turn.receipt.reasons[0].code is ReasonCode.FUNCTION_DIFFERS
    assert "you plan and code" in sender.engine.chat.text_of(turn.conversation.ids)


def test_slices_of_another_function_are_computed_from_ids(agent_of: Any) -> None:
    """Other weights, same tokenizer: the ids are prefilled, with the parts that differ named."""
    sender = agent_of("a")
    baton = sender.hand_off(sender.run(LONG, max_new_tokens=9), spans="prompt")
    other = make_engine(seed_text="other")
    turn = agent_of("b", engine=other).take(baton, "Go on", max_new_tokens=3)
    assert turn.receipt.route is Route.TEXT
    assert turn.receipt.reasons[0].code is ReasonCode.FUNCTION_DIFFERS


def test_a_minimum_of_exact_refuses_slices(agent_of: Any) -> None:
    """However its bytes were stored, what hangs behind other tokens is approximate."""
    sender = agent_of("a")
    baton = sender.hand_off(sender.run(LONG, max_new_tokens=9), spans="prompt")
    turn = agent_of("b").take(baton, "Go on", minimum="lossy", max_new_tokens=3)
    assert turn.receipt.reasons[0].code is ReasonCode.FIDELITY
    assert turn.receipt.route is Route.TEXT


def test_what_makes_no_sense_is_refused(agent_of: Any) -> None:
    """Several whole batons, no baton, a baton that is neither id nor reference, nothing to say."""
    sender, taker = agent_of("a"), agent_of("b")
    baton = sender.hand_off(sender.run(LONG, max_new_tokens=3))
    sliced = sender.hand_off(sender.run(LONG, max_new_tokens=3), spans="prompt")
    with pytest.raises(InputError, match="several"):
        taker.take(baton, baton, "Go on")
    with pytest.raises(InputError):
        taker.take(instruction="Go on")
    with pytest.raises(InputError, match="no baton's id"):
        taker.take(baton, "not an id", baton, mode="slice")
    with pytest.raises(EmptyInput):
        taker.take(sliced, "")


# --- and handed on -------------------------------------------------------------------------------


def test_a_slice_keeps_its_segments_and_records_its_shift(agent_of: Any, store: Any) -> None:
    """The receiver lists the sender's segments again, moved, and writes only what is its own."""
    sender, receiver = agent_of("a", system="You plan"), agent_of("b", system="You code")
    baton = sender.hand_off(sender.run(LONG, max_new_tokens=20), spans="prompt")
    turn = receiver.take(baton, "Go on", max_new_tokens=20, repair=None)
    onward = receiver.hand_off(turn)
    moved = [ref for ref in onward.manifest.segments if ref.moved]
    assert [r.address for r in moved] == [r.address for r in baton.manifest.segments]
    assert onward.bytes_written == sum(
        r.size_bytes for r in onward.manifest.segments if not r.moved
    ) or onward.bytes_deduplicated >= sum(r.size_bytes for r in moved)
    assert onward.manifest.fidelity.kind is FidelityClass.APPROXIMATE
    assert onward.manifest.hops.lossy == 2
    last = agent_of("c").take(onward, "Go on", max_new_tokens=5)
    assert last.receipt.route is Route.BATON
    for mine, theirs in zip(
        last.conversation.cache.layers, turn.conversation.cache.layers, strict=True
    ):
        count = turn.cached
        assert torch.equal(mine.k_store[:, :, :count], theirs.k_store[:, :, :count])
        assert torch.equal(mine.v_store[:, :, :count], theirs.v_store[:, :, :count])


def test_a_moved_segment_is_turned_once_from_the_original(agent_of: Any, engine: Any) -> None:
    """A slice of a slice of a slice lists the first sender's segments, with one shift."""
    first = agent_of("a", system="You plan")
    baton = first.hand_off(first.prefill(LONG), spans="prompt")
    original = [(r.address, r.span) for r in baton.manifest.segments]
    for hop, name in enumerate("bcd"):
        agent = agent_of(name, system="Hello " * (hop + 2), max_lossy_hops=None)
        turn = agent.take(baton, "Go on", mode="slice", max_new_tokens=3, repair=None)
        assert turn.receipt.route is Route.BATON
        slices = [s for s in turn.spans if s.role is Role.TASK][:1]
        baton = agent.hand_off(turn, spans=[(slices[0].run.first, slices[0].run.stop)])
        assert [(r.address, r.span) for r in baton.manifest.segments] == original
    assert (
        agent_of("z", max_lossy_hops=3)
        .take(baton, "Go on", max_new_tokens=2)
        .receipt.reasons[0]
        .code
        is ReasonCode.HOPS
    )


def test_what_was_repaired_is_stored_anew(agent_of: Any) -> None:
    """Segments that hold repaired rows are not listed again: the repair would be lost."""
    sender, receiver = agent_of("a"), agent_of("b", system="You code")
    baton = sender.hand_off(sender.run(LONG, max_new_tokens=20), spans="prompt")
    turn = receiver.take(baton, "Go on", max_new_tokens=5, repair=EXACT_AGAIN)
    onward = receiver.hand_off(turn)
    assert not {r.address for r in baton.manifest.segments} & {
        r.address for r in onward.manifest.segments
    }
    assert onward.manifest.fidelity.kind is FidelityClass.APPROXIMATE
