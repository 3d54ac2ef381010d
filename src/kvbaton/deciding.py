"""Deciding, hand-off by hand-off: the facts that a policy is asked with, and its answer.

A policy file is read again when it has changed, so that a kill switch or a share takes effect in
running processes.  One that cannot be read any more leaves the last one in force.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from kvbaton.engines.base import Engine
from kvbaton.errors import KvbatonError, SettingsError
from kvbaton.forecasts import Forecasts
from kvbaton.policy.base import (
    Decision,
    GatesOnly,
    MeasuredPolicy,
    Policy,
    Question,
    by_text,
    make_policy,
)
from kvbaton.policy.gates import TakeContext
from kvbaton.policy.judgements import route_rank
from kvbaton.policy.policy_files import AgentPolicy, PolicyFile, load_policy_file
from kvbaton.policy.rollout import EVERYWHERE, RollOut, decide_rolled_out
from kvbaton.types import Baton, FidelityClass, FunctionId, Reason, ReasonCode, Receipt

Calibrated = Callable[[str], frozenset[str]]
"""Digest of a function -> digests of the calibration records that are known for it."""

NO_POLICY = PolicyFile()
EDIT_S = 1.0
"""How long a file that is gone, or empty, is taken to be in the middle of an edit."""
_NEVER, _AGAIN = (0, 0, 0), (1, 0, 0)
BY_TEXT = PolicyFile(common=AgentPolicy(roll_out=RollOut(kill=True)))
"""In force where nobody can say what the owner wants."""


@dataclass(frozen=True, slots=True)
class Receiving:
    """Who takes a baton, for what, and what is known of its freshness.

    Parameters
    ----------
    agent
        The receiver's name: the policy may have rules of its own for it.
    conversation
        Id that roll-outs assign by; empty where the caller has none.
    tags
        Of the task.
    standing, stale_why
        ``current``, ``stale`` or ``unknown``, and a sentence where it is stale.
    moves_per_minute
        How often the baton's ref has moved of late; None where that is not known.
    in_shadow
        The cache is only compared with text, so a roll-out does not hold it back.
    """

    agent: str = ""
    conversation: str = ""
    tags: frozenset[str] = frozenset()
    standing: str = "unknown"
    stale_why: str = ""
    moves_per_minute: float | None = None
    in_shadow: bool = False


SOMEBODY = Receiving()


@dataclass(frozen=True, slots=True)
class Request:
    """What a receiver asks of a baton: see ``TakeContext`` for the counts of tokens."""

    prompt_tokens: int
    reusable: int
    room: int
    minimum: FidelityClass = FidelityClass.APPROXIMATE
    function: FunctionId | None = None
    sliced: bool = False


class _Unseen(SettingsError):
    """The file may be as it was: it is read when it can be looked at."""


class PolicySource:
    """A policy, from a file that may change or as it is.

    Parameters
    ----------
    file
        A policy, or the path of its file; a file that is not there is no policy.
    policy
        Decides in place of the one that the file names.
    strict
        Refuse a file that holds no policy.  Otherwise everything goes by text until it does:
        nobody knows what its owner would have allowed.

    Raises
    ------
    SettingsError, InputError
        ``strict``, and the file holds no policy, or names one that nobody provides.
    """

    def __init__(
        self,
        file: PolicyFile | Path = NO_POLICY,
        policy: Policy | str | None = None,
        *,
        strict: bool = True,
    ) -> None:
        self._path = file if isinstance(file, Path) else None
        self._file = file if isinstance(file, PolicyFile) else NO_POLICY
        self._named = make_policy(policy) if isinstance(policy, str) else policy
        self._lock = threading.Lock()
        self._stamp: tuple[int, int, int] | None = _NEVER
        self._missing_since: float | None = None
        self._policy = self._named or make_policy()
        self.trouble: KvbatonError | None = None
        """Why the file as it is now is not in force, if it is not."""
        if self._path is None:
            self._policy = self._named or make_policy(self._file.policy)
            return
        trouble = self._refresh()
        if trouble is not None:
            if strict:
                raise trouble
            self._file = BY_TEXT

    def for_agent(self, name: str) -> tuple[Policy, AgentPolicy]:
        """The policy, and the rules and roll-out of a receiver."""
        with self._lock:
            self._refresh()
            return self._policy, self._file.for_agent(name)

    def _refresh(self) -> KvbatonError | None:
        """Read the file again if it has changed; one that cannot be read leaves the last, and why
        is returned."""
        if self._path is None:
            return None
        try:
            stamp = _stamp(self._path)
            if stamp == self._stamp or self._in_the_middle_of_an_edit(stamp):
                return self.trouble
            self._stamp = stamp
            found = NO_POLICY if stamp is None else load_policy_file(self._path)
            policy = self._named or make_policy(found.policy)
        except KvbatonError as error:
            self.trouble = error
            if isinstance(error, _Unseen):
                self._stamp = _AGAIN
        else:
            self.trouble, self._file, self._policy = None, found, policy
        return self.trouble

    def _in_the_middle_of_an_edit(self, stamp: tuple[int, int, int] | None) -> bool:
        """Whether a file that was there is gone, or empty, only since a moment ago."""
        if self._stamp is None or self._stamp == _NEVER or (stamp is not None and stamp[1]):
            self._missing_since = None
            return False
        now_s = time.monotonic()
        self._missing_since = self._missing_since or now_s
        return now_s - self._missing_since < EDIT_S


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _Unseen(f"the policy cannot be looked at: {error.strerror}") from error
    return found.st_mtime_ns, found.st_size, found.st_ino


class _Held(Policy):
    """A policy that is held to what policies promise: one that fails, or allows what the gates do
    not, is overruled."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def decide(self, question: Question) -> Decision:
        """See ``Policy.decide``."""
        if type(self._policy) in (GatesOnly, MeasuredPolicy):
            return self._policy.decide(question)
        gates = GatesOnly().decide(question)
        name = self._policy.name
        try:
            found = self._policy.decide(question)
            allowed = route_rank(found.route) >= route_rank(gates.route)
        except Exception as error:  # noqa: BLE001 - whatever somebody else's code does
            sentence = f"the policy {name!r} failed: {type(error).__name__}"
            failed = by_text(gates, Reason(ReasonCode.POLICY, sentence), decided_by=name)
            return replace(failed, policy=name)
        return found if allowed else gates


class Deciding:
    """Decides for the receivers of one engine.

    Parameters
    ----------
    engine
        The receivers' model.
    calibrations
        The calibration records that are known for a function, by its digest.
    max_lossy_hops
        Lossy or approximate hand-offs since the last exact prefill; None for any number.
    source
        The policy; by default the gates, and whatever is predicted to be faster.
    forecasts
        What is predicted of the routes, and learns from receipts; nothing by default.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        calibrations: Calibrated,
        max_lossy_hops: int | None,
        source: PolicySource | None = None,
        forecasts: Forecasts | None = None,
    ) -> None:
        self.engine, self.calibrations, self.max_lossy_hops = engine, calibrations, max_lossy_hops
        self.source, self.forecasts = source or PolicySource(), forecasts

    def rules_of(self, agent: str) -> AgentPolicy:
        """The rules and the roll-out of a receiver."""
        return self.source.for_agent(agent)[1]

    def decide(self, baton: Baton, request: Request, receiving: Receiving) -> Decision:
        """By which route a baton is taken."""
        policy, mine = self.source.for_agent(receiving.agent)
        context = self._context(request, receiving, mine)
        if self.forecasts is not None:
            predicted = self.forecasts.predict(baton.manifest, context, baton.ref.store)
            context = replace(context, predictions=predicted)
        question = Question(baton.manifest, context, receiving.conversation)
        roll_out = EVERYWHERE if receiving.in_shadow else mine.roll_out
        return decide_rolled_out(_Held(policy), question, roll_out)

    def _context(self, request: Request, receiving: Receiving, mine: AgentPolicy) -> TakeContext:
        engine = self.engine
        function = request.function or engine.function
        return TakeContext(
            function=function,
            layout=engine.layout,
            max_tokens=engine.max_tokens,
            prompt_tokens=request.prompt_tokens,
            reusable_tokens=request.reusable,
            room_tokens=request.room,
            free_memory_bytes=engine.free_memory_bytes(),
            minimum=request.minimum,
            max_lossy_hops=self.max_lossy_hops,
            calibrations=self.calibrations(function.digest),
            model=engine.name,
            sliced=request.sliced,
            rules=mine.rules,
            killed=mine.roll_out.killed(),
            standing=receiving.standing,
            stale_why=receiving.stale_why,
            moves_per_minute=receiving.moves_per_minute,
            tags=receiving.tags,
        )

    def troubles(self) -> tuple[Reason, ...]:
        """Warnings where the policy's file has changed and cannot be read, or what was measured
        cannot be used."""
        measured = () if self.forecasts is None else self.forecasts.troubles()
        trouble = self.source.trouble
        if trouble is None:
            return measured
        stays = Reason(ReasonCode.POLICY, f"the policy cannot be used as it is: {trouble}")
        return (stays, *measured)

    def learn(self, receipt: Receipt, store: str) -> None:
        """Let the receipt of an answer refine what is predicted of the next ones."""
        if self.forecasts is not None:
            self.forecasts.seen(receipt, store)
