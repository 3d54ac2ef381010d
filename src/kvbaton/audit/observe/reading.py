"""Reads logged receipts and their outcomes; a bad line is named with its field."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from kvbaton.errors import EmptyInput, InputError
from kvbaton.types import JSON, Mode, Outcome, ReasonCode, Route

_MOST_TOKENS, _FOREVER_S = 1 << 40, 1e9
_YEAR_10000_S = 253_402_300_800
_SHOWN = 5
"""Bad lines that are told one by one."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What the analysis needs of one receipt.

    Parameters
    ----------
    line
        In the file, from 1.
    offered
        Whether a baton was to be used, whatever came of it.
    arm
        The label ``arm``; empty without one.
    conversation
        The label ``conversation``; empty without one.
    ttft_s, total_s
        Seconds to the first token, and to the last; None where the receipt has none.
    score
        0 to 1; None where nobody judged the answer.
    time_s
        Seconds since the epoch, from the label ``time``; None without one.
    """

    id: str
    line: int
    agent: str
    model: str
    mode: str
    route: str
    offered: bool
    context_tokens: int
    ttft_s: float | None
    total_s: float | None
    labels: Mapping[str, str]
    arm: str = ""
    conversation: str = ""
    score: float | None = None
    time_s: float | None = None

    @property
    def fell_back(self) -> bool:
        """Whether a baton was to be used, and text was."""
        return self.offered and self.route == Route.TEXT

    @property
    def cluster(self) -> str:
        """What depends on each other: the conversation, or the receipt alone."""
        return f"c {self.conversation}" if self.conversation else f"r {self.id}"


@dataclass(frozen=True, slots=True)
class Log:
    """Receipts in the order in which they were logged, and what was left out."""

    observations: tuple[Observation, ...]
    lines: int
    bad: int = 0
    duplicates: int = 0
    warnings: tuple[str, ...] = ()


def read_log(receipts: Path, outcomes: Path | None = None, *, skip_bad: bool = False) -> Log:
    """Read a log of receipts, and what came of them.

    Parameters
    ----------
    receipts
        One receipt a line, as ``KVBATON_RECEIPTS`` logs them.  Fields that are not needed here
        may be there or not.
    outcomes
        One ``{"receipt": id, "right": true}`` a line, or a number from 0 to 1; it counts more
        than the label ``score``.
    skip_bad
        Leave bad lines out and count them, instead of raising.

    Raises
    ------
    InputError
        A file cannot be read, or has a bad line: ``at`` is file, line and field.
    EmptyInput
        There are no receipts.
    """
    lines = _Lines(receipts, skip_bad=skip_bad)
    found: dict[str, Observation] = {}
    texts: dict[str, str] = {}
    duplicates = 0
    for line, text in lines:
        one = lines.parse(line, text, _observation)
        if one is None:
            continue
        if one.id not in found:
            found[one.id], texts[one.id] = one, text
        elif texts[one.id] == text:
            duplicates += 1
        else:
            lines.bad_line(line, "$.id", "another receipt has this id")
    if not found:
        raise EmptyInput("the log holds no receipts", at=str(receipts))
    warnings = lines.told()
    if outcomes is not None:
        judged = _Lines(outcomes, skip_bad=skip_bad)
        scores = _scores(judged)
        unknown = len(scores.keys() - found.keys())
        if unknown:
            warnings += (f"{unknown} outcomes are of receipts that the log does not hold",)
        warnings += judged.told()
        lines.bad += judged.bad
        found = {i: replace(o, score=scores.get(i, o.score)) for i, o in found.items()}
    return Log(tuple(found.values()), lines.count, lines.bad, duplicates, warnings)


def _scores(lines: _Lines) -> dict[str, float]:
    scores: dict[str, float] = {}
    for line, text in lines:
        judged = lines.parse(line, text, _outcome)
        if judged is not None:
            scores[judged[0]] = judged[1]
    return scores


class _Bad(Exception):
    """A field that is wrong."""

    def __init__(self, at: str, sentence: str) -> None:
        super().__init__(sentence)
        self.at, self.sentence = at, sentence


class _Lines:
    """Lines of a file that hold something, with their numbers."""

    def __init__(self, path: Path, *, skip_bad: bool) -> None:
        self._path, self._skip = path, skip_bad
        self.count, self.bad, self._said = 0, 0, list[str]()

    def __iter__(self) -> Iterator[tuple[int, str]]:
        try:
            with self._path.open(encoding="utf-8", errors="surrogateescape") as file:
                for number, text in enumerate(file, 1):
                    if text.strip():
                        self.count += 1
                        yield number, text.strip()
        except OSError as error:
            raise InputError(
                f"the log cannot be read: {error.strerror or error}", at=str(self._path)
            ) from error

    def parse(self, line: int, text: str, read: Any) -> Any:
        """What ``read`` makes of the object in a line; None where it is bad and skipped."""
        try:
            value = json.loads(text, parse_constant=_no_constant)
            if type(value) is not dict:
                raise _Bad("$", "not an object")
            return read(line, value)
        except _Bad as error:
            self.bad_line(line, error.at, error.sentence)
        except (ValueError, RecursionError):
            self.bad_line(line, "$", "not JSON")
        return None

    def bad_line(self, line: int, at: str, sentence: str) -> None:
        """Raise, or count."""
        where = f"{self._path}:{line} {at}"
        if not self._skip:
            raise InputError(
                f"line {line} of the log is bad: {sentence}",
                at=where,
                hint="mend or remove it, or let bad lines be skipped",
            )
        self.bad += 1
        if len(self._said) < _SHOWN:
            self._said.append(f"bad line skipped: {sentence} at {where}")

    def told(self) -> tuple[str, ...]:
        """The first bad lines, in words, and how many more there are."""
        more = self.bad - len(self._said)
        rest = (f"and {more} more bad lines of {self._path}",) if more else ()
        return (*self._said, *rest)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _observation(line: int, value: JSON) -> Observation:
    labels = _labels(value.get("labels", {}))
    outcome = _word(value, "outcome", Outcome)
    reasons = value.get("reasons", [])
    if type(reasons) is not list or not all(type(reason) is dict for reason in reasons):
        raise _Bad("$.reasons", "not a list of objects")
    asked = any(reason.get("code") == ReasonCode.ASKED_FOR_TEXT for reason in reasons)
    seconds = value.get("seconds")
    if type(seconds) is not dict:
        raise _Bad("$.seconds", "not an object")
    score, created_s = labels.get("score", ""), _created_s(value)
    return Observation(
        id=_text(value, "id"),
        line=line,
        agent=_text(value, "agent", empty=True),
        model=_text(value, "model", empty=True),
        mode=_word(value, "mode", Mode),
        route=_word(value, "route", Route),
        offered=outcome != Outcome.NO_BATON and not asked,
        context_tokens=_count(value, "context_tokens"),
        ttft_s=_seconds(seconds, "ttft"),
        total_s=_seconds(seconds, "total"),
        labels=labels,
        arm=labels.get("arm", ""),
        conversation=labels.get("conversation", ""),
        score=_score(score, "$.labels.score") if score else None,
        time_s=_time(labels["time"]) if labels.get("time") else created_s,
    )


def _created_s(value: JSON) -> float | None:
    """When a receipt was written; None for one of a log that does not say."""
    found = value.get("created_ms", 0)
    if type(found) is not int or not 0 <= found < 1000 * _YEAR_10000_S:
        raise _Bad("$.created_ms", "not milliseconds since the epoch")
    return found / 1000 if found else None


def _outcome(line: int, value: JSON) -> tuple[str, float]:
    del line  # all readers of lines are called alike
    if "right" not in value:
        raise _Bad("$.right", "missing")
    return _text(value, "receipt"), _score(value["right"], "$.right")


def _text(value: JSON, name: str, *, empty: bool = False) -> str:
    found = value.get(name)
    if type(found) is not str or not (found or empty):
        raise _Bad(f"$.{name}", "not text")
    return found


def _word(value: JSON, name: str, known: type[Outcome] | type[Mode] | type[Route]) -> str:
    found = _text(value, name)
    if found not in list(known):
        raise _Bad(f"$.{name}", f"{found[:40]!r} is none of {', '.join(known)}")
    return found


def _count(value: JSON, name: str) -> int:
    found = value.get(name)
    if type(found) is not int or not 0 <= found < _MOST_TOKENS:
        raise _Bad(f"$.{name}", "not a number of tokens")
    return found


def _seconds(seconds: JSON, name: str) -> float | None:
    found = seconds.get(name)
    if found is None:
        return None
    if type(found) not in {int, float} or not 0 < found < _FOREVER_S:
        raise _Bad(f"$.seconds.{name}", "not a positive number of seconds")
    return float(found)


def _labels(value: Any) -> dict[str, str]:
    if type(value) is not dict:
        raise _Bad("$.labels", "not an object")
    for name, text in value.items():
        if type(text) is not str:
            raise _Bad(f"$.labels.{name[:40]}", "not text")
    return value


def _score(value: Any, at: str) -> float:
    if type(value) is bool:
        return float(value)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise _Bad(at, "neither true, false nor a number") from error
    if not 0 <= number <= 1:
        raise _Bad(at, "a score is from 0 to 1")
    return number


def _time(text: str) -> float:
    try:
        time_s = float(int(text)) if text.isdigit() else _iso(text)
    except (ValueError, OverflowError):
        time_s = -1.0
    if not 0 <= time_s < _YEAR_10000_S:
        raise _Bad("$.labels.time", "neither seconds since the epoch nor an ISO 8601 time")
    return time_s


def _iso(text: str) -> float:
    when = datetime.fromisoformat(text)
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
