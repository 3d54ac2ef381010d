"""Explanations as value objects, and as plain lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvbaton.types import JSON

ALLOWED, LESSER, REFUSED, NOT_ASKED = "✓", "~", "✗", "·"
"""Marks: passed, passed by a lesser route or with a note, refused, and not asked."""


@dataclass(frozen=True, slots=True)
class Line:
    """One gate, or one thing that happened afterwards."""

    mark: str
    name: str
    sentence: str = ""
    decided: bool = False

    def to_json(self) -> JSON:
        """``{"mark", "name", "sentence", "decided"}``."""
        return {
            "mark": self.mark,
            "name": self.name,
            "sentence": self.sentence,
            "decided": self.decided,
        }


@dataclass(frozen=True, slots=True)
class PredictedRoute:
    """What was predicted of a route.

    ``fastest`` says that no other was predicted to be faster.  ``actual_s`` is what came true,
    where it is known: of the route that was taken.
    """

    route: str
    ttft_s: float
    low_s: float
    high_s: float
    fastest: bool
    actual_s: float | None = None

    @property
    def came_true(self) -> bool | None:
        """Whether what came true lies in the interval; None where it is not known."""
        return None if self.actual_s is None else self.low_s <= self.actual_s <= self.high_s

    def to_json(self) -> JSON:
        """A JSON object of all fields."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return plain | {"came_true": self.came_true}


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an answer was computed by its route.

    Parameters
    ----------
    id
        Of the receipt or, where ``of`` says so, of the baton; empty where a decision is explained
        before anything was taken.
    route, chosen
        As receipts spell it, and the route's name; ``chosen`` is empty where nobody noted it.
    outcome
        Of the receipt; empty without one.
    gates, afterwards
        What the gates said, and what happened when the cache was taken.
    decided_by
        The first that decided: a gate, ``roll-out``, or a reason; empty where nothing was
        against the whole baton.
    whole
        Whether the receipt had kept its decision, so that nothing had to be inferred.
    compared
        A sentence on the answer that nobody saw, where the receipt has one.
    """

    id: str
    route: str
    chosen: str
    outcome: str
    gates: tuple[Line, ...]
    afterwards: tuple[Line, ...]
    predictions: tuple[PredictedRoute, ...]
    decided_by: str
    policy: str = ""
    shadow: bool = False
    whole: bool = True
    compared: str = ""
    of: str = "receipt"

    def to_json(self) -> JSON:
        """A JSON object of all fields."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return plain | {
            "gates": [line.to_json() for line in self.gates],
            "afterwards": [line.to_json() for line in self.afterwards],
            "predictions": [one.to_json() for one in self.predictions],
        }

    def lines(self) -> tuple[str, ...]:
        """The explanation as plain lines, without colours."""
        return tuple(_drawn(self))


def _drawn(found: Explanation) -> Iterator[str]:
    yield _title(found)
    if found.shadow:
        yield f"shadow: text answers, {found.chosen} is computed besides and compared"
    if found.compared:
        yield f"shadow: {found.compared}"
    width = max((len(line.name) for line in (*found.gates, *found.afterwards)), default=0)
    for heading, lines in (("gates", found.gates), ("afterwards", found.afterwards)):
        if lines:
            yield heading
        for line in lines:
            decided = "   <- decided" if line.decided else ""
            yield f"  {line.mark} {line.name:<{width}}  {line.sentence}{decided}".rstrip()
    if found.of == "receipt":
        yield from _drawn_predictions(found.predictions)
    yield f"decided by: {found.decided_by or 'nothing was against it'}"
    if not found.whole:
        yield "the receipt kept no decision: gates are inferred from its reasons"


def _title(found: Explanation) -> str:
    named = "" if found.shadow or found.chosen in {"", found.route} else f" ({found.chosen})"
    outcome = f", {found.outcome}" if found.outcome else ""
    of = f"{found.of} {found.id}: " if found.id else ""
    limits = "" if found.of == "receipt" else ", as far as it can be told without a receiver"
    return f"{of}route {found.route}{named}{outcome}{limits}"


def _drawn_predictions(predictions: Sequence[PredictedRoute]) -> Iterator[str]:
    if not predictions:
        yield "predictions: none, nothing was measured here"
        return
    yield "predictions: seconds to the first token"
    width = max(len(one.route) for one in predictions)
    for one in predictions:
        actual = "" if one.actual_s is None else f"; came true {one.actual_s:.3g}"
        outside = " (outside)" if one.came_true is False else ""
        interval = f"{one.ttft_s:.3g} ({one.low_s:.3g} to {one.high_s:.3g})"
        mark = ALLOWED if one.fastest else REFUSED
        yield f"  {mark} {one.route:<{width}}  {interval}{actual}{outside}"
