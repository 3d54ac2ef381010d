"""Effects with their intervals: speed first, how seconds spread, from which length on, and why."""

from __future__ import annotations

from kvbaton.audit.report.charts.cost import gains_chart
from kvbaton.audit.report.charts.forest import Estimate, quality_forest, speed_forest
from kvbaton.audit.report.charts.latency import latency_chart
from kvbaton.audit.report.charts.lengths import (
    break_even_text,
    curves,
    lengths_chart,
    profit_map,
)
from kvbaton.audit.report.numbers import (
    DASH,
    faster_text,
    p_text,
    points_text,
    ratio_text,
    seconds_text,
    share_text,
    size_text,
)
from kvbaton.audit.report.reading import Fields
from kvbaton.audit.report.section import Section, filled, present, said
from kvbaton.audit.report.tables import Table, cells, given, table
from kvbaton.audit.report.verdict import margin_of

NOT_TIMED = "not timed, or nothing to compare with"
TOO_FEW = "too few trials: P50 and P90 need 10, P99 needs 100"
NO_TEST = "the test is not defined for these data"

_TESTS = ("mcnemar_p", "tost_p", "wilcoxon_p", "paired_t_p")


def compared(result: Fields) -> list[tuple[str, Fields]]:
    """Treatments that have a reference: candidates first, then controls."""
    every = [(n, one) for n, one in result.items("treatments") if one.text("role") != "reference"]
    return sorted(every, key=lambda pair: pair[1].text("role") == "control")


def effects_section(result: Fields) -> Section:
    """Forest plots of quality and speed, and the tests behind them."""
    candidates = [(n, one) for n, one in compared(result) if one.text("role") != "control"]
    quality = _estimates(candidates, "accuracy_difference_points", "accuracy_difference_ci_points")
    first = _estimates(candidates, "ttft_ratio", "ttft_ratio_ci")
    whole = _estimates(candidates, "e2e_ratio", "e2e_ratio_ci")
    words = (
        "Each treatment is compared with its reference on the same units. A dot is the estimate, "
        "the line its interval. Answers count as equal if the interval lies inside the margin."
        if candidates
        else "No candidate was measured."
    )
    return Section(
        "effects",
        "Effects and their intervals",
        (words,),
        charts=present(quality_forest(quality, margin_of(result)), speed_forest(first, whole)),
        tables=filled(_effects_table(result)),
        folded=filled(_tests_table(result), _sizes_table(result), _mixed_table(result)),
    )


def latency_section(result: Fields) -> Section:
    """Seconds to the first token and end to end."""
    return Section(
        "latency",
        "Time to the first token",
        (
            "All trials, as assigned: those that fell back to text are among them. "
            "The first token is timed until it is out, its forward pass included.",
        ),
        charts=present(latency_chart(result)),
        tables=filled(_seconds_table(result)),
    )


def length_section(result: Fields) -> Section:
    """From which length on a hand-off is faster than text."""
    lines = [
        f"{curve.name} pays from {break_even_text(curve)} tokens of context on."
        if curve.tokens is not None
        else f"{curve.name}: {curve.why}."
        for curve in curves(result)
    ]
    nothing = "" if lines else "Break-even lengths were not measured in this audit."
    return Section(
        "lengths",
        "From which length on",
        said(nothing),
        tuple(line.replace("..", ".") for line in lines),
        charts=present(lengths_chart(result)),
        tables=filled(profit_map(result)),
    )


def gains_section(result: Fields) -> Section:
    """Where the saved seconds come from."""
    chart = gains_chart(result)
    words = (
        "What the receiver need not prefill, what the sender need not decode, and what the "
        "hand-off costs, in seconds per trial. Positive is saved."
        if chart
        else "The gain could not be attributed: its parts were not measured."
    )
    return Section(
        "gains",
        "Where the gain comes from",
        said(words, _zero_decode(result)),
        charts=present(chart),
        folded=filled(_profile_table(result)),
    )


def _estimates(pairs: list[tuple[str, Fields]], value: str, interval: str) -> list[Estimate]:
    found = [(n, one.number(value), one.interval(interval)) for n, one in pairs]
    return [Estimate(n, number, bounds) for n, number, bounds in found if number is not None]


def _effects_table(result: Fields) -> Table:
    rows = (
        cells(
            name,
            one.text("reference") or DASH,
            given(faster_text(one.number("ttft_ratio"), one.interval("ttft_ratio_ci")), NOT_TIMED),
            given(faster_text(one.number("e2e_ratio"), one.interval("e2e_ratio_ci")), NOT_TIMED),
            given(
                faster_text(one.number("fixed_ratio"), one.interval("fixed_ratio_ci")), NOT_TIMED
            ),
            given(
                points_text(
                    one.number("accuracy_difference_points"),
                    one.interval("accuracy_difference_ci_points"),
                ),
                "no answers to compare",
            ),
        )
        for name, one in compared(result)
    )
    headings = (
        "treatment", "reference", "first token", "end to end", "fixed number of tokens",
        "right answers, points",
    )  # fmt: skip
    return table("Effect of each treatment against its reference", headings, rows, labels=2)


def _tests_table(result: Fields) -> Table:
    names = ("McNemar (right or wrong)", "TOST (equivalence)", "Wilcoxon (seconds)", "paired t")
    rows = (
        cells(
            name,
            *(given(p_text(one.number("tests", f"{test}_holm")), NO_TEST) for test in _TESTS),
            "; ".join(one.texts("tests", "notes")) or DASH,
        )
        for name, one in compared(result)
    )
    return table(
        "P values after Holm's correction", ("treatment", *names, "notes"), rows, wordy=True
    )


def _sizes_table(result: Fields) -> Table:
    names = ("Cliff's delta", "rank-biserial", "Cohen's h", "odds ratio")
    keys = ("cliffs_delta", "rank_biserial", "cohen_h", "odds_ratio")
    rows = (
        cells(name, *(given(size_text(one.number("effect_size", k)), NO_TEST) for k in keys))
        for name, one in compared(result)
    )
    return table("Effect sizes", ("treatment", *names), rows)


def _mixed_table(result: Fields) -> Table:
    model = result.fields("mixed_model")
    rows = (
        cells(
            name,
            given(faster_text(one.number("ratio"), one.interval("ci")), "no estimate"),
            given(p_text(one.number("p_holm")), NO_TEST),
        )
        for name, one in model.items("treatments")
    )
    spread = ", ".join(
        f"{name} {ratio_text(one.number())}"
        for name, one in model.items("groups")
        if one.number() is not None
    )
    converged = {True: "converged", False: "did not converge"}.get(model.yes("converged") is True)
    caption = f"Mixed model of the first token's seconds ({converged}"
    caption += f"; standard deviations on the log scale: {spread})" if spread else ")"
    return table(caption, ("treatment", "effect", "p after Holm"), rows)


def _seconds_table(result: Fields) -> Table:
    keys = [(of, p) for of in ("ttft_s", "e2e_s") for p in ("p50", "p90", "p99")]
    rows = (
        cells(
            name,
            *(given(seconds_text(one.number(of, p)), TOO_FEW) for of, p in keys),
            given(_rate(one.number("tokens_per_s")), NOT_TIMED),
        )
        for name, one in result.items("treatments")
    )
    headings = (
        "treatment", "first token P50", "first token P90", "first token P99",
        "end to end P50", "end to end P90",
        "end to end P99", "tokens per second",
    )  # fmt: skip
    return table("Seconds by treatment", headings, rows)


def _rate(tokens_per_s: float | None) -> str:
    return DASH if tokens_per_s is None else f"{tokens_per_s:,.1f}"


def _zero_decode(result: Fields) -> str:
    zero = result.fields("zero_decode")
    ratio = zero.number("e2e_ratio")
    if ratio is None:
        return ""
    against = faster_text(ratio, zero.interval("ci"))
    usual = zero.number("e2e_ratio_t0")
    beside = f", and against the usual hand-over by text {faster_text(usual)}" if usual else ""
    return (
        f"Zero-decode, where the sender writes no message at all: end to end {against} "
        f"against the same by text{beside}."
    )


def _profile_table(result: Fields) -> Table:
    rows = (
        cells(
            name,
            row.text("name") or DASH,
            share_text(row.number("share")),
            seconds_text(row.number("seconds")),
        )
        for name, one in result.items("profile")
        for row in one.rows()
    )
    headings = ("treatment", "operation", "share of the time", "seconds")
    return table("Profile of one trial per treatment", headings, rows, labels=2)
