"""How kernels are compiled: without the interpreter lock, kept on disk, exact arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

OPTIONS = {"nogil": True, "error_model": "numpy", "boundscheck": False}
"""No ``fastmath``: equal bytes need IEEE arithmetic in the order in which it is written."""

inlined: Callable[[Callable[..., Any]], Any] = register_jitable(**OPTIONS)
"""For the parts of a kernel; they are compiled with whoever calls them."""


def kernel(function: Callable[..., Any]) -> Any:
    """Compile an entry point when it is first called.

    The machine code is kept beside this file or, where that folder cannot be written, in the
    user's cache folder; where neither can be, it is compiled in every process.
    """
    try:
        return njit(**OPTIONS, cache=True)(function)
    except RuntimeError:  # no folder to keep it in
        return njit(**OPTIONS)(function)


@cache
def sources() -> int:
    """A digest of what kernels are compiled from, 0 where that cannot be read.

    What is kept on disk is found by the entry point's own file alone.  An entry point that has this
    number in it is compiled anew when any part has changed.
    """
    digest = blake2b(digest_size=6)
    try:
        for path in sorted(Path(__file__).parent.glob("*.py")):
            digest.update(path.read_bytes())
    except OSError:
        return 0
    return int.from_bytes(digest.digest(), "little")


@intrinsic
def float_of(typing: Any, bits: Any) -> Any:
    """The float32 that has these 32 bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def bits_of(typing: Any, number: Any) -> Any:
    """The 32 bits of a float32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), generate


@intrinsic
def pointer(typing: Any, address: Any) -> Any:
    """An address as a pointer, for :func:`numba.carray`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


__all__ = ["bits_of", "carray", "float_of", "inlined", "kernel", "pointer", "sources"]
