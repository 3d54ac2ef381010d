"""Treatments: what each attaches and runs, and what it is compared with."""

from __future__ import annotations

import pytest

from kvbaton.audit.treatments import Role, expanded, treatment
from kvbaton.errors import InputError


@pytest.mark.parametrize(
    ("name", "role", "reference", "cache", "run"),
    [
        ("T0", Role.REFERENCE, "T0", "nothing", "prompt and message, question"),
        ("T1", Role.CANDIDATE, "T0", "prompt", "message, question"),
        ("T2", Role.CANDIDATE, "T0", "message", "prompt, question"),
        ("T3", Role.CANDIDATE, "T0", "prompt and message", "question"),
        ("T3:compact", Role.CANDIDATE, "T0", "prompt and message", "question"),
        ("T4", Role.CONTROL, "T0", "prompt and message, with other numbers", "question"),
        ("T5", Role.CONTROL, "T0", "prompt and message, with zeroed numbers", "question"),
        ("T5-shuffled", Role.CONTROL, "T0",
         "prompt and message, with shuffled numbers", "question"),
        ("Z0", Role.REFERENCE, "Z0", "nothing", "prompt, question"),
        ("Z", Role.CANDIDATE, "Z0", "prompt", "question"),
        ("S0:all", Role.REFERENCE, "S0:all", "nothing",
         "own beginning and the slice (all), question"),
        ("S:prompt", Role.CANDIDATE, "S0:prompt", "the slice (prompt)", "own beginning, question"),
        ("S:all+repair", Role.CANDIDATE, "S0:all",
         "the slice (all) (part of it is computed again)", "own beginning, question"),
    ],
)  # fmt: skip
def test_every_treatment_says_what_its_cache_stands_for(
    name: str, role: Role, reference: str, cache: str, run: str
) -> None:
    """The bookkeeping of ids is explicit, and the reference runs the same ids as text."""
    one = treatment(name)
    assert (one.name, one.role, one.reference) == (name, role, reference)
    assert one.bookkeeping() == {"cache": cache, "run": run}
    assert treatment(one.reference).content is one.content


def test_references_come_along_and_first() -> None:
    """Whoever asks for slices and zero-decode gets the texts that they are compared with."""
    names = [one.name for one in expanded(["S:prompt", "Z", "T3", "S:prompt+repair", "T3"])]
    assert names == ["T0", "S0:prompt", "Z0", "S:prompt", "Z", "T3", "S:prompt+repair"]


@pytest.mark.parametrize(
    "name",
    ["", "T6", "T3:", "T3:nothing", "S:", "S:half", "S:all+", "S0:all+repair", "t3", "S:all+x"],
)
def test_unknown_treatments_are_refused(name: str) -> None:
    """A name that is nearly right is not guessed."""
    with pytest.raises(InputError):
        treatment(name)


def test_text_alone_is_no_experiment() -> None:
    """There must be something to compare with text."""
    with pytest.raises(InputError, match="besides text"):
        expanded(["T0", "Z0"])
