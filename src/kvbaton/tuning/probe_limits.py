"""Limits of the windows of a model: measured with its codecs, kept beside their records."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbaton.bench.kl import coded_cache
from kvbaton.errors import Fault, FormatError, UnsupportedLayout
from kvbaton.records import keep, kept

if TYPE_CHECKING:
    from kvbaton.codecs import CodecPlan
    from kvbaton.codecs.calibration import CalibrationRecord
    from kvbaton.probes.limits import ProbeLimits

FOLDER = "probes"
TAKES = 60


def measured_probe_limits(
    engine: Any,
    records: Sequence[CalibrationRecord],
    texts: Sequence[str],
    *,
    takes: int = TAKES,
    progress: Callable[[str], None] | None = None,
) -> ProbeLimits | None:
    """Limits of lossless caches and of the plans of records; None where there can be none.

    There can be none for models with window layers, and for kernels that take no mask.

    Raises
    ------
    InputError
        All texts are too short.
    """
    from kvbaton.probes.limits import measure_limits

    def coded(plan: CodecPlan) -> Callable[[Any, Sequence[int]], Any]:
        return lambda cache, ids: coded_cache(engine, cache, plan, tokens=len(ids)).cache

    caches = {
        record.calibrated_plan.fidelity: coded(record.calibrated_plan)
        for record in records
        if record.calibrated_plan.fidelity.compressed
    }
    try:
        return measure_limits(engine, texts, caches, takes=takes, progress=progress)
    except UnsupportedLayout:
        return None


def store_probe_limits(limits: ProbeLimits, data_dir: Path) -> Path:
    """Keep the limits of a function, by its digest, with those of codecs measured before.

    Raises
    ------
    InputError
        The folder cannot be written.
    FormatError
        The file that is there holds something else.
    """
    whole = limits.joined(stored_probe_limits(limits.function, data_dir))
    target = data_dir / FOLDER / f"{limits.function}.json"
    return keep(target, limits_text(whole), what="the limits of windows")


def limits_text(limits: ProbeLimits) -> str:
    """The text of a limits' file."""
    return json.dumps(limits.to_json(), indent=1, sort_keys=True) + "\n"


def stored_probe_limits(function: str, data_dir: Path) -> ProbeLimits | None:
    """The limits of a function's digest: measured here before, or shipped with kvbaton.

    Raises
    ------
    FormatError
        There is a file of that name, and it is something else; ``at`` names it.
    """
    found = kept(FOLDER, f"{function}.json", data_dir)
    return None if found is None else _read(*found, function=function)


def _read(text: str, at: str, *, function: str) -> ProbeLimits:
    from kvbaton.probes.limits import ProbeLimits

    try:
        limits = ProbeLimits.from_json(json.loads(text))
        if limits.function != function:
            raise ValueError(limits.function)
    except (ValueError, FormatError) as error:
        raise FormatError(
            "the file holds no limits of windows of this function",
            fault=Fault.UNKNOWN_FORMAT,
            at=at,
            hint="delete it, and measure again",
        ) from error
    return limits
