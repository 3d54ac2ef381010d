"""How strong an unmeasured cause would have to be to explain an effect away."""

from __future__ import annotations

import math

from kvbaton.types import JSON

SOURCE = (
    "E-value: VanderWeele and Ding, Annals of Internal Medicine 167 (2017); standardised "
    "differences as risk ratios by exp(0.91 d): Chinn, Statistics in Medicine 19 (2000)"
)


def e_value(difference: float, deviation: float) -> float:
    """The E-value of a difference of means.

    With d the difference in standard deviations, RR = exp(0.91 |d|), E = RR + sqrt(RR (RR - 1)).
    """
    if deviation <= 0:
        return 1.0
    ratio = math.exp(min(50.0, 0.91 * abs(difference) / deviation))
    return ratio + math.sqrt(ratio * (ratio - 1))


def sensitivity(value: float, ends: tuple[float, float] | None, deviation: float) -> JSON:
    """E-values of an estimate and of the end of its interval that is nearer to no effect."""
    nearest = None
    if ends is not None:
        low, high = ends
        nearest = 1.0 if low <= 0 <= high else e_value(min(abs(low), abs(high)), deviation)
    estimate = e_value(value, deviation)
    note = (
        f"A cause that was not measured would have to make the baton route {estimate:.1f} times as "
        f"likely, and slow or fast answers too, to explain the estimate away"
        + ("." if nearest is None else f", and {nearest:.1f} times to explain its interval away.")
    )
    return {"e_value": estimate, "e_value_interval": nearest, "note": note, "source": SOURCE}
