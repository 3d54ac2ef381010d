"""Laws of the chat format on SmolLM2's real tokenizer."""

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.engines import chat_tokenizers as small

from kvbaton.context import Context
from kvbaton.engines.transformers.chat import ChatFormat
from kvbaton.engines.transformers.stream import TextStream

real = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
letters = st.characters(exclude_categories=["C"], include_characters="\n\t")
words = st.text(letters, min_size=1, max_size=30)
inner = words.map(lambda text: f"a{text}b").filter(lambda text: "<|" not in text)
roles = st.sampled_from(["", " ", "\n", "\n\n", "  ", "1", "."]).flatmap(
    lambda head: words.map(lambda text: head + text)
)
SOURCES = {"own": None} | {
    name: source
    for name, source in small.KEEPS_HISTORY.items()
    if name in ("chatml", "no system", "drops system", "with tools")
}


def assume_spelled(tokenizer, *texts):
    """Leave out texts with bytes that the vocabulary has no token for."""
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assume(tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text)


@pytest.fixture
def chats(tokenizer):
    """The real tokenizer under its own template and under those of other families."""
    return {name: ChatFormat(tokenizer, template=source) for name, source in SOURCES.items()}


def test_own_opening_has_golden_ids(tokenizer):
    """SmolLM2's own template writes its default system prompt, with these ids."""
    chat = ChatFormat(tokenizer)
    assert chat.default_system_prompt == (
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    )
    assert chat.opening("You plan.", "Hello there").ids == (
        1, 9690, 198, 2683, 1252, 30, 2, 198, 1, 4093, 198, 19556, 665, 2, 198, 1, 520, 9531, 198,
    )  # fmt: skip
    assert chat.stop_ids == (2,)


@real
@given(st.sampled_from(sorted(SOURCES)), st.lists(inner, min_size=3, max_size=3), st.booleans())
def test_ids_and_suffix_spell_the_conversation(chats, tokenizer, name, turns, ended):
    """Ids plus suffix decode to the template's text of the whole conversation."""
    assume_spelled(tokenizer, *turns)
    chat, (asked, answer, then) = chats[name], turns
    ids = chat.opening(None, asked).ids
    ids += tuple(tokenizer(answer, add_special_tokens=False)["input_ids"])
    ids += (tokenizer.convert_tokens_to_ids("<|im_end|>"),) if ended else ()
    ids += chat.suffix(ids, [{"role": "user", "content": then}]).ids
    messages = [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": then},
    ]
    assert chat.text_of(ids) == chat.render(messages).text


@real
@given(st.sampled_from(sorted(SOURCES)), st.lists(st.none() | roles, min_size=2, max_size=2), inner)
def test_agents_share_the_preamble(chats, tokenizer, name, two_roles, content):
    """Roles that begin with spaces, line ends or digits leave the ids of the preamble alone."""
    assume_spelled(tokenizer, content, two_roles[0] or "")
    preamble = Context(notes=["The lab is in Hall 7."], facts={"code": 41}).text
    messages = [{"role": "user", "content": content}]
    one, other = (chats[name].render_shared(preamble, role, messages) for role in two_roles)
    shared = one.shared_tokens
    assert shared == other.shared_tokens > 0
    assert one.ids[:shared] == other.ids[:shared]
    assert chats[name].text_of(one.ids[:shared]).endswith(preamble)
    assert chats[name].text_of(one.ids) == one.text


@real
@given(st.text(letters, max_size=40))
def test_streamed_text_is_the_text(tokenizer, text):
    """Pieces of streamed text add up to the text, whatever the script."""
    assume_spelled(tokenizer, text)
    stream = TextStream(tokenizer, skip_special=False)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert "".join(map(stream.push, ids)) + stream.finish() == text


@real
@given(st.data())
def test_streamed_ids_are_the_decoded_ids(tokenizer, data):
    """Any ids at all, also those that are no text, stream to what they decode to."""
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=20))
    stream = TextStream(tokenizer)
    whole = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert "".join(map(stream.push, ids)) + stream.finish() == whole
