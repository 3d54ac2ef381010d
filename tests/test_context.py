"""The shared context: one serialization, the same in every process."""

import random
import subprocess
import sys

import blake3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbaton.context import Context
from kvbaton.errors import InputError

TEXT = """\
# Shared context

## Tools
{"function": {"description": "Sucht überall", "name": "find"}, "type": "function"}
{"name": "search", "parameters": {"a": [1, null], "b": true}}

## Documents
### Alpha
one
two

### beta
three

## Notes
- second thoughts
- first thoughts

## Facts
- address: "4 Hill Road\\nHilltown"
- count: 7
- name: Ada
- tags: ["x", "y"]"""

PARTS = {
    "tools": [
        {"parameters": {"b": True, "a": [1, None]}, "name": "search"},
        {"type": "function", "function": {"name": "find", "description": "Sucht überall"}},
    ],
    "documents": {"beta": "three\n\n", "Alpha": "one\r\ntwo"},
    "notes": ["second thoughts", " first thoughts\n"],
    "facts": {"tags": ["x", "y"], "name": "Ada", "count": 7, "address": "4 Hill Road\nHilltown"},
}

names = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=6)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def shuffled(value, order):
    """The same value with the keys of every object in another order."""
    if isinstance(value, dict):
        keys = order.sample(sorted(value), len(value))
        return {key: shuffled(value[key], order) for key in keys}
    if isinstance(value, list):
        return [shuffled(item, order) for item in value]
    return value


def test_serialization_is_golden():
    """Sections, order, JSON and line ends are exactly these."""
    context = Context(**PARTS)
    assert context.text == TEXT
    assert context.digest == blake3.blake3(TEXT.encode()).hexdigest()


@given(st.integers(0, 2**32))
def test_order_of_keys_and_tools_changes_nothing(seed):
    """Whatever order dicts and tools come in, the text is the same."""
    order = random.Random(seed)
    parts = shuffled(PARTS, order)
    order.shuffle(parts["tools"])
    assert Context(**parts) == Context(**PARTS)


@given(
    st.dictionaries(names, texts, max_size=4),
    st.lists(texts, max_size=3),
    st.dictionaries(names, texts),
)
def test_text_has_no_loose_ends(documents, notes, facts):
    """No template that trims can change the text, and it holds no carriage return."""
    text = Context(documents=documents, notes=notes, facts=facts).text
    assert text == text.strip()
    assert "\r" not in text


def test_every_process_writes_the_same_text():
    """The digest does not depend on the process or on its hash seed."""
    program = f"from kvbaton.context import Context; print(Context(**{PARTS!r}).digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert digests == {Context(**PARTS).digest}


def test_order_of_notes_is_kept():
    """Notes are a sequence: another order is another context."""
    assert Context(notes=["a", "b"]).text != Context(notes=["b", "a"]).text


def test_empty_context_is_empty_text():
    """Nothing shared is no text at all, not an empty heading."""
    assert Context().text == ""
    assert not Context()
    assert Context(notes=["a"])


def test_contexts_are_values():
    """Changing what a context was made from does not change the context."""
    facts = {"name": "Ada"}
    context = Context(facts=facts)
    facts["name"] = "Eve"
    assert context.text == "# Shared context\n\n## Facts\n- name: Ada"
    assert hash(context) == hash(Context(facts={"name": "Ada"}))


@pytest.mark.parametrize(
    ("parts", "at"),
    [
        ({"tools": [{}]}, "$.tools[0]"),
        ({"tools": ["search"]}, "$.tools[0]"),
        ({"tools": [{"name": "a"}, {"name": "a"}]}, "$.tools[1]"),
        ({"tools": [{"name": "a", "x": float("nan")}]}, "$.tools[0]"),
        ({"tools": [{"name": "a", 1: 2}]}, "$.tools[0]"),
        ({"tools": [{"name": "a", "x": {1, 2}}]}, "$.tools[0]"),
        ({"documents": {"a\nb": "text"}}, "$.documents"),
        ({"documents": {"": "text"}}, "$.documents"),
        ({"documents": {"a": "text", "a ": "text"}}, "$.documents"),
        ({"documents": {"a": 7}}, "$.documents['a']"),
        ({"documents": ["a"]}, "$.documents"),
        ({"notes": "a"}, "$.notes"),
        ({"notes": ["a", 7]}, "$.notes[1]"),
        ({"notes": ["\ud800"]}, "$.notes[0]"),
        ({"facts": {"a": float("inf")}}, "$.facts['a']"),
    ],
)
def test_what_has_no_single_form_is_refused(parts, at):
    """Anything that could be written in two ways, or not at all, is refused with its place."""
    with pytest.raises(InputError) as caught:
        Context(**parts)
    assert caught.value.at == at
