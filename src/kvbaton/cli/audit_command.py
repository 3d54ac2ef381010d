"""``kvbaton audit``: what handing a cache over causes, in speed and in quality."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from kvbaton import settings
from kvbaton.cli.audit_observe import SHAPES as OBSERVE_SHAPES
from kvbaton.cli.audit_observe import observe
from kvbaton.cli.loading import load_engine, warm_now
from kvbaton.cli.options import Dtype, DtypeOption
from kvbaton.cli.output import JsonFlag, Output, print_table
from kvbaton.cli.scratch import scratch_store
from kvbaton.errors import InputError
from kvbaton.types import JSON

if TYPE_CHECKING:
    from kvbaton.audit.case import Equipment
    from kvbaton.audit.plan import Plan
    from kvbaton.bench.report import Table

_RESULT = """{"format", "seed", "units", "questions", "model", "dtype", "pairs", "environment",
 "tasks", "plan", "noise_floor_kl", "treatments": {"T3": {"label", "role", "reference",
 "ttft_ratio", "ttft_ratio_ci", "e2e_ratio", "e2e_ratio_ci", "accuracy", "accuracy_t0",
 "accuracy_difference_ci_points", "kl", "kl_multiple", "flips", "bytes_moved", "flops",
 "quality_verdict", "speed_verdict", "verdict", "why", "units_needed", ...}, ...},
 "content": {"points", "ci_points", "verdict", "why"}, "strata": [{"by", "value", "treatment",
 "verdict", ...}], "mixed_model", "attribution", "break_even", "break_even_tokens",
 "flip_examples", "failed", "warnings", "overhead_share", "wall_s", "files"}"""
SHAPES = {
    "plan": """{"plan", "digest", "trials", "treatments": [{"name", "label", "cache", "run"}],
 "power": {"units", "questions", "power", "attainable_margin_points", "bound_points",
 "bound_units_only_points"}, "units_needed", "file"}""",
    "run": _RESULT,
    "report": _RESULT,
    "observe": OBSERVE_SHAPES["audit observe"],
}
"""What ``--json`` prints, for the reference."""

RUNS = Path("kvbaton-audits")
"""Where runs lie that are given no folder."""

ModelChoice = Annotated[
    str,
    typer.Option("--model", metavar="NAME", help="Model of all agents: name, folder, or hub id."),
]
TasksOption = Annotated[
    str,
    typer.Option("--tasks", metavar="SET", help="A built-in task set, or a JSONL file of yours."),
]
UnitsOption = Annotated[
    int, typer.Option("--units", metavar="N", min=1, help="Tasks; each gets every treatment.")
]
QuestionsOption = Annotated[
    int,
    typer.Option("--questions", metavar="N", min=0, help="Per unit; 0: as the set has them."),
]
LengthsOption = Annotated[
    str,
    typer.Option("--lengths", metavar="N,...", help="Tokens of contexts; by default the set's."),
]
TreatmentsOption = Annotated[
    str,
    typer.Option(
        "--treatments",
        metavar="NAME,...",
        help="T0 to T5, T5-shuffled, T3:PROFILE, S:prompt, S:generated, S:all, S:...+repair, Z.",
    ),
]
RepeatsOption = Annotated[
    int, typer.Option("--repeats", metavar="N", min=1, help="Timed trials per treatment and unit.")
]
FixedOption = Annotated[
    int, typer.Option("--fixed-tokens", metavar="N", min=1, help="For which answers are timed.")
]
MarginOption = Annotated[
    float,
    typer.Option("--margin", metavar="POINTS", help="Accuracy within it counts as the same."),
]
LadderOption = Annotated[
    str,
    typer.Option(
        "--ladder", metavar="N,...", help="Context lengths for the break-even; none: no search."
    ),
]
SeedOption = Annotated[
    int, typer.Option("--seed", metavar="N", help="Decides tasks and the order of trials.")
]
ExcerptsFlag = Annotated[
    bool,
    typer.Option("--excerpts", help="Record the first 50 characters of what senders read."),
]

_TREATMENTS = "T0,T1,T2,T3,T4,T5"
_LADDER = "32,64,128,256,512,1024,2048"


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(
        help="Does it pay? A randomized experiment on your model and tasks, with controls.",
        no_args_is_help=True,
    )
    group.command("plan")(audit_plan)
    group.command("run")(audit_run)
    group.command("report")(audit_report)
    group.command("observe")(observe)
    app.add_typer(group, name="audit")


def audit_plan(
    model: ModelChoice = "smollm2-135m",
    tasks: TasksOption = "private-facts",
    units: UnitsOption = 40,
    questions: QuestionsOption = 0,
    lengths: LengthsOption = "",
    treatments: TreatmentsOption = _TREATMENTS,
    repeats: RepeatsOption = 3,
    fixed_tokens: FixedOption = 8,
    margin: MarginOption = 5.0,
    ladder: LadderOption = _LADDER,
    dtype: DtypeOption = Dtype.BFLOAT16,
    seed: SeedOption = 1,
    excerpts: ExcerptsFlag = False,
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="FILE", help="Write the plan, to run it later."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Say what an audit would do, and what it could show, before anything is run.

    The power is that of showing "equally good within the margin" if the cache does no harm.
    """
    output = Output(as_json)
    plan = _plan(
        model=model, tasks=tasks, units=units, questions=questions, lengths=lengths,
        treatments=treatments, repeats=repeats, fixed_tokens=fixed_tokens, margin=margin,
        ladder=ladder, dtype=dtype, seed=seed, excerpts=excerpts,
    )  # fmt: skip
    result = _foretold(plan)
    if write is not None:
        from kvbaton.audit.plan import write_plan

        write_plan(plan, write)
        result["file"] = str(write)
    output.result(result, lambda console: _show_plan(console, result))


def audit_run(
    model: ModelChoice = "smollm2-135m",
    tasks: TasksOption = "private-facts",
    units: UnitsOption = 40,
    questions: QuestionsOption = 0,
    lengths: LengthsOption = "",
    treatments: TreatmentsOption = _TREATMENTS,
    repeats: RepeatsOption = 3,
    fixed_tokens: FixedOption = 8,
    margin: MarginOption = 5.0,
    ladder: LadderOption = _LADDER,
    dtype: DtypeOption = Dtype.BFLOAT16,
    seed: SeedOption = 1,
    excerpts: ExcerptsFlag = False,
    plan_file: Annotated[
        Path | None,
        typer.Option(
            "--plan", metavar="FILE", help="Run this plan; the options above say no more."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FOLDER", help="The run's folder; by default one named by its plan."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Run an audit: every task by text, by cache, and by controls, in a random order.

    A run that was interrupted goes on where it was when the same command is given again.  At the
    end the folder holds report.html, result.json and trials.csv, and the break-even lengths are
    kept for the policy.
    """
    output = Output(as_json)
    plan = (
        _read_plan(plan_file)
        if plan_file is not None
        else _plan(
            model=model, tasks=tasks, units=units, questions=questions, lengths=lengths,
            treatments=treatments, repeats=repeats, fixed_tokens=fixed_tokens, margin=margin,
            ladder=ladder, dtype=dtype, seed=seed, excerpts=excerpts,
        )
    )  # fmt: skip
    _require_libraries()
    _warn_of_power(output, _foretold(plan))
    folder = out or RUNS / plan.digest[:12]
    _run(output, plan, folder)
    _report(output, [folder], folder)


def audit_report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="Folders of runs; several make pairs.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="Where to write; by default the run's own."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Analyse one run, or several together, and write report.html, result.json and tables.

    A run that is not finished yet is analysed as far as it is.
    """
    _require_libraries()
    if len(runs) > 1 and out is None:
        raise InputError(
            "several runs need a folder of their own to report to", hint="--out FOLDER"
        )
    _report(Output(as_json), runs, out or runs[0])


# --- plan --------------------------------------------------------------------------------------


def _plan(
    *,
    tasks: str,
    lengths: str,
    treatments: str,
    margin: float,
    ladder: str,
    dtype: Dtype,
    **rest: Any,
) -> Plan:
    from kvbaton.audit.plan import Plan

    return Plan(
        tasks=tasks if tasks.count("/") == 0 and not Path(tasks).is_file() else str(Path(tasks)),
        lengths=_numbers(lengths, "--lengths"),
        treatments=_parts(treatments),
        margin_points=margin,
        ladder=_numbers(ladder, "--ladder"),
        dtype=dtype.value,
        **rest,
    )


def _read_plan(path: Path) -> Plan:
    from kvbaton.audit.plan import read_plan

    return read_plan(path)


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _numbers(text: str, option: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in _parts(text) if part != "none")
    except ValueError:
        raise InputError(f"{option} takes whole numbers, not {text[:40]!r}") from None


def _foretold(plan: Plan) -> JSON:
    """The plan in JSON, with what it could show."""
    _require_libraries()
    from kvbaton.audit.foretelling import foretold

    return foretold(plan)


def _require_libraries() -> None:
    """Fail before the work, not after it.

    Raises
    ------
    InputError
        scipy or statsmodels or matplotlib is not installed.
    """
    from importlib.util import find_spec

    missing = [name for name in ("scipy", "statsmodels", "matplotlib") if find_spec(name) is None]
    if missing:
        raise InputError(
            f"an audit needs {', '.join(missing)}, which is not installed",
            hint="pip install 'kvbaton[audit]'",
        )


def _warn_of_power(output: Output, foretold: JSON) -> None:
    if foretold["warning"]:
        output.warn(foretold["warning"])


def _show_plan(console: Console, result: JSON) -> None:
    plan, power = result["plan"], result["power"]
    console.print(
        f"{plan['model']} in {plan['dtype']}, {plan['tasks']}: {power['units']} units of "
        f"{power['questions']} questions, {result['trials']} trials, seed {plan['seed']}",
        markup=False,
    )
    rows = [[t["name"], t["label"], t["cache"], t["run"]] for t in result["treatments"]]
    print_table(console, ["treatment", "", "a cache stands for", "run through the model"], rows)
    console.print(
        f"chance to show equal quality within {plan['margin_points']:g} points, if it is equal: "
        f"{100 * power['power']:.0f}%",
        markup=False,
    )
    console.print(
        f"if no answer turns, a loss of up to {power['bound_points']:.1f} points stays possible "
        f"({power['bound_units_only_points']:.1f} if all questions of a unit turn together)",
        markup=False,
    )
    if result["warning"]:
        console.print(result["warning"], style="yellow", markup=False)
    if result["file"]:
        console.print(f"kvbaton audit run --plan {result['file']}", markup=False)


# --- run ---------------------------------------------------------------------------------------


def _run(output: Output, plan: Plan, folder: Path) -> None:
    """Do what is left of a run, and keep its break-even lengths."""
    from kvbaton.audit.journal import Journal
    from kvbaton.audit.launch import break_even_record, tasks_for
    from kvbaton.audit.runner import Audit
    from kvbaton.policy.profit import store_break_even

    engine = load_engine(output, plan.model, dtype=plan.dtype)
    equipment = _equipment(output, plan, engine)
    journal = Journal(folder, plan)
    with journal.alone():
        tasks = journal.tasks(lambda: tasks_for(plan, engine.tokenizer, made_for=engine.name))
        with output.progress("audit") as step:
            ran = Audit(plan, tasks, equipment, journal, told=step.say).run()
        record = break_even_record(journal.header, journal.records) if ran else None
    if record is not None:
        store_break_even(record, settings.from_environment().data_dir)


def _equipment(output: Output, plan: Plan, engine: Any) -> Equipment:
    """The model with stores in shared memory, as agents of this machine are set up."""
    from kvbaton import defaults
    from kvbaton.audit.case import Equipment
    from kvbaton.audit.treatments import expanded
    from kvbaton.seals import TrustDomain
    from kvbaton.wire.digests import DomainKeys

    treatments = expanded(plan.treatments)
    for profile in {treatment.profile for treatment in treatments}:
        coded = defaults.plan_of(engine, profile)
        if coded is not None:
            warm_now(output, coded, engine.layout.dtype)
    return Equipment(
        engine,
        TrustDomain("audit", DomainKeys(secrets.token_bytes(32))),
        lambda profile: defaults.plan_of(engine, profile),
        defaults.calibrated,
        defaults.watch_for(engine),
        lambda: scratch_store(2 * engine.layout.cache_bytes(engine.max_tokens)),
    )


# --- report ------------------------------------------------------------------------------------


def _report(output: Output, folders: list[Path], out: Path) -> None:
    from kvbaton.audit.analysis import analyse, read_run
    from kvbaton.audit.report import write_report

    runs = [read_run(folder) for folder in folders]
    with output.progress("analysing"):
        analysed: JSON = dict(analyse(runs))
        trials = [line for run in runs for line in (run.header, *run.records)]
        written = write_report(analysed, out, trials=trials)
    result = analysed | {"files": {"html": str(written.html), "json": str(written.json)}}
    output.result(result, lambda console: _show(console, result))


def _show(console: Console, result: JSON) -> None:
    from kvbaton.audit.report import terminal

    for sentence in terminal.sentences(result):
        console.print(sentence, markup=False)
    console.print()
    tables: list[Table] = [terminal.treatments_table(result), terminal.strata_table(result)]
    for table in tables:
        right = " " * table.labels + "r" * (len(table.headings) - table.labels)
        print_table(console, table.headings, table.rows, right=right)
        console.print()
    console.print(result["files"]["html"], markup=False)
