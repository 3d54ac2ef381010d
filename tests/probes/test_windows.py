"""Runs of tokens computed anew: which ones, and what they show."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvbaton.errors import EmptyInput, FormatError, InputError
from kvbaton.kinds import Importance
from kvbaton.probes.limits import (
    ByLayer,
    CodecLimits,
    ProbeLimits,
    WindowLimits,
    honest_cache,
    limits_for,
    measure_limits,
)
from kvbaton.probes.windows import (
    BEGINNING,
    LONE,
    choose_windows,
    examine,
    rows_of,
    run_means,
)
from kvbaton.types import EXACT, Fidelity, FidelityClass, TokenRun

EIGHT = Fidelity(FidelityClass.LOSSY, "eight", "ca" * 32)
TEXTS = ("Hello there, you plan and code. The quick brown fox jumps over the lazy dog. " * 9,)


def ids_of(count: int, seed: int = 0) -> list[int]:
    """Ids of which neighbours differ."""
    return [3 + (31 * i + 7 * i * i + 13 * seed) % 89 for i in range(count)]


def limits_of(token: float, run: float, layers: int = 4) -> WindowLimits:
    """The same limits everywhere."""
    tokens: ByLayer = ((token,) * layers, (token,) * layers)
    return WindowLimits(tokens, ((run,) * layers, (run,) * layers))


# --- which ---------------------------------------------------------------------------------------


@given(tokens=st.integers(0, 3000), seed=st.integers())
def test_windows_lie_in_the_cache(tokens: int, seed: int) -> None:
    """At most nine runs of 16, the last tokens always among them; short caches as a whole."""
    windows = choose_windows(tokens, Importance.CRITICAL, random.Random(seed))
    rows = rows_of(windows)
    assert all(run.first >= 0 and run.stop <= tokens and 0 < run.count <= 16 for run in windows)
    assert len(windows) <= 9
    assert rows == sorted(set(rows))
    assert rows[-16:] == list(range(max(0, tokens - 16), tokens))
    if tokens <= 144:
        assert rows == list(range(tokens))
    assert choose_windows(tokens, Importance.ORDINARY) == ()


def test_every_position_is_as_likely_as_any_other() -> None:
    """The ends of a cache are looked at as often as its middle."""
    counts, drawn = [0] * 400, random.Random(1)
    for _ in range(3000):
        for run in choose_windows(400, Importance.CRITICAL, drawn)[:-1]:
            for row in range(run.first, run.stop):
                counts[row] += 1
    expected = 3000 * 8 * 16 / 415
    parts = [sum(counts[i : i + 40]) / 40 for i in range(0, 360, 40)]
    assert all(0.9 * expected < part < 1.1 * expected for part in parts)


def test_places_are_not_known_beforehand() -> None:
    """By default the operating system draws them: the seed of the program does not matter."""
    seen = set()
    for _ in range(5):
        random.seed(0)
        seen.add(choose_windows(2000, Importance.CRITICAL))
    assert len(seen) == 5


@given(data=st.data())
def test_means_are_those_of_runs(data: Any) -> None:
    """Runs of at least eight tokens, whatever they overlap with."""
    run = st.builds(TokenRun, st.integers(0, 60), st.integers(1, 16))
    windows = sorted(data.draw(st.lists(run, min_size=1, max_size=6)), key=lambda r: r.first)
    rows = rows_of(windows)
    differences = torch.tensor(rows, dtype=torch.float32).expand(2, 3, len(rows))
    means = run_means(differences, windows)
    wanted = [r.first + (r.count - 1) / 2 for r in windows if r.count >= 8]
    assert means.shape == (2, 3, len(wanted))
    assert torch.allclose(means[0, 0], torch.tensor(wanted))


# --- what they show ------------------------------------------------------------------------------


@given(
    layer=st.integers(0, 3),
    row=st.integers(BEGINNING, 39),
    name=st.sampled_from(("k_store", "v_store")),
)
def test_a_changed_position_is_named(engine: Any, layer: int, row: int, name: str) -> None:
    """The very K or V, layer and position."""
    ids = ids_of(40)
    cache = honest_cache(engine, ids, random.Random(0), way=0)
    store = getattr(cache.layers[layer], name)
    store[:, :, row] *= 1.5
    windows = choose_windows(40, Importance.CRITICAL)
    report = examine(engine, cache, ids, windows, limits_of(0.01, 1e3))
    assert report.odd
    assert report.rows == 40
    assert not report.of_run
    worst = {(report.name, report.layer, report.position)}
    # What attends to the changed position may differ even more.
    assert worst == {(name[0], layer, row)} or (report.layer > layer and report.position >= row)
    assert str(report.position) in report.sentence()


def test_one_token_that_goes_its_own_way_is_no_alarm(engine: Any) -> None:
    """One position is odd at a wider limit, two at their own; the first four only grossly."""

    def ratio(*rows: int, by: float) -> float:
        cache = honest_cache(engine, ids_of(40), random.Random(0), way=0)
        for row in rows:  # in the last layer, so that nothing attends to it
            cache.layers[3].v_store[:, :, row] *= 1 + by
        windows = choose_windows(40, Importance.CRITICAL)
        return examine(engine, cache, ids_of(40), windows, limits_of(0.1, 1e3)).ratio

    assert ratio(20, by=0.3) == pytest.approx(0.3 / (LONE * 0.1), rel=0.4)
    assert ratio(20, 30, by=0.3) > 1.5
    assert ratio(20, by=0.8) > 1
    assert ratio(1, 2, by=0.5) < 1
    assert ratio(1, by=-5.0) > 1


def test_a_run_that_is_off_a_little_everywhere_is_named(engine: Any) -> None:
    """The mean of a run is held to a narrower limit than a token."""
    ids = ids_of(40)
    cache = honest_cache(engine, ids, random.Random(0), way=0)
    cache.layers[3].v_store[:, :, 16:32] *= 1.05
    report = examine(engine, cache, ids, [TokenRun(16, 16)], limits_of(0.5, 0.01))
    assert (report.odd, report.of_run, report.name, report.layer) == (True, True, "v", 3)
    assert report.position == 16
    assert report.to_json()["odd"] is True


def test_what_is_not_a_number_is_odd(engine: Any) -> None:
    """A NaN is beyond every limit."""
    ids = ids_of(20)
    cache = honest_cache(engine, ids, random.Random(0), way=0)
    cache.layers[2].k_store[0, 0, 11, 0] = torch.nan
    report = examine(engine, cache, ids, [TokenRun(4, 16)], limits_of(1e9, 1e9))
    assert report.odd
    with pytest.raises(EmptyInput):
        examine(engine, cache, ids, [], limits_of(1.0, 1.0))


# --- limits --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(engine: Any) -> ProbeLimits:
    """Limits of a tiny model, with a codec that rounds."""

    def rounded(cache: Any, ids: Any) -> Any:
        for layer in cache.layers:
            for store in (layer.k_store, layer.v_store):
                store.copy_((store * 8).round() / 8)
        return cache

    return measure_limits(engine, TEXTS, {EIGHT: rounded}, takes=6, longest=60)


def test_measured_limits_hold_for_honest_caches(engine: Any, measured: ProbeLimits) -> None:
    """Lossless ones pass; what a codec changes passes by the codec's limits only."""
    exact, eight = measured.find(EXACT), measured.find(EIGHT)
    assert exact is not None and eight is not None
    ids = ids_of(50)
    for way in range(3):
        cache = honest_cache(engine, ids, random.Random(way), way=way)
        windows = choose_windows(50, Importance.CRITICAL)
        assert not examine(engine, cache, ids, windows, exact).odd
        for layer in cache.layers:
            layer.v_store.copy_((layer.v_store * 8).round() / 8)
        assert examine(engine, cache, ids, windows, exact).odd
        assert not examine(engine, cache, ids, windows, eight).odd


def test_limits_come_back_from_json(measured: ProbeLimits) -> None:
    """What is stored is what was measured; something else is refused."""
    assert ProbeLimits.from_json(measured.to_json()) == measured
    for wrong in (
        {},
        {**measured.to_json(), "format": "another"},
        {**measured.to_json(), "codecs": [{"codec": "raw"}]},
        [],
    ):
        with pytest.raises(FormatError):
            ProbeLimits.from_json(wrong)


def test_an_older_measurement_keeps_its_other_codecs(measured: ProbeLimits) -> None:
    """A new one replaces what it has measured itself."""
    new = ProbeLimits("f", "m", "F32", 1, (CodecLimits("raw", None, limits_of(9.0, 9.0)),))
    joined = new.joined(measured)
    assert joined.find(EXACT) == limits_of(9.0, 9.0)
    assert joined.find(EIGHT) == measured.find(EIGHT)
    assert new.joined(None) == new


def test_the_widest_limits_of_all_segments_count(measured: ProbeLimits) -> None:
    """Lossless caches have limits without a record; lossy and approximate ones do not."""
    both = limits_for([EXACT, EIGHT], measured, dtype="F32", layers=4)
    eight = measured.find(EIGHT)
    assert both is not None and eight is not None
    assert all(x >= y for x, y in zip(both.token[1], eight.token[1], strict=True))
    assert limits_for([EXACT], None, dtype="BF16", layers=4) is not None
    assert limits_for([EXACT, EIGHT], None, dtype="F32", layers=4) is None
    moved = Fidelity(FidelityClass.APPROXIMATE)
    assert limits_for([EXACT, moved], measured, dtype="F32", layers=4) is None
    other = Fidelity(FidelityClass.LOSSY, "eight", "0b" * 32)
    assert limits_for([other], measured, dtype="F32", layers=4) is None
    assert limits_for([], measured, dtype="F32", layers=4) is None


def test_texts_must_be_long_enough(engine: Any) -> None:
    """Without any there is nothing to measure."""
    with pytest.raises(InputError):
        measure_limits(engine, ["short"], takes=1)
