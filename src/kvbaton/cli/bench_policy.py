"""``kvbaton bench policy``: whether the policy picks the fastest route."""

from __future__ import annotations

from typing import Annotated

import typer

from kvbaton.cli.bench_tables import MarkdownFlag, show_tables
from kvbaton.cli.loading import load_engine
from kvbaton.cli.options import Dtype, DtypeOption
from kvbaton.cli.output import JsonFlag, Output
from kvbaton.cli.policy_command import ModelName, measurable, numbers, relays_for

SHAPES = {
    "policy": """{"model", "rows": [{"tokens", "profile", "bandwidth_mb_s", "chosen", "fastest",
 "predicted_s", "actual_s", "predicted_text_s", "predicted_cache_s", "text_s", "cache_s", "regret",
 "right", "near"}], "best_choice_share", "mean_regret", "near_share", "always_text", "always_cache",
 "prediction_error", "environment", "settings"}"""
}
"""What ``--json`` prints, for the reference."""


def bench_policy(
    model: ModelName = "smollm2-135m",
    dtype: DtypeOption = Dtype.BFLOAT16,
    tokens: Annotated[
        str, typer.Option("--tokens", metavar="N,...", help="Lengths of context.")
    ] = "128,256,512,1024,2048",
    multiples: Annotated[
        str,
        typer.Option(
            "--multiples",
            metavar="X,...",
            help="Bandwidths of each length and profile, in multiples of its break-even.",
        ),
    ] = "0.33,0.45,0.65,1.05,1.6,3,8,30",
    profiles: Annotated[
        list[str] | None,
        typer.Option("--profile", metavar="NAME", help="Beside exact; may be repeated."),
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="N", min=1, help="Timed takes; medians count.")
    ] = 3,
    markdown: MarkdownFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Choices of the policy against what turns out to be fastest.

    The machine is calibrated at other lengths; then text and caches are really taken, from stores
    that are as slow as each point of the grid says.  Takes ten to fifteen minutes.
    """
    from kvbaton.bench.policy import PolicyBench, measure_policy
    from kvbaton.bench.policy_report import policy_tables
    from kvbaton.bench.report import environment_line

    output = Output(as_json)
    lengths, factors = numbers(tokens, "--tokens", int), numbers(multiples, "--multiples", float)
    engine = load_engine(output, model, dtype=dtype.value)
    named, left_out = measurable(engine, profiles)
    for name in left_out:
        output.warn(f"{name} is left out: it was not measured on this model (kvbaton tune-codec)")
    plan = PolicyBench(named, tokens=lengths, multiples=factors, repeats=repeats)
    with output.progress("bench policy") as step:
        result = measure_policy(engine, relays_for(engine), plan, step.say)
    line = f"{result['model']}: {environment_line(result)}"
    tables = policy_tables(result)
    output.result(result, lambda console: show_tables(console, line, tables, markdown))
