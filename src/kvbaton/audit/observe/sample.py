"""Which receipts are compared, and how they are made comparable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from kvbaton.audit.observe.assignment import ARMS, check_shares
from kvbaton.audit.observe.features import features
from kvbaton.audit.observe.propensity import Balance, Overlap, balance, overlap, stabilised_weights
from kvbaton.audit.observe.reading import Observation
from kvbaton.errors import InputError
from kvbaton.types import Route

FEWEST = 20
"""Receipts of each route without which nothing is said."""
FEWEST_CONVERSATIONS = 10


class By(StrEnum):
    """Why a receipt came by its route: by lot (``ab``), or as it happened (``propensity``)."""

    AUTO = "auto"
    AB = "ab"
    PROPENSITY = "propensity"


@dataclass(frozen=True, slots=True)
class Plan:
    """How receipts are compared.

    Parameters
    ----------
    by
        ``auto`` takes the arms where each has enough receipts.
    arms
        Values of the label ``arm``: text, then baton.
    shares
        Of the conversations, as they were assigned.
    received
        Compare by the route that was taken.  By default a receipt that fell back to text counts as
        a baton, since a baton was to be used: what makes batons fall back may also make them slow.
    window
        ``auto``, ``day``, ``week`` or a number of receipts.
    labels
        More labels that are known before the route is chosen, to be taken account of.
    """

    by: By = By.AUTO
    arms: tuple[str, str] = (ARMS[0], ARMS[1])
    shares: tuple[float, float] = (0.5, 0.5)
    received: bool = False
    window: str = "auto"
    labels: tuple[str, ...] = ()

    def resolved(self, observations: Sequence[Observation]) -> Plan:
        """The same with ``auto`` decided.

        Raises
        ------
        InputError
            The shares do not fit the arms.
        """
        check_shares(self.arms, self.shares)
        if self.by is not By.AUTO:
            return self
        named = [sum(one.arm == arm for one in observations) for arm in self.arms]
        return replace(self, by=By.AB if min(named) >= FEWEST else By.PROPENSITY)


@dataclass(frozen=True, slots=True)
class Sample:
    """Receipts to compare, with arrays ``[receipts]``; ``columns`` are ``[receipts, features]``.

    ``inside`` marks those that could have come by either route; the others have no counterpart.
    """

    observations: tuple[Observation, ...]
    treated: np.ndarray
    clusters: np.ndarray
    columns: np.ndarray
    scores: np.ndarray
    inside: np.ndarray
    weights: np.ndarray
    balance: tuple[Balance, ...] = ()
    overlap: Overlap | None = None
    """None where lots were drawn: then all receipts are comparable."""
    warnings: tuple[str, ...] = ()

    @property
    def comparable(self) -> bool:
        """Whether there is enough to compare."""
        return self.overlap is None or self.overlap.enough

    def subset(self, chosen: np.ndarray) -> Sample:
        """Some of the receipts; ``chosen`` ``[receipts]`` is boolean."""
        arrays = ("treated", "clusters", "columns", "scores", "inside", "weights")
        rows = tuple(o for o, k in zip(self.observations, chosen, strict=True) if k)
        return replace(
            self, observations=rows, **{name: getattr(self, name)[chosen] for name in arrays}
        )


def select(observations: Sequence[Observation], plan: Plan) -> tuple[Observation, ...]:
    """Receipts that have a time to the first token and, where lots were drawn, an arm."""
    timed = [one for one in observations if one.ttft_s is not None]
    if plan.by is By.AB:
        timed = [one for one in timed if one.arm in plan.arms]
    return tuple(timed)


def make_sample(observations: Sequence[Observation], plan: Plan) -> Sample:
    """Receipts with their routes, features and weights.

    Raises
    ------
    InputError
        There are too few receipts or conversations, or all are of one route.
    """
    treated = np.array([_treated(one, plan) for one in observations], dtype=bool)
    clusters = np.unique([one.cluster for one in observations], return_inverse=True)[1]
    _require_both(treated, clusters, plan)
    by_lot = plan.by is By.AB
    known = features(observations, treated, labels=plan.labels, both_arms=not by_lot)
    kept = known.kept
    share = plan.shares[1]
    sample = Sample(
        observations=tuple(o for o, k in zip(observations, kept, strict=True) if k),
        treated=treated[kept],
        clusters=clusters[kept],
        columns=known.columns[kept],
        scores=np.full(int(kept.sum()), share),
        inside=np.ones(int(kept.sum()), dtype=bool),
        weights=np.ones(int(kept.sum())),
        warnings=known.warnings,
    )
    count = int(sample.treated.sum())
    if min(count, len(sample.treated) - count) < FEWEST:
        nothing = np.zeros(len(sample.treated), dtype=bool)
        none = Overlap(sample.scores, nothing, (0.0, 0.0), (1.0, 1.0), 1.0, "logit")
        return replace(sample, inside=nothing, overlap=none)
    if not by_lot:
        found = overlap(sample.columns, sample.treated)
        sample = replace(
            sample,
            scores=found.scores,
            inside=found.inside,
            weights=stabilised_weights(found.scores, sample.treated),
            overlap=found,
        )
    compared = balance(
        known.names,
        sample.columns,
        sample.treated,
        inside=sample.inside,
        weights=sample.weights,
    )
    return replace(sample, balance=compared)


def _treated(one: Observation, plan: Plan) -> bool:
    if plan.by is By.AB:
        return one.arm == plan.arms[1]
    return one.route != Route.TEXT if plan.received else one.offered


def _require_both(treated: np.ndarray, clusters: np.ndarray, plan: Plan) -> None:
    batons = int(treated.sum())
    texts = len(treated) - batons
    if not len(treated):
        raise InputError("no receipt has a time to the first token and an arm", at="$.labels.arm")
    if min(batons, texts) == 0:
        route = "batons" if batons else "text"
        hint = "assign conversations to arms, so that some go by each route"
        raise InputError(
            f"all {len(treated)} receipts are of {route}: nothing to compare", hint=hint
        )
    if min(batons, texts) < FEWEST:
        raise InputError(
            f"{batons} receipts by baton and {texts} by text are too few",
            hint=f"{FEWEST} of each are needed, hundreds for a narrow interval",
        )
    count = len(np.unique(clusters))
    if count < FEWEST_CONVERSATIONS:
        raise InputError(
            f"{count} conversations are too few",
            hint=f"{FEWEST_CONVERSATIONS} are needed: turns of one conversation are alike",
        )
