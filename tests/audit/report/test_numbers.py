"""Numbers as people read them."""

import pytest

from kvbaton.audit.report import numbers
from kvbaton.audit.report.numbers import DASH, MINUS

TEXTS = [
    (numbers.faster_text(0.12, (0.1136, 0.1266)), "8.3x faster [7.9, 8.8]"),
    (numbers.faster_text(1.4, (1.31, 1.52)), "1.40x slower [1.31, 1.52]"),
    (numbers.faster_text(0.98, (0.96, 1.03)), "1.02x faster [0.97, 1.04]"),
    (numbers.faster_text(1.0), "1.00x faster"),
    (numbers.faster_text(0.5, (0.0, 0.7)), "2.0x faster"),
    (numbers.faster_text(0.0), DASH),
    (numbers.faster_text(None), DASH),
    (numbers.ratio_text(0.1234, (0.1, 12.5)), "0.123 [0.100, 12.5]"),
    (numbers.points_text(-0.04), "0.0"),
    (numbers.points_text(-12.34, (-20, 3.5)), f"{MINUS}12.3 [{MINUS}20.0, +3.5]"),
    (numbers.seconds_text(1.234), "1.23 s"),
    (numbers.seconds_text(0.0456), "45.6 ms"),
    (numbers.seconds_text(0.99996), "1.00 s"),
    (numbers.seconds_text(7.8e-6), "7.80 \u00b5s"),
    (numbers.seconds_text(-0.012), f"{MINUS}12.0 ms"),
    (numbers.seconds_text(0.0), "0 s"),
    (numbers.duration_text(812.0), "13 min 32 s"),
    (numbers.duration_text(7322.0), "2 h 2 min"),
    (numbers.duration_text(3.0), "3.00 s"),
    (numbers.amount_text(0, "B"), "0 B"),
    (numbers.amount_text(999, "B"), "999 B"),
    (numbers.amount_text(43_000_000, "B"), "43.0 MB"),
    (numbers.amount_text(1.234e12, "FLOP"), "1.23 TFLOP"),
    (numbers.amount_text(1e30, "B"), "1,000,000,000,000 EB"),
    (numbers.count_text(12_345.0), "12,345"),
    (numbers.nats_text(0.0013), "0.0013"),
    (numbers.nats_text(1.2e-5), f"1.2e{MINUS}5"),
    (numbers.nats_text(0.0), "0"),
    (numbers.multiple_text(0.92), "0.9x"),
    (numbers.multiple_text(45.4), "45x"),
    (numbers.multiple_text(0.001), "under 0.05x"),
    (numbers.multiple_text(0.0), "0.0x"),
    (numbers.p_text(0.00004), "< 0.001"),
    (numbers.p_text(0.0421), "0.042"),
    (numbers.share_text(0.123), "12.3%"),
    (numbers.size_text(-0.934), f"{MINUS}0.93"),
]


@pytest.mark.parametrize(("text", "expected"), TEXTS)
def test_a_number_is_rounded_and_has_its_unit(text: str, expected: str) -> None:
    """Ratios, seconds, bytes, points and p values read as they are spoken."""
    assert text == expected


@pytest.mark.parametrize(
    "write",
    [
        numbers.points_text, numbers.share_text, numbers.seconds_text, numbers.duration_text,
        numbers.count_text, numbers.nats_text, numbers.multiple_text, numbers.p_text,
        numbers.size_text, numbers.ratio_text, numbers.faster_text,
    ],
)  # fmt: skip
def test_no_number_is_a_dash(write: object) -> None:
    """What was not measured is a dash in every kind of number."""
    assert callable(write)
    assert write(None) == DASH
