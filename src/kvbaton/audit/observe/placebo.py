"""A placebo treatment: routes dealt out anew among comparable receipts, so that they do nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvbaton.audit.observe.effects import doubly_robust
from kvbaton.types import JSON

ROUNDS, STRATA = 200, 5


@dataclass(frozen=True, slots=True)
class Placebo:
    """Effects of placebo treatments on the logarithm of an outcome.

    ``mean`` should be about 0; ``beyond`` is the share of them that are further from 0 than the
    estimate; ``by`` is what was dealt out: conversations or receipts.
    """

    mean: float
    deviation: float
    beyond: float
    rounds: int
    by: str

    def to_json(self) -> JSON:
        """As it stands in the result; the mean as a ratio."""
        return {
            "mean_ratio": float(np.exp(self.mean)),
            "deviation_log": self.deviation,
            "share_beyond": self.beyond,
            "rounds": self.rounds,
            "by": self.by,
        }


def placebo(
    outcome: np.ndarray,
    treated: np.ndarray,
    columns: np.ndarray,
    scores: np.ndarray,
    *,
    clusters: np.ndarray,
    estimate: float,
    seed: int,
    rounds: int = ROUNDS,
) -> Placebo:
    """Shuffle the routes within strata of the propensity score, and estimate each time.

    Where no conversation has both routes, whole conversations are dealt out, since their receipts
    are alike.

    Parameters
    ----------
    outcome, treated, scores, clusters
        ``[receipts]``.
    columns
        ``[receipts, features]``.
    estimate
        That the placebo effects are compared with.
    """
    random = np.random.default_rng(seed)
    names, first, places = np.unique(clusters, return_index=True, return_inverse=True)
    whole = len(names) < len(clusters) and bool(np.all(treated == treated[first][places]))
    dealt = treated[first] if whole else treated
    level = np.bincount(places, weights=scores) / np.bincount(places) if whole else scores
    strata = _strata(level)
    found = []
    for _ in range(rounds):
        shuffled = dealt.copy()
        for stratum in range(strata.max() + 1):
            members = np.flatnonzero(strata == stratum)
            shuffled[members] = dealt[random.permutation(members)]
        routes = shuffled[places] if whole else shuffled
        shares = _shares(routes, strata[places] if whole else strata)
        found.append(float(doubly_robust(outcome, routes, columns, shares).mean()))
    effects = np.array(found)
    return Placebo(
        mean=float(effects.mean()),
        deviation=float(effects.std(ddof=1)),
        beyond=float(np.mean(np.abs(effects) >= abs(estimate))),
        rounds=rounds,
        by="conversations" if whole else "receipts",
    )


def _strata(scores: np.ndarray) -> np.ndarray:
    """Number of the fifth that each score is in."""
    edges = np.quantile(scores, np.linspace(0, 1, STRATA + 1)[1:-1])
    return np.searchsorted(np.unique(edges), scores, side="left")


def _shares(routes: np.ndarray, strata: np.ndarray) -> np.ndarray:
    """Share of the baton route in each one's stratum, as its score."""
    counts = np.bincount(strata)
    shares = np.bincount(strata, weights=routes.astype(float)) / np.maximum(counts, 1)
    return np.clip(shares, 0.001, 0.999)[strata]
