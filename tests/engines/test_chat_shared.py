"""The preamble that agents share: the same first ids, whatever comes behind it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engines import chat_tokenizers as small

from kvbaton.engines.transformers.chat import ChatFormat
from kvbaton.errors import EmptyInput, InputError

WORD = small.word_tokenizer()
MERGING = small.merging_tokenizer()
PIECES = small.sentencepiece_tokenizer()
FORMATS = {name: ChatFormat(WORD, template=source) for name, source in small.ALL.items()}

said = st.text(st.sampled_from("ab. \n<>{}é"), max_size=12).map(lambda t: f"a{t}b")
roles = st.text(st.sampled_from("ab.0 \n\t"), max_size=8)


def user(content):
    """A user's message."""
    return {"role": "user", "content": content}


def assistant(content):
    """An assistant's message."""
    return {"role": "assistant", "content": content}


SHARING = [
    *((WORD, name) for name in small.ALL),
    *((MERGING, name) for name in ("chatml", "no system", "plain")),
    (PIECES, "plain"),
]


@given(st.sampled_from(SHARING), st.lists(st.none() | roles, min_size=2, max_size=2), said)
def test_agents_share_the_ids_of_the_preamble(where, two_roles, content):
    """The first ids are the same for every agent, however its role begins."""
    tokenizer, name = where
    chat = ChatFormat(tokenizer, template=small.ALL[name])
    one, other = (chat.render_shared("a plan.", role, [user(content)]) for role in two_roles)
    shared = one.shared_tokens
    assert shared == other.shared_tokens > 0
    assert one.ids[:shared] == other.ids[:shared]
    assert chat.text_of(one.ids[:shared]).endswith("a plan.")
    assert chat.text_of(one.ids) == one.text


def test_joint_tokens_at_the_end_of_the_preamble_are_split():
    """The merge of a full stop with line ends behind it would make the ids depend on the role."""
    chat = ChatFormat(MERGING, template=small.CHATML)
    naive = MERGING("a plan.\n\nb")["input_ids"]
    assert small.tokens_of(MERGING, naive).split()[-2:] == [".ĊĊ", "b"]
    shared = chat.render_shared("a plan.", "b", [user("a")])
    tokens = small.tokens_of(MERGING, shared.ids[: shared.shared_tokens + 2]).split()
    assert tokens[-3:] == [".", "ĊĊ", "b"]


def test_shared_prefix_keeps_its_place_in_long_conversations():
    """Where system prompts move to the last turn, the preamble opens the first user turn."""
    chat = FORMATS["system last"]
    short = chat.render_shared("You plan", "code", [user("Hello")])
    long = chat.render_shared(
        "You plan",
        None,
        [{"role": "system", "content": "Hi"}, user("a"), assistant("b"), user("c")],
    )
    assert short.shared_tokens == long.shared_tokens == 4
    assert short.ids[:4] == long.ids[:4] == (1, 9, 292, 277)


def test_shared_prefix_refuses_what_it_cannot_hold():
    """A blank preamble, or no turn that could carry it, is the caller's mistake."""
    with pytest.raises(EmptyInput):
        FORMATS["chatml"].render_shared(" \n", "You plan", [user("Hello")])
    with pytest.raises(InputError, match="must begin with a user turn"):
        FORMATS["no system"].render_shared("You plan", None, [assistant("Hi")])
    upper = "{% for m in messages %}{{ m.content | upper }}{% endfor %}"
    with pytest.raises(InputError):
        ChatFormat(WORD, template=upper).render_shared("You plan", None, [user("Hello")])
