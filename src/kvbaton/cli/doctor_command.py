"""``kvbaton doctor``: every compatibility gate of one model, or between two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from kvbaton import models, settings
from kvbaton.cli.loading import load_engine
from kvbaton.cli.options import Dtype, DtypeOption
from kvbaton.cli.output import JsonFlag, Output, print_table
from kvbaton.types import JSON

if TYPE_CHECKING:
    from kvbaton.doctor import Facts, Gate, NoiseFloor

SHAPES = {
    "doctor": """{"models", "dtype", "verdict", "gates": [{"gate", "verdict", "sentence",
 "values"}], "modes": [{"gate", "verdict", "sentence", "values"}], "noise_floor": {"function",
 "model", "dtype", "kl", "flips", "tokens", "chunk", "positions", "texts": [{"text", "kl_mean",
 "kl_median", "kl_max", "flips"}], "producer", "created_s"}}"""
}
"""What ``--json`` prints, for the reference."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(
    model_a: Annotated[
        str, typer.Argument(metavar="MODEL_A", help="The sender's model: name, folder or hub id.")
    ],
    model_b: Annotated[
        str | None, typer.Argument(metavar="[MODEL_B]", help="The receiver's model.")
    ] = None,
    dtype: DtypeOption = Dtype.BFLOAT16,
    noise_floor: Annotated[
        bool,
        typer.Option(
            "--noise-floor", help="Show MODEL_A's noise floor; measure it the first time."
        ),
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Measure the noise floor anew, and keep the new one.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Ask every compatibility gate, of one model or between two.

    Each is ok, convertible later (text is used until then) or blocked, with the reason.  The exit
    code is 0 whatever the gates say.
    """
    output = Output(as_json)
    names = [model_a] if model_b is None else [model_a, model_b]
    facts = _describe(output, names, dtype)
    from kvbaton.doctor import mode_gates, model_gates, pair_gates
    from kvbaton.doctor.gates import worst

    gates = model_gates(facts[0]) if model_b is None else pair_gates(facts[0], facts[1])
    modes: tuple[Gate, ...] = () if model_b is None else mode_gates(gates)
    floor = None
    if noise_floor or again:
        floor = _noise_floor(output, model_a, facts[0].name, dtype, again=again)
    said: JSON = {
        "models": [one.name for one in facts],
        "dtype": dtype.value,
        "verdict": worst(gate.verdict for gate in gates).value,
        "gates": [gate.to_json() for gate in gates],
        "modes": [gate.to_json() for gate in modes],
        "noise_floor": None if floor is None else floor.to_json(),
    }
    output.result(said, lambda console: _show(console, facts, gates, modes, floor))


def _describe(output: Output, names: Sequence[str], dtype: Dtype) -> list[Facts]:
    """Read configurations and tokenizers; names that mean nothing fail before torch is imported."""
    chosen = settings.from_environment()
    sources = [models.resolve(name, data_dir=chosen.data_dir) for name in names]
    with output.progress(f"reading {' and '.join(names)}"):
        from kvbaton.doctor import describe
        from kvbaton.engines.transformers.quiet import silence

        silence()
        return [
            describe(s.path_or_id, name=s.name, dtype=dtype.value, offline=chosen.offline)
            for s in sources
        ]


def _noise_floor(output: Output, given: str, name: str, dtype: Dtype, *, again: bool) -> NoiseFloor:
    """The stored noise floor, or a new one that is stored."""
    engine = load_engine(output, given, dtype=dtype.value)
    engine.name = name
    data_dir = settings.from_environment().data_dir
    from kvbaton import doctor as checks

    found = None if again else checks.stored_noise_floor(engine, data_dir)
    if found is not None:
        return found
    with output.progress("measuring the noise floor") as step:
        floor = checks.noise_floor(engine, progress=step.say)
    checks.store_noise_floor(floor, data_dir)
    return floor


def _show(
    console: Console,
    facts: Sequence[Facts],
    gates: Sequence[Gate],
    modes: Sequence[Gate],
    floor: NoiseFloor | None,
) -> None:
    names = [one.name for one in facts]
    _table(console, "gate", names, gates)
    if modes:
        console.print()
        _table(console, "mode", [], modes)
    if floor is not None:
        console.print()
        _show_floor(console, floor)


def _table(console: Console, what: str, names: Sequence[str], gates: Sequence[Gate]) -> None:
    rows = []
    for gate in gates:
        values = [*gate.values, *[""] * len(names)][: len(names)]
        rows.append([gate.name, gate.verdict.value, *values, gate.sentence])
    print_table(console, [what, "verdict", *names, "why"], rows)


def _show_floor(console: Console, floor: NoiseFloor) -> None:
    console.print(
        f"noise floor of {floor.model} in {floor.dtype}: KL {floor.kl:.2e} nats, "
        f"{100 * floor.flips:.1f}% other argmaxes (chunks of {floor.chunk} against one shot, "
        f"{floor.tokens} tokens, {floor.positions} positions per text)",
        markup=False,
    )
    rows = [
        [text.text, f"{text.kl_mean:.2e}", f"{text.kl_max:.2e}", f"{100 * text.flips:.1f}%"]
        for text in floor.texts
    ]
    print_table(console, ["text", "mean KL", "largest KL", "flips"], rows, right=" rrr")
