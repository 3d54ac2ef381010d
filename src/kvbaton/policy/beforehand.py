"""What can be said of a baton before there is a receiver: gates that need no model, no prompt."""

from __future__ import annotations

from dataclasses import dataclass

from kvbaton.policy.explanation import ALLOWED, LESSER, NOT_ASKED, REFUSED, Explanation, Line
from kvbaton.policy.gates import GATES, TakeContext, gate_name
from kvbaton.policy.judgements import Judgement, ruling
from kvbaton.policy.routes import TEXT, route_name
from kvbaton.policy.rules import NO_RULES, PolicyRules
from kvbaton.types import Allow, Degrade, KVLayout, Manifest, Reason, ReasonCode, Route
from kvbaton.wire.limits import MAX_POSITION

LATER = {
    "compatibility": "needs the receiver's model",
    "calibration": "needs the receiver's model",
    "divergence": "needs the receiver's prompt",
    "window": "needs the receiver's model and prompt",
    "memory": "needs the receiver's model and its free memory",
    "worth-it": "needs what was measured on the receiver's host",
}
"""Gates that nobody can ask yet, and what they need."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What is known besides the manifest; fields as in ``TakeContext``.

    ``needs_ticket`` says that the trust domain asks for one; ``missing`` are how many of the
    baton's segments the store does not hold.
    """

    rules: PolicyRules = NO_RULES
    killed: str = ""
    distrust: Reason | None = None
    needs_ticket: bool = False
    standing: str = "unknown"
    stale_why: str = ""
    moves_per_minute: float | None = None
    missing: int = 0


def explain_manifest(baton: str, manifest: Manifest, found: Circumstances) -> Explanation:
    """Ask a verified manifest every gate that needs no receiver; the others are named as open.

    The task is taken to have no tags, and the prompt to begin with all of the baton's tokens.

    Parameters
    ----------
    baton
        Its id.
    """
    later = LATER | ({"audience": "needs a ticket"} if found.needs_ticket else {})
    context = _context(manifest, found)
    judged = [
        Judgement(gate_name(gate), gate(manifest, context))
        for gate in GATES
        if gate_name(gate) not in later
    ]
    left = ruling(judged)
    by_name = {one.name: one for one in judged}
    lines = tuple(
        _line(by_name[name], left.decided_by)
        if name in by_name
        else Line(NOT_ASKED, name, later[name])
        for name in map(gate_name, GATES)
    )
    absent = _absent(manifest, found.missing, first=left.route is not Route.TEXT)
    by_text = left.route is Route.TEXT or bool(absent)
    return Explanation(
        id=baton,
        of="baton",
        route=Route.TEXT.value if by_text else left.route.value,
        chosen=TEXT if by_text else route_name(manifest),
        outcome="",
        gates=lines,
        afterwards=absent,
        predictions=(),
        decided_by=left.decided_by or next((line.name for line in absent), ""),
    )


def _context(manifest: Manifest, found: Circumstances) -> TakeContext:
    """A receiver to whom the gates that are left to it have nothing to object."""
    return TakeContext(
        function=manifest.function,
        layout=KVLayout("F32", ()),
        max_tokens=MAX_POSITION,
        prompt_tokens=manifest.cached_tokens + manifest.pending_tokens + 1,
        reusable_tokens=manifest.cached_tokens,
        room_tokens=0,
        free_memory_bytes=0,
        rules=found.rules,
        killed=found.killed,
        distrust=found.distrust,
        standing=found.standing,
        stale_why=found.stale_why,
        moves_per_minute=found.moves_per_minute,
    )


def _line(judgement: Judgement, decided_by: str) -> Line:
    verdict, reason = judgement.verdict, judgement.reason
    mark = LESSER if isinstance(verdict, Degrade) else REFUSED
    return Line(
        ALLOWED if isinstance(verdict, Allow) else mark,
        judgement.name,
        "" if reason is None else reason.sentence,
        decided=judgement.name == decided_by,
    )


def _absent(manifest: Manifest, missing: int, *, first: bool) -> tuple[Line, ...]:
    if not missing:
        return ()
    sentence = f"{missing} of {len(manifest.segments)} segments are not in the store"
    return (Line(REFUSED, ReasonCode.SEGMENT_MISSING.value, sentence, decided=first),)
