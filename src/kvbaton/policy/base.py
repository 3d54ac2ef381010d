"""What a policy is: a question, a decision, and the rule book in between.

A policy looks at a manifest and at what the receiver knows, and says by which route the answer is
to be computed, and why.  It is a pure function: no clock, no file, no network, no random numbers.
Other distributions bring policies by the entry point group ``kvbaton.policies``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from kvbaton.errors import InputError
from kvbaton.policy import gates
from kvbaton.policy.gates import Gate, TakeContext
from kvbaton.policy.judgements import Judgement, ruling
from kvbaton.policy.routes import TEXT, Prediction, find_prediction, route_name
from kvbaton.policy.rules import PolicyRules
from kvbaton.registry import Provider, Registry
from kvbaton.types import JSON, Manifest, Reason, Route

__all__ = [
    "DEFAULT_POLICY",
    "Decision",
    "GatesOnly",
    "MeasuredPolicy",
    "Policy",
    "Prediction",
    "Question",
    "by_text",
    "decide_by_gates",
    "make_policy",
    "policy_names",
    "predicted_s",
    "register_policy",
]

DEFAULT_POLICY = "measured"
"""The policy that decides where nobody chose another."""


@dataclass(frozen=True, slots=True)
class Question:
    """Whether a cache is to be used.

    ``conversation`` is the id that roll-outs assign by; empty where the caller has none.
    """

    manifest: Manifest
    context: TakeContext
    conversation: str = ""

    @property
    def rules(self) -> PolicyRules:
        """What the owner of the policy accepts."""
        return self.context.rules

    @property
    def predictions(self) -> tuple[Prediction, ...]:
        """What is predicted of the routes; empty where nothing was measured."""
        return self.context.predictions

    @property
    def gates(self) -> tuple[Gate, ...]:
        """The gates that apply: the ids of a slice are the receiver's choice."""
        return gates.SLICE_GATES if self.context.sliced else gates.GATES

    @property
    def offered(self) -> str:
        """Name of the route by which the baton's cache would be used."""
        return route_name(self.manifest, sliced=self.context.sliced)


@dataclass(frozen=True, slots=True)
class Decision:
    """By which route the answer is to be computed.

    Parameters
    ----------
    route
        As receipts spell it.
    chosen
        The route's name: ``text``, ``exact``, a profile's name, ``slice``.  In ``shadow`` it is
        the route that is computed besides, and compared; ``route`` is text then.
    reasons
        Against every better route; none of them for a whole baton that is current.
    judgements
        What every gate said, in their order, also after the first that denied.
    decided_by
        Name of the gate that decided, or what else did; empty where nothing was against it.
    policy
        Name of the policy.
    """

    route: Route
    chosen: str
    reasons: tuple[Reason, ...] = ()
    judgements: tuple[Judgement, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    decided_by: str = ""
    policy: str = ""
    shadow: bool = False

    def to_json(self) -> JSON:
        """A JSON object without any text of prompts: what a receipt keeps as ``decision``."""
        return {
            "policy": self.policy,
            "route": self.route.value,
            "chosen": self.chosen,
            "shadow": self.shadow,
            "decided_by": self.decided_by,
            "reasons": [reason.to_json() for reason in self.reasons],
            "gates": [judgement.to_json() for judgement in self.judgements],
            "predictions": [prediction.to_json() for prediction in self.predictions],
        }


class Policy(ABC):
    """Decides by which route a baton is taken.

    Its ``name`` is that of its registry line or entry point.  It is made without arguments.
    """

    name: ClassVar[str]

    @abstractmethod
    def decide(self, question: Question) -> Decision:
        """Decide; the same question has the same answer.

        Never raises, whatever the manifest says, and never chooses a better route than the gates
        allow.
        """


class GatesOnly(Policy):
    """Whatever passes the gates is taken, whether or not it is faster."""

    name: ClassVar[str] = "gates-only"

    def decide(self, question: Question) -> Decision:
        """See :meth:`Policy.decide`."""
        asked = tuple(gate for gate in question.gates if gate is not gates.worth_it)
        return replace(decide_by_gates(question, asked), policy=self.name)


class MeasuredPolicy(Policy):
    """Of what passes the gates, the route that is predicted to be fastest; ties go to text.

    Where nothing was measured on this machine, the gates alone decide.
    """

    name: ClassVar[str] = DEFAULT_POLICY

    def decide(self, question: Question) -> Decision:
        """See :meth:`Policy.decide`."""
        return replace(decide_by_gates(question, question.gates), policy=self.name)


def decide_by_gates(question: Question, asked: Sequence[Gate]) -> Decision:
    """The decision of these gates, each of which is asked."""
    judged = gates.examine(question.manifest, question.context, asked)
    found = ruling(judged)
    return Decision(
        route=found.route,
        chosen=TEXT if found.route is Route.TEXT else question.offered,
        reasons=found.reasons,
        judgements=judged,
        predictions=question.predictions,
        decided_by=found.decided_by,
    )


def by_text(decision: Decision, reason: Reason, *, decided_by: str) -> Decision:
    """The same decision, overruled: text answers."""
    return replace(
        decision, route=Route.TEXT, chosen=TEXT, reasons=(reason,), decided_by=decided_by
    )


def predicted_s(decision: Decision) -> float | None:
    """Seconds to the first token that were predicted of the chosen route; None without."""
    found = find_prediction(decision.predictions, decision.chosen)
    return None if found is None else found.ttft_s


# --- by name -----------------------------------------------------------------------------------

_REGISTRY: Registry[type[Policy]] = Registry(
    "policy",
    {
        "gates-only": Provider("kvbaton.policy.base:GatesOnly"),
        "measured": Provider("kvbaton.policy.base:MeasuredPolicy"),
    },
    group="kvbaton.policies",
    unknown=InputError,
)


def make_policy(name: str = DEFAULT_POLICY) -> Policy:
    """The policy of a name; its module is imported when it is asked for.

    Raises
    ------
    InputError
        Nobody provides the name, two distributions claim it, or what it names is no policy of
        that name.
    """
    kind: object = _REGISTRY.load(name)
    target = _REGISTRY.provider(name).target
    if not (isinstance(kind, type) and issubclass(kind, Policy)):
        raise InputError(f"{target} is not a policy", hint="derive it from Policy")
    if getattr(kind, "name", None) != name:
        called = getattr(kind, "name", None)
        raise InputError(
            f"{target} calls itself {called!r}, not {name!r}",
            hint="register it by its own name: receipts contain it",
        )
    return kind()


def register_policy(name: str, target: str, *, hint: str = "") -> None:
    """Make ``target`` (``"module:Class"``) the policy of a name, for the life of this process.

    Raises
    ------
    InputError
        The name already stands for another policy.
    """
    _REGISTRY.register(name, target, hint=hint)


def policy_names() -> tuple[str, ...]:
    """Names of all policies, sorted; imports none."""
    return _REGISTRY.names()
