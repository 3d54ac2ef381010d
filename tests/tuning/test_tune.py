"""Tuning a tiny model, whole: sensitivities, searches, records."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.engines.chat_tokenizers import word_tokenizer
from tests.engines.families import build

from kvbaton.bench.kl import Reference, cache_bits, coded_cache, references
from kvbaton.bench.texts import Text
from kvbaton.codecs import exact_plan
from kvbaton.codecs.calibration import Calibrations, plan_for, record_text
from kvbaton.codecs.profiles import CHEAPEST, profile
from kvbaton.engines.transformers.load import wrap_model
from kvbaton.errors import FormatError, InputError
from kvbaton.tuning import (
    Bounds,
    Corpus,
    Sensitivities,
    Tuning,
    make_search,
    measured_record,
    measured_records,
    needs_search,
    own_corpus,
    wanted_plans,
)
from kvbaton.tuning.sensitivity import coded, held, measure_sensitivities, slots

TOKENS, POSITIONS = 48, 12
WORDS = Text("words", "the quick brown fox jumps over the lazy dog and runs away. " * 40)
OTHER = Text("other", "a keeper of lights counts ships, one by one, until the morning. " * 40)


def make(family: str) -> Any:
    """A tiny engine of a family, with a tokenizer of words."""
    return wrap_model(build(family), word_tokenizer(), name=f"tiny-{family}")


@pytest.fixture(scope="module")
def engine() -> Any:
    """A tiny Llama in float32: 4 layers."""
    return make("llama")


@pytest.fixture(scope="module")
def reference(engine: Any) -> Reference:
    """A text with its exact cache."""
    return next(references(engine, [WORDS], tokens=TOKENS, positions=POSITIONS))


@pytest.fixture(scope="module")
def corpus(engine: Any) -> Corpus:
    """Two texts, each in two halves."""
    return own_corpus(engine, [WORDS, OTHER], TOKENS + POSITIONS)


@pytest.fixture(scope="module")
def tuning() -> Tuning:
    """Small enough for a tiny model."""
    return Tuning(tokens=TOKENS, positions=POSITIONS, search_positions=8)


@pytest.fixture(scope="module")
def search(engine: Any, corpus: Corpus, tuning: Tuning) -> Any:
    """A search whose sensitivities are measured."""
    return make_search(engine, corpus, tuning)


# --- measuring ---


def test_the_exact_cache_costs_nothing(reference: Reference):
    """Through segments and back, bit for bit: KL 0, no flips, the same perplexity."""
    plan = exact_plan(4)
    through = coded_cache(reference.engine, reference.cache, plan, tokens=TOKENS, segment_tokens=16)
    loss = reference.loss(through.cache)
    assert (loss.kl_mean, loss.kl_max, loss.flips, loss.ppl_ratio) == (0.0, 0.0, 0.0, 1.0)
    assert through.bits_per_element > cache_bits(reference.engine.layout) == 32


def test_a_reference_is_left_as_it_was(reference: Reference):
    """Measuring feeds tokens and takes them back."""
    before = [layer.k_store.clone() for layer in reference.cache.layers]
    reference.loss(reference.cache)
    assert reference.cache.length == TOKENS
    for layer, kept in zip(reference.cache.layers, before, strict=True):
        assert layer.k_store[:, :, :TOKENS].equal(kept[:, :, :TOKENS])


def test_loss_is_that_of_the_definition(reference: Reference):
    """KL, flips and perplexity against sums written out over two positions."""
    logits = reference.logits.clone()
    logits[:, 3] += 2.0
    loss = reference.loss_of(logits[:2])
    p, q = reference.logits[:2].double().softmax(-1), logits[:2].double().softmax(-1)
    kl = (p * (p.log() - q.log())).sum(-1)
    assert loss.kl_mean == pytest.approx(float(kl.mean()), rel=1e-9)
    assert loss.kl_max == pytest.approx(float(kl.max()), rel=1e-9)
    flips = (p.argmax(-1) != q.argmax(-1)).double().mean()
    assert loss.flips == pytest.approx(float(flips))
    following = reference.ids[TOKENS + 1 : TOKENS + 3]
    ratio = [p[i, t] / q[i, t] for i, t in enumerate(following)]
    assert loss.ppl_ratio == pytest.approx(float(ratio[0] * ratio[1]) ** 0.5, rel=1e-9)


def test_more_bits_lose_less_and_cost_more(engine: Any):
    """From 8 bits to about 4, on one text."""
    reference = next(references(engine, [WORDS], tokens=TOKENS, positions=POSITIONS))
    losses, bits = [], []
    for name in ("near-lossless", "layered", "tiny"):
        through = coded_cache(
            engine, reference.cache, profile(name).plan(engine.layout), tokens=TOKENS
        )
        losses.append(reference.loss(through.cache).kl_mean)
        bits.append(through.bits_per_element)
    assert losses == sorted(losses)
    assert bits == sorted(bits, reverse=True)


@pytest.mark.parametrize("family", ["gemma3", "phi3", "gpt_neox"])
def test_window_layers_and_partial_rotary_are_measured_too(family: str):
    """Every profile's plan runs through the segments of every kind of layout."""
    engine = make(family)
    reference = next(references(engine, [WORDS], tokens=TOKENS, positions=POSITIONS))
    for name in ("near-lossless", "compact", "tiny", "cheapest"):
        plan = profile(name).plan(engine.layout)
        through = coded_cache(engine, reference.cache, plan, tokens=TOKENS, segment_tokens=16)
        assert through.cache.length == TOKENS
        assert 0 < reference.loss(through.cache).kl_mean < 1


def test_texts_that_are_too_short_are_input_errors(engine: Any):
    """The text is named, with its length and the one asked for."""
    with pytest.raises(InputError, match="'short' has"):
        next(references(engine, [Text("short", "a few words")], tokens=TOKENS))
    with pytest.raises(InputError, match="no text has"):
        own_corpus(engine, [Text("short", "a few words\nmore")], TOKENS)
    with pytest.raises(InputError, match="no texts"):
        own_corpus(engine, [], TOKENS)


# --- sensitivities ---


def test_a_slot_is_measured_alone_and_put_back(reference: Reference):
    """Afterwards the cache holds the exact numbers again."""
    before = held(reference, 2, "k").clone()
    found = measure_sensitivities([reference], positions=8)
    assert held(reference, 2, "k").equal(before)
    assert {key[:2] for key in found.measured} == set(slots(reference.engine.layout))
    assert all(kl > 0 for kl in found.measured.values())


def test_one_layer_is_coded_as_the_plan_codes_it(reference: Reference):
    """V of layer 0 by itself and within the whole cache: the same numbers."""
    plan = profile("near-lossless").plan(reference.engine.layout)
    alone = coded(reference, 0, "v", plan.chains(0)[1], held(reference, 0, "v"))
    through = coded_cache(reference.engine, reference.cache, plan, tokens=TOKENS)
    assert through.cache.layer_view(0, 0, TOKENS)[1].equal(alone)


def test_losses_between_and_beyond_what_was_measured():
    """Geometric between two, a factor of four per bit beyond."""
    known = Sensitivities({(1, "v", 3): 1.6, (1, "v", 5): 0.1})
    assert known.loss((1, "v"), 3) == 1.6
    assert known.loss((1, "v"), 4) == pytest.approx(0.4)
    assert known.loss((1, "v"), 6) == pytest.approx(0.025)
    assert known.loss((1, "v"), 2) == pytest.approx(6.4)


def test_an_interrupted_run_goes_on(
    engine: Any, corpus: Corpus, tuning: Tuning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What was measured before is read from the folder, and not measured again."""
    make_search(engine, corpus, tuning, folder=tmp_path)
    (kept,) = tmp_path.glob("*.json")
    rows = json.loads(kept.read_text())["rows"]
    kept.write_text(json.dumps({"format": "kvbaton sensitivities 1", "rows": rows[:-3]}))
    said: list[str] = []
    make_search(engine, corpus, tuning, folder=tmp_path, progress=said.append)
    assert len(said) == 3
    assert "(1 of 3)" in said[0]
    assert "left)" in said[2]
    assert len(json.loads(kept.read_text())["rows"]) == len(rows)


def test_a_damaged_folder_is_named(engine: Any, corpus: Corpus, tuning: Tuning, tmp_path: Path):
    """Nothing is measured over it silently."""
    make_search(engine, corpus, tuning, folder=tmp_path)
    (kept,) = tmp_path.glob("*.json")
    kept.write_text("{}")
    with pytest.raises(FormatError) as caught:
        make_search(engine, corpus, tuning, folder=tmp_path)
    assert caught.value.at == str(kept)


# --- searches ---


def test_a_searched_plan_keeps_its_bits(search: Any):
    """By the size of the segment files, and layer 0 has 8 bits."""
    one = search.references[0]
    fine = profile("near-lossless").plan(one.engine.layout)
    limit = coded_cache(one.engine, one.cache, fine, tokens=TOKENS).bits_per_element - 1.0
    plan = search.under_bits("small", limit)
    through = coded_cache(one.engine, one.cache, plan, tokens=TOKENS)
    assert limit - 0.5 < through.bits_per_element <= limit
    assert [chain.packer.bits for chain in plan.chains(0)] == [8, 8]


def test_a_searched_plan_keeps_its_loss(search: Any):
    """On the search's texts; a looser bound takes fewer bits."""
    strict, loose = search.under_loss("strict", 1e-4), search.under_loss("loose", 1e-3)
    assert search.kl(strict) <= 1e-4
    assert search.kl(loose) <= 1e-3
    one = search.references[0]
    sizes = [
        coded_cache(one.engine, one.cache, plan, tokens=TOKENS).size_bytes
        for plan in (strict, loose)
    ]
    assert sizes[0] > sizes[1]


def test_bounds_that_cannot_be_kept_are_input_errors(search: Any):
    """The sentence says what was asked for."""
    with pytest.raises(InputError):
        search.under_bits("none", 1.0)
    with pytest.raises(InputError, match=r"more than 3\.5"):
        search.under_loss("none", 1e-3, max_bits=3.5)
    with pytest.raises(InputError, match=r"at most 1\.0e-12 was found"):
        search.under_loss("none", 1e-12)
    with pytest.raises(InputError, match="needs a bound"):
        Bounds()
    with pytest.raises(InputError, match="makes no sense"):
        Bounds(kl=-1.0)


# --- the whole ---


def test_every_profile_gets_a_record(engine: Any, corpus: Corpus, tuning: Tuning, search: Any):
    """With the plan that is used afterwards, measured on texts that the search has not seen."""
    wanted = wanted_plans(engine.layout, tuning, lambda: search)
    records = measured_records(engine, wanted, corpus, tuning)
    assert [record.profile for record in records] == list(tuning.profiles)
    known = Calibrations(records)
    for record in records:
        assert record.function == engine.function.digest
        assert record.corpus == corpus.digest
        assert [text.text for text in record.texts] == ["words", "other"]
        assert record.kl <= record.kl_worst
        assert 0 < record.first_layer_error < 0.05
        plan = plan_for(
            record.profile,
            function=engine.function.digest,
            model=engine.name,
            layout=engine.layout,
            calibrations=known,
        )
        assert plan.calibration == record.digest
        assert plan.layers == record.plan.layers
        json.loads(record_text(record))


def test_a_bound_of_ones_own_makes_a_profile_of_ones_own(engine: Any, corpus: Corpus, search: Any):
    """``tuned`` beside the profiles; or the one profile that is named."""
    own = Tuning(("near-lossless", "cheapest"), Bounds(bits=30.0), TOKENS, POSITIONS, 8)
    named = [
        (name, by_search) for name, _, by_search in wanted_plans(engine.layout, own, lambda: search)
    ]
    assert named == [("tuned", True), ("near-lossless", False), ("cheapest", False)]
    one = Tuning(("compact",), Bounds(kl=1e-4), TOKENS, POSITIONS, 8)
    assert [w[0] for w in wanted_plans(engine.layout, one, lambda: search)] == ["compact"]
    assert needs_search(own)
    assert needs_search(one)
    assert not needs_search(Tuning(("near-lossless",)))


def test_the_cheapest_record_takes_no_search(engine: Any, corpus: Corpus):
    """One plan, one measurement: for tests of whatever needs a record."""
    plan = CHEAPEST.plan(engine.layout)
    record = measured_record(
        engine, "cheapest", plan, corpus.held_out[:1], tokens=TOKENS, positions=POSITIONS
    )
    assert record.plan == plan
    assert record.noise_multiple is None


def test_rough_measurements_are_drawn_to_the_mean_of_all_layers():
    """Half way, geometrically: 1 and 4 have the mean 2, so they become sqrt(2) and sqrt(8)."""
    known = Sensitivities({(1, "v", 4): 1.0, (2, "v", 4): 4.0, (1, "k0", 4): 9.0})
    assert known.steady_loss((1, "v"), 4) == pytest.approx(2**0.5)
    assert known.steady_loss((2, "v"), 4) == pytest.approx(8**0.5)
    assert known.steady_loss((1, "k0"), 4) == pytest.approx(9.0)
