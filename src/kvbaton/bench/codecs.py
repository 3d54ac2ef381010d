"""``bench codecs``: how fast K and V are encoded and decoded, against a plain copy, on one thread.

What is timed is what a hand-off and a take do: one layer of one segment after the other, from
memory that has not been touched for a while, into new memory (encoding) or into memory that is used
again (decoding).  Every piece is timed on its own and the shortest of its repeats counts, for all
rivals alike: what else runs on the machine only ever adds time.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from kvbaton.bench.codecs_rivals import rivals
from kvbaton.bench.machine import environment, library_versions
from kvbaton.codecs import CodecChain, Fp8, Hadamard, Int, Nf4, Raw, Unrotate, Zstd, warm
from kvbaton.codecs.profiles import PROFILES
from kvbaton.errors import InputError
from kvbaton.types import JSON, KVLayout, LayerKind, LayerLayout, RopeSpec, StoredTensor
from kvbaton.wire.structure import layer_places

DTYPES = {"float32": ("F32", torch.float32), "bfloat16": ("BF16", torch.bfloat16)}
SHAPES = {
    "smollm2-135m": (3, 256, 64),
    "qwen2.5-coder-0.5b": (2, 256, 64),
    "qwen2.5-coder-1.5b": (2, 256, 128),
    "8b": (8, 256, 128),
}
"""``[kv_heads, tokens, head_dim]`` of one layer of a full segment."""
WORKING_SET_BYTES = 96_000_000
"""Bytes of K and V that are gone through, several times what processors keep near: about the cache
of 2,048 tokens of SmolLM2-135M in float32."""

Say = Callable[[str], None]
_Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class CodecBench:
    """What to measure: dtypes by torch's name, shapes by name, repeats."""

    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    shapes: tuple[str, ...] = ("smollm2-135m",)
    repeats: int = 9

    def __post_init__(self) -> None:
        for given, known in ((self.dtypes, DTYPES), (self.shapes, SHAPES)):
            for name in given:
                if name not in known:
                    raise InputError(f"cannot measure {name!r}", hint=f"known: {', '.join(known)}")
        if not self.dtypes or not self.shapes or self.repeats < 1:
            raise InputError("there is nothing to measure")


def measure_codecs(plan: CodecBench, say: Say) -> JSON:
    """Run the plan.

    Returns
    -------
    JSON
        ``memcpy_gb_s`` of the first dtype and shape, and ``rows``: per codec speeds in GB/s of K
        and V in the cache's dtype (GB are 10^9 bytes), the same over memcpy's, bits per element,
        and the largest change of an element.  ``skipped`` says which rivals are not here, and why.
    """
    rows: list[JSON] = []
    skipped: dict[str, str] = {}
    with _one_thread():
        for shape in plan.shapes:
            for dtype in plan.dtypes:
                rows += _Bench(shape, dtype, plan.repeats, say).rows(skipped)
    return {
        "memcpy_gb_s": rows[0]["memcpy_gb_s"],
        "rows": rows,
        "skipped": skipped,
        "repeats": plan.repeats,
        "environment": environment() | {"versions": library_versions()},
    }


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Bench:
    """One dtype and shape: K and V of many layers of one segment."""

    def __init__(self, shape: str, dtype: str, repeats: int, say: Say) -> None:
        self._shape_name, self._dtype_name, self._repeats, self._say = shape, dtype, repeats, say
        self._shape = SHAPES[shape]
        self._name, torch_dtype = DTYPES[dtype]
        self._layout = _layout(self._name, self._shape)
        self._pairs = [_made(self._shape, i).to(torch_dtype) for i in range(self._pieces())]
        self._bytes = sum(t.nbytes for t in self._pairs)
        self._memcpy = self._copy()

    def _pieces(self) -> int:
        heads, tokens, dim = self._shape
        of_one = heads * tokens * dim * (4 if self._name == "F32" else 2)
        return 2 * max(2, WORKING_SET_BYTES // (2 * of_one))

    def _copy(self) -> float:
        self._say(f"memcpy, {self._shape_name} {self._dtype_name}")
        copies = [torch.empty_like(t) for t in self._pairs]
        views = [(a.view(-1).view(torch.uint8).numpy(), b.view(-1).view(torch.uint8).numpy())
                 for a, b in zip(copies, self._pairs, strict=True)]  # fmt: skip

        def copy(pair: tuple[Any, Any]) -> None:
            pair[0][:] = pair[1]

        return self._seconds(copy, views)

    def rows(self, skipped: dict[str, str]) -> list[JSON]:
        """Codecs, profiles and rivals."""
        rows = [self._chain_row(name, keys, values) for name, keys, values in _chains()]
        for name, profile in PROFILES.items():
            # The last layer: the first one has more bits in every profile.
            *_, (keys, values) = profile.plan(self._layout).layers
            rows.append(self._chain_row(f"profile {name}", keys, values))
        rows.append(self._saved_row())
        rows += [self._rival_row(name, do, undo) for name, do, undo in rivals(skipped)]
        return rows

    def _chain_row(self, name: str, keys: CodecChain, values: CodecChain) -> JSON:
        self._say(f"{name}, {self._shape_name} {self._dtype_name}")
        warm((keys, values), self._name)
        sides = tuple(zip((keys, values), layer_places(self._layout, 1, 512), strict=True))
        work = [(sides[i % 2][0], t, sides[i % 2][1]) for i, t in enumerate(self._pairs)]
        stored = [_by_suffix(chain.encode(t, at)) for chain, t, at in work]
        scratch = torch.empty_like(self._pairs[0])
        encode = self._seconds(lambda item: item[0].encode(item[1], item[2]), work)
        decode = self._seconds(
            lambda item: item[0].decode(item[1], self._name, self._shape, item[2], out=scratch),
            [(c, data, at) for (c, _, at), data in zip(work, stored, strict=True)],
        )
        error = max(
            float((c.decode(data, self._name, self._shape, at).float() - t.float()).abs().max())
            for (c, t, at), data in zip(work[:8], stored, strict=False)
        )
        size = sum(len(data) for parts in stored for data in parts.values())
        return self._result(name, encode, decode, size, error)

    def _saved_row(self) -> JSON:
        """``torch.save`` and ``torch.load`` of K and V of a layer, through memory."""
        pairs = list(zip(self._pairs[::2], self._pairs[1::2], strict=True))
        return self._rival_row("torch.save", _save, _load, pairs)

    def _rival_row(
        self,
        name: str,
        encode: Callable[[Any], Any],
        decode: Callable[[Any], Any],
        items: Sequence[Any] | None = None,
    ) -> JSON:
        self._say(f"{name}, {self._shape_name} {self._dtype_name}")
        work = list(items) if items is not None else [(t, i % 2) for i, t in enumerate(self._pairs)]
        stored = [encode(item) for item in work]
        back = decode(stored[0])
        wanted = work[0]
        pairs = [(back, wanted[0])] if items is None else list(zip(back, wanted, strict=True))
        error = max(float((a.float() - b.float()).abs().max()) for a, b in pairs)
        size = sum(_sized(part) for part in stored)
        return self._result(
            name, self._seconds(encode, work), self._seconds(decode, stored), size, error
        )

    def _seconds(self, work: Callable[[Any], object], items: Sequence[Any]) -> float:
        """The sum of every item's shortest time."""
        shortest = [float("inf")] * len(items)
        for _ in range(self._repeats):
            for i, item in enumerate(items):
                started = time.perf_counter()
                work(item)
                took = time.perf_counter() - started
                shortest[i] = min(shortest[i], took)
        return sum(shortest)

    def _result(self, name: str, encode: float, decode: float, size: int, error: float) -> JSON:
        elements = sum(t.numel() for t in self._pairs)
        return {
            "codec": name,
            "shape": self._shape_name,
            "dtype": self._dtype_name,
            "encode_gb_s": self._bytes / encode / 1e9,
            "decode_gb_s": self._bytes / decode / 1e9,
            "encode_over_memcpy": self._memcpy / encode,
            "decode_over_memcpy": self._memcpy / decode,
            "memcpy_gb_s": self._bytes / self._memcpy / 1e9,
            "bits_per_element": 8 * size / elements,
            "max_abs_error": error,
        }


def _chains() -> Iterator[tuple[str, CodecChain, CodecChain]]:
    """Codecs by what they are called, for keys and values."""
    raw = CodecChain((Raw(),))
    keys8, values8 = Int(bits=8, group=128), Int(bits=8, axis="token", group=0, scales="u8")
    yield "raw", raw, raw
    yield "int8", CodecChain((keys8,)), CodecChain((values8,))
    yield (
        "int5 un-rotated keys, int4 Hadamard values",
        CodecChain((Unrotate(), Int(bits=5, group=128))),
        CodecChain((Hadamard(), Int(bits=4, axis="token", group=0, symmetric=True, scales="u8"))),
    )
    for bits in (4, 2):
        packers = Int(bits=bits, group=32), Int(bits=bits, axis="token", group=32)
        yield f"int{bits} (KIVI)", CodecChain((packers[0],)), CodecChain((packers[1],))
    whole = CodecChain((Int(bits=8, axis="tensor", scales="f32"),))
    yield "int8 per tensor", whole, whole
    yield "fp8", CodecChain((Fp8(group=128),)), CodecChain((Fp8(axis="token", group=0),))
    yield "nf4", CodecChain((Nf4(group=64),)), CodecChain((Nf4(axis="token", group=0),))
    yield "int8 + zstd", CodecChain((keys8, Zstd(level=1))), CodecChain((values8, Zstd(level=1)))
    shuffled = CodecChain((Raw(), Zstd(level=1, shuffle=2)))
    yield "raw + zstd", shuffled, shuffled


def _layout(dtype: str, shape: tuple[int, int, int]) -> KVLayout:
    heads, _, dim = shape
    layer = LayerLayout(LayerKind.FULL, heads, dim, dim)
    rope = RopeSpec("default", "half", dim, 10_000.0, 1.0, f"{dim:064x}")
    return KVLayout(dtype, (layer,) * 8, (rope,))


def _made(shape: tuple[int, int, int], seed: int) -> torch.Tensor:
    """Normal numbers; some channels lie far from zero, as keys' do."""
    made = torch.Generator().manual_seed(seed)
    tensor = torch.randn(shape, generator=made)
    if seed % 2 == 0:
        tensor[..., ::17] += 20.0
    return tensor


def _by_suffix(parts: Sequence[StoredTensor]) -> dict[str, memoryview]:
    return {part.name.partition(".")[2]: memoryview(bytearray(part.data)) for part in parts}


def _save(pair: _Pair) -> bytes:
    file = io.BytesIO()
    torch.save(pair, file)
    return file.getvalue()


def _load(data: bytes) -> _Pair:
    keys, values = torch.load(io.BytesIO(data), weights_only=True)
    return keys, values


def _sized(stored: Any) -> int:
    """Bytes of what a rival made."""
    if isinstance(stored, bytes):
        return len(stored)
    if isinstance(stored, torch.Tensor):
        return _sized_tensor(stored)
    if isinstance(stored, dict):
        return sum(_sized(value) for value in stored.values())
    if isinstance(stored, (tuple, list)):
        return sum(_sized(value) for value in stored)
    return 0


def _sized_tensor(tensor: torch.Tensor) -> int:
    """Bytes of a tensor; quantized subclasses are made of several."""
    if type(tensor) is torch.Tensor or not hasattr(tensor, "__tensor_flatten__"):
        return int(tensor.nbytes)
    names, _ = tensor.__tensor_flatten__()
    return sum(_sized_tensor(getattr(tensor, name)) for name in names)
