"""``kvbaton audit observe``: what receipts of ordinary use say about hand-offs."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from kvbaton import settings
from kvbaton.cli.output import JsonFlag, Output, print_table
from kvbaton.errors import InputError
from kvbaton.types import JSON

SHAPES = {
    "audit observe": """{"format", "by", "verdict", "why", "ttft_ratio", "ttft_ratio_ci",
 "effects": {"ttft": {"receipts", "missing", "conversations", "ratio", "ratio_ci",
 "weighted_ratio", "weighted_ratio_ci", "naive_ratio", "naive_ratio_ci", "p"}, "total": the same,
 "score": {"receipts", "missing", "conversations", "points", "points_ci", "weighted_points",
 "weighted_points_ci", "naive_points", "naive_points_ci", "p"}},
 "assignment": null | {"arms", "conversations", "expected", "p", "receipts_per_conversation",
 "receipts_per_conversation_p", "mixed_conversations", "alarm"},
 "overlap": null | {"enough", "outside_share", "outside", "effective_receipts", "method"},
 "balance": [{"feature", "before", "after", "balanced"}],
 "placebo": null | {"mean_ratio", "deviation_log", "share_beyond", "rounds", "by"},
 "sensitivity": null | {"e_value", "e_value_interval", "note", "source"},
 "drift": {"windows": [{"window", "receipts", "ratio", "ratio_ci"}],
 "fallback_windows": [{"window", "receipts", "share"}],
 "alarms": [{"what", "kind", "window", "before", "after", "p_adjusted", "sentence"}]},
 "counts": {"lines", "bad", "duplicates", "receipts", "compared", "compared_baton",
 "compared_text", "conversations", "routes", "fallbacks", "fallback_share"},
 "warnings", "method": {"estimate", "scores", "interval", "treatment", "balance_target", "window",
 "arms"}, "seed"}"""
}
"""What ``--json`` prints, for the reference."""


class ByOption(StrEnum):
    """How receipts came by their routes."""

    AUTO = "auto"
    AB = "ab"
    PROPENSITY = "propensity"


def observe(
    receipts: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RECEIPTS]", help="The log; by default the one that KVBATON_RECEIPTS names."
        ),
    ] = None,
    outcomes: Annotated[
        Path | None,
        typer.Option(
            "--outcomes",
            metavar="FILE",
            help='What came of receipts: {"receipt": id, "right": true, false or 0 to 1} a line.',
        ),
    ] = None,
    by: Annotated[
        ByOption,
        typer.Option(
            "--by",
            metavar="HOW",
            help="ab: conversations were assigned to arms; propensity: receipts as they came; "
            "auto: ab where both arms have 20 receipts.",
        ),
    ] = ByOption.AUTO,
    text_arm: Annotated[
        str, typer.Option("--text-arm", metavar="NAME", help="Label of the arm that goes by text.")
    ] = "text",
    baton_arm: Annotated[
        str, typer.Option("--baton-arm", metavar="NAME", help="Label of the arm with batons.")
    ] = "baton",
    share: Annotated[
        float,
        typer.Option("--share", metavar="S", help="Share of conversations in the baton arm."),
    ] = 0.5,
    received: Annotated[
        bool,
        typer.Option(
            "--received",
            help="Compare by the route that was taken; by default what fell back counts as baton.",
        ),
    ] = False,
    window: Annotated[
        str,
        typer.Option(
            "--window", metavar="W", help="To look for drift in: day, week, a number, or auto."
        ),
    ] = "auto",
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label", metavar="NAME", help="One more label to account for; may be repeated."
        ),
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave bad lines out and count them.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Of resampling.")] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Estimate from logged receipts what the baton route causes, and whether that has changed.

    Assign conversations to arms if you can: then lots decide on the route.  Else receipts are
    weighted until both routes are alike in what is known about them, and the result says how far
    that went.
    """
    from kvbaton.audit.observe.observation import observe as analyse
    from kvbaton.audit.observe.reading import read_log
    from kvbaton.audit.observe.sample import By, Plan

    output = Output(as_json)
    plan = Plan(
        by=By(by.value),
        arms=(text_arm, baton_arm),
        shares=(1 - share, share),
        received=received,
        window=window,
        labels=tuple(label or ()),
    )
    with output.progress("reading receipts") as step:
        log = read_log(_log(receipts), outcomes, skip_bad=skip_bad)
        step.say("comparing")
        said = analyse(log, plan, seed=seed)
    output.result(said, lambda console: _show(console, said))
    if not as_json:
        for warning in said["warnings"]:
            output.warn(warning)


def _log(given: Path | None) -> Path:
    """The log that was named, or the settings' own."""
    path = given or settings.from_environment().receipts
    if path is None:
        raise InputError("no log of receipts is named", hint="name a file, or set KVBATON_RECEIPTS")
    return path


def _show(console: Console, said: JSON) -> None:
    console.print(f"{said['verdict']}: {said['why']}", markup=False)
    _line(console, _counted(said["counts"], said["by"]))
    console.print()
    rows = [_effect_row(name, found) for name, found in said["effects"].items()]
    headings = ["outcome", "receipts", "effect", "95%", "weighted only", "as logged", "p"]
    print_table(console, headings, rows, right=" rrrrrr")
    if said["balance"]:
        console.print()
        _show_balance(console, said)
    if said["drift"]["windows"]:
        console.print()
        _show_drift(console, said["drift"])
    for sentence in _remarks(said):
        _line(console, sentence)


def _line(console: Console, text: str) -> None:
    console.print(text, markup=False)


def _counted(counts: JSON, by: str) -> str:
    how = "arms as assigned" if by == "ab" else "weighted by propensity"
    fell = counts["fallback_share"]
    return (
        f"{counts['compared']} of {counts['receipts']} receipts compared ({how}): "
        f"{counts['compared_baton']} by baton, {counts['compared_text']} by text, "
        f"{counts['conversations']} conversations"
        + ("" if fell is None else f"; {100 * fell:.1f}% of the batons fell back to text")
    )


def _effect_row(name: str, found: JSON) -> list[str]:
    unit = "ratio" if "ratio" in found else "points"
    ends = found[f"{unit}_ci"]
    return [
        name,
        str(found["receipts"]),
        _number(found[unit], unit),
        "unknown" if ends is None else " to ".join(_number(end, unit) for end in ends),
        _number(found[f"weighted_{unit}"], unit),
        _number(found[f"naive_{unit}"], unit),
        "unknown" if found["p"] is None else f"{found['p']:.2g}",
    ]


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "unknown"
    return f"{value:.3f}" if unit == "ratio" else f"{value:+.1f} points"


def _show_balance(console: Console, said: JSON) -> None:
    rows = [[b["feature"], f"{b['before']:+.2f}", f"{b['after']:+.2f}"] for b in said["balance"]]
    after = "compared" if said["by"] == "ab" else "weighted"
    print_table(console, ["difference in (deviations)", "as logged", after], rows, right=" rr")


def _show_drift(console: Console, found: JSON) -> None:
    fell = {one["window"]: f"{100 * one['share']:.1f}%" for one in found["fallback_windows"]}
    rows: list[Sequence[str]] = [
        [
            one["window"],
            str(one["receipts"]),
            _number(one["ratio"], "ratio"),
            _ends(one["ratio_ci"]),
            fell.get(one["window"], ""),
        ]
        for one in found["windows"]
    ]
    print_table(
        console, ["window", "receipts", "TTFT ratio", "95%", "fell back"], rows, right=" rrrr"
    )


def _ends(ends: Any) -> str:
    return "unknown" if ends is None else " to ".join(f"{end:.3f}" for end in ends)


def _remarks(said: JSON) -> list[str]:
    """What else is to be known, one sentence each."""
    found = [f"drift: {alarm['sentence']}" for alarm in said["drift"]["alarms"]]
    if said["drift"]["windows"] and not found:
        found.append("no drift was found")
    if said["overlap"] is not None:
        found.append(
            f"{100 * said['overlap']['outside_share']:.0f}% of the receipts have no counterpart "
            "on the other route"
        )
    if said["placebo"] is not None:
        found.append(
            f"placebo: ratio {said['placebo']['mean_ratio']:.3f} on average, "
            f"{100 * said['placebo']['share_beyond']:.0f}% of {said['placebo']['rounds']} beyond "
            "the estimate"
        )
    if said["sensitivity"] is not None:
        found.append(said["sensitivity"]["note"])
    return found
