"""The parts of `bench fidelity`: questions, answers, the journal, a slow store, slices."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bench.test_fidelity import SCOPE
from tests.engines import families

from kvbaton.alignment.recompute import Repair
from kvbaton.bench.fidelity import private
from kvbaton.bench.fidelity.answers import greedy_answers
from kvbaton.bench.fidelity.journal import Journal
from kvbaton.bench.fidelity.session import Session
from kvbaton.bench.fidelity.splice import Case, UnshiftedRelay
from kvbaton.bench.fidelity.throttle import ThrottledStore
from kvbaton.bench.questions import make_document, own_system_prompt
from kvbaton.errors import EmptyInput, FormatError, InputError, WindowExceeded
from kvbaton.stores import Key, Kind, MemoryStore


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """One thread, as tiny models gain nothing from more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def engine() -> Any:
    """A tiny random model with a long window: its tokens are bytes."""
    made = families.tiny("smollm")
    made.max_tokens = 16_384
    return made


@pytest.fixture
def session(engine: Any) -> Session:
    """A run of its own."""
    return Session(engine, SCOPE, Journal(engine.function.digest))


# --- questions and answers -----------------------------------------------------------------------


def words(text: str) -> int:
    """Counts as a tokenizer would that knows every word."""
    return len(text.split())


def test_documents_hold_their_facts_and_share_no_code() -> None:
    """Ten codes stand in the document and in the summary, five in the system prompt only."""
    seen: set[str] = set()
    for number in range(20):
        made = make_document(number, words, tokens=150, system_tokens=200)
        codes = {fact.code for fact in (*made.facts, *made.private)}
        assert len(codes) == 15 and not codes & seen
        seen |= codes
        for fact in made.facts:
            assert fact.sentence in made.prompt and fact.retold in made.summary
            assert fact.code not in made.system
        for fact in made.private:
            assert fact.sentence in made.system
            assert fact.code not in made.prompt + made.summary
        assert 135 < words(made.prompt) < 170 and 185 < words(made.system) < 220


def test_a_document_is_made_again_from_its_number() -> None:
    """The same number and seed give the same document, another seed gives others."""
    one, again, other = (
        make_document(3, words, tokens=150, system_tokens=150, seed=seed) for seed in (1, 1, 2)
    )
    assert one == again != other
    assert not any(character.isdigit() for character in own_system_prompt(words, tokens=100))
    with pytest.raises(InputError, match="not enough codes"):
        make_document(600, words, tokens=10, system_tokens=10)


@pytest.mark.parametrize("family", ["smollm", "qwen2", "gpt_neox"])
def test_answers_side_by_side_are_those_of_asking_one_by_one(family: str) -> None:
    """Questions of different lengths behind one cache get the answers they get alone."""
    engine = families.tiny(family)
    context = [11 + i % 200 for i in range(9)]
    questions = [[20, 30, 40], [20, 30, 50, 51], [20, 30, 40, 70, 80, 90, 100]]
    alone = []
    for ids in questions:
        cache, said = engine.new_cache(32), []
        engine.forward(cache, context)
        logits = engine.forward(cache, ids)
        for _ in range(5):
            said.append(int(logits.argmax()))
            if said[-1] in engine.chat.stop_ids:
                said.pop()
                break
            logits = engine.forward(cache, said[-1:])
        alone.append(tuple(said))
    cache = engine.new_cache(64)
    engine.forward(cache, context)
    assert greedy_answers(engine, cache, questions, new_tokens=5) == alone
    assert cache.length == len(context)


def test_questions_that_cannot_be_asked_are_refused(engine: Any) -> None:
    """No question, an empty one, or one behind the end of the window."""
    cache = engine.new_cache(8)
    engine.forward(cache, [11, 12])
    for none in ([], [[11], []]):
        with pytest.raises(EmptyInput):
            greedy_answers(engine, cache, none, new_tokens=1)
    with pytest.raises(WindowExceeded):
        greedy_answers(engine, cache, [[11]], new_tokens=20_000)


# --- the journal, and the slow line ---------------------------------------------------------------


def test_a_journal_is_read_again_and_a_line_that_was_cut_off_is_dropped(tmp_path: Path) -> None:
    """What was kept is there in the next run; half a line of a writer that died is not."""
    path = tmp_path / "folder" / "kept.jsonl"
    journal = Journal("f" * 64, path)
    journal.keep("a", {"kl": 0.5})
    journal.keep("b", {"kl": 1e-7})
    with path.open("a", encoding="ascii") as file:
        file.write('{"key": "c", "val')
    assert Journal("f" * 64, path).found == {"a": {"kl": 0.5}, "b": {"kl": 1e-7}}


def test_a_journal_of_another_function_is_refused(tmp_path: Path) -> None:
    """Measurements of another model, or anything else, are not taken for this one's."""
    path = tmp_path / "kept.jsonl"
    Journal("f" * 64, path).keep("a", {})
    with pytest.raises(FormatError, match="no measurements of this model"):
        Journal("e" * 64, path)
    path.write_text("[1, 2]\n", encoding="ascii")
    with pytest.raises(FormatError):
        Journal("f" * 64, path)


def test_a_throttled_store_waits_as_long_as_its_line_takes() -> None:
    """4,000 bytes at 1,000 a second take 4 seconds either way, and stay the same."""
    waits: list[float] = []
    store = ThrottledStore(MemoryStore(), 1000.0, wait=waits.append)
    key = Key(Kind.SEGMENT, "a" * 64)
    data = bytes(range(250)) * 16
    assert store.put(key, [data]) == 4000
    assert sum(waits) == pytest.approx(4.0, rel=0.01)
    assert store.put(key, [data]) == 0 and store.exists(key)
    with store.open(key) as reader:
        assert reader.read(0, 2000) + reader.read(2000, 2000) == data
    assert sum(waits) == pytest.approx(8.0, rel=0.01)
    assert [entry.key for entry in store.list(Kind.SEGMENT)] == [key]
    assert store.delete(key) and not store.exists(key)


# --- slices ---------------------------------------------------------------------------------------


def case(session: Session, count: int = 1) -> Case:
    """The first text as slices."""
    texts = session.texts(SCOPE.slice_tokens)
    return Case(session, texts[0], texts[1], texts[2], slices=count)


def test_a_slice_whose_every_row_is_computed_again_is_the_text(session: Session) -> None:
    """In float32 a repair of everything leaves a KL of rounding errors only."""
    made = case(session)
    plain, mended = made.hung(), made.hung(repair=Repair(1.0, "first"))
    assert made.loss(plain).kl_mean > 1e-9
    assert made.loss(mended).kl_mean < 1e-10
    assert mended.account.recomputed == SCOPE.slice_tokens * len(session.engine.layout.layers)


def test_unshifted_slices_keep_the_keys_of_their_senders(session: Session) -> None:
    """Without the shift keys are those of the sender's positions; with it they are turned.

    Values are the same either way.
    """
    made = case(session)
    turned, left = made.hung(), made.hung(kind=UnshiftedRelay)
    mine, theirs = (
        hanging.cache.layer_view(0, SCOPE.prefix_tokens, SCOPE.slice_tokens)
        for hanging in (turned, left)
    )
    sent = made.senders[0].cache.layer_view(0, SCOPE.before_tokens, SCOPE.slice_tokens)
    assert torch.equal(theirs[0], sent[0]) and not torch.allclose(mine[0], sent[0], atol=1e-3)
    assert torch.equal(mine[1], theirs[1])
    own = made.own.copy(0)
    exact = made.own.with_text(made.document, 0).layer_view(
        0, SCOPE.prefix_tokens, SCOPE.slice_tokens
    )
    assert own.length == SCOPE.prefix_tokens
    assert torch.allclose(mine[0], exact[0], atol=1e-5)  # layer 0 knows nothing but its tokens


def test_several_slices_come_from_senders_of_their_own(session: Session) -> None:
    """Three slices of a document hold all its tokens, each computed behind the same others."""
    made = case(session, 3)
    assert [source.packed_cached for source in made.senders] == [16, 16, 16]
    assert made.hung().cache.length == SCOPE.prefix_tokens + SCOPE.slice_tokens


def test_a_mismatched_slice_has_the_right_ids_and_other_keys(session: Session) -> None:
    """The control hangs another document's KV under this document's tokens."""
    reading = private.Reading(session, 0)
    right, _ = reading.ready(private.Asking("slice", fraction=0.0))
    wrong, _ = reading.ready(private.Asking("slice-mismatched", fraction=0.0))
    by_text, _ = reading.ready(private.Asking("slice", by_text=True))
    assert right.length == wrong.length <= by_text.length
    own = reading.receiver.writer.chat.leading(reading.receiver.writer.system, None).ids
    for name, cache in (("right", right), ("wrong", wrong)):
        mine = cache.layer_view(0, len(own), 40)[1]
        text = by_text.layer_view(0, len(own), 40)[1]
        assert torch.allclose(mine, text, atol=1e-5) is (name == "right")


def test_a_summed_up_turn_is_a_turn(session: Session) -> None:
    """Its spans partition it, its last token is pending, and its parts can be sliced by name."""
    reading = private.Reading(session, 1)
    turn = reading.turn
    assert turn.cached == turn.tokens - 1 == turn.conversation.cache.length
    assert sum(span.run.count for span in turn.spans) == turn.tokens
    (prompt,), (said,) = turn.runs("prompt"), turn.runs("generated")
    text = reading.engine.chat.text_of
    ids = turn.conversation.ids
    assert reading.document.facts[0].sentence in text(ids[prompt.first : prompt.stop])
    assert reading.document.summary in text(ids[said.first : said.stop])
    assert prompt.stop <= said.first
    assert reading.document.private[0].code not in text(ids[prompt.first : said.stop])
