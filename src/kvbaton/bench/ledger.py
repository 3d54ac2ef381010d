"""``bench ledger``: what a record, a decision and a hand-off of a small baton cost.

There is no model: manifests are made up, so that what is left is signing, verifying, parsing,
deciding and recording.  ``docs/guides/benchmarks.md`` says what each figure is.
"""

from __future__ import annotations

import os
import secrets
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

from kvbaton.bench import made_up
from kvbaton.bench.figures import Target, checked
from kvbaton.bench.machine import environment, load
from kvbaton.errors import BatonRefused, InputError, KvbatonError, LedgerUnavailable
from kvbaton.following import baton_node
from kvbaton.lineage.ledger import Ledger
from kvbaton.lineage.recorder import Recorder
from kvbaton.lineage.records import Entry, Node, NodeKind
from kvbaton.lineage.watching import Watch
from kvbaton.opening import read_manifest
from kvbaton.policy.base import Policy, Question, make_policy
from kvbaton.policy.costs import predictions_for
from kvbaton.seals import TrustDomain
from kvbaton.seals.statement import sign
from kvbaton.types import JSON, Baton, BatonRef, Manifest, Route, Transcript
from kvbaton.wire import manifest as wire
from kvbaton.wire.binding import check_transcript
from kvbaton.wire.digests import DomainKeys, baton_id
from kvbaton.wire.transcript import encode_transcript, parse_transcript

DOMAIN = "local"
PARTS = ("seal", "verify", "decide", "put")
_RATES = ("handoffs_per_s", "handoffs_per_core_s")
_FLUSH_S = 120.0
_NOTICES = 20

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LedgerPlan:
    """How often each thing is done.

    Parameters
    ----------
    known
        Nodes that the ledger has before anything is measured.
    records
        Single records, and moves of a ref.
    decisions
        Decisions on a baton of ``decided_tokens`` tokens.
    handoffs
        Hand-offs of batons of ``tokens`` tokens, in each of ``repeats`` runs.

    Raises
    ------
    InputError
        Fewer than one of something.
    """

    known: int = 5000
    records: int = 500
    decisions: int = 2000
    decided_tokens: int = 4096
    handoffs: int = 3000
    tokens: int = 64
    repeats: int = 3

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) < (2 if name == "tokens" else 1):
                raise InputError(f"{name} must be at least 1", at=f"$.{name}")


def measure_ledger(plan: LedgerPlan, say: Say) -> JSON:
    """Run the plan in a folder for temporary files; ``say`` is told what is being measured.

    Returns
    -------
    JSON
        ``{"record_ms", "decide_ms", "handoffs_per_s", "handoffs_per_core_s", "move_ms",
        "freshness_ms", "notice_ms", "handoff_us", "samples", "summary", "environment",
        "settings"}``: medians; of hand-offs, the median of the runs.
    """
    machine = environment()
    domain = TrustDomain(DOMAIN, DomainKeys(secrets.token_bytes(32)))
    with tempfile.TemporaryDirectory(prefix="kvbaton-bench-") as place:
        url = f"sqlite:///{place}/ledger.db"
        with Ledger(url, DOMAIN) as ledger:
            say("records")
            fill(ledger, plan.known)
            written = record_times(ledger, plan.records)
            say("moves and freshness")
            moved, fresh = move_times(ledger, plan.records)
            say("notices")
            noticed = notice_times(url, ledger)
        say("decisions")
        decided = decide_times(plan, domain)
        runs = []
        for repeat in range(plan.repeats):
            say(f"hand-offs, run {repeat + 1}")
            runs.append(hand_offs(plan, domain, Path(place) / f"run-{repeat}"))
    result: JSON = {
        "record_ms": 1e3 * statistics.median(written),
        "decide_ms": 1e3 * statistics.median(decided),
        **{rate: statistics.median(run[rate] for run in runs) for rate in _RATES},
        "move_ms": 1e3 * statistics.median(moved),
        "freshness_ms": 1e3 * statistics.median(fresh),
        "notice_ms": 1e3 * statistics.median(noticed),
        "handoff_us": {
            part: statistics.median(run["handoff_us"][part] for run in runs)
            for part in (*PARTS, "ledger")
        },
    }
    samples = {rate: [run[rate] for run in runs] for rate in _RATES}
    return {
        **result,
        "samples": samples | {"record_ms_worst_of_100": 1e3 * _worst(written)},
        "summary": {"targets": checked(TARGETS, [result | {"tokens": None, "dtype": None}])},
        "environment": machine | {"load_after": load()},
        "settings": {name: getattr(plan, name) for name in plan.__dataclass_fields__},
    }


TARGETS = (
    Target("a record, milliseconds", lambda row: row["record_ms"], 2.0),
    Target("a decision, milliseconds", lambda row: row["decide_ms"], 1.0),
    Target("hand-offs per second", lambda row: row["handoffs_per_s"], 1000.0, at_least=True),
    Target("another process notices, milliseconds", lambda row: row["notice_ms"], 1000.0),
)
"""What the project promises, whatever the model."""


def _worst(seconds: list[float]) -> float:
    """What one of a hundred exceeds."""
    return sorted(seconds)[min(len(seconds) - 1, len(seconds) * 99 // 100)]


# --- the ledger by itself ----------------------------------------------------------------------


def fill(ledger: Ledger, count: int) -> None:
    """Chains of five nodes each, as conversations leave them."""
    nodes = [_node(f"known-{n}", f"known-{n - 1}" if n % 5 else "") for n in range(count)]
    ledger.record(Entry(node) for node in nodes)


def record_times(ledger: Ledger, count: int) -> list[float]:
    """Seconds of each of so many records, one transaction each, on top of a node that is there."""
    entries = [Entry(_node(f"new-{n}", "known-0"), once=f"once-{n}") for n in range(count)]
    return [timed(partial(ledger.record, [entry])) for entry in entries]


def move_times(ledger: Ledger, count: int) -> tuple[list[float], list[float]]:
    """Seconds of each move of a ref, on whose heads five nodes build, and of each look at whether
    one of them is fresh."""
    moved, fresh = [], []
    for n in range(count):
        head = _node(f"head-{n}", kind=NodeKind.BATON)
        moved.append(timed(partial(ledger.move, "plan", head, expected=n)))
        several = [_node(f"on-{n}-{i}", f"head-{n}") for i in range(5)]
        ledger.record(Entry(node) for node in several)
        fresh.append(timed(partial(ledger.freshness, f"on-{n}-0", "plan", n + 1)))
    return moved, fresh


def notice_times(url: str, ledger: Ledger) -> list[float]:
    """Seconds from withdrawing a node until who holds it is told by polling, as in another
    process: nothing else passes between the two."""
    found = []
    heard = threading.Event()
    with Watch(lambda: Ledger(url, DOMAIN)) as watch:
        for n in range(_NOTICES):
            name = f"held-{n}"
            ledger.record([Entry(_node(name))])
            heard.clear()
            watch.hold(name, lambda node: heard.set())
            begun = time.perf_counter()
            ledger.withdraw(name, why="measured")
            heard.wait(_FLUSH_S)
            found.append(time.perf_counter() - begun)
    return found


def _node(name: str, parent: str = "", kind: NodeKind = NodeKind.ANSWER) -> Node:
    return Node(
        name, kind, parents=(parent,) if parent else (), agent="planner", model="made-up",
        function=made_up.FUNCTION.digest, tokens=64, fidelity="exact", codec="raw",
    )  # fmt: skip


def timed(work: Callable[[], object]) -> float:
    """Seconds that something takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


# --- the policy --------------------------------------------------------------------------------


def decide_times(plan: LedgerPlan, domain: TrustDomain) -> list[float]:
    """Seconds of each decision: all routes are predicted, and all gates asked."""
    listing = made_up.listing(plan.decided_tokens, domain.keys)
    policy = make_policy()
    return [timed(lambda: decide(policy, listing)) for _ in range(plan.decisions)]


def decide(policy: Policy, listing: Manifest) -> Route:
    """By which route a receiver takes a baton."""
    context = made_up.receiving(listing)
    found = predictions_for(made_up.SPEEDS, listing, context, store=made_up.STORE)
    return policy.decide(Question(listing, replace(context, predictions=found))).route


# --- whole hand-offs ---------------------------------------------------------------------------


class HandOffs:
    """Sender and receiver in one thread: batons are sealed, verified, decided on and recorded.

    Parameters
    ----------
    domain
        Whose key signs.
    recorder
        Takes two records of each hand-off: the baton, and the answer that was built on it.
    """

    def __init__(self, domain: TrustDomain, recorder: Recorder) -> None:
        self._domain, self._recorder = domain, recorder
        self._policy = make_policy()
        self._before = ""
        self.seconds = dict.fromkeys(PARTS, 0.0)

    def pass_on(self, words: Transcript, number: int) -> None:
        """One hand-off; every fifth begins a new chain.

        Raises
        ------
        BatonRefused
            The policy did not choose the baton: the figures would be those of something else.
        """
        parents = (self._before,) if number % 5 else ()
        marks = [time.perf_counter()]
        name, raw, blob = self._seal(words, number, parents)
        marks.append(time.perf_counter())
        baton = self._verified(name, raw, blob)
        marks.append(time.perf_counter())
        if decide(self._policy, baton.manifest) is not Route.BATON:
            raise BatonRefused("a made-up baton was refused", reason_code="text-faster")
        marks.append(time.perf_counter())
        self._recorder.put(baton_node(baton, (), "made-up"))
        self._recorder.put(_node(f"answer-{number}", name))
        marks.append(time.perf_counter())
        for part, (first, last) in zip(PARTS, pairwise(marks), strict=True):
            self.seconds[part] += last - first
        self._before = name

    def _seal(
        self, words: Transcript, number: int, parents: tuple[str, ...]
    ) -> tuple[str, bytes, bytes]:
        """Id and envelope of a baton, and its transcript's bytes."""
        domain = self._domain
        blob = encode_transcript(words)
        listing = made_up.manifest_of(words, blob, domain.keys, number=number, parents=parents)
        payload = wire.encode_manifest(listing)
        signer = domain.signers.signer(listing.sender, DOMAIN)
        return baton_id(payload), sign(wire.PAYLOAD_TYPE, payload, signer), blob

    def _verified(self, name: str, raw: bytes, blob: bytes) -> Baton:
        listing, signer = read_manifest(raw, name, self._domain)
        heard = parse_transcript(blob, address=listing.transcript, keys=self._domain.keys)
        check_transcript(listing, heard, self._domain.keys)
        return Baton(BatonRef(name, made_up.STORE), listing, heard, signer, raw)


def hand_offs(plan: LedgerPlan, domain: TrustDomain, folder: Path) -> JSON:
    """One run on one core, from the first hand-off until the ledger has all of it.

    Returns
    -------
    JSON
        ``{"handoffs_per_s", "handoffs_per_core_s", "handoff_us": {part: microseconds of one}}``:
        by the clock, and by the processor time of all threads; ``ledger`` is what was left to
        write when the last hand-off was over.

    Raises
    ------
    LedgerError
        The ledger did not take all records.
    """
    folder.mkdir()
    said = [made_up.words(plan.tokens, number) for number in range(plan.handoffs)]
    refused: list[KvbatonError] = []
    url = f"sqlite:///{folder}/ledger.db"
    with one_core():
        recorder = Recorder(
            lambda: Ledger(url, DOMAIN), folder / "spool", complain=refused.append
        )  # fmt: skip
        with recorder:
            recorder.put(_node("first"))
            recorder.flush(_FLUSH_S)  # the ledger is open
            work = HandOffs(domain, recorder)
            begun, begun_cpu = time.perf_counter(), time.process_time()
            for number, words in enumerate(said):
                work.pass_on(words, number)
            left = time.perf_counter()
            if not recorder.flush(_FLUSH_S) or refused:
                raise refused[0] if refused else LedgerUnavailable("records are still waiting")
            ended, ended_cpu = time.perf_counter(), time.process_time()
    spent = work.seconds | {"ledger": ended - left}
    return {
        "handoffs_per_s": plan.handoffs / (ended - begun),
        "handoffs_per_core_s": plan.handoffs / (ended_cpu - begun_cpu),
        "handoff_us": {part: 1e6 * seconds / plan.handoffs for part, seconds in spent.items()},
    }


@contextmanager
def one_core() -> Iterator[None]:
    """Keep this thread, and those that it starts inside, to one core where that can be."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
