"""Whether handing caches over suits a pipeline at all, and for which of its hops, with numbers.

What was measured decides: a hop suits where its cache was faster than text.  Rules of thumb of
others stand beside the numbers, and decide nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvbaton.policy.evidence import (
    COMPARED,
    FORETOLD,
    HopEvidence,
    Seen,
    hop_evidence,
    takes_per_conversation,
)
from kvbaton.policy.explanation import ALLOWED, LESSER, NOT_ASKED, REFUSED
from kvbaton.policy.shadow import sum_up
from kvbaton.types import JSON, Outcome, ReasonCode

FEW_TOKENS, MANY_TOKENS, MANY_ROUNDS = 512, 1000, 3
"""Rules of thumb (S1-28: a net loss below 512 tokens; S1-9: worth it for more than 1,000 tokens a
hop and more than 3 rounds).  They are shown, and decide nothing."""
LONG_CHAIN = 3
"""Hand-offs in a row from which on a chain is called long: lossy ones are refused behind it."""

_HALF = 0.5
_STALE_SHARE = 0.1
_FOREIGN = (ReasonCode.DOMAIN_DIFFERS, ReasonCode.UNKNOWN_KEY, ReasonCode.TICKET_AUDIENCE)


class Suits(StrEnum):
    """Whether hand-off suits."""

    SUITS = "suits"
    PARTLY = "suits-partly"
    NOT = "does-not-suit"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PipelineShape:
    """What a pipeline's file says: who takes batons, how many hand-offs its longest way has, and
    who takes slices, which are approximate."""

    name: str
    receivers: tuple[str, ...]
    longest: int
    slices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Criterion:
    """One thing that was looked at: ✓ speaks for it, ~ partly, ✗ against it, · is not known.

    ``rule`` is what others say as a rule of thumb; empty where there is none.
    """

    name: str
    mark: str
    sentence: str
    rule: str = ""

    def to_json(self) -> JSON:
        """``{"name", "mark", "sentence", "rule"}``."""
        return {
            "name": self.name,
            "mark": self.mark,
            "sentence": self.sentence,
            "rule": self.rule,
        }


@dataclass(frozen=True, slots=True)
class HopAdvice:
    """Whether hand-off suits one receiver, and why."""

    verdict: Suits
    why: str
    evidence: HopEvidence

    def to_json(self) -> JSON:
        """``{"agent", "verdict", "why"}`` and the numbers."""
        return {"verdict": self.verdict.value, "why": self.why} | self.evidence.to_json()


@dataclass(frozen=True, slots=True)
class Advice:
    """The whole of it.

    Parameters
    ----------
    pipeline
        Its name; empty where only receipts were looked at.
    why
        A sentence on the verdict.
    saved_s, cost_s
        Seconds to first tokens that takes have saved where both ways were measured, and seconds
        that senders have spent on those hand-offs; None where nothing was compared.
    """

    pipeline: str
    verdict: Suits
    why: str
    criteria: tuple[Criterion, ...]
    hops: tuple[HopAdvice, ...]
    saved_s: float | None = None
    cost_s: float | None = None

    def to_json(self) -> JSON:
        """A JSON object of all fields."""
        return {
            "pipeline": self.pipeline,
            "verdict": self.verdict.value,
            "why": self.why,
            "saved_s": self.saved_s,
            "cost_s": self.cost_s,
            "criteria": [one.to_json() for one in self.criteria],
            "hops": [one.to_json() for one in self.hops],
        }


def advise(takes: Iterable[Seen], shape: PipelineShape | None = None) -> Advice:
    """Judge a pipeline by its takes; with a shape, only by those of its receivers.

    Parameters
    ----------
    takes
        From receipts, such as ``seen_in`` gives; several runs may be mixed.
    shape
        What the pipeline's file says; without one, whoever has receipts is judged.
    """
    listed = list(takes)
    agents = shape.receivers if shape else tuple(dict.fromkeys(one.agent for one in listed))
    wanted = [one for one in listed if one.agent in agents]
    hops = tuple(
        _judged(hop_evidence(agent, [one for one in wanted if one.agent == agent]))
        for agent in agents
    )
    verdict, why = _verdict(hops)
    saved_s, cost_s = _balance(wanted)
    found = [hop.evidence for hop in hops if hop.evidence.takes]
    criteria = (
        _length(found),
        _frequency(wanted, shape),
        _reuse(found),
        _speed(found),
        _sender(saved_s, cost_s),
        _answers(wanted),
        _use(found),
        _model(found),
        _domain(found),
        _chain(found, shape),
        _freshness(found),
    )
    name = shape.name if shape else ""
    return Advice(name, verdict, why, criteria, hops, saved_s, cost_s)


# --- verdicts -----------------------------------------------------------------------------------


def _judged(hop: HopEvidence) -> HopAdvice:
    if not hop.takes:
        return HopAdvice(Suits.UNKNOWN, "no receipt of it", hop)
    if hop.refused > _HALF * hop.takes:
        why = hop.reasons[0][0] if hop.reasons else Outcome.UNAVAILABLE.value
        said = f"the cache was not used in {hop.refused} of {hop.takes} takes: {why}"
        return HopAdvice(Suits.NOT, said, hop)
    if hop.ratio is None:
        return HopAdvice(Suits.UNKNOWN, "nobody has measured what text would take", hop)
    known = {COMPARED: "", FORETOLD: " (predicted)"}.get(hop.basis, " (of other answers)")
    said = f"{_times(hop.cache_s, hop.text_s)} by text{known}"
    return HopAdvice(Suits.SUITS if hop.faster else Suits.NOT, said, hop)


def _times(cache_s: float | None, text_s: float | None) -> str:
    return f"first token after {cache_s or 0:.3g} s by cache and {text_s or 0:.3g} s"


def _verdict(hops: Sequence[HopAdvice]) -> tuple[Suits, str]:
    known = [hop for hop in hops if hop.verdict is not Suits.UNKNOWN]
    good = [hop.evidence.agent for hop in known if hop.verdict is Suits.SUITS]
    open_ = len(hops) - len(known)
    rest = f"; of {open_} more nothing is known" if open_ else ""
    if known and all(hop.evidence.basis == FORETOLD for hop in known):
        rest += ", as far as text is predicted"
    if not known:
        return Suits.UNKNOWN, "no hop has receipts by which it could be judged"
    if len(good) == len(known):
        return Suits.SUITS, f"the cache is faster on {_all_of(len(known))}{rest}"
    if not good:
        return Suits.NOT, f"the cache is not faster on {_any_of(len(known))}{rest}"
    bad = [hop.evidence.agent for hop in known if hop.verdict is Suits.NOT]
    return Suits.PARTLY, f"for {', '.join(good)}; not for {', '.join(bad)}{rest}"


def _all_of(count: int) -> str:
    return "the one hop" if count == 1 else f"all {count} hops"


def _any_of(count: int) -> str:
    return "the one hop" if count == 1 else f"any of {count} hops"


def _balance(takes: Sequence[Seen]) -> tuple[float | None, float | None]:
    """Seconds saved by takes of which both ways are known, and spent by their senders; a baton
    that several take was handed off once."""
    both = [one for one in takes if one.text_s is not None and one.cache_s is not None]
    if not both:
        return None, None
    spent = {one.baton: one.sender_s for one in both}
    saved = math.fsum((one.text_s or 0.0) - (one.cache_s or 0.0) for one in both)
    return saved, math.fsum(spent.values())


# --- criteria -----------------------------------------------------------------------------------


def _unknown(name: str, rule: str = "") -> Criterion:
    return Criterion(name, NOT_ASKED, "nothing is known of it", rule)


def _marked(good: int, of: int) -> str:
    if good == of:
        return ALLOWED
    return LESSER if good else REFUSED


def _length(hops: Sequence[HopEvidence]) -> Criterion:
    """Context per hop, beside the lengths at which the cache was measured to be faster."""
    rule = f"below {FEW_TOKENS} tokens a net loss, from {MANY_TOKENS:,} on worth it"
    if not hops:
        return _unknown("context", rule)
    shown = ", ".join(f"{hop.agent} {hop.tokens:,}" for hop in hops)
    faster = [hop.tokens for hop in hops if hop.faster]
    slower = [hop.tokens for hop in hops if hop.faster is False]
    here = ""
    if faster:
        here += f"; here the cache was faster from {min(faster):,} tokens on"
    if slower:
        here += f"; it was not at {max(slower):,}"
    known = len(faster) + len(slower)
    mark = _marked(len(faster), known) if known else NOT_ASKED
    return Criterion("context", mark, f"median tokens: {shown}{here}", rule)


def _frequency(takes: Sequence[Seen], shape: PipelineShape | None) -> Criterion:
    rule = f"more than {MANY_ROUNDS} rounds"
    rounds = takes_per_conversation(takes)
    if rounds is not None:
        said = f"{rounds:g} takes in a conversation"
    elif shape is not None and shape.receivers:
        rounds, said = float(len(shape.receivers)), f"{len(shape.receivers)} takes in a run"
    else:
        return _unknown("exchanges", rule)
    return Criterion("exchanges", ALLOWED if rounds > MANY_ROUNDS else LESSER, said, rule)


def _reuse(hops: Sequence[HopEvidence]) -> Criterion:
    used = [hop for hop in hops if hop.by_cache]
    if not used:
        return _unknown("reuse")
    shown = ", ".join(f"{hop.agent} {hop.reused_share:.0%}" for hop in used)
    high = sum(hop.reused_share > _HALF for hop in used)
    return Criterion("reuse", _marked(high, len(used)), f"context from caches: {shown}")


def _speed(hops: Sequence[HopEvidence]) -> Criterion:
    known = [hop for hop in hops if hop.ratio]
    if not known:
        return _unknown("speed")
    shown = ", ".join(f"{hop.agent} {1 / (hop.ratio or 1):.1f} ({hop.basis})" for hop in known)
    faster = sum(bool(hop.faster) for hop in known)
    said = f"times as fast as text to the first token: {shown}"
    return Criterion("speed", _marked(faster, len(known)), said)


def _sender(saved_s: float | None, cost_s: float | None) -> Criterion:
    if saved_s is None or cost_s is None:
        return _unknown("balance")
    said = f"takes saved {saved_s:.3g} s to first tokens, their hand-offs cost {cost_s:.3g} s"
    return Criterion("balance", ALLOWED if saved_s > cost_s else REFUSED, said)


def _answers(takes: Sequence[Seen]) -> Criterion:
    """What answers by cache have in common with those by text; ``exact`` promises no more than
    its noise floor, so that a difference is a note."""
    found = sum_up([one.compared for one in takes if one.compared is not None])
    if not found:
        return _unknown("answers")
    shown = ", ".join(
        f"{one.route} {one.identical} of {one.count}, and {one.same_share:.0%} of the tokens"
        for one in found
    )
    alike = all(one.identical == one.count for one in found)
    said = f"the same as by text: {shown} up to the first difference"
    return Criterion("answers", ALLOWED if alike else LESSER, said)


def _use(hops: Sequence[HopEvidence]) -> Criterion:
    takes = sum(hop.takes for hop in hops)
    if not takes:
        return _unknown("use")
    used, chosen = (sum(getattr(hop, n) for hop in hops) for n in ("by_cache", "by_choice"))
    refused = takes - used - chosen
    said = f"of {takes} takes {used} used the cache, {chosen} went by text on purpose"
    if refused:
        said += f", {refused} fell back{_why(hops)}"
    mark = REFUSED if refused > _HALF * takes else LESSER if refused else ALLOWED
    return Criterion("use", mark, said)


def _why(hops: Sequence[HopEvidence]) -> str:
    counted: dict[str, int] = {}
    for hop in hops:
        for code, count in hop.reasons:
            counted[code] = counted.get(code, 0) + count
    most = sorted(counted, key=lambda code: (-counted[code], code))[:3]
    shown = ", ".join(f"{code} {counted[code]}" for code in most)
    return f" ({shown})" if shown else ""


def _times_of(hops: Sequence[HopEvidence], codes: Sequence[str]) -> int:
    return sum(count for hop in hops for code, count in hop.reasons if code in codes)


def _model(hops: Sequence[HopEvidence]) -> Criterion:
    if not hops:
        return _unknown("one model")
    models = sorted({model for hop in hops for model in hop.models})
    changed = _times_of(hops, (ReasonCode.FUNCTION_DIFFERS,))
    said = f"models: {', '.join(models)}; the function differed in {changed} takes"
    mark = REFUSED if changed else ALLOWED if len(models) == 1 else LESSER
    return Criterion("one model", mark, said, "one base model that you control")


def _domain(hops: Sequence[HopEvidence]) -> Criterion:
    if not hops:
        return _unknown("one domain")
    foreign = _times_of(hops, _FOREIGN)
    said = f"{foreign} takes were refused for another trust domain, key or audience"
    return Criterion("one domain", REFUSED if foreign else ALLOWED, said, "one trust domain")


def _chain(hops: Sequence[HopEvidence], shape: PipelineShape | None) -> Criterion:
    rule = "a short chain"
    longest = max((hop.hops for hop in hops), default=0)
    if shape is not None:
        longest = max(longest, shape.longest)
    elif not hops:
        return _unknown("short chain", rule)
    refused = _times_of(hops, (ReasonCode.HOPS, ReasonCode.EXACT_HOPS))
    said = f"at most {longest} hand-offs in a row; {refused} takes were refused for that"
    if shape is not None and shape.slices:
        said += f"; slices, which are approximate, go to {', '.join(shape.slices)}"
    mark = REFUSED if refused else ALLOWED if longest <= LONG_CHAIN else LESSER
    return Criterion("short chain", mark, said, rule)


def _freshness(hops: Sequence[HopEvidence]) -> Criterion:
    takes, stale = sum(hop.takes for hop in hops), sum(hop.stale for hop in hops)
    if not takes:
        return _unknown("freshness")
    refused = _times_of(hops, (ReasonCode.STALE, ReasonCode.CHANGE_RATE))
    bad = max(stale, refused)
    mark = REFUSED if bad > _HALF * takes else LESSER if bad > _STALE_SHARE * takes else ALLOWED
    return Criterion("freshness", mark, f"{bad} of {takes} takes were of a stale context")
