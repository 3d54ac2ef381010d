"""Speeds whose predictions can be checked by hand, and strategies for any others."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kvbaton.policy.speeds import CodecSpeed, Knot, Line, Speeds, Spread, StoreSpeed

HOST, FUNCTION = "a" * 64, "f" * 64
STORE = "dir:///data/store"

KNOWN = Speeds(
    host=HOST,
    function=FUNCTION,
    model="tiny",
    created_s=1_700_000_000,
    layers=10,
    token_bytes=1000,
    prefill=(Knot(10, 0.1), Knot(100, 0.2), Knot(1000, 2.0)),
    past_s=1e-5,
    pair_s=1e-6,
    generate_s=0.05,
    overhead=Line(0.01, 1e-5),
    opening=Line(0.0, 1e-3),
    verify=Line(0.0, 1e-8),
    probe=Line(0.002, 1e-6),
    attach=Line(0.001, 2e-6),
    align=Line(0.0, 1e-5),
    recompute=Line(0.1, 1e-3),
    codecs={
        "exact": CodecSpeed(Line(), Line(0.0, 1e-6), 1000.0),
        "compact": CodecSpeed(Line(0.001, 1e-5), Line(0.001, 5e-6), 250.0),
    },
    stores={STORE: StoreSpeed(1e-3, 1e-4, 1e8, 5e7)},
    text_spread=Spread(0.9, 1.2),
    cache_spread=Spread(0.8, 1.5),
)
"""Every phase has a cost of its own."""

_seconds = st.floats(0, 10, allow_nan=False)
_unit = st.floats(0, 1e-2, allow_nan=False)
_rate = st.floats(1.0, 1e12, allow_nan=False)
lines = st.builds(Line, _seconds, _unit)
spreads = st.builds(Spread, st.floats(0.1, 1), st.floats(1, 10))


@st.composite
def knots(draw: Any) -> tuple[Knot, ...]:
    """Lengths that ascend, seconds that do not fall."""
    lengths = sorted(draw(st.sets(st.integers(1, 100_000), min_size=1, max_size=8)))
    size = len(lengths)
    times = draw(st.lists(st.floats(1e-4, 100), min_size=size, max_size=size))
    return tuple(Knot(n, s) for n, s in zip(lengths, sorted(times), strict=True))


codec_speeds = st.builds(CodecSpeed, lines, lines, st.floats(1, 1e6))
store_speeds = st.builds(StoreSpeed, st.floats(0, 1), st.floats(0, 0.1), _rate, _rate)

speeds = st.builds(
    Speeds,
    host=st.just(HOST),
    function=st.just(FUNCTION),
    model=st.just("tiny"),
    created_s=st.integers(0, 1 << 40),
    layers=st.integers(1, 100),
    token_bytes=st.floats(1, 1e6),
    prefill=knots(),
    past_s=_unit,
    pair_s=st.floats(0, 1e-4),
    generate_s=_seconds,
    overhead=lines,
    opening=lines,
    verify=st.builds(Line, _seconds, st.floats(0, 1e-6)),
    probe=lines,
    attach=lines,
    align=lines,
    recompute=lines,
    codecs=st.fixed_dictionaries({"exact": codec_speeds, "compact": codec_speeds}),
    stores=st.fixed_dictionaries({STORE: store_speeds}),
    text_spread=spreads,
    cache_spread=spreads,
)
"""Any speeds."""
