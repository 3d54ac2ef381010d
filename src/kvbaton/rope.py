"""Rotary positions: the tables of every kind that transformers has, and turning keys by them.

A key of position ``p`` was multiplied by the rotation with the angles ``p * frequencies``.  Moving
it to another position is one more rotation, by the difference of two angles.  All of it follows
the models' own arithmetic: frequencies and angles in float32, so that a key that is moved stands
where the model itself would have put it.  The attention factor of YaRN and LongRoPE is inside
the keys already: rotations here have unit norm.

Sources of the tables: Su et al. 2021 (RoPE), Chen et al. 2023 (linear), Peng et al. 2023 (YaRN,
dynamic NTK), Ding et al. 2024 (LongRoPE), and the documentation of Llama 3.1 and Gemma 4.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from blake3 import blake3

from kvbaton.errors import InputError, UnsupportedLayout
from kvbaton.types import Pairing, RopeSpec

LENGTH_DEPENDENT = ("dynamic", "longrope")
"""Kinds whose table changes when a sequence grows beyond the original length."""

_WIDE = (torch.float32, torch.float64)
"""Dtypes in which keys are rotated as they are; others are widened to float32."""
_ORIGINAL = "original_max_position_embeddings"
_BETA_FAST, _BETA_SLOW = 32.0, 1.0
"""Rotations within the original length between which YaRN's ramp lies, unless they are given."""


# -- tables -----------------------------------------------------------------------------------


def inverse_frequencies(
    spec: RopeSpec, *, length: int | None = None, original: int | None = None
) -> torch.Tensor:
    """Inverse frequencies ``[rotary_dim / 2]`` float32, in radians per position.

    Parameters
    ----------
    spec
        A RoPE, whose table is the one that its kind, base and parameters give (``is_stated``).
    length
        Tokens of the whole sequence, for kinds whose table depends on it; None is any length up
        to the original one.
    original
        The original length, where the parameters do not state it (``dynamic``).

    Raises
    ------
    UnsupportedLayout
        An unknown kind, or a parameter that its table needs is missing.
    """
    build = _TABLES.get(spec.kind)
    if build is None:
        raise UnsupportedLayout(
            f"RoPE of kind {spec.kind!r} is not known: {', '.join(sorted(_TABLES))} are",
            at="$.ropes.kind",
        )
    return build(_Scaling(spec, length, original))


@dataclass(frozen=True, slots=True)
class _Scaling:
    """A spec with the length it is asked for, and its parameters by name."""

    spec: RopeSpec
    length: int | None
    original: int | None

    def get(self, name: str, otherwise: Any = None) -> Any:
        value = dict(self.spec.parameters).get(name)
        return otherwise if value is None else value

    def need(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            raise UnsupportedLayout(
                f"RoPE of kind {self.spec.kind!r} needs the parameter {name!r}",
                at="$.ropes.parameters",
            )
        return value

    def powers(self, base: float | None = None, size: int | None = None) -> torch.Tensor:
        """``base ** (2 i / size)`` for the channel pairs ``i`` of ``size`` channels, float32."""
        size = self.spec.rotary_dim if size is None else size
        steps = torch.arange(0, size, 2, dtype=torch.int64).to(torch.float32)
        return (self.spec.base if base is None else base) ** (steps / size)

    @property
    def is_long(self) -> bool:
        """Whether the sequence is longer than the original length."""
        if self.length is None:
            return False
        return self.length > _original(self.spec, self.original)


def _original(spec: RopeSpec, given: int | None) -> float:
    stated = dict(spec.parameters).get(_ORIGINAL)
    found = given if stated is None else stated
    if not isinstance(found, int | float):
        raise UnsupportedLayout(
            f"RoPE of kind {spec.kind!r} does not state its original length",
            at="$.ropes.parameters",
            hint="the model's window is its original length",
        )
    return float(found)


def _default(scaling: _Scaling) -> torch.Tensor:
    return 1.0 / scaling.powers()


def _linear(scaling: _Scaling) -> torch.Tensor:
    return _default(scaling) / float(scaling.need("factor"))


def _proportional(scaling: _Scaling) -> torch.Tensor:
    """The first pairs turn as in a head of full size, the others not at all."""
    size = scaling.spec.rotary_dim
    turning = int(float(scaling.get("partial_rotary_factor", 1.0)) * size // 2)
    table = torch.zeros(size // 2)
    table[:turning] = _default(scaling)[:turning]
    return table / float(scaling.get("factor", 1.0))


def _dynamic(scaling: _Scaling) -> torch.Tensor:
    if not scaling.is_long or scaling.length is None:
        return _default(scaling)
    size, factor = scaling.spec.rotary_dim, float(scaling.need("factor"))
    share = factor * scaling.length / _original(scaling.spec, scaling.original)
    base = scaling.spec.base * (share - (factor - 1)) ** (size / (size - 2))
    return 1.0 / scaling.powers(base)


def _yarn(scaling: _Scaling) -> torch.Tensor:
    """Fast pairs as they were, slow ones stretched by the factor, a ramp between them."""
    powers = scaling.powers()
    low, high = _ramp_ends(scaling)
    steps = torch.arange(powers.numel(), dtype=torch.float32)
    kept = 1 - torch.clamp((steps - low) / (high - low), 0, 1)
    stretched = 1.0 / (float(scaling.need("factor")) * powers)
    return stretched * (1 - kept) + (1.0 / powers) * kept


def _ramp_ends(scaling: _Scaling) -> tuple[float, float]:
    size, base = scaling.spec.rotary_dim, scaling.spec.base
    original = float(scaling.need(_ORIGINAL))

    def pair_of(turns: float) -> float:
        return (size * math.log(original / (turns * 2 * math.pi))) / (2 * math.log(base))

    low = pair_of(float(scaling.get("beta_fast") or _BETA_FAST))
    high = pair_of(float(scaling.get("beta_slow") or _BETA_SLOW))
    if scaling.get("truncate", 1):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    return low, high + 0.001 if low == high else high  # a ramp without width has no slope


def _longrope(scaling: _Scaling) -> torch.Tensor:
    """Every pair is stretched by a factor of its own; long sequences have other factors."""
    factors = scaling.need("long_factor" if scaling.is_long else "short_factor")
    if len(factors) != scaling.spec.rotary_dim // 2:
        raise UnsupportedLayout(
            f"{len(factors)} factors for {scaling.spec.rotary_dim // 2} pairs of channels",
            at="$.ropes.parameters",
        )
    return 1.0 / (torch.tensor(factors, dtype=torch.float32) * scaling.powers())


def _llama3(scaling: _Scaling) -> torch.Tensor:
    """Waves much shorter than the original length as they were, longer ones stretched."""
    table, factor = _default(scaling), float(scaling.need("factor"))
    slow, fast = float(scaling.need("low_freq_factor")), float(scaling.need("high_freq_factor"))
    original = float(scaling.need(_ORIGINAL))
    waves = 2 * math.pi / table
    stretched = torch.where(waves > original / slow, table / factor, table)
    share = (original / waves - slow) / (fast - slow)
    between = (1 - share) * stretched / factor + share * stretched
    is_between = ~(waves < original / fast) & ~(waves > original / slow)
    return torch.where(is_between, between, stretched)


_TABLES: dict[str, Callable[[_Scaling], torch.Tensor]] = {
    "default": _default,
    "dynamic": _dynamic,
    "linear": _linear,
    "llama3": _llama3,
    "longrope": _longrope,
    "proportional": _proportional,
    "yarn": _yarn,
}


def table_digest(
    kind: str, base: float, pairs: int, parameters: tuple[tuple[str, Any], ...]
) -> str:
    """BLAKE3 digest (hex) of what determines a table; its last bits depend on the processor."""
    text = json.dumps([kind, base, pairs, parameters], separators=(",", ":"), default=str)
    return str(blake3(text.encode()).hexdigest())


def is_stated(spec: RopeSpec) -> bool:
    """Whether the table of a RoPE is the one that its kind, base and parameters give."""
    stated = table_digest(spec.kind, spec.base, spec.rotary_dim // 2, spec.parameters)
    return spec.table == stated


def table_known(spec: RopeSpec, stop: int, *, original: int | None = None) -> bool:
    """Whether it is known with which table the keys of a sequence of ``stop`` tokens were made.

    The tables of ``dynamic`` and ``longrope`` depend on how long the sequence was when a key was
    computed, which nobody has written down; up to the original length there is only one.

    Parameters
    ----------
    stop
        Tokens of the *whole* sequence, not of the slice: a prompt that is computed in one go
        has the table of its end everywhere.
    original
        The original length, where the parameters do not state it (``dynamic``): the window of
        the model.
    """
    if spec.kind not in LENGTH_DEPENDENT:
        return True
    if original is None and _ORIGINAL not in dict(spec.parameters):
        return False
    return stop <= _original(spec, original)


# -- rotations --------------------------------------------------------------------------------


def angles(frequencies: torch.Tensor, positions: torch.Tensor | Sequence[int]) -> torch.Tensor:
    """Angles ``[n, rotary_dim / 2]`` of positions: float32 products, as the models compute them."""
    places = torch.as_tensor(positions, device=frequencies.device).to(torch.float32)
    return places[:, None] * frequencies.to(torch.float32)


def turned(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Angles float64 of the one rotation that leads from the old angles to the new ones.

    The difference of two large float32 numbers is exact in float64.
    """
    return new.to(torch.float64) - old.to(torch.float64)


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotations of ``n`` positions: ``cos`` and ``sin`` ``[n, rotary_dim / 2]`` float32."""

    cos: torch.Tensor
    sin: torch.Tensor
    pairing: Pairing

    @classmethod
    def by(cls, turns: torch.Tensor, *, pairing: Pairing, factor: float = 1.0) -> Rotation:
        """Rotations by angles ``[n, rotary_dim / 2]`` (radians), which may be float64.

        ``factor`` multiplies what is rotated: 1 keeps its norm.
        """
        cos, sin = (turned_by * factor for turned_by in (turns.cos(), turns.sin()))
        return cls(cos.to(torch.float32), sin.to(torch.float32), pairing)

    def to(self, device: torch.device | str) -> Rotation:
        """The same rotations on another device."""
        return Rotation(self.cos.to(device), self.sin.to(device), self.pairing)

    def of(self, keys: torch.Tensor) -> torch.Tensor:
        """Rotated copies of keys ``[kv_heads, n, k_dim]``, in their dtype.

        The channels from ``rotary_dim`` on are copied.  Whatever the dtype, numbers are rounded
        to it once, at the end.

        Raises
        ------
        InputError
            Another number of positions, or fewer channels than are rotated.
        """
        self._check(keys)
        rotary = 2 * self.cos.shape[1]
        out = torch.empty(keys.shape, dtype=keys.dtype, device=keys.device)
        out[..., rotary:] = keys[..., rotary:]
        if keys.dtype in _WIDE:
            self._turn(keys[..., :rotary], out[..., :rotary])
        else:
            wide = keys[..., :rotary].to(torch.float32)
            rotated = torch.empty_like(wide)
            self._turn(wide, rotated)
            out[..., :rotary] = rotated
        return out

    def _turn(self, keys: torch.Tensor, out: torch.Tensor) -> None:
        """The rotation of every pair, written to ``out``; nothing else is allocated."""
        (a, b), (a_out, b_out) = self._pairs(keys), self._pairs(out)
        torch.mul(a, self.cos, out=a_out).addcmul_(b, self.sin, value=-1)
        torch.mul(b, self.cos, out=b_out).addcmul_(a, self.sin)

    def _pairs(self, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of the first and of the second channels of all pairs."""
        if self.pairing == "interleaved":
            return keys[..., 0::2], keys[..., 1::2]
        half = self.cos.shape[1]
        return keys[..., :half], keys[..., half:]

    def _check(self, keys: torch.Tensor) -> None:
        tokens, pairs = self.cos.shape
        if keys.dim() != 3 or keys.shape[1] != tokens or keys.shape[2] < 2 * pairs:
            raise InputError(
                f"keys of shape {tuple(keys.shape)} are not [kv_heads, {tokens}, k_dim] with at "
                f"least {2 * pairs} channels"
            )


def rotate(
    keys: torch.Tensor, turns: torch.Tensor, *, pairing: Pairing, rotary_dim: int
) -> torch.Tensor:
    """Keys ``[kv_heads, n, k_dim]`` rotated by angles ``[n, rotary_dim / 2]``, in their dtype.

    Negative angles undo a rotation.  One pair of channels ``(a, b)`` becomes
    ``(a cos - b sin, b cos + a sin)`` in float32.

    Raises
    ------
    InputError
        The shapes do not fit each other.
    """
    if 2 * turns.shape[-1] != rotary_dim:
        raise InputError(f"{turns.shape[-1]} angles for {rotary_dim} rotated channels")
    return Rotation.by(turns, pairing=pairing).of(keys)
