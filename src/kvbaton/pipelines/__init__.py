"""Pipelines: agents and the batons between them, written in TOML and run on one model.

Reading a pipeline needs no torch; running one does, so the runner is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvbaton.pipelines.parse import default_pipeline, load_pipeline, parse_pipeline, with_document
from kvbaton.pipelines.result import PipelineResult, TextTurn, TurnResult
from kvbaton.pipelines.schema import AgentSpec, Edge, Pipeline

if TYPE_CHECKING:
    from kvbaton.pipelines.runner import RouteChoice, Surroundings, run_pipeline

__all__ = [
    "AgentSpec",
    "Edge",
    "Pipeline",
    "PipelineResult",
    "RouteChoice",
    "Surroundings",
    "TextTurn",
    "TurnResult",
    "default_pipeline",
    "load_pipeline",
    "parse_pipeline",
    "run_pipeline",
    "with_document",
]


def __getattr__(name: str) -> Any:
    if name in ("RouteChoice", "Surroundings", "run_pipeline"):
        return getattr(import_module("kvbaton.pipelines.runner"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
