"""What all quantizers with groups share: one stored tensor of bytes, and the exact first tokens.

A quantizer stores K or V of a layer as one tensor of bytes: the first tokens in the cache's own
dtype, then the parameters of the groups, then the codes, each part from a multiple of 8 on.  One
tensor, because each entry of a segment's header and each pad counts in a small segment.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvbaton.codecs import planes
from kvbaton.codecs.base import (
    Shape,
    StoredShape,
    TensorToBytes,
    require_choice,
    require_int,
)
from kvbaton.codecs.groups import AXES, MAX_GROUP, Grid, check_groups
from kvbaton.codecs.scales import KINDS
from kvbaton.errors import Fault, InputError
from kvbaton.types import DTYPE_BYTES, Fidelity, FidelityClass, Place, StoredTensor

if TYPE_CHECKING:
    import torch

MAX_FIRST = 1 << 16
_FLOATS = ("BF16", "F16", "F32")


def exact_tokens(first: int, tokens: int, place: Place) -> int:
    """How many of ``tokens`` from ``place.first`` on stand before position ``first``."""
    return min(max(first - place.first, 0), tokens)


@dataclass(frozen=True)
class Sections:
    """Where the parts of the one stored tensor begin, and where the last ends."""

    parameters: int
    codes: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class Grouped(TensorToBytes):
    """Quantizes groups of elements.

    Parameters
    ----------
    axis
        ``channel``: groups of tokens of one channel; ``token``: groups of channels of one token;
        ``tensor``: everything is one group.
    group
        Elements of a group; 0 takes the whole axis.
    first
        Tokens at positions below this are stored as they are: attention sinks.
    scales
        How parameters are stored: ``f32``, ``f16`` or ``u8``.
    """

    axis: str = "channel"
    group: int = 64
    first: int = 0
    scales: str = "f16"

    fidelity: ClassVar[Fidelity] = Fidelity(FidelityClass.LOSSY, "grouped")

    def __post_init__(self) -> None:
        require_choice(self.axis, AXES, "axis")
        require_int(self.group, 0, MAX_GROUP, "group")
        require_int(self.first, 0, MAX_FIRST, "first")
        require_choice(self.scales, KINDS, "scales")

    @property
    @abstractmethod
    def code_bits(self) -> int:
        """Bits of a code."""

    @abstractmethod
    def parameter_bytes(self, grid: Grid) -> int:
        """Bytes of all parameters."""

    @abstractmethod
    def quantize(
        self, body: torch.Tensor, grid: Grid, place: Place
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Parameters as bytes, and codes ``[heads, tokens, dim]`` uint8, of a float32 tensor."""

    @abstractmethod
    def dequantize(
        self, parameters: torch.Tensor, codes: torch.Tensor, grid: Grid, place: Place
    ) -> torch.Tensor:
        """Inverse of :meth:`quantize`, within the codec's bound."""

    def check(self, shape: Shape, place: Place) -> None:
        """Refuse groups of channels that do not divide ``head_dim``."""
        check_groups(self.axis, self.group, shape[-1])

    def grid(self, shape: Shape, place: Place) -> Grid:
        """The groups of what is not stored as it is."""
        heads, tokens, dim = shape
        left = tokens - exact_tokens(self.first, tokens, place)
        return Grid(self.axis, self.group, heads, left, dim)

    def sections(self, dtype: str, shape: Shape, place: Place) -> Sections:
        """Where the parts lie."""
        heads, tokens, dim = shape
        grid = self.grid(shape, place)
        raw = heads * (tokens - grid.tokens) * dim * DTYPE_BYTES[dtype]
        if not grid.tokens:
            return Sections(raw, raw, raw)
        parameters = _aligned(raw)
        start = _aligned(parameters + self.parameter_bytes(grid))
        return Sections(parameters, start, start + heads * self.code_bytes(grid))

    def code_bytes(self, grid: Grid) -> int:
        """Bytes of the codes of one head."""
        return sum(planes.packed_bytes(tile * grid.dim, self.code_bits) for tile in grid.tiles)

    def pack_codes(self, codes: torch.Tensor, grid: Grid) -> torch.Tensor:
        """Bytes of codes ``[heads, tokens, dim]``: tile after tile of a head, head after head."""
        return pack_tiles(codes, grid, self.code_bits)

    def unpack_codes(self, data: torch.Tensor, grid: Grid) -> torch.Tensor:
        """Inverse of :meth:`pack_codes`."""
        return unpack_tiles(data, grid, self.code_bits)

    def storage(self, dtype: str, shape: Shape, place: Place) -> Mapping[str, StoredShape]:
        """One tensor of bytes."""
        if dtype not in _FLOATS:
            raise InputError(f"{self.name} quantizes BF16, F16 and F32, not {dtype}")
        self.check(shape, place)
        return {"": StoredShape("U8", (self.sections(dtype, shape, place).stop,))}

    def pack(self, tensor: torch.Tensor, dtype: str, place: Place) -> Mapping[str, StoredTensor]:
        """The readable way; runs on any device."""
        import torch

        from kvbaton.codecs.conversion import as_float32, require_finite, to_dtype

        shape = tuple(tensor.shape)
        (stored,) = self.storage(dtype, shape, place).values()
        require_finite(tensor, place)
        grid, parts = self.grid(shape, place), self.sections(dtype, shape, place)
        data = torch.zeros(stored.shape, dtype=torch.uint8, device=tensor.device)
        exact = shape[1] - grid.tokens
        if exact:
            raw = to_dtype(tensor[:, :exact], dtype, place).contiguous()
            data[: raw.nbytes] = raw.view(-1).view(torch.uint8)
        if grid.tokens:
            body = as_float32(tensor[:, exact:], place)
            parameters, codes = self.quantize(body, grid, place)
            data[parts.parameters : parts.parameters + len(parameters)] = parameters
            data[parts.codes :] = self.pack_codes(codes, grid)
        return {"": StoredTensor("", "U8", stored.shape, memoryview(data.cpu().numpy()))}

    def unpack(
        self, stored: Mapping[str, memoryview], dtype: str, shape: Shape, place: Place
    ) -> torch.Tensor:
        """The readable way, in float32; on the host."""
        import torch

        return self.unpack_on(stored, dtype, shape, place, device=torch.device("cpu"))

    def unpack_on(
        self,
        stored: Mapping[str, memoryview],
        dtype: str,
        shape: Shape,
        place: Place,
        *,
        device: torch.device,
    ) -> torch.Tensor:
        """The readable way, in float32: stored bytes travel to the device, not numbers."""
        import torch

        from kvbaton.codecs.conversion import refuse_stored
        from kvbaton.codecs.dtypes import TORCH_DTYPES

        grid, parts = self.grid(shape, place), self.sections(dtype, shape, place)
        data = torch.frombuffer(_writable(stored[""]), dtype=torch.uint8).to(device)
        exact = shape[1] - grid.tokens
        result = torch.empty(shape, dtype=torch.float32, device=device)
        if exact:
            size = shape[0] * exact * shape[2] * DTYPE_BYTES[dtype]
            raw = data[:size].clone().view(TORCH_DTYPES[dtype]).view(shape[0], exact, shape[2])
            if not bool(torch.isfinite(raw).all()):
                raise refuse_stored("first tokens that are not finite", Fault.NOT_FINITE, place)
            result[:, :exact] = raw
        if grid.tokens:
            stop = parts.parameters + self.parameter_bytes(grid)
            codes = self.unpack_codes(data[parts.codes :], grid)
            result[:, exact:] = self.dequantize(
                data[parts.parameters : stop].clone(), codes, grid, place
            )
        return result


def _writable(data: memoryview) -> memoryview:
    """Only writable memory makes tensors without a warning of torch."""
    return memoryview(bytearray(data)) if data.readonly else data


def _aligned(offset: int) -> int:
    return -(-offset // 8) * 8


def pack_tiles(codes: torch.Tensor, grid: Grid, bits: int) -> torch.Tensor:
    """Bytes of codes ``[heads, tokens, dim]``: tile after tile of a head, head after head."""
    import torch

    full = len(grid.tiles) - (1 if grid.tokens % grid.tile else 0)
    whole = codes[:, : full * grid.tile].reshape(grid.heads, full, grid.tile * grid.dim)
    rest = codes[:, full * grid.tile :].flatten(1)
    parts = [planes.pack(whole, bits).flatten(1), planes.pack(rest, bits)]
    return torch.cat(parts, dim=1).flatten()


def unpack_tiles(data: torch.Tensor, grid: Grid, bits: int) -> torch.Tensor:
    """Inverse of :func:`pack_tiles`."""
    import torch

    rows = data.view(grid.heads, -1)
    full = grid.tokens // grid.tile
    of_tile = planes.packed_bytes(grid.tile * grid.dim, bits)
    rest = grid.tokens - full * grid.tile
    whole = planes.unpack(
        rows[:, : full * of_tile].reshape(grid.heads, full, of_tile), grid.tile * grid.dim, bits
    )
    tail = planes.unpack(rows[:, full * of_tile :], rest * grid.dim, bits)
    shape = (grid.heads, -1, grid.dim)
    return torch.cat([whole.reshape(shape), tail.reshape(shape)], dim=1)
