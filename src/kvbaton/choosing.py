"""Choosing, hand-off by hand-off, how a cache is encoded, or that text goes in its place.

The route that is predicted to bring the receiver's first token soonest is chosen among those that
the owner's rules allow, that were measured on the model, and that the limit of lossy hand-offs
leaves.  Where nothing was measured on this host, caches go as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kvbaton.codecs.plan import CodecPlan
from kvbaton.conversation import Turn
from kvbaton.errors import NotCalibrated
from kvbaton.policy.costs import predictions_ahead
from kvbaton.policy.routes import EXACT, SLICE, TEXT, Prediction, fastest
from kvbaton.policy.rules import PolicyRules
from kvbaton.relay import Relay
from kvbaton.types import JSON, Fidelity, FidelityClass

AUTO = "auto"
"""The profile of who lets this choose."""

NEW_TOKENS = 64
"""Tokens that a receiver is expected to add."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A route by its name, the plan that it encodes by (None for lossless), and what was predicted
    of all routes."""

    route: str
    plan: CodecPlan | None = None
    predictions: tuple[Prediction, ...] = ()

    @property
    def by_text(self) -> bool:
        """Whether text goes in place of the cache."""
        return self.route == TEXT

    def to_json(self) -> JSON:
        """``{"chosen", "predicted_s"}``, the seconds by route."""
        return {
            "chosen": self.route,
            "predicted_s": {one.route: one.ttft_s for one in self.predictions},
        }


AS_IT_IS = Choice(EXACT)


class Choosing:
    """Chooses for one agent.

    Parameters
    ----------
    name
        The agent's: the policy may have rules of its own for it.
    relay
        Through which it hands off; its policy and its forecasts decide.
    plan_of
        The plan of a profile as it was measured on the model; None for ``exact``; raises
        ``NotCalibrated``.
    new_tokens
        That a receiver is expected to add.
    """

    def __init__(
        self,
        name: str,
        relay: Relay,
        plan_of: Callable[[str], CodecPlan | None],
        *,
        new_tokens: int = NEW_TOKENS,
    ) -> None:
        self.name, self.relay, self._plan_of = name, relay, plan_of
        self._new_tokens = new_tokens

    def choose(self, turn: Turn) -> Choice:
        """How a turn is handed off."""
        forecasts = self.relay.deciding.forecasts
        learner = None if forecasts is None else forecasts.learner
        if learner is None:
            return AS_IT_IS
        predictions = predictions_ahead(
            learner.speeds,
            cached_tokens=turn.cached,
            new_tokens=self._new_tokens + turn.tokens - turn.cached,
            store=self.relay.store.url,
            load=learner.load,
            segment_tokens=self.relay.segment_tokens,
        )
        rules = self.relay.deciding.rules_of(self.name).rules
        plans = dict(self._allowed(turn, predictions, rules))
        best = fastest(predictions, {TEXT, *plans}, tie=rules.tie)
        if best is None or (best.route == TEXT and not rules.worth_it):
            return AS_IT_IS
        return Choice(best.route, plans.get(best.route), predictions)

    def expects_exact(self, input_tokens: int, at_most: int) -> bool:
        """Whether an answer that has not begun is expected to be handed off losslessly, so that
        its segments are stored while it is still decoded: losslessly, from here on."""
        self.relay.encode_by(None)
        forecasts = self.relay.deciding.forecasts
        if forecasts is None or forecasts.learner is None:
            return True
        found = forecasts.foresee(
            input_tokens,
            agent=self.name,
            at_most=at_most,
            new_tokens=self._new_tokens,
            store=self.relay.store.url,
        )
        return found is not None and found.best == EXACT

    def _allowed(
        self, turn: Turn, predictions: tuple[Prediction, ...], rules: PolicyRules
    ) -> Iterator[tuple[str, CodecPlan | None]]:
        """Routes by cache that may be chosen, with their plans."""
        worst = Fidelity(rules.minimum_fidelity).rank
        for one in predictions:
            if one.route in (TEXT, SLICE) or not rules.allows(one.route):
                continue
            kind = FidelityClass.EXACT if one.route == EXACT else FidelityClass.LOSSY
            if Fidelity(kind).rank > worst or not self._leaves_hops(turn, one.route, rules):
                continue
            try:
                yield one.route, self._plan_of(one.route)
            except NotCalibrated:
                continue

    def _leaves_hops(self, turn: Turn, route: str, rules: PolicyRules) -> bool:
        """Whether a receiver would still accept it, and nothing is quantized twice."""
        inherited = {i.fidelity.codec for i in turn.conversation.inherited if i.fidelity.compressed}
        if route == EXACT:
            return True
        if inherited - {route}:
            return False
        limits = (self.relay.deciding.max_lossy_hops, rules.max_lossy_hops)
        limit = min((one for one in limits if one is not None), default=None)
        return limit is None or turn.conversation.hops.lossy < limit
