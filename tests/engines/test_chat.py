"""Chat messages to token ids and back, on small tokenizers whose ids are written out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engines import chat_tokenizers as small
from transformers import GenerationConfig

from kvbaton.engines.transformers.chat import ChatFormat, eos_ids
from kvbaton.types import Role

WORD = small.word_tokenizer()
MERGING = small.merging_tokenizer()
PIECES = small.sentencepiece_tokenizer()
FORMATS = {name: ChatFormat(WORD, template=source) for name, source in small.ALL.items()}
HI = (281,)

# Text without white space at its ends, so that no template can trim it.
said = st.text(st.sampled_from("ab. \n<>{}é"), max_size=12).map(lambda t: f"a{t}b")


def user(content):
    """A user's message."""
    return {"role": "user", "content": content}


def assistant(content):
    """An assistant's message."""
    return {"role": "assistant", "content": content}


def labels(rendered):
    """Roles with the tokens they cover."""
    start = rendered.spans[0].run.first
    return [
        (
            span.role.value,
            small.tokens_of(WORD, rendered.ids[span.run.first - start : span.run.stop - start]),
        )
        for span in rendered.spans
    ]


OPENINGS = {
    "chatml": (3, 267, 209, 276, 277, 4, 209, 3, 268, 209, 279, 280, 4, 209, 3, 269, 209),
    "default system": (3, 267, 209, 276, 277, 4, 209, 3, 268, 209, 279, 280, 4, 209, 3, 269, 209),
    "no system": (1, 3, 268, 209, 276, 277, 209, 209, 279, 280, 4, 209, 3, 271, 209),
    "drops system": (3, 268, 209, 276, 277, 209, 209, 279, 280, 4, 209, 3, 269, 209),
    "with tools": (3, 267, 209, 276, 277, 4, 209, 3, 268, 209, 279, 280, 4, 209, 3, 269, 209),
    "plain": (272, 36, 292, 277, 209, 209, 273, 36, 291, 280, 209, 209, 274, 36),
    "strips reasoning": (3, 267, 209, 276, 277, 4, 209, 3, 268, 209, 279, 280, 4, 209, 3, 269, 209),
    "opens reasoning": (1, 276, 277, 9, 279, 280, 10, 38, 287, 40, 209),
    "system last": (1, 9, 292, 277, 209, 209, 279, 280, 231, 10),
}

CHATML_SUFFIX = (4, 209, 3, 268, 209, 276, 278, 209, 209, 282, 283, 4, 209, 3, 269, 209)
SUFFIXES = {
    "chatml": CHATML_SUFFIX,
    "default system": CHATML_SUFFIX,
    "no system": (4, 209, 3, 268, 209, 276, 278, 209, 209, 282, 283, 4, 209, 3, 271, 209),
    "drops system": CHATML_SUFFIX,
    "dated": (7, 5, 268, 6, 209, 209, 276, 278, 209, 209, 282, 283, 7, 5, 269, 6, 209, 209),
    "with tools": CHATML_SUFFIX,
    "plain": (209, 209, 273, 36, 292, 278, 209, 209, 282, 283, 209, 209, 274, 36),
    "strips reasoning": CHATML_SUFFIX,
    "opens reasoning": (2, 9, 276, 278, 209, 209, 282, 283, 10, 38, 287, 40, 209),
    "system last": (2, 9, 292, 278, 209, 209, 282, 283, 231, 10),
}


@pytest.mark.parametrize("name", OPENINGS)
def test_opening_has_golden_ids(name):
    """The opening of a conversation has these ids under every version of the libraries."""
    assert FORMATS[name].opening("You plan", "Hello there").ids == OPENINGS[name]


def test_opening_without_system_prompt_gets_the_default():
    """A template's default system prompt is written and labelled when none is given."""
    opened = FORMATS["default system"].opening(None, "Hello")
    assert opened.ids == (3, 267, 209, 285, 286, 4, 209, 3, 268, 209, 279, 4, 209, 3, 269, 209)
    assert labels(opened) == [
        ("system", "<|im_start|> system Ċ Be Ġbrief"),
        ("task", "<|im_end|> Ċ <|im_start|> user Ċ Hello <|im_end|> Ċ"),
        ("generated", "<|im_start|> assistant Ċ"),
    ]


@pytest.mark.parametrize("name", SUFFIXES)
def test_suffix_of_a_cut_turn_has_golden_ids(name):
    """A turn without its end-of-turn token is closed before the new user turn opens."""
    chat = FORMATS[name]
    conversation = chat.opening(None, "Hello").ids + HI
    suffix = chat.suffix(conversation, chat.handoff_turn("You code", "Go on"))
    assert suffix.ids == SUFFIXES[name]
    assert suffix.closed == 0


@pytest.mark.parametrize("name", SUFFIXES)
def test_suffix_of_a_whole_turn_does_not_close_it_twice(name):
    """After a sampled end-of-turn token the suffix goes on right behind that token."""
    chat = FORMATS[name]
    end = chat.stop_ids[-1]
    conversation = (*chat.opening(None, "Hello").ids, *HI, end)
    suffix = chat.suffix(conversation, chat.handoff_turn("You code", "Go on"))
    golden = SUFFIXES[name]
    assert suffix.ids == (golden[1:] if golden[0] == end else golden)


def test_suffix_never_renders_the_conversation_again():
    """A template that strips earlier reasoning cannot touch the ids of the conversation."""
    chat = FORMATS["strips reasoning"]
    thought = tuple(WORD("<think>\nHello\n</think>\n\nHi")["input_ids"])
    conversation = chat.opening(None, "Hello").ids + thought + (4,)
    suffix = chat.suffix(conversation, [user("Go on")])
    assert suffix.ids == (209, 3, 268, 209, 282, 283, 4, 209, 3, 269, 209)
    assert "think" in chat.text_of(conversation + suffix.ids)
    again = chat.render([user("Hello"), assistant("<think>\nHello\n</think>\n\nHi"), user("Go on")])
    assert "think" not in again.text


def test_another_stop_token_closes_the_turn():
    """A turn that ended with any of the model's stop tokens is not closed a second time."""
    config = GenerationConfig(eos_token_id=[7, 8])
    chat = ChatFormat(WORD, template=small.DATED, generation_config=config)
    suffix = chat.suffix([1, 281, 8], [user("Go on")])
    assert suffix.ids[:2] == (5, 268)
    assert chat.stop_ids == (2, 7, 8)


def test_overrun_closing_is_not_repeated():
    """Ids that were sampled beyond the end of the turn and belong to its closing are kept."""
    suffix = FORMATS["chatml"].suffix([3, 269, 209, 281, 4, 209], [user("Go on")])
    assert suffix.closed == 2
    assert suffix.ids == (3, 268, 209, 282, 283, 4, 209, 3, 269, 209)


def test_turn_that_ended_with_the_next_opening_is_not_opened_twice():
    """Where a turn has no closing and ends with the token of the next role, that token counts."""
    source = "{% for m in messages %}{{ '[INST]' if m.role == 'user' else '[/INST]' }}"
    chat = ChatFormat(
        WORD,
        template=source + "{{ m.content }}{% endfor %}{{ '[/INST]' }}",
        generation_config=GenerationConfig(eos_token_id=9),
    )
    assert chat.suffix([9, 279, 10, 281, 9], [user("Go on")]).ids == (282, 283, 10)
    assert chat.suffix([9, 279, 10, 281], [user("Go on")]).ids == (9, 282, 283, 10)


def test_plain_turn_that_ran_into_the_next_opening_is_not_repeated():
    """Where the stop string ``User:`` itself was sampled, the next turn opens only once."""
    chat = FORMATS["plain"]
    conversation = (*chat.opening(None, "Hello").ids, *HI, 209, 209, 273, 36)
    suffix = chat.suffix(conversation, [user("Go on")])
    assert suffix.closed == 4
    assert chat.text_of(suffix.ids) == " Go on\n\nAssistant:"


@given(st.lists(said, min_size=2, max_size=4), st.sampled_from(sorted(small.KEEPS_HISTORY)), said)
def test_ids_and_suffix_spell_the_whole_conversation(turns, name, answer):
    """Where a template keeps history, ids plus suffix decode to its text of the conversation."""
    chat = FORMATS[name]
    messages = [user(turns[0])]
    ids = chat.render(messages).ids
    for turn in turns[1:]:
        messages += [assistant(answer), user(turn)]
        sampled = answer if chat.has_template else f" {answer}"
        ids += tuple(WORD(sampled)["input_ids"])
        ids += chat.suffix(ids, messages[-1:]).ids
    assert chat.text_of(ids) == chat.render(messages).text


@given(
    st.lists(
        st.tuples(st.sampled_from(["user", "assistant", "tool", "critic"]), said),
        min_size=1,
        max_size=6,
    ),
    st.booleans(),
    st.sampled_from(["chatml", "default system", "dated", "with tools", "plain"]),
)
def test_spans_partition_the_positions(turns, prompt, name):
    """Spans cover every position once, in order, whatever the messages are."""
    messages = [{"role": role, "content": content} for role, content in turns]
    rendered = FORMATS[name].render(messages, add_generation_prompt=prompt)
    position = 0
    for span in rendered.spans:
        assert span.run.first == position
        assert span.run.count > 0
        position = span.run.stop
    assert position == len(rendered.ids)


def test_spans_follow_the_messages():
    """Each message has its own span with the markup around it; reasoning has spans of its own."""
    rendered = FORMATS["chatml"].render(
        [
            {"role": "system", "content": "You plan"},
            user("Hello"),
            assistant("<think>Hi</think>done"),
            {"role": "tool", "content": "Hello"},
            {"role": "critic", "content": "Hi"},
        ]
    )
    assert labels(rendered) == [
        ("system", "<|im_start|> system Ċ You Ġplan <|im_end|> Ċ"),
        ("task", "<|im_start|> user Ċ Hello <|im_end|> Ċ"),
        ("generated", "<|im_start|> assistant Ċ"),
        ("reasoning", "< think > Hi < / think >"),
        ("generated", "done <|im_end|> Ċ"),
        ("tool", "<|im_start|> tool Ċ Hello <|im_end|> Ċ"),
        ("history", "<|im_start|> c r i t i c Ċ Hi <|im_end|> Ċ"),
        ("generated", "<|im_start|> assistant Ċ"),
    ]


def test_spans_survive_a_template_that_moves_the_system_prompt():
    """Where the system prompt moves to the last user turn, it is labelled there."""
    rendered = FORMATS["system last"].render(
        [{"role": "system", "content": "You plan"}, user("Hello"), assistant("Hi"), user("Go on")]
    )
    assert labels(rendered) == [
        ("task", "<bos> [INST] ĠHello"),
        ("generated", "Ġ [/INST] Ġ H i <eos>"),
        ("system", "[INST] ĠYou Ġplan"),
        ("task", "Ċ Ċ Go Ġon Ġ [/INST]"),
    ]


def test_suffix_spans_begin_behind_the_conversation():
    """Spans of a suffix are at positions of the whole conversation."""
    chat = FORMATS["chatml"]
    suffix = chat.suffix(list(range(3, 103)), [{"role": "tool", "content": "Hi"}, user("Go on")])
    assert suffix.spans[0].run.first == 100
    assert suffix.spans[-1].run.stop == 100 + len(suffix.ids)
    assert labels(suffix) == [
        ("generated", "<|im_end|> Ċ"),
        ("tool", "<|im_start|> tool Ċ Hi <|im_end|> Ċ"),
        ("task", "<|im_start|> user Ċ Go Ġon <|im_end|> Ċ"),
        ("generated", "<|im_start|> assistant Ċ"),
    ]


def test_answer_spans_find_the_reasoning():
    """Sampled reasoning is a span of its own, also where the prompt opened it."""
    chat = FORMATS["chatml"]
    ids = WORD("<think>Hi</think>done")["input_ids"]
    whole = chat.answer_spans(ids, first=10)
    assert [(s.role, s.run.first, s.run.count) for s in whole] == [
        (Role.REASONING, 10, 8),
        (Role.GENERATED, 18, 1),
    ]
    opened = chat.answer_spans(WORD("Hi</think>done")["input_ids"], first=0, inside_reasoning=True)
    assert [(s.role, s.run.count) for s in opened] == [(Role.REASONING, 5), (Role.GENERATED, 1)]
    cut = chat.answer_spans(WORD("Hi")["input_ids"], first=0, inside_reasoning=True)
    assert [(s.role, s.run.count) for s in cut] == [(Role.REASONING, 1)]


def test_prompt_that_opens_reasoning_says_so():
    """The engine learns from the prompt whether the answer begins inside of reasoning."""
    assert FORMATS["opens reasoning"].opening(None, "Hello").opens_reasoning
    assert not FORMATS["chatml"].opening(None, "Hello").opens_reasoning
    assert not FORMATS["chatml"].opening(None, "What does <think> mean?").opens_reasoning


# --- what a format says about itself -------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "has_system", "default"),
    [
        ("chatml", True, None),
        ("default system", True, "Be brief"),
        ("no system", False, None),
        ("drops system", False, None),
        ("dated", True, None),
        ("plain", True, None),
        ("system last", True, None),
    ],
)
def test_system_role_is_found_out(name, has_system, default):
    """Whether a template shows a system prompt, and which one it adds, is found by rendering."""
    chat = FORMATS[name]
    assert chat.has_system_role is has_system
    assert chat.default_system_prompt == default
    assert chat.starts_with_system([user("Hello")]) is (default is not None)
    assert chat.starts_with_system([{"role": "system", "content": "You plan"}, user("Hello")])


def test_default_that_only_holds_a_date_is_no_system_prompt():
    """A system turn with nothing but today's date does not count as a system prompt."""
    assert "Today" in FORMATS["dated"].opening(None, "Hello").text
    assert FORMATS["dated"].default_system_prompt is None


def test_stop_ids_join_model_tokenizer_and_template():
    """Every id that may end a turn is known, from whichever source."""
    assert eos_ids(GenerationConfig(eos_token_id=7), WORD) == (2, 7)
    assert eos_ids(None, WORD) == (2,)
    assert FORMATS["chatml"].stop_ids == (2, 4)
    assert FORMATS["plain"].stop_ids == (2,)


def test_stop_strings_guard_the_plain_format_only():
    """A base model is stopped where it begins to speak for somebody else."""
    assert "\n\nUser:" in FORMATS["plain"].stop_strings
    assert FORMATS["chatml"].stop_strings == ()


def test_template_of_the_tokenizer_is_used():
    """Without an explicit template the tokenizer's own is used; the explicit one wins."""
    tokenizer = small.word_tokenizer()
    tokenizer.chat_template = small.CHATML
    assert ChatFormat(tokenizer).has_template
    assert ChatFormat(tokenizer).opening(None, "Hello").ids[:3] == (3, 268, 209)
    other = ChatFormat(tokenizer, template=small.SYSTEM_LAST)
    assert other.opening(None, "Hello").ids[:2] == (1, 9)


def test_plain_answer_with_its_space_reads_the_same():
    """The space that a model samples behind the colon is not doubled when its words come back."""
    chat = FORMATS["plain"]
    back = [user("Hello"), assistant(" Hi"), user("Go on")]
    assert chat.render(back).text == "User: Hello\n\nAssistant: Hi\n\nUser: Go on\n\nAssistant:"


def test_options_reach_the_template():
    """Further variables steer the template, as ``enable_thinking`` does."""
    source = small.CHATML + "{% if thinking is false %}{{ '<think></think>' }}{% endif %}"
    chat = ChatFormat(WORD, template=source, options={"thinking": False})
    assert chat.opening(None, "Hello").text.endswith("assistant\n<think></think>")


# --- the space that some tokenizers put first ----------------------------------------------------


def test_suffix_gets_no_space_that_only_begins_a_text():
    """A tokenizer that opens every text with a space does not do so in the middle of one."""
    chat = ChatFormat(PIECES)
    conversation = chat.opening(None, "Hello").ids
    conversation += tuple(PIECES("Hello", add_special_tokens=False)["input_ids"])
    suffix = chat.suffix(conversation, [user("Hello")])
    assert small.tokens_of(PIECES, suffix.ids[:6]) == "<0x0A> <0x0A> User : ▁ Hello"
    whole = chat.render([user("Hello"), assistant("Hello"), user("Hello")])
    assert chat.text_of(conversation + suffix.ids) == whole.text
