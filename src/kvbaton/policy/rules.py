"""The rules of a policy: what its owner accepts.  Rules only ever tighten.

Every rule is off unless it is set.  Where a caller sets a limit of its own, such as a minimum of
fidelity for one take, the stricter of both holds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from kvbaton.errors import InputError
from kvbaton.policy.routes import EXACT, TEXT
from kvbaton.types import FidelityClass
from kvbaton.wire.limits import MAX_HOPS, MAX_POSITION

MAX_ROUNDS = 1_000_000
MAX_NAMES = 256
MAX_TIE = 1.0

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,63}")


class StaleRule(StrEnum):
    """What becomes of a baton whose context is no longer the current one."""

    LABEL = "label"
    """Go on, and label the answer as based on a stale context."""
    FETCH = "fetch"
    """Take the newer baton in its place."""
    REFUSE = "refuse"
    """Do not use it."""


class BeyondHops(StrEnum):
    """What is read where a cache was handed on too often."""

    TEXT = "text"
    """All of its tokens."""
    SUMMARY = "summary"
    """The sender's summary in their place, if there is one."""


@dataclass(frozen=True, slots=True)
class PolicyRules:
    """What is accepted of a baton; the defaults accept whatever has been accepted without rules.

    Parameters
    ----------
    minimum_fidelity
        The worst class that is accepted.
    max_lossy_hops
        Lossy or approximate hand-offs since the last exact prefill, at most; None leaves the
        caller's own limit, which is 3 unless it says otherwise.
    max_exact_hops
        Exact hand-offs since the last prefill from text, at most; None for any number.
    beyond_hops
        What is read where there were more hand-offs than that.
    min_tokens
        Reusable tokens from which on a cache is worth looking at.
    max_rounds
        The last round of a conversation between agents that goes by cache; None for any.
    max_moves_per_minute
        How often the baton's ref may move; None for any rate.
    stale
        What becomes of a stale baton.
    known_freshness
        Refuse also what nobody can say the freshness of; only with ``fetch`` or ``refuse``.
    critical_tags
        Tags of tasks that accept exact caches only.
    routes
        Names of the routes that may be taken; None for all.  Text can always be taken.
    worth_it
        Take text where it is predicted to be as fast.
    tie
        Share by which a route may be slower than another and still be as fast.

    Raises
    ------
    InputError
        A rule that nothing, or everything, could satisfy; ``at`` is ``$.`` and its name.
    """

    minimum_fidelity: FidelityClass = FidelityClass.APPROXIMATE
    max_lossy_hops: int | None = None
    max_exact_hops: int | None = None
    beyond_hops: BeyondHops = BeyondHops.TEXT
    min_tokens: int = 0
    max_rounds: int | None = None
    max_moves_per_minute: float | None = None
    stale: StaleRule = StaleRule.LABEL
    known_freshness: bool = False
    critical_tags: frozenset[str] = frozenset()
    routes: frozenset[str] | None = None
    worth_it: bool = True
    tie: float = 0.05

    def __post_init__(self) -> None:
        _check_count("max_lossy_hops", self.max_lossy_hops, MAX_HOPS)
        _check_count("max_exact_hops", self.max_exact_hops, MAX_HOPS)
        _check_count("min_tokens", self.min_tokens, MAX_POSITION)
        _check_count("max_rounds", self.max_rounds, MAX_ROUNDS)
        _check_number("max_moves_per_minute", self.max_moves_per_minute, math.inf)
        _check_number("tie", self.tie, MAX_TIE)
        _check_names("critical_tags", self.critical_tags)
        _check_names("routes", self.routes or ())
        if self.known_freshness and self.stale is StaleRule.LABEL:
            raise InputError(
                "what is only labelled when it is stale cannot be refused for being unknown",
                at="$.known_freshness",
                hint='stale = "refuse" or "fetch"',
            )
        faithful = self.minimum_fidelity is FidelityClass.EXACT
        if faithful and EXACT not in self.caches and self.caches:
            raise InputError(
                "none of the allowed routes is exact, and the minimum of fidelity is",
                at="$.routes",
                hint='minimum_fidelity = "lossy", or "exact" among the routes',
            )

    @property
    def caches(self) -> frozenset[str]:
        """Names on the allow list that are not text; empty where there is no list, too."""
        return (self.routes or frozenset()) - {TEXT}

    def allows(self, route: str) -> bool:
        """Whether a route's name is on the allow list."""
        return self.routes is None or route == TEXT or route in self.routes

    def is_critical(self, tags: Collection[str]) -> bool:
        """Whether a task with these tags accepts exact caches only."""
        return not self.critical_tags.isdisjoint(tags)


def _check_count(name: str, value: int | None, at_most: int) -> None:
    if value is None:
        return
    if type(value) is not int:
        raise InputError("must be an integer", at=f"$.{name}")
    if not 0 <= value <= at_most:
        raise InputError(f"must be 0 to {at_most}, not {value}", at=f"$.{name}")


def _check_number(name: str, value: float | None, at_most: float) -> None:
    if value is None:
        return
    if type(value) not in {int, float}:
        raise InputError("must be a number", at=f"$.{name}")
    if not (math.isfinite(value) and 0 <= value <= at_most):
        upto = "" if math.isinf(at_most) else f" to {at_most:g}"
        raise InputError(f"must be a finite number from 0{upto}, not {value}", at=f"$.{name}")


def _check_names(name: str, values: Collection[str]) -> None:
    if len(values) > MAX_NAMES:
        raise InputError(f"there are more than {MAX_NAMES}", at=f"$.{name}")
    for value in sorted(values):
        if not _NAME.fullmatch(value):
            raise InputError(
                f"{value[:80]!r} is no name here",
                at=f"$.{name}",
                hint="1 to 64 letters, digits, '_', '.', ':', '/', '-'",
            )


NO_RULES = PolicyRules()
"""Nothing is ruled out."""
