"""Questions that policies are asked in tests: a plain one, odd ones, rules of any strictness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from kvbaton.policy.base import Question
from kvbaton.policy.gates import TakeContext
from kvbaton.policy.routes import EXACT, SLICE, TEXT, Prediction
from kvbaton.policy.rules import BeyondHops, PolicyRules, StaleRule
from kvbaton.types import (
    Fidelity,
    FidelityClass,
    FunctionId,
    Hops,
    KVLayout,
    LayerKind,
    LayerLayout,
    Manifest,
    Mode,
    Reason,
    ReasonCode,
    SegmentKind,
    SegmentRef,
    SegmentSpan,
    Terms,
)
from kvbaton.wire.limits import MAX_HOPS, MAX_POSITION

SECRET = "the cellar key hangs behind the clock"
"""Stands in the sender's instruction, summary and goal."""

FUNCTION = FunctionId("f" * 64, (("dtype", "F32"), ("weights", "a" * 64)))
RECORD, OTHER_RECORD = "c" * 64, "d" * 64
COMPACT = Fidelity(FidelityClass.LOSSY, "compact", RECORD)
FULL = KVLayout("F32", (LayerLayout(LayerKind.FULL, 1, 4, 4),))
WINDOWED = KVLayout("F32", (*FULL.layers, LayerLayout(LayerKind.WINDOW, 1, 4, 4, window=16)))


# --- one that nothing is against ----------------------------------------------------------------


def plain_question() -> Question:
    """An exact baton of 512 tokens that fits in every way and is predicted to be far faster."""
    refs = tuple(SegmentRef("b" * 64, SegmentSpan(256 * n, 256), 1 << 16) for n in range(2))
    manifest = Manifest(
        function=FUNCTION,
        domain="local",
        sender="planner",
        mode=Mode.CONTINUE,
        created_ms=1,
        cached_tokens=512,
        pending_tokens=1,
        token_digest="1" * 64,
        transcript="2" * 64,
        transcript_bytes=4096,
        spans=(),
        segments=refs,
        fidelity=Fidelity(),
        hops=Hops(1, 0),
        parents=(),
        terms=Terms(SECRET, SECRET, SECRET, round=1),
        producer=(),
        ref="planner/context",
        sequence=4,
    )
    context = TakeContext(
        function=FUNCTION,
        layout=FULL,
        max_tokens=4096,
        prompt_tokens=600,
        reusable_tokens=512,
        room_tokens=64,
        free_memory_bytes=1 << 40,
        calibrations=frozenset({RECORD}),
        model="smollm2-135m",
        standing="current",
        moves_per_minute=0.5,
        predictions=(
            Prediction(TEXT, 10.0, 9.0, 11.0),
            Prediction(EXACT, 0.1, 0.09, 0.11),
            Prediction("compact", 0.1, 0.09, 0.11),
            Prediction(SLICE, 0.2, 0.18, 0.22),
        ),
    )
    return Question(manifest, context, "conversation-1")


def refused_by_one_gate() -> Mapping[str, Question]:
    """Questions by the name of the one gate that denies them, in the order of the gates.

    The gate that compares predictions is not among them: a policy need not ask it.
    """
    plain = plain_question()
    manifest, context = plain.manifest, plain.context

    def listing(**changes: Any) -> Question:
        return replace(plain, manifest=replace(manifest, **changes))

    def receiver(**changes: Any) -> Question:
        return replace(plain, context=replace(context, **changes))

    def ruled(question: Question = plain, /, **rules: Any) -> Question:
        return replace(question, context=replace(question.context, rules=PolicyRules(**rules)))

    lossy = listing(fidelity=COMPACT)
    return {
        "kill-switch": receiver(killed="by a test"),
        "trust": receiver(distrust=Reason(ReasonCode.SIGNATURE, "the signature is wrong")),
        "audience": receiver(distrust=Reason(ReasonCode.TICKET_AUDIENCE, "not for this agent")),
        "has-kv": listing(segments=()),
        "compatibility": receiver(function=FunctionId("e" * 64, ())),
        "freshness": ruled(receiver(standing="stale"), stale=StaleRule.REFUSE),
        "allow-list": ruled(routes=frozenset({"compact"})),
        "fidelity": ruled(lossy, minimum_fidelity=FidelityClass.EXACT),
        "critical-path": ruled(
            replace(lossy, context=replace(context, tags=frozenset({"payment"}))),
            critical_tags=frozenset({"payment"}),
        ),
        "calibration": replace(lossy, context=replace(context, calibrations=frozenset())),
        "hops": listing(hops=Hops(0, 4)),
        "exact-hops": ruled(max_exact_hops=0),
        "rounds": ruled(max_rounds=0),
        "change-rate": ruled(max_moves_per_minute=0.4),
        "divergence": receiver(reusable_tokens=0),
        "minimum-length": ruled(min_tokens=513),
        "window": receiver(max_tokens=599),
        "memory": receiver(free_memory_bytes=0),
    }


# --- odd ones -----------------------------------------------------------------------------------

_COUNTS = st.integers(0, 2000) | st.integers(0, MAX_POSITION)
_CODECS = st.sampled_from(["raw", "compact", "tiny", TEXT, EXACT, SLICE]) | st.text(max_size=80)
_TAGS = st.frozensets(st.sampled_from(["payment", "draft", "legal"]))


def fidelities() -> st.SearchStrategy[Fidelity]:
    """What bytes may promise, also where class, codec and record contradict each other."""
    records = st.sampled_from([None, RECORD, OTHER_RECORD])
    return st.builds(Fidelity, st.sampled_from(FidelityClass), _CODECS, records)


def manifests() -> st.SearchStrategy[Manifest]:
    """Manifests that pass their types, however little sense their numbers make together."""
    spans = st.builds(SegmentSpan, _COUNTS, _COUNTS, st.sampled_from(SegmentKind))
    shifts = st.none() | st.integers(-MAX_POSITION, MAX_POSITION)
    refs = st.builds(SegmentRef, st.just("b" * 64), spans, _COUNTS, fidelities(), shifts)
    few = st.integers(0, 5) | st.integers(0, MAX_HOPS)
    return st.builds(
        lambda **changes: replace(plain_question().manifest, **changes),
        function=st.sampled_from([FUNCTION, FunctionId("e" * 64, ())]),
        mode=st.sampled_from(Mode),
        created_ms=_COUNTS,
        expires_ms=_COUNTS,
        cached_tokens=_COUNTS,
        pending_tokens=_COUNTS,
        segments=st.lists(refs, max_size=3).map(tuple),
        fidelity=fidelities(),
        hops=st.builds(Hops, few, few),
        terms=st.builds(lambda turn: Terms(SECRET, SECRET, SECRET, turn), st.integers(0, 9)),
        ref=st.text(max_size=20),
        sequence=st.integers(-1, 9),
    )


def predictions() -> st.SearchStrategy[tuple[Prediction, ...]]:
    """What may have been predicted: of no route, of some, of routes that nobody knows."""
    seconds = st.floats(0, 1000, allow_nan=False)
    names = st.sampled_from([TEXT, EXACT, SLICE, "compact", "tiny", "another"])
    one = st.builds(
        lambda route, times: Prediction(route, sorted(times)[1], min(times), max(times)),
        names,
        st.tuples(seconds, seconds, seconds),
    )
    return st.lists(one, max_size=6, unique_by=lambda made: made.route).map(tuple)


def contexts() -> st.SearchStrategy[TakeContext]:
    """What receivers may know."""
    distrust = st.builds(
        Reason,
        st.sampled_from([ReasonCode.SIGNATURE, ReasonCode.EXPIRED, ReasonCode.TICKET_SPENT]),
        st.just("it is not trusted"),
    )
    rarely = st.sampled_from(["", "", "", "by a test"])
    return st.builds(
        TakeContext,
        function=st.just(FUNCTION),
        layout=st.sampled_from([FULL, WINDOWED]),
        max_tokens=_COUNTS,
        prompt_tokens=_COUNTS,
        reusable_tokens=_COUNTS,
        room_tokens=_COUNTS,
        free_memory_bytes=st.sampled_from([0, 1 << 20, 1 << 50]),
        minimum=st.sampled_from(FidelityClass),
        max_lossy_hops=st.sampled_from([None, 0, 3]),
        calibrations=st.frozensets(st.sampled_from([RECORD, OTHER_RECORD])),
        model=st.sampled_from(["", "smollm2-135m"]),
        sliced=st.booleans(),
        rules=rules(),
        killed=rarely,
        distrust=st.none() | st.none() | distrust,
        standing=st.sampled_from(["current", "stale", "unknown"]),
        stale_why=st.sampled_from(["", "the ref has moved on"]),
        moves_per_minute=st.none() | st.floats(0, 100),
        tags=_TAGS,
        predictions=predictions(),
    )


def questions() -> st.SearchStrategy[Question]:
    """Odd questions, and ones that differ from the plain one in one half only."""
    plain = plain_question()
    listings = st.just(plain.manifest) | manifests()
    receivers = (
        st.just(plain.context)
        | st.builds(lambda found: replace(plain.context, rules=found), rules())
        | contexts()
    )
    conversations = st.sampled_from(["", "conversation-1"]) | st.text(max_size=20)
    return st.builds(Question, listings, receivers, conversations)


# --- rules --------------------------------------------------------------------------------------


def rules() -> st.SearchStrategy[PolicyRules]:
    """Rules of any strictness that can be set."""
    return tightenings(PolicyRules(worth_it=False, tie=0.0)) | st.just(PolicyRules())


def tightenings(loose: PolicyRules) -> st.SearchStrategy[PolicyRules]:
    """Rules that are as strict as these, or stricter."""
    classes = list(FidelityClass)
    names = loose.routes if loose.routes is not None else {EXACT, SLICE, "compact", "tiny"}
    subsets = st.frozensets(st.sampled_from(sorted(names))) if names else st.just(frozenset())
    stale = st.sampled_from(StaleRule)
    return st.builds(
        _possible,
        minimum_fidelity=st.sampled_from(classes[: classes.index(loose.minimum_fidelity) + 1]),
        max_lossy_hops=_at_most(loose.max_lossy_hops, 5),
        max_exact_hops=_at_most(loose.max_exact_hops, 5),
        beyond_hops=st.sampled_from(BeyondHops),
        min_tokens=st.integers(loose.min_tokens, max(loose.min_tokens, 1000)),
        max_rounds=_at_most(loose.max_rounds, 9),
        max_moves_per_minute=_at_most(loose.max_moves_per_minute, 100),
        stale=stale if loose.stale is StaleRule.LABEL else st.just(loose.stale),
        known_freshness=_as_strict(known=loose.known_freshness),
        critical_tags=_TAGS.map(lambda tags: tags | loose.critical_tags),
        routes=subsets if loose.routes is not None else st.none() | subsets,
        worth_it=_as_strict(known=loose.worth_it),
        tie=st.floats(loose.tie, 1.0),
    )


def _at_most(limit: float | None, most: int) -> st.SearchStrategy[Any]:
    top = most if limit is None else int(limit)
    counts = st.integers(0, top)
    return st.none() | counts if limit is None else counts


def _as_strict(*, known: bool) -> st.SearchStrategy[bool]:
    return st.sampled_from([True] if known else [False, True])


def _possible(**values: Any) -> PolicyRules:
    """Rules without the contradictions that are refused when they are set."""
    if values["stale"] is StaleRule.LABEL:
        values["known_freshness"] = False
    exact = values["minimum_fidelity"] is FidelityClass.EXACT
    if exact and values["routes"] and EXACT not in values["routes"]:
        values["routes"] = frozenset()
    return PolicyRules(**values)
