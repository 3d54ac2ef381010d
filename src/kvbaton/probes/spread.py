"""How far a measurement lies from where honest ones lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvbaton.errors import Fault, FormatError, InputError
from kvbaton.types import JSON

SHRINKAGE = 0.1
"""Weight of the diagonal: few measurements know their correlations only roughly."""
ODDEST = 0.05
"""Share of the honest measurements that lie beyond distance 1."""
_TINY = 1e-6

Rows = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Spread:
    """Center and precision matrix of honest measurements.

    ``unit`` is the Mahalanobis distance beyond which 5% of them lie, so that distances of unlike
    measurements can be compared.  The precision matrix is given by rows, flat.
    """

    center: tuple[float, ...]
    precision: tuple[float, ...]
    unit: float

    def distance(self, values: Sequence[float]) -> float:
        """Distance in units: 1 is as odd as the oddest 5%; infinite for what is not finite.

        Raises
        ------
        InputError
            Another number of values.
        """
        row = np.asarray(values, dtype=np.float64)
        if row.shape != (len(self.center),):
            raise InputError(f"{len(self.center)} values are measured, not {row.size}")
        if not bool(np.isfinite(row).all()):
            return float("inf")
        return float(self._raw(row[None])[0]) / self.unit

    def _raw(self, rows: Rows) -> Rows:
        size = len(self.center)
        off = rows - np.asarray(self.center)
        matrix = np.asarray(self.precision).reshape(size, size)
        square: Rows = np.einsum("ij,jk,ik->i", off, matrix, off)
        return np.sqrt(np.maximum(square, 0.0))

    def to_json(self) -> JSON:
        """As a calibration record keeps it."""
        return {
            "center": list(self.center),
            "precision": list(self.precision),
            "unit": self.unit,
        }

    @classmethod
    def from_json(cls, value: Any, *, at: str = "$") -> Spread:
        """Read what ``to_json`` wrote.

        Raises
        ------
        FormatError
            It is something else.
        """
        try:
            center = tuple(float(x) for x in value["center"])
            precision = tuple(float(x) for x in value["precision"])
            unit = float(value["unit"])
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError("not a spread", fault=Fault.WRONG_TYPE, at=at) from error
        finite = bool(np.isfinite([*center, *precision, unit]).all())
        if not (finite and unit > 0 and len(precision) == len(center) ** 2):
            raise FormatError("a spread out of range", fault=Fault.OUT_OF_RANGE, at=at)
        return cls(center, precision, unit)


def spread_of(measured: Sequence[Sequence[float]]) -> Spread:
    """The spread of measurements, one row each.

    Raises
    ------
    InputError
        Fewer than two rows, or values that are not finite.
    """
    rows = np.asarray(measured, dtype=np.float64)
    if rows.ndim != 2 or len(rows) < 2 or not bool(np.isfinite(rows).all()):
        raise InputError("a spread needs at least two rows of finite values")
    covariance = np.atleast_2d(np.cov(rows.T))
    diagonal = np.diag(np.maximum(np.diag(covariance), _TINY))
    precision = np.linalg.inv((1 - SHRINKAGE) * covariance + SHRINKAGE * diagonal)
    found = Spread(tuple(rows.mean(0).tolist()), tuple(precision.ravel().tolist()), 1.0)
    unit = max(float(np.quantile(found._raw(rows), 1 - ODDEST)), _TINY)
    return Spread(found.center, found.precision, unit)
