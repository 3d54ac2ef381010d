"""Codecs by name: those of this package, and those of others by entry point.

An entry point is declared as ``mine = "my_package.my_codec:MyCodec"`` in the table
``[project.entry-points."kvbaton.codecs"]`` of a distribution's ``pyproject.toml``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kvbaton.codecs.base import Codec
from kvbaton.errors import InputError
from kvbaton.registry import Provider, Registry

_REGISTRY: Registry[type[Codec]] = Registry(
    "codec",
    {
        "fp8": Provider("kvbaton.codecs.fp8:Fp8"),
        "hadamard": Provider("kvbaton.codecs.hadamard:Hadamard"),
        "int": Provider("kvbaton.codecs.integer:Int"),
        "int-blocks": Provider("kvbaton.codecs.blocks:IntBlocks"),
        "nf4": Provider("kvbaton.codecs.nf4:Nf4"),
        "raw": Provider("kvbaton.codecs.raw:Raw"),
        "unrotate": Provider("kvbaton.codecs.unrotate:Unrotate"),
        "zstd": Provider("kvbaton.codecs.zstd:Zstd", "pip install 'kvbaton[zstd]'"),
    },
    group="kvbaton.codecs",
    unknown=InputError,
)


class _Registered(Mapping[str, type[Codec]]):
    """The registry as a mapping; a class is imported when its name is asked for."""

    def __getitem__(self, name: str) -> type[Codec]:
        try:
            kind: object = _REGISTRY.load(name)  # finds built-in names without a scan of the disk
        except InputError as error:
            if name in _REGISTRY.names():
                raise
            raise KeyError(name) from error
        if not (isinstance(kind, type) and issubclass(kind, Codec)):
            raise InputError(
                f"{_REGISTRY.provider(name).target} is not a codec", hint="derive it from Codec"
            )
        return kind

    def __iter__(self) -> Iterator[str]:
        return iter(_REGISTRY.names())

    def __len__(self) -> int:
        return len(_REGISTRY.names())


CODECS: Mapping[str, type[Codec]] = _Registered()
"""Registered codecs by name."""


def register_codec(name: str, target: str, *, hint: str = "") -> None:
    """Make ``target`` (``"module:Class"``) the codec of a name, for the life of this process.

    Raises
    ------
    InputError
        The name already stands for another codec.
    """
    _REGISTRY.register(name, target, hint=hint)


def codec_names() -> tuple[str, ...]:
    """Names of codecs that headers may carry, sorted."""
    return _REGISTRY.names()
