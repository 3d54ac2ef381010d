"""Quality: divergence and flips first, because accuracy is blind to much; then examples."""

from __future__ import annotations

from kvbaton.audit.report.charts.cost import bytes_chart
from kvbaton.audit.report.effects import compared
from kvbaton.audit.report.numbers import (
    DASH,
    amount_text,
    count_text,
    multiple_text,
    nats_text,
    points_text,
    share_text,
)
from kvbaton.audit.report.reading import Fields
from kvbaton.audit.report.section import Section, filled, present, said
from kvbaton.audit.report.tables import Cell, Table, cells, given, table, verdict_cell

MOST_EXAMPLES = 60
"""Flips shown; the rest is in the records."""

MOST_CHARACTERS = 500
"""Of a question or an answer."""

_EMPTY = "an empty answer"


def quality_section(result: Fields) -> Section:
    """Divergence in multiples of the noise floor, flips, accuracy, and all of it against bytes."""
    floor = result.number("noise_floor_kl")
    against = (
        f"The noise floor is {nats_text(floor)} nats and {share_text(flips)} of choices."
        if floor is not None and (flips := result.number("noise_floor_flips")) is not None
        else f"The noise floor is {nats_text(floor)} nats."
        if floor is not None
        else "The noise floor was not measured, so divergences have no multiple."
    )
    return Section(
        "quality",
        "Quality of the answers",
        (
            "Divergence (KL) and flipped choices come first: a wrong cache can still answer many "
            f"questions right. The same prompt computed in pieces already differs. {against}",
            *said(_unasked(result)),
        ),
        charts=present(bytes_chart(result)),
        tables=filled(_quality_table(result)),
        folded=filled(_cost_table(result)),
    )


def flips_section(result: Fields) -> Section:
    """Answers that a treatment turned from right to wrong or back, side by side."""
    examples = result.rows("flip_examples")
    more = len(examples) - MOST_EXAMPLES
    words = "No answer turned from right to wrong or back."
    if examples:
        words = "Each answer beside the one by text; what differs is marked."
    if more > 0:
        words += f" {MOST_EXAMPLES} of {len(examples)} are shown."
    headings = ("unit", "treatment", "what", "question", "expected", "by text", "by baton")
    rows = (_example(one) for one in examples[:MOST_EXAMPLES])
    shown = table("Answers that flipped", headings, rows, wordy=True)
    return Section("flips", "Answers that flipped", (words,), tables=filled(shown))


def same_ends(left: str, right: str) -> tuple[int, int]:
    """How many characters two texts share at the beginning, and how many more at the end."""
    shortest = min(len(left), len(right))
    begin = next((i for i in range(shortest) if left[i] != right[i]), shortest)
    rest = range(shortest - begin)
    end = next((i for i in rest if left[-1 - i] != right[-1 - i]), len(rest))
    return begin, end


def _example(one: Fields) -> tuple[Cell, ...]:
    by_text, by_baton = _cut(one.text("reference_text")), _cut(one.text("text"))
    begin, end = same_ends(by_text, by_baton)
    return cells(
        one.text("unit") or DASH,
        one.text("treatment") or DASH,
        verdict_cell(one.text("kind")),
        given(_cut(one.text("question")) or DASH, "the question is not in the records"),
        given(_cut(one.text("expected")) or DASH, "the expected answer is not in the records"),
        Cell(by_text or DASH, why=_EMPTY, differs=(begin, len(by_text) - end)),
        Cell(by_baton or DASH, why=_EMPTY, differs=(begin, len(by_baton) - end)),
    )


def _cut(text: str) -> str:
    left = len(text) - MOST_CHARACTERS
    return text if left <= 0 else f"{text[:MOST_CHARACTERS]} … ({left:,} more characters)"


def _quality_table(result: Fields) -> Table:
    rows = (
        cells(
            name,
            given(multiple_text(one.number("kl_multiple")), "no divergence or no noise floor"),
            given(nats_text(one.number("kl")), "not measured"),
            given(share_text(one.number("flips"), decimals=2), "not measured"),
            _discordant(one),
            given(share_text(one.number("accuracy")), "no answers"),
            given(share_text(one.number("accuracy_reference")), "no answers by the reference"),
            given(
                points_text(
                    one.number("accuracy_difference_points"),
                    one.interval("accuracy_difference_ci_points"),
                ),
                "nothing to compare",
            ),
            verdict_cell(one.text("quality_verdict")),
        )
        for name, one in compared(result)
    )
    headings = (
        "treatment", "KL, x noise floor", "KL, nats", "choices flipped", "answers lost / gained",
        "right", "right by reference", "difference, points", "answers are",
    )  # fmt: skip
    return table("Quality by treatment", headings, rows)


def _unasked(result: Fields) -> str:
    """Which treatments were timed and not asked, in words."""
    names = [
        name
        for name, one in compared(result)
        if all(one.number(key) is None for key in ("accuracy", "kl", "flips"))
    ]
    if not names:
        return ""
    return f"Only timed, not asked, so nothing is known of their answers: {', '.join(names)}."


def _discordant(one: Fields) -> Cell:
    lost, gained = (one.number("discordant", key) for key in ("lost", "gained"))
    if lost is None or gained is None:
        return Cell(DASH, why="nothing to compare")
    return Cell(f"{count_text(lost)} / {count_text(gained)}")


def _cost_table(result: Fields) -> Table:
    rows = (
        cells(
            name,
            given(amount_text(one.number("bytes_moved"), "B"), "not measured"),
            given(count_text(one.number("computed_tokens")), "not measured"),
            given(count_text(one.number("reused_tokens")), "not measured"),
            given(amount_text(one.number("flops"), "FLOP"), "not counted"),
            given(share_text(one.number("flops_ratio")), "not counted"),
            given(amount_text(one.number("peak_bytes"), "B"), "not measured on this device"),
        )
        for name, one in result.items("treatments")
    )
    headings = (
        "treatment", "bytes moved", "tokens computed", "tokens reused", "FLOPs run",
        "FLOPs against reference", "peak memory",
    )  # fmt: skip
    return table(
        "Work and memory by treatment: means over the units in which each was measured",
        headings,
        rows,
    )
