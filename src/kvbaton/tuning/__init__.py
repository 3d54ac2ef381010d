"""Tuning: measuring codec plans on a model, and searching for smaller ones."""

from __future__ import annotations

from kvbaton.tuning.corpus import Corpus, built_in_corpus, own_corpus, read_texts
from kvbaton.tuning.measure import Floors, Measured, measure_plans, measured_record, record_of
from kvbaton.tuning.plan_search import Search
from kvbaton.tuning.search import Choice, within_cost, within_loss
from kvbaton.tuning.sensitivity import Sensitivities, measure_sensitivities
from kvbaton.tuning.tune import (
    TUNED,
    Bounds,
    Tuning,
    make_search,
    measured_records,
    needs_search,
    wanted_plans,
    with_bounds,
)

__all__ = [
    "TUNED",
    "Bounds",
    "Choice",
    "Corpus",
    "Floors",
    "Measured",
    "Search",
    "Sensitivities",
    "Tuning",
    "built_in_corpus",
    "make_search",
    "measure_plans",
    "measure_sensitivities",
    "measured_record",
    "measured_records",
    "needs_search",
    "own_corpus",
    "read_texts",
    "record_of",
    "wanted_plans",
    "with_bounds",
    "within_cost",
    "within_loss",
]
