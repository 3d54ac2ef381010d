"""``kvbaton advise``: whether handing caches over suits a pipeline at all, with numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from kvbaton import settings
from kvbaton.cli.loading import load_engine
from kvbaton.cli.output import JsonFlag, Output, print_table, visible
from kvbaton.cli.receipt_log import ReceiptsOption, read_log
from kvbaton.cli.relay_command import DTYPE, MODEL, pull_if_missing, store_for
from kvbaton.errors import InputError
from kvbaton.pipelines import Pipeline, TurnResult, default_pipeline, load_pipeline
from kvbaton.policy.advice import Advice, Criterion, HopAdvice, PipelineShape, Suits, advise
from kvbaton.policy.evidence import Seen, seen_in
from kvbaton.policy.shadow import compare_answers
from kvbaton.types import Mode

if TYPE_CHECKING:
    from kvbaton.engines.base import Engine

SHAPES = {
    "advise": """{"pipeline", "verdict": "suits", "suits-partly", "does-not-suit" or "unknown",
 "why", "saved_s", "cost_s",
 "criteria": [{"name", "mark", "sentence", "rule"}],
 "hops": [{"verdict", "why", "agent", "takes", "by_cache", "by_choice", "refused", "tokens",
  "reused_share", "cache_s", "text_s", "ratio", "basis", "faster", "stale", "hops", "models",
  "reasons": {CODE: N}}]}"""
}
"""What ``--json`` prints, for the reference."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("advise")(advise_)


def advise_(
    pipeline: Annotated[
        str | None,
        typer.Argument(
            metavar="PIPELINE.toml",
            help="A pipeline; without one, all agents of the receipts are judged or, where there "
            "are none, the pipeline that comes along.",
        ),
    ] = None,
    receipts: ReceiptsOption = None,
    run: Annotated[
        bool,
        typer.Option(
            "--run", help="Run the pipeline by both routes first, and judge that run, too."
        ),
    ] = False,
    repeat: Annotated[
        int,
        typer.Option(
            "--repeat", metavar="N", min=1, max=100, help="With --run: how often; medians count."
        ),
    ] = 1,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="NAME", help="With --run: the model; by default the pipeline's own."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Say whether cache hand-off suits a pipeline, hop by hop, from what its receipts say.

    What was measured decides: a hop suits where its cache was faster than text by more than 5%.
    Text is known from --run, from shadows, from takes by text (a canary's other arm), or else as
    predicted.  Rules of thumb of others are shown beside, and decide nothing.
    """
    output = Output(as_json)
    if (model is not None or repeat > 1) and not run:
        raise InputError("--model and --repeat say what --run runs", hint="give --run, too")
    logged = _logged(output, receipts)
    named = pipeline is not None or run or not logged
    work = (default_pipeline() if pipeline is None else load_pipeline(pipeline)) if named else None
    takes = list(logged)
    if work is not None and run:
        takes += _run(output, work, model, repeat)
    found = advise(takes, None if work is None else shape_of(work))
    output.result(found.to_json(), lambda console: _show(console, found))


def _logged(output: Output, receipts: Path | None) -> list[Seen]:
    """The takes of a log; of the settings' own log, if there is one."""
    path = receipts or settings.from_environment().receipts
    if path is None or (receipts is None and not path.exists()):
        return []
    return [one for one in map(seen_in, read_log(output, path)) if one is not None]


def shape_of(work: Pipeline) -> PipelineShape:
    """Receivers, the longest way of batons, and who takes slices."""
    depth: dict[str, int] = {}
    for agent in work.agents:  # a sender runs before its receivers
        senders = [depth[edge.sender] for edge in work.edges_to(agent.name)]
        depth[agent.name] = 1 + max(senders, default=-1)
    receivers = tuple(agent.name for agent in work.agents if work.edges_to(agent.name))
    sliced = {edge.receiver for edge in work.edges if edge.mode is Mode.SLICE}
    return PipelineShape(
        name=work.name,
        receivers=receivers,
        longest=max(depth.values(), default=0),
        slices=tuple(name for name in receivers if name in sliced),
    )


def _run(output: Output, work: Pipeline, model: str | None, repeat: int) -> list[Seen]:
    """The takes of runs by both routes."""
    name = model or work.model or MODEL
    pull_if_missing(output, name)
    engine = load_engine(output, name, dtype=work.dtype or DTYPE)
    seen: list[Seen | None] = []
    for n in range(1, repeat + 1):
        with output.progress(f"run {n} of {repeat} of {work.name}, by baton and by text"):
            seen += map(_seen, _turns(work, engine))
    return [one for one in seen if one is not None]


def _turns(work: Pipeline, engine: Engine) -> Sequence[TurnResult]:
    """One run, every turn also by text."""
    from kvbaton.codecs.calibration import EXACT_PROFILE
    from kvbaton.defaults import calibrated, checks_for, default_filters, plan_of
    from kvbaton.pipelines import run_pipeline

    with store_for(work, engine, None) as (store, domain):
        return run_pipeline(
            work,
            engine,
            store,
            compare=True,
            domain=domain,
            deadline_s=settings.from_environment().deadline_s,
            plan=plan_of(engine, work.profile or EXACT_PROFILE),
            calibrations=calibrated,
            checks=checks_for(engine),
            filters=default_filters(),
        ).turns


def _seen(turn: TurnResult) -> Seen | None:
    receipt, text = turn.receipt, turn.text
    if text is None or not text.measured:
        return seen_in(receipt.to_json())
    chosen = str(receipt.decision.get("chosen", "")) or receipt.route.value
    compared = compare_answers(text.ids, turn.ids, route=chosen)
    return seen_in(receipt.to_json(), text_s=text.ttft_s, compared=compared)


# --- for people ---------------------------------------------------------------------------------

_STYLES = {Suits.SUITS: "green", Suits.PARTLY: "yellow", Suits.NOT: "red", Suits.UNKNOWN: ""}
_SAID = {
    Suits.SUITS: "hand-off suits",
    Suits.PARTLY: "hand-off suits partly",
    Suits.NOT: "hand-off does not suit",
    Suits.UNKNOWN: "nobody can tell yet",
}


def _show(console: Console, found: Advice) -> None:
    name = f"{found.pipeline}: " if found.pipeline else ""
    said = visible(f"{name}{_SAID[found.verdict]}: {found.why}", lines=False)
    console.print(said, style=_STYLES[found.verdict] or None, markup=False)
    console.print()
    print_table(console, ("", "", "", "rule of thumb"), map(_criterion, found.criteria))
    if found.hops:
        console.print()
        headings = ("receiver", "takes", "by cache", "tokens", "from cache", "faster", "why")
        print_table(console, headings, map(_hop, found.hops), right=" rrrrr")
    if found.verdict is Suits.UNKNOWN:
        console.print()
        console.print("run it once by both routes: kvbaton advise --run", markup=False)


def _criterion(one: Criterion) -> tuple[str, ...]:
    return one.mark, one.name, one.sentence, one.rule


def _hop(one: HopAdvice) -> tuple[str, ...]:
    hop = one.evidence
    return (
        hop.agent,
        str(hop.takes),
        str(hop.by_cache),
        f"{hop.tokens:,}" if hop.takes else "",
        f"{hop.reused_share:.0%}" if hop.by_cache else "",
        f"{1 / hop.ratio:.1f}x" if hop.ratio else "",
        one.why,
    )
