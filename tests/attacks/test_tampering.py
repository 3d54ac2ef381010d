"""A sample of the corpus of tampered batons; ``tests/long/test_tampering.py`` tries all of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.attacks.honest import NO_SLICES, SORTS, House, trials
from tests.attacks.tampering import envelopes, manifests, parts
from tests.attacks.tampering.pool import KINDS, PROMPTS, Case, Pool, cases

EACH = 11
MODULES = (envelopes, manifests, parts)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Pool:
    """The honest batons."""
    return Pool(tmp_path_factory.mktemp("pool"))


def test_the_honest_ones_are_used(pool: Pool) -> None:
    """Each baton of the pool, with a ticket and without."""
    for baton in pool.batons:
        assert pool.tried(Case(baton)) == "used"
        assert pool.tried(Case(baton, ticket=pool.ticket(baton))) == "used"
    for prompt in PROMPTS:
        assert pool.tried(Case(pool.raw[0], prompt=prompt)) == "no-baton prefix-hit"


@pytest.mark.parametrize("name", KINDS)
def test_the_tampered_are_refused_each_for_its_reason(pool: Pool, name: str) -> None:
    """Outcome class and reason code of the kind, and an answer that never saw the baton."""
    kind = KINDS[name]
    found = [pool.tried(case) for case in cases(pool, kind, EACH)]
    assert found == [kind.wanted] * EACH


def test_the_sample_is_large_enough() -> None:
    """At least 600 tampered batons."""
    assert len(KINDS) * EACH >= 600


@pytest.mark.parametrize(("family", "dtype"), [("llama", "float32"), ("gemma3", "bfloat16")])
def test_honest_ones_of_every_sort_are_accepted(tmp_path: Path, family: str, dtype: str) -> None:
    """Whole, over four hops, sliced, as text, for another domain, with a ticket; each encrypted
    and not."""
    plans = ("exact", "int8")
    found = list(trials(House(tmp_path), families=[family], dtypes=[dtype], plans=plans))
    assert [one for one in found if one.found != one.wanted] == []
    assert len(found) == 4 * (len(SORTS) - (family in NO_SLICES))
