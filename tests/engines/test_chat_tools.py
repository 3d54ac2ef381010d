"""Tool calls: read from answers, shown by templates, written as text where there are none."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engines import chat_tokenizers as small

from kvbaton.engines.transformers.chat import ChatFormat
from kvbaton.engines.transformers.tools import ToolCall, find_tool_call, find_tool_calls
from kvbaton.errors import InputError

WORD = small.word_tokenizer()
SEARCH = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
CALLING = [
    {"role": "user", "content": "Hello"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "abcdef123", "function": {"name": "search", "arguments": '{"name": "Hi"}'}}
        ],
    },
    {"role": "tool", "content": "done", "tool_call_id": "abcdef123"},
]

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "search", "arguments": {"q": "a"}}\n</tool_call>',
        '<tool_call>{"name": "search", "arguments": {"q": "a"}}',
        '{"name": "search", "parameters": {"q": "a"}}',
        '```json\n{"name": "search", "arguments": {"q": "a"}}\n```',
        '<|python_tag|>{"name": "search", "parameters": {"q": "a"}}',
        '<|python_tag|>{"type": "function", "function": "search", "parameters": {"q": "a"}}',
        '<|python_tag|>search.call(q="a")',
        '[TOOL_CALLS] [{"name": "search", "arguments": {"q": "a"}}]',
        '{"function": {"name": "search", "arguments": "{\\"q\\": \\"a\\"}"}}',
    ],
)
def test_notations_of_a_call_are_read(text):
    """Every common notation gives the same name and arguments, and its place in the text."""
    call = find_tool_call(text)
    assert (call.name, call.arguments) == ("search", {"q": "a"})
    assert (call.start, call.stop) == (0, len(text))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello {name}",
        "<tool_call>",
        '<tool_call>{"name": "search"',
        '<tool_call>{"name": "search"}</tool_call>',
        '{"name": 7, "arguments": {}}',
        '{"name": "search", "arguments": [1]}',
        '{"name": "search", "arguments": {"q": NaN}}',
        '{"name": "search", "arguments": {}} and more',
        "<|python_tag|>print(1)",
        "<|python_tag|>search.call(q=open('x'))",
        "<|python_tag|>search.call(*a)",
        "{" * 100_000,
        "[" * 100_000,
        '{"name": "search", "arguments": {"q": ' + "9" * 5000 + "}}",
    ],
)
def test_text_that_is_no_call_gives_none(text):
    """Whatever else a model writes is no call, and never an error."""
    assert find_tool_call(text) is None


@given(st.text(st.sampled_from('<tool_call>{}[]":,name/| \n'), max_size=60))
def test_garbage_never_raises(text):
    """No text makes the search fail."""
    assert all(isinstance(call, ToolCall) for call in find_tool_calls(text))


@given(
    st.lists(
        st.tuples(st.text(min_size=1, max_size=5), st.dictionaries(st.text(max_size=3), values)),
        max_size=3,
    )
)
def test_calls_are_read_back_as_written(calls):
    """What is written in the tagged notation is read back, in order."""
    written = " then ".join(
        f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
        for name, arguments in calls
    )
    assert [(c.name, c.arguments) for c in find_tool_calls(written)] == calls


def test_template_with_tools_shows_calls_and_results():
    """A template that knows tools renders them itself, with arguments as an object."""
    chat = ChatFormat(WORD, template=small.WITH_TOOLS)
    assert chat.render(CALLING, tools=[SEARCH]).text == (
        "<|im_start|>system\n"
        '{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}\n'
        "<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>search {"name": "Hi"}</tool_call><|im_end|>\n'
        "<|im_start|>tool\ndone<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_template_without_tools_gets_them_as_text():
    """Where a template knows no tools, calls and results are text in turns that it knows."""
    chat = ChatFormat(WORD, template=small.NO_SYSTEM)
    rendered = chat.render([*CALLING, {"role": "user", "content": "Go on"}], tools=[SEARCH])
    assert rendered.text.startswith("<bos><|im_start|>user\nYou can call these tools:\n<tools>\n")
    assert rendered.text.endswith(
        "<|im_start|>model\n"
        '<tool_call>\n{"arguments": {"name": "Hi"}, "name": "search"}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\ndone\n</tool_response>\n\nGo on<|im_end|>\n"
        "<|im_start|>model\n"
    )
    assert [span.role.value for span in rendered.spans] == [
        "system", "task", "generated", "tool", "task", "generated",
    ]  # fmt: skip


def test_announcing_tools_keeps_the_default_system_prompt():
    """Tools that are announced as text come behind the prompt that the template would write."""
    chat = ChatFormat(WORD, template=small.DEFAULT_SYSTEM)
    text = chat.opening(None, "Hello", tools=[SEARCH]).text
    assert text.startswith("<|im_start|>system\nBe brief\n\nYou can call these tools:\n")
    given_prompt = chat.opening("You plan", "Hello", tools=[SEARCH]).text
    assert given_prompt.startswith("<|im_start|>system\nYou plan\n\nYou can call these tools:\n")


@pytest.mark.parametrize("name", sorted(small.KEEPS_HISTORY))
def test_suffix_takes_tool_results(name):
    """Results of several calls and a user's words follow a turn, in any template."""
    chat = ChatFormat(WORD, template=small.ALL[name])
    opening = chat.opening(None, "Hello", tools=[SEARCH])
    results = [{"role": "tool", "content": "Hi"}, {"role": "tool", "content": "done"}]
    suffix = chat.suffix(
        opening.ids, [*results, {"role": "user", "content": "Go on"}], tools=[SEARCH]
    )
    text = chat.text_of(suffix.ids)
    assert text.index("Hi") < text.index("done") < text.index("Go on")
    assert [s.role.value for s in suffix.spans if s.role.value in ("tool", "task")][-1] == "task"
    assert "You can call" not in text


def test_receiver_announces_its_tools_in_its_turn():
    """Tools of a receiver that goes on in a conversation are announced in its first turn."""
    turn = ChatFormat(WORD).handoff_turn("You code", "Go on", tools=[SEARCH])
    assert turn[0]["content"].startswith("You code\n\nYou can call these tools:\n")
    assert turn[0]["content"].endswith("</tool_call>\n\nGo on")


def test_found_calls_go_into_the_next_messages():
    """A call that was found can be given back as the assistant's message."""
    call = find_tool_call('{"name": "search", "arguments": {"name": "Hi"}}')
    chat = ChatFormat(WORD, template=small.WITH_TOOLS)
    said = [CALLING[0], {"role": "assistant", "tool_calls": [call]}, CALLING[2]]
    assert chat.render(said).text == chat.render(CALLING).text


def test_tools_that_are_not_json_are_refused():
    """A tool that cannot be written as JSON is an input error."""
    with pytest.raises(InputError):
        ChatFormat(WORD).opening(None, "Hello", tools=[{"name": {1, 2}}])
