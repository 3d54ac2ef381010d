"""A turn that fails leaves an agent where it was: nothing of it is in the next answer."""

from collections.abc import Callable
from typing import Any

import pytest

from kvbaton.agent import Agent

LONG = "A third question, which is a good deal longer than the second one was"


class Stopped(Exception):
    """The user stops an answer."""


def stop(_: str) -> None:
    """Called with the first piece of text."""
    raise Stopped


@pytest.mark.parametrize("family", ["engine", "window_engine"])
@pytest.mark.parametrize("question", ["Third", LONG])
def test_the_next_answer_knows_nothing_of_it(
    request: pytest.FixtureRequest, agent_of: Callable[..., Agent], family: str, question: str
) -> None:
    """Behind an answer that was stopped, the next one is that of an agent that never began it."""
    engine: Any = request.getfixturevalue(family)
    stopped, calm = (agent_of(name, engine=engine) for name in ("stopped", "calm"))
    first = stopped.run("Hello there", max_new_tokens=4)
    assert calm.run("Hello there", max_new_tokens=4).ids == first.ids
    with pytest.raises(Stopped):
        stopped.run("A second question", max_new_tokens=8, on_text=stop)
    assert stopped.conversation is not None
    assert stopped.conversation.cache.length > len(stopped.conversation.ids)
    answer, wanted = (agent.run(question, max_new_tokens=6) for agent in (stopped, calm))
    assert answer.ids == wanted.ids
    assert answer.receipt.context_tokens == wanted.receipt.context_tokens
    assert answer.receipt.reused_tokens <= first.tokens
