"""A tiny real model with everything that an audit needs, in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engines import families

from kvbaton.audit.case import Case, Equipment
from kvbaton.audit.journal import Journal
from kvbaton.audit.plan import Plan
from kvbaton.audit.runner import Audit
from kvbaton.audit.tasks.schema import Question, TaskSet, Unit
from kvbaton.seals import TrustDomain
from kvbaton.stores import MemoryStore
from kvbaton.wire.digests import DomainKeys

FACTS = ("red", "blue", "green")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny models gain nothing from more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def audited_engine() -> Any:
    """A tiny random Llama whose tokens are bytes, with a long window."""
    made = families.tiny("smollm")
    made.max_tokens = 4096
    return made


@pytest.fixture(scope="session")
def windowed_engine() -> Any:
    """A tiny model with window layers, which cannot be sliced."""
    return families.tiny("gemma3")


def equipment_of(engine: Any, **options: Any) -> Equipment:
    """An audit's equipment, with stores in memory."""
    return Equipment(
        engine,
        options.get("domain", TrustDomain("audit", DomainKeys(bytes(32)))),
        options.get("plan_of", lambda profile: None),
        options.get("calibrations", lambda function: frozenset()),
        None,
        MemoryStore,
    )


def unit_of(number: int, **options: Any) -> Unit:
    """A small unit: one fact, two questions."""
    colour = FACTS[number % len(FACTS)]
    questions = (
        Question("q1", "Which colour?", (colour,), opening="It is", max_new_tokens=4),
        Question("q2", "Say the colour.", (colour,), max_new_tokens=4),
    )
    message = {"role": "user", "content": f"Number {number}: the colour is {colour}. Repeat it."}
    fields: dict[str, Any] = {"message_tokens": 6, "questions": questions, "messages": (message,)}
    return Unit(f"u{number}", "facts", **(fields | options))


def tasks_of(count: int) -> TaskSet:
    """A small task set."""
    return TaskSet("colours", 1, tuple(unit_of(n) for n in range(count)), digest="0" * 64)


def plan_of(**options: Any) -> Plan:
    """A small plan."""
    fields: dict[str, Any] = {
        "tasks": "colours", "units": 2, "repeats": 1, "fixed_tokens": 3,
        "ladder": (8,), "ladder_repeats": 1,
    }  # fmt: skip
    return Plan(**(fields | options))


@pytest.fixture
def case(audited_engine: Any) -> Iterator[Case]:
    """One unit whose sender has spoken."""
    made = Case(equipment_of(audited_engine), unit_of(0), (unit_of(1), unit_of(2)))
    yield made
    made.close()


def audit_in(folder: Path, engine: Any, plan: Plan | None = None, **options: Any) -> Audit:
    """An audit that keeps its records in a folder."""
    plan = plan or plan_of()
    equipment = options.pop("equipment", None) or equipment_of(engine)
    return Audit(plan, tasks_of(plan.units), equipment, Journal(folder, plan), **options)
