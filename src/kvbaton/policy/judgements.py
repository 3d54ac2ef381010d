"""Judgements of gates, and the ruling that they make together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvbaton.types import JSON, Allow, Degrade, Deny, Reason, Route, Verdict


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a gate said."""

    name: str
    verdict: Verdict

    @property
    def said(self) -> str:
        """``allow``, ``degrade`` or ``deny``."""
        return type(self.verdict).__name__.lower()

    @property
    def reason(self) -> Reason | None:
        """Why it did not simply allow; None where it did."""
        return None if isinstance(self.verdict, Allow) else self.verdict.reason

    def to_json(self) -> JSON:
        """``{"gate", "said"}`` and, where it did not allow, ``"reason"``."""
        out: JSON = {"gate": self.name, "said": self.said}
        return out | ({} if self.reason is None else {"reason": self.reason.to_json()})


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the gates leave: a route, the reasons against better ones, and the gate that decided;
    none did where the whole baton may be used."""

    route: Route
    reasons: tuple[Reason, ...]
    decided_by: str


def ruling(judgements: Iterable[Judgement]) -> Ruling:
    """What is left by judgements in their order; asks for none after the first that denies."""
    route, decided_by = Route.BATON, ""
    reasons: list[Reason] = []
    for judgement in judgements:
        verdict = judgement.verdict
        if isinstance(verdict, Deny):
            return Ruling(Route.TEXT, (verdict.reason,), judgement.name)
        if isinstance(verdict, Degrade):
            reasons.append(verdict.reason)
            if route_rank(verdict.to) > route_rank(route):
                route, decided_by = verdict.to, judgement.name
    return Ruling(route, tuple(reasons), decided_by)


def route_rank(route: Route) -> int:
    """0 for the whole baton, larger is worse."""
    return list(Route).index(route)
