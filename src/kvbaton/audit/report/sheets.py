"""Trials and treatments as CSV, in which no cell can be taken for a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

from kvbaton.audit.report.reading import Fields, visible_text

TRIAL_COLUMNS = (
    "pair", "treatment", "unit", "repeat", "excerpt", "ttft_s", "fixed_s", "fixed_tokens", "e2e_s",
    "message_tokens", "answer_tokens", "prompt_tokens", "context_tokens", "computed_tokens",
    "reused_tokens", "bytes_moved", "route", "reasons", "questions", "right", "score", "kl",
    "flips", "load", "busy",
)  # fmt: skip
"""``message_tokens`` and ``answer_tokens`` are the sender's and the receiver's output."""

SUMMARY_COLUMNS = (
    "treatment", "label", "role", "reference", "verdict", "speed_verdict", "quality_verdict",
    "units", "questions", "timed", "ttft_ratio", "ttft_ratio_low", "ttft_ratio_high", "ttft_p50_s",
    "ttft_p90_s", "ttft_p99_s", "e2e_ratio", "e2e_ratio_low", "e2e_ratio_high", "e2e_p50_s",
    "e2e_p90_s", "e2e_p99_s", "fixed_ratio", "tokens_per_s", "accuracy", "accuracy_reference",
    "accuracy_difference_points", "accuracy_difference_low_points",
    "accuracy_difference_high_points", "kl", "kl_multiple", "flips", "lost", "gained",
    "fallback_share", "bytes_moved", "flops", "flops_ratio", "peak_bytes", "units_needed", "why",
)  # fmt: skip

EXCERPT_CHARACTERS = 50

_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%")
_OF_UNIT = ("excerpt", "message_tokens", "prompt_tokens", "context_tokens")

Value = str | float | int | None
Key = tuple[str, str, str]


def trials_csv(trials: Iterable[Mapping[str, object]]) -> str:
    """A row per timed trial with what its unit was asked; units never timed have a row, too."""
    return _csv(TRIAL_COLUMNS, _trial_rows([Fields(trial) for trial in trials]))


def summary_csv(result: Fields) -> str:
    """A row per treatment."""
    rows = (_summary_row(name, one) for name, one in result.items("treatments"))
    return _csv(SUMMARY_COLUMNS, rows)


def inert(text: str) -> str:
    """Text that a spreadsheet shows and never runs: what looks like a formula gets a quote."""
    text = visible_text(text)
    return f"'{text}" if text.lstrip(" ").startswith(_FORMULAS) else text


def _csv(columns: Sequence[str], rows: Iterable[Mapping[str, Value]]) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\r\n", extrasaction="raise")
    writer.writeheader()
    for row in rows:
        shown = {key: inert(v) if isinstance(v, str) else v for key, v in row.items()}
        writer.writerow(shown)
    return buffer.getvalue()


def _trial_rows(trials: Sequence[Fields]) -> Iterable[dict[str, Value]]:
    """Joined: what was timed, what its unit is, and what its answers were."""
    units: dict[tuple[str, str], dict[str, Value]] = {}
    answers: dict[Key, dict[str, Value]] = {}
    timed: list[tuple[Key, Fields]] = []
    pair = ""
    for trial in trials:
        if trial.text("format"):
            pair = trial.text("pair")
        kind, unit = trial.text("kind"), trial.text("unit")
        key = (pair, unit, trial.text("treatment"))
        if kind == "unit":
            units[pair, unit] = _unit_values(trial)
        elif kind == "quality":
            answers[key] = _answer_values(trial)
        elif kind == "timed":
            timed.append((key, trial))
    seen = {key for key, _ in timed}
    untimed = [(key, Fields(None)) for key in answers if key not in seen]
    for key, trial in (*timed, *untimed):
        named: dict[str, Value] = {"pair": key[0], "unit": key[1], "treatment": key[2]}
        asked = answers.get(key, {})
        took = _timed_values(trial)
        if not took["route"]:
            took["route"] = asked.get("route")
        yield {**named, **units.get(key[:2], {}), **asked, **took}


def _unit_values(trial: Fields) -> dict[str, Value]:
    values: dict[str, Value] = {key: _whole(trial.number(key)) for key in _OF_UNIT}
    return {**values, "excerpt": trial.text("excerpt")[:EXCERPT_CHARACTERS]}


def _answer_values(trial: Fields) -> dict[str, Value]:
    answers = trial.rows("answers")
    scores = [s for answer in answers if (s := answer.number("score")) is not None]
    divergences = [d for answer in answers if (d := answer.number("kl")) is not None]
    return {
        "route": trial.text("route"),
        "answer_tokens": sum(answer.count("new_tokens") for answer in answers),
        "questions": len(answers),
        "right": sum(answer.yes("right") is True for answer in answers),
        "score": sum(scores) / len(scores) if scores else None,
        "kl": sum(divergences) / len(divergences) if divergences else None,
        "flips": sum(answer.count("flips") for answer in answers),
    }


def _timed_values(trial: Fields) -> dict[str, Value]:
    seconds: dict[str, Value] = {key: trial.number(key) for key in ("ttft_s", "fixed_s", "e2e_s")}
    counts = ("repeat", "fixed_tokens", "computed_tokens", "reused_tokens", "bytes_moved")
    return {
        **seconds,
        **{key: _whole(trial.number(key)) for key in counts},
        "route": trial.text("route"),
        "reasons": " ".join(trial.texts("reasons")),
        "load": trial.number("load"),
        "busy": trial.number("busy"),
    }


def _summary_row(name: str, one: Fields) -> dict[str, Value]:
    row: dict[str, Value] = {"treatment": name}
    for key in ("label", "role", "reference", "verdict", "speed_verdict", "quality_verdict", "why"):
        row[key] = one.text(key)
    for key in SUMMARY_COLUMNS:
        row.setdefault(key, _whole(one.number(key)))
    for measure in ("ttft", "e2e"):
        low, high = one.interval(f"{measure}_ratio_ci") or (None, None)
        row |= {f"{measure}_ratio_low": low, f"{measure}_ratio_high": high}
        for percentile in ("p50", "p90", "p99"):
            row[f"{measure}_{percentile}_s"] = one.number(f"{measure}_s", percentile)
    low, high = one.interval("accuracy_difference_ci_points") or (None, None)
    row |= {"accuracy_difference_low_points": low, "accuracy_difference_high_points": high}
    row |= {key: _whole(one.number("discordant", key)) for key in ("lost", "gained")}
    return row


def _whole(number: float | None) -> float | int | None:
    """A count without ``.0``."""
    return int(number) if number is not None and number == int(number) else number
