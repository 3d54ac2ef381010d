"""Codec plans: which chain encodes the keys and which the values of each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from kvbaton.codecs.base import CodecChain
from kvbaton.codecs.raw import Raw
from kvbaton.errors import InputError
from kvbaton.types import Fidelity, FidelityClass

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


def uniform(name: str, keys: CodecChain, values: CodecChain, layers: int) -> CodecPlan:
    """The same chains in every layer."""
    return CodecPlan(name, ((keys, values),) * layers)


def exact_plan(layers: int) -> CodecPlan:
    """The ``exact`` profile: the cache's own bytes."""
    raw = CodecChain((Raw(),))
    return uniform("exact", raw, raw, layers)


def plan_of(name: str, layers: Sequence[Chains]) -> CodecPlan:
    """A plan from chains by layer."""
    return CodecPlan(name, tuple(layers))
