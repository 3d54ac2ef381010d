"""The place of a trial within its unit."""

import numpy as np
import pytest
from tests.audit.sample_records import Effect, Sample, run_of

from kvbaton.audit.analysis.blocks import Block, blocks_of
from kvbaton.audit.analysis.order import order_told

SAMPLE = Sample(
    units=30, questions=1, ladder=False, effects={n: Effect(0.5) for n in ("T0", "T1", "T2", "T3")}
)


def blocks(growth: float, *, seed: int = 7, repeats: int = 3, units: int = 30) -> list[Block]:
    """Blocks whose times grow by a factor from the first place to the last."""
    found = blocks_of([run_of(Sample(**vars(SAMPLE) | {
        "seed": seed, "repeats": repeats, "units": units}))])  # fmt: skip
    for block in found:
        for trials in block.timed.values():
            for trial in trials:
                trial["ttft_s"] *= growth ** (trial["position"] / 3)
    return found


@pytest.mark.parametrize(("growth", "said"), [(1.3, "30% longer"), (0.7, "30% less")])
def test_times_that_move_with_the_place_are_told(growth: float, said: str) -> None:
    """About the factor that was put in, over trials with 8% noise."""
    (sentence,) = order_told(blocks(growth))
    told = int(sentence.split("took ")[1].split("%")[0])
    assert told == pytest.approx(30, abs=5)
    assert said[3:] in sentence


def test_times_that_do_not_move_are_not_mentioned() -> None:
    """At most one in a hundred audits has a false caution, but for chance; 2% are no matter."""
    heard = sum(bool(order_told(blocks(1.0, seed=seed, units=12))) for seed in range(60))
    assert heard <= 3
    assert order_told(blocks(1.02)) == []


def test_without_repeats_or_places_nothing_is_said() -> None:
    """One trial of a treatment has nothing to be compared with; few units say little."""
    assert order_told(blocks(1.5, repeats=1)) == []
    assert order_told(blocks(1.5, units=5)) == []
    assert order_told([]) == []
    bare = blocks(1.5)
    for block in bare:
        for trials in block.timed.values():
            for trial in trials:
                trial["position"], trial["ttft_s"] = None, float(np.nan)
    assert order_told(bare) == []
