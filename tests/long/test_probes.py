"""The probes on SmolLM2: honest takes, and what is noticed (``docs/guides/probes.md``)."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from kvbaton.backing import Source, Taken
from kvbaton.bench.kl import coded_cache
from kvbaton.bench.texts import text_kinds
from kvbaton.checking import recorded_losses
from kvbaton.codecs import CodecPlan
from kvbaton.codecs.calibration import stored_calibrations
from kvbaton.codecs.profiles import profile
from kvbaton.kinds import Importance
from kvbaton.probes.limits import WindowLimits, honest_cache, limits_for
from kvbaton.probes.reconstruction import reconstruction
from kvbaton.probes.windows import choose_windows, examine
from kvbaton.relay import Checks, Relay
from kvbaton.seals import TrustDomain
from kvbaton.stores import MemoryStore
from kvbaton.tuning.probe_limits import stored_probe_limits
from kvbaton.types import EXACT, Baton, ReasonCode
from kvbaton.wire.digests import DomainKeys

pytestmark = pytest.mark.long

MEASURED = ("near-lossless", "layered", "compact", "tiny")
PROFILES = ("exact", *MEASURED, "shallow")
DOMAIN = TrustDomain("local", DomainKeys(bytes(range(32))))


@pytest.fixture(scope="module", params=["bfloat16", "float32"])
def engine(request: pytest.FixtureRequest) -> Any:
    """SmolLM2 in both dtypes."""
    short = {"bfloat16": "bf16", "float32": "f32"}[request.param]
    return request.getfixturevalue(f"smollm2_{short}")


def plan_of(engine: Any, name: str) -> CodecPlan | None:
    """The shipped plan of a profile; None for the lossless one."""
    if name == "exact":
        return None
    known = stored_calibrations(engine.function.digest)
    record = known.find(engine.function.digest, name)
    return record.calibrated_plan if record else profile(name).plan(engine.layout)


def excerpts(engine: Any, count: int, seed: int, *, longest: int = 160) -> list[list[int]]:
    """Ids from random places of texts of all kinds."""
    chosen, found = random.Random(seed), []
    texts = [
        engine.tokenizer.encode(t.text[:60_000], add_special_tokens=False) for t in text_kinds()
    ]
    for number in range(count):
        text = texts[number % len(texts)]
        length = chosen.randint(32, longest)
        first = chosen.randint(0, len(text) - length)
        found.append(text[first : first + length])
    return found


def relay_of(engine: Any, name: str, size: int = 64) -> Relay:
    """A relay with a store of its own, in a profile."""
    known = stored_calibrations(engine.function.digest)
    return Relay(
        engine,
        MemoryStore(),
        DOMAIN,
        segment_tokens=size,
        plan=plan_of(engine, name),
        checks=Checks(losses=recorded_losses(known.get)),
    )


def told(relay: Relay, cache: Any, said: list[int]) -> Baton:
    """A baton of a cache that says it is of these ids."""
    return relay.hand_off(Source(cache, len(said), tuple(said)), sender="a", text="")


def taken(relay: Relay, baton: Baton, tokens: int) -> Taken:
    """The first tokens of it attached."""
    segments, ids = baton.manifest.segments, baton.transcript.ids
    return relay.attach(segments, ids, tokens, room=1, deadline_s=math.inf)


@pytest.mark.parametrize("name", PROFILES)
def test_honest_takes_are_attached_and_lies_are_not(engine: Any, name: str) -> None:
    """Layer 0: no false alarm, and every text, swap, shift or single token that is another."""
    chosen, sets = random.Random(0), excerpts(engine, 12, seed=1)
    vocabulary = engine.tokenizer.vocab_size
    for way, ids in enumerate(sets):
        relay, count = relay_of(engine, name, chosen.choice((16, 64, 256))), len(ids)
        cache = honest_cache(engine, ids, chosen, way=way)
        honest = told(relay, cache, ids)
        for used in (count, chosen.randint(1, count)):
            assert taken(relay, honest, used).cache is not None
        place, strange = chosen.randrange(count - 1), chosen.randrange(100, vocabulary)
        other = sets[(way + 1) % len(sets)]
        for said in (
            (other * count)[:count],
            [*ids[:place], strange, *ids[place + 1 :]],
            [*ids[:place], ids[place + 1], ids[place], *ids[place + 2 :]],
            [ids[-1], *ids[:-1]],
        ):
            if said == ids:
                continue
            refused = taken(relay, told(relay, cache, said), count)
            assert refused.cache is None
            assert [r.code for r in refused.reasons] == [ReasonCode.KV_OTHER_TOKENS]


def test_each_token_of_a_context_is_computed_once(engine: Any) -> None:
    """The check computes layer 0 of the distinct tokens, and counts as no prefill."""
    (ids,) = excerpts(engine, 1, seed=2)
    relay = relay_of(engine, "exact")
    baton = told(relay, honest_cache(engine, ids, random.Random(0), way=0), ids)
    before = engine.computed_tokens()
    assert taken(relay, baton, len(ids)).probed == len(ids)
    assert engine.computed_tokens() == before


# --- windows -------------------------------------------------------------------------------------


def limits_of(engine: Any, plan: CodecPlan | None, folder: Path) -> WindowLimits:
    """The shipped limits of a plan."""
    known = stored_probe_limits(engine.function.digest, folder)
    fidelity = EXACT if plan is None else plan.fidelity
    layout = engine.layout
    found = limits_for([fidelity], known, dtype=layout.dtype, layers=len(layout.layers))
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["exact", *MEASURED])
def test_windows_of_honest_takes_are_honest(engine: Any, name: str, tmp_path: Path) -> None:
    """At once, in chunks and token by token, through the shipped limits of each profile."""
    plan, chosen = plan_of(engine, name), random.Random(4)
    limits = limits_of(engine, plan, tmp_path)
    for way, ids in enumerate(excerpts(engine, 12, seed=3, longest=300)):
        cache = honest_cache(engine, ids, chosen, way=way)
        if plan is not None:
            cache = coded_cache(engine, cache, plan, tokens=len(ids)).cache
        windows = choose_windows(len(ids), Importance.CRITICAL, chosen)
        report = examine(engine, cache, ids, windows, limits)
        assert not report.odd, report.sentence()


@pytest.mark.parametrize("name", ["exact", "near-lossless", "compact"])
def test_windows_notice_another_history(engine: Any, name: str, tmp_path: Path) -> None:
    """Deep layers of another text behind an honest layer 0."""
    plan, chosen = plan_of(engine, name), random.Random(5)
    limits = limits_of(engine, plan, tmp_path)
    for ids in excerpts(engine, 4, seed=6, longest=300):
        other = [*ids[:8], *reversed(ids[8:])]
        cache = honest_cache(engine, ids, chosen, way=0)
        foreign = honest_cache(engine, other, chosen, way=0)
        for mine, theirs in zip(cache.layers[1:], foreign.layers[1:], strict=True):
            mine.k_store.copy_(theirs.k_store)
            mine.v_store.copy_(theirs.v_store)
        if plan is not None:
            cache = coded_cache(engine, cache, plan, tokens=len(ids)).cache
        windows = choose_windows(len(ids), Importance.CRITICAL, chosen)
        assert examine(engine, cache, ids, windows, limits).odd


def test_large_changes_are_noticed_where_a_window_touches_them(engine: Any, tmp_path: Path) -> None:
    """K and V of one layer replaced by random ones of the same size, at one position in twenty."""
    chosen, generator = random.Random(7), torch.Generator().manual_seed(0)
    limits = limits_of(engine, None, tmp_path)
    (ids,) = excerpts(engine, 1, seed=8, longest=300)
    found = 0
    for layer in range(0, len(engine.layout.layers), 3):
        cache = honest_cache(engine, ids, chosen, way=0)
        places = torch.tensor(sorted(chosen.sample(range(len(ids)), len(ids) // 20 + 1)))
        for store in (cache.layers[layer].k_store, cache.layers[layer].v_store):
            old = store[:, :, places].float()
            new = torch.randn(old.shape, generator=generator)
            scale = old.norm(dim=(1, 3), keepdim=True) / new.norm(dim=(1, 3), keepdim=True)
            store[:, :, places] = (new * scale).to(store.dtype)
        windows = choose_windows(len(ids), Importance.CRITICAL, chosen)
        found += examine(engine, cache, ids, windows, limits).odd
    assert found == len(range(0, len(engine.layout.layers), 3))


# --- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROFILES)
def test_the_text_is_read_from_the_cache_alone(engine: Any, name: str) -> None:
    """Every token, through every profile: K and V are as secret as the text."""
    plan = plan_of(engine, name)
    for ids in excerpts(engine, 5, seed=9):
        cache = honest_cache(engine, ids, random.Random(0), way=1)
        if plan is not None:
            cache = coded_cache(engine, cache, plan, tokens=len(ids)).cache
        found = reconstruction(engine, cache, ids)
        assert (found.share, found.poor) == (1.0, False)
        assert found.text == engine.tokenizer.decode(ids)
