"""``kvbaton export``: compute a context once and hand it off."""

from __future__ import annotations

from dataclasses import asdict, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from kvbaton.cli import places
from kvbaton.cli.inputs import read_text
from kvbaton.cli.loading import load_engine
from kvbaton.cli.options import (
    Dtype,
    DtypeOption,
    ModelOption,
    ProfileOption,
    StoreOption,
    SystemOption,
    duration_s,
)
from kvbaton.cli.output import JsonFlag, Output, bytes_text
from kvbaton.codecs.calibration import EXACT_PROFILE
from kvbaton.errors import InputError
from kvbaton.types import JSON, Baton, Mode, Terms

if TYPE_CHECKING:
    from kvbaton.api import Agent
    from kvbaton.conversation import Turn

PHASES = ("export", "encode", "seal", "sign", "put")
SHAPES = {
    "export": """{"baton", "store", "tokens", "segments", "bytes_written",
 "seconds": {"export", "encode", "seal", "sign", "put"}, "ref"?, "sequence"?}"""
}
"""What ``--json`` prints, for the reference."""


class SpansOption(StrEnum):
    """What a slice is made of."""

    PROMPT = "prompt"
    GENERATED = "generated"
    ALL = "all"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("export")(export)


def export(
    model: ModelOption,
    context: Annotated[
        str, typer.Option("--context", metavar="FILE", help="What to read; - is standard input.")
    ],
    store: StoreOption = None,
    max_new_tokens: Annotated[
        int,
        typer.Option(
            "--max-new-tokens",
            metavar="N",
            min=0,
            help="Answer the context with at most N tokens first; 0 hands it off unanswered.",
        ),
    ] = 0,
    dtype: DtypeOption = Dtype.BFLOAT16,
    system: SystemOption = None,
    mode: Annotated[
        Mode,
        typer.Option(
            "--mode",
            metavar="MODE",
            help="continue: the receiver goes on in this conversation; shared-prefix: the context "
            "is what all agents begin with; slice: chosen spans, to hang behind others.",
        ),
    ] = Mode.CONTINUE,
    spans: Annotated[
        SpansOption,
        typer.Option(
            "--spans",
            metavar="SPANS",
            help="For slice: prompt (what was read), generated (the answer), or all; without the "
            "system prompt and reasoning.",
        ),
    ] = SpansOption.ALL,
    clean: Annotated[
        bool,
        typer.Option("--clean", help="For slice: compute it anew, without what it leaves out."),
    ] = False,
    importance: Annotated[
        bool,
        typer.Option(
            "--importance",
            help="Record how much attention the tokens get, for receivers with a small window.",
        ),
    ] = False,
    profile: ProfileOption = EXACT_PROFILE,
    noise: Annotated[
        float,
        typer.Option(
            "--noise",
            metavar="LEVEL",
            min=0.0,
            help="Add noise of this relative size to keys and values. It guarantees nothing.",
        ),
    ] = 0.0,
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires", metavar="TIME", help="Nobody may take it after this time: 30s, 10m, 2h."
        ),
    ] = None,
    to_domain: Annotated[
        str | None,
        typer.Option(
            "--to-domain",
            metavar="NAME",
            help="For another trust domain: a signed baton of text only, without the system "
            "prompt and reasoning.",
        ),
    ] = None,
    ref: Annotated[
        str | None,
        typer.Option(
            "--ref",
            metavar="NAME",
            help="Move this ref to the baton: what builds on the one before it is stale then.",
        ),
    ] = None,
    expect: Annotated[
        int | None,
        typer.Option(
            "--expect",
            metavar="N",
            min=0,
            help="Only if the ref still stands at its N-th baton (0: nowhere yet).",
        ),
    ] = None,
    instruction: Annotated[
        str,
        typer.Option("--instruction", metavar="TEXT", help="What the receiver is to do."),
    ] = "",
    summary: Annotated[
        str, typer.Option("--summary", metavar="TEXT", help="A summary, for people.")
    ] = "",
    goal: Annotated[str, typer.Option("--goal", metavar="TEXT", help="The goal, for people.")] = "",
    round_: Annotated[
        int, typer.Option("--round", metavar="N", min=0, help="The round, for people.")
    ] = 0,
    receiver: Annotated[
        str, typer.Option("--receiver", metavar="NAME", help="Whom the baton is meant for.")
    ] = "",
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="The sender's name in the baton.")
    ] = "sender",
    as_json: JsonFlag = False,
) -> None:
    """Compute a context's KV cache, store it, and print the baton's id.

    The id goes to standard output alone, so that it can be kept in a variable; take it in any
    other process that sees the store and has the key of the trust domain.
    """
    output = Output(as_json)
    text = read_text(context, what="context")
    opened = places.open_to_write(store)
    engine = load_engine(output, model, dtype=dtype.value)
    from kvbaton.api import Agent
    from kvbaton.context import Context

    if clean and mode is not Mode.SLICE:
        raise InputError("--clean is for slices", hint="--mode slice")
    shared = Context(documents={"Context": text}) if mode is Mode.SHARED_PREFIX else None
    agent = Agent(
        name, engine, store=opened, system=system, context=shared, stream=False, profile=profile
    )
    chosen: dict[str, Any] = {"spans": spans.value, "clean": clean} if mode is Mode.SLICE else {}
    with output.progress(f"reading the context with {model}") as step:
        turn = _read(agent, None if shared else text, max_new_tokens, sliced=mode is Mode.SLICE)
        step.say("storing the cache")
        terms = Terms(instruction, summary, goal, round_, receiver)
        baton = agent.hand_off(
            turn,
            mode=mode,
            importance=importance,
            noise=noise,
            expires_s=None if expires is None else duration_s(expires, "--expires"),
            to_domain=to_domain,
            ref=ref,
            expect=expect,
            **chosen,
            **asdict(terms),
        )
    output.result(_to_json(baton), lambda console: _show(output, console, baton))


def _read(agent: Agent, text: str | None, max_new_tokens: int, *, sliced: bool) -> Turn:
    """The turn to hand off; ``text`` is None where the shared preamble is all there is."""
    if text is None:
        return agent.run("Go on.", max_new_tokens=1)
    if sliced and max_new_tokens == 0:
        return agent.prefill(text)
    turn = agent.run(text, max_new_tokens=max(1, max_new_tokens))
    if max_new_tokens > 0:
        return turn
    # The one token that was sampled was never fed: without it an empty answer is left, with the
    # whole context computed and nothing pending.
    turn.conversation.messages[-1] = {"role": "assistant", "content": ""}
    return replace(turn, tokens=turn.cached)


def _to_json(baton: Baton) -> JSON:
    manifest = baton.manifest
    moved = {"ref": manifest.ref, "sequence": manifest.sequence} if manifest.ref else {}
    return {
        "baton": baton.id,
        "store": baton.store,
        "tokens": manifest.cached_tokens + manifest.pending_tokens,
        "segments": len(manifest.segments),
        "bytes_written": baton.bytes_written,
        "seconds": {phase: baton.seconds.get(phase, 0.0) for phase in PHASES},
        **moved,
    }


def _show(output: Output, console: Console, baton: Baton) -> None:
    said = _to_json(baton)
    output.say(
        f"{said['tokens']} tokens in {said['segments']} segments, "
        f"{bytes_text(baton.bytes_written)} written to {baton.store}, "
        f"{bytes_text(baton.bytes_deduplicated)} were there already"
    )
    console.print(baton.id, markup=False)
