"""A kvbaton policy: a cache is used only where it is sure to be faster than text."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from kvbaton import Decision, Policy, Question
from kvbaton.policy import (
    TEXT,
    Reason,
    ReasonCode,
    Route,
    by_text,
    decide_by_gates,
    find_prediction,
)


class SureWin(Policy):
    """Even the slowest time that is predicted of the cache must beat the fastest of text."""

    name: ClassVar[str] = "sure-win"

    def decide(self, question: Question) -> Decision:
        """Text, unless the gates pass and both predictions leave no doubt."""
        decision = replace(decide_by_gates(question, question.gates), policy=self.name)
        if decision.route is Route.TEXT:
            return decision
        text = find_prediction(question.predictions, TEXT)
        cache = find_prediction(question.predictions, question.offered)
        if text is not None and cache is not None and cache.high_s < text.low_s:
            return decision
        doubt = Reason(ReasonCode.TEXT_FASTER, "it is not sure that the cache is faster than text")
        return by_text(decision, doubt, decided_by="sure-win")
