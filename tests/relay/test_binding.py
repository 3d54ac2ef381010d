"""KV is attached only if it is that of its tokens: layer 0 of everything, on every take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.relay.conftest import make_engine

from kvbaton.backing import Inherited, Source, Taken
from kvbaton.checking import examine_baton, probe_windows
from kvbaton.codecs.profiles import PROFILES
from kvbaton.kinds import Importance
from kvbaton.relay import Checks, Relay
from kvbaton.seals import TrustDomain
from kvbaton.stores import MemoryStore
from kvbaton.types import (
    EXACT,
    Baton,
    Fidelity,
    FidelityClass,
    Move,
    Outcome,
    ReasonCode,
    Route,
    TokenRun,
)
from kvbaton.wire.digests import DomainKeys

RECORD = "ca" * 32
FAMILIES = ("llama", "qwen2-window", "gemma3")
"""Full layers only, full ones first, and window layers first."""
LONG = "Hello there, you plan and code. " * 4


@cache
def engine_of(family: str) -> Any:
    """One tiny engine per family."""
    return make_engine(family)


def ids_of(count: int, seed: int = 0) -> list[int]:
    """Ids of which neighbours differ."""
    return [3 + (31 * i + 7 * i * i + 13 * seed) % 89 for i in range(count)]


def relay_of(family: str, profile: str, segment_tokens: int = 16, **options: Any) -> Relay:
    """A relay with a store of its own."""
    engine = engine_of(family)
    plan = PROFILES[profile].plan(engine.layout)
    domain = TrustDomain("local", DomainKeys(bytes(range(32))))
    return Relay(
        engine,
        MemoryStore(),
        domain,
        segment_tokens=segment_tokens,
        plan=plan if plan.lossless else plan.calibrated(RECORD),
        calibrations=lambda function: frozenset({RECORD}),
        **options,
    )


def told(relay: Relay, computed: Sequence[int], said: Sequence[int], *, text: str = "") -> Baton:
    """A baton of the KV of some ids that says it is of others."""
    kv = relay.engine.new_cache(len(computed))
    relay.engine.forward(kv, computed)
    return relay.hand_off(Source(kv, len(said), tuple(said)), sender="a", text=text)


def attached(relay: Relay, baton: Baton, moves: Any, behind: int | None = None) -> Taken:
    """What attaching some of it gives."""
    segments, ids = baton.manifest.segments, baton.transcript.ids
    return relay.attach(segments, ids, moves, room=4, deadline_s=math.inf, behind=behind)


def first_held(family: str, tokens: int) -> int:
    """The first position of which layer 0 holds anything."""
    window = engine_of(family).layout.layers[0].window
    return max(0, tokens - (window - 1)) if window else 0


# --- laws ----------------------------------------------------------------------------------------

FLOWS = st.tuples(
    st.sampled_from(FAMILIES),
    st.sampled_from(sorted(PROFILES)),
    st.integers(2, 60),
    st.sampled_from((3, 16, 64)),
)


@given(flow=FLOWS, seed=st.integers(0, 50))
@settings(max_examples=60)
def test_honest_caches_are_attached(flow: tuple[str, str, int, int], seed: int) -> None:
    """Of any layout, codec, length and cut; each position that layer 0 holds is looked at."""
    family, profile, tokens, size = flow
    relay, ids = relay_of(family, profile, size), ids_of(tokens, seed)
    taken = attached(relay, told(relay, ids, ids), tokens)
    assert taken.cache is not None, taken.reasons
    assert taken.probed == tokens - first_held(family, tokens)


@given(flow=FLOWS, data=st.data())
@settings(max_examples=60)
def test_one_other_token_anywhere_is_refused(flow: tuple[str, str, int, int], data: Any) -> None:
    """The place is named, and nothing is attached; what is not attached does not matter."""
    family, profile, tokens, size = flow
    relay, ids = relay_of(family, profile, size), ids_of(tokens)
    windowed = bool(relay.engine.layout.window_layers)
    wrong = data.draw(st.integers(first_held(family, tokens), tokens - 1))
    used = tokens if windowed else data.draw(st.integers(1, tokens))
    said = list(ids)
    said[wrong] = 3 + (ids[wrong] + data.draw(st.integers(1, 85))) % 89
    taken = attached(relay, told(relay, ids, said), used)
    if wrong >= used or said[wrong] == ids[wrong]:
        assert taken.cache is not None, taken.reasons
        return
    (reason,) = taken.reasons
    assert (taken.cache, reason.code) == (None, ReasonCode.KV_OTHER_TOKENS)
    assert reason.sentence.startswith(f"position {wrong} ")
    assert reason.at.startswith("$.segments[") and reason.at.endswith("].ranges[0]")


@given(
    profile=st.sampled_from(sorted(PROFILES)),
    first=st.integers(0, 30),
    count=st.integers(1, 29),
    behind=st.integers(0, 40),
    wrong=st.integers(0, 59),
)
@settings(max_examples=60)
def test_slices_are_held_to_the_tokens_of_the_baton(
    profile: str, first: int, count: int, behind: int, wrong: int
) -> None:
    """Wherever a run is moved to, its tokens are those at its place in the baton."""
    relay, ids = relay_of("llama", profile), ids_of(60)
    said = list(ids)
    said[wrong] = 3 + (ids[wrong] - 3 + 40) % 89
    moves = [Move(TokenRun(first, count), behind)]
    honest = attached(relay, told(relay, ids, ids), moves, behind)
    assert honest.cache is not None, honest.reasons
    assert honest.probed == count
    taken = attached(relay, told(relay, ids, said), moves, behind)
    if first <= wrong < first + count:
        assert taken.cache is None
    elif profile == "exact":  # groups of a codec may reach over tokens that are not attached
        assert taken.cache is not None


# --- whole takes ---------------------------------------------------------------------------------

LIES = {
    "another text": lambda ids: ids_of(len(ids), seed=9),
    "two tokens swapped": lambda ids: [*ids[:20], ids[21], ids[20], *ids[22:]],
    "shifted by one": lambda ids: [ids[-1], *ids[:-1]],
    "one left out": lambda ids: [*ids[:10], *ids[11:], ids[0]],
}


@pytest.mark.parametrize("profile", sorted(PROFILES))
@pytest.mark.parametrize("lie", sorted(LIES))
def test_kv_of_other_tokens_is_refused(lie: str, profile: str) -> None:
    """A sender that signs what is not so does not get it attached."""
    relay, ids = relay_of("llama", profile), ids_of(50)
    taken = attached(relay, told(relay, LIES[lie](ids), ids), 50)
    assert taken.cache is None
    assert [reason.code for reason in taken.reasons] == [ReasonCode.KV_OTHER_TOKENS]


def test_the_answer_is_computed_from_the_text(agent_of: Any, store: Any, engine: Any) -> None:
    """A take of such a baton answers as if it had had no cache, and says why."""
    sender, receiver = agent_of("a"), agent_of("b")
    turn = sender.run(LONG, max_new_tokens=9)
    ids = turn.conversation.ids
    other = engine.new_cache(len(ids))
    engine.forward(other, [*ids[:5], ids[5] + 1, *ids[6:]])
    baton = sender.relay.hand_off(Source(other, len(ids), tuple(ids)), sender="a", text=turn.text)
    took = receiver.take(baton, "Go on", max_new_tokens=5)
    receipt = took.receipt
    assert (receipt.route, receipt.outcome) == (Route.TEXT, Outcome.KV_UNUSABLE)
    assert [reason.code for reason in receipt.reasons] == [ReasonCode.KV_OTHER_TOKENS]
    assert receipt.reused_tokens == 0
    honest = agent_of("c", store=MemoryStore()).take(baton, "Go on", max_new_tokens=5)
    assert honest.text == took.text


def test_nan_in_layer_0_is_no_token() -> None:
    """What is not a number is not near any token, even where finiteness is not asked for."""
    relay, ids = relay_of("llama", "exact"), ids_of(30)
    kv = relay.engine.new_cache(30)
    relay.engine.forward(kv, ids)
    kv.layers[0].v_store[0, 0, 7, 0] = torch.nan
    taken = attached(relay, relay.hand_off(Source(kv, 30, tuple(ids)), sender="a", text=""), 30)
    assert taken.cache is None


def test_no_later_layer_is_attached_before_the_check() -> None:
    """The slot never sees a layer of a cache that is not of its tokens."""
    seen: list[Any] = []
    relay, ids = (
        relay_of("llama", "exact", observer=lambda event, facts: seen.append(event)),
        ids_of(50),
    )
    baton = told(relay, [*ids[:49], ids[0]], ids)
    seen.clear()
    assert attached(relay, baton, 50).cache is None
    assert seen.count("layer-attached") <= 3  # the segments of layer 0 before the wrong one


def test_the_check_can_be_left_out() -> None:
    """Experiments attach wrong caches on purpose."""
    relay, ids = relay_of("llama", "exact", checks=Checks(tokens=False)), ids_of(40)
    taken = attached(relay, told(relay, ids_of(40, seed=9), ids), 40)
    assert taken.cache is not None
    assert taken.probed == 0


@pytest.mark.parametrize("level", [0.1])
def test_noise_widens_what_is_allowed(level: float) -> None:
    """An honest cache with the noise that its manifest states is attached, another text is not."""
    relay, ids = relay_of("llama", "exact"), ids_of(40)
    kv = relay.engine.new_cache(40)
    relay.engine.forward(kv, ids)
    generator = torch.Generator().manual_seed(0)
    values = kv.layers[0].v_store
    rms = values.square().mean(-1, keepdim=True).sqrt()
    values += level * rms * torch.randn(values.shape, generator=generator)
    noisy = (Inherited(TokenRun(0, 40), Fidelity(FidelityClass.APPROXIMATE)),)
    source = Source(kv, 40, tuple(ids), inherited=noisy)
    baton = relay.hand_off(source, sender="a", text="")

    def take(noise: float, said: Sequence[int]) -> Any:
        segments = (
            told(relay, said, ids).manifest.segments if said != ids else baton.manifest.segments
        )
        return relay.attach(segments, ids, 40, room=0, deadline_s=math.inf, noise=noise).cache

    assert take(level, ids) is not None
    assert take(0.0, ids) is None
    assert take(level, ids_of(40, seed=9)) is None


# --- a whole baton -------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["exact", "compact"])
def test_a_whole_baton_is_examined(profile: str) -> None:
    """All probes of an honest baton; what was not measured is said, not guessed."""
    relay, ids = relay_of("llama", profile), ids_of(40)
    found = examine_baton(relay, told(relay, ids, ids))
    assert found.positions == 40
    assert found.reconstruction is not None
    assert (found.reconstruction.share, found.reconstruction.first_wrong) == (1.0, None)
    assert "text" not in str(sorted(found.to_json()["reconstruction"]))
    if profile == "exact":
        assert found.windows is not None
        assert (found.windows.odd, found.reasons) == (False, ())
    else:
        assert found.windows is None
        assert [reason.code for reason in found.reasons] == [ReasonCode.PROBE_IMPOSSIBLE]


def test_a_liar_that_keeps_layer_0_honest_is_seen_by_windows() -> None:
    """Deep layers of another text pass the check of layer 0, and not the windows."""
    relay, ids = relay_of("llama", "exact"), ids_of(40)
    engine = relay.engine
    mine, other = engine.new_cache(40), engine.new_cache(40)
    engine.forward(mine, ids)
    engine.forward(other, ids_of(40, seed=9))
    for layer in (1, 2, 3):
        mine.layers[layer].k_store[:] = other.layers[layer].k_store
        mine.layers[layer].v_store[:] = other.layers[layer].v_store
    baton = relay.hand_off(Source(mine, 40, tuple(ids)), sender="a", text="")
    assert attached(relay, baton, 40).cache is not None
    found = examine_baton(relay, baton)
    assert [reason.code for reason in found.reasons] == [ReasonCode.WINDOWS_ODD]


def test_what_cannot_be_examined_is_said(window_engine: Any) -> None:
    """Window layers no longer have what a row attends to; ordinary takes ask for nothing."""
    kv, ids = window_engine.new_cache(20), ids_of(20)
    window_engine.forward(kv, ids)
    report, reason = probe_windows(window_engine, kv, ids, [EXACT], None)
    assert report is None
    assert reason is not None and reason.code is ReasonCode.PROBE_IMPOSSIBLE
    ordinary = probe_windows(window_engine, kv, ids, [EXACT], None, importance=Importance.ORDINARY)
    assert ordinary == (None, None)


def test_another_model_is_named() -> None:
    """A baton for other weights is not examined with these."""
    relay, ids = relay_of("llama", "exact"), ids_of(20)
    baton = told(relay, ids, ids)
    other = relay_of("gemma3", "exact")
    (reason,) = examine_baton(other, baton).reasons
    assert reason.code is ReasonCode.FUNCTION_DIFFERS
    assert baton.manifest.fidelity.kind is FidelityClass.EXACT
