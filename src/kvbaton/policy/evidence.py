"""What receipts say about hand-offs, receiver by receiver: tokens, seconds, and what went wrong."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from kvbaton.policy.routes import TEXT, TIE
from kvbaton.policy.shadow import ShadowReport
from kvbaton.types import JSON, Outcome, ReasonCode, Route

BY_CHOICE = frozenset(
    {
        ReasonCode.ASKED_FOR_TEXT,
        ReasonCode.NOT_ROLLED_OUT,
        ReasonCode.SHADOW,
        ReasonCode.TEXT_FASTER,
        ReasonCode.KILL_SWITCH,
        ReasonCode.ROUTE_NOT_ALLOWED,
        ReasonCode.CRITICAL_PATH,
    }
)
"""Reasons for text that say nothing against the cache: somebody has chosen text."""
COMPARED, ARMS, FORETOLD = "compared", "arms", "predicted"
"""How text's seconds are known: of the same answer, of other answers by text, or only predicted."""

_MOST = 1 << 50


@dataclass(frozen=True, slots=True)
class Seen:
    """One take, as its receipt has it.

    Parameters
    ----------
    by_cache
        Whether a cache was used for the answer.
    by_choice
        Whether text answered because somebody wanted it so.
    cache_s, text_s, foretold_s
        Seconds to the first token: by the cache, by text, and what was predicted of text; None
        where they are not known.
    sender_s
        Seconds of the hand-off; 0 where the receipt does not say.
    hops
        Hand-offs since the last prefill from text, of either kind.
    why
        Codes of the reasons why the cache was not used.
    compared
        The answer by the cache against the one by text, where both were made.
    """

    agent: str
    model: str
    conversation: str
    baton: str
    by_cache: bool
    by_choice: bool
    tokens: int
    reused: int
    cache_s: float | None
    text_s: float | None
    foretold_s: float | None
    sender_s: float
    hops: int
    stale: bool
    why: tuple[str, ...]
    compared: ShadowReport | None = None


def seen_in(
    receipt: Mapping[str, Any],
    *,
    text_s: float | None = None,
    compared: ShadowReport | None = None,
) -> Seen | None:
    """What a receipt says of a take; None where no baton was to be taken, or it is no receipt.

    Parameters
    ----------
    receipt
        As JSON.
    text_s, compared
        Seconds to the first token of the same answer by text, and how both answers compare, where
        somebody has measured it; else as the receipt's own shadow says.
    """
    outcome = receipt.get("outcome")
    if outcome not in [*Outcome] or outcome == Outcome.NO_BATON:
        return None
    by_cache = receipt.get("route") in (Route.BATON, Route.PARTIAL)
    why = () if by_cache else _codes(receipt)
    by_choice = not by_cache and bool(why) and set(why) <= BY_CHOICE
    ttft_s = _seconds(_table(receipt, "seconds"), "ttft")
    shadow = _table(receipt, "shadow")
    cache_s = ttft_s if by_cache else _seconds(shadow, "shadow_ttft_s")
    if text_s is None and by_choice:
        text_s = ttft_s
    hops = _table(receipt, "hops")
    return Seen(
        agent=str(receipt.get("agent", ""))[:256],
        model=str(receipt.get("model", ""))[:256],
        conversation=str(_table(receipt, "labels").get("conversation", "")),
        baton=str(receipt.get("baton") or ""),
        by_cache=by_cache,
        by_choice=by_choice,
        tokens=_count(receipt.get("context_tokens")),
        reused=_count(receipt.get("reused_tokens")),
        cache_s=cache_s,
        text_s=text_s,
        foretold_s=_foretold(receipt),
        sender_s=_handed_off_s(receipt),
        hops=_count(hops.get("exact")) + _count(hops.get("lossy")),
        stale=_table(receipt, "freshness").get("standing") == "stale",
        why=why,
        compared=compared or _report(shadow),
    )


@dataclass(frozen=True, slots=True)
class HopEvidence:
    """All takes of one receiver.

    Parameters
    ----------
    takes, by_cache, by_choice
        How many, how many used a cache, and how many text by choice.
    tokens, reused_share
        Median tokens of context, and share of them that came from a cache, where one was used.
    cache_s, text_s
        Median seconds to the first token by each way; None where not known.
    ratio, basis
        Seconds by cache over seconds by text, and how the latter are known; None and empty where
        they are not.
    stale
        Takes of a context that was not the current one.
    hops
        The most hand-offs since the last prefill from text.
    reasons
        Reason -> how often a cache was not used for it, the most frequent first.
    """

    agent: str
    takes: int
    by_cache: int
    by_choice: int
    tokens: int
    reused_share: float
    cache_s: float | None
    text_s: float | None
    ratio: float | None
    basis: str
    stale: int
    hops: int
    models: tuple[str, ...]
    reasons: tuple[tuple[str, int], ...]

    @property
    def refused(self) -> int:
        """Takes whose cache was not used, although nobody had chosen text."""
        return self.takes - self.by_cache - self.by_choice

    @property
    def faster(self) -> bool | None:
        """Whether the cache is faster than text by more than what counts as a tie."""
        return None if self.ratio is None else self.ratio * (1 + TIE) < 1

    def to_json(self) -> JSON:
        """A JSON object of all fields, with ``refused`` and ``faster``."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return plain | {
            "models": list(self.models),
            "reasons": dict(self.reasons),
            "refused": self.refused,
            "faster": self.faster,
        }


def hop_evidence(agent: str, takes: Sequence[Seen]) -> HopEvidence:
    """Sum up the takes of one receiver; there may be none."""
    used = [one for one in takes if one.by_cache]
    cached, texts, basis = _compared(takes)
    ratio = _ratio(cached, texts)
    context = sum(one.tokens for one in used)
    reasons = Counter(one.why[0] for one in takes if one.why and not one.by_choice)
    return HopEvidence(
        agent=agent,
        takes=len(takes),
        by_cache=len(used),
        by_choice=sum(one.by_choice for one in takes),
        tokens=int(median(one.tokens for one in takes)) if takes else 0,
        reused_share=min(1.0, sum(one.reused for one in used) / context) if context else 0.0,
        cache_s=median(cached) if cached else None,
        text_s=median(texts) if texts else None,
        ratio=ratio,
        basis=basis if ratio is not None else "",
        stale=sum(one.stale for one in takes),
        hops=max((one.hops for one in takes), default=0),
        models=tuple(sorted({one.model for one in takes})),
        reasons=tuple(reasons.most_common()),
    )


def _compared(takes: Sequence[Seen]) -> tuple[list[float], list[float], str]:
    """Seconds by cache and by text that can be held against each other, and how the latter are
    known: by the best way in which they are."""
    cached = [one.cache_s for one in takes if one.cache_s is not None]
    pairs = [
        (one.cache_s, one.text_s)
        for one in takes
        if one.cache_s is not None and one.text_s is not None
    ]
    if pairs:
        return [cache for cache, _ in pairs], [text for _, text in pairs], COMPARED
    alone = [one.text_s for one in takes if one.text_s is not None]
    if alone:
        return cached, alone, ARMS
    return cached, [one.foretold_s for one in takes if one.by_cache and one.foretold_s], FORETOLD


def _ratio(cached: Sequence[float], texts: Sequence[float]) -> float | None:
    """Of medians: one answer that had to wait for something else decides nothing."""
    return median(cached) / median(texts) if cached and texts else None


def takes_per_conversation(takes: Iterable[Seen]) -> float | None:
    """Median number of takes in a conversation; None where receipts name none."""
    counts = Counter(one.conversation for one in takes if one.conversation)
    return float(median(counts.values())) if counts else None


# --- reading ------------------------------------------------------------------------------------


def _table(inside: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = inside.get(key)
    return value if isinstance(value, Mapping) else {}


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < _MOST else 0


def _seconds(inside: Mapping[str, Any], key: str) -> float | None:
    value = inside.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < _MOST else None


def _report(shadow: Mapping[str, Any]) -> ShadowReport | None:
    """A receipt's comparison; None where it has none, or it makes no sense."""
    counts = [shadow.get(name) for name in ("text_tokens", "shadow_tokens", "same_tokens")]
    if not isinstance(shadow.get("route"), str) or None in counts:
        return None
    text, other, same = map(_count, counts)
    if same > min(text, other):
        return None
    alike = same == text == other
    return ShadowReport(shadow["route"][:64], text, other, same, None if alike else same)


def _codes(receipt: Mapping[str, Any]) -> tuple[str, ...]:
    reasons = receipt.get("reasons")
    found = reasons if isinstance(reasons, list) else []
    known = set(ReasonCode) - {ReasonCode.PREFIX_HIT}  # that is no reason against a cache
    codes = (one.get("code") for one in found if isinstance(one, Mapping))
    return tuple(code for code in codes if isinstance(code, str) and code in known)


def _foretold(receipt: Mapping[str, Any]) -> float | None:
    predictions = _table(receipt, "decision").get("predictions")
    for one in predictions if isinstance(predictions, list) else ():
        if isinstance(one, Mapping) and one.get("route") == TEXT:
            return _seconds(one, "ttft_s")
    return None


def _handed_off_s(receipt: Mapping[str, Any]) -> float:
    phases = _table(receipt, "sender_seconds")
    return math.fsum(_seconds(phases, name) or 0.0 for name in phases if name != "total")
