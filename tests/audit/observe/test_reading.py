"""Reading logs: what bad lines are called, and what is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.audit.observe.simulated import World, as_log, simulate

from kvbaton.audit.observe.reading import read_log
from kvbaton.errors import EmptyInput, InputError


def rows(count: int = 3) -> list[dict[str, Any]]:
    """A few receipts."""
    return simulate(World(conversations=count), seed=5)[:count]


def write(path: Path, lines: list[Any]) -> Path:
    """A file of JSON lines; text is written as it is."""
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    return path


def test_what_was_logged_is_read(tmp_path: Path) -> None:
    """Every field that the analysis needs comes back from the file."""
    given_rows = rows()
    found = read_log(write(tmp_path / "log", given_rows))
    assert found == as_log(given_rows)


@pytest.mark.parametrize(
    ("field", "value", "at"),
    [
        ("id", "", "$.id"),
        ("id", 5, "$.id"),
        ("route", "pigeon", "$.route"),
        ("outcome", None, "$.outcome"),
        ("mode", "", "$.mode"),
        ("context_tokens", -1, "$.context_tokens"),
        ("context_tokens", True, "$.context_tokens"),
        ("reasons", ["none"], "$.reasons"),
        ("seconds", [], "$.seconds"),
        ("seconds", {"ttft": 0}, "$.seconds.ttft"),
        ("seconds", {"ttft": "1"}, "$.seconds.ttft"),
        ("seconds", {"ttft": 1, "total": 10**400}, "$.seconds.total"),
        ("labels", {"arm": 1}, "$.labels.arm"),
        ("labels", {"score": "good"}, "$.labels.score"),
        ("labels", {"score": "1.5"}, "$.labels.score"),
        ("labels", {"time": "yesterday"}, "$.labels.time"),
        ("labels", {"time": "9" * 400}, "$.labels.time"),
        ("labels", None, "$.labels"),
        ("created_ms", -1, "$.created_ms"),
        ("created_ms", 1.5, "$.created_ms"),
        ("created_ms", 10**17, "$.created_ms"),
    ],
)
def test_a_bad_line_is_named_with_its_field(
    tmp_path: Path, field: str, value: Any, at: str
) -> None:
    """The error says file, line and field; skipped, the line is counted and the others are read."""
    path = write(tmp_path / "log", [rows()[0], rows()[1] | {field: value}, rows()[2]])
    with pytest.raises(InputError) as caught:
        read_log(path)
    assert caught.value.at == f"{path}:2 {at}"
    found = read_log(path, skip_bad=True)
    assert (len(found.observations), found.lines, found.bad) == (2, 3, 1)
    assert f":2 {at}" in found.warnings[0]


@pytest.mark.parametrize("text", ["{", "5", "[" * 100_000, '{"id": NaN}', "\udcff"])
def test_a_line_that_is_no_object_is_bad(tmp_path: Path, text: str) -> None:
    """Cut off lines, other JSON, and bytes that are not UTF-8."""
    path = tmp_path / "log"
    data = f"{json.dumps(rows()[0])}\n{text}".encode("utf-8", errors="surrogateescape")
    path.write_bytes(data)
    with pytest.raises(InputError, match="line 2"):
        read_log(path)
    assert read_log(path, skip_bad=True).bad == 1


def test_receipts_of_other_versions_are_read(tmp_path: Path) -> None:
    """Fields that are not needed may be absent, and unknown ones may be there."""
    least = {
        name: rows()[0][name]
        for name in ("id", "agent", "model", "outcome", "mode", "route", "context_tokens")
    }
    path = write(tmp_path / "log", [least | {"seconds": {}, "new": [1]}])
    (one,) = read_log(path).observations
    assert (one.ttft_s, one.conversation, one.score, one.time_s) == (None, "", None, None)
    assert one.cluster == f"r {one.id}"


def test_a_receipt_says_when_it_was_written(tmp_path: Path) -> None:
    """Unless the caller says when the request came in."""
    row = rows()[0] | {"created_ms": 1_790_000_000_500}
    own = row | {"id": "b", "labels": {"time": "1790000001"}}
    bare = row | {"id": "a", "labels": {}}
    found = read_log(write(tmp_path / "log", [bare, own]))
    assert [one.time_s for one in found.observations] == [1_790_000_000.5, 1_790_000_001.0]


def test_times_are_epochs_or_iso(tmp_path: Path) -> None:
    """Both spellings of one moment give the same seconds; without a zone it is UTC."""
    spelled = ["1790000000", "2026-09-21T14:13:20", "2026-09-21T16:13:20+02:00"]
    given_rows = [
        row | {"labels": {"time": text}} for row, text in zip(rows(), spelled, strict=True)
    ]
    found = read_log(write(tmp_path / "log", given_rows))
    assert {one.time_s for one in found.observations} == {1_790_000_000.0}


def test_a_receipt_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    """The same line twice is a duplicate; another receipt of the same id is a bad line."""
    one, other = rows()[0], rows()[1]
    path = write(tmp_path / "log", [one, one, "", other])
    found = read_log(path)
    assert (len(found.observations), found.duplicates, found.lines) == (2, 1, 3)
    write(path, [one, other | {"id": one["id"]}])
    with pytest.raises(InputError, match="another receipt has this id"):
        read_log(path)


def test_outcomes_count_more_than_labels(tmp_path: Path) -> None:
    """Right, wrong and scores come from the second file; unknown receipts are told."""
    given_rows = rows()
    log = write(tmp_path / "log", given_rows)
    judged = [
        {"receipt": given_rows[0]["id"], "right": False},
        {"receipt": given_rows[1]["id"], "right": 0.25},
        {"receipt": "nobody", "right": True},
    ]
    found = read_log(log, write(tmp_path / "outcomes", judged))
    scores = [one.score for one in found.observations]
    assert scores == [0.0, 0.25, float(given_rows[2]["labels"]["score"])]
    assert "1 outcomes are of receipts that the log does not hold" in found.warnings


@pytest.mark.parametrize(
    ("line", "at"),
    [
        ({"receipt": "a"}, "$.right"),
        ({"right": True}, "$.receipt"),
        ({"receipt": "a", "right": "yes"}, "$.right"),
        ({"receipt": "a", "right": 2}, "$.right"),
        ({"receipt": "a", "right": None}, "$.right"),
    ],
)
def test_a_bad_outcome_is_named(tmp_path: Path, line: Any, at: str) -> None:
    """Like a bad receipt: file, line and field."""
    path = write(tmp_path / "outcomes", [line])
    with pytest.raises(InputError) as caught:
        read_log(write(tmp_path / "log", rows()), path)
    assert caught.value.at == f"{path}:1 {at}"


def test_no_receipts_and_no_file_are_input_errors(tmp_path: Path) -> None:
    """An empty log and one that is not there are told with their path."""
    with pytest.raises(EmptyInput):
        read_log(write(tmp_path / "log", []))
    with pytest.raises(InputError, match="cannot be read") as caught:
        read_log(tmp_path / "none")
    assert caught.value.at == str(tmp_path / "none")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)


@given(field=st.sampled_from([*rows(1)[0]]), value=JSON_VALUES)
def test_no_value_of_a_field_breaks_the_reader(
    tmp_path_factory: pytest.TempPathFactory, field: str, value: Any
) -> None:
    """Whatever a field holds, the line is read or counted as bad."""
    path = tmp_path_factory.getbasetemp() / "any-value"
    write(path, [rows(1)[0] | {"id": "sound"}, rows(1)[0] | {field: value}])
    found = read_log(path, skip_bad=True)
    assert len(found.observations) + found.bad + found.duplicates == 2
