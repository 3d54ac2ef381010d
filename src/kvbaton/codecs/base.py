"""Codecs, typed by arrow; a chain that does not fit together is refused when it is built.

=====================  =========================================================
arrow                  meaning
=====================  =========================================================
``TensorToTensor``     ``[kv_heads, tokens, head_dim]`` to the same shape
``TensorToBytes``      one tensor to named stored tensors (exactly one in a chain)
``BytesToBytes``       stored bytes to stored bytes
=====================  =========================================================

A codec is its own metadata: a frozen dataclass with ``to_json`` and ``from_json``.  Modules of
this package import torch only inside functions, so headers can be checked without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from kvbaton.errors import Fault, FormatError, InputError
from kvbaton.types import JSON, Fidelity, Place, StoredTensor

if TYPE_CHECKING:
    import torch

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredShape:
    """safetensors dtype and shape of one stored tensor."""

    dtype: str
    shape: Shape


class Codec(ABC):
    """What all codecs have: a registered name and JSON metadata."""

    name: ClassVar[str]
    fidelity: ClassVar[Fidelity] = Fidelity()

    def to_json(self) -> JSON:
        """Metadata as the segment's header carries it; ``name`` is always there."""
        return {"name": self.name}


class TensorToTensor(Codec):
    """Transforms a tensor ``[kv_heads, tokens, head_dim]`` reversibly."""

    @abstractmethod
    def forward(self, tensor: torch.Tensor, place: Place) -> torch.Tensor:
        """Sender's side."""

    @abstractmethod
    def inverse(self, tensor: torch.Tensor, place: Place) -> torch.Tensor:
        """Receiver's side."""


class TensorToBytes(Codec):
    """Turns a tensor into stored tensors and back.

    ``views``: what ``unpack`` returns is the stored memory itself, nothing is computed.
    """

    views: ClassVar[bool] = False

    @abstractmethod
    def storage(self, dtype: str, shape: Shape, place: Place) -> Mapping[str, StoredShape]:
        """Stored tensors by suffix (``""`` for the main one, ``"scale"``, ...), without torch."""

    @abstractmethod
    def pack(self, tensor: torch.Tensor, place: Place) -> Mapping[str, StoredTensor]:
        """Stored tensors of ``tensor`` by suffix; their names are given by the chain."""

    @abstractmethod
    def unpack(
        self, stored: Mapping[str, memoryview], dtype: str, shape: Shape, place: Place
    ) -> torch.Tensor:
        """The tensor again; it may share memory with ``stored``."""


class BytesToBytes(Codec):
    """Turns stored bytes into other bytes and back."""

    @abstractmethod
    def squeeze(self, data: memoryview) -> memoryview:
        """Sender's side."""

    @abstractmethod
    def expand(self, data: memoryview, size_bytes: int) -> memoryview:
        """Receiver's side; never more than ``size_bytes``."""


@dataclass(frozen=True)
class CodecChain:
    """Tensor-to-tensor codecs, then exactly one tensor-to-bytes codec, then bytes-to-bytes ones.

    Raises
    ------
    InputError
        The codecs are in another order.
    """

    codecs: tuple[Codec, ...]

    def __post_init__(self) -> None:
        arrows = [_rank(codec) for codec in self.codecs]
        if arrows != sorted(arrows) or arrows.count(1) != 1:
            raise InputError(
                f"not a codec chain: {' -> '.join(c.name for c in self.codecs) or 'nothing'}",
                hint="tensor-to-tensor codecs, one tensor-to-bytes codec, then bytes-to-bytes",
            )

    @cached_property
    def packer(self) -> TensorToBytes:
        """The codec in the middle."""
        return next(c for c in self.codecs if isinstance(c, TensorToBytes))

    @cached_property
    def views(self) -> bool:
        """Whether what ``decode`` returns is the stored memory itself."""
        return self.packer.views and len(self.codecs) == 1

    @cached_property
    def _before(self) -> tuple[TensorToTensor, ...]:
        return tuple(c for c in self.codecs if isinstance(c, TensorToTensor))

    @cached_property
    def _behind(self) -> tuple[BytesToBytes, ...]:
        return tuple(c for c in self.codecs if isinstance(c, BytesToBytes))

    @property
    def fidelity(self) -> Fidelity:
        """The worst of its codecs."""
        return max((c.fidelity for c in self.codecs), key=lambda f: f.rank)

    def to_json(self) -> tuple[JSON, ...]:
        """The chain as a header carries it."""
        return tuple(codec.to_json() for codec in self.codecs)

    def encode(self, tensor: torch.Tensor, place: Place) -> tuple[StoredTensor, ...]:
        """Stored tensors of ``tensor``, named by the place (``k``, ``k.scale``), sorted."""
        for codec in self._before:
            tensor = codec.forward(tensor, place)
        packed = self.packer.pack(tensor, place)
        return tuple(
            StoredTensor(_joined(place.name, suffix), t.dtype, t.shape, self._squeezed(t.data))
            for suffix, t in sorted(packed.items())
        )

    def _squeezed(self, data: memoryview) -> memoryview:
        for codec in self._behind:
            data = codec.squeeze(data)
        return data

    def decode(
        self, stored: Mapping[str, memoryview], dtype: str, shape: Shape, place: Place
    ) -> torch.Tensor:
        """The tensor again from its stored bytes by suffix."""
        if self._behind:
            wanted = self.packer.storage(dtype, shape, place)
            stored = {name: self._expanded(data, wanted[name]) for name, data in stored.items()}
        tensor = self.packer.unpack(stored, dtype, shape, place)
        for codec in reversed(self._before):
            tensor = codec.inverse(tensor, place)
        return tensor

    def _expanded(self, data: memoryview, wanted: StoredShape) -> memoryview:
        from math import prod

        from kvbaton.types import DTYPE_BYTES

        limit = prod(wanted.shape) * DTYPE_BYTES[wanted.dtype]
        for codec in reversed(self._behind):
            data = codec.expand(data, limit)
        return data


def _joined(name: str, suffix: str) -> str:
    return f"{name}.{suffix}" if suffix else name


def _rank(codec: Codec) -> int:
    for rank, arrow in enumerate((TensorToTensor, TensorToBytes, BytesToBytes)):
        if isinstance(codec, arrow):
            return rank
    raise InputError(f"{type(codec).__name__} is on no codec arrow")


def chain_from_json(described: Sequence[JSON], known: Mapping[str, type[Codec]]) -> CodecChain:
    """The chain that a header describes.

    Raises
    ------
    FormatError
        A codec that is not known here, or parameters that it does not take.
    """
    codecs = []
    for index, entry in enumerate(described):
        kind = known.get(str(entry.get("name")))
        if kind is None:
            raise FormatError(
                f"unknown codec {entry.get('name')!r}; known: {', '.join(sorted(known))}",
                fault=Fault.UNKNOWN_CODEC,
                at=f"$.codecs[{index}]",
                hint="a newer kvbaton or a plug-in may bring it",
            )
        try:
            codecs.append(kind(**{k: v for k, v in entry.items() if k != "name"}))
        except TypeError as error:
            raise FormatError(
                f"codec {entry['name']!r} does not take these parameters",
                fault=Fault.UNKNOWN_CODEC,
                at=f"$.codecs[{index}]",
            ) from error
    return CodecChain(tuple(codecs))
