"""Outcome classes: not trusted, unavailable, KV unusable; each with its reason and its answer."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from tests.engines.chat_tokenizers import merging_tokenizer
from tests.engines.families import build
from tests.relay.conftest import TEMPLATE, make_engine

from kvbaton.decoding import Decoding, decode
from kvbaton.engines.transformers.load import wrap_model
from kvbaton.errors import (
    BatonRefused,
    BatonUnavailable,
    EmptyInput,
    InputError,
    NotTrusted,
    StoreError,
    StoreFull,
    TrustFault,
    WindowExceeded,
)
from kvbaton.seals import TrustDomain
from kvbaton.stores import Key, Kind, MemoryStore
from kvbaton.testing import Corrupt, Fail, FaultyStore, Shorten, Stall, StoreFault
from kvbaton.types import Baton, BatonRef, FidelityClass, Outcome, ReasonCode, Route, common_prefix
from kvbaton.wire.digests import DomainKeys
from kvbaton.wire.segment import read_header

LONG = "Hello there, you plan and code. " * 4
MESSAGES = [{"role": "user", "content": "Hello there"}]


def handed_off(agent_of: Any, **options: Any) -> Baton:
    """A baton of a sender that answered to a long prompt."""
    sender = agent_of("sender", system="You plan", **options)
    baton: Baton = sender.hand_off(sender.run(LONG, max_new_tokens=9))
    return baton


def by_text(agent_of: Any, baton: Baton, said: str = "Go on", **options: Any) -> tuple[int, ...]:
    """What a run that never had a baton answers to the same ids."""
    agent = agent_of("text", stream=False, store=MemoryStore(), **options)
    ids = baton.transcript.ids
    turn = agent.engine.chat.handoff_turn(None, said)
    prompt = ids + agent.engine.chat.suffix(ids, turn).ids
    cache = agent.engine.new_cache(len(prompt) + 8)
    return decode(agent.engine, cache, prompt, Decoding(max_new_tokens=12)).ids


@pytest.mark.parametrize(
    ("fault", "code", "at"),
    [
        (("open", Fail(StoreError("EIO")), None), "store-error", "$.segments[0]"),
        (("read", Fail(StoreError("EIO")), 9), "store-error", "$.segments"),
        (("read", Shorten(100), 12), "store-error", "$.segments"),
        (("open", Shorten(4), None), "segment-corrupt", "$.segments[0]"),
        (("read", Corrupt(3), None), "segment-corrupt", "$.segments[0]"),
    ],
)
def test_unusable_kv_is_answered_from_the_batons_ids(
    agent_of: Any, store: Any, fault: tuple[Any, Any, int | None], code: str, at: str
) -> None:
    """Whatever is wrong with a segment: route text, token-identical, with the reason and place."""
    baton = handed_off(agent_of)
    on, effect, nth = fault
    faulty = FaultyStore(store, StoreFault(on, effect, kind=Kind.SEGMENT, nth=nth))
    turn = agent_of("b", store=faulty).take(baton.id, "Go on", max_new_tokens=12)
    receipt = turn.receipt
    assert (receipt.outcome, receipt.route) == (Outcome.KV_UNUSABLE, Route.TEXT)
    assert receipt.reasons[0].code.value == code
    assert receipt.reasons[0].at.startswith(at)
    assert receipt.reused_tokens == 0
    assert receipt.computed_tokens == receipt.context_tokens
    assert turn.ids == by_text(agent_of, baton)


def test_any_damaged_byte_of_a_segment_is_found_and_placed(
    agent_of: Any, store: Any, domain: TrustDomain
) -> None:
    """Length field, header, padding and the first, middle and last byte of every layer range of
    the first and the last segment: never attached, the reason names segment and layer."""
    baton = handed_off(agent_of)
    relay = agent_of("b").relay
    last = len(baton.manifest.segments) - 1
    for index in (0, last):
        ref = baton.manifest.segments[index]
        key = Key(Kind.SEGMENT, ref.address)
        with store.open(key) as reader:
            header = read_header(
                reader.read, file_size=reader.size_bytes, address=ref.address, keys=domain.keys
            )
        places = [(offset, f"$.segments[{index}]") for offset in range(8)]
        inside = range(8, header.body_start, 41)
        places += [(offset, f"$.segments[{index}].header") for offset in inside]
        places += [(header.body_start - 1, f"$.segments[{index}]")]
        for number, part in enumerate(header.ranges):
            middle = (part.start + part.stop) // 2
            for offset in (part.start, middle, part.stop - 1):
                places.append((header.body_start + offset, f"$.segments[{index}].ranges[{number}]"))
        for offset, at in places:
            relay.store = FaultyStore(store, StoreFault("read", Corrupt(offset), key=key))
            found = replace(baton, ref=BatonRef(baton.id, relay.store.url))
            taken = relay.take(found, prompt_tokens=500, reusable=499, room=8, deadline_s=60)
            assert taken.cache is None
            assert taken.reasons[0].code is ReasonCode.SEGMENT_CORRUPT
            assert taken.reasons[0].at.startswith(at), (offset, taken.reasons[0])


def test_a_missing_segment_is_named(agent_of: Any, store: Any) -> None:
    """The receipt says which segment is not there."""
    baton = handed_off(agent_of)
    store.delete(Key(Kind.SEGMENT, baton.manifest.segments[2].address))
    turn = agent_of("b").take(baton.id, "Go on", max_new_tokens=12)
    reason = turn.receipt.reasons[0]
    assert (reason.code, reason.at) == (ReasonCode.SEGMENT_MISSING, "$.segments[2]")
    assert turn.ids == by_text(agent_of, baton)


@pytest.mark.parametrize("kind", [Kind.BATON, Kind.TRANSCRIPT])
def test_an_unavailable_baton_is_an_error_or_the_callers_messages(
    agent_of: Any, store: Any, kind: Kind
) -> None:
    """Without manifest or transcript the context is unknown: only the caller's messages count."""
    baton = handed_off(agent_of)
    (entry,) = store.list(kind)
    store.delete(entry.key)
    with pytest.raises(BatonUnavailable):
        agent_of("b").take(baton.id, "Go on")
    turn = agent_of("c").take(baton.id, "Go on", messages=MESSAGES, max_new_tokens=12)
    plain = agent_of("d", store=MemoryStore()).run(messages=MESSAGES, max_new_tokens=12)
    assert turn.receipt.outcome is Outcome.UNAVAILABLE
    what = "manifest" if kind is Kind.BATON else "transcript"
    assert turn.receipt.reasons[0].code.value == f"{what}-missing"
    assert turn.ids == plain.ids
    assert turn.conversation.ids == plain.conversation.ids


@pytest.mark.parametrize(
    ("kind", "error"), [(Kind.BATON, NotTrusted), (Kind.TRANSCRIPT, BatonUnavailable)]
)
def test_no_damaged_byte_of_manifest_or_transcript_is_used(
    agent_of: Any, store: Any, kind: Kind, error: type[Exception]
) -> None:
    """Every byte is covered: each is flipped once, and none of the text is used."""
    baton = handed_off(agent_of)
    (entry,) = store.list(kind)
    for offset in range(0, entry.size_bytes, 7):
        faulty = FaultyStore(store, StoreFault("read", Corrupt(offset), kind=kind))
        with pytest.raises(error):
            agent_of("b", store=faulty).relay.open(baton.id)


def test_a_foreign_domain_is_not_trusted_and_its_text_is_never_read(
    agent_of: Any, store: Any
) -> None:
    """Nothing of a foreign baton reaches a tokenizer or a model; its transcript is not opened."""
    baton = handed_off(agent_of)
    elsewhere = TrustDomain("elsewhere", DomainKeys(bytes(32)))
    watched = FaultyStore(store)
    stranger = agent_of("b", domain=elsewhere, store=watched)
    with pytest.raises(NotTrusted):
        stranger.take(baton.id, "Go on")
    assert watched.count("open", Kind.TRANSCRIPT) == watched.count("open", Kind.SEGMENT) == 0
    turn = stranger.take(baton, "Go on", messages=MESSAGES, max_new_tokens=12)
    plain = agent_of("d", store=MemoryStore()).run(messages=MESSAGES, max_new_tokens=12)
    assert turn.receipt.outcome is Outcome.NOT_TRUSTED
    assert turn.receipt.reasons[0].code is ReasonCode.DOMAIN_DIFFERS
    assert turn.conversation.ids == plain.conversation.ids


def test_a_domain_of_the_same_name_with_another_key_cannot_use_the_baton(agent_of: Any) -> None:
    """The key decides, not the name: the signature is of a key that is not known there."""
    baton = handed_off(agent_of)
    impostor = TrustDomain("local", DomainKeys(bytes(32)))
    with pytest.raises(NotTrusted) as refused:
        agent_of("b", domain=impostor).take(baton.id, "Go on")
    assert refused.value.fault is TrustFault.UNKNOWN_KEY


@pytest.mark.parametrize(
    ("family", "seed_text", "part"), [("llama", "other", "weights"), ("qwen2", "", "weights")]
)
def test_another_function_is_refused_before_any_segment_is_opened(
    agent_of: Any, store: Any, family: str, seed_text: str, part: str
) -> None:
    """Other weights under the same name: refused by the manifest alone, answered from the ids."""
    baton = handed_off(agent_of)
    other = make_engine(family, seed_text=seed_text)
    other.name = "tiny-llama"
    watched = FaultyStore(store)
    turn = agent_of("b", engine=other, store=watched).take(baton.id, "Go on", max_new_tokens=12)
    reason = turn.receipt.reasons[0]
    assert reason.code is ReasonCode.FUNCTION_DIFFERS
    assert part in reason.sentence
    assert watched.count("open", Kind.SEGMENT) == 0
    assert turn.ids == by_text(agent_of, baton, engine=other)


def test_another_tokenizer_reads_the_messages_again(agent_of: Any) -> None:
    """Ids of another vocabulary mean nothing: the conversation is rendered from its messages."""
    baton = handed_off(agent_of)
    tokenizer = merging_tokenizer()
    tokenizer.chat_template = TEMPLATE
    other = wrap_model(build("llama"), tokenizer, name="other")
    turn = agent_of("b", engine=other).take(baton, "Go on", max_new_tokens=4)
    assert turn.receipt.route is Route.TEXT
    assert "tokenizer" in turn.receipt.reasons[0].sentence
    text = other.chat.text_of(turn.conversation.ids)
    assert LONG.strip() in text
    assert "Go on" in text


def test_a_changed_template_keeps_the_ids(agent_of: Any, engine: Any) -> None:
    """With the same tokenizer the baton's ids stay the truth; its cache is refused."""
    other = make_engine()
    other.tokenizer.chat_template += "{# changed #}"
    other.chat = type(other.chat)(other.tokenizer)
    baton = handed_off(agent_of)
    turn = agent_of("b", engine=other).take(baton, "Go on", max_new_tokens=12)
    assert "template" in turn.receipt.reasons[0].sentence
    assert tuple(turn.conversation.ids[: len(baton.transcript.ids)]) == baton.transcript.ids


def test_strict_raises_instead_of_falling_back(agent_of: Any, store: Any) -> None:
    """``strict`` names the reason, and leaves the agent without a conversation."""
    baton = handed_off(agent_of)
    store.delete(Key(Kind.SEGMENT, baton.manifest.segments[0].address))
    agent = agent_of("b")
    with pytest.raises(BatonRefused) as caught:
        agent.take(baton.id, "Go on", strict=True)
    assert caught.value.reason_code == "segment-missing"
    assert agent.conversation is None
    with pytest.raises(BatonUnavailable):
        agent.take("0" * 64, "Go on", strict=True, messages=MESSAGES)


def test_a_stalled_store_is_abandoned_at_the_deadline(agent_of: Any, store: Any) -> None:
    """The answer comes from the ids while the store still hangs; nothing half attached is left."""
    baton = handed_off(agent_of)
    gate = threading.Event()
    stall = Stall(gate)
    faulty = FaultyStore(store, StoreFault("read", stall, kind=Kind.SEGMENT, nth=8))
    agent = agent_of("b", store=faulty)
    try:
        turn = agent.take(baton.id, "Go on", deadline_s=0.2, max_new_tokens=12)
        assert stall.began.is_set()
        assert turn.receipt.reasons[0].code is ReasonCode.DEADLINE
        assert turn.ids == by_text(agent_of, baton)
    finally:
        gate.set()


def test_the_text_route_begins_in_time_for_the_deadline(agent_of: Any, store: Any) -> None:
    """C13: a store that stalls is given up while there is still time for one prefill, as fast as
    the engine was measured to be; the answer is the one by text."""
    baton = handed_off(agent_of)
    gate = threading.Event()
    stall = Stall(gate)
    agent = agent_of("b", store=FaultyStore(store, StoreFault("read", stall, kind=Kind.SEGMENT)))
    prompt = len(baton.transcript.ids)
    agent.engine.prefill_tokens_per_s = prompt / 3.0  # a prefill takes three seconds and more
    try:
        turn = agent.take(baton.id, "Go on", deadline_s=4.0, max_new_tokens=12)
        assert stall.began.is_set()
        reason = turn.receipt.reasons[0]
        assert reason.code is ReasonCode.DEADLINE
        waited_s = float(reason.sentence.removesuffix(" s").rsplit(" ", 1)[1])
        assert 0 < waited_s <= 1.0
        assert turn.receipt.computed_tokens == turn.receipt.context_tokens
        assert turn.ids == by_text(agent_of, baton)
    finally:
        gate.set()
        agent.engine.prefill_tokens_per_s = 0.0


@pytest.mark.parametrize("breaks", [False, True])
def test_a_late_cache_that_comes_while_text_is_prefilled_is_used(
    agent_of: Any, store: Any, monkeypatch: pytest.MonkeyPatch, breaks: bool
) -> None:
    """Hedged: the prefill is dropped between two layers, and the answer is that of the cache; a
    cache that turns out to be damaged drops nothing."""
    baton = handed_off(agent_of)
    gate, ended = threading.Event(), threading.Event()
    last = baton.manifest.segments[-1].address
    faults = [StoreFault("read", Stall(gate), kind=Kind.SEGMENT, nth=8)]
    if breaks:
        broken = Key(Kind.SEGMENT, last)
        faults.append(StoreFault("read", Fail(StoreError("EIO")), key=broken, nth=4))
    agent = agent_of("b", store=FaultyStore(store, *faults))
    conclude, forward = agent.relay.attach, agent.engine.forward
    coming: list[Any] = []

    def attach(*arguments: Any, **options: Any) -> Any:
        taken = conclude(*arguments, **options)
        coming.append(taken.late)
        return taken

    def prefill(cache: Any, ids: Any) -> Any:
        if len(ids) > 20 and not gate.is_set():
            gate.set()
            coming[0].coming.exception(timeout=30)
            ended.set()
        return forward(cache, ids)

    monkeypatch.setattr(agent.relay, "attach", attach)
    monkeypatch.setattr(agent.engine, "forward", prefill)
    turn = agent.take(baton.id, "Go on", deadline_s=0.2, max_new_tokens=12)
    receipt = turn.receipt
    assert ended.is_set()
    prompt = receipt.context_tokens
    if breaks:
        assert (receipt.route, receipt.reasons[0].code) == (Route.TEXT, ReasonCode.DEADLINE)
        assert receipt.computed_tokens == prompt
    else:
        assert (receipt.route, receipt.reasons) == (Route.BATON, ())
        assert receipt.outcome is Outcome.USED
        assert [one.code for one in receipt.warnings] == [ReasonCode.OVERTOOK]
        assert receipt.reused_tokens == baton.manifest.cached_tokens
        assert receipt.pending_tokens == baton.manifest.pending_tokens
        assert receipt.computed_tokens == prompt + prompt - receipt.reused_tokens
        assert turn.conversation.parents == (baton.id,)
    assert turn.ids == by_text(agent_of, baton)
    again = agent.run("And then", max_new_tokens=3)
    assert again.receipt.reused_tokens > 0


@pytest.mark.parametrize("kind", [Kind.BATON, Kind.TRANSCRIPT])
def test_a_store_that_stalls_at_the_manifest_makes_the_baton_unavailable_in_time(
    agent_of: Any, store: Any, kind: Kind
) -> None:
    """Past the deadline the caller's messages are answered."""
    baton = handed_off(agent_of)
    gate = threading.Event()
    faulty = FaultyStore(store, StoreFault("open", Stall(gate), kind=kind))
    try:
        turn = agent_of("b", store=faulty).take(
            baton.id, "Go on", messages=MESSAGES, deadline_s=0.2, max_new_tokens=2
        )
        assert turn.receipt.outcome is Outcome.UNAVAILABLE
        assert turn.receipt.reasons[0].code is ReasonCode.DEADLINE
    finally:
        gate.set()


def test_a_store_that_fails_at_any_put_leaves_no_baton(agent_of: Any) -> None:
    """Every write fails once, one after another: a typed error, and never a manifest."""
    probe = FaultyStore(MemoryStore())
    handed_off(agent_of, store=probe)
    puts = probe.count("put")
    for nth in range(1, puts + 1):
        inner = MemoryStore()
        faulty = FaultyStore(inner, StoreFault("put", Fail(StoreFull("no room")), nth=nth))
        sender = agent_of("sender", system="You plan", store=faulty, stream=False)
        turn = sender.run(LONG, max_new_tokens=9)
        with pytest.raises(StoreFull):
            sender.hand_off(turn)
        assert list(inner.list(Kind.BATON)) == []
        faulty.heal()
        baton = sender.hand_off(turn)
        taken = agent_of("b", store=inner).take(baton.id, "Go on", max_new_tokens=2)
        assert taken.receipt.route is Route.BATON


def test_a_failing_outbox_does_not_fail_the_turn(agent_of: Any) -> None:
    """A store that is full while streaming costs nothing but the later hand-off's time."""
    inner = MemoryStore()
    faulty = FaultyStore(inner, StoreFault("put", Fail(StoreFull("no room"))))
    sender = agent_of("a", store=faulty)
    turn = sender.run(LONG, max_new_tokens=9)
    with pytest.raises(StoreFull):
        sender.hand_off(turn)
    faulty.heal()
    baton = sender.hand_off(turn)
    taken = agent_of("b", store=inner).take(baton, "Go on", max_new_tokens=2)
    assert taken.receipt.route is Route.BATON


def test_memory_that_runs_out_falls_back(
    agent_of: Any, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No memory for the cache, by the gate or by the allocator: text, with the reason."""
    baton = handed_off(agent_of)
    agent = agent_of("b")
    monkeypatch.setattr(engine, "free_memory_bytes", lambda: 1000)
    turn = agent.take(baton, "Go on", max_new_tokens=12)
    assert turn.receipt.reasons[0].code is ReasonCode.MEMORY
    monkeypatch.undo()

    def no_memory(*args: Any, **kwargs: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(engine, "slot", no_memory)
    again = agent_of("c").take(baton, "Go on", max_new_tokens=12)
    assert again.receipt.reasons[0].code is ReasonCode.MEMORY
    assert again.ids == turn.ids == by_text(agent_of, baton)


def test_diverging_messages_reuse_the_common_prefix(agent_of: Any, engine: Any) -> None:
    """The receipt names the first position that differs; only what agrees is reused."""
    baton = handed_off(agent_of)
    messages = [
        {"role": "system", "content": "You plan"},
        {"role": "user", "content": LONG + "Hi"},
    ]
    turn = agent_of("b").take(baton, messages=messages, max_new_tokens=6)
    ids = engine.chat.render(messages).ids
    agreed = common_prefix(ids, baton.transcript.ids)
    assert 0 < agreed < len(ids) - 1
    assert turn.receipt.route is Route.PARTIAL
    assert turn.receipt.first_divergence == turn.receipt.reused_tokens == agreed
    assert turn.receipt.reasons[0].code is ReasonCode.TOKENS_DIVERGE
    alone = agent_of("c", store=MemoryStore()).run(messages=messages, max_new_tokens=6)
    assert turn.ids == alone.ids


def test_at_least_one_token_is_fed(agent_of: Any, engine: Any) -> None:
    """A prompt that the baton covers wholly is reused one token short."""
    a = agent_of("a", stream=False)
    turn = a.run(messages=MESSAGES, max_new_tokens=9)
    baton = a.hand_off(turn)
    again = agent_of("b", stream=False).take(baton, messages=MESSAGES, max_new_tokens=9)
    assert again.receipt.computed_tokens == 1
    assert again.receipt.reused_tokens == again.receipt.context_tokens - 1
    assert again.ids == turn.ids


def test_window_layers_are_never_guessed(agent_of: Any, window_engine: Any) -> None:
    """Window layers know their state at the baton's end only: a shorter match is text."""
    baton = handed_off(agent_of, engine=window_engine)
    messages = [{"role": "system", "content": "You plan"}, {"role": "user", "content": LONG + "Hi"}]
    turn = agent_of("b", engine=window_engine).take(baton, messages=messages, max_new_tokens=6)
    assert turn.receipt.route is Route.TEXT
    assert turn.receipt.reasons[0].code is ReasonCode.WINDOW_STATE


def test_kv_under_other_ids_is_refused(agent_of: Any, store: Any) -> None:
    """Segments of another conversation listed under these ids: the token digests differ."""
    mine = handed_off(agent_of)
    other_sender = agent_of("other", system="You code")
    other = other_sender.hand_off(other_sender.run("Hi " + LONG, max_new_tokens=9))
    swapped = replace(mine.manifest.segments[1], address=other.manifest.segments[1].address)
    segments = (mine.manifest.segments[0], swapped, *mine.manifest.segments[2:])
    forged = replace(mine, manifest=replace(mine.manifest, segments=segments))
    turn = agent_of("b").take(forged, "Go on", max_new_tokens=12)
    reason = turn.receipt.reasons[0]
    assert (reason.code, reason.at) == (ReasonCode.SEGMENT_CONTRADICTS, "$.segments[1]")
    assert turn.ids == by_text(agent_of, mine)


def test_a_minimum_fidelity_can_be_demanded(agent_of: Any) -> None:
    """An exact baton passes the strictest demand."""
    baton = handed_off(agent_of)
    turn = agent_of("b").take(baton, "Go on", minimum=FidelityClass.EXACT, max_new_tokens=2)
    assert turn.receipt.route is Route.BATON


def test_bad_input_is_typed_and_leaves_nothing(agent_of: Any, engine: Any) -> None:
    """Blank prompts, a receiver that adds nothing, unknown options and modes, too long contexts."""
    baton = handed_off(agent_of)
    agent = agent_of("b")
    with pytest.raises(EmptyInput):
        agent.run("  ")
    with pytest.raises(EmptyInput):
        agent.take(baton, "")
    with pytest.raises(EmptyInput):
        agent.run(messages=[])
    with pytest.raises(InputError, match="max_new_token"):
        agent.run("Hi", max_new_token=3)
    with pytest.raises(InputError, match="unknown mode"):
        agent.take(baton, "Go on", mode="resume")
    with pytest.raises(InputError, match="one of the two"):
        agent.run()
    with pytest.raises(WindowExceeded):
        agent.run("Hello " * 600)
    with pytest.raises(WindowExceeded):
        agent.take(baton, "Hello " * 600)
    with pytest.raises(InputError):
        agent.take("../../etc/passwd", "Go on")
    assert agent.conversation is None


@pytest.mark.parametrize("spans", [None, "prompt"])
def test_the_caller_can_ask_for_text(agent_of: Any, spans: str | None) -> None:
    """One arm of an experiment prefills the same ids and leaves the cache alone."""
    sender = agent_of("sender", system="You plan")
    turn = sender.run(LONG, max_new_tokens=9)
    baton = sender.hand_off(turn) if spans is None else sender.hand_off(turn, spans=spans)
    options: Any = {"max_new_tokens": 8, "repair": None}
    text = agent_of("receiver").take(baton, "Go on", route="text", **options)
    other = agent_of("receiver").take(baton, "Go on", **options)
    assert text.receipt.route is Route.TEXT and other.receipt.route is Route.BATON
    assert [r.code for r in text.receipt.reasons] == [ReasonCode.ASKED_FOR_TEXT]
    assert text.receipt.reused_tokens == text.receipt.bytes_moved == 0
    assert text.receipt.computed_tokens == text.receipt.context_tokens
    asked = len(text.conversation.ids) - len(text.ids)
    assert text.conversation.ids[:asked] == other.conversation.ids[:asked]


def test_no_other_route_can_be_forced(agent_of: Any) -> None:
    """Whether a cache can be used is for the gates to say."""
    with pytest.raises(InputError, match="cannot be forced"):
        agent_of("receiver").take(handed_off(agent_of), "Go on", route="baton")


def test_labels_of_the_caller_stand_in_the_receipt(agent_of: Any) -> None:
    """The arm and the conversation of an experiment can be read from the log, whatever happens."""
    labels = {"conversation": "c1", "arm": "baton"}
    store = MemoryStore()
    baton = handed_off(agent_of, store=store)
    receiver = agent_of("receiver", store=store)
    assert receiver.take(baton, "Go on", labels=labels).receipt.labels == labels
    gone = replace(baton.ref, id="0" * 64)
    turn = receiver.take(gone, messages=MESSAGES, labels=labels)
    assert turn.receipt.outcome is Outcome.UNAVAILABLE
    assert turn.receipt.to_json()["labels"] == labels
    assert receiver.run("Hello", max_new_tokens=2, labels=labels).receipt.labels == labels
    before = time.time_ns() // 1_000_000
    plain = receiver.run("Hello", max_new_tokens=2).receipt
    assert plain.labels == {} and before <= plain.created_ms <= time.time_ns() // 1_000_000


def test_answers_can_be_made_to_have_the_same_length(agent_of: Any) -> None:
    """With ``ignore_eos`` an answer goes on past tokens that end a turn."""
    agent = agent_of("agent")
    first = agent.run("Hello there", max_new_tokens=1).ids[0]
    ends = agent.engine.chat.stop_ids
    agent.engine.chat.stop_ids = frozenset({*ends, first})
    try:
        agent.forget()
        assert len(agent.run("Hello there", max_new_tokens=6).ids) == 1
        agent.forget()
        turn = agent.run("Hello there", max_new_tokens=6, ignore_eos=True)
        assert len(turn.ids) == 6 and turn.finish == "length"
    finally:
        agent.engine.chat.stop_ids = ends
