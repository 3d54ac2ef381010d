"""``kvbaton bench fidelity``: what codecs, slices, repair and hops cost, against text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from kvbaton import settings
from kvbaton.cli.bench_tables import show_tables
from kvbaton.cli.loading import load_engine
from kvbaton.cli.options import Dtype, DtypeOption
from kvbaton.cli.output import JsonFlag, Output
from kvbaton.errors import InputError
from kvbaton.types import JSON

if TYPE_CHECKING:
    from kvbaton.bench.fidelity.run import KnownFloors
    from kvbaton.bench.fidelity.session import Scope

SHAPES = {
    "fidelity": """{"model", "noise_floor_kl", "bf16_noise_floor_kl", "rows": [{"profile", "mode",
 "tokens", "dtype", "kl", "kl_worst", "worst_text", "texts", "flips", "ppl_ratio",
 "bits_per_element", "hops", "qa_accuracy", "qa_text_accuracy", "recompute_fraction",
 "noise_multiple", "bf16_noise_multiple", "calibrated"?, "by_text"?, "slices"?, "chooser"?,
 "splice_s"?, "mask_s"?, "repair_s"?, "prefill_s"?, "spans"?, "includes_private"?, "questions"?,
 "right"?, "text_right"?, "private_accuracy"?, "private_right"?, "private_questions"?,
 "inherited_bit_identical"?, "kl_once"?, "kl_over_once"?}],
 "takes": [{"tokens", "dtype", "bytes_per_s", "bytes", "seconds", "first_token_s", "ratio",
 "first_token_ratio"}],
 "costs": [{"what", "dtype", "share", ...}],
 "targets": [{"target", "limit", "at_least", "value", "met"}], "settings", "environment"}"""
}
"""What ``--json`` prints, for the reference."""

_QUICK_TEXTS, _QUICK_QUESTIONS = 2, 60


def bench_fidelity(
    model: Annotated[
        str, typer.Option("--model", metavar="NAME", help="Built-in name, folder, or hub id.")
    ] = "smollm2-135m",
    tokens: Annotated[
        str, typer.Option("--tokens", metavar="N,...", help="Tokens of context.")
    ] = "512,1024,2048,4096,7000",
    profiles: Annotated[
        str, typer.Option("--profiles", metavar="NAME,...", help="Codec profiles.")
    ] = "exact,near-lossless,layered,compact,tiny,shallow",
    modes: Annotated[
        str, typer.Option("--modes", metavar="NAME,...", help="Parts of the benchmark.")
    ] = "continue,slice,questions,hops,takes,costs",
    questions: Annotated[
        int, typer.Option("--questions", metavar="N", min=1, help="About private facts.")
    ] = 200,
    document_tokens: Annotated[
        int,
        typer.Option("--document-tokens", metavar="N", min=1, help="Of what is asked about."),
    ] = 300,
    texts: Annotated[
        int, typer.Option("--texts", metavar="N", min=1, help="Kinds of text, at most.")
    ] = 5,
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="N", min=1, help="Timed runs; the best counts.")
    ] = 5,
    dtype: DtypeOption = Dtype.FLOAT32,
    keep: Annotated[
        Path | None,
        typer.Option(
            "--keep",
            metavar="FILE",
            help="Keep every measurement in this file, and measure nothing that it holds.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="512 tokens, two texts and 60 questions: minutes.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Write a picture (matplotlib).")
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the tables as Markdown, for a page.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """What batons cost in quality: codecs, slices with and without repair, hops, against text.

    KL of the next token over 128 positions on five kinds of text, flips and perplexity; questions
    about private facts; bytes, and the time that it all takes.  Losses are those of this model in
    this dtype.  Takes an hour and more; --quick and --modes take less.
    """
    from kvbaton.bench.fidelity.session import Scope

    output = Output(as_json)
    scope = Scope(
        tokens=tuple(_number(part, "--tokens") for part in _parts(tokens)),
        profiles=_parts(profiles),
        modes=_parts(modes),
        questions=questions,
        document_tokens=document_tokens,
        texts=texts,
        repeats=repeats,
    )
    if plot is not None:
        from kvbaton.bench.plot import require_matplotlib

        require_matplotlib()
    result = _measured(output, model, dtype, _quick(scope) if quick else scope, keep)
    if plot is not None:
        from kvbaton.bench.fidelity.frontier import plot_frontier

        plot_frontier([result], plot)
    output.result(result, lambda console: _show(console, result, markdown))


def _quick(scope: Scope) -> Scope:
    """Less of everything."""
    return replace(
        scope,
        tokens=(512,),
        questions=min(scope.questions, _QUICK_QUESTIONS),
        texts=min(scope.texts, _QUICK_TEXTS),
        slice_tokens=512,
        counts=(1, 3),
        fractions=(0.3,),
        hops=(1, 3),
        take_tokens=512,
    )


def _measured(output: Output, model: str, dtype: Dtype, scope: Scope, keep: Path | None) -> JSON:
    chosen = settings.from_environment()
    engine = load_engine(output, model, dtype=dtype.value)
    from kvbaton.bench.fidelity.run import measure
    from kvbaton.codecs.calibration import stored_calibrations

    with output.progress("bench fidelity") as step:
        return measure(
            engine,
            scope,
            calibrations=stored_calibrations(engine.function.digest, chosen.data_dir),
            floors=_floors(engine, chosen.data_dir),
            journal=keep,
            progress=step.say,
        )


def _floors(engine: object, data_dir: Path) -> KnownFloors:
    from kvbaton.bench.fidelity.run import KnownFloors
    from kvbaton.doctor.noise import model_noise_floor, stored_noise_floor

    own = stored_noise_floor(engine, data_dir)
    other = model_noise_floor(str(getattr(engine, "name", "")), "BF16", data_dir)
    return KnownFloors(own.kl if own else None, other.kl if other else None)


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _number(text: str, option: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{option} takes whole numbers, not {text[:40]!r}") from None


def _show(console: Console, result: JSON, markdown: bool) -> None:
    from kvbaton.bench.fidelity.tables import fidelity_tables
    from kvbaton.bench.report import environment_line

    line = f"{result['model']}: {environment_line(result)}"
    show_tables(console, line, fidelity_tables(result), markdown)
