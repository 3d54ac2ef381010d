"""`export_cache` and `attach_cache` serve users' own loops: what comes out is as without them."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engines.families import FAMILIES, WINDOW, tiny
from tests.engines.own_loops import batch, forward, generate, prefilled, prompt
from transformers import DynamicCache

import kvbaton as kb
from kvbaton.errors import (
    BatonRefused,
    BatonUnavailable,
    InputError,
    NotTrusted,
    UnsupportedLayout,
    WindowExceeded,
)
from kvbaton.relay import Relay
from kvbaton.seals import TrustDomain
from kvbaton.stores import Kind, MemoryStore
from kvbaton.types import Role, Span, TokenRun
from kvbaton.wire.digests import DomainKeys

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_generate_loop.py"
NEW = [200, 33, 34, 35]


@pytest.fixture
def relay_of(domain: TrustDomain) -> Callable[[Any], Relay]:
    """Makes the relay of an engine over one store per test, with segments of 8 tokens."""
    store = MemoryStore()
    return lambda engine: Relay(engine, store, domain, segment_tokens=8)


@pytest.mark.parametrize("family", FAMILIES)
def test_generate_goes_on_as_without_a_hand_off(
    tiny_engine: Callable[..., Any], relay_of: Callable[[Any], Relay], family: str
) -> None:
    """`generate` behind an attached cache gives the tokens of `generate` on the ids alone."""
    engine = tiny_engine(family)
    relay = relay_of(engine)
    for tokens in (4, 2 * WINDOW + 5):
        said = generate(engine, torch.tensor([prompt(tokens, 5)]), 6)
        baton = kb.export_cache(engine, said, said.sequences[0], store=relay)
        assert baton.manifest.pending_tokens == 1
        cache, ids = kb.attach_cache(engine, baton, NEW, store=relay)
        assert ids.tolist() == [[*said.sequences[0].tolist(), *NEW]]
        assert cache.length == tokens + 6 - 1
        answer = generate(engine, ids, 12, **{engine.cache_argument: cache})
        assert answer.sequences.tolist() == generate(engine, ids, 12).sequences.tolist()
        assert cache.length == ids.shape[1] + 12 - 1


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_generate_computes_the_new_tokens_only(
    tiny_engine: Callable[..., Any], relay_of: Callable[[Any], Relay], family: str
) -> None:
    """`generate` feeds the pending token, the new ones and what it samples, and nothing else."""
    engine = tiny_engine(family)
    said = generate(engine, torch.tensor([prompt(30)]), 6)
    baton = kb.export_cache(engine, said, said.sequences[0], store=relay_of(engine))
    cache, ids = kb.attach_cache(engine, baton, NEW, store=relay_of(engine))
    before = engine.computed_tokens()
    generate(engine, ids, 3, **{engine.cache_argument: cache})
    assert engine.computed_tokens() - before == (1 + len(NEW)) + 2


def test_a_loop_over_forward_goes_on(
    tiny_engine: Callable[..., Any], relay_of: Callable[[Any], Relay]
) -> None:
    """A loop over the model's own forward gives the logits of the user's own cache, bit for bit."""
    engine = tiny_engine("gemma2")
    cache, ids, _ = prefilled(engine, [prompt(30)])
    baton = kb.export_cache(engine, cache, ids[0], store=relay_of(engine))
    attached, all_ids = kb.attach_cache(engine, baton, NEW, store=relay_of(engine))
    assert all_ids[0, attached.length :].tolist() == NEW
    for token in NEW:
        fed = torch.tensor([[token]])
        assert torch.equal(forward(engine, attached, fed), forward(engine, cache, fed))


def test_a_batch_gives_a_baton_for_each_sequence(
    tiny_engine: Callable[..., Any], relay_of: Callable[[Any], Relay]
) -> None:
    """Rows of a padded batch are handed off one by one and go on as if they had been alone."""
    engine = tiny_engine("gemma3")
    ids, mask = batch([prompt(5, 1), prompt(20, 2)])
    said = generate(engine, ids, 4, attention_mask=mask)
    batons = kb.export_cache(
        engine, said, said.sequences, attention_mask=mask, store=relay_of(engine)
    )
    assert [baton.manifest.cached_tokens for baton in batons] == [8, 23]
    for baton in batons:
        cache, row = kb.attach_cache(engine, baton, NEW, store=relay_of(engine))
        answer = generate(engine, row, 8, **{engine.cache_argument: cache})
        assert answer.sequences.tolist() == generate(engine, row, 8).sequences.tolist()


def test_the_shape_of_the_ids_decides(
    tiny_engine: Callable[..., Any], relay_of: Callable[[Any], Relay]
) -> None:
    """Ids in one row give a baton, rows of ids a list, also of one."""
    engine = tiny_engine("llama")
    cache, ids, _ = prefilled(engine, [prompt(6)])
    alone = kb.export_cache(engine, cache, ids[0].tolist(), store=relay_of(engine))
    (listed,) = kb.export_cache(engine, cache, ids, store=relay_of(engine))
    assert alone.transcript.ids == listed.transcript.ids == tuple(prompt(6))


def test_what_a_baton_says(
    tiny_engine: Callable[..., Any], relay_of: Callable[[Any], Relay]
) -> None:
    """Sender, text and messages are the caller's; by default the text is that of the ids."""
    engine = tiny_engine("llama")
    cache, ids, _ = prefilled(engine, [prompt(6)])
    plain = kb.export_cache(engine, cache, ids[0], store=relay_of(engine))
    assert plain.manifest.sender == "generate"
    assert plain.transcript.text == engine.tokenizer.decode(prompt(6))
    assert plain.transcript.messages == ()
    assert plain.manifest.spans == (Span(Role.HISTORY, TokenRun(0, 6)),)
    told = kb.export_cache(
        engine,
        cache,
        ids[0],
        store=relay_of(engine),
        sender="me",
        text="said",
        messages=[{"role": "user", "content": "said"}],
    )
    assert (told.manifest.sender, told.transcript.text) == ("me", "said")
    assert told.transcript.messages == ({"role": "user", "content": "said"},)
    two, rows, mask = prefilled(engine, [prompt(6), prompt(6, 1)])
    with pytest.raises(InputError, match="one sequence"):
        kb.export_cache(engine, two, rows, attention_mask=mask, text="said", store=relay_of(engine))


def test_there_is_always_something_to_compute(
    tiny_engine: Callable[..., Any], relay_of: Callable[[Any], Relay]
) -> None:
    """With nothing pending and nothing new the last token is left out of the cache, to be fed."""
    engine = tiny_engine("llama")
    cache, ids, _ = prefilled(engine, [prompt(20)])
    baton = kb.export_cache(engine, cache, ids[0], store=relay_of(engine))
    attached, all_ids = kb.attach_cache(engine, baton, store=relay_of(engine))
    assert (attached.length, all_ids.shape[1]) == (19, 20)
    answer = generate(engine, all_ids, 8, **{engine.cache_argument: attached})
    assert answer.sequences.tolist() == generate(engine, ids, 8).sequences.tolist()


def test_a_window_cannot_leave_its_last_token_out(
    tiny_engine: Callable[..., Any], relay_of: Callable[[Any], Relay]
) -> None:
    """With window layers and nothing to feed, the cache is refused, not fed from the start."""
    engine = tiny_engine("gemma3")
    cache, ids, _ = prefilled(engine, [prompt(20)])
    baton = kb.export_cache(engine, cache, ids[0], store=relay_of(engine))
    with pytest.raises(BatonRefused) as caught:
        kb.attach_cache(engine, baton, store=relay_of(engine))
    assert caught.value.reason_code == "window-state"
    assert "new_ids" in caught.value.hint
    attached, _ = kb.attach_cache(engine, baton, NEW, store=relay_of(engine))
    assert attached.length == 20


def test_hand_offs_in_a_row_write_only_what_is_new(
    tiny_engine: Callable[..., Any], relay_of: Callable[[Any], Relay]
) -> None:
    """A cache that was attached and used can be exported again; full segments are there already."""
    engine = tiny_engine("llama")
    relay = relay_of(engine)
    cache, ids, _ = prefilled(engine, [prompt(24)])
    first = kb.export_cache(engine, cache, ids[0], store=relay)
    attached, all_ids = kb.attach_cache(engine, first, NEW, store=relay)
    said = generate(engine, all_ids, 5, **{engine.cache_argument: attached})
    second = kb.export_cache(engine, attached, said.sequences[0], store=relay)
    assert second.manifest.segments[:3] == first.manifest.segments
    assert second.bytes_written == sum(ref.size_bytes for ref in second.manifest.segments[3:])
    last, ids = kb.attach_cache(engine, second, NEW, store=relay)
    answer = generate(engine, ids, 6, **{engine.cache_argument: last})
    assert answer.sequences.tolist() == generate(engine, ids, 6).sequences.tolist()


def test_each_taker_has_a_cache_of_its_own(
    tiny_engine: Callable[..., Any], relay_of: Callable[[Any], Relay]
) -> None:
    """The cache that is attached is mutated by its taker and by nobody else."""
    engine = tiny_engine("mistral")
    cache, ids, _ = prefilled(engine, [prompt(20)])
    baton = kb.export_cache(engine, cache, ids[0], store=relay_of(engine))
    answers = []
    for _ in range(2):
        attached, all_ids = kb.attach_cache(engine, baton, NEW, store=relay_of(engine))
        answers.append(generate(engine, all_ids, 8, **{engine.cache_argument: attached}).sequences)
    assert answers[0].tolist() == answers[1].tolist()


def test_room_is_what_was_asked_for(
    tiny_engine: Callable[..., Any], relay_of: Callable[[Any], Relay]
) -> None:
    """Buffers hold the ids and the room behind them; by default the engine's usual room."""
    engine = tiny_engine("llama")
    cache, ids, _ = prefilled(engine, [prompt(20)])
    baton = kb.export_cache(engine, cache, ids[0], store=relay_of(engine))
    small, _ = kb.attach_cache(engine, baton, NEW, store=relay_of(engine), room=7)
    assert small.layers[0].room == 20 + len(NEW) + 7
    usual, _ = kb.attach_cache(engine, baton, NEW, store=relay_of(engine))
    assert usual.layers[0].room == 20 + len(NEW) + engine.default_room


def test_agents_and_own_loops_meet(
    tiny_engine: Callable[..., Any], relay_of: Callable[[Any], Relay]
) -> None:
    """An agent takes what `generate` has computed, and `generate` what an agent has computed."""
    engine = tiny_engine("llama")
    relay = relay_of(engine)
    said = generate(engine, torch.tensor([prompt(20)]), 6)
    baton = kb.export_cache(engine, said, said.sequences[0], store=relay)
    agent = kb.Agent("a", engine, store=relay.store, domain=relay.domain)
    turn = agent.take(baton, "Go on", max_new_tokens=4)
    assert (turn.receipt.route, turn.receipt.reused_tokens) == ("baton", 25)
    cache, ids = kb.attach_cache(engine, agent.hand_off(turn), NEW, store=relay)
    assert cache.length == turn.cached
    answer = generate(engine, ids, 6, **{engine.cache_argument: cache})
    assert answer.sequences.tolist() == generate(engine, ids, 6).sequences.tolist()


def test_a_baton_of_another_model_is_refused(
    tiny_engine: Callable[..., Any], relay_of: Callable[[Any], Relay]
) -> None:
    """The cache of another function raises BatonRefused with the reason, and attaches nothing."""
    engine, other = tiny_engine("llama"), tiny_engine("smollm")
    cache, ids, _ = prefilled(engine, [prompt(20)])
    baton = kb.export_cache(engine, cache, ids[0], store=relay_of(engine))
    with pytest.raises(BatonRefused, match="another function") as caught:
        kb.attach_cache(other, baton, NEW, store=relay_of(other))
    assert caught.value.reason_code == "function-differs"


def test_a_baton_that_cannot_be_read(
    tiny_engine: Callable[..., Any], relay_of: Callable[[Any], Relay]
) -> None:
    """An unknown id is unavailable, a baton of another domain is not trusted."""
    engine = tiny_engine("llama")
    relay = relay_of(engine)
    with pytest.raises(BatonUnavailable):
        kb.attach_cache(engine, "0" * 64, store=relay)
    cache, ids, _ = prefilled(engine, [prompt(20)])
    baton = kb.export_cache(engine, cache, ids[0], store=relay)
    stranger = Relay(engine, relay.store, TrustDomain("other", DomainKeys(bytes(32))))
    with pytest.raises(NotTrusted):
        kb.attach_cache(engine, baton, store=stranger)
    assert kb.attach_cache(engine, baton.id, NEW, store=relay)[0].length == 20


def test_too_many_new_ids_are_refused(
    tiny_engine: Callable[..., Any], relay_of: Callable[[Any], Relay]
) -> None:
    """Ids that do not fit the model's window behind the baton's raise BatonRefused."""
    engine = tiny_engine("llama")
    cache, ids, _ = prefilled(engine, [prompt(20)])
    baton = kb.export_cache(engine, cache, ids[0], store=relay_of(engine))
    with pytest.raises(BatonRefused) as caught:
        kb.attach_cache(engine, baton, [5] * engine.max_tokens, store=relay_of(engine))
    assert caught.value.reason_code == "window-exceeded"


def test_nothing_is_stored_of_a_cache_that_is_refused(
    tiny_engine: Callable[..., Any], domain: TrustDomain
) -> None:
    """A cache that does not belong to its ids leaves the store empty."""
    engine, store = tiny_engine("llama"), MemoryStore()
    cache, _, _ = prefilled(engine, [prompt(20)])
    with pytest.raises(InputError):
        kb.export_cache(engine, cache, prompt(20, 1), store=Relay(engine, store, domain))
    with pytest.raises(UnsupportedLayout):
        kb.export_cache(engine, object(), prompt(20), store=Relay(engine, store, domain))
    assert [list(store.list(kind)) for kind in Kind] == [[]] * len(Kind)


def test_stores_are_found_by_url(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_engine: Callable[..., Any]
) -> None:
    """A store may be named by URL, and none at all is the one of this process."""
    monkeypatch.setenv("KVBATON_DATA_DIR", str(tmp_path))
    engine = tiny_engine("llama")
    cache, ids, _ = prefilled(engine, [prompt(20)])
    for store in (None, f"dir://{tmp_path / 'store'}"):
        baton = kb.export_cache(engine, cache, ids[0], store=store)
        attached, _ = kb.attach_cache(engine, baton.ref, NEW, store=store)
        assert attached.length == 20


def test_the_example_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, smollm2_path: Path
) -> None:
    """The documented example on the real model answers by baton what it answers without."""
    monkeypatch.setenv("KVBATON_DATA_DIR", str(tmp_path))
    by_baton, by_text = runpy.run_path(str(EXAMPLE))["main"](str(smollm2_path))
    assert by_baton == by_text
    assert "In short:" in by_baton


def test_the_engines_own_window_holds_for_attached_caches() -> None:
    """What the engine feeds behind an adopted cache is counted from its true length."""
    engine = tiny("llama")
    cache = DynamicCache(config=engine.model.config)
    forward(engine, cache, torch.tensor([prompt(500)]))
    relay = Relay(engine, MemoryStore(), TrustDomain("local", DomainKeys(bytes(32))))
    baton = kb.export_cache(engine, cache, prompt(500), store=relay)
    attached, _ = kb.attach_cache(engine, baton, [7], store=relay)
    with pytest.raises(WindowExceeded, match="513"):
        engine.forward(attached, [7] * 13)
