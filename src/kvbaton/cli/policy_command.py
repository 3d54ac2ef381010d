"""``kvbaton policy``: measure this machine, and show which route is worth it where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from kvbaton import settings
from kvbaton.cli.loading import load_engine
from kvbaton.cli.options import Dtype, DtypeOption, StoreOption
from kvbaton.cli.output import JsonFlag, Output, bytes_text, print_table
from kvbaton.cli.rollback_command import policy_rollback
from kvbaton.errors import InputError, NotCalibrated

if TYPE_CHECKING:
    from kvbaton.bench.calibrating import RelayOf
    from kvbaton.policy.break_even_map import BreakEvenMap
    from kvbaton.policy.speeds import Speeds

SHAPES = {
    "calibrate": """{"file", "seconds", "left_out", "speeds": {"host", "function", "model",
 "created_s", "layers", "token_bytes", "prefill": [{"tokens", "seconds"}], "past_s", "pair_s",
 "generate_s", "overhead", "opening", "verify", "probe", "attach", "align", "recompute", "codecs":
 {PROFILE: {"encode", "decode", "token_bytes"}}, "stores": {URL: {"open_s", "read_s",
 "get_bytes_per_s", "put_bytes_per_s"}}, "text_spread", "cache_spread"}}""",
    "map": """{"model", "tokens", "bandwidths_mb_s", "new_tokens", "routes", "cells":
 [{"tokens", "bandwidth_mb_s", "winner", "ttft_s": {ROUTE: S}}], "even": [{"route", "tokens",
 "bandwidth_mb_s"}], "measured_to", "stores": {URL: {"open_s", "read_s", "get_bytes_per_s",
 "put_bytes_per_s"}}}""",
}
"""What ``--json`` prints, for the reference."""

_MODEL = "smollm2-135m"
ModelName = Annotated[
    str, typer.Option("--model", metavar="NAME", help="Built-in name, folder, or hub id.")
]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(
        help="Which route is worth it: measured on this machine.", no_args_is_help=True
    )
    group.command("calibrate")(policy_calibrate)
    group.command("map")(policy_map)
    group.command("rollback")(policy_rollback)
    app.add_typer(group, name="policy")


# --- calibrate ---------------------------------------------------------------------------------


def policy_calibrate(
    model: ModelName = _MODEL,
    dtype: DtypeOption = Dtype.BFLOAT16,
    store: StoreOption = None,
    profiles: Annotated[
        list[str] | None,
        typer.Option(
            "--profile",
            metavar="NAME",
            help="Profile to measure beside exact; may be repeated; by default all that were "
            "measured on the model (kvbaton tune-codec).",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure how fast this machine reads, encodes, decodes, stores and fetches.

    Takes under a minute.  From then on takes choose the route that is predicted to be fastest,
    and their receipts keep the figures up to date.  Measure again after a change of hardware; what
    was measured of other stores is kept.
    """
    import time

    from kvbaton.bench.calibrating import CalibrationPlan, calibrate
    from kvbaton.policy.speed_files import Kept, load_speeds, store_speeds
    from kvbaton.stores import open_store

    output, chosen = Output(as_json), settings.from_environment()
    engine = load_engine(output, model, dtype=dtype.value)
    named, left_out = measurable(engine, profiles)
    for name in left_out:
        output.warn(f"{name} is left out: it was not measured on this model (kvbaton tune-codec)")
    with output.progress("calibrating") as step, open_store(store or chosen.store) as opened:
        started = time.perf_counter()
        plan = CalibrationPlan(named)
        speeds = calibrate(engine, opened, relays_for(engine), plan, step.say)
        seconds = time.perf_counter() - started
    before, trouble = load_speeds(chosen.data_dir, speeds.function)
    if trouble is not None:
        output.warn(f"{trouble.sentence}: what stood there is replaced")
    if before is not None:
        speeds = replace(speeds, stores={**before.speeds.stores, **speeds.stores})
    kept = Kept(speeds) if before is None else Kept(speeds, lengths=before.lengths)
    file = store_speeds(kept, chosen.data_dir)
    said = {
        "file": str(file),
        "seconds": seconds,
        "left_out": list(left_out),
        "speeds": speeds.to_json(),
    }
    output.result(said, lambda console: _show_speeds(console, speeds, file, seconds))


def measurable(
    engine: Any, profiles: Sequence[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Profiles to measure, and those left out because nobody asked for them by name."""
    from kvbaton import defaults
    from kvbaton.codecs.profiles import RECOMMENDED
    from kvbaton.policy.speeds import EXACT_CODEC

    if profiles:
        for name in profiles:
            defaults.plan_of(engine, name)  # one that was asked for and cannot be had is an error
        return (EXACT_CODEC, *(one for one in dict.fromkeys(profiles) if one != EXACT_CODEC)), ()
    found, missing = [EXACT_CODEC], []
    for name in RECOMMENDED:
        try:
            defaults.plan_of(engine, name)
        except NotCalibrated:
            missing.append(name)
        else:
            found.append(name)
    return tuple(dict.fromkeys(found)), tuple(missing)


def relays_for(engine: Any) -> RelayOf:
    """Relays that encode by what was measured on a model, and decide nothing."""
    from kvbaton import defaults
    from kvbaton.bench.calibrating import plain_relays

    return plain_relays(
        engine,
        lambda name: defaults.plan_of(engine, name),
        defaults.calibrated,
        defaults.checks_for(engine),
    )


def _show_speeds(console: Console, speeds: Speeds, file: Path, seconds: float) -> None:
    console.print(f"{speeds.model}, measured in {seconds:.0f} s", markup=False)
    console.print()
    prefill = [
        [f"{knot.tokens:,}", f"{1e3 * knot.seconds:.0f} ms", f"{knot.tokens / knot.seconds:,.0f}"]
        for knot in speeds.prefill
    ]
    print_table(console, ["tokens", "prefill", "tokens/s"], prefill, right="rrr")
    console.print()
    rows = [
        [
            name,
            f"{one.token_bytes:,.0f}",
            _rate(one.encode.unit_s),
            _rate(one.decode.unit_s),
        ]
        for name, one in sorted(speeds.codecs.items(), key=lambda item: -item[1].token_bytes)
    ]
    print_table(
        console, ["profile", "bytes/token", "encode tokens/s", "decode tokens/s"], rows,
        right=" rrr",
    )  # fmt: skip
    console.print()
    print_table(console, _STORE_HEADINGS, _stores(speeds), right=" rrrr")
    console.print()
    console.print(f"kept in {file}", markup=False)


_STORE_HEADINGS = ["store", "open", "ask", "get", "put"]


def _stores(speeds: Speeds) -> list[list[str]]:
    return [
        [
            url,
            f"{1e3 * one.open_s:.2f} ms",
            f"{1e3 * one.read_s:.3f} ms",
            f"{bytes_text(round(one.get_bytes_per_s))}/s",
            f"{bytes_text(round(one.put_bytes_per_s))}/s",
        ]
        for url, one in sorted(speeds.stores.items())
    ]


def _rate(unit_s: float) -> str:
    return f"{1 / unit_s:,.0f}" if unit_s > 1e-9 else "-"


# --- map ---------------------------------------------------------------------------------------


def policy_map(
    model: ModelName = _MODEL,
    store: StoreOption = None,
    tokens: Annotated[
        str, typer.Option("--tokens", metavar="N,...", help="Lengths of context.")
    ] = "64,128,256,512,1024,2048,4096,8192",
    bandwidths: Annotated[
        str,
        typer.Option("--bandwidths", metavar="MB/S,...", help="Bandwidths, 10^6 bytes a second."),
    ] = "1,3,10,30,100,300,1000,3000",
    new_tokens: Annotated[
        int, typer.Option("--new-tokens", metavar="N", help="Tokens that the receiver adds.")
    ] = 24,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Draw the map into a file.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show which route is fastest, by length of the context and bandwidth of the store.

    Drawn from what was measured on this machine last (kvbaton policy calibrate), and from what
    receipts have taught since; the model is not loaded.
    """
    from kvbaton.policy.break_even_map import break_even_map
    from kvbaton.policy.map_svg import map_svg
    from kvbaton.policy.speed_files import speeds_of_model

    output, chosen = Output(as_json), settings.from_environment()
    speeds = speeds_of_model(chosen.data_dir, model).learner().speeds
    drawn = break_even_map(
        speeds,
        tokens=numbers(tokens, "--tokens", int),
        bandwidths_mb_s=numbers(bandwidths, "--bandwidths", float),
        new_tokens=new_tokens,
        store=speeds.store(store or chosen.store),
    )
    if svg is not None:
        _write(svg, map_svg(drawn))
        output.say(f"drawn into {svg}")
    stores = {name: one.to_json() for name, one in sorted(speeds.stores.items())}
    output.result(
        drawn.to_json() | {"stores": stores}, lambda console: _show_map(console, drawn, speeds)
    )


def numbers(text: str, option: str, kind: Callable[[str], Any]) -> tuple[Any, ...]:
    """Numbers between commas; raises ``InputError`` with the option."""
    try:
        return tuple(kind(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise InputError(f"{option} takes numbers, not {text[:40]!r}", at=option) from None


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"the picture cannot be written: {error.strerror or error}", at=str(file)
        ) from error


def _show_map(console: Console, drawn: BreakEvenMap, speeds: Speeds) -> None:
    console.print(
        f"{drawn.model}: fastest route to the first token, {drawn.new_tokens} new tokens; "
        f"* is longer than what was measured ({drawn.measured_to:,})",
        markup=False,
    )
    rows = [
        [_length(tokens, drawn), *(cell.winner for cell in drawn.row(tokens))]
        for tokens in drawn.tokens
    ]
    headings = ["tokens", *(f"{speed:g} MB/s" for speed in drawn.bandwidths_mb_s)]
    print_table(console, headings, rows, right="r")
    console.print()
    console.print("bandwidth from which on a route is faster than text, MB/s", markup=False)
    by_place = {(one.route, one.tokens): one.bandwidth_mb_s for one in drawn.even}
    routes = drawn.routes[1:]
    even = [
        [_length(tokens, drawn), *(_even(by_place[route, tokens]) for route in routes)]
        for tokens in drawn.tokens
    ]
    print_table(console, ["tokens", *routes], even, right="r" * (1 + len(routes)))
    if speeds.stores:
        console.print()
        print_table(console, _STORE_HEADINGS, _stores(speeds), right=" rrrr")


def _length(tokens: int, drawn: BreakEvenMap) -> str:
    beyond = "*" if tokens + drawn.new_tokens > drawn.measured_to else ""
    return f"{tokens:,}{beyond}"


def _even(bandwidth_mb_s: float | None) -> str:
    return "never" if bandwidth_mb_s is None else f"{bandwidth_mb_s:.3g}"
