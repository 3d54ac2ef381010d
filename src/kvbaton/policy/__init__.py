"""Policy: which route; pure functions of a manifest and a context."""

from kvbaton.policy.base import (
    DEFAULT_POLICY,
    Decision,
    Policy,
    Question,
    by_text,
    decide_by_gates,
    make_policy,
    policy_names,
    predicted_s,
    register_policy,
)
from kvbaton.policy.gates import GATES, SLICE_GATES, Gate, TakeContext, gate_name
from kvbaton.policy.judgements import Judgement, route_rank, ruling
from kvbaton.policy.routes import EXACT, SLICE, TEXT, Prediction, fastest, find_prediction
from kvbaton.policy.rules import PolicyRules, StaleRule
from kvbaton.types import Reason, ReasonCode, Route

__all__ = [
    "DEFAULT_POLICY",
    "EXACT",
    "GATES",
    "SLICE",
    "SLICE_GATES",
    "TEXT",
    "Decision",
    "Gate",
    "Judgement",
    "Policy",
    "PolicyRules",
    "Prediction",
    "Question",
    "Reason",
    "ReasonCode",
    "Route",
    "StaleRule",
    "TakeContext",
    "by_text",
    "decide_by_gates",
    "fastest",
    "find_prediction",
    "gate_name",
    "make_policy",
    "policy_names",
    "predicted_s",
    "register_policy",
    "route_rank",
    "ruling",
]
