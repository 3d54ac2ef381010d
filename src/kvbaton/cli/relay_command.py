"""``kvbaton relay``: run a pipeline, by baton or by text, or by both to compare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvbaton import models, settings
from kvbaton.cli import places
from kvbaton.cli.draining import drained_on_sigterm
from kvbaton.cli.inputs import read_text
from kvbaton.cli.loading import load_engine, warm_now
from kvbaton.cli.options import Dtype
from kvbaton.cli.output import JsonFlag, Output, visible
from kvbaton.cli.relay_table import export_svg, show_result
from kvbaton.cli.scratch import scratch_store
from kvbaton.codecs.calibration import EXACT_PROFILE
from kvbaton.errors import StoreError
from kvbaton.pipelines import Pipeline, TurnResult, default_pipeline, load_pipeline
from kvbaton.seals import TrustDomain
from kvbaton.stores import Store, open_store

if TYPE_CHECKING:
    from kvbaton.engines.base import Engine

MODEL, DTYPE = "smollm2-135m", "bfloat16"
SHAPES = {
    "relay": """{"pipeline", "model", "dtype",
 "turns": [{"agent", "mode", "route", "reasons": [{"code", "sentence", "at"?}],
  "context_tokens", "reused_tokens", "computed_tokens", "bytes_moved", "bytes_deduplicated",
  "ttft_s", "text_ttft_s", "output", "text_output",
  "fidelity": {"class", "codec", "calibration"}}],
 "totals": {"wall_s", "text_wall_s", "speedup", "ttft_speedup"}, "not_run"?: ["AGENT"]}"""
}
"""What ``--json`` prints, for the reference."""


class RouteOption(StrEnum):
    """How agents get their context."""

    AUTO = "auto"
    BATON = "baton"
    TEXT = "text"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("relay")(relay)


def relay(
    pipeline: Annotated[
        str | None,
        typer.Argument(
            metavar="PIPELINE.toml", help="A pipeline; by default the one that comes along."
        ),
    ] = None,
    input_file: Annotated[
        str | None,
        typer.Option(
            "--input", metavar="FILE", help="Read this document instead; - is standard input."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help=f"The model of all agents; by default the pipeline's own, or {MODEL}.",
        ),
    ] = None,
    dtype: Annotated[
        Dtype | None,
        typer.Option("--dtype", metavar="D", help=f"By default the pipeline's own, or {DTYPE}."),
    ] = None,
    route: Annotated[
        RouteOption,
        typer.Option(
            "--route",
            metavar="ROUTE",
            help="auto: the baton wherever it can be used; baton: that, or an error; text: never.",
        ),
    ] = RouteOption.AUTO,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Let each agent answer by text, too, in the same run."),
    ] = False,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="URL",
            help="Keep the batons here; by default in shared memory, until the run ends.",
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="NAME",
            help="How caches are encoded; by default the pipeline's own, or exact.",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="FILE",
            help="Rules and roll-out of hand-offs, such as shadows; by default the settings' own.",
        ),
    ] = None,
    conversation: Annotated[
        str | None,
        typer.Option(
            "--conversation", metavar="ID", help="What roll-outs assign the run by; random."
        ),
    ] = None,
    svg: Annotated[
        str | None,
        typer.Option("--svg", metavar="FILE", help="Also draw the table as an SVG picture."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Let agents hand each other their KV caches, and show what that saved.

    With --compare every agent that takes a baton also answers the same tokens by text, prefilled
    from nothing in one go; the first agent's own prefill is the same by both routes and counts in
    both.

    SIGTERM lets the agent that is answering finish and hand off, leaves out those that come after
    it, prints what there is and exits with 0; a second one ends the process at once.
    """
    output = Output(as_json)
    document = read_text(input_file, what="input document") if input_file is not None else None
    work = (
        default_pipeline(document=document)
        if pipeline is None
        else load_pipeline(pipeline, document=document)
    )
    name = model or work.model or MODEL
    pull_if_missing(output, name)
    engine = load_engine(output, name, dtype=dtype.value if dtype else work.dtype or DTYPE)
    from kvbaton.defaults import (
        calibrated,
        checks_for,
        default_filters,
        default_ledger,
        forecasts_of,
        plan_of,
        policy_source,
        receipt_log,
    )
    from kvbaton.pipelines import Surroundings, run_pipeline

    plan = plan_of(engine, profile or work.profile or EXACT_PROFILE)
    if plan is not None:
        warm_now(output, plan, engine.layout.dtype)
    with (
        drained_on_sigterm("the agent that is answering") as stopping,
        _Story(output) as story,
        store_for(work, engine, store) as (opened, domain),
    ):
        result = run_pipeline(
            work,
            engine,
            opened,
            route=route.value,
            compare=compare,
            domain=domain,
            observer=story,
            deadline_s=settings.from_environment().deadline_s,
            plan=plan,
            calibrations=calibrated,
            checks=checks_for(engine),
            filters=default_filters(),
            around=Surroundings(
                policy=policy_source(None if policy is None else Path(policy)),
                forecasts=forecasts_of(engine),
                keeper=None if domain is None else default_ledger(opened, domain),
                log=receipt_log(),
                conversation=conversation or "",
            ),
            stopping=stopping,
        )
    if svg is not None:
        _write(Path(svg), export_svg(result))
    output.result(result.to_json(), lambda console: show_result(console, result))


def pull_if_missing(output: Output, name: str) -> None:
    """Fetch a built-in model that is not on this machine yet."""
    chosen = settings.from_environment()
    missing = [s for s in models.list_models(data_dir=chosen.data_dir) if not s.installed]
    if name not in [status.model.name for status in missing]:
        return
    with output.progress(f"pulling {name}") as step:

        def show(report: models.Progress) -> None:
            step.say(f"{name}: {report.stage.value}", report.done_bytes, report.total_bytes)

        models.pull(name, data_dir=chosen.data_dir, cache_dir=chosen.cache_dir, progress=show)


@contextmanager
def store_for(
    work: Pipeline, engine: Engine, given: str | None
) -> Iterator[tuple[Store, TrustDomain | None]]:
    """The store that is named, with the trust domain of the settings; else one for this run."""
    if given is not None:
        with open_store(given) as store:
            yield store, places.trust_domain()
        return
    whole_windows = engine.layout.cache_bytes(engine.max_tokens) * min(2, len(work.agents))
    with scratch_store(whole_windows) as store:
        yield store, None


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}") from error


class _Story:
    """Tells a run as it happens: progress on standard error, each answer as soon as it is there."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._waiting = ExitStack()

    def __enter__(self) -> _Story:
        return self

    def __exit__(self, *details: object) -> None:
        self._waiting.close()

    def __call__(self, event: str, facts: Mapping[str, Any]) -> None:
        """Hear of an event."""
        if event == "turn-started":
            sender = facts["sender"]
            doing = f"goes on from {sender}'s baton" if sender else "reads and answers"
            self._wait(f"{facts['agent']} {doing}")
        elif event == "text-started":
            self._wait(f"{facts['agent']} answers by text, to compare")
        elif event == "turn-ended":
            self._tell(facts["turn"])
        elif event == "compared":
            self._waiting.close()

    def _wait(self, label: str) -> None:
        self._waiting.close()
        self._waiting.enter_context(self._output.progress(label))

    def _tell(self, turn: TurnResult) -> None:
        self._waiting.close()
        for warning in turn.receipt.warnings:
            self._output.warn(f"{turn.agent}: {warning.sentence}")
        if not self._output.as_json:
            out = self._output.out
            out.print(f"[bold]{turn.agent}[/bold] [dim]({turn.receipt.route.value})[/dim]")
            out.print(visible(turn.output.strip()) + "\n", markup=False)
