"""What ``kvbaton ledger`` shows to people."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from rich.console import Console

from kvbaton.cli.output import age_text, bytes_text, print_table, visible
from kvbaton.types import JSON

_WHOLE, _DIGITS = 48, 16
"""Ids that are longer are shown by their first digits; every command takes as many as make one
unique."""


def short_id(name: str) -> str:
    """An id as a table shows it."""
    return name if len(name) <= _WHOLE else name[:_DIGITS]


def ago(moment_ms: int) -> str:
    """How long ago something was, by this machine's clock."""
    return age_text(time.time() - moment_ms / 1000) if moment_ms else ""


def show_log(console: Console, said: JSON) -> None:
    """Events, and where the ledger stands."""
    show_events(console, said["events"])
    console.print(f"the ledger stands at {said['sequence']}", markup=False)


def show_events(console: Console, events: Iterable[JSON]) -> None:
    """Events as rows."""
    headings = ("sequence", "age", "what", "node", "ref", "")
    print_table(console, headings, map(event_row, events), right="rr")


def event_row(event: JSON) -> Sequence[str]:
    """One event: sequence, age, kind, node, ref, more."""
    ref = f"{event['ref']}@{event['ref_sequence']}" if event["ref"] else ""
    return (
        str(event["sequence"]),
        ago(event["created_ms"]),
        event["kind"],
        short_id(event["node"]),
        ref,
        _detail(event["detail"]),
    )


def _detail(detail: JSON) -> str:
    """What an event says besides, in words."""
    parts = [str(detail[name]) for name in ("kind", "agent", "label", "why") if detail.get(name)]
    if "marked" in detail:
        parts.append(f"{detail['marked']} marked")
    if detail.get("from"):
        parts.append(f"from {short_id(detail['from'])}")
    return ", ".join(parts)


def show_node(console: Console, said: JSON) -> None:
    """One node, whole."""
    node, stale = said["node"], said["node"]["stale"]
    lossy = node["codec"] not in ("", "raw")
    rows = {
        "id": node["id"],
        "kind": node["kind"],
        "label": node["label"],
        "agent": node["agent"],
        "model": node["model"],
        "function": node["function"],
        "tokens": f"{node['tokens']:,}" if node["tokens"] else "",
        "size": bytes_text(node["size_bytes"]) if node["size_bytes"] else "",
        "fidelity": f"{node['fidelity']} ({node['codec']})" if lossy else node["fidelity"],
        "hops": f"{node['hops_exact']} exact, {node['hops_lossy']} lossy"
        if node["fidelity"]
        else "",
        "store": node["store"],
        "age": ago(node["created_ms"]),
        "recorded as": str(node["sequence"]),
        "head of": ", ".join(f"{head['ref']}@{head['sequence']}" for head in said["heads"]),
        "stale": f"since {stale['sequence']}: {stale['why']}" if stale else "no",
        **{name: _plain(value) for name, value in node["facts"].items()},
        "made from": "\n".join(node["parents"]) or "nothing",
        "ancestors": str(len(said["ancestors"])),
        "built on it": "\n".join(said["descendants"]) or "nothing",
    }
    print_table(console, ("", ""), [(name, value) for name, value in rows.items() if value])
    console.print()
    show_events(console, said["events"])


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def show_refs(console: Console, said: JSON) -> None:
    """Heads of refs."""
    rows = [
        (head["ref"], str(head["sequence"]), head["baton"], ago(head["moved_ms"]))
        for head in said["refs"]
    ]
    print_table(console, ("ref", "stands at", "baton", "moved ago"), rows, right=" r r")
    console.print(f"as of sequence {said['sequence']}", markup=False)


def show_marked(console: Console, said: JSON) -> None:
    """What was built on something that was withdrawn."""
    new = set(said["nodes"])
    rows = [(*_cells(node), "now" if node["id"] in new else "before") for node in said["affected"]]
    print_table(console, (*_HEADINGS, "stale"), rows, right=_RIGHT)
    console.print(
        f"withdrawn at {said['sequence']}: {_counted(said['affected'])}; {len(new)} of them were "
        "not stale before",
        markup=False,
    )


def show_impact(console: Console, said: JSON) -> None:
    """What an upgrade of a function voids."""
    rows = [(*_cells(node), "yes" if node["stale"] else "no") for node in said["nodes"]]
    print_table(console, (*_HEADINGS, "stale"), rows, right=_RIGHT)
    console.print(f"void with {visible(said['function'])}: {_counted(said['nodes'])}", markup=False)


_HEADINGS = ("id", "kind", "label", "agent", "tokens", "age")
_RIGHT = "    rr"


def _cells(node: JSON) -> Sequence[str]:
    tokens = str(node["tokens"]) if node["tokens"] else ""
    name = short_id(node["id"])
    return name, node["kind"], node["label"], node["agent"], tokens, ago(node["created_ms"])


def _counted(nodes: Sequence[JSON]) -> str:
    """``2 batons, 1 answer`` or ``nothing``."""
    counts: dict[str, int] = {}
    for node in nodes:
        counts[node["kind"]] = counts.get(node["kind"], 0) + 1
    parts = [f"{n} {kind}{'' if n == 1 else 's'}" for kind, n in sorted(counts.items())]
    return ", ".join(parts) or "nothing"
