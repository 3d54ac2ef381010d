"""What the chat format refuses, and with which error."""

import pytest
from tests.engines import chat_tokenizers as small

from kvbaton.engines.transformers.chat import ChatFormat
from kvbaton.errors import EmptyInput, InputError, UnsupportedModel

WORD = small.word_tokenizer()
FORMATS = {name: ChatFormat(WORD, template=small.ALL[name]) for name in ("chatml", "no system")}


def user(content):
    """A user's message."""
    return {"role": "user", "content": content}


def assistant(content):
    """An assistant's message."""
    return {"role": "assistant", "content": content}


@pytest.mark.parametrize(
    ("messages", "at"),
    [
        ([], "$.messages"),
        ("Hello", "$.messages"),
        (["Hello"], "$.messages[0]"),
        ([{"content": "Hello"}], "$.messages[0].role"),
        ([{"role": "user"}], "$.messages[0].content"),
        ([{"role": "user", "content": 7}], "$.messages[0].content"),
        ([{"role": "user", "content": [{"type": "image"}]}], "$.messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "$.messages[0].content[0].text"),
        ([{"role": "user", "content": "\ud800"}], "$.messages[0].content"),
        ([{"role": "assistant", "tool_calls": 7}], "$.messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{}]}], "$.messages[0].tool_calls[0]"),
    ],
)
def test_malformed_messages_are_refused_with_their_place(messages, at):
    """A malformed message is an input error that names where it is."""
    with pytest.raises(InputError) as caught:
        FORMATS["chatml"].render(messages)
    assert caught.value.at == at


def test_text_parts_are_joined():
    """Content in the form of text parts reads as one text."""
    parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": " there"}]
    assert FORMATS["chatml"].render([user(parts)]) == FORMATS["chatml"].render(
        [user("Hello there")]
    )


def test_refusals_carry_the_words_of_the_template():
    """What a template raises becomes an input error with the template's own message."""
    with pytest.raises(InputError, match="roles must alternate"):
        FORMATS["no system"].render([user("Hello"), user("Hello")])
    with pytest.raises(InputError, match="chat template"):
        ChatFormat(WORD, template="{% for %}").opening(None, "Hello")


def test_suffix_refuses_what_cannot_follow():
    """Nothing, or a second assistant turn, cannot follow an assistant turn."""
    with pytest.raises(EmptyInput):
        FORMATS["chatml"].suffix([1], [])
    with pytest.raises(InputError, match="assistant turn"):
        FORMATS["chatml"].suffix([1], [assistant("Hi")])
    with pytest.raises(InputError, match="exactly once"):
        ChatFormat(WORD, template="{{ messages[0].content }}").suffix([1], [user("Hello")])


def test_receiver_that_says_nothing_is_refused():
    """A hand-off turn without any words is an error, not an empty turn."""
    with pytest.raises(EmptyInput):
        FORMATS["chatml"].handoff_turn(None, " \n")
    assert FORMATS["chatml"].handoff_turn(None, "Go on") == [user("Go on")]


def test_ids_outside_the_vocabulary_are_refused():
    """Decoding an impossible id is an input error."""
    with pytest.raises(InputError):
        FORMATS["chatml"].text_of([-1])


def test_slow_tokenizers_are_refused():
    """A tokenizer that cannot tell which text a token stands for is refused."""

    class Slow:
        is_fast = False

    with pytest.raises(UnsupportedModel):
        ChatFormat(Slow())
