"""Verdicts: one per treatment, and one per treatment in each group of units."""

from __future__ import annotations

from kvbaton.audit.report.effects import NOT_TIMED, compared
from kvbaton.audit.report.numbers import DASH, count_text, faster_text, points_text, share_text
from kvbaton.audit.report.reading import Fields
from kvbaton.audit.report.section import Section, filled
from kvbaton.audit.report.tables import Cell, Table, cells, given, table, verdict_cell
from kvbaton.audit.report.verdict import judged

DECIDED = "the verdict stands, or no number of units would decide it"

_BY = ("pair", "length", "kind", "relevance", "language", "load")
_NAMES = {"kind": "task kind", "load": "load of the machine", "pair": "model pair"}


def verdicts_section(result: Fields) -> Section:
    """What is decided, and how many units would decide the rest."""
    found = judged(result)
    name = found[0] if found else ""
    order = _order(result)
    groups = [_stratum_table(result, by, name, others=False) for by in order]
    others = [_stratum_table(result, by, name, others=True) for by in order]
    nothing = "" if filled(*groups) else " The units were not split into groups."
    return Section(
        "verdicts",
        "Verdicts",
        (
            "A treatment pays if it is faster and its answers are as good or better; it harms if "
            "its answers are worse by more than the margin. What the data leave open is undecided, "
            f"with the units that would be needed.{nothing}",
        ),
        tables=filled(_treatment_table(result), *groups),
        folded=filled(*others, _routes_table(result)),
    )


def _order(result: Fields) -> list[str]:
    """What the units were grouped by, in the usual order, then anything else."""
    found = dict.fromkeys(row.text("by") for row in result.rows("strata") if row.text("by"))
    return [by for by in _BY if by in found] + [by for by in found if by not in _BY]


def _treatment_table(result: Fields) -> Table:
    rows = (
        cells(
            name,
            verdict_cell(one.text("verdict")),
            verdict_cell(one.text("speed_verdict")),
            verdict_cell(one.text("quality_verdict")),
            given(count_text(one.number("units_needed")), DECIDED),
            one.text("label") or DASH,
            one.text("why") or DASH,
        )
        for name, one in compared(result)
    )
    headings = ("treatment", "verdict", "speed", "answers", "units needed", "what it is", "why")
    return table("Verdict of each treatment", headings, rows, wordy=True)


def _stratum_table(result: Fields, by: str, name: str, *, others: bool) -> Table:
    """Groups of one kind: of the treatment that the audit is about, or of all others."""
    rows = (
        cells(
            row.text("value") or DASH,
            *([row.text("treatment") or DASH] if others else []),
            verdict_cell(row.text("verdict")),
            count_text(row.number("units")),
            given(faster_text(row.number("ttft_ratio"), row.interval("ttft_ratio_ci")), NOT_TIMED),
            _accuracies(row),
            given(_difference(row), "no answers to compare"),
            given(count_text(row.number("units_needed")), DECIDED),
        )
        for row in result.rows("strata")
        if row.text("by") == by and (row.text("treatment") != name) is others
    )
    headings = (
        "group", *(["treatment"] if others else []), "verdict", "units", "first token",
        "right / by reference", "difference, points", "units needed",
    )  # fmt: skip
    caption = f"Verdicts by {_NAMES.get(by, by)}, {'other treatments' if others else name}"
    return table(caption, headings, rows, labels=2 if others else 1)


def _accuracies(row: Fields) -> Cell:
    right, reference = row.number("accuracy"), row.number("accuracy_t0")
    if right is None and reference is None:
        return Cell(DASH, why="no answers to compare")
    return Cell(f"{share_text(right)} / {share_text(reference)}")


def _difference(row: Fields) -> str:
    points = row.number("accuracy_difference_points")
    bounds = row.interval("accuracy_difference_ci_points")
    if points is None and bounds is not None:
        return f"[{points_text(bounds[0])}, {points_text(bounds[1])}]"
    return points_text(points, bounds)


def _routes_table(result: Fields) -> Table:
    rows = (
        cells(
            name,
            ", ".join(f"{route} {n.count()}" for route, n in one.items("routes")) or DASH,
            given(share_text(one.number("fallback_share")), "no trials"),
            ", ".join(f"{code} {n.count()}" for code, n in one.items("reasons")) or DASH,
            given(
                faster_text(
                    one.number("as_treated", "ttft_ratio"),
                    one.interval("as_treated", "ttft_ratio_ci"),
                ),
                "no trial took the assigned route, or none was timed",
            ),
            given(
                points_text(one.number("as_treated", "accuracy_difference_points")), "no answers"
            ),
        )
        for name, one in compared(result)
    )
    headings = (
        "treatment", "routes taken", "fell back to text", "reasons",
        "first token, assigned route only", "points, assigned route only",
    )  # fmt: skip
    return table("Routes that trials took, and the effect without those that fell back", headings,
                 rows, wordy=True)  # fmt: skip
