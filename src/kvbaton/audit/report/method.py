"""What went wrong, and how it was done: seed, versions, hardware, sizes, tests."""

from __future__ import annotations

from kvbaton.audit.report.numbers import DASH, count_text, duration_text, nats_text, share_text
from kvbaton.audit.report.reading import Fields
from kvbaton.audit.report.section import Section, filled, said
from kvbaton.audit.report.tables import Cell, Table, cells, given, table
from kvbaton.audit.report.verdict import margin_of

_SHOWN_TWICE = frozenset(
    {"digest", "format", "margin_points", "questions", "seed", "tasks", "treatments", "units"}
)


def trouble_section(result: Fields) -> Section:
    """Treatments that were impossible, scorers that raised, and warnings."""
    failed = result.rows("failed")
    warnings = result.texts("warnings")
    rows = (
        cells(
            row.text("treatment") or DASH,
            given(row.text("what") or DASH, "the records do not say at what"),
            count_text(row.count("count") or 1),
            given(row.text("unit") or DASH, "no unit of its own"),
            given(row.text("pair") or DASH, "the records do not name the pair"),
            row.text("code") or DASH,
            row.text("sentence") or DASH,
        )
        for row in failed
    )
    headings = (
        "treatment", "what failed", "times", "first unit", "model pair", "code", "what happened",
    )  # fmt: skip
    nothing = "Every treatment was possible, and nothing failed." if not failed else ""
    return Section(
        "trouble",
        "Failures and warnings",
        said(nothing, "Warnings:" if warnings else "There are no warnings."),
        tuple(warnings),
        tables=filled(table("What failed", headings, rows, wordy=True)),
    )


def method_section(result: Fields) -> Section:
    """The method in words, and everything that is needed to do it again."""
    return Section(
        "method",
        "Method",
        _sentences(result),
        tables=filled(
            _names_table("This audit", _audit(result)),
            _names_table("Machine and versions", _environment(result)),
        ),
        folded=filled(_names_table("Plan", _plan(result))),
    )


def _sentences(result: Fields) -> tuple[str, ...]:
    fixed = (
        "Every unit got every treatment, in an order that the seed made random, after a warm-up "
        "and with the same weights, precision and threads. So what would have happened otherwise "
        "is measured, not assumed. Treatments are analysed as assigned: a hand-off that fell back "
        "to text counts as the hand-off.",
        f"Answers count as equal within {margin_of(result):g} points, fixed before the run.",
    )
    told = [(name, one.text() or " ".join(one.texts())) for name, one in result.items("method")]
    return (*fixed, *(f"{_title(name)}: {text}" for name, text in told if text))


def _title(name: str) -> str:
    words = name.replace("_", " ")
    return words[:1].upper() + words[1:]


def _audit(result: Fields) -> list[tuple[str, str]]:
    tasks = result.fields("tasks")
    named = f"{tasks.text('name')} {_plain(tasks.fields('version'))}".strip()
    return [
        ("model", result.text("model")),
        ("dtype", result.text("dtype")),
        ("pairs", ", ".join(result.texts("pairs"))),
        ("units", count_text(result.number("units"))),
        ("questions", count_text(result.number("questions"))),
        ("seed", _plain(result.fields("seed"))),
        ("margin", f"{margin_of(result):g} points"),
        ("task set", named),
        ("digest of the task set", tasks.text("digest")),
        ("digest of the plan", result.text("plan", "digest")),
        ("noise floor, KL", _with_unit(nats_text(result.number("noise_floor_kl")), "nats")),
        ("noise floor, flips", share_text(result.number("noise_floor_flips"), decimals=2)),
        ("time that the audit took", duration_text(result.number("wall_s"))),
        (
            "time beside the model's",
            share_text(result.number("overhead_share"), decimals=2),
        ),
    ]


def _with_unit(text: str, unit: str) -> str:
    return text if text == DASH else f"{text} {unit}"


def _environment(result: Fields) -> list[tuple[str, str]]:
    versions = result.items("method", "versions")
    return _flat("", result.fields("environment")) + [
        (f"version of {name}", _plain(one)) for name, one in versions
    ]


def _plan(result: Fields) -> list[tuple[str, str]]:
    return [
        (name, text)
        for name, text in _flat("", result.fields("plan"))
        if name.partition(" ")[0] not in _SHOWN_TWICE
    ]


def _flat(prefix: str, fields: Fields) -> list[tuple[str, str]]:
    """Names and values, those of objects inside with both names."""
    found = []
    for name, one in fields.items():
        title = f"{prefix} {name}".strip().replace("_", " ")
        inner = _flat(title, one)
        found += inner or [(title, _plain(one))]
    return found


def _plain(one: Fields) -> str:
    """Text, number, truth value or list of these as text; empty for anything else."""
    number, truth = one.number(), one.yes()
    if truth is not None:
        return "yes" if truth else "no"
    if number is not None:
        return f"{number:,.6g}" if number != round(number) else f"{number:.0f}"
    return one.text() or ", ".join(text for row in one.rows() if (text := _plain(row)))


def _names_table(caption: str, pairs: list[tuple[str, str]]) -> Table:
    known = ((name, text) for name, text in pairs if text and text != DASH)
    rows = ((Cell(name), Cell(text)) for name, text in known)
    return table(caption, ("what", "value"), rows, wordy=True)
