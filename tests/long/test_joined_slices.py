"""Three workers' caches, joined: questions whose answer lies in one worker's slice."""

from __future__ import annotations

from typing import Any

import pytest
from tests.long.private_facts import Facts, make_facts

import kvbaton
from kvbaton.pipelines import parse_pipeline, run_pipeline
from kvbaton.stores import MemoryStore
from kvbaton.types import Mode, Route

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
MODEL = "qwen2.5-coder-0.5b"
WORKERS = ("left", "middle", "right")
ROUNDS, FACTS, SENTENCES = 4, 5, 8


def pipeline_of(notes: dict[str, Facts]) -> Any:
    """A lead, a worker for each notes, and an agent for each question, which joins all slices."""
    agents = [{"name": "lead", "task": "Three colleagues take notes.", "max_new_tokens": 4}]
    edges: list[dict[str, Any]] = [{"from": "lead", "to": list(notes)}]
    for name, facts in notes.items():
        agents.append({"name": name, "task": f"Notes: {facts.text}", "max_new_tokens": 2})
    asked = [question for facts in notes.values() for question, _ in facts.questions]
    names = [f"q{number}" for number in range(len(asked))]
    for name, question in zip(names, asked, strict=True):
        agents.append({"name": name, "task": question, "max_new_tokens": 16})
    edges += [{"from": name, "to": names, "mode": "slice", "spans": "turn"} for name in notes]
    return parse_pipeline({"name": "join", "agents": agents, "edges": edges})


def test_sixty_questions_are_answered_from_three_joined_caches() -> None:
    """Every taker goes by baton, and at most three answers fewer are right than by text."""
    engine = kvbaton.load(MODEL, dtype="bfloat16")
    by_slices = by_text = questions = 0
    for number in range(ROUNDS):
        notes = {
            name: make_facts(100 * number + i, facts=FACTS, sentences=SENTENCES)
            for i, name in enumerate(WORKERS)
        }
        codes = [code for facts in notes.values() for _, code in facts.questions]
        result = run_pipeline(
            pipeline_of(notes), engine, MemoryStore(), route="baton", compare=True
        )
        takers = result.turns[1 + len(WORKERS) :]
        assert {(t.receipt.mode, t.receipt.route) for t in takers} == {(Mode.SLICE, Route.BATON)}
        for turn, code in zip(takers, codes, strict=True):
            questions += 1
            by_slices += code in turn.output
            assert turn.text is not None
            by_text += code in turn.text.output
    print(f"{questions} questions: {by_text} right by text, {by_slices} from joined slices")
    assert questions == 60
    assert by_text >= 50
    assert by_slices >= by_text - 3
