"""Simulated audits whose truth is known: how often an interval covers it, how often a verdict errs.

Questions of a unit turn by the Dirichlet-multinomial law, whose intraclass correlation is ``icc``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvbaton.audit.analysis.blocks import Block
from kvbaton.audit.analysis.effects import corrected_together, effect_of
from kvbaton.audit.analysis.runs import Compared
from kvbaton.audit.analysis.verdicts import Rule, quality_verdict, speed_verdict
from kvbaton.audit.statistics.intervals import mean_interval
from kvbaton.audit.statistics.proportions import Turned, UnitAnswers, accuracy_difference

Draw = Callable[[np.random.Generator, int], np.ndarray]


def _hiccups(dice: np.random.Generator, units: int) -> np.ndarray:
    """A quiet machine that stalls in one of eight trials."""
    stalled = (dice.random((units, 3)) < 0.125) * dice.exponential(0.3, (units, 3))
    noise: np.ndarray = (dice.normal(0, 0.08, (units, 3)) + stalled).mean(1)
    return noise


LOG_RATIOS: dict[str, tuple[Draw, float]] = {
    "normal": (lambda dice, n: dice.normal(0, 1, n), 0.0),
    "gamma, skew 1.4": (lambda dice, n: dice.gamma(2, 1, n), 2.0),
    "exponential, skew 2": (lambda dice, n: dice.exponential(1, n), 1.0),
    "lognormal, skew 1.8": (lambda dice, n: dice.lognormal(0, 0.5, n), float(np.exp(0.125))),
    "t, 4 degrees of freedom": (lambda dice, n: dice.standard_t(4, n), 0.0),
    "stalls": (_hiccups, 0.0375),
}
"""Unit means of log ratios -> how they are drawn, and their true mean."""

DISCORDANCES = (
    (0.0, 0.0), (0.005, 0.005), (0.02, 0.0), (0.02, 0.02), (0.05, 0.0), (0.05, 0.05),
    (0.10, 0.0), (0.10, 0.10), (0.20, 0.05), (0.50, 0.02), (0.95, 0.0),
)  # fmt: skip
"""Shares lost and gained."""


def mean_coverage(draw: Draw, truth: float, units: int, *, audits: int, seed: int) -> float:
    """How often the 95% interval of a mean holds the true one."""
    dice, held = np.random.default_rng(seed), 0
    for number in range(audits):
        found = mean_interval(draw(dice, units), seed=number, resamples=999)
        assert found.low is not None and found.high is not None
        held += found.low <= truth <= found.high
    return held / audits


def draw_turned(
    dice: np.random.Generator, units: int, questions: int, lost: float, gained: float, icc: float
) -> Turned:
    """Answers of an audit."""
    shares = np.asarray([lost, gained, 1 - lost - gained])
    if icc > 0:
        shares = dice.dirichlet(np.maximum(shares * (1 - icc) / icc, 1e-9), size=units)
    counts = dice.multinomial(questions, shares, size=units)
    return Turned.of(UnitAnswers(questions, int(a), int(b)) for a, b, _ in counts)


def accuracy_coverage(
    units: int, lost: float, gained: float, icc: float, *, audits: int, seed: int
) -> tuple[float, float]:
    """How often the 95% interval holds the true difference, and how often it is the exact one."""
    dice, held, exact = np.random.default_rng(seed), 0, 0
    for _ in range(audits):
        answers = draw_turned(dice, units, 5, lost, gained, icc)
        found = accuracy_difference(answers, icc=0.3)
        assert found.low is not None and found.high is not None
        held += found.low <= gained - lost <= found.high
        exact += found.method == "exact"
    return held / audits, exact / audits


@dataclass(frozen=True)
class Nothing:
    """Audits of treatments that do nothing."""

    units: int = 40
    treatments: int = 3
    repeats: int = 3
    turn: float = 0.01
    """Share of the answers that chance turns under every treatment, the reference among them."""
    noise: float = 0.1
    unit_noise: float = 0.0
    """Of a treatment's times within a unit, alike in all repeats."""


FALSE = {"harmful", "better", "faster", "slower"}


def false_verdicts(nothing: Nothing, *, audits: int, seed: int) -> tuple[float, Counter[str]]:
    """Share of the audits with any false verdict, and the verdicts of all treatments."""
    dice, wrong, said = np.random.default_rng(seed), 0, Counter[str]()
    for _ in range(audits):
        blocks = _blocks(nothing, dice)
        effects = [
            effect_of(blocks, Compared(f"A{n}", "", "candidate", "T0"), Rule(), seed=1)
            for n in range(nothing.treatments)
        ]
        p = corrected_together({e.treatment.name: e for e in effects})
        verdicts = []
        for e in effects:
            name = e.treatment.name
            quality = quality_verdict(e.quality, e.rule, p_holm=p[name, "quality"])
            speed = speed_verdict(e.ratio, e.rule, p_holm=p[name, "speed"])
            verdicts += [str(quality[0]), str(speed[0])]
        said.update(verdicts)
        wrong += bool(FALSE & set(verdicts))
    return wrong / audits, said


def _blocks(nothing: Nothing, dice: np.random.Generator) -> list[Block]:
    names = ["T0", *(f"A{n}" for n in range(nothing.treatments))]
    blocks = []
    for unit in range(nothing.units):
        base = float(np.exp(dice.normal(-1, 0.8)))
        own = np.exp(dice.normal(0, nothing.unit_noise, len(names)))
        skewed = (dice.gamma(2.0, size=(len(names), nothing.repeats)) - 2.0) / np.sqrt(2.0)
        seconds = base * own[:, None] * np.exp(nothing.noise * skewed)
        right = dice.random(5) < 0.95
        timed = {n: [{"ttft_s": float(s)} for s in seconds[i]] for i, n in enumerate(names)}
        quality = {}
        for name in names:
            turn = dice.random(5) < nothing.turn
            quality[name] = {
                "answers": [
                    {"question": f"q{q}", "right": bool(r != t)}
                    for q, (r, t) in enumerate(zip(right, turn, strict=True))
                ]
            }
        blocks.append(Block(f"u{unit:03d}", "pair", {}, timed, quality))
    return blocks
