"""Signature schemes by name: the built-in one, and those of others by entry point.

An entry point is declared as ``mine = "my_package.my_scheme:MyScheme"`` in the table
``[project.entry-points."kvbaton.seals"]`` of a distribution's ``pyproject.toml``.
"""

from __future__ import annotations

from functools import cache

from kvbaton.errors import InputError
from kvbaton.registry import Provider, Registry
from kvbaton.seals.base import SealScheme

DEFAULT_SCHEME = "ed25519"
"""The scheme of keys that nobody chose one for."""

_REGISTRY: Registry[type[SealScheme]] = Registry(
    "seal scheme",
    {"ed25519": Provider("kvbaton.seals.ed25519:Ed25519")},
    group="kvbaton.seals",
    unknown=InputError,
)


@cache
def seal_scheme(name: str) -> SealScheme:
    """The scheme of a name; its module is imported when it is first asked for.

    Raises
    ------
    InputError
        Nobody provides the name, two distributions claim it, or what it names is no scheme of
        that name.
    """
    kind: object = _REGISTRY.load(name)
    if not (isinstance(kind, type) and issubclass(kind, SealScheme)):
        raise InputError(
            f"{_REGISTRY.provider(name).target} is not a seal scheme",
            hint="derive it from SealScheme",
        )
    if kind.name != name:
        raise InputError(
            f"{_REGISTRY.provider(name).target} calls itself {kind.name!r}, not {name!r}",
            hint="register it by its own name: key ids contain it",
        )
    return kind()


def register_seal(name: str, target: str, *, hint: str = "") -> None:
    """Make ``target`` (``"module:Class"``) the scheme of a name, for the life of this process.

    Raises
    ------
    InputError
        The name already stands for another scheme.
    """
    _REGISTRY.register(name, target, hint=hint)


def seal_schemes() -> tuple[str, ...]:
    """Names of schemes that keys may have, sorted."""
    return _REGISTRY.names()
