"""Hedging: text is prefilled while a cache that is late is still on its way; the first one wins.

A store that stalls is not waited for past the time at which a prefill has to begin to make the
deadline.  The fetch goes on beside the prefill, and where it ends first the prefill is dropped
between two layers.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from kvbaton.backing import Taken

T = TypeVar("T")


@dataclass(frozen=True)
class Late:
    """A cache that is on its way.

    Parameters
    ----------
    coming
        Done when it is there, or cannot come.
    conclude
        What was taken, once it is there.
    let_go
        Gives it up, if it is not there; frees what was held for it.
    """

    coming: Future[Any]
    conclude: Callable[[], Taken]
    let_go: Callable[[], None]

    def arrived(self) -> bool:
        """Whether it is there.  Cheap: asked before every layer."""
        return self.coming.done() and self.coming.exception() is None

    def then(self, work: Callable[[Taken], Taken]) -> Late:
        """The same, with something done to what was taken."""
        return replace(self, conclude=lambda: work(self.conclude()))


@dataclass
class Hedge:
    """A late cache, and what has to be as it was before it was late for it to be used.

    Parameters
    ----------
    late
        The cache.
    enter
        Enters what was taken as if it had come in time; the cache.
    """

    late: Late
    enter: Callable[[Taken], Any]


def keep_fields(value: Any, *, but: frozenset[str] = frozenset()) -> Callable[[], None]:
    """Restores the fields of a dataclass instance to what they are now."""
    known = {f.name: getattr(value, f.name) for f in fields(value) if f.name not in but}

    def restore() -> None:
        for name, found in known.items():
            setattr(value, name, found)

    return restore
