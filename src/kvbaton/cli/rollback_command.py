"""``kvbaton policy rollback``: answers that came from caches, and all that was built on them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from kvbaton.cli.ledger_places import DomainOption, LedgerOption, opened
from kvbaton.cli.ledger_tables import ago, short_id
from kvbaton.cli.options import duration_s
from kvbaton.cli.output import JsonFlag, Output, print_table
from kvbaton.cli.receipt_log import ReceiptsOption, log_path, read_log
from kvbaton.errors import InputError, LedgerError, UnknownNode
from kvbaton.policy.rollout import RollBack, answers_from_caches, roll_back
from kvbaton.types import JSON

if TYPE_CHECKING:
    from kvbaton.lineage.ledger import Ledger
    from kvbaton.lineage.records import Node

SHAPES = {
    "rollback": """{"since_ms", "answers": [ID], "contaminated": [{"id", "kind", "label", "agent",
 "created_ms", "stale"}], "unlisted": [ID], "complete", "withdrawn": [ID]}"""
}
"""What ``--json`` prints, for the reference."""


def policy_rollback(
    since: Annotated[
        str,
        typer.Option(
            "--since",
            metavar="WHEN",
            help="Answers from then on: how long ago (90m, 2h, 7d), or a time such as "
            "2026-11-30T14:00, in UTC unless it says otherwise.",
        ),
    ],
    agent: Annotated[
        list[str] | None,
        typer.Option("--agent", metavar="NAME", help="Only of this agent; may be given again."),
    ] = None,
    route: Annotated[
        list[str] | None,
        typer.Option(
            "--route",
            metavar="NAME",
            help="Only by this route: exact, slice or the name of a profile; may be given again.",
        ),
    ] = None,
    withdraw: Annotated[
        str | None,
        typer.Option(
            "--withdraw",
            metavar="WHY",
            help="Mark these answers, and all that was built on them, as stale in the ledger.",
        ),
    ] = None,
    receipts: ReceiptsOption = None,
    ledger: LedgerOption = None,
    domain: DomainOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List the answers that came from caches, and everything that was built on them.

    Answers are found in the log of receipts, what was built on them in the ledger.  Switch
    hand-off off before (kill or kill_file in the policy file), so that no more are added.
    """
    output, since_ms = Output(as_json), _since_ms(since)
    if withdraw is not None and not withdraw.strip():
        raise InputError("a withdrawal needs a reason", at="--withdraw")
    answers = answers_from_caches(
        read_log(output, log_path(receipts)), since_ms=since_ms, agents=agent, chosen=route
    )
    found, nodes, withdrawn = _built_on(output, answers, withdraw, ledger, domain)
    said = {
        "since_ms": since_ms,
        "answers": list(found.answers),
        "contaminated": [_node(nodes[name]) for name in found.contaminated],
        "unlisted": list(found.unlisted),
        "complete": found.complete,
        "withdrawn": list(withdrawn),
    }
    output.result(said, lambda console: _show(console, said))


def _since_ms(text: str) -> int:
    """Milliseconds since the epoch of a time, or of how long ago.

    Raises
    ------
    InputError
        It is neither.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return max(0, time.time_ns() // 1_000_000 - 1000 * duration_s(text, "--since"))
    return max(0, int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000))


def _built_on(
    output: Output,
    answers: Sequence[str],
    why: str | None,
    ledger: str | None,
    domain: str | None,
) -> tuple[RollBack, dict[str, Node], Sequence[str]]:
    """What builds on the answers, its nodes by id, and the answers that were withdrawn.

    Without a ledger nothing is known to build on any of them; that is an error only where a
    ledger was named, or something is to be withdrawn.
    """
    nodes: dict[str, Node] = {}
    try:
        with opened(output, ledger, domain) as asked:

            def descendants(answer: str) -> list[str]:
                _require_known(asked, answer)
                below = asked.descendants(answer)
                nodes.update((node.id, node) for node in below)
                return [node.id for node in below]

            found = roll_back(answers, descendants)
            return found, nodes, _withdrawn(asked, found, why)
    except LedgerError as error:
        if ledger is not None or why is not None:
            raise
        output.warn(f"nothing is known of what was built on them: {error.sentence}")
        return RollBack(tuple(dict.fromkeys(answers)), (), tuple(answers)), {}, ()


def _require_known(asked: Ledger, answer: str) -> None:
    """Raises ``UnknownNode``, also where other ids begin with this one."""
    try:
        known = asked.node(answer).id == answer
    except InputError:
        known = False
    if not known:
        raise UnknownNode(f"the ledger knows nothing of {answer[:80]!r}")


def _withdrawn(asked: Ledger, found: RollBack, why: str | None) -> Sequence[str]:
    if why is None:
        return ()
    withdrawn = [answer for answer in found.answers if answer not in found.unlisted]
    for answer in withdrawn:
        asked.withdraw(answer, why=why)
    return withdrawn


def _node(node: Node) -> JSON:
    return {
        "id": node.id,
        "kind": node.kind.value,
        "label": node.label,
        "agent": node.agent,
        "created_ms": node.created_ms,
        "stale": node.stale is not None,
    }


def _show(console: Console, said: JSON) -> None:
    answers, unlisted = said["answers"], set(said["unlisted"])
    rows = [(answer, "not in the ledger" if answer in unlisted else "") for answer in answers]
    if rows:
        print_table(console, ("answer from a cache", ""), rows)
        console.print()
    built = [
        (node["kind"], short_id(node["id"]), ago(node["created_ms"]), node["agent"], node["label"])
        for node in said["contaminated"]
    ]
    if built:
        print_table(console, ("built on them", "id", "age", "agent", "label"), built, right="  r")
        console.print()
    console.print(
        f"{len(answers)} answers came from caches, {len(built)} nodes were built on them",
        markup=False,
    )
    if unlisted:
        console.print(
            f"of {len(unlisted)} answers the ledger does not say what was built on them",
            markup=False,
        )
    if said["withdrawn"]:
        console.print(
            f"{len(said['withdrawn'])} answers were withdrawn, and all that was built on them",
            markup=False,
        )
