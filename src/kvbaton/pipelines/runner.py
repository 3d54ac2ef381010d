"""Running a pipeline: one agent after the other, by baton or by text, or by both to compare."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from kvbaton import triggers
from kvbaton.agent import DEADLINE_S, Agent, Log
from kvbaton.codecs.plan import CodecPlan
from kvbaton.context import Context
from kvbaton.conversation import Turn
from kvbaton.deciding import Calibrated, Deciding, PolicySource
from kvbaton.decoding import Decoding
from kvbaton.engines.base import Engine
from kvbaton.engines.transformers.sampling import Sampling
from kvbaton.errors import EmptyInput, InputError, StoreError
from kvbaton.following import Following
from kvbaton.forecasts import Forecasts
from kvbaton.lineage.keeper import LedgerKeeper
from kvbaton.pipelines.by_text import TextRelay, answer_by_text, warm_up
from kvbaton.pipelines.result import PipelineResult, TextTurn, TurnResult
from kvbaton.pipelines.schema import (
    ANSWERS,
    DTYPES,
    INPUT,
    AgentSpec,
    ContextSpec,
    Edge,
    HandOffWhen,
    Pipeline,
)
from kvbaton.policy.filters import TextFilter
from kvbaton.relay import CHECKED, MAX_LOSSY_HOPS, Checks, Relay
from kvbaton.seals import TrustDomain
from kvbaton.stores import Store
from kvbaton.types import Baton, Mode, Reason, ReasonCode
from kvbaton.wire.digests import DomainKeys

RouteChoice = Literal["auto", "baton", "text"]
"""``auto``: the baton wherever it can be used; ``baton``: that or an error; ``text``: never."""

Observer = Callable[[str, Mapping[str, Any]], None]
"""Called with the name of an event and its facts.

Those of the relay, and ``turn-started`` (``agent``, ``sender``), ``turn-ended`` (``turn``, a
``TurnResult`` still without its text route), ``handed-off`` (``sender``, ``receiver``,
``baton``), ``text-started`` (``agent``) and ``compared`` (``turn``).
"""


@dataclass(frozen=True)
class Surroundings:
    """What decides and notes around a run; nothing by default.

    Parameters
    ----------
    policy, forecasts
        By which route batons are taken, and what is predicted of the routes.
    keeper
        The ledger in which hand-offs and answers are noted.
    log
        Called with every receipt.
    conversation
        The run's id: roll-outs assign by it, and receipts have it as a label.  Random by default.
    """

    policy: PolicySource | None = None
    forecasts: Forecasts | None = None
    keeper: LedgerKeeper | None = None
    log: Log | None = None
    conversation: str = ""


ALONE = Surroundings()


def run_pipeline(  # noqa: PLR0913 - all but three have defaults and are named
    pipeline: Pipeline,
    engine: Engine,
    store: Store,
    *,
    route: RouteChoice = "auto",
    compare: bool = False,
    domain: TrustDomain | None = None,
    observer: Observer | None = None,
    deadline_s: float = DEADLINE_S,
    plan: CodecPlan | None = None,
    calibrations: Calibrated | None = None,
    checks: Checks = CHECKED,
    filters: Sequence[TextFilter] = (),
    around: Surroundings = ALONE,
    stopping: Callable[[], bool] = lambda: False,
) -> PipelineResult:
    """Run a pipeline's agents in their order.

    Parameters
    ----------
    pipeline
        From ``load_pipeline``, with its document.
    engine
        The model that all agents share.
    store
        Where batons and segments go; by route ``text`` it is never asked.
    route
        ``auto`` takes the baton wherever it can be used; ``baton`` raises where it cannot;
        ``text`` lets every agent prefill everything.
    compare
        Let each agent also answer the same prompt ids by text, in the same run.
    domain
        The trust domain; without one, a domain with a secret of its own that ends with the run.
    observer
        Is told of events as they happen.
    deadline_s
        Seconds to the first token of each take.
    plan, calibrations
        How caches are encoded, and the calibration records that are known; see ``Relay``.
    checks, filters
        How caches are held to their tokens, and what is asked for their text; see ``Relay`` and
        ``Agent``.
    around
        Policy, ledger and log.
    stopping
        Asked before each agent: once it says so, the agents that are left are not run, and what
        has been answered is the result.

    Raises
    ------
    EmptyInput
        The pipeline reads an input, and has no document.
    WindowExceeded
        A prompt does not fit the model's window.
    BatonRefused, StoreError
        By route ``baton``: a baton could not be used, or not be stored.
    Filtered
        A filter refused what an agent would have passed on.
    """
    if route not in get_args(RouteChoice):
        raise InputError(f"there is no route {route!r}", hint="auto, baton or text")
    if pipeline.reads_input and not pipeline.document.strip():
        raise EmptyInput("the pipeline reads an input, and has no document")
    run = _Run(
        pipeline=pipeline,
        engine=engine,
        store=store,
        domain=domain or _passing_domain(),
        route=route,
        compare=compare,
        observe=observer or (lambda event, facts: None),
        deadline_s=deadline_s,
        plan=plan,
        calibrations=calibrations,
        checks=checks,
        filters=tuple(filters),
        around=around,
        labels={"conversation": around.conversation or secrets.token_hex(8)},
    )
    if compare:
        warm_up(engine)
    turns: list[TurnResult] = []
    for agent in pipeline.agents:
        if stopping():
            break
        turns.append(run.turn_of(agent))
    not_run = tuple(agent.name for agent in pipeline.agents[len(turns) :])
    dtype = next(name for name, stored in DTYPES.items() if stored == engine.layout.dtype)
    return PipelineResult(pipeline.name, engine.name, dtype, tuple(turns), not_run)


def _passing_domain() -> TrustDomain:
    return TrustDomain("run", DomainKeys(secrets.token_bytes(32)))


@dataclass(frozen=True)
class _Passed:
    """A baton on its way to one receiver."""

    baton: Baton
    seconds: float
    bytes_deduplicated: int
    reasons: tuple[Reason, ...] = ()


@dataclass
class _Run:
    """One run of a pipeline; batons and answers pile up as it goes."""

    pipeline: Pipeline
    engine: Engine
    store: Store
    domain: TrustDomain
    route: RouteChoice
    compare: bool
    observe: Observer
    deadline_s: float
    plan: CodecPlan | None = None
    calibrations: Calibrated | None = None
    checks: Checks = CHECKED
    filters: tuple[TextFilter, ...] = ()
    around: Surroundings = ALONE
    labels: Mapping[str, str] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    receipts: dict[str, str] = field(default_factory=dict)
    passed: dict[str, list[_Passed]] = field(default_factory=dict)
    stored_bytes: int = 0

    def __post_init__(self) -> None:
        self.text_relay = TextRelay(self.engine, self.domain)
        self.relay = Relay(
            self.engine,
            self.store,
            self.domain,
            plan=self.plan,
            checks=self.checks,
            deciding=Deciding(
                self.engine,
                calibrations=self.calibrations or (lambda function: frozenset()),
                max_lossy_hops=MAX_LOSSY_HOPS,
                source=self.around.policy,
                forecasts=self.around.forecasts,
            ),
            observer=self._overhear,
        )
        preamble = self.pipeline.context
        self.preamble = _preamble(preamble, self.pipeline.document) if preamble else None

    def _overhear(self, event: str, facts: Mapping[str, Any]) -> None:
        if event == "segment-stored":
            self.stored_bytes += facts["bytes"]
        self.observe(event, facts)

    # -- a turn ---------------------------------------------------------------------------------

    def turn_of(self, spec: AgentSpec) -> TurnResult:
        """Run or take, hand off to whoever comes next, and answer by text where that is asked."""
        edges = self.pipeline.edges_to(spec.name)
        senders = ", ".join(edge.sender for edge in edges)
        self.observe("turn-started", {"agent": spec.name, "sender": senders})
        how = self._decoding(spec)
        self.stored_bytes = 0
        started = time.perf_counter()
        turn = self._answer(spec, edges, how)
        turn_s = time.perf_counter() - started
        self.answers[spec.name] = turn.text.strip()
        self.receipts[spec.name] = turn.receipt.id
        result = self._result(turn, turn_s)
        self.observe("turn-ended", {"turn": result})
        for onward in self.pipeline.edges_from(spec.name):
            self._pass_on(turn, onward)
        prompt = turn.conversation.ids[: turn.receipt.context_tokens]
        del turn  # its cache is not needed any more
        if not self.compare:
            return result
        compared = self._compared(result, prompt, how)
        self.observe("compared", {"turn": compared})
        return compared

    def _answer(self, spec: AgentSpec, edges: Sequence[Edge], how: Decoding) -> Turn:
        agent = self._agent(spec)
        options = {name: getattr(how, name) for name in Decoding.__dataclass_fields__}
        if not edges:
            return agent.run(self._filled(spec.task), labels=self.labels, **options)
        joined = dict.fromkeys(name for edge in edges for name in edge.join)
        return agent.take(
            *(passed.baton for passed in self.passed[spec.name]),
            instruction=self._said(spec, edges),
            strict=self.route == "baton",
            deadline_s=self.deadline_s,
            labels=self.labels,
            sources=[self.receipts[name] for name in joined if name in self.receipts],
            **options,
        )

    def _agent(self, spec: AgentSpec) -> Agent:
        by_text = self.route == "text"
        hands_off = bool(self.pipeline.edges_from(spec.name))
        return Agent(
            spec.name,
            self.engine,
            self.text_relay if by_text else self.relay,
            system=spec.system or None,
            preamble=self.preamble,
            stream=hands_off and not by_text and not self.filters,
            filters=self.filters,
            log=self.around.log,
            following=Following(self.around.keeper, spec.name),
        )

    def _decoding(self, spec: AgentSpec) -> Decoding:
        onward = self.pipeline.edges_from(spec.name)
        drawn = spec.sampling
        seed = drawn.seed
        if seed is None and drawn.temperature > 0:
            seed = secrets.randbelow(2**63)  # both routes draw alike
        return Decoding(
            max_new_tokens=spec.max_new_tokens,
            sampling=Sampling(drawn.temperature, drawn.top_p, drawn.top_k, seed),
            stop=spec.stop,
            hand_off_when=_triggers(onward[0].hand_off_when) if onward else (),
        )

    def _result(self, turn: Turn, turn_s: float) -> TurnResult:
        taken = self.passed.get(turn.agent, [])
        late = tuple(reason for passed in taken for reason in passed.reasons)
        return TurnResult(
            receipt=turn.receipt,
            output=turn.text,
            ids=turn.ids,
            reasons=late + turn.receipt.reasons,
            bytes_deduplicated=sum(passed.bytes_deduplicated for passed in taken),
            handoff_s=sum(passed.seconds for passed in taken),
            turn_s=turn_s,
        )

    # -- what is said ---------------------------------------------------------------------------

    def _said(self, spec: AgentSpec, edges: Sequence[Edge]) -> str:
        """Instructions and task; joined answers before them, unless they have a place there."""
        joined = tuple(dict.fromkeys(name for edge in edges for name in edge.join))
        parts = [*(edge.instruction for edge in edges), spec.task]
        if joined and not any(ANSWERS in part for part in parts):
            parts.insert(0, ANSWERS)
        said = "\n\n".join(part for part in parts if part.strip())
        return self._filled(said, joined)

    def _filled(self, template: str, joined: tuple[str, ...] = ()) -> str:
        """The template with its placeholders filled; what fills them is not looked into."""
        answers = "\n".join(f"{name}: {self.answers[name]}" for name in joined)
        pieces = [piece.replace(ANSWERS, answers) for piece in template.split(INPUT)]
        return self.pipeline.document.join(pieces)

    # -- hand-offs ------------------------------------------------------------------------------

    def _pass_on(self, turn: Turn, edge: Edge) -> None:
        """Hand off to one receiver: a baton of its own, over segments that all of them share."""
        started = time.perf_counter()
        baton, reasons = self._baton_for(turn, edge)
        seconds = time.perf_counter() - started
        total = sum(ref.size_bytes for ref in baton.manifest.segments)
        found = max(0, total - self.stored_bytes)
        self.stored_bytes = 0
        passed = _Passed(baton, seconds, found, reasons)
        self.passed.setdefault(edge.receiver, []).append(passed)
        facts = {"sender": edge.sender, "receiver": edge.receiver, "baton": baton.id}
        self.observe("handed-off", facts)

    def _baton_for(self, turn: Turn, edge: Edge) -> tuple[Baton, tuple[Reason, ...]]:
        """A baton in the store; one of ids only where text is asked for, or the store fails."""
        if self.route == "text":
            return self._handed_off(turn, edge, self.text_relay), ()
        try:
            return self._handed_off(turn, edge, self.relay), ()
        except StoreError as error:
            if self.route == "baton":
                raise
            reason = Reason(ReasonCode.STORE_ERROR, f"the hand-off failed: {error.sentence}")
            return self._handed_off(turn, edge, self.text_relay), (reason,)

    def _handed_off(self, turn: Turn, edge: Edge, relay: Relay) -> Baton:
        sender = Agent(
            turn.agent,
            self.engine,
            relay,
            preamble=self.preamble,
            filters=self.filters,
            following=Following(self.around.keeper, turn.agent),
        )
        sliced: Any = {"spans": edge.spans} if edge.mode is Mode.SLICE else {}
        return sender.hand_off(
            turn, mode=edge.mode, instruction=edge.instruction, receiver=edge.receiver, **sliced
        )

    # -- by text --------------------------------------------------------------------------------

    def _compared(self, here: TurnResult, prompt: list[int], how: Decoding) -> TurnResult:
        """The turn with its rival; a turn that reused nothing by choice is its own rival."""
        if self.route == "text" or not (here.takes_baton or here.receipt.reused_tokens):
            same = TextTurn(here.output, here.ids, here.ttft_s, here.turn_s, measured=False)
            return replace(here, text=same)
        self.observe("text-started", {"agent": here.agent})
        rival = answer_by_text(self.engine, prompt, how)
        text = TextTurn(rival.output, rival.ids, rival.ttft_s, rival.wall_s)
        return replace(here, text=text)


def _preamble(spec: ContextSpec, document: str) -> str:
    documents = {spec.title: document} if spec.title else None
    return Context(documents=documents, notes=spec.notes, facts=dict(spec.facts)).text


def _triggers(moment: HandOffWhen) -> tuple[triggers.Trigger, ...]:
    if moment.kind == "marker":
        return (triggers.marker(moment.marker),)
    return (triggers.tool_call(),) if moment.kind == "tool-call" else ()
