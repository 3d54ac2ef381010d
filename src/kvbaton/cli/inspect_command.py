"""``kvbaton inspect``: what a baton says about itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from kvbaton.cli import places
from kvbaton.cli.holdings import open_manifest, open_transcript
from kvbaton.cli.options import BatonArgument, StoreOption
from kvbaton.cli.output import (
    JsonFlag,
    Output,
    age_text,
    bytes_text,
    expiry_text,
    print_table,
    visible,
)
from kvbaton.errors import InputError
from kvbaton.stores import Key, Kind, Store
from kvbaton.types import JSON, Manifest, SegmentRef

SHAPES = {
    "inspect": """{"baton", "store", "sender", "created_ms", "mode", "domain", "cached_tokens",
 "pending_tokens", "terms": {"instruction", "summary", "goal", "round", "receiver"},
 "spans": [{"role", "first", "count", "shift"}],
 "segments": [{"address", "kind", "first", "count", "shift", "size_bytes", "fidelity", "present"}],
 "fidelity": {"class", "codec", "calibration"}, "hops": {"exact", "lossy"}, "parents",
 "function": {"digest", "parts"}, "producer", "transcript": {"address", "size_bytes"},
 "token_digest", "ref", "sequence", "signer", "signers", "expires_ms", "noise", "redacted",
 "export": {"domain", "salt"} or null,
 "text"?, "parts"?: [{"role", "first", "count", "text"}]}"""
}
"""What ``--json`` prints, for the reference."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("inspect")(inspect)


def inspect(
    baton: BatonArgument,
    store: StoreOption = None,
    text: Annotated[
        bool, typer.Option("--text", help="Show the conversation's text, too.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="With --text: decode each span's tokens by this model's tokenizer, instead of "
            "showing the text that the sender has written down.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show a baton's manifest, once its signature is verified; segments are not read.

    Text from the baton is shown with its control characters escaped.
    """
    if model is not None and not text:
        raise InputError("--model says how --text is shown", hint="give both")
    output = Output(as_json)
    opened, domain = places.open_to_read(store), places.trust_domain()
    manifest, signer = open_manifest(opened, domain, baton)
    said = {"baton": baton, "store": opened.url, **describe(manifest, opened), "signer": signer}
    if text:
        words = open_transcript(opened, domain, manifest)
        said["text"] = words.text
        if model is not None:
            said["parts"] = _parts(model, words.ids, manifest)
    output.result(said, lambda console: _show(console, said))


def _parts(model: str, ids: Sequence[int], manifest: Manifest) -> list[JSON]:
    """The text of each span, from its ids."""
    from kvbaton.api import decoder_of

    decode = decoder_of(model)
    return [
        {
            "role": span.role.value,
            "first": span.run.first,
            "count": span.run.count,
            "text": decode(ids[span.run.first : span.run.stop]),
        }
        for span in manifest.spans
    ]


def describe(manifest: Manifest, store: Store) -> JSON:
    """A manifest as JSON; each segment with whether the store holds it."""
    return {
        "sender": manifest.sender,
        "created_ms": manifest.created_ms,
        "mode": manifest.mode.value,
        "domain": manifest.domain,
        "cached_tokens": manifest.cached_tokens,
        "pending_tokens": manifest.pending_tokens,
        "terms": {
            "instruction": manifest.terms.instruction,
            "summary": manifest.terms.summary,
            "goal": manifest.terms.goal,
            "round": manifest.terms.round,
            "receiver": manifest.terms.receiver,
        },
        "spans": [
            {
                "role": span.role.value,
                "first": span.run.first,
                "count": span.run.count,
                "shift": span.shift,
            }
            for span in manifest.spans
        ],
        "segments": [_segment(ref, store) for ref in manifest.segments],
        "fidelity": manifest.fidelity.to_json(),
        "hops": {"exact": manifest.hops.exact, "lossy": manifest.hops.lossy},
        "parents": list(manifest.parents),
        "function": {
            "digest": manifest.function.digest,
            "parts": dict(manifest.function.parts),
        },
        "producer": dict(manifest.producer),
        "transcript": {"address": manifest.transcript, "size_bytes": manifest.transcript_bytes},
        "token_digest": manifest.token_digest,
        "ref": manifest.ref,
        "sequence": manifest.sequence,
        "signers": list(manifest.signers),
        "expires_ms": manifest.expires_ms,
        "noise": manifest.noise,
        "redacted": list(manifest.redacted),
        "export": None if manifest.export is None else asdict(manifest.export),
    }


def _segment(ref: SegmentRef, store: Store) -> JSON:
    return {
        "address": ref.address,
        "kind": ref.span.kind.value,
        "first": ref.span.first,
        "count": ref.span.count,
        "shift": ref.shift,
        "size_bytes": ref.size_bytes,
        "fidelity": ref.fidelity.to_json(),
        "present": store.exists(Key(Kind.SEGMENT, ref.address)),
    }


def _show(console: Console, said: JSON) -> None:
    age_s = time.time() - said["created_ms"] / 1000
    fidelity, hops = said["fidelity"], said["hops"]
    rows = {
        "baton": said["baton"],
        "sender": said["sender"],
        "age": age_text(age_s),
        "mode": said["mode"],
        "domain": said["domain"],
        "tokens": f"{said['cached_tokens']} cached, {said['pending_tokens']} pending",
        "signed by": said["signer"],
        "expires": expiry_text(said["expires_ms"]),
        "fidelity": f"{fidelity['class']} ({fidelity['codec']})",
        "hops": f"{hops['exact']} exact, {hops['lossy']} lossy",
        "parents": "\n".join(said["parents"]) or "none",
        "function": said["function"]["digest"],
        **{name: str(value) for name, value in said["terms"].items() if value},
    }
    if said["noise"]:
        rows["noise"] = f"{said['noise']:g} of the size of keys and values: no guarantee"
    if said["redacted"]:
        rows["text only, without"] = ", ".join(said["redacted"])
    if said["export"]:
        rows["made for"] = said["export"]["domain"]
    print_table(console, ("", ""), rows.items())
    for heading, table in (
        ("function of", said["function"]["parts"]),
        ("made by", said["producer"]),
    ):
        console.print()
        print_table(console, (heading, ""), table.items())
    console.print()
    spans = [(s["role"], str(s["first"]), str(s["count"])) for s in said["spans"]]
    print_table(console, ("span", "first", "tokens"), spans, right=" rr")
    console.print()
    headings = ("segment", "kind", "first", "tokens", "moved by", "codec", "size", "in the store")
    print_table(console, headings, map(_segment_row, said["segments"]), right="  rrr r")
    for part in said.get("parts", ()):
        console.print()
        console.print(f"[{part['role']}, tokens {part['first']} and on]", markup=False)
        console.print(visible(part["text"]), markup=False)
    if "text" in said and "parts" not in said:
        console.print()
        console.print(visible(said["text"]), markup=False)


def _segment_row(said: JSON) -> tuple[str, ...]:
    return (
        said["address"],
        said["kind"],
        str(said["first"]),
        str(said["count"]),
        "" if said["shift"] is None else f"{said['shift']:+d}",
        said["fidelity"]["codec"],
        bytes_text(said["size_bytes"]),
        "yes" if said["present"] else "NO",
    )
