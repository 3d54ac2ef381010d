"""`bench ledger`: the work is what it says to be, and the figures follow from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvbaton.bench import ledger as bench
from kvbaton.bench import made_up
from kvbaton.bench.ledger import LedgerPlan, hand_offs, measure_ledger
from kvbaton.bench.ledger_report import ledger_tables
from kvbaton.errors import BatonRefused, InputError
from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.records import NodeKind
from kvbaton.policy.base import GatesOnly
from kvbaton.seals import TrustDomain
from kvbaton.types import Route
from kvbaton.wire.digests import DomainKeys
from kvbaton.wire.manifest import encode_manifest, parse_manifest

PLAN = LedgerPlan(known=20, records=6, decisions=5, handoffs=12, repeats=2)
PROMISED = ("record_ms", "decide_ms", "handoffs_per_s")
DOMAIN = TrustDomain("local", DomainKeys(bytes(range(32))))


@pytest.fixture(scope="module")
def result() -> Any:
    """A whole run, with few of everything."""
    return measure_ledger(PLAN, lambda said: None)


def test_the_result_has_the_promised_fields(result: Any) -> None:
    """All promised figures are positive numbers, and JSON can carry the result."""
    assert all(result[name] > 0 for name in PROMISED)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert result["settings"]["handoffs"] == 12
    assert len(result["samples"]["handoffs_per_s"]) == PLAN.repeats
    assert [target["value"] for target in result["summary"]["targets"]] == [
        result[name] for name in (*PROMISED, "notice_ms")
    ]


def test_a_run_leaves_two_records_of_each_hand_off(tmp_path: Path) -> None:
    """A baton on its parent, and an answer on the baton, in chains of five."""
    figures = hand_offs(PLAN, DOMAIN, tmp_path / "run")
    assert set(figures["handoff_us"]) == {*bench.PARTS, "ledger"}
    with Ledger(f"sqlite:///{tmp_path}/run/ledger.db", "local") as ledger:
        batons = ledger.nodes(kind=NodeKind.BATON, limit=None)
        answers = ledger.nodes(kind=NodeKind.ANSWER, limit=None)
    assert (len(batons), len(answers)) == (PLAN.handoffs, PLAN.handoffs + 1)
    assert sum(not node.parents for node in batons) == 3
    ids = {node.id for node in batons}
    assert all(set(node.parents) <= ids for node in batons + answers)
    assert sum(len(node.parents) for node in answers) == PLAN.handoffs
    assert list((tmp_path / "run" / "spool").glob("*")) == []


def test_made_up_manifests_are_real_ones() -> None:
    """They are encoded, parsed, and pass every gate; their segments cover the context."""
    listing = made_up.listing(4096, DOMAIN.keys)
    assert parse_manifest(encode_manifest(listing)) == listing
    assert sum(ref.span.count for ref in listing.segments) == listing.cached_tokens == 4095
    assert bench.decide(GatesOnly(), listing) is Route.BATON


def test_figures_of_another_route_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the policy answers by text, nothing is called a hand-off."""
    monkeypatch.setattr(bench, "decide", lambda policy, listing: Route.TEXT)
    with pytest.raises(BatonRefused):
        hand_offs(PLAN, DOMAIN, tmp_path / "run")


def test_moves_make_stale_what_was_built_on_the_head_before(tmp_path: Path) -> None:
    """Each measured move marks six nodes, and each measured look finds a fresh one."""
    with Ledger(f"sqlite:///{tmp_path}/ledger.db", "local") as ledger:
        moved, fresh = bench.move_times(ledger, 4)
        assert (len(moved), len(fresh)) == (4, 4)
        assert len(ledger.nodes(stale=True)) == 3 * 6
        assert len(bench.record_times(ledger, 3)) == 3


def test_tables_have_a_cell_for_every_heading(result: Any) -> None:
    """And Markdown keeps its columns."""
    for table in ledger_tables(result):
        assert table.rows
        assert all(len(row) == len(table.headings) for row in table.rows)
        assert len({line.count(" | ") for line in table.markdown().splitlines()[2:]}) == 1


@pytest.mark.parametrize(
    "wrong", [{"known": 0}, {"records": 0}, {"handoffs": 0}, {"tokens": 1}, {"repeats": 0}]
)
def test_plans_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    """There is at least one of everything, and a token that is cached before the pending one."""
    with pytest.raises(InputError):
        LedgerPlan(**wrong)
