"""What cannot be in a ledger is refused where it is made."""

from __future__ import annotations

import os
from typing import Any

import pytest

from kvbaton.errors import InputError
from kvbaton.lineage.records import Node, NodeKind

TEXTS = {"label": 200, "agent": 200, "model": 200, "codec": 200, "function": 64, "fidelity": 16}
NUMBERS = ("tokens", "size_bytes", "hops_exact", "hops_lossy", "expires_ms", "created_ms")


def made(**fields: Any) -> Node:
    """An answer with these fields."""
    return Node("n", NodeKind.ANSWER, **fields)


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_that_no_database_holds_is_refused(name: str) -> None:
    """Too long, with control characters, or a file's name that is no UTF-8."""
    assert getattr(made(**{name: "é" * TEXTS[name]}), name)
    for bad in (
        "x" * (TEXTS[name] + 1),
        "a\x00b",
        "a\nb",
        "\x7f",
        os.fsdecode(b"caf\xe9"),
        "\ud83d",
    ):
        with pytest.raises(InputError, match=name) as caught:
            made(**{name: bad})
        assert caught.value.at == f"$.{name}"


@pytest.mark.parametrize("bad", ["", "x" * 201, "a\tb", "\udce9"])
def test_an_id_that_no_database_holds_is_refused(bad: str) -> None:
    """The node's own, and those of its parents."""
    with pytest.raises(InputError, match="no id"):
        Node(bad, NodeKind.ANSWER)
    with pytest.raises(InputError, match="no id"):
        made(parents=("p", bad))


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_no_database_holds_is_refused(name: str) -> None:
    """Negative, too large for 64 bits, or no whole number."""
    assert getattr(made(**{name: 2**63 - 1}), name)
    for bad in (-1, 2**63, 0.5, True):
        with pytest.raises(InputError, match=name):
            made(**{name: bad})


def test_what_others_have_recorded_can_be_shown() -> None:
    """A ledger that another program has written may hold anything."""
    assert made(agent="\x1b[2J", label="x" * 300, sequence=1).agent
