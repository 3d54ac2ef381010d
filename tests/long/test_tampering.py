"""All of the corpus: ten thousand tampered batons and more refused, a thousand honest ones used."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.attacks.honest import SORTS, House, trials
from tests.attacks.tampering import envelopes, manifests, parts
from tests.attacks.tampering.pool import KINDS, Pool, cases

import kvbaton as kb
from kvbaton.stores import MemoryStore
from kvbaton.types import Outcome

pytestmark = pytest.mark.long

EACH = 200
TAMPERED, HONEST = 10_000, 1_000
MODULES = (envelopes, manifests, parts)
PROFILES = ("exact", "near-lossless", "compact", "layered", "tiny")


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """Tiny models are faster so, and other work on the machine is left alone."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_tampered_baton_is_refused_for_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """200 of each kind, no two alike, each with outcome and reason code of its kind, and with the
    answer of a run that never saw the baton."""
    pool = Pool(tmp_path)
    found: dict[str, Counter[str]] = {}
    for name, kind in KINDS.items():
        found[name] = Counter(pool.tried(case) for case in cases(pool, kind, EACH))
    with capsys.disabled():
        print()
        for name, counts in found.items():
            refused, wanted = counts[KINDS[name].wanted], KINDS[name].wanted
            print(f"  {refused} of {EACH}  {name}: {wanted}")
        print(f"  {sum(counts.total() for counts in found.values())} in all")
    assert {name: dict(counts) for name, counts in found.items()} == {
        name: {kind.wanted: EACH} for name, kind in KINDS.items()
    }
    assert len(KINDS) * EACH >= TAMPERED


def test_every_honest_baton_is_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Seventeen families, two dtypes, four codecs, six sorts, with and without encryption."""
    counts: Counter[str] = Counter()
    odd = []
    for one in trials(House(tmp_path)):
        takes = len(one.found.split()) if one.sort == "chain" else 1
        counts[one.sort] += takes
        if one.found != one.wanted:
            odd.append(one)
    with capsys.disabled():
        print(f"\n  {counts.total()} honest takes: {dict(counts)}; not accepted: {len(odd)}")
    assert odd == []
    assert set(counts) == set(SORTS)
    assert counts.total() >= HONEST


@pytest.mark.parametrize("profile", PROFILES)
def test_honest_batons_of_a_real_model_are_accepted(smollm2_f32: Any, profile: str) -> None:
    """Each shipped profile on SmolLM2-135M: every take by baton, and critical ones, too."""
    store = MemoryStore()
    for number in range(3):
        options: dict[str, Any] = {"store": store, "profile": profile}
        sender = kb.Agent("planner", smollm2_f32, system="You plan.", **options)
        turn = sender.run(f"Room {number} holds the key of door 7. " * 20, max_new_tokens=8)
        baton = sender.hand_off(turn)
        for importance in ("ordinary", "critical"):
            taker = kb.Agent("coder", smollm2_f32, **options)
            taken = taker.take(baton.id, "Which key?", max_new_tokens=4, importance=importance)
            assert taken.receipt.outcome is Outcome.USED, taken.receipt.reasons
