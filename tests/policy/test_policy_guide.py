"""The guide to the cost model says what the code does."""

from __future__ import annotations

from pathlib import Path

from kvbaton.bench import calibrating, policy
from kvbaton.policy import learning, routes
from kvbaton.policy.break_even_map import break_even_map
from kvbaton.policy.rules import NO_RULES

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "policy.md").read_text()
WORDS = {2: "two", 3: "three", 5: "five", 8: "eight", 9: "nine"}


def test_the_guide_states_the_bounds_of_learning() -> None:
    """Ratios that are kept, the largest correction, turns and minutes of load."""
    assert f"the last {WORDS[learning.WINDOW]} ratios" in PAGE
    assert f"beyond a factor of {learning.MOST:.0f}" in PAGE
    assert f"the last {WORDS[learning.LOAD_TURNS]} turns" in PAGE
    assert f"of the last {WORDS[int(learning.LOAD_S / 60)]} minutes" in PAGE


def test_the_guide_states_what_a_tie_is() -> None:
    """The rules' default, and that of the map."""
    assert NO_RULES.tie == routes.TIE
    assert f"{100 * routes.TIE:.0f}% faster (`tie`" in PAGE


def test_the_guide_states_what_is_measured() -> None:
    """Lengths of the calibration; and the grid of the benchmark, none of whose lengths it uses."""
    lengths = f"{calibrating.FEW_TOKENS[0]} to {calibrating.TEXT_TOKENS[-1]:,} tokens"
    assert lengths in PAGE
    assert f"{WORDS[len(policy.TOKENS)]} lengths that calibration has not seen" in PAGE
    assert f"{WORDS[len(policy.MULTIPLES)]} bandwidths" in PAGE
    assert not set(policy.TOKENS) & {*calibrating.TEXT_TOKENS, *calibrating.TAKE_TOKENS}
    assert break_even_map.__kwdefaults__["tie"] == routes.TIE


def test_a_third_of_the_grid_lies_near_break_even() -> None:
    """Within twice, whichever way."""
    near = [one for one in policy.MULTIPLES if 1 / policy.NEAR <= one <= policy.NEAR]
    assert len(near) / len(policy.MULTIPLES) >= 1 / 3
