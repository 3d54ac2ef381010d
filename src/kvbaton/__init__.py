"""kvbaton: one LLM agent hands its KV cache to the next.

Public names are imported on first use, so ``import kvbaton`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvbaton.alignment.recompute import Repair
    from kvbaton.api import Agent, StaleContext, attach_cache, export_cache, load, wrap
    from kvbaton.context import Context
    from kvbaton.conversation import Turn
    from kvbaton.defaults import plan_of
    from kvbaton.engines.transformers.sampling import Sampling
    from kvbaton.errors import (
        BatonUnavailable,
        Filtered,
        KvbatonError,
        NotTrusted,
        RefConflict,
        Superseded,
        TrustFault,
        UnknownRef,
    )
    from kvbaton.leasing import hold
    from kvbaton.lineage.ledger import Ledger
    from kvbaton.policy.base import Decision, Policy, Question
    from kvbaton.policy.filters import Passed, PatternFilter, Redact, Refuse
    from kvbaton.policy.routes import Prediction
    from kvbaton.policy.rules import PolicyRules
    from kvbaton.relay import Relay
    from kvbaton.seals import SealScheme, TrustDomain, local_domain
    from kvbaton.stores import open_store
    from kvbaton.triggers import end_of_turn, marker, predicate, router, tool_call
    from kvbaton.types import Baton, BatonRef, Receipt

__version__ = "0.1.0"

_HOMES = {
    "Agent": "api",
    "Baton": "types",
    "BatonRef": "types",
    "BatonUnavailable": "errors",
    "Context": "context",
    "Decision": "policy.base",
    "Filtered": "errors",
    "KvbatonError": "errors",
    "Ledger": "lineage.ledger",
    "NotTrusted": "errors",
    "Passed": "policy.filters",
    "PatternFilter": "policy.filters",
    "Policy": "policy.base",
    "PolicyRules": "policy.rules",
    "Prediction": "policy.routes",
    "Question": "policy.base",
    "Receipt": "types",
    "Redact": "policy.filters",
    "RefConflict": "errors",
    "Refuse": "policy.filters",
    "Relay": "relay",
    "Repair": "alignment.recompute",
    "Sampling": "engines.transformers.sampling",
    "SealScheme": "seals",
    "StaleContext": "api",
    "Superseded": "errors",
    "TrustDomain": "seals",
    "TrustFault": "errors",
    "Turn": "conversation",
    "UnknownRef": "errors",
    "attach_cache": "api",
    "end_of_turn": "triggers",
    "export_cache": "api",
    "hold": "leasing",
    "load": "api",
    "local_domain": "seals",
    "marker": "triggers",
    "open_store": "stores",
    "plan_of": "defaults",
    "predicate": "triggers",
    "router": "triggers",
    "tool_call": "triggers",
    "wrap": "api",
}

__all__ = [
    "Agent",
    "Baton",
    "BatonRef",
    "BatonUnavailable",
    "Context",
    "Decision",
    "Filtered",
    "KvbatonError",
    "Ledger",
    "NotTrusted",
    "Passed",
    "PatternFilter",
    "Policy",
    "PolicyRules",
    "Prediction",
    "Question",
    "Receipt",
    "Redact",
    "RefConflict",
    "Refuse",
    "Relay",
    "Repair",
    "Sampling",
    "SealScheme",
    "StaleContext",
    "Superseded",
    "TrustDomain",
    "TrustFault",
    "Turn",
    "UnknownRef",
    "attach_cache",
    "end_of_turn",
    "export_cache",
    "hold",
    "load",
    "local_domain",
    "marker",
    "open_store",
    "plan_of",
    "predicate",
    "router",
    "tool_call",
    "wrap",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'kvbaton' has no attribute {name!r}")
    value = getattr(import_module(f"kvbaton.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
