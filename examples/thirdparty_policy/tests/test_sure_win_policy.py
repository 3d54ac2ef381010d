"""The sure-win policy against kvbaton's public suite, and what makes it different."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kvbaton_sure_win_policy import SureWin

from kvbaton import Prediction
from kvbaton.policy import TEXT, Route, make_policy, policy_names
from kvbaton.testing import PolicyTests, plain_question


class TestSureWin(PolicyTests):
    """Everything that a policy must do."""

    def make_policy(self):
        """There is nothing to set."""
        return SureWin()


def test_it_is_found_by_its_entry_point():
    """Installed, the policy is known by name, and policy files can name it."""
    assert "sure-win" in policy_names()
    assert isinstance(make_policy("sure-win"), SureWin)


@pytest.mark.parametrize(
    ("high_s", "route"), [(0.8, Route.BATON), (0.9, Route.TEXT), (1.5, Route.TEXT)]
)
def test_intervals_that_meet_are_a_doubt(high_s, route):
    """The cache's slowest time must lie below text's fastest, 0.9 s."""
    both = (Prediction(TEXT, 1.0, 0.9, 1.1), Prediction("exact", 0.5, 0.4, high_s))
    plain = plain_question()
    asked = replace(plain, context=replace(plain.context, predictions=both))
    assert SureWin().decide(asked).route is route


def test_without_measurements_text_answers():
    """Nobody can be sure then."""
    plain = plain_question()
    asked = replace(plain, context=replace(plain.context, predictions=()))
    decision = SureWin().decide(asked)
    assert (decision.route, decision.decided_by) == (Route.TEXT, "sure-win")
