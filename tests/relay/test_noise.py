"""Noise on K and V: how large it is, and that it is always the same."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.relay.conftest import SEGMENT_TOKENS

from kvbaton.errors import InputError
from kvbaton.noise import MAX_LEVEL, blur_layers, checked_level, span_seeds
from kvbaton.types import FidelityClass, Route, SegmentKind, SegmentSpan, SlicedLayer
from kvbaton.wire.digests import DomainKeys

KEYS = DomainKeys(bytes(range(32)))
FUNCTION = "f" * 64
IDS = tuple(range(100, 164))


def layer(
    *,
    seed: int = 0,
    first: int = 0,
    tokens: int = 32,
    index: int = 3,
    dtype: torch.dtype = torch.float32,
    heads: int = 2,
    dim: int = 16,
) -> SlicedLayer:
    """K and V of normal numbers, every token with a size of its own."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.linspace(0.1, 9.0, tokens)[None, :, None]
    k, v = (torch.randn(2, heads, tokens, dim, generator=generator) * sizes).to(dtype)
    span = SegmentSpan(first, tokens)
    return SlicedLayer(span, index, span, k, v)


def blur(part: SlicedLayer, level: float, seed: bytes = b"s") -> SlicedLayer:
    """One layer through the arrow."""
    (made,) = blur_layers([part], level, lambda span: seed)
    return made


# --- how large -----------------------------------------------------------------------------------


@given(
    level=st.floats(0.001, 2.0),
    seed=st.integers(0, 1 << 30),
    heads=st.integers(1, 3),
    tokens=st.integers(1, 40),
)
def test_noise_has_the_size_that_is_asked_for(
    level: float, seed: int, heads: int, tokens: int
) -> None:
    """Per head and token, relative to the root mean square: over 256 channels within 30%."""
    part = layer(seed=seed, heads=heads, tokens=tokens, dim=256)
    made = blur(part, level, seed.to_bytes(8, "little"))
    for clean, noisy in ((part.keys, made.keys), (part.values, made.values)):
        size = (noisy - clean).pow(2).mean(-1).sqrt() / clean.pow(2).mean(-1).sqrt()
        assert (size > 0.7 * level).all() and (size < 1.3 * level).all()


def test_noise_is_gaussian() -> None:
    """Mean, variance, and the share within one and two standard deviations, of 200,000 draws."""
    part = layer(tokens=400, heads=2, dim=256)
    made = blur(part, 0.5)
    scale = 0.5 * part.keys.pow(2).mean(-1, keepdim=True).sqrt()
    drawn = (made.keys - part.keys) / scale
    assert abs(float(drawn.mean())) < 0.01
    assert abs(float(drawn.var()) - 1) < 0.01
    assert abs(float((drawn.abs() < 1).float().mean()) - 0.6827) < 0.005
    assert abs(float((drawn.abs() < 2).float().mean()) - 0.9545) < 0.005


def test_keys_and_values_and_layers_get_noise_of_their_own() -> None:
    """Otherwise one could be taken away with the help of another."""
    part = layer(tokens=64, dim=64)
    same = SlicedLayer(part.span, part.layer, part.run, part.keys, part.keys)
    deeper = SlicedLayer(part.span, part.layer + 1, part.run, part.keys, part.keys)
    made, other = blur(same, 1.0), blur(deeper, 1.0)
    drawn = [t - part.keys for t in (made.keys, made.values, other.keys, blur(same, 0.5).keys)]
    for i, a in enumerate(drawn):
        for b in drawn[:i]:
            alike = float((a * b).sum() / (a.norm() * b.norm()))
            assert abs(alike) < 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtype_and_shape_stay(dtype: torch.dtype) -> None:
    """The result can be encoded like what was exported, and is finite at the dtype's bounds."""
    part = layer(dtype=dtype)
    part.keys[:] = torch.finfo(dtype).max
    made = blur(part, MAX_LEVEL)
    assert made.keys.dtype == made.values.dtype == dtype
    assert made.keys.shape == part.keys.shape
    assert torch.isfinite(made.keys).all() and torch.isfinite(made.values).all()


def test_level_zero_changes_nothing() -> None:
    """No noise is the very same layer."""
    part = layer()
    assert blur(part, 0) is part


def test_what_was_exported_is_left_as_it_is() -> None:
    """The arrow makes new tensors."""
    part = layer()
    before = part.keys.clone()
    blur(part, 1.0)
    assert torch.equal(part.keys, before)


@pytest.mark.parametrize("level", [-0.1, float("nan"), float("inf"), MAX_LEVEL * 2, True, "1"])
def test_a_level_that_is_none_is_refused(level: Any) -> None:
    """Before anything is exported."""
    with pytest.raises(InputError):
        checked_level(level)
    with pytest.raises(InputError):
        next(blur_layers([layer()], level, lambda span: b"s"))


# --- always the same -----------------------------------------------------------------------------


@given(
    level=st.sampled_from([0.01, 0.3, 2]),
    seed=st.binary(min_size=1, max_size=40),
    first=st.integers(0, 1000),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_the_same_layer_gets_the_same_noise(
    level: float, seed: bytes, first: int, dtype: torch.dtype
) -> None:
    """Byte for byte; another seed or place gives other bytes."""
    part = layer(first=first, dtype=dtype)
    made, again = blur(part, level, seed), blur(part, level, seed)
    assert torch.equal(made.keys, again.keys) and torch.equal(made.values, again.values)
    other = blur(part, level, seed + b"x")
    elsewhere = blur(layer(first=first + 1, dtype=dtype), level, seed)
    assert not torch.equal(made.keys, other.keys)
    assert not torch.equal(made.values, elsewhere.values)


CHILD = """
import hashlib, sys, torch
torch.set_num_threads(int(sys.argv[1]))
from tests.relay.test_noise import blur, layer
part = blur(layer(tokens=300, heads=4, dim=64), 0.3, b"seed")
print(hashlib.sha256(part.keys.numpy().tobytes() + part.values.numpy().tobytes()).hexdigest())
"""


def test_other_processes_and_threads_make_the_same_bytes() -> None:
    """So a second hand-off, wherever it runs, finds its segments in the store."""
    part = blur(layer(tokens=300, heads=4, dim=64), 0.3, b"seed")
    mine = hashlib.sha256(part.keys.numpy().tobytes() + part.values.numpy().tobytes()).hexdigest()
    root = Path(__file__).parents[2]
    for threads in ("1", "2"):
        made = subprocess.run(
            [sys.executable, "-c", CHILD, threads],
            cwd=root, capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip
        assert made.stdout.strip() == mine


# --- seeds ---------------------------------------------------------------------------------------


def test_a_seed_stands_for_the_tokens_up_to_the_spans_end() -> None:
    """What comes later changes nothing, what came before does."""
    span = SegmentSpan(SEGMENT_TOKENS, SEGMENT_TOKENS)
    seed = span_seeds(KEYS, FUNCTION, IDS)(span)
    assert span_seeds(KEYS, FUNCTION, IDS[: span.stop])(span) == seed
    assert span_seeds(KEYS, FUNCTION, (1, *IDS[1:]))(span) != seed


def test_seeds_differ_by_all_that_they_stand_for() -> None:
    """Domain, function, place, length, kind."""
    span, other = SegmentSpan(16, 16), DomainKeys(bytes(32))
    seeds = [
        span_seeds(KEYS, FUNCTION, IDS)(span),
        span_seeds(other, FUNCTION, IDS)(span),
        span_seeds(KEYS, "e" * 64, IDS)(span),
        span_seeds(KEYS, FUNCTION, IDS)(SegmentSpan(15, 17)),
        span_seeds(KEYS, FUNCTION, IDS)(SegmentSpan(16, 15)),
        span_seeds(KEYS, FUNCTION, IDS)(SegmentSpan(16, 16, SegmentKind.WINDOW)),
    ]
    assert len(set(seeds)) == len(seeds)


def test_no_seed_is_a_digest_that_stands_in_a_store() -> None:
    """Prefix keys and token digests lie in headers that a thief can read."""
    span = SegmentSpan(16, 16)
    seed = span_seeds(KEYS, FUNCTION, IDS)(span).hex()
    assert seed not in KEYS.prefix_keys(FUNCTION, IDS, [16, 32])
    assert seed != KEYS.token_digest(IDS[16:32])


# --- through a hand-off --------------------------------------------------------------------------


def test_a_second_noisy_hand_off_writes_nothing_anew(agent_of: Any) -> None:
    """The same tokens get the same noise, also where the conversation has gone on since."""
    sender = agent_of("a", stream=False)
    turn = sender.run("Hello there, you plan and code. " * 4, max_new_tokens=20)
    first = sender.hand_off(turn, noise=0.1)
    again = sender.hand_off(turn, noise=0.1)
    assert first.bytes_written > 0
    assert again.bytes_written == 0
    later = sender.hand_off(sender.run("Go on", max_new_tokens=5), noise=0.1)
    full = [ref for ref in first.manifest.segments if ref.span.count == SEGMENT_TOKENS]
    assert full and set(full) <= set(later.manifest.segments)


def test_a_noisy_baton_says_so_and_is_approximate(agent_of: Any) -> None:
    """The receipt of whoever takes it says it, too."""
    sender = agent_of("a", stream=False)
    turn = sender.run("Hello there, you plan and code. " * 4, max_new_tokens=20)
    baton = sender.hand_off(turn, noise=0.1)
    assert baton.manifest.noise == 0.1
    assert baton.manifest.fidelity.kind is FidelityClass.APPROXIMATE
    taken = agent_of("b").take(baton, "Go on", max_new_tokens=3)
    assert taken.receipt.fidelity.kind is FidelityClass.APPROXIMATE
    assert taken.receipt.route is Route.BATON


# --- the guide -----------------------------------------------------------------------------------

DOCS = Path(__file__).parents[2] / "docs"


def percent(share: float) -> str:
    """One digit behind the point, and two where one would claim that all are there."""
    digits = 2 if share < 1 and f"{100 * share:.1f}" == "100.0" else 1
    return f"{100 * share:.{digits}f}".removesuffix(".0") + "%"


def nats(value: float) -> str:
    """Two significant digits."""
    return "0" if value == 0 else f"{value:.2g}" if value < 0.995 else f"{value:.1f}"


def test_the_guide_shows_what_was_measured() -> None:
    """Every row of the data is a row of the page, and the page has no other rows of that kind."""
    page = (DOCS / "guides" / "noise.md").read_text()
    data = json.loads((DOCS / "data" / "noise.json").read_text())
    lines = []
    for row in data["rows"]:
        reads = ("nearest_v", "v", "k", "kv", "all_layers")
        cells = [
            f"{row['level']:g}", nats(row["kl"]), percent(row["flips"]),
            f"{row['facts_right']} of {row['facts_asked']}",
            *(percent(row[f"read_{name}"]) for name in reads),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    assert [line for line in page.splitlines() if re.search(r" of [0-9]+ \|", line)] == lines
