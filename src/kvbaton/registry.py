"""Names to classes, imported when they are first used.

A registry maps a name to ``"module:Class"`` and a hint that says how to install what the module
needs.  Nothing is imported before :meth:`Registry.load`, so an optional dependency costs nothing
until somebody asks for it.  Other distributions add names by an entry point, without an edit here::

    [project.entry-points."kvbaton.stores"]
    sqlite = "kvbaton_sqlite_store:SqliteStore"

A name is given once.  Built-in names cannot be taken by an entry point, and a name that two
distributions claim is refused with both of them named: nothing is replaced silently.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from kvbaton.errors import InputError, KvbatonError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Provider:
    """Where a name's class lives.

    ``target`` is ``"module:Class"``; ``hint`` says how to get what it needs; ``source`` is the
    distribution that brought it, or empty for what is built in or registered by hand.
    """

    target: str
    hint: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        module, colon, name = self.target.partition(":")
        if not (module and colon and name):
            raise InputError(f'not a registry target: "{self.target}"', hint='use "module:Class"')


class Registry(Generic[T]):
    """Sorted names, each with a lazily imported object of type ``T``.

    Parameters
    ----------
    what
        What the names stand for, as error messages call it (``"store"``).
    builtin
        Names that come with this package.
    group
        Entry point group in which other distributions declare theirs.
    unknown
        Error raised for a name that nobody provides or whose module cannot be imported.
    """

    def __init__(
        self,
        what: str,
        builtin: Mapping[str, Provider],
        *,
        group: str,
        unknown: type[KvbatonError],
    ) -> None:
        self._what = what
        self._group = group
        self._unknown = unknown
        self._providers = dict(builtin)
        self._claims: dict[str, list[Provider]] | None = None

    def names(self) -> tuple[str, ...]:
        """Return every name that is provided, sorted; imports no provider."""
        return tuple(sorted(self._providers.keys() | self._entry_points().keys()))

    def register(self, name: str, target: str, *, hint: str = "") -> None:
        """Add a name for the life of this process.

        Raises
        ------
        InputError
            The name already stands for something else, or the target is malformed.
        """
        provider = Provider(target, hint)
        known = self._find(name)
        if known is not None and known.target != target:
            raise InputError(
                f'the {self._what} "{name}" is already {known.target}', hint="choose another name"
            )
        self._providers.setdefault(name, provider)

    def provider(self, name: str) -> Provider:
        """Return where a name's class lives, without importing it.

        Raises
        ------
        KvbatonError
            The registry's ``unknown`` error: nobody provides the name.
        InputError
            Two distributions claim it.
        """
        found = self._find(name)
        if found is None:
            known = ", ".join(self.names())
            raise self._unknown(f'no {self._what} is called "{name}"', hint=f"known: {known}")
        return found

    def load(self, name: str) -> T:
        """Import and return what a name stands for.

        Raises
        ------
        KvbatonError
            The registry's ``unknown`` error: nobody provides the name, or its module cannot be
            imported; the hint says what to install.
        InputError
            Two distributions claim the name.
        """
        provider = self.provider(name)
        module, _, attribute = provider.target.partition(":")
        try:
            return cast("T", getattr(importlib.import_module(module), attribute))
        except (ImportError, AttributeError) as error:
            raise self._unknown(
                f'the {self._what} "{name}" cannot be loaded: {error}', hint=provider.hint
            ) from error

    def _find(self, name: str) -> Provider | None:
        """Built-in and registered names first: finding those must not cost a scan of the disk."""
        if name in self._providers:
            return self._providers[name]
        claims = self._entry_points().get(name)
        if claims is None:
            return None
        if len({claim.target for claim in claims}) > 1:
            sources = " and ".join(f"{c.source} ({c.target})" for c in claims)
            raise InputError(
                f'the {self._what} "{name}" is claimed by {sources}', hint="uninstall one of them"
            )
        return claims[0]

    def _entry_points(self) -> dict[str, list[Provider]]:
        """Names that other distributions declare, found once."""
        if self._claims is None:
            import importlib.metadata  # slow to import, and most programs need built-in names only

            claims: dict[str, list[Provider]] = {}
            for point in importlib.metadata.entry_points(group=self._group):
                source = point.dist.name if point.dist else "an unnamed distribution"
                claims.setdefault(point.name, []).append(
                    Provider(point.value, hint=f"provided by {source}", source=source)
                )
            self._claims = {n: c for n, c in claims.items() if not self._is_taken(n, c)}
        return self._claims

    def _is_taken(self, name: str, claims: list[Provider]) -> bool:
        """Whether a name is ours already; warns when somebody else's class would go unused."""
        mine = self._providers.get(name)
        if mine is None:
            return False
        for claim in claims:
            if claim.target != mine.target:
                warnings.warn(
                    f'{claim.source} claims the {self._what} "{name}", which stays {mine.target}',
                    RuntimeWarning,
                    stacklevel=4,
                )
        return True
