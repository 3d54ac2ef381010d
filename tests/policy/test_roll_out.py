"""Roll-outs: who is drawn, who is switched off, what is listed when one is taken back."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbaton.errors import InputError, UnknownNode
from kvbaton.policy.base import MeasuredPolicy
from kvbaton.policy.rollout import (
    EVERYWHERE,
    ROLL_OUT,
    Arm,
    RollOut,
    RollOutMode,
    answers_from_caches,
    decide_rolled_out,
    is_drawn,
    roll_back,
)
from kvbaton.testing.questions import plain_question
from kvbaton.types import ReasonCode, Route

POLICY, PLAIN = MeasuredPolicy(), plain_question()
SHARES = st.floats(0, 1)


def canary(share: float, experiment: str = "hand-off") -> RollOut:
    """A canary of this share."""
    return RollOut(RollOutMode.CANARY, share, experiment)


# --- assignment ---------------------------------------------------------------------------------


@given(conversation=st.text(), small=SHARES, large=SHARES, experiment=st.text(max_size=9))
def test_who_is_in_a_share_is_in_every_larger_one(
    conversation: str, small: float, large: float, experiment: str
) -> None:
    """A growing canary takes nobody back out."""
    small, large = sorted((small, large))
    if is_drawn(conversation, small, experiment):
        assert is_drawn(conversation, large, experiment)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.5, 0.9])
def test_a_share_is_what_it_says(share: float) -> None:
    """Of 20,000 ids in a row, the share that is drawn lies within four standard deviations."""
    count = 20_000
    drawn = sum(is_drawn(f"conversation-{n}", share, "hand-off") for n in range(count))
    assert abs(drawn - share * count) <= 4 * math.sqrt(count * share * (1 - share))


def test_experiments_draw_independently() -> None:
    """Half of those that one experiment draws are drawn by another at a half."""
    ids = [f"c{n}" for n in range(8000)]
    first = [one for one in ids if is_drawn(one, 0.5, "a")]
    both = sum(is_drawn(one, 0.5, "b") for one in first)
    assert abs(both - len(first) / 2) <= 4 * math.sqrt(len(first)) / 2


def test_the_assignment_is_the_same_everywhere() -> None:
    r"""It is the first 64 bits of SHA-256 over experiment, NUL and conversation, and stays so.

    Values computed by ``printf 'hand-off\0c-1' | sha256sum``.
    """
    buckets = {"c-1": 0xF11F91999DF0B7A3, "c-2": 0x7F89BE4EBB57CEFD}
    for conversation, bucket in buckets.items():
        share = bucket / 2**64
        assert not is_drawn(conversation, share * (1 - 1e-9), "hand-off")
        assert is_drawn(conversation, share * (1 + 1e-9), "hand-off")


def test_ends_of_the_share() -> None:
    """0 draws nobody, 1 everybody, and without an id nobody is in less than 1."""
    ids = ["", "a", "\ud800", "long" * 999]
    assert not any(is_drawn(one, 0.0, "x") for one in ids)
    assert all(is_drawn(one, 1.0, "x") for one in ids)
    assert not is_drawn("", 0.999999, "x")


@pytest.mark.parametrize(
    ("roll_out", "arms"),
    [
        (RollOut(RollOutMode.OFF), {Arm.TEXT}),
        (RollOut(RollOutMode.ON), {Arm.BATON}),
        (RollOut(RollOutMode.SHADOW), {Arm.SHADOW}),
        (RollOut(RollOutMode.SHADOW, 0.5), {Arm.TEXT, Arm.SHADOW}),
        (canary(0.5), {Arm.TEXT, Arm.BATON}),
    ],
)
def test_modes_have_their_arms(roll_out: RollOut, arms: set[Arm]) -> None:
    """Among many conversations, exactly these arms are found."""
    assert {roll_out.arm(f"c{n}") for n in range(64)} == arms


@pytest.mark.parametrize(
    ("values", "at"),
    [
        ({"mode": RollOutMode.CANARY, "share": 1.1}, "$.share"),
        ({"mode": RollOutMode.CANARY, "share": -0.1}, "$.share"),
        ({"mode": RollOutMode.CANARY, "share": math.nan}, "$.share"),
        ({"mode": RollOutMode.CANARY, "share": True}, "$.share"),
        ({"mode": RollOutMode.CANARY, "share": "0.5"}, "$.share"),
        ({"mode": RollOutMode.ON, "share": 0.5}, "$.share"),
        ({"mode": RollOutMode.OFF, "share": 0.5}, "$.share"),
        ({"experiment": ""}, "$.experiment"),
        ({"experiment": "x" * 65}, "$.experiment"),
        ({"experiment": "a\0b"}, "$.experiment"),
    ],
)
def test_a_roll_out_that_cannot_be_meant_is_refused(values: dict[str, Any], at: str) -> None:
    """Each error names its place."""
    with pytest.raises(InputError) as caught:
        RollOut(**values)
    assert caught.value.at == at


# --- decisions ----------------------------------------------------------------------------------


def test_outside_of_the_share_text_answers() -> None:
    """The reason names share and experiment, and what the gates said is kept."""
    outside = decide_rolled_out(POLICY, PLAIN, canary(0.0))
    assert (outside.route, outside.chosen, outside.decided_by) == (Route.TEXT, "text", ROLL_OUT)
    (reason,) = outside.reasons
    assert reason.code is ReasonCode.NOT_ROLLED_OUT
    assert "not in the 0% that the experiment 'hand-off' has drawn" in reason.sentence
    assert outside.judgements == POLICY.decide(PLAIN).judgements
    off = decide_rolled_out(POLICY, PLAIN, RollOut(RollOutMode.OFF))
    assert off.reasons[0].sentence == "hand-off is not rolled out"


def test_inside_of_the_share_the_policy_decides() -> None:
    """As it does when everything is rolled out."""
    inside = decide_rolled_out(POLICY, PLAIN, canary(1.0))
    assert inside == POLICY.decide(PLAIN) == decide_rolled_out(POLICY, PLAIN, EVERYWHERE)


def test_in_a_shadow_text_answers_and_the_route_is_named() -> None:
    """What is to be computed besides stands in ``chosen``."""
    found = decide_rolled_out(POLICY, PLAIN, RollOut(RollOutMode.SHADOW))
    assert (found.route, found.chosen, found.shadow) == (Route.TEXT, "exact", True)
    assert found.reasons[0].code is ReasonCode.SHADOW
    assert found.to_json()["shadow"] is True


@pytest.mark.parametrize("roll_out", [RollOut(RollOutMode.SHADOW), canary(0.0)])
def test_what_the_policy_refuses_is_its_own_decision(roll_out: RollOut) -> None:
    """There is no shadow of it, and the gate stays the one that decided."""
    refused = replace(PLAIN, manifest=replace(PLAIN.manifest, segments=()))
    found = decide_rolled_out(POLICY, refused, roll_out)
    assert (found.decided_by, found.shadow) == ("has-kv", False)


# --- the kill switch ----------------------------------------------------------------------------


def test_a_kill_file_switches_off_while_it_is_there(tmp_path: Path) -> None:
    """Any of several; looked at whenever it is asked, so no restart is needed."""
    files = (tmp_path / "stop-all", tmp_path / "stop-me")
    roll_out = RollOut(kill_files=files)
    assert roll_out.killed() == ""
    files[1].touch()
    assert roll_out.killed() == "by the kill file 'stop-me'"
    files[1].unlink()
    assert roll_out.killed() == ""
    files[0].mkdir()
    assert roll_out.killed() == "by the kill file 'stop-all'"


def test_a_kill_file_that_cannot_be_looked_at_switches_off(tmp_path: Path) -> None:
    """A loop of links, or a name that no file can have: the switch is on."""
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert "cannot be looked at" in RollOut(kill_files=(loop,)).killed()
    assert "cannot be looked at" in RollOut(kill_files=(tmp_path / ("x" * 4000),)).killed()
    below_a_file = tmp_path / "file" / "stop"
    (tmp_path / "file").touch()
    assert RollOut(kill_files=(below_a_file,)).killed() == ""


def test_a_dangling_link_does_not_switch_off(tmp_path: Path) -> None:
    """It points at nothing, and nothing is there."""
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert RollOut(kill_files=(tmp_path / "link",)).killed() == ""


def test_the_setting_switches_off_whatever_the_mode() -> None:
    """Killed hand-off is decided by the first gate."""
    roll_out = RollOut(kill=True)
    assert roll_out.killed() == "by the policy's setting"
    killed = replace(PLAIN, context=replace(PLAIN.context, killed=roll_out.killed()))
    assert decide_rolled_out(POLICY, killed, roll_out).decided_by == "kill-switch"


# --- going back ---------------------------------------------------------------------------------


def receipt(name: object = "r1", **changes: Any) -> dict[str, Any]:
    """A stored receipt of an answer from an exact cache."""
    plain = {"id": name, "agent": "coder", "route": "baton", "mode": "continue", "created_ms": 50}
    return plain | {"fidelity": {"class": "exact", "codec": "raw"}} | changes


def test_answers_from_caches_are_found() -> None:
    """By time, agent and route; those by text are none, and those without a time are."""
    compact = {"class": "lossy", "codec": "compact", "calibration": "c" * 64}
    stored = [
        receipt("a"),
        receipt("b", route="text"),
        receipt("c", route="partial", created_ms=10, agent="writer"),
        receipt("d", fidelity=compact, created_ms=99),
        receipt("e", decision={"chosen": "compact"}),
        receipt("f", created_ms=0),
        receipt("g", mode="slice"),
    ]
    assert answers_from_caches(stored) == ("a", "c", "d", "e", "f", "g")
    assert answers_from_caches(stored, since_ms=50) == ("a", "d", "e", "f", "g")
    assert answers_from_caches(stored, agents=("writer",)) == ("c",)
    assert answers_from_caches(stored, chosen={"compact"}) == ("d", "e")
    assert answers_from_caches(stored, chosen={"slice"}) == ("g",)


@given(
    stored=st.lists(
        st.dictionaries(
            st.sampled_from(["id", "route", "agent", "created_ms", "fidelity", "decision"]),
            st.none() | st.integers() | st.text() | st.lists(st.none()) | st.just("baton"),
        )
    )
)
def test_odd_receipts_are_passed_over(stored: list[dict[str, Any]]) -> None:
    """Whatever stands in a log, ids come out of it."""
    found = answers_from_caches(stored, since_ms=5, agents={"a"}, chosen={"exact"})
    assert all(isinstance(one, str) for one in found)


def test_a_roll_back_lists_what_was_built_on_the_answers() -> None:
    """Every descendant once, the answers themselves only as answers, unknown ones by name."""
    below = {"a": ["b", "plan"], "b": ["plan", "file"], "c": []}

    def descendants(name: str) -> list[str]:
        if name not in below:
            raise UnknownNode(f"nothing is known of {name}")
        return below[name]

    found = roll_back(["a", "b", "c", "a", "lost"], descendants)
    assert found.answers == ("a", "b", "c", "lost")
    assert found.contaminated == ("plan", "file")
    assert found.unlisted == ("lost",)
    assert not found.complete
    assert found.to_json()["contaminated"] == ["plan", "file"]
    assert roll_back(["c"], descendants).complete
