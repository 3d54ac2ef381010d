"""Arms by conversation: the same everywhere, in the shares that were asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.audit.observe.simulated import World, as_log, simulate

from kvbaton.audit.observe.assignment import assign, count_arms
from kvbaton.errors import InputError

RECORDED = "btbtbtbtbttbbbtbtbttbbbt"
HALVES = (0.5, 0.5)
ARMS = ("text", "baton")


def test_an_assignment_never_changes() -> None:
    """Recorded values: neither a process nor a version may deal out anew."""
    found = "".join(assign(f"chat-{n}", salt="autumn")[0] for n in range(24))
    assert found == RECORDED
    code = (
        "from kvbaton.audit.observe.assignment import assign\n"
        "print(''.join(assign(f'chat-{n}', salt='autumn')[0] for n in range(24)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == RECORDED


def test_shares_are_kept() -> None:
    """Of 20,000 conversations three arms get 20, 30 and 50% within a percentage point."""
    arms = ("a", "b", "c")
    given = [assign(str(n), arms=arms, shares=(0.2, 0.3, 0.5), salt="s") for n in range(20_000)]
    shares = [given.count(arm) / len(given) for arm in arms]
    assert shares == pytest.approx([0.2, 0.3, 0.5], abs=0.01)


def test_experiments_do_not_assign_alike() -> None:
    """Under two salts, half of the conversations get the same arm."""
    alike = sum(assign(str(n), salt="one") == assign(str(n), salt="two") for n in range(4000))
    assert alike / 4000 == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(
    ("arms", "shares"),
    [
        (("a",), (1.0,)),
        (("a", "a"), HALVES),
        (("a", ""), HALVES),
        (("a", "b"), (0.5, 0.6)),
        (("a", "b"), (1.0, 0.0)),
        (("a", "b"), (1.0,)),
        (("a", "b"), (float("nan"), 0.5)),
    ],
)
def test_shares_that_do_not_fit_are_refused(
    arms: tuple[str, ...], shares: tuple[float, ...]
) -> None:
    """Two different names at least, positive shares, one in sum."""
    with pytest.raises(InputError):
        assign("chat", arms=arms, shares=shares, salt="s")


@pytest.mark.parametrize(("chat", "salt"), [("", "s"), ("chat", "")])
def test_a_conversation_and_a_salt_are_needed(chat: str, salt: str) -> None:
    """Without them every caller would be in one arm, or two experiments would assign alike."""
    with pytest.raises(InputError):
        assign(chat, salt=salt)


def test_arms_that_lose_receipts_are_noticed() -> None:
    """Whole conversations lost raise the alarm; receipts lost show in their length."""
    rows = simulate(World(by_lot=True, conversations=600), seed=3)
    whole = count_arms(as_log(rows).observations, ARMS, HALVES)
    assert not whole.alarm
    assert not whole.uneven
    assert sum(whole.conversations) == 600

    chats = sorted({r["labels"]["conversation"] for r in rows if r["labels"]["arm"] == "baton"})
    gone = set(chats[::3])
    some = [row for row in rows if row["labels"]["conversation"] not in gone]
    assert count_arms(as_log(some).observations, ARMS, HALVES).alarm

    thinned = simulate(World(by_lot=True, conversations=600, lost=0.5), seed=3)
    found = count_arms(as_log(thinned).observations, ARMS, HALVES)
    assert found.uneven
    assert found.length[1] < found.length[0]


def test_conversations_with_both_arms_are_counted() -> None:
    """A conversation that changed arms belongs to its first, and is told."""
    rows = simulate(World(by_lot=True, conversations=50), seed=1)
    name = rows[0]["labels"]["conversation"]
    last = [row for row in rows if row["labels"]["conversation"] == name][-1]
    last["labels"] |= {"arm": "text" if last["labels"]["arm"] == "baton" else "baton"}
    found = count_arms(as_log(rows).observations, ARMS, HALVES)
    assert (found.mixed, sum(found.conversations)) == (1, 50)


def test_the_chi_square_test_is_the_textbooks() -> None:
    """60 against 40 of 100 gives a statistic of 4 with one degree of freedom: p = 0.0455."""
    rows = simulate(World(by_lot=True, conversations=100), seed=0)
    names = sorted({row["labels"]["conversation"] for row in rows})
    arm = {name: "text" if n < 60 else "baton" for n, name in enumerate(names)}
    for row in rows:
        row["labels"]["arm"] = arm[row["labels"]["conversation"]]
    assert count_arms(as_log(rows).observations, ARMS, HALVES).p == pytest.approx(0.0455, abs=1e-4)
