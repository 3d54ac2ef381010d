"""What lies between a held V and that of its token, and how much of it is honest."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvbaton.codecs.profiles import value_chain
from kvbaton.errors import Fault, FormatError
from kvbaton.layouts import KVLayout, LayerKind, LayerLayout
from kvbaton.probes.binding import LOSSLESS, NOISE_DEVIATIONS, Allowance
from kvbaton.types import Place

LAYOUT = KVLayout("F32", (LayerLayout(LayerKind.FULL, 2, 32, 32, rope=-1),) * 2)


def values(tokens: int, seed: int = 0) -> torch.Tensor:
    """Random V ``[2, tokens, 32]``."""
    return torch.randn(2, tokens, 32, generator=torch.Generator().manual_seed(seed))


def through(held: torch.Tensor, bits: int, first: int) -> torch.Tensor:
    """What a chain of so many bits makes of V."""
    chain, place = value_chain(LAYOUT, 0, bits), Place("v", 0, first)
    stored = {t.name[2:]: memoryview(bytearray(t.data)) for t in chain.encode(held, place)}
    return chain.decode(stored, "F32", tuple(held.shape), place)


def moved(held: torch.Tensor, index: int, share: float) -> torch.Tensor:
    """One token's V moved by a share of its norm."""
    out, direction = held.clone(), values(1, seed=99)[:, 0]
    step = share * held[:, index].norm() / direction.norm()
    out[:, index] += step * direction
    return out


@given(index=st.integers(0, 19), dtype=st.sampled_from(sorted(LOSSLESS)))
def test_rounding_is_honest_and_twice_of_it_is_not(index: int, dtype: str) -> None:
    """The limit of a lossless cache is that of its dtype, whatever the token's size."""
    expected = values(20) * torch.logspace(-3, 3, 20)[None, :, None]
    allowed = Allowance(dtype)
    assert allowed.first_other(expected, expected) is None
    assert allowed.first_other(moved(expected, index, 0.9 * LOSSLESS[dtype]), expected) is None
    assert allowed.first_other(moved(expected, index, 2 * LOSSLESS[dtype]), expected) == index


@given(index=st.integers(0, 19), bits=st.sampled_from((3, 4, 5, 6, 8)), first=st.integers(0, 40))
def test_codes_of_the_same_values_are_the_same(index: int, bits: int, first: int) -> None:
    """Behind a codec, a last digit more or less is honest, and another token is not."""
    expected = values(20)
    coded = through(expected, bits, first)
    nearly = expected * (1 + 1e-4 * values(20, seed=3).clamp(-1, 1))
    allowed = Allowance("F32")
    assert allowed.first_other(through(nearly, bits, first), expected, coded) is None
    other = expected.clone()
    other[:, index] = values(20, seed=1)[:, index]
    assert allowed.first_other(through(other, bits, first), expected, coded) == index


def test_codes_tell_apart_what_the_error_of_the_codec_would_hide() -> None:
    """Tokens that are nearer than the codec's error have other codes."""
    expected = values(64)
    error = float((through(expected, 4, 100) - expected).norm() / expected.norm())
    near = moved(expected, 7, 2.2 * error)
    coded = through(expected, 4, 100)
    blind = Allowance("F32", lost=error)
    assert blind.first_other(through(near, 4, 100), expected, coded) is None
    assert Allowance("F32").first_other(through(near, 4, 100), expected, coded) == 7


@given(lost=st.floats(0.0, 0.15), noise=st.floats(0.0, 0.09), index=st.integers(0, 9))
def test_what_was_lost_before_widens_the_limit(lost: float, noise: float, index: int) -> None:
    """By the measured error and by the level of noise, and no further."""
    expected = values(10)
    allowed = Allowance("F32", lost=lost, noise=noise)
    assert allowed.first_other(moved(expected, index, lost + noise), expected) is None
    margin = 1 + NOISE_DEVIATIONS / math.sqrt(2 * expected.shape[-1])
    beyond = LOSSLESS["F32"] + 2 * lost + margin * noise
    assert allowed.first_other(moved(expected, index, 1.01 * beyond), expected) == index


@given(lost=st.floats(0.3, 10.0) | st.just(0.0), noise=st.floats(0.5, 1e9))
def test_a_limit_that_tells_nothing_apart_is_refused(lost: float, noise: float) -> None:
    """What a sender states cannot talk the check out of seeing anything."""
    expected = values(10)
    with pytest.raises(FormatError) as caught:
        Allowance("F32", lost=lost, noise=noise).first_other(-expected, expected)
    assert caught.value.fault is Fault.NOT_COMPARABLE


def test_a_codec_that_loses_everything_is_refused() -> None:
    """One bit per number says little about a token, whoever encoded it."""
    expected = values(10)
    with pytest.raises(FormatError) as caught:
        Allowance("F32").first_other(expected, expected * 2, expected * 0)
    assert caught.value.fault is Fault.NOT_COMPARABLE


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_what_is_not_finite_is_another_token(odd: float) -> None:
    """The first one is named."""
    expected = values(10)
    held = expected.clone()
    held[0, 4, 0] = held[1, 6, 3] = odd
    assert Allowance("F32", noise=0.1).first_other(held, expected) == 4
