"""Break-even lengths: found where a known cost model has them, kept and read strictly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbaton.errors import FormatError, InputError
from kvbaton.policy.break_even import BreakEven, LadderPoint, RatioPoint, break_even
from kvbaton.policy.profit import (
    BreakEvenRecord,
    Host,
    ProfitCell,
    ProfitMap,
    store_break_even,
    stored_break_even,
)

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
FUNCTION = "ab" * 32


def ladder(
    a: float, b: float, c: float, d: float, *, noise: float = 0.0, repeats: int = 1, seed: int = 0
) -> list[LadderPoint]:
    """Text takes a + b n seconds, the route c + d n, times lognormal noise."""
    random = np.random.default_rng(seed)

    def times(seconds: float) -> tuple[float, ...]:
        return tuple(seconds * np.exp(noise * random.standard_normal(repeats)))

    return [LadderPoint(n, times(a + b * n), times(c + d * n)) for n in LENGTHS]


def of_ratios(*ratios: float) -> list[LadderPoint]:
    """Text takes one second at lengths 100, 200, 400 ..., the route as many as are given."""
    return [LadderPoint(100 * 2**n, (1.0,), (ratio,)) for n, ratio in enumerate(ratios)]


@given(crossing=st.floats(100, 3000), share=st.floats(0.05, 0.8), a=st.floats(0.01, 0.2))
def test_the_break_even_of_a_linear_cost_model_is_found(
    crossing: float, share: float, a: float
) -> None:
    """Without noise the length lies within 6.5% of (c - a) / (b - d): interpolated by logs."""
    b = 1e-4
    d = share * b
    found = break_even(ladder(a, b, a + (b - d) * crossing, d), route="T3", seed=0)
    assert found.tokens is not None
    assert found.tokens == pytest.approx(crossing, rel=0.065, abs=1)


def test_the_interval_covers_the_truth_under_noise() -> None:
    """Of 100 noisy ladders with 9 repeats, at least 88 intervals hold the break-even of 1,000."""
    covered = 0
    for seed in range(100):
        points = ladder(0.05, 1e-4, 0.1, 5e-5, noise=0.1, repeats=9, seed=seed)
        found = break_even(points, route="T3", seed=seed, resamples=500)
        assert found.ci is not None
        low, high = found.ci
        covered += low <= 1000 and (high is None or high >= 1000)
    assert covered >= 88


@given(scale=st.floats(1e-3, 1e3), seed=st.integers(0, 50))
def test_the_unit_of_time_does_not_matter(scale: float, seed: int) -> None:
    """All times multiplied by one factor give the same break-even and interval."""
    points = ladder(0.05, 1e-4, 0.1, 5e-5, noise=0.1, repeats=4, seed=seed)
    scaled = [
        LadderPoint(p.tokens, *(tuple(scale * s for s in t) for t in (p.text_s, p.route_s)))
        for p in points
    ]
    one, other = (break_even(p, route="T3", seed=1, resamples=100) for p in (points, scaled))
    assert other.tokens == pytest.approx(one.tokens, abs=1)
    assert one.ci is not None and other.ci is not None
    assert other.ci[0] == pytest.approx(one.ci[0], abs=1)


@given(faster=st.floats(0.3, 0.99), seed=st.integers(0, 50))
def test_a_faster_route_never_breaks_even_later(faster: float, seed: int) -> None:
    """Multiplying the route's times by less than one moves the break-even to shorter contexts."""
    points = ladder(0.05, 1e-4, 0.1, 5e-5, noise=0.3, repeats=2, seed=seed)
    quick = [replace(p, route_s=tuple(faster * s for s in p.route_s)) for p in points]
    slow, fast = (break_even(p, route="T3", seed=1, resamples=10) for p in (points, quick))
    assert slow.tokens is None or (fast.tokens is not None and fast.tokens <= slow.tokens)


def test_the_crossing_is_interpolated_in_the_logarithms() -> None:
    """Ratios 2 at 100 tokens and 1/2 at 200 cross at 100 times the root of 2: 142 tokens."""
    found = break_even(of_ratios(2.0, 0.5), route="T3", seed=0)
    assert (found.tokens, found.at_most, found.never) == (142, False, False)
    assert [point.ratio for point in found.points] == pytest.approx([2.0, 0.5])


def test_a_route_that_is_always_faster_breaks_even_at_most_at_the_shortest() -> None:
    """The shortest measured length is told as an upper bound."""
    found = break_even(of_ratios(0.9, 0.5), route="T3", seed=0)
    assert (found.tokens, found.at_most) == (100, True)


def test_a_route_that_is_never_faster_has_no_break_even() -> None:
    """Also where it is faster only at short lengths, which is a warning."""
    assert break_even(of_ratios(1.5, 1.0), route="T3", seed=0).never
    found = break_even(of_ratios(0.5, 1.5), route="T3", seed=0)
    assert found.never
    assert "short lengths only" in found.warnings[0]


def test_the_last_of_several_crossings_counts() -> None:
    """Faster, slower, faster again: the break-even is behind the slow length, with a warning."""
    found = break_even(of_ratios(0.5, 2.0, 0.5), route="T3", seed=0)
    assert found.tokens == 283
    assert "last crossing" in found.warnings[0]


def test_one_length_and_few_repeats_are_told() -> None:
    """One length is enough for an answer; without repeats there is no interval."""
    found = break_even(of_ratios(0.5), route="T3", seed=0)
    assert (found.tokens, found.at_most, found.ci) == (100, True, None)
    assert [one.split(":")[0] for one in found.warnings] == [
        "one length was measured",
        "a length was measured once",
    ]
    twice = break_even([LadderPoint(8, (1.0, 1.1), (2.0, 2.1))], route="T3", seed=0)
    assert "2 repeats" in twice.warnings[1]
    assert twice.ci is None


def test_an_interval_may_be_open_to_the_right() -> None:
    """Where some resamples never pay, the upper end is not known."""
    points = [
        LadderPoint(100, (1.0,) * 6, (2.0,) * 6),
        LadderPoint(200, (1.0,) * 6, (0.5, 0.5, 0.5, 0.9, 1.6, 1.6)),
    ]
    found = break_even(points, route="T3", seed=0)
    assert found.ci is not None
    assert found.ci[1] is None
    assert found.ci[0] >= 100


@pytest.mark.parametrize(
    ("points", "at"),
    [
        ([], "$"),
        ([LadderPoint(0, (1.0,), (1.0,))], "$[0].tokens"),
        ([LadderPoint(5, (), (1.0,))], "$[0].text_s"),
        ([LadderPoint(5, (1.0,), (0.0,))], "$[0].route_s"),
        ([LadderPoint(5, (1.0,), (float("nan"),))], "$[0].route_s"),
        ([LadderPoint(5, (1.0,), (1.0,))] * 2, "$"),
    ],
)
def test_bad_ladders_are_refused_with_their_place(points: list[LadderPoint], at: str) -> None:
    """No lengths, no times, times that are none, and a length twice are input errors."""
    with pytest.raises(InputError) as caught:
        break_even(points, route="T3", seed=0)
    assert caught.value.at == at


# --- profit map --------------------------------------------------------------------------------


def cell(route: str, ratio: float, low: float, high: float) -> ProfitCell:
    """One route at 512 tokens."""
    return ProfitCell("all", route, RatioPoint(512, ratio, (low, high)))


def test_the_winner_is_the_fastest_route_that_surely_is_faster() -> None:
    """A smaller ratio with an interval across 1 does not win; text wins where all are slower."""
    sure, unsure = cell("T3", 0.8, 0.7, 0.9), cell("tiny", 0.5, 0.2, 1.3)
    slow = cell("T1", 1.4, 1.2, 1.6)
    assert ProfitMap((sure, unsure, slow)).winner("all", 512) == "T3"
    assert ProfitMap((unsure, slow)).winner("all", 512) == "undecided"
    assert ProfitMap((slow,)).winner("all", 512) == "text"
    assert ProfitMap((slow,)).winner("all", 513) == "undecided"


def test_a_profit_map_has_every_length_of_every_ladder() -> None:
    """Strata and routes are kept apart."""
    points = ladder(0.05, 1e-4, 0.1, 5e-5, noise=0.01, repeats=6)
    english = break_even(points, route="T3", seed=0)
    chinese = break_even(points[:2], route="tiny", seed=0)
    found = ProfitMap.of({("en", "T3"): english, ("zh", "tiny"): chinese})
    assert len(found.cells) == len(LENGTHS) + 2
    assert found.winner("en", 4096) == "T3"
    assert found.winner("zh", 64) == "text"
    assert found.winner("zh", 4096) == "undecided"


# --- files -------------------------------------------------------------------------------------


def record() -> BreakEvenRecord:
    """A record with everything in it."""
    points = ladder(0.05, 1e-4, 0.1, 5e-5, noise=0.05, repeats=5)
    one = break_even(points, route="T3", seed=0, bandwidth_mb_s=800.0)
    never = break_even(of_ratios(2.0, 1.5), route="tiny", seed=0)
    mapped = ProfitMap.of({("all", "T3"): one})
    host = Host("a processor", 2)
    return BreakEvenRecord(FUNCTION, "m/BF16", "BF16", host, 1_790_000_000, (one, never), mapped)


def test_a_record_is_kept_and_found_again(tmp_path: Path) -> None:
    """What is stored for a function is what is read; other functions have none."""
    kept = record()
    path = store_break_even(kept, tmp_path)
    assert stored_break_even(FUNCTION, tmp_path) == kept
    assert stored_break_even("cd" * 32, tmp_path) is None
    assert path.read_text(encoding="ascii").endswith("}\n")
    assert kept.find("tiny") == kept.routes[1]
    assert kept.find("T1") is None


def changed(value: Any, path: str, new: Any) -> Any:
    """A copy of a JSON value with one place changed."""
    copy = json.loads(json.dumps(value))
    inside, (*steps, last) = copy, path.split(".")
    for step in steps:
        inside = inside[int(step)] if isinstance(inside, list) else inside[step]
    inside[int(last) if isinstance(inside, list) else last] = new
    return copy


@pytest.mark.parametrize(
    ("path", "new"),
    [
        ("format", "kvbaton break-even 2"),
        ("function", "x"),
        ("created_s", -1),
        ("created_s", 1.5),
        ("host", {"cpu": "x"}),
        ("more", 1),
        ("routes.0.tokens", 0),
        ("routes.0.at_most", 1),
        ("routes.0.ci", [5, 4]),
        ("routes.0.ci", [5]),
        ("routes.0.bandwidth_mb_s", -1),
        ("routes.0.points", []),
        ("routes.0.points.0.ratio", "1"),
        ("routes.0.points.0.ratio", float("inf")),
        ("routes.0.points.0.ci", [2.0, 1.0]),
        ("routes.0.warnings", "none"),
        ("profit.winners.0.winner", "T1"),
        ("profit.cells.0.stratum", 5),
    ],
)
def test_what_is_no_record_is_refused(path: str, new: Any) -> None:
    """Every field is checked: a wrong type, range or name is a format error with a place."""
    with pytest.raises(FormatError) as caught:
        BreakEvenRecord.from_json(changed(record().to_json(), path, new))
    assert caught.value.at.startswith("$")


@pytest.mark.parametrize("text", ["{", "[]", "null", "[" * 100_000])
def test_a_file_that_holds_something_else_is_named(tmp_path: Path, text: str) -> None:
    """The error names the file and says what to do."""
    path = store_break_even(record(), tmp_path)
    path.write_text(text, encoding="ascii")
    with pytest.raises(FormatError) as caught:
        stored_break_even(FUNCTION, tmp_path)
    assert (caught.value.at, caught.value.hint) == (str(path), "delete it, and measure again")


def test_a_file_of_another_function_is_refused(tmp_path: Path) -> None:
    """A record under a wrong name is not believed; a name that is no digest is no path."""
    path = store_break_even(record(), tmp_path)
    path.rename(path.with_name(f"{'cd' * 32}.json"))
    with pytest.raises(FormatError):
        stored_break_even("cd" * 32, tmp_path)
    with pytest.raises(FormatError):
        stored_break_even("../secret", tmp_path)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda x: (
            st.lists(x)
            | st.dictionaries(
                st.sampled_from(
                    ["route", "tokens", "ci", "at_most", "points", "bandwidth_mb_s", "warnings"]
                ),
                x,
            )
        ),
    )
)
def test_anything_else_is_a_format_error(value: Any) -> None:
    """No JSON value makes the reader raise anything but its own error."""
    with pytest.raises(FormatError):
        BreakEven.from_json(value)
