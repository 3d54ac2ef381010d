"""Whether the effect, or the share of receipts that fell back, has changed over time.

Receipts are cut into windows.  Every window is compared with all others, and every part before a
cut with the part behind it (a scan of cumulative means, which finds lasting changes); p values are
corrected by Holm over all of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np

from kvbaton.audit.observe.reading import Observation
from kvbaton.errors import InputError

ALPHA = 0.05
FEWEST_CLUSTERS, FEWEST_PER_ARM = 10, 5
AUTO_WINDOWS, FEWEST_IN_WINDOW = 10, 100
_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Window:
    """Receipts that are looked at together: a day, a week, or so many in a row."""

    label: str
    members: np.ndarray


@dataclass(frozen=True, slots=True)
class Alarm:
    """A change: of the ``effect`` or the ``fallback`` share, at a window, with Holm's p.

    ``kind`` is ``since`` for a lasting change that begins with the window, ``in`` for one window
    that differs from all others.  ``before`` and ``after`` are means outside and inside.
    """

    what: str
    kind: str
    window: str
    before: float
    after: float
    p: float


def windows(observations: Sequence[Observation], window: str) -> tuple[Window, ...]:
    """Cut receipts into windows.

    Parameters
    ----------
    window
        ``day`` or ``week`` by the label ``time``, a number of receipts, or ``auto``: days where
        there are three and all receipts have a time, else tenths of at least 100 receipts.

    Raises
    ------
    InputError
        It is something else, or needs times that receipts do not have.
    """
    times = [one.time_s for one in observations]
    timed = [time for time in times if time is not None]
    complete = len(timed) == len(times)
    if window == "auto":
        days = {time // _DAY_S for time in timed}
        size = max(FEWEST_IN_WINDOW, -(-len(times) // AUTO_WINDOWS))
        window = "day" if complete and len(days) >= 3 else str(size)
    if window in {"day", "week"}:
        if not complete:
            raise InputError(
                f"windows of a {window} need the label 'time' in every receipt",
                hint="give a number of receipts instead",
            )
        return _by_date(timed, window)
    if not re.fullmatch(r"[1-9]\d{0,8}", window):
        raise InputError(f"{window!r} is no window", hint="day, week, auto or a number of receipts")
    return _by_count(len(times), int(window))


def _by_date(times: Sequence[float], window: str) -> tuple[Window, ...]:
    labels = []
    for time in times:
        when = datetime.fromtimestamp(time, UTC)
        year, week, _ = when.isocalendar()
        labels.append(when.date().isoformat() if window == "day" else f"{year}-W{week:02d}")
    given = np.array(labels)
    return tuple(Window(name, np.flatnonzero(given == name)) for name in sorted(set(labels)))


def _by_count(total: int, size: int) -> tuple[Window, ...]:
    """Windows of ``size`` in the log's order; a short rest joins the last."""
    count = max(1, total // size)
    edges = [*(n * size for n in range(count)), total]
    return tuple(
        Window(f"receipts {low + 1} to {high}", np.arange(low, high))
        for low, high in pairwise(edges)
    )


def usable(
    cut: Sequence[Window], treated: np.ndarray | None, clusters: np.ndarray
) -> tuple[Window, ...]:
    """Windows with enough conversations, and enough receipts of both routes."""

    def enough(window: Window) -> bool:
        members = window.members
        if len(np.unique(clusters[members])) < FEWEST_CLUSTERS:
            return False
        if treated is None:
            return True
        count = int(treated[members].sum())
        return min(count, len(members) - count) >= FEWEST_PER_ARM

    return tuple(window for window in cut if enough(window))


def drift(
    values: np.ndarray, cut: Sequence[Window], clusters: np.ndarray, *, what: str
) -> tuple[Alarm, ...]:
    """Alarms for a mean that changes, the surest first.

    One lasting change shows at many cuts and windows: where the surest of all is a cut, it alone
    is told; else only windows are.

    Parameters
    ----------
    values
        ``[receipts]``: influences, or 1 where one fell back.
    cut
        Windows in the order of time.
    clusters
        ``[receipts]``.
    """
    from statsmodels.stats.multitest import multipletests

    trials = []
    for number, window in enumerate(cut):
        if number:
            before = np.concatenate([one.members for one in cut[:number]])
            after = np.concatenate([one.members for one in cut[number:]])
            trials.append(_compared(values, before, after, clusters, (what, "since", window.label)))
        if len(cut) > 2:
            others = np.concatenate([one.members for one in cut if one is not window])
            found = _compared(values, others, window.members, clusters, (what, "in", window.label))
            trials.append(found)
    if not trials:
        return ()
    adjusted = multipletests([one.p for one in trials], method="holm")[1]
    surest = sorted(range(len(trials)), key=lambda n: trials[n].p)
    sure = [replace(trials[n], p=float(adjusted[n])) for n in surest if adjusted[n] < ALPHA]
    if sure and sure[0].kind == "since":
        return (sure[0],)
    return tuple(alarm for alarm in sure if alarm.kind == "in")


def _compared(
    values: np.ndarray,
    before: np.ndarray,
    after: np.ndarray,
    clusters: np.ndarray,
    names: tuple[str, str, str],
) -> Alarm:
    """Difference of two means, clustered; conversations may be on both sides."""
    from scipy import stats

    means = float(values[before].mean()), float(values[after].mean())
    members = np.concatenate([before, after])
    sides = np.repeat([-1 / len(before), 1 / len(after)], [len(before), len(after)])
    parts = sides * (values[members] - values[members].mean())  # as if nothing had changed
    _, places = np.unique(clusters[members], return_inverse=True)
    error = math.sqrt(float(np.sum(np.bincount(places, weights=parts) ** 2)))
    fewest = min(len(np.unique(clusters[side])) for side in (before, after))
    error *= math.sqrt(fewest / (fewest - 1)) if fewest > 1 else math.inf
    change = means[1] - means[0]
    p = 1.0 if error == 0 else float(2 * stats.t.sf(abs(change) / error, max(1, fewest - 1)))
    return Alarm(*names, *means, p=p)
