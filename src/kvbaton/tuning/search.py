"""Which bits for which layer: the smallest loss under a size, or the smallest size under a loss.

Losses of single changes add up well enough while all of them are small, so a plan is a knapsack:
one choice per layer and per K or V.  Of each slot's choices only those on its lower convex hull of
loss over cost are ever worth taking; a greedy walk along the steepest edges is then optimal but for
the last step.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvbaton.errors import InputError


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to encode a slot: its name (here: bits), its cost in bytes, its loss in nats."""

    name: int
    cost: float
    loss: float


Slots = Sequence[Sequence[Choice]]
Picked = tuple[Choice, ...]


def hull(choices: Sequence[Choice]) -> list[Choice]:
    """The choices on the lower convex hull, from the cheapest on.

    Raises
    ------
    InputError
        There are no choices.
    """
    if not choices:
        raise InputError("a slot without choices")
    kept: list[Choice] = []
    for choice in sorted(choices, key=lambda c: (c.cost, c.loss)):
        if kept and choice.loss >= kept[-1].loss:
            continue
        while len(kept) > 1 and _slope(kept[-2], kept[-1]) >= _slope(kept[-1], choice):
            kept.pop()
        kept.append(choice)
    return kept


def _slope(cheaper: Choice, dearer: Choice) -> float:
    """Loss gained per byte; negative, and steeper is better."""
    return (dearer.loss - cheaper.loss) / (dearer.cost - cheaper.cost)


def within_cost(slots: Slots, max_cost: float) -> Picked:
    """The choices with the smallest total loss whose total cost is at most ``max_cost``.

    Raises
    ------
    InputError
        Even the cheapest choices cost more.
    """
    picked = _walk(slots, lambda cost, loss: True, max_cost)
    if sum(choice.cost for choice in picked) > max_cost:
        raise InputError("even the smallest plan is larger than that")
    return picked


def within_loss(slots: Slots, max_loss: float) -> Picked:
    """The choices with the smallest total cost whose total loss is at most ``max_loss``.

    Raises
    ------
    InputError
        Even the most faithful choices lose more.
    """
    picked = _walk(slots, lambda cost, loss: loss > max_loss, float("inf"))
    if sum(choice.loss for choice in picked) > max_loss:
        raise InputError("even the largest plan loses more than that")
    return picked


def _walk(slots: Slots, goes_on: Callable[[float, float], bool], max_cost: float) -> Picked:
    """Take the steepest edge that fits, as long as ``goes_on(cost, loss)`` says so."""
    hulls = [hull(choices) for choices in slots]
    at = [0] * len(hulls)
    cost = sum(line[0].cost for line in hulls)
    loss = sum(line[0].loss for line in hulls)
    edges = [(_slope(*line[:2]), slot) for slot, line in enumerate(hulls) if len(line) > 1]
    heapq.heapify(edges)
    while edges and goes_on(cost, loss):
        _, slot = heapq.heappop(edges)
        line, place = hulls[slot], at[slot]
        more = line[place + 1].cost - line[place].cost
        if cost + more > max_cost:
            continue  # a smaller step of another slot may fit still
        cost, loss = cost + more, loss + line[place + 1].loss - line[place].loss
        at[slot] = place + 1
        if place + 2 < len(line):
            heapq.heappush(edges, (_slope(line[place + 1], line[place + 2]), slot))
    return tuple(line[place] for line, place in zip(hulls, at, strict=True))
