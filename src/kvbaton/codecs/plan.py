"""Codec plans: which chain encodes the keys and which the values of each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from kvbaton.codecs.base import Codec, CodecChain, chain_from_json
from kvbaton.codecs.raw import Raw
from kvbaton.errors import Fault, FormatError, InputError
from kvbaton.types import JSON, Fidelity, FidelityClass, KVLayout, Place

Chains = tuple[CodecChain, CodecChain]
"""Of keys and of values."""


@dataclass(frozen=True)
class CodecPlan:
    """Codec chains by layer.

    Parameters
    ----------
    name
        Name of the profile, as fidelities state it.
    layers
        Chains of keys and of values for every layer of the model.
    calibration
        Digest (hex) of the calibration record that measured this plan; None for lossless ones.

    Raises
    ------
    InputError
        There are no layers.
    """

    name: str
    layers: tuple[Chains, ...]
    calibration: str | None = None

    def __post_init__(self) -> None:
        if not self.layers:
            raise InputError("a codec plan names the chains of every layer")

    @cached_property
    def lossless(self) -> bool:
        """Whether every chain gives back the very bytes."""
        return all(
            chain.fidelity.kind is FidelityClass.EXACT for pair in self.layers for chain in pair
        )

    @property
    def fidelity(self) -> Fidelity:
        """What is promised of everything that the plan encodes."""
        if self.lossless:
            return Fidelity()
        return Fidelity(FidelityClass.LOSSY, self.name, self.calibration)

    def chains(self, layer: int) -> Chains:
        """Chains of keys and values of a layer.

        Raises
        ------
        InputError
            The plan names no such layer.
        """
        if not 0 <= layer < len(self.layers):
            raise InputError(
                f"the codec plan {self.name!r} names {len(self.layers)} layers, not layer {layer}",
                at=f"$.layers[{layer}]",
            )
        return self.layers[layer]

    def calibrated(self, digest: str | None) -> CodecPlan:
        """The same plan, measured by a calibration record."""
        return replace(self, calibration=digest)

    def to_json(self) -> JSON:
        """``{"name", "chains", "layers"}``: each chain once, and two indices per layer.

        The calibration is not part of it: a record holds the plan, not the other way round.
        """
        chains = list(dict.fromkeys(chain for pair in self.layers for chain in pair))
        places = {chain: index for index, chain in enumerate(chains)}
        return {
            "name": self.name,
            "chains": [list(chain.to_json()) for chain in chains],
            "layers": [[places[keys], places[values]] for keys, values in self.layers],
        }


def uniform(name: str, keys: CodecChain, values: CodecChain, layers: int) -> CodecPlan:
    """The same chains in every layer."""
    return CodecPlan(name, ((keys, values),) * layers)


def exact_plan(layers: int) -> CodecPlan:
    """The ``exact`` profile: the cache's own bytes."""
    raw = CodecChain((Raw(),))
    return uniform("exact", raw, raw, layers)


CHECKED_TOKENS = 256
"""Tokens of the segment that a plan is checked with."""


def check_plan(plan: CodecPlan, layout: KVLayout) -> None:
    """Hold a plan against a layout, without torch.

    Raises
    ------
    InputError
        It names other layers than the layout has, or a codec cannot take a layer's shape; ``at``
        is the place.
    """
    if len(plan.layers) != len(layout.layers):
        raise InputError(
            f"the codec plan {plan.name!r} names {len(plan.layers)} layers, the model has "
            f"{len(layout.layers)}",
            at="$.layers",
        )
    for layer in range(len(plan.layers)):
        check_chains(plan.layers[layer], layout, layer, at=f"$.layers[{layer}]")


def check_chains(chains: Chains, layout: KVLayout, layer: int, *, at: str) -> None:
    """Hold the chains of one layer against it.

    Raises
    ------
    InputError
        A codec cannot take the layer's shape; ``at`` is the place, with ``.keys`` or ``.values``.
    """
    spec = layout.layers[layer]
    rope = layout.ropes[spec.rope] if spec.rope >= 0 else None
    places = (
        (Place("k", layer, 0, rope), spec.k_dim, "keys"),
        (Place("v", layer, 0), spec.v_dim, "values"),
    )
    for chain, (place, dim, name) in zip(chains, places, strict=True):
        try:
            chain.storage(layout.dtype, (spec.kv_heads, CHECKED_TOKENS, dim), place)
        except (InputError, FormatError) as error:
            field = error.at.removeprefix("$")
            raise InputError(
                f"layer {layer}: {error.sentence}", at=f"{at}.{name}{field}", hint=error.hint
            ) from error


def plan_of(name: str, layers: Sequence[Chains]) -> CodecPlan:
    """A plan from chains by layer."""
    return CodecPlan(name, tuple(layers))


def plan_from_json(value: Any, known: Mapping[str, type[Codec]], *, at: str = "$") -> CodecPlan:
    """Inverse of :meth:`CodecPlan.to_json`.

    Raises
    ------
    FormatError
        It is no plan, or it names a codec that is not ``known``; ``at`` is the place.
    """
    try:
        name, described, layers = value["name"], value["chains"], value["layers"]
        if not (isinstance(name, str) and name.isascii() and name):
            raise TypeError(name)
        pairs = [(int(keys), int(values)) for keys, values in layers]
        entries = [[dict(codec) for codec in chain] for chain in described]
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError("not a codec plan", fault=Fault.WRONG_TYPE, at=at) from error
    chains = [_chain(entry, known, f"{at}.chains[{i}]") for i, entry in enumerate(entries)]
    for index, pair in enumerate(pairs):
        if not all(0 <= chain < len(chains) for chain in pair):
            raise FormatError(
                f"layer {index} names a chain that is not there",
                fault=Fault.OUT_OF_RANGE,
                at=f"{at}.layers[{index}]",
            )
    if not pairs:
        raise FormatError("the plan has no layers", fault=Fault.WRONG_TYPE, at=f"{at}.layers")
    return CodecPlan(name, tuple((chains[keys], chains[values]) for keys, values in pairs))


def _chain(entry: Sequence[JSON], known: Mapping[str, type[Codec]], at: str) -> CodecChain:
    try:
        return chain_from_json(entry, known)
    except FormatError as error:
        error.at = at + error.at.removeprefix("$.codecs")
        raise
    except InputError as error:
        raise FormatError(error.sentence, fault=Fault.WRONG_TYPE, at=at) from error
