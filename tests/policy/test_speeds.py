"""Speeds: lines through noisy times, strict files, one host each."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.policy.speed_examples import FUNCTION, HOST, KNOWN, speeds

from kvbaton.errors import FormatError, InputError, KvbatonError, NotMeasuredHere
from kvbaton.policy.fits import line_of, spread_of
from kvbaton.policy.hosts import host_id, usable_cores
from kvbaton.policy.learning import Learnt
from kvbaton.policy.output_length import OutputLengths
from kvbaton.policy.speed_files import (
    FORMAT,
    Kept,
    load_speeds,
    read_speeds,
    speeds_file,
    speeds_of_model,
    store_speeds,
)
from kvbaton.policy.speeds import Knot, Line, Speeds, Spread

OTHER = "b" * 64
KEPT = Kept(
    KNOWN,
    Learnt({"prefill": (1.0, 2.0)}),
    OutputLengths().seen(
        {"agent": "a", "mode": "continue", "context_tokens": 100, "generated_tokens": 10}
    ),
)


# --- lines -------------------------------------------------------------------------------------


@given(st.floats(0, 10), st.floats(1e-6, 1), st.sets(st.integers(1, 10_000), min_size=2))
def test_a_line_without_noise_is_found(fixed: float, unit: float, lengths: set[int]) -> None:
    """Whatever its slope."""
    found = line_of((n, fixed + unit * n) for n in lengths)
    assert found.seconds(500) == pytest.approx(fixed + unit * 500, rel=1e-3)


def test_one_odd_time_of_several_does_not_count() -> None:
    """Medians stand for equal lengths."""
    times = [(n, 0.1 + 0.01 * n) for n in (10, 20, 30) for _ in range(3)] + [(20, 99.0)]
    assert line_of(times) == Line(pytest.approx(0.1), pytest.approx(0.01))


@example([(1.1125369292536007e-308, 2.0)])
@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(-10, 1e3)), max_size=12))
def test_lines_are_never_negative(points: list[tuple[float, float]]) -> None:
    """Neither at the beginning nor in their slope, whatever the times."""
    found = line_of(points)
    assert found.fixed_s >= 0 <= found.unit_s
    assert math.isfinite(found.fixed_s + found.unit_s)


def test_lines_that_cannot_be_are_replaced() -> None:
    """One that falls by its mean, one that begins below zero by one through zero."""
    assert line_of([(1, 2.0), (2, 2.0), (3, 2.0)]) == Line(pytest.approx(2.0), 0.0)
    assert line_of([(1, 3.0), (2, 2.0)]).unit_s == 0
    steep = line_of([(1, 0.1), (2, 1.2)])
    assert steep.fixed_s == 0 < steep.unit_s
    assert line_of([(200, 1.0)]) == Line(0.0, 0.005)
    assert line_of([]) == Line()


def test_spreads_hold_eight_of_ten_and_the_prediction() -> None:
    """The extremes are cut off."""
    assert spread_of([0.5, *[1.0] * 8, 3.0]) == Spread(1.0, 1.0)
    assert spread_of([1.1, 1.2]) == Spread(1.0, 1.2)
    assert spread_of([]) == Spread()


# --- hosts -------------------------------------------------------------------------------------


def test_a_host_has_one_id() -> None:
    """64 hexadecimal digits, the same whenever it is asked."""
    assert host_id() == host_id()
    assert len(host_id()) == 64
    assert int(host_id(), 16) >= 0
    assert usable_cores() >= 1


def test_another_number_of_processors_is_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that is given fewer is slower."""
    here = host_id()
    host_id.cache_clear()
    monkeypatch.setattr("kvbaton.policy.hosts.usable_cores", lambda: 999)
    try:
        assert host_id() != here
    finally:
        host_id.cache_clear()


# --- files -------------------------------------------------------------------------------------


@given(speeds)
def test_speeds_are_read_as_they_were_written(known: Speeds) -> None:
    """Through JSON text, to the last bit."""
    assert Speeds.from_json(json.loads(json.dumps(known.to_json(), allow_nan=False))) == known


def test_what_is_kept_is_found(tmp_path: Path) -> None:
    """Speeds, what was learnt, lengths; in a file that only its owner can look for."""
    file = store_speeds(KEPT, tmp_path)
    assert read_speeds(tmp_path, FUNCTION, host=HOST) == KEPT
    assert load_speeds(tmp_path, FUNCTION, host=HOST) == (KEPT, None)
    assert speeds_of_model(tmp_path, "tiny", host=HOST) == KEPT
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert Kept.of(KEPT.learner()) == KEPT


def test_nothing_is_found_where_nothing_was_measured(tmp_path: Path) -> None:
    """That is no error: the gates alone decide."""
    assert read_speeds(tmp_path, FUNCTION, host=HOST) is None
    assert load_speeds(tmp_path, FUNCTION, host=HOST) == (None, None)


def refused(tmp_path: Path, kind: type[KvbatonError], *, host: str = HOST) -> KvbatonError:
    """The error that reading raises, and loading returns."""
    with pytest.raises(kind) as caught:
        read_speeds(tmp_path, FUNCTION, host=host)
    kept, trouble = load_speeds(tmp_path, FUNCTION, host=host)
    assert kept is None
    assert str(trouble) == str(caught.value)
    assert "kvbaton policy calibrate" in caught.value.hint
    return caught.value


def test_speeds_of_another_host_are_named_and_not_used(tmp_path: Path) -> None:
    """Whether they lie in its folder or were copied into ours."""
    file = store_speeds(KEPT, tmp_path)
    assert "another host" in refused(tmp_path, NotMeasuredHere, host=OTHER).sentence
    copied = speeds_file(tmp_path, FUNCTION, host=OTHER)
    copied.parent.mkdir()
    copied.write_bytes(file.read_bytes())
    assert "another host" in refused(tmp_path, NotMeasuredHere, host=OTHER).sentence


def test_speeds_of_another_model_are_named_and_not_used(tmp_path: Path) -> None:
    """A file that was renamed says what it is of."""
    other = dataclasses.replace(KNOWN, function="0" * 64)
    store_speeds(Kept(other), tmp_path).rename(speeds_file(tmp_path, FUNCTION, host=HOST))
    assert "another model" in refused(tmp_path, NotMeasuredHere).sentence


def test_speeds_of_another_version_are_named_and_not_used(tmp_path: Path) -> None:
    """Whatever else stands in the file."""
    file = store_speeds(KEPT, tmp_path)
    file.write_text(json.dumps({"format": "kvbaton speeds 9", "novel": 1}))
    assert "another version" in refused(tmp_path, NotMeasuredHere).sentence


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "{", "null", '{"format": "something else"}', "\u00e9", "[" * 100_000]
)
def test_files_that_are_something_else_are_refused(tmp_path: Path, text: str) -> None:
    """With the file, and what to do."""
    file = store_speeds(KEPT, tmp_path)
    file.write_text(text, encoding="utf-8")
    assert refused(tmp_path, FormatError).at == str(file)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values inside of a JSON value."""
    inside: Any = ()
    if isinstance(value, dict | list):
        inside = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, one in inside:
        found += [(*at, key), *places(one, (*at, key))]
    return found


WHOLE: Any = {
    "format": FORMAT,
    "speeds": KNOWN.to_json(),
    "learnt": KEPT.learnt.to_json(),
    "lengths": KEPT.lengths.to_json(),
}


BAD = [None, "x", -1, math.nan, [], {}, True, 10**400]


@pytest.mark.parametrize("bad", BAD, ids=[str(one)[:9] for one in BAD])
def test_every_value_is_looked_at(tmp_path: Path, bad: Any) -> None:
    """No place of a file may hold anything: it is refused, or is a value of its place."""
    file = store_speeds(KEPT, tmp_path)
    for path in random.Random(7).sample(places(WHOLE), 60):
        changed = json.loads(json.dumps(WHOLE))
        inside = changed
        for key in path[:-1]:
            inside = inside[key]
        inside[path[-1]] = bad
        file.write_text(json.dumps(changed))
        kept, trouble = load_speeds(tmp_path, FUNCTION, host=HOST)
        assert (kept is None) != (trouble is None)
        if kept is not None:
            assert json.loads(json.dumps(kept.speeds.to_json(), allow_nan=False))


@pytest.mark.parametrize(
    "knots",
    [(), (Knot(0, 1.0),), (Knot(2, 1.0), Knot(1, 2.0)), (Knot(1, 2.0), Knot(2, 1.0)),
     (Knot(1, 0.0),), (Knot(1, math.nan),), (Knot(1, math.inf),)],
)  # fmt: skip
def test_knots_that_cannot_be_are_refused(knots: tuple[Knot, ...]) -> None:
    """Lengths ascend, times are positive and do not fall."""
    with pytest.raises(InputError):
        dataclasses.replace(KNOWN, prefill=knots)


def test_a_model_is_found_by_its_name(tmp_path: Path) -> None:
    """The last measurement of several dtypes counts; another model is not found."""
    later = dataclasses.replace(
        KNOWN, function="0" * 64, created_s=KNOWN.created_s + 1, generate_s=9.0
    )
    store_speeds(KEPT, tmp_path)
    store_speeds(Kept(later), tmp_path)
    assert speeds_of_model(tmp_path, "tiny", host=HOST).speeds == later
    with pytest.raises(NotMeasuredHere):
        speeds_of_model(tmp_path, "huge", host=HOST)
