"""zstd after a byte shuffle: lossless, for what still has a pattern in it.

The shuffle puts the first bytes of all numbers together, then the second ones, ...: exponents of
floats resemble one another, mantissas do not.  Needs ``pip install 'kvbaton[zstd]'``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from kvbaton.codecs.base import BytesToBytes, require_int
from kvbaton.errors import Fault, FormatError, InputError, Unsupported

if TYPE_CHECKING:
    import numpy as np

_SIZES = (1, 2, 4, 8)
_MAX_WINDOW = 1 << 27
"""Bytes: a frame may not ask for more memory than this to be read."""


@dataclass(frozen=True, kw_only=True)
class Zstd(BytesToBytes):
    """Compresses stored tensors.

    Parameters
    ----------
    level
        1 (fast) to 19 (small).
    shuffle
        Bytes of a number whose bytes are put together; 1 leaves them as they are.
    """

    name: ClassVar[str] = "zstd"

    level: int = 3
    shuffle: int = 1

    def __post_init__(self) -> None:
        require_int(self.level, 1, 19, "level")
        require_int(self.shuffle, 1, 8, "shuffle")
        if self.shuffle not in _SIZES:
            raise InputError(f"shuffle is {self.shuffle}, not one of {_SIZES}", at="$.shuffle")

    def squeeze(self, data: memoryview) -> memoryview:
        """One frame that states its size."""
        shuffled = _shuffled(data, self.shuffle)
        return memoryview(_library().ZstdCompressor(level=self.level).compress(shuffled))

    def expand(self, data: memoryview, size_bytes: int) -> memoryview:
        """Just ``size_bytes``; what a frame says of itself is checked before memory is taken."""
        library = _library()
        try:
            if library.frame_content_size(data) != size_bytes:
                raise _damaged(f"a frame of another size than {size_bytes} bytes")
            expand = library.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompress
            plain = expand(data, max_output_size=size_bytes, allow_extra_data=False)
        except library.ZstdError as error:
            raise _damaged(str(error)) from error
        return _unshuffled(plain, self.shuffle)


def _damaged(sentence: str) -> FormatError:
    return FormatError(f"zstd: {sentence}", fault=Fault.SIZE_MISMATCH)


def _library() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise Unsupported(
            "the codec zstd needs the package zstandard", hint="pip install 'kvbaton[zstd]'"
        ) from error
    return zstandard


def _shuffled(data: memoryview, size: int) -> memoryview | np.ndarray[Any, Any]:
    if size == 1 or data.nbytes % size:
        return data
    import numpy as np

    return np.ascontiguousarray(np.frombuffer(data, np.uint8).reshape(-1, size).T)


def _unshuffled(data: bytes, size: int) -> memoryview:
    """In memory that can be written, as tensors over it want."""
    if size == 1 or len(data) % size:
        return memoryview(bytearray(data))
    import numpy as np

    plain = np.frombuffer(data, np.uint8).reshape(size, -1).T.reshape(-1)
    return memoryview(plain.data)
