"""Roll-out: which conversations hand caches over, how shadows are compared, and how to go back.

Assignment depends on the conversation's id and the experiment's name and on nothing else, so that
all agents, on all machines and after every restart, put a conversation into the same arm.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from kvbaton.errors import InputError, UnknownNode
from kvbaton.policy.base import Decision, Policy, Question, by_text
from kvbaton.policy.routes import EXACT, SLICE
from kvbaton.types import FidelityClass, Mode, Reason, ReasonCode, Route

ROLL_OUT = "roll-out"
"""What decided where no gate did."""

MAX_EXPERIMENT_CHARS = 64
_BUCKETS = 1 << 64
_BY_CACHE = (Route.BATON, Route.PARTIAL)


class RollOutMode(StrEnum):
    """How far the hand-off of caches is rolled out."""

    OFF = "off"
    """Everything goes by text."""
    SHADOW = "shadow"
    """Text answers; the cache is used besides, and compared."""
    CANARY = "canary"
    """A share of the conversations hands caches over, the others go by text."""
    ON = "on"
    """All conversations hand caches over."""


class Arm(StrEnum):
    """What a conversation is assigned to."""

    TEXT = "text"
    SHADOW = "shadow"
    BATON = "baton"


@dataclass(frozen=True, slots=True)
class RollOut:
    """How far the hand-off of caches is rolled out.

    Parameters
    ----------
    share
        Of the conversations, from 0 to 1, that are in the canary, or that are shadowed.  Without
        an id, a conversation is in no share below 1.
    experiment
        Names the assignment; under another name, other conversations are drawn.
    kill
        Hand-off is switched off, whatever the mode.
    kill_files
        Hand-off is switched off while there is something at one of these paths.

    Raises
    ------
    InputError
        A share that is none, or a share where the mode leaves nothing to share; ``at`` is the
        place.
    """

    mode: RollOutMode = RollOutMode.ON
    share: float = 1.0
    experiment: str = "hand-off"
    kill: bool = False
    kill_files: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if type(self.share) not in {int, float} or not 0 <= self.share <= 1:
            raise InputError(f"must be a number from 0 to 1, not {self.share!r}", at="$.share")
        if self.share != 1 and self.mode in {RollOutMode.OFF, RollOutMode.ON}:
            raise InputError(
                f"a share means nothing in mode {self.mode.value!r}",
                at="$.share",
                hint='mode = "canary"',
            )
        name = self.experiment
        if not (0 < len(name) <= MAX_EXPERIMENT_CHARS and name.isprintable()):
            raise InputError(
                f"must be 1 to {MAX_EXPERIMENT_CHARS} printable characters", at="$.experiment"
            )

    def arm(self, conversation: str) -> Arm:
        """What a conversation is assigned to; the kill switch is not looked at."""
        if self.mode is RollOutMode.OFF or not is_drawn(conversation, self.share, self.experiment):
            return Arm.TEXT
        return Arm.SHADOW if self.mode is RollOutMode.SHADOW else Arm.BATON

    def killed(self) -> str:
        """Who has switched hand-off off, in words; empty where nobody has.

        Looks at the kill files, one system call each.  A path that cannot be looked at has
        switched hand-off off: that a switch fails must not be found out when it is needed.
        """
        if self.kill:
            return "by the policy's setting"
        return next((said for said in map(_killed_by, self.kill_files) if said), "")


EVERYWHERE = RollOut()
"""All conversations hand caches over."""


def _killed_by(path: Path) -> str:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, ValueError):
        return f"the kill file {path.name!r} cannot be looked at"
    return f"by the kill file {path.name!r}"


def is_drawn(conversation: str, share: float, experiment: str) -> bool:
    """Whether a conversation belongs to a share of an experiment.

    A conversation that is in a share is in every larger one.
    """
    if share >= 1:
        return True
    return bool(conversation) and _bucket(conversation, experiment) < int(share * _BUCKETS)


def _bucket(conversation: str, experiment: str) -> int:
    """A number below 2**64, uniform over conversations."""
    # no NUL in an experiment's name, so no two pairs are spelled alike
    said = f"{experiment}\0{conversation}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(said).digest()[:8], "big")


def decide_rolled_out(policy: Policy, question: Question, roll_out: RollOut) -> Decision:
    """A policy's decision, as far as the roll-out lets it come true.

    Outside of the share, text answers.  In a shadow text answers, too: ``chosen`` is the route to
    be compared with it, and ``shadow`` is True; what the policy refuses anyhow has no shadow.
    Pure: put ``roll_out.killed()`` into the question's context.
    """
    decision = policy.decide(question)
    if decision.route is Route.TEXT:
        return decision
    arm = roll_out.arm(question.conversation)
    if arm is Arm.TEXT:
        reason = Reason(ReasonCode.NOT_ROLLED_OUT, _not_rolled_out(roll_out))
        return by_text(decision, reason, decided_by=ROLL_OUT)
    if arm is Arm.SHADOW:
        reason = Reason(
            ReasonCode.SHADOW, f"text answers, and is compared with the route {decision.chosen!r}"
        )
        overruled = by_text(decision, reason, decided_by=ROLL_OUT)
        return replace(overruled, chosen=decision.chosen, shadow=True)
    return decision


def _not_rolled_out(roll_out: RollOut) -> str:
    if roll_out.mode is RollOutMode.OFF:
        return "hand-off is not rolled out"
    return (
        f"the conversation is not in the {100 * roll_out.share:g}% that the experiment "
        f"{roll_out.experiment!r} has drawn"
    )


# --- going back ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RollBack:
    """What has to be done again after a roll-out has gone wrong.

    ``answers`` are the receipts of answers that were computed from caches, ``contaminated`` all
    that was built on them, in the order in which it was found, and ``unlisted`` the answers of
    which nobody knew what was built on them.
    """

    answers: tuple[str, ...]
    contaminated: tuple[str, ...]
    unlisted: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether the descendants of every answer could be listed."""
        return not self.unlisted

    def to_json(self) -> dict[str, list[str]]:
        """``{"answers", "contaminated", "unlisted"}``."""
        return {
            "answers": list(self.answers),
            "contaminated": list(self.contaminated),
            "unlisted": list(self.unlisted),
        }


def roll_back(answers: Sequence[str], descendants: Callable[[str], Iterable[str]]) -> RollBack:
    """List what builds on answers that are to be taken back.

    Parameters
    ----------
    answers
        Ids of receipts, such as :func:`answers_from_caches` gives.
    descendants
        Lists everything that builds on an id, however far down; may raise ``UnknownNode``.
    """
    starts = tuple(dict.fromkeys(answers))
    found: dict[str, None] = {}
    unlisted = []
    for answer in starts:
        try:
            found.update(dict.fromkeys(descendants(answer)))
        except UnknownNode:
            unlisted.append(answer)
    known = set(starts)
    contaminated = tuple(node for node in found if node not in known)
    return RollBack(starts, contaminated, tuple(unlisted))


def answers_from_caches(
    receipts: Iterable[Mapping[str, Any]],
    *,
    since_ms: int = 0,
    agents: Collection[str] | None = None,
    chosen: Collection[str] | None = None,
) -> tuple[str, ...]:
    """Ids of the receipts whose answers were computed from a cache, in their order.

    Parameters
    ----------
    receipts
        JSON objects of receipts; those without an id, or without a route, are passed over.
    since_ms
        Only answers that were finished at or after this time, and those that do not say when.
    agents
        Only answers of these agents; None for all.
    chosen
        Only routes of these names, such as a profile's; None for all.
    """
    return tuple(
        one["id"]
        for one in receipts
        if isinstance(one.get("id"), str)
        and one.get("route") in _BY_CACHE
        and _finished_since(one, since_ms)
        and (agents is None or str(one.get("agent", "")) in agents)
        and (chosen is None or _chosen(one) in chosen)
    )


def _finished_since(receipt: Mapping[str, Any], since_ms: int) -> bool:
    """Whether an answer is not known to be older: what may be affected is listed."""
    created_ms = receipt.get("created_ms")
    return not (isinstance(created_ms, int) and created_ms) or created_ms >= since_ms


def _chosen(receipt: Mapping[str, Any]) -> str:
    """Name of the route, as a decision or else the fidelity of what was used says."""
    decision = receipt.get("decision")
    if isinstance(decision, Mapping):
        return str(decision.get("chosen", ""))
    if receipt.get("mode") == Mode.SLICE:
        return SLICE
    fidelity = receipt.get("fidelity")
    found = fidelity if isinstance(fidelity, Mapping) else {}
    if found.get("codec", "raw") != "raw":
        return str(found["codec"])
    return EXACT if found.get("class", EXACT) == FidelityClass.EXACT else SLICE
