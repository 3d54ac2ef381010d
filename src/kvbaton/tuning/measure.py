"""Measuring plans on texts, and the calibration records that come of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvbaton.bench.kl import (
    Loss,
    Losses,
    Reference,
    coded_cache,
    corpus_digest,
    references,
)
from kvbaton.bench.texts import Text
from kvbaton.codecs import CodecPlan
from kvbaton.codecs.calibration import CalibrationRecord, TextMeasure
from kvbaton.errors import InputError
from kvbaton.tuning.sensitivity import coded, held, time_left

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Measured:
    """What a plan costs on some texts.

    ``first_layer_error`` is the largest relative error of a token's V in layer 0.
    """

    plan: CodecPlan
    losses: Losses
    bits_per_element: float
    first_layer_error: float


@dataclass(frozen=True, slots=True)
class Floors:
    """Noise floors in nats: in the engine's dtype, and in bfloat16; None where not measured."""

    own: float | None = None
    bf16: float | None = None


def measure_plans(
    engine: Any,
    plans: Sequence[CodecPlan],
    texts: Sequence[Text],
    *,
    tokens: int,
    positions: int,
    progress: Progress | None = None,
) -> list[Measured]:
    """Measure several plans on the same texts; one text's exact cache is in memory at a time.

    Raises
    ------
    InputError
        There are no texts, or one is too short; or a plan does not fit the engine.
    """
    if not texts:
        raise InputError("there are no texts to measure with")
    rows: list[list[tuple[Loss, float, float]]] = [[] for _ in plans]
    started, total = time.perf_counter(), len(texts) * len(plans)
    for number, reference in enumerate(
        references(engine, texts, tokens=tokens, positions=positions)
    ):
        for index, plan in enumerate(plans):
            done = number * len(plans) + index
            if progress is not None:
                left = time_left(done, total, time.perf_counter() - started)
                progress(f"measuring {plan.name} on {reference.name} ({done + 1} of {total}{left})")
            rows[index].append(measure_on(reference, plan))
    return [_together(plan, found) for plan, found in zip(plans, rows, strict=True)]


def measure_on(reference: Reference, plan: CodecPlan) -> tuple[Loss, float, float]:
    """Loss, bits per element, and error of layer 0's V, of a plan on one text."""
    through = coded_cache(
        reference.engine,
        reference.cache,
        plan,
        tokens=reference.tokens,
        room=reference.positions,
    )
    loss = reference.loss(through.cache)
    return loss, through.bits_per_element, first_layer_error(reference, plan)


def first_layer_error(reference: Reference, plan: CodecPlan) -> float:
    """Largest relative error of a token's V in layer 0, over all heads of the token."""
    exact = held(reference, 0, "v")
    changed = coded(reference, 0, "v", plan.chains(0)[1], exact).to(exact.device)
    off = (changed.float() - exact.float()).norm(dim=(0, 2))
    size = exact.float().norm(dim=(0, 2)).clamp_min(1e-30)
    return float((off / size).max())


def _together(plan: CodecPlan, found: Sequence[tuple[Loss, float, float]]) -> Measured:
    losses, bits, errors = zip(*found, strict=True)
    return Measured(plan, Losses(tuple(losses)), sum(bits) / len(bits), max(errors))


def record_of(
    engine: Any,
    profile: str,
    measured: Measured,
    texts: Sequence[Text],
    *,
    tokens: int,
    positions: int,
    searched: bool,
    floors: Floors | None = None,
) -> CalibrationRecord:
    """The calibration record of a measured plan."""
    losses, known = measured.losses, floors or Floors()
    return CalibrationRecord(
        function=engine.function.digest,
        model=engine.name,
        dtype=engine.layout.dtype,
        profile=profile,
        plan=measured.plan,
        searched=searched,
        corpus=corpus_digest(texts),
        texts=tuple(
            TextMeasure(one.text, one.kl_mean, one.flips, one.ppl_ratio) for one in losses.texts
        ),
        tokens=tokens,
        positions=positions,
        kl=losses.kl,
        kl_worst=losses.worst,
        flips=losses.flips,
        ppl_ratio=losses.ppl_ratio,
        bits_per_element=measured.bits_per_element,
        noise_floor_kl=known.own,
        bf16_floor_kl=known.bf16,
        first_layer_error=measured.first_layer_error,
        producer=engine.producer,
        created_s=int(time.time()),
    )


def measured_record(
    engine: Any,
    profile: str,
    plan: CodecPlan,
    texts: Sequence[Text],
    *,
    tokens: int,
    positions: int,
    floors: Floors | None = None,
) -> CalibrationRecord:
    """Measure one plan without any search, and make its record: cheap for a tiny engine.

    Raises
    ------
    InputError
        There are no texts, or one is too short; or the plan does not fit the engine.
    """
    (measured,) = measure_plans(engine, [plan], texts, tokens=tokens, positions=positions)
    return record_of(
        engine,
        profile,
        measured,
        texts,
        tokens=tokens,
        positions=positions,
        searched=False,
        floors=floors,
    )
