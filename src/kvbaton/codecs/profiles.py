"""Named codec profiles: plans for any layout, with what they were measured to cost.

=================  =====================================================================
profile            plan
=================  =====================================================================
``exact``          the cache's own bytes
``near-lossless``  8 bit everywhere, keys per channel and values per token
``layered``        at most 6 bits, searched per layer
``compact``        at most 5 bits: keys in bands of 3 to 7 bits, values in 4; or searched
``tiny``           at most 4.5 bits, searched per layer
``shallow``        8 bit in the first half of the layers, 4 in the second: the often quoted rule,
                   which these models contradict; for comparison
``cheapest``       8 bit with one scale per tensor, for tests: fast, small, and coarse
=================  =====================================================================

KL in nats (bits per element, all overhead counted), medians over four or five texts of 1,024 tokens
in float32:

=================  ================  ==================  ==================
profile            SmolLM2-135M      Qwen2.5-Coder-0.5B  Qwen2.5-Coder-1.5B
=================  ================  ==================  ==================
``near-lossless``  1.5e-5 (8.39)     1.5e-5 (8.41)       5.0e-6 (8.31)
``layered``        1.2e-4 (6.00)     7.2e-5 (6.00)       5.4e-5 (6.00)
``compact``        5.6e-4 (5.00)     4.7e-4 (4.99)       2.3e-4 (5.00)
``tiny``           1.0e-3 (4.50)     1.0e-3 (4.50)       5.4e-4 (4.50)
``shallow``        3.4e-3 (6.36)     3.0e-3 (6.38)       1.0e-3 (6.31)
=================  ================  ==================  ==================

Keys per channel over groups of tokens and values per token is KIVI's granularity (Liu et al. 2024);
un-rotated keys are KVQuant's (Hooper et al. 2024); Hadamard rotation before quantizing is QuaRot's
(Ashkboos et al. 2024); bits by bands of rotary frequencies are this package's own finding.  The
first tokens, which most heads attend to, stay exact (attention sinks, Xiao et al. 2024); layer 0
has 8 bits, so that a receiver can hold it against the tokens.  What was tried besides stands in
``docs/guides/codec-experiments.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from kvbaton.codecs.base import Codec, CodecChain
from kvbaton.codecs.plan import CodecPlan, check_plan, exact_plan, plan_of
from kvbaton.codecs.registered import CODECS
from kvbaton.errors import InputError
from kvbaton.types import KVLayout

SINKS = 4
"""First tokens that stay exact."""
KEY_GROUP = 128
"""Tokens of a channel that share a scale."""
FIRST_LAYER_BITS = 8
BANDS = 4
"""Parts of the rotary frequencies that may have different bits."""

_TURNABLE = frozenset({"default", "linear", "llama3", "yarn"})
"""RoPE kinds whose tables do not depend on the length of the sequence."""
_BLOCK = 16
"""Channels that a Hadamard block must have to spread outliers."""


def codec(name: str, **fields: Any) -> Codec:
    """A codec by its registered name.

    Raises
    ------
    InputError
        There is no such codec, or it does not have these fields.
    """
    kind = CODECS.get(name)
    if kind is None:
        raise InputError(f"unknown codec {name!r}", hint=f"known: {', '.join(sorted(CODECS))}")
    try:
        return kind(**fields)
    except TypeError as error:
        given = ", ".join(sorted(fields))
        raise InputError(f"codec {name!r} does not have the fields {given}") from error


# --- chains of a number of bits: the granularity that works --------------------------------------

Bits = tuple[int, ...]
"""Bits of each band of rotary frequencies of keys, from fast to slow; one number where there are
no bands."""


def bands(layout: KVLayout, layer: int) -> int:
    """Bands of rotary frequencies whose keys may have different bits: 4, or 1 without RoPE."""
    spec = layout.layers[layer]
    if spec.rope < 0 or layout.ropes[spec.rope].kind not in _TURNABLE:
        return 1
    whole = layout.ropes[spec.rope].rotary_dim == spec.k_dim
    return BANDS if whole and spec.k_dim % (2 * BANDS) == 0 else 1


def key_chain(
    layout: KVLayout,
    layer: int,
    bits: int | Bits,
    *,
    first: int = SINKS,
    group: int = KEY_GROUP,
) -> CodecChain:
    """Keys of a layer: per channel, un-rotated where RoPE allows it.

    ``bits`` is one number, or one for each of the layer's bands.

    Raises
    ------
    InputError
        The layer has another number of bands.
    """
    spec = layout.layers[layer]
    rope = layout.ropes[spec.rope] if spec.rope >= 0 else None
    turnable = rope is not None and rope.kind in _TURNABLE
    if isinstance(bits, int) or len(set(bits)) == 1:
        uniform = bits if isinstance(bits, int) else bits[0]
        return _key_chain(uniform, first, group, turnable)
    if rope is None or len(bits) != bands(layout, layer):
        raise InputError(f"layer {layer} has {bands(layout, layer)} bands of keys, not {len(bits)}")
    digits = "".join(map(str, bits)) * (2 if rope.pairing == "half" else 1)
    return _banded_chain(digits, first, group)


@cache
def _key_chain(bits: int, first: int, group: int, turnable: bool) -> CodecChain:  # noqa: FBT001
    packer = codec("int", bits=bits, axis="channel", group=group, first=first, scales="f16")
    # At 8 bits un-rotating gains nothing, and costs time.
    unrotate = turnable and bits < FIRST_LAYER_BITS
    return CodecChain((codec("unrotate", first=first), packer) if unrotate else (packer,))


@cache
def _banded_chain(digits: str, first: int, group: int) -> CodecChain:
    packer = codec("int-blocks", bits=digits, group=group, first=first, scales="f16")
    return CodecChain((codec("unrotate", first=first), packer))


def value_chain(layout: KVLayout, layer: int, bits: int, *, first: int = SINKS) -> CodecChain:
    """Values of a layer in ``bits`` bits: per token, Hadamard-rotated where the size allows it."""
    dim = layout.layers[layer].v_dim
    return _value_chain(bits, first, dim & -dim >= _BLOCK)


@cache
def _value_chain(bits: int, first: int, rotatable: bool) -> CodecChain:  # noqa: FBT001
    rotate = rotatable and bits < FIRST_LAYER_BITS
    packer = codec(
        "int", bits=bits, axis="token", group=0, first=first, symmetric=rotate, scales="u8"
    )
    return CodecChain((codec("hadamard", first=first), packer) if rotate else (packer,))


def banded(layout: KVLayout, layer: int, bits: Bits) -> int | Bits:
    """Bits of four bands as a layer can have them: their mean, rounded up, where it has none."""
    return bits if bands(layout, layer) == len(bits) else -(-sum(bits) // len(bits))


def bits_plan(
    name: str,
    layout: KVLayout,
    bits: Callable[[int], tuple[int | Bits, int]],
    *,
    first: int = SINKS,
) -> CodecPlan:
    """A plan from the bits of keys and of values of each layer; layer 0 has 8.

    Bits of bands stand for their mean in layers that have none.

    Raises
    ------
    InputError
        A chain does not fit its layer.
    """
    layers = []
    for layer in range(len(layout.layers)):
        keys, values = bits(layer) if layer else (FIRST_LAYER_BITS, FIRST_LAYER_BITS)
        if not isinstance(keys, int):
            keys = banded(layout, layer, keys)
        layers.append(
            (
                key_chain(layout, layer, keys, first=first),
                value_chain(layout, layer, values, first=first),
            )
        )
    plan = plan_of(name, layers)
    check_plan(plan, layout)
    return plan


# --- profiles ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Profile:
    """A named way to encode a cache.

    ``provenance`` says where it comes from; ``max_bits`` is the bound under which a search may
    look for a better plan than ``build`` makes, None where there is nothing to search.
    """

    name: str
    provenance: str
    build: Callable[[KVLayout], CodecPlan]
    max_bits: float | None = None

    def plan(self, layout: KVLayout) -> CodecPlan:
        """The plan for a layout, before any search.

        Raises
        ------
        InputError
            The layout cannot be encoded so; the place is named.
        """
        return self.build(layout)


def _near_lossless(layout: KVLayout) -> CodecPlan:
    return bits_plan("near-lossless", layout, lambda layer: (8, 8))


def _layered(layout: KVLayout) -> CodecPlan:
    return bits_plan("layered", layout, lambda layer: ((4, 5, 6, 8), 5))


def _compact(layout: KVLayout) -> CodecPlan:
    return bits_plan("compact", layout, lambda layer: ((3, 4, 5, 7), 4))


def _tiny(layout: KVLayout) -> CodecPlan:
    return bits_plan("tiny", layout, lambda layer: ((2, 3, 4, 6), 4))


def _shallow(layout: KVLayout) -> CodecPlan:
    half = len(layout.layers) // 2
    return bits_plan("shallow", layout, lambda layer: (8, 8) if layer < half else (4, 4))


def _cheapest(layout: KVLayout) -> CodecPlan:
    chain = CodecChain((codec("int", bits=8, axis="tensor", group=0, scales="f32"),))
    return plan_of("cheapest", ((chain, chain),) * len(layout.layers))


EXACT = Profile("exact", "the cache's own bytes", lambda layout: exact_plan(len(layout.layers)))
NEAR_LOSSLESS = Profile("near-lossless", "KIVI's granularity at 8 bits", _near_lossless)
LAYERED = Profile("layered", "searched bits per layer, K and V", _layered, 6.0)
COMPACT = Profile("compact", "KVQuant's keys in bands, QuaRot's values, exact sinks", _compact, 5.0)
TINY = Profile("tiny", "searched bits per layer, K and V", _tiny, 4.5)
SHALLOW = Profile("shallow", "the rule that deep layers tolerate more", _shallow)
CHEAPEST = Profile("cheapest", "one scale per tensor, for tests", _cheapest)

PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (EXACT, NEAR_LOSSLESS, LAYERED, COMPACT, TINY, SHALLOW, CHEAPEST)
}
"""Profiles by name, from the most faithful on."""

RECOMMENDED = ("near-lossless", "layered", "compact", "tiny")
"""Lossy profiles that ``kvbaton tune-codec`` measures where none is named."""


def profile(name: str) -> Profile:
    """The profile of a name.

    Raises
    ------
    InputError
        There is none.
    """
    found = PROFILES.get(name)
    if found is None:
        raise InputError(f"no profile is called {name!r}", hint=f"known: {', '.join(PROFILES)}")
    return found
