"""``kvbaton ledger``: who builds on what, where refs stand, and what has become stale."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvbaton.cli import ledger_tables as tables
from kvbaton.cli.gc_command import gc_command, leases_command
from kvbaton.cli.ledger_places import DomainOption, LedgerOption, ledger_place, opened
from kvbaton.cli.ledger_watch import SHAPES as WATCH_SHAPES
from kvbaton.cli.ledger_watch import ledger_watch
from kvbaton.cli.output import JsonFlag, Output
from kvbaton.errors import InputError, UnknownRef

if TYPE_CHECKING:
    from kvbaton.lineage.ledger import Ledger
    from kvbaton.lineage.records import Event

_EVENT = """{"sequence", "kind", "node", "ref", "ref_sequence", "detail",
 "created_ms"}"""
_NODE = """{"id", "kind", "label", "parents", "agent", "model", "function", "tokens", "size_bytes",
 "codec", "fidelity", "hops_exact", "hops_lossy", "store", "expires_ms", "created_ms", "facts",
 "sequence", "stale": {"sequence", "ref", "ref_sequence", "why"} or null}"""
_HEAD = '{"ref", "sequence", "baton", "moved_ms", "as_of"}'
SHAPES = {
    "log": f'{{"ledger", "domain", "sequence", "events": [{_EVENT}]}}',
    "show": f"""{{"ledger", "domain", "node": {_NODE},
 "heads": [{_HEAD}], "ancestors": [ID], "descendants": [ID],
 "events": [{_EVENT}]}}""",
    "graph": f"""{{"ledger", "domain", "root", "nodes": [{_NODE}],
 "edges": [[CHILD, PARENT]], "refs": [{_HEAD}], "file"?}}""",
    "refs": f'{{"ledger", "domain", "sequence", "refs": [{_HEAD}]}}',
    "invalidate": f"""{{"ledger", "domain", "sequence", "nodes": [ID],
 "affected": [{_NODE}]}}""",
    "impact": f'{{"ledger", "domain", "function", "nodes": [{_NODE}]}}',
    "migrate": '{"ledger", "from", "to"}',
    "accept": """{"ledger", "domain", "before": {"sequence", "heads"}, "now": {"sequence",
 "heads"}}""",
    **WATCH_SHAPES,
}
"""What ``--json`` prints, for the reference."""

NodeArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="Id of a baton, an artefact or an answer, or its first 8 digits or more."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(
        help="Who builds on what, where refs stand, and what has become stale.",
        no_args_is_help=True,
    )
    group.command("log")(ledger_log)
    group.command("show")(ledger_show)
    group.command("graph")(ledger_graph)
    group.command("refs")(ledger_refs)
    group.command("invalidate")(ledger_invalidate)
    group.command("impact")(ledger_impact)
    group.command("watch")(ledger_watch)
    group.command("leases")(leases_command)
    group.command("gc")(gc_command)
    group.command("migrate")(ledger_migrate)
    group.command("accept")(ledger_accept)
    app.add_typer(group, name="ledger")


def ledger_log(
    last: Annotated[
        int, typer.Option("--last", metavar="N", min=0, help="How many events; 0: all.")
    ] = 50,
    since: Annotated[
        int, typer.Option("--since", metavar="N", min=0, help="Only behind this sequence.")
    ] = 0,
    node: Annotated[
        str | None, typer.Option("--node", metavar="ID", help="Only of this node.")
    ] = None,
    ref: Annotated[
        str | None, typer.Option("--ref", metavar="REF", help="Only of this ref.")
    ] = None,
    ledger: LedgerOption = None,
    domain: DomainOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what was recorded, moved and withdrawn, the newest last.

    The sequence is the ledger's own: it counts changes, and does not depend on any clock.
    """
    output = Output(as_json)
    with opened(output, ledger, domain) as found:
        name = "" if node is None else found.node(node).id
        if ref is not None:
            found.head(ref)  # an unknown one is an error, not an empty list
        events = _events(found, last=last, since=since, node=name, ref=ref or "")
        said = {
            "ledger": found.database.shown,
            "domain": found.domain,
            "sequence": found.sequence(),
            "events": [event.to_json() for event in events],
        }
    output.result(said, lambda console: tables.show_log(console, said))


def _events(found: Ledger, *, last: int, since: int, node: str, ref: str) -> deque[Event]:
    """The last events, read in pieces."""
    kept: deque[Event] = deque(maxlen=last or None)
    if not (node or ref) and last:
        since = max(since, found.sequence() - last)
    while several := found.log(since=since, node=node, ref=ref):
        kept.extend(several)
        since = several[-1].sequence
    return kept


def ledger_show(
    node: NodeArgument,
    ledger: LedgerOption = None,
    domain: DomainOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show a baton, an artefact or an answer: what it came from, and what was made from it."""
    output = Output(as_json)
    with opened(output, ledger, domain) as found:
        one = found.node(node)
        above, below = found.ancestors(one.id), found.descendants(one.id)
        heads = [head.to_json() for head in found.heads() if head.baton == one.id]
        events = _events(found, last=0, since=0, node=one.id, ref="")
        said = {
            "ledger": found.database.shown,
            "domain": found.domain,
            "node": one.to_json(),
            "heads": heads,
            "ancestors": [other.id for other in above],
            "descendants": [other.id for other in below],
            "events": [event.to_json() for event in events],
        }
    output.result(said, lambda console: tables.show_node(console, said))


def ledger_graph(
    node: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="Only what is above and below this node."),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Write a picture, too.")
    ] = None,
    ledger: LedgerOption = None,
    domain: DomainOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Draw who builds on what: as a tree, as SVG, or as JSON.

    Every node stands once; [ref@3] is where a ref stands, and STALE says why.
    """
    from kvbaton.lineage.drawing import draw_text
    from kvbaton.lineage.picture import draw_svg

    output = Output(as_json)
    with opened(output, ledger, domain) as found:
        graph = found.graph(node)
        said = {"ledger": found.database.shown, "domain": found.domain, **graph.to_json()}
    if svg is not None:
        _write(svg, draw_svg(graph))
        said["file"] = str(svg)
        output.say(f"wrote {svg}")
    text = draw_text(graph)
    output.result(said, lambda console: console.print(text, markup=False, highlight=False, end=""))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"the picture cannot be written: {error.strerror or error}", at=str(path)
        ) from error


def ledger_refs(
    ref: Annotated[
        str | None, typer.Argument(metavar="REF", help="All heads that this ref has had.")
    ] = None,
    ledger: LedgerOption = None,
    domain: DomainOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List where all refs stand, or all heads of one, the newest last."""
    output = Output(as_json)
    with opened(output, ledger, domain) as found:
        heads = found.heads() if ref is None else found.history(ref)
        if ref is not None and not heads:
            raise UnknownRef(f"there is no ref {ref[:128]!r}", hint="kvbaton ledger refs")
        said = {
            "ledger": found.database.shown,
            "domain": found.domain,
            "sequence": found.sequence(),
            "refs": [head.to_json() for head in heads],
        }
    output.result(said, lambda console: tables.show_refs(console, said))


def ledger_invalidate(
    node: NodeArgument,
    why: Annotated[
        str, typer.Option("--why", metavar="TEXT", help="What is wrong with it: all will read it.")
    ],
    ledger: LedgerOption = None,
    domain: DomainOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Withdraw a context, and list everything that was built on it.

    All of it is stale from now on, answers and artefacts included; who holds any of it hears of
    it. Nothing is deleted. To replace a context by a newer one, hand off with its ref instead.
    """
    output = Output(as_json)
    if not why.strip():
        raise InputError("say why it is withdrawn", at="--why")
    with opened(output, ledger, domain) as found:
        marked = found.withdraw(found.node(node).id, why=why)
        said = {"ledger": found.database.shown, "domain": found.domain, **marked.to_json()}
    output.result(said, lambda console: tables.show_marked(console, said))


def ledger_impact(
    function: Annotated[
        str,
        typer.Option(
            "--function-id",
            metavar="X",
            help="Digest of the function id, as inspect shows it, or its first 8 digits or more.",
        ),
    ],
    ledger: LedgerOption = None,
    domain: DomainOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List what an upgrade of a model, tokenizer, template, adapter or aligner voids.

    That is everything that the function made, and everything that builds on that.
    """
    output = Output(as_json)
    with opened(output, ledger, domain) as found:
        nodes = [node.to_json() for node in found.impact(function)]
        said = {
            "ledger": found.database.shown,
            "domain": found.domain,
            "function": function,
            "nodes": nodes,
        }
    output.result(said, lambda console: tables.show_impact(console, said))


def ledger_migrate(ledger: LedgerOption = None, as_json: JsonFlag = False) -> None:
    """Bring a ledger's tables to the version of this program, in one transaction.

    Programs of the older version refuse the ledger afterwards; upgrade them first. A copy of the
    file is a backup.
    """
    from kvbaton.lineage.connection import Database
    from kvbaton.lineage.migrate import migrate

    output, place = Output(as_json), ledger_place(ledger, None)
    place.require_there()
    database = Database(place.url, must_exist=True)
    try:
        before, now = migrate(database)
    finally:
        database.close()
    said = {"ledger": database.shown, "from": before, "to": now}
    text = f"is of version {now} already" if before == now else f"went from {before} to {now}"
    output.result(said, lambda console: console.print(f"the ledger {text}", markup=False))


def ledger_accept(
    ledger: LedgerOption = None, domain: DomainOption = None, as_json: JsonFlag = False
) -> None:
    """Accept a ledger that says less than it has said here before: it was restored on purpose.

    Otherwise an old copy is not believed: old heads would be current again.
    """
    from kvbaton.lineage.seen import Seen

    output, place = Output(as_json), ledger_place(ledger, domain)
    with place.open() as found, Seen(place.seen, place.url, place.domain) as seen:
        heads = {head.ref: (head.sequence, head.baton) for head in found.heads()}
        as_of = found.sequence()
        before = seen.accept(as_of, heads)
        shown = found.database.shown
    said = {
        "ledger": shown,
        "domain": place.domain,
        "before": {
            "sequence": before.sequence,
            "heads": {ref: seat.number for ref, seat in before.heads.items()},
        },
        "now": {"sequence": as_of, "heads": {ref: number for ref, (number, _) in heads.items()}},
    }
    output.result(
        said,
        lambda console: console.print(
            f"accepted the ledger at {as_of}; it stood at {before.sequence} before", markup=False
        ),
    )
