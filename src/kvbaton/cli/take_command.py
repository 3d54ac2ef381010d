"""``kvbaton take``: go on from a baton, in a process of its own."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Self

import typer

from kvbaton import settings
from kvbaton.cli import places
from kvbaton.cli.holdings import open_manifest
from kvbaton.cli.inputs import once_from_stdin, read_messages, read_text
from kvbaton.cli.ledger_places import ledger_place, warm_ledger
from kvbaton.cli.loading import load_engine
from kvbaton.cli.options import Dtype, DtypeOption, ModelOption, StoreOption, SystemOption
from kvbaton.cli.output import JsonFlag, Output, bytes_text, print_table, visible
from kvbaton.errors import EmptyInput, InputError
from kvbaton.policy.fitting import FitStrategy
from kvbaton.policy.rules import StaleRule
from kvbaton.types import JSON, BatonRef, Importance, Mode, Reason, Receipt

if TYPE_CHECKING:
    from kvbaton.conversation import Turn

PHASES = ("get", "verify", "decode", "probe", "align", "attach", "first_forward", "ttft")
MAX_NEW_TOKENS = 256
SHAPES = {
    "take": """{"output",
 "receipt": {"id", "agent", "model", "baton", "batons", "signer", "outcome", "mode", "route",
  "reasons": [{"code", "sentence", "at"?}], "warnings": [{"code", "sentence", "at"?}],
  "context_tokens", "reused_tokens", "pending_tokens", "computed_tokens", "generated_tokens",
  "probe_tokens", "recomputed_token_layers", "bytes_moved", "bytes_deduplicated",
  "seconds": {"get", "filter"?, "verify", "decode", "probe"?, "align", "attach", "first_forward",
   "ttft", "shown", "total"},
  "sender_seconds": {}, "fidelity": {"class", "codec", "calibration"}, "hops": {"exact", "lossy"},
  "freshness": {"standing", "ref"?, "ref_sequence"?, "head_sequence"?, "as_of"?, "why"?,
   "after"?: {"standing", "as_of", "why"}},
  "decision": {"policy", "route", "chosen", "shadow", "decided_by", "reasons",
   "gates": [{"gate", "said", "reason"?}],
   "predictions": [{"route", "ttft_s", "low_s", "high_s"}]} | null, "shadow": {} | null,
  "first_divergence", "finish", "labels", "created_ms"}}"""
}
"""What ``--json`` prints, for the reference."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("take")(take)


def take(
    model: ModelOption,
    baton: Annotated[
        list[str] | None,
        typer.Option(
            "--baton",
            metavar="ID",
            help="The baton's id; given several times, slices are joined in that order.",
        ),
    ] = None,
    ref: Annotated[
        str | None,
        typer.Option(
            "--ref", metavar="NAME", help="In place of an id: the baton that this ref stands for."
        ),
    ] = None,
    store: StoreOption = None,
    instruction: Annotated[
        str,
        typer.Option(
            "--instruction", metavar="TEXT", help="What to do; by default what the baton says."
        ),
    ] = "",
    messages: Annotated[
        str | None,
        typer.Option(
            "--messages",
            metavar="FILE",
            help="The caller's own messages, a JSON list: the answer is to them when the baton is "
            "not trusted or not available; - is standard input.",
        ),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="FILE",
            help="For shared-prefix: the text that all agents begin with; - is standard input.",
        ),
    ] = None,
    dtype: DtypeOption = Dtype.BFLOAT16,
    system: SystemOption = None,
    mode: Annotated[
        Mode | None,
        typer.Option(
            "--mode", metavar="MODE", help="continue, shared-prefix or slice; the baton's own."
        ),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", metavar="N", min=1, help="Length of the answer.")
    ] = MAX_NEW_TOKENS,
    deadline_s: Annotated[
        float | None,
        typer.Option(
            "--deadline-s",
            metavar="S",
            help="Seconds to the first token, without loading the model; past it the baton's "
            "tokens are prefilled. By default the settings' own.",
        ),
    ] = None,
    repair: Annotated[
        float | None,
        typer.Option(
            "--repair",
            metavar="SHARE",
            help="For slices: compute this share of their tokens anew, 0 to 1; a little by "
            "default.",
        ),
    ] = None,
    overflow: Annotated[
        FitStrategy,
        typer.Option(
            "--overflow",
            metavar="HOW",
            help="What stays when the window is too small: refuse, drop-oldest, importance, or "
            "summary (the sender's).",
        ),
    ] = FitStrategy.REFUSE,
    importance: Annotated[
        Importance,
        typer.Option(
            "--importance",
            metavar="HOW",
            help="ordinary, or critical: compute some tokens again on top of the cache, and go by "
            "text where they differ.",
        ),
    ] = Importance.ORDINARY,
    ticket: Annotated[
        list[str] | None,
        typer.Option(
            "--ticket",
            metavar="TICKET",
            help="The sender's permission (kvbaton ticket), where the trust domain asks for one; "
            "given once for each baton.",
        ),
    ] = None,
    stale: Annotated[
        StaleRule | None,
        typer.Option(
            "--stale",
            metavar="HOW",
            help="Where the baton's context is no longer the current one: label (go on and say "
            "so), fetch (take the newer), or refuse; label, unless the policy is stricter.",
        ),
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(
            "--tag", metavar="TAG", help="Of the task, for the policy's rules; may be repeated."
        ),
    ] = None,
    conversation: Annotated[
        str | None,
        typer.Option(
            "--conversation", metavar="ID", help="What roll-outs assign by; stands in the receipt."
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail instead of answering without the baton's cache.")
    ] = False,
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="The receiver's name in the receipt.")
    ] = "receiver",
    as_json: JsonFlag = False,
) -> None:
    """Go on from a baton and print the answer and the receipt.

    The answer goes to standard output as it is made, the receipt to standard error; with --json
    both are in the one object.  Without an instruction, messages are answered from whatever they
    have in common with the baton.
    """
    output = Output(as_json)
    once_from_stdin(messages=messages, context=context)
    own = read_messages(messages) if messages is not None else None
    shared = read_text(context, what="context") if context is not None else None
    limit_s = settings.from_environment().deadline_s if deadline_s is None else deadline_s
    if not 0 < limit_s < float("inf"):
        raise InputError(f"--deadline-s must be a positive number of seconds, not {limit_s:g}")
    if instruction and not instruction.strip():
        raise EmptyInput("the instruction is blank")
    batons, lies_at = _named(baton, ref)
    opened = places.open_to_take(store or lies_at)
    if own is None:  # nothing else to answer: say so before the model is loaded
        for one in batons:
            open_manifest(opened, places.trust_domain(), one)
    warm_ledger()  # while the model is loaded, so that the take need not wait for it
    engine = load_engine(output, model, dtype=dtype.value)
    from kvbaton.agent import DEFAULT_REPAIR
    from kvbaton.api import Agent
    from kvbaton.context import Context

    agent = Agent(
        name,
        engine,
        store=opened,
        system=system,
        context=None if shared is None else Context(documents={"Context": shared}),
        stream=False,
    )
    with _Answer(output, f"taking the baton with {model}") as answer:
        turn = agent.take(
            *(BatonRef(one, opened.url) for one in batons),
            instruction=instruction,
            messages=own,
            mode=mode,
            deadline_s=limit_s,
            strict=strict,
            importance=importance,
            ticket=ticket,
            stale=stale,
            tags=tag or (),
            labels={} if conversation is None else {"conversation": conversation},
            overflow=overflow,
            repair=DEFAULT_REPAIR if repair is None else repair,
            max_new_tokens=max_new_tokens,
            on_text=answer.piece,
        )
    output.result(_to_json(turn), lambda console: _show(output, turn.receipt))


def _named(baton: list[str] | None, ref: str | None) -> tuple[list[str], str | None]:
    """Ids of the batons that are to be taken, and the store that a ref's lies in.

    Raises
    ------
    InputError
        Neither ids nor a ref are named, or both.
    UnknownRef, LedgerError
        Nobody knows where the ref stands.
    """
    if baton and ref is None:
        return baton, None
    if baton or ref is None:
        raise InputError("name batons or a ref, and not both", hint="--baton ID, or --ref NAME")
    place = ledger_place(None, None)
    head, node = place.keeper().head(ref)
    return [head.baton], node.store or None


class _Answer:
    """Shows progress until the first piece of the answer, then the answer as it is made."""

    def __init__(self, output: Output, label: str) -> None:
        self._output, self._label, self._any = output, label, False
        self._waiting = ExitStack()

    def __enter__(self) -> Self:
        self._waiting.enter_context(self._output.progress(self._label))
        return self

    def piece(self, text: str) -> None:
        """Print a piece of the answer; nothing with ``--json``."""
        if self._output.as_json:
            return
        self._waiting.close()
        self._any = True
        self._write(visible(text) if self._output.out.is_terminal else text)

    def __exit__(self, *details: object) -> None:
        self._waiting.close()
        if self._any:
            self._write("\n")

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _to_json(turn: Turn) -> JSON:
    receipt = turn.receipt.to_json()
    receipt["seconds"] = dict.fromkeys(PHASES, 0.0) | receipt["seconds"]
    return {"output": turn.text, "receipt": receipt}


def _show(output: Output, receipt: Receipt) -> None:
    """The receipt as a table, on standard error."""
    print_table(output.err, ("", ""), receipt_rows(receipt))


def receipt_rows(receipt: Receipt) -> list[tuple[str, str]]:
    """What people look at first, by name."""
    ttft_s = receipt.seconds.get("ttft", 0.0)
    rows = [
        ("route", f"{receipt.route} ({receipt.outcome}, mode {receipt.mode})"),
        ("tokens", _tokens(receipt)),
        ("moved", bytes_text(receipt.bytes_moved)),
        ("first token", f"{ttft_s:.3f} s"),
        ("fidelity", _fidelity(receipt)),
        ("finish", receipt.finish),
        ("receipt", receipt.id),
    ]
    rows += [("reason", _sentence(reason)) for reason in receipt.reasons]
    return rows + [("warning", _sentence(warning)) for warning in receipt.warnings]


def _fidelity(receipt: Receipt) -> str:
    found = receipt.fidelity
    return f"{found.kind.value} ({found.codec})" if found.compressed else found.kind.value


def _tokens(receipt: Receipt) -> str:
    return (
        f"{receipt.context_tokens} in context: {receipt.reused_tokens} reused, "
        f"{receipt.computed_tokens} computed ({receipt.pending_tokens} pending); "
        f"{receipt.generated_tokens} generated"
    )


def _sentence(reason: Reason) -> str:
    where = f" at {reason.at}" if reason.at else ""
    return f"{reason.code}: {reason.sentence}{where}"
