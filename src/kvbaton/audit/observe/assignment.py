"""Which arm of an experiment a conversation belongs to, and whether arms came out as planned."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from blake3 import blake3

from kvbaton.audit.observe.reading import Observation
from kvbaton.errors import InputError
from kvbaton.types import JSON

ARMS = ("text", "baton")
MISMATCH_P = 0.001
"""Below it, shares differ from the planned ones by more than chance."""

_CONTEXT = "kvbaton audit assignment 1"
_STEPS = 1 << 53


def assign(
    conversation: str,
    *,
    arms: Sequence[str] = ARMS,
    shares: Sequence[float] = (0.5, 0.5),
    salt: str,
) -> str:
    """The arm of a conversation: the same in every process, on every machine.

    Parameters
    ----------
    conversation
        Its id.  All turns of one conversation belong to one arm.
    arms, shares
        Names, and how large a share of the conversations each gets.
    salt
        Names the experiment, so that two experiments do not assign alike.

    Raises
    ------
    InputError
        No conversation or salt, or shares that do not fit the arms.
    """
    if not conversation or not salt:
        raise InputError("an assignment needs a conversation and a salt")
    check_shares(arms, shares)
    digest = blake3(derive_key_context=_CONTEXT)
    for part in (salt, conversation):
        data = part.encode("utf-8", errors="surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    place = (int.from_bytes(digest.digest(8), "little") >> 11) / _STEPS
    below = 0.0
    for arm, share in zip(arms, shares, strict=True):
        below += share
        if place < below:
            return arm
    return arms[-1]


def check_shares(arms: Sequence[str], shares: Sequence[float]) -> None:
    """Refuse shares that do not fit the arms.

    Raises
    ------
    InputError
        Fewer than two arms, one twice, or shares that are not positive and one in sum.
    """
    if len(arms) < 2 or len(set(arms)) < len(arms) or not all(arms):
        raise InputError("an experiment needs two arms or more, with different names")
    positive = all(math.isfinite(share) and share > 0 for share in shares)
    if len(shares) != len(arms) or not positive or abs(sum(shares) - 1) > 1e-9:
        raise InputError("each arm needs a positive share, and all together make 1")


@dataclass(frozen=True, slots=True)
class ArmCounts:
    """Conversations per arm against the plan.

    ``p`` is that of a chi-square test; ``length`` is the mean number of receipts of a conversation
    and ``length_p`` that of Welch's t test on them; ``mixed`` counts conversations with receipts of
    both arms.
    """

    arms: tuple[str, str]
    conversations: tuple[int, int]
    expected: tuple[float, float]
    p: float
    length: tuple[float, float]
    length_p: float
    mixed: int

    @property
    def alarm(self) -> bool:
        """Whether the shares are not those of the plan: something loses receipts of one arm."""
        return self.p < MISMATCH_P

    @property
    def uneven(self) -> bool:
        """Whether conversations of one arm have more receipts than chance explains."""
        return self.length_p < MISMATCH_P

    def to_json(self) -> JSON:
        """As it stands in the result."""
        return {
            "arms": list(self.arms),
            "conversations": list(self.conversations),
            "expected": list(self.expected),
            "p": self.p,
            "receipts_per_conversation": list(self.length),
            "receipts_per_conversation_p": self.length_p,
            "mixed_conversations": self.mixed,
            "alarm": self.alarm,
        }


def count_arms(
    observations: Sequence[Observation], arms: tuple[str, str], shares: tuple[float, float]
) -> ArmCounts:
    """Count conversations; one with receipts of both arms belongs to that of its first."""
    from scipy.stats import chisquare, ttest_ind

    from kvbaton.audit.statistics.values import quiet

    first: dict[str, str] = {}
    lengths: Counter[str] = Counter()
    mixed = set()
    for one in observations:
        lengths[one.cluster] += 1
        if first.setdefault(one.cluster, one.arm) != one.arm:
            mixed.add(one.cluster)
    by_arm = [[lengths[name] for name, arm in first.items() if arm == own] for own in arms]
    counts = [len(own) for own in by_arm]
    expected = [share * len(first) for share in shares]
    with quiet():
        p = float(chisquare(counts, expected).pvalue)
        length_p = float(ttest_ind(*by_arm, equal_var=False).pvalue)
    means = [sum(own) / len(own) if own else 0.0 for own in by_arm]
    return ArmCounts(
        arms=arms,
        conversations=(counts[0], counts[1]),
        expected=(expected[0], expected[1]),
        p=p,
        length=(means[0], means[1]),
        length_p=length_p if math.isfinite(length_p) else 1.0,
        mixed=len(mixed),
    )
