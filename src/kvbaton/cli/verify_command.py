"""``kvbaton verify``: every byte against its digests."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from kvbaton.cli import places
from kvbaton.cli.loading import load_engine
from kvbaton.cli.options import Dtype, DtypeOption, StoreOption
from kvbaton.cli.output import JsonFlag, Output, bytes_text, print_table
from kvbaton.cli.verification import Examination
from kvbaton.errors import BatonRefused, BatonUnavailable, InputError, NotFound
from kvbaton.stores import Store
from kvbaton.types import JSON

SHAPES = {
    "verify": """{"baton", "store", "ok",
 "checked": {"batons", "foreign_batons", "tokens", "segments", "ranges", "bytes"},
 "faults": [{"place", "object", "code", "sentence", "at", "hint", "exit_code", "fault"?,
  "layer"?, "bytes"?: [start, stop]}],
 "error"?: the first fault,
 "probes"?: {"layer0_positions", "windows": {"windows", "rows", "ratio", "name", "layer",
   "position", "of_run", "odd", "seconds"} or null,
  "reconstruction": {"positions", "share", "first_wrong", "poor"} or null,
  "reasons": [{"code", "sentence", "at"?}]}}"""
}
"""What ``--json`` prints, for the reference."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify")(verify)


def verify(
    baton: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="The baton's id; or --all.", show_default=False),
    ] = None,
    store: StoreOption = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Check everything that the store holds.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="Hold the cache to its tokens, too: layer 0, windows computed again, and the text "
            "that can be read from it.",
        ),
    ] = None,
    dtype: DtypeOption = Dtype.BFLOAT16,
    as_json: JsonFlag = False,
) -> None:
    """Check every byte of a baton: manifest, transcript, segment headers and layer ranges.

    All faults are listed with their places, the first one first.  Exits with 8 where bytes are
    damaged, with 6 where the manifest cannot be trusted, with 9 where some are only missing, with
    7 where the baton itself is.
    """
    output = Output(as_json)
    if (baton is None) != everything:
        raise InputError("name one baton, or give --all")
    if model is not None and baton is None:
        raise InputError("--model looks at one baton", hint="name it, without --all")
    opened = places.open_to_read(store)
    with output.progress("verifying") as step:
        examination = Examination(opened, places.trust_domain(), step.say)
        if baton is None:
            examination.everything()
        else:
            _one(examination, baton)
    said = {"baton": baton, "store": opened.url, **examination.to_json()}
    probed = None
    if model is not None and baton is not None and examination.ok:
        probed = _probed(output, model, dtype, opened, baton)
        said |= {"probes": probed, "ok": not probed["reasons"]}
    output.result(said, lambda console: _show(console, examination, probed))
    if not examination.ok:
        raise typer.Exit(examination.exit_code)
    if probed is not None and probed["reasons"]:
        raise typer.Exit(BatonRefused.exit_code)


def _probed(output: Output, model: str, dtype: Dtype, opened: Store, baton: str) -> JSON:
    """What the model sees in the cache."""
    engine = load_engine(output, model, dtype=dtype.value)
    from kvbaton.api import relay_for
    from kvbaton.checking import examine_baton
    from kvbaton.defaults import probe_limits
    from kvbaton.opening import EXAMINER

    relay = relay_for(engine, opened)
    with output.progress("holding the cache to its tokens"):
        return examine_baton(
            relay, relay.open(baton, bearer=EXAMINER), probe_limits(engine)
        ).to_json()


def _one(examination: Examination, baton: str) -> None:
    try:
        examination.baton(baton)
    except NotFound as error:
        raise BatonUnavailable("the baton's manifest is not in the store") from error


def _show(console: Console, examination: Examination, probed: JSON | None) -> None:
    if not examination.ok:
        rows = [(f.place, f.error.sentence, f.error.at) for f in examination.faults]
        print_table(console, ("place", "fault", "at"), rows)
        for hint in dict.fromkeys(f.error.hint for f in examination.faults if f.error.hint):
            console.print(f"hint: {hint}", markup=False)
    what = f"{examination.batons} baton{'s' if examination.batons != 1 else ''}"
    console.print(
        f"{'intact' if examination.ok else 'DAMAGED'}: {what}, {examination.segments} segments, "
        f"{examination.ranges} layer ranges, {bytes_text(examination.checked_bytes)} checked",
        markup=False,
    )
    if probed is not None:
        _show_probes(console, probed)


def _show_probes(console: Console, probed: JSON) -> None:
    windows, read = probed["windows"], probed["reconstruction"]
    rows = [("layer 0", f"{probed['layer0_positions']} positions hold their tokens' values")]
    if windows is not None:
        found = f"{windows['rows']} positions, at most {windows['ratio']:.2g} of the honest limit"
        rows.append(("windows", found))
    if read is not None:
        rows.append(("text read from the cache", f"{read['share']:.2%} of it is right"))
    rows += [("ODD", reason["sentence"]) for reason in probed["reasons"]]
    print_table(console, ("probe", ""), rows)
