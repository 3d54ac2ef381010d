"""Codecs, typed by arrow; a chain that does not fit together is refused when it is built.

=====================  =========================================================
arrow                  meaning
=====================  =========================================================
``TensorToTensor``     ``[kv_heads, tokens, head_dim]`` to the same shape
``TensorToBytes``      one tensor to named stored tensors (exactly one in a chain)
``BytesToBytes``       stored bytes to stored bytes
=====================  =========================================================

A codec is its own metadata: a frozen dataclass whose fields are integers, booleans and text, with
``to_json`` and ``from_json``.  Modules of this package import torch only inside functions, so
headers can be checked without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Self

from kvbaton.errors import Fault, FormatError, InputError
from kvbaton.types import DTYPE_BYTES, JSON, Fidelity, Place, StoredTensor

if TYPE_CHECKING:
    import torch

    from kvbaton.codecs.fused import Fused

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredShape:
    """safetensors dtype and shape of one stored tensor."""

    dtype: str
    shape: Shape


class Codec(ABC):
    """What all codecs have: a registered name, a version, and their fields as metadata.

    ``version`` counts changes of what is stored.  A reader takes the version that it has and
    refuses others, so bytes are never read by rules that they were not written by.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    fidelity: ClassVar[Fidelity] = Fidelity()

    def to_json(self) -> JSON:
        """Metadata as the segment's header carries it: name, version, and every field."""
        return {"name": self.name, "version": self.version} | self._fields()

    def _fields(self) -> JSON:
        described: Any = self
        names = [part.name for part in fields(described)] if is_dataclass(described) else []
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_json(cls, entry: JSON) -> Self:
        """The codec that metadata describes.

        Raises
        ------
        InputError
            A field has a value that the codec refuses.
        TypeError
            There are fields that the codec does not have.
        """
        return cls(**{k: v for k, v in entry.items() if k not in ("name", "version")})

    def check(self, shape: Shape, place: Place) -> None:  # noqa: B027 - most take every shape
        """Refuse a ``[kv_heads, tokens, head_dim]`` that the codec cannot take; needs no torch.

        Raises
        ------
        InputError
            Such as groups that do not divide ``head_dim``.
        """


class TensorToTensor(Codec):
    """Transforms a tensor ``[kv_heads, tokens, head_dim]`` reversibly, in float32."""

    @abstractmethod
    def forward(self, tensor: torch.Tensor, place: Place) -> torch.Tensor:
        """Sender's side: float32 in and out."""

    @abstractmethod
    def inverse(self, tensor: torch.Tensor, place: Place) -> torch.Tensor:
        """Receiver's side: float32 in and out."""


class TensorToBytes(Codec):
    """Turns a tensor into stored tensors and back.

    ``views``: what ``unpack`` returns is the stored memory itself, nothing is computed.
    """

    views: ClassVar[bool] = False

    @abstractmethod
    def storage(self, dtype: str, shape: Shape, place: Place) -> Mapping[str, StoredShape]:
        """Stored tensors by suffix (``""`` for the main one, ``"scale"``, ...), without torch.

        ``dtype`` is the cache's, as everywhere in this class.
        """

    @abstractmethod
    def pack(self, tensor: torch.Tensor, dtype: str, place: Place) -> Mapping[str, StoredTensor]:
        """Stored tensors of ``tensor`` by suffix; their names are given by the chain.

        ``tensor`` has the cache's dtype, or float32 where another codec of the chain came before.
        """

    @abstractmethod
    def unpack(
        self, stored: Mapping[str, memoryview], dtype: str, shape: Shape, place: Place
    ) -> torch.Tensor:
        """The tensor again, in the cache's dtype or in float32.

        It may share memory with ``stored``; the chain converts it.
        """

    def unpack_on(
        self,
        stored: Mapping[str, memoryview],
        dtype: str,
        shape: Shape,
        place: Place,
        *,
        device: torch.device,
    ) -> torch.Tensor:
        """As ``unpack``, on a device; codecs that can compute there override it."""
        return self.unpack(stored, dtype, shape, place).to(device)


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
        exact = {c.first for c in self.codecs if hasattr(c, "first")}
        if len(exact) > 1:
            raise InputError(
                f"codecs of one chain keep different first tokens exact: {sorted(exact)}",
                hint='give all of them the same "first"',
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
    def before(self) -> tuple[TensorToTensor, ...]:
        """Tensor-to-tensor codecs, in the sender's order."""
        return tuple(c for c in self.codecs if isinstance(c, TensorToTensor))

    @cached_property
    def behind(self) -> tuple[BytesToBytes, ...]:
        """Bytes-to-bytes codecs, in the sender's order."""
        return tuple(c for c in self.codecs if isinstance(c, BytesToBytes))

    @property
    def fidelity(self) -> Fidelity:
        """The worst of its codecs."""
        return max((c.fidelity for c in self.codecs), key=lambda f: f.rank)

    def to_json(self) -> tuple[JSON, ...]:
        """The chain as a header carries it."""
        return self._described

    @cached_property
    def _described(self) -> tuple[JSON, ...]:
        return tuple(codec.to_json() for codec in self.codecs)

    def storage(self, dtype: str, shape: Shape, place: Place) -> Mapping[str, StoredShape]:
        """What the packer stores of ``shape``, before bytes-to-bytes codecs; without torch.

        Raises
        ------
        InputError
            A codec cannot take this shape.
        """
        if self.before and dtype == "F64":
            raise InputError(f"{self.before[0].name} computes in float32, which cannot hold F64")
        for codec in self.codecs:
            codec.check(shape, place)
        return self.packer.storage(dtype, shape, place)

    def stored_bytes(self, dtype: str, shape: Shape, place: Place) -> int:
        """Bytes of all stored tensors; bytes-to-bytes codecs may make fewer of them."""
        wanted = self.storage(dtype, shape, place).values()
        return sum(prod(part.shape) * DTYPE_BYTES[part.dtype] for part in wanted)

    def encode(self, tensor: torch.Tensor, place: Place) -> tuple[StoredTensor, ...]:
        """Stored tensors of ``tensor``, named by the place (``k``, ``k.scale``), sorted.

        Raises
        ------
        InputError
            NaN or infinity, or numbers beyond what a codec can store; ``at`` names layer and
            tensor.
        """
        if self._fused is not None:
            data = self._fused.pack(tensor, place)
            if data is not None:
                data = self._squeezed(data)
                return (StoredTensor(place.name, "U8", (len(data),), data),)
        from kvbaton.codecs.dtypes import safetensors_name

        packed = self.pack_stepwise(tensor, safetensors_name(tensor.dtype), place)
        return tuple(
            self._stored(_joined(place.name, suffix), part)
            for suffix, part in sorted(packed.items())
        )

    def _stored(self, name: str, part: StoredTensor) -> StoredTensor:
        if not self.behind:
            return StoredTensor(name, part.dtype, part.shape, part.data)
        data = self._squeezed(part.data)
        return StoredTensor(name, "U8", (len(data),), data)

    @cached_property
    def _fused(self) -> Fused | None:
        from kvbaton.codecs.fused import fused

        made = fused(self)
        return None if made is None else _remembered(self.codecs, made)

    def pack_stepwise(
        self, tensor: torch.Tensor, dtype: str, place: Place
    ) -> Mapping[str, StoredTensor]:
        """Codec by codec, on any device: what compiled kernels are held to."""
        from kvbaton.codecs.conversion import as_float32

        if self.before:
            self.storage(dtype, tuple(tensor.shape), place)
            tensor = as_float32(tensor, place)
            for codec in self.before:
                tensor = codec.forward(tensor, place)
        return self.packer.pack(tensor, dtype, place)

    def _squeezed(self, data: memoryview) -> memoryview:
        for codec in self.behind:
            data = codec.squeeze(data)
        return data

    def decode(
        self,
        stored: Mapping[str, memoryview],
        dtype: str,
        shape: Shape,
        place: Place,
        *,
        out: torch.Tensor | None = None,
        device: torch.device | None = None,
    ) -> torch.Tensor:
        """The tensor again from its stored bytes by suffix.

        Parameters
        ----------
        out
            Memory for the result where something has to be computed: of the cache's dtype,
            ``shape`` and contiguous.  Where the stored memory itself is the result it is not
            written to.
        device
            Where to compute and to leave the result; the host by default.

        Raises
        ------
        FormatError
            Parameters or numbers that no encoder writes: not finite, or out of range.
        """
        if self.behind:
            wanted = self.storage(dtype, shape, place)
            stored = {name: self._expanded(data, wanted[name]) for name, data in stored.items()}
        if self._fused is not None and (device is None or device.type == "cpu"):
            tensor = self._fused.unpack(stored[""], dtype, shape, place, out)
            if tensor is not None:
                return tensor
        return self.unpack_stepwise(stored, dtype, shape, place, out=out, device=device)

    def unpack_stepwise(
        self,
        stored: Mapping[str, memoryview],
        dtype: str,
        shape: Shape,
        place: Place,
        *,
        out: torch.Tensor | None = None,
        device: torch.device | None = None,
    ) -> torch.Tensor:
        """Codec by codec, on any device: what compiled kernels are held to."""
        from kvbaton.codecs.conversion import as_dtype, as_float32

        if device is None or device.type == "cpu":
            tensor = self.packer.unpack(stored, dtype, shape, place)
        else:
            tensor = self.packer.unpack_on(stored, dtype, shape, place, device=device)
        if self.before:
            tensor = as_float32(tensor, place)
            for codec in reversed(self.before):
                tensor = codec.inverse(tensor, place)
        return tensor if self.views else as_dtype(tensor, dtype, place, out=out)

    def _expanded(self, data: memoryview, wanted: StoredShape) -> memoryview:
        limit = prod(wanted.shape) * DTYPE_BYTES[wanted.dtype]
        for codec in reversed(self.behind):
            data = codec.expand(data, limit)
        return data


_kernels: dict[tuple[Codec, ...], Fused] = {}
_KERNELS_REMEMBERED = 1024


def _remembered(codecs: tuple[Codec, ...], made: Fused) -> Fused:
    """One kernel for equal chains: each segment's header makes its own, and kernels keep memory."""
    if len(_kernels) >= _KERNELS_REMEMBERED:
        _kernels.clear()
    return _kernels.setdefault(codecs, made)


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
        A codec or version that is not known here, or fields that the codec does not take.
    """
    codecs = [_codec(entry, known, f"$.codecs[{i}]") for i, entry in enumerate(described)]
    try:
        return CodecChain(tuple(codecs))
    except InputError as error:
        raise FormatError(
            error.sentence, fault=Fault.UNKNOWN_CODEC, at="$.codecs", hint=error.hint
        ) from error


def _codec(entry: JSON, known: Mapping[str, type[Codec]], at: str) -> Codec:
    name = entry.get("name")
    try:
        kind = known.get(name) if type(name) is str else None
    except InputError as error:  # a plug-in that is there, but cannot be imported
        raise _unknown(error.sentence, at, error.hint) from error
    if kind is None:
        raise _unknown(
            f"unknown codec {str(name)[:40]!r}; known: {', '.join(sorted(known))}",
            at,
            "a newer kvbaton or a plug-in may bring it",
        )
    version = entry.get("version", 1)
    if version != kind.version:
        raise _unknown(
            f"version {str(version)[:20]} of codec {name!r}, where {kind.version} is known here",
            f"{at}.version",
            f"another release of {_home(kind)} may bring it",
        )
    return _built(kind, entry, at)


def _built(kind: type[Codec], entry: JSON, at: str) -> Codec:
    try:
        codec = kind.from_json(entry)
    except TypeError as error:
        raise _unknown(f"codec {kind.name!r} does not have these fields", at, "") from error
    except InputError as error:
        place = at + error.at.removeprefix("$")
        raise FormatError(
            error.sentence, fault=Fault.OUT_OF_RANGE, at=place, hint=error.hint
        ) from error
    if not _same(codec.to_json(), entry):
        raise FormatError(
            f"codec {kind.name!r} is spelled otherwise", fault=Fault.NOT_CANONICAL, at=at
        )
    return codec


def _same(mine: JSON, theirs: JSON) -> bool:
    """Equal with types: True is not 1, and nothing is left out."""
    return mine == theirs and all(type(mine[k]) is type(theirs[k]) for k in mine)


def _home(kind: type[Codec]) -> str:
    return kind.__module__.partition(".")[0]


def _unknown(sentence: str, at: str, hint: str) -> FormatError:
    return FormatError(sentence, fault=Fault.UNKNOWN_CODEC, at=at, hint=hint)


def require_choice(value: Any, choices: Sequence[str], field: str) -> None:
    """Refuse a codec's field that is not one of its words.

    Raises
    ------
    InputError
        With the path of the field.
    """
    if type(value) is not str or value not in choices:
        raise InputError(
            f"{field} is {str(value)[:40]!r}, not one of {', '.join(choices)}", at=f"$.{field}"
        )


def require_int(value: Any, low: int, high: int, field: str) -> None:
    """Refuse a codec's field that is no integer of a range.

    Raises
    ------
    InputError
        With the path of the field.
    """
    if type(value) is not int or not low <= value <= high:
        raise InputError(
            f"{field} is {str(value)[:40]!r}, not an integer from {low} to {high}",
            at=f"$.{field}",
        )


def require_bool(value: Any, field: str) -> None:
    """Refuse a codec's field that is neither true nor false.

    Raises
    ------
    InputError
        With the path of the field.
    """
    if type(value) is not bool:
        raise InputError(f"{field} is {str(value)[:40]!r}, not true or false", at=f"$.{field}")
