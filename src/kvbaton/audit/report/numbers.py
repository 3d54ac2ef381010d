"""Numbers as people read them: rounded, with units, intervals in brackets."""

from __future__ import annotations

from collections.abc import Callable

from kvbaton.audit.report.reading import Bounds

DASH = "\u2013"
MINUS = "\u2212"

_UNITS = ("", "k", "M", "G", "T", "P", "E")


def signed(text: str) -> str:
    """A formatted number with a real minus sign."""
    return text.replace("-", MINUS)


def points_text(points: float | None, bounds: Bounds | None = None, *, plus: bool = True) -> str:
    """Percentage points: ``+1.5 [-0.5, +3.5]``."""
    if points is None:
        return DASH
    return _with_bounds(points, bounds, lambda value: signed(_rounded(value, 1, plus=plus)))


def share_text(share: float | None, *, decimals: int = 1) -> str:
    """A share of 1 as ``12.3%``."""
    return DASH if share is None else signed(f"{_rounded(100 * share, decimals)}%")


def seconds_text(seconds: float | None) -> str:
    """Seconds as ``1.23 s``, ``45.6 ms`` or ``7.8 µs``."""
    if seconds is None:
        return DASH
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("\u00b5s", 1e-6)):
        if abs(seconds) >= 0.9995 * size:
            return signed(f"{_three(seconds / size)} {unit}")
    return "0 s" if abs(seconds) < 5e-10 else signed(f"{_three(seconds / 1e-6)} \u00b5s")


def duration_text(seconds: float | None) -> str:
    """A long time as ``14 min 5 s``."""
    if seconds is None:
        return DASH
    if seconds < 60:
        return seconds_text(seconds)
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def amount_text(amount: float | None, unit: str) -> str:
    """An amount with a prefix of 1000: ``23.6 MB``, ``1.02 TFLOP``."""
    if amount is None:
        return DASH
    size, step = abs(amount), 0
    while size >= 999.5 and step < len(_UNITS) - 1:
        size, step = size / 1000, step + 1
    text = f"{size:.0f}" if step == 0 and size >= 1 else _three(size)
    return f"{MINUS if amount < 0 else ''}{text} {_UNITS[step]}{unit}"


def count_text(count: float | None) -> str:
    """A whole number with thousands apart."""
    return DASH if count is None else signed(f"{count:,.0f}")


def nats_text(nats: float | None) -> str:
    """A divergence in nats: ``0.0123`` or ``1.2e-5``."""
    if nats is None:
        return DASH
    if nats == 0:
        return "0"
    return signed(f"{nats:.3g}" if 0.001 <= abs(nats) < 999.5 else _scientific(nats))


def multiple_text(multiple: float | None) -> str:
    """A multiple of the noise floor: ``0.9x``, ``45x``."""
    if multiple is None:
        return DASH
    small = 0 < abs(multiple) < 0.05
    return signed("under 0.05x" if small else f"{_rounded(multiple, _decimals(multiple) - 1)}x")


def p_text(p: float | None) -> str:
    """A p value: ``0.042``, ``< 0.001``."""
    if p is None:
        return DASH
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def size_text(size: float | None) -> str:
    """An effect size without a unit: ``-0.93``."""
    return DASH if size is None else signed(_rounded(size, 2))


def ratio_text(ratio: float | None, bounds: Bounds | None = None) -> str:
    """A ratio: ``0.121 [0.114, 0.128]``."""
    if ratio is None:
        return DASH
    return _with_bounds(ratio, bounds, _three)


def faster_text(ratio: float | None, bounds: Bounds | None = None) -> str:
    """A ratio of seconds in words: ``8.3x faster [7.9, 8.8]``, ``1.40x slower [1.31, 1.52]``."""
    if ratio is None or ratio <= 0:
        return DASH
    if bounds is not None and bounds[0] <= 0:
        bounds = None
    faster = ratio <= 1
    value = 1 / ratio if faster else ratio
    if faster and bounds is not None:
        bounds = (1 / bounds[1], 1 / bounds[0])
    decimals = max(0, _decimals(value) - (1 if value >= 2 else 0))
    word = "faster" if faster else "slower"
    main = f"{_rounded(value, decimals)}x {word}"
    if bounds is None:
        return main
    low, high = (_rounded(one, decimals) for one in bounds)
    return f"{main} [{low}, {high}]"


def _with_bounds(value: float, bounds: Bounds | None, text: Callable[[float], str]) -> str:
    if bounds is None:
        return text(value)
    return f"{text(value)} [{text(bounds[0])}, {text(bounds[1])}]"


def _decimals(value: float) -> int:
    size = abs(value)
    return 2 if size < 9.995 else 1 if size < 99.95 else 0


def _three(value: float) -> str:
    """Three significant digits, as a plain number down to a thousandth."""
    size = abs(value)
    if size == 0:
        return "0"
    if size < 0.001:
        return _scientific(value)
    return f"{value:.3f}" if size < 0.9995 else f"{value:,.{_decimals(value)}f}"


def _rounded(value: float, decimals: int, *, plus: bool = False) -> str:
    """Rounded without a negative zero."""
    rounded = round(value, max(0, decimals)) + 0.0
    sign = "+" if plus and rounded > 0 else ""
    return f"{sign}{rounded:,.{max(0, decimals)}f}"


def _scientific(value: float) -> str:
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa}e{int(exponent)}"
