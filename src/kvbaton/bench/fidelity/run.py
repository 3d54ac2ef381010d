"""The whole benchmark: its tasks in order, and the result made of what they found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvbaton.bench.fidelity import costs, hops, private, slices, whole
from kvbaton.bench.fidelity.journal import Journal
from kvbaton.bench.fidelity.session import Progress, Scope, Session, Task
from kvbaton.bench.fidelity.targets import targets
from kvbaton.bench.machine import environment, library_versions
from kvbaton.codecs.calibration import Calibrations
from kvbaton.types import JSON

_PARTS: Mapping[str, tuple[Callable[[Session], list[Task]], Callable[[Session], list[JSON]]]] = {
    "continue": (whole.tasks, whole.rows),
    "slice": (slices.tasks, slices.rows),
    "questions": (private.tasks, private.rows),
    "hops": (hops.tasks, hops.rows),
}
_TIMED: Mapping[str, tuple[Callable[[Session], list[Task]], Callable[[Session], list[JSON]]]] = {
    "takes": (costs.take_tasks, costs.takes),
    "costs": (costs.cost_tasks, costs.costs),
}


@dataclass(frozen=True, slots=True)
class KnownFloors:
    """Noise floors in nats: of the engine's own dtype, and of the model in bfloat16."""

    own: float | None = None
    bf16: float | None = None


def measure(
    engine: Any,
    scope: Scope | None = None,
    *,
    calibrations: Calibrations | None = None,
    floors: KnownFloors | None = None,
    journal: Path | None = None,
    progress: Progress | None = None,
) -> JSON:
    """Measure fidelity on one engine.

    Parameters
    ----------
    engine
        A transformers engine.
    calibrations
        Records of its function: they say which plan each profile is.
    floors
        Noise floors, to state losses as multiples of them.
    journal
        A file in which every measurement is kept; a run that names it again goes on from there.
    progress
        Is told what is being measured, and about how long it will take.

    Raises
    ------
    FormatError
        The journal is of another function, or something else.
    InputError
        It cannot be written.
    """
    scope, floors = scope or Scope(), floors or KnownFloors()
    kept = Journal(engine.function.digest, journal)
    session = Session(engine, scope, kept, calibrations=calibrations, progress=progress)
    parts = {**_PARTS, **_TIMED}
    session.run([task for mode in scope.modes for task in parts[mode][0](session)])
    rows = [row for mode in scope.modes if mode in _PARTS for row in _PARTS[mode][1](session)]
    result: JSON = {
        "model": engine.name,
        "noise_floor_kl": floors.own,
        "bf16_noise_floor_kl": floors.bf16,
        "rows": [_with_multiples(row, floors) for row in rows],
        **{mode: _TIMED[mode][1](session) if mode in scope.modes else [] for mode in _TIMED},
        "settings": {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(scope).items()
        },
        "environment": {
            **environment(),
            "versions": library_versions(),
            "producer": dict(engine.producer),
        },
    }
    return {**result, "targets": targets(result)}


def _with_multiples(row: JSON, floors: KnownFloors) -> JSON:
    """The row with its KL in multiples of the noise floors."""
    kl = row["kl"]
    return {
        **row,
        "noise_multiple": kl / floors.own if kl is not None and floors.own else None,
        "bf16_noise_multiple": kl / floors.bf16 if kl is not None and floors.bf16 else None,
    }
