"""Incremental detokenization and stop strings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engines import chat_tokenizers as small

from kvbaton.engines.transformers.stream import StopStrings, TextStream
from kvbaton.errors import InputError

TOKENIZERS = {
    "bytes": small.word_tokenizer(),
    "merges": small.merging_tokenizer(),
    "pieces": small.sentencepiece_tokenizer(),
}


@given(st.data(), st.sampled_from(sorted(TOKENIZERS)), st.booleans())
def test_pieces_add_up_to_the_whole_text(data, name, skip_special):
    """Whatever ids are sampled, the pieces together are what decoding all ids gives."""
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=24))
    stream = TextStream(tokenizer, skip_special=skip_special)
    pieces = [stream.push(token_id) for token_id in ids]
    whole = tokenizer.decode(
        ids, skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
    )
    assert "".join(pieces) + stream.finish() == whole


@given(st.text(max_size=20), st.sampled_from(sorted(TOKENIZERS)))
def test_shown_text_is_final_and_whole(text, name):
    """For real text every piece is clean Unicode, and nothing shown is taken back."""
    tokenizer = TOKENIZERS[name]
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    stream = TextStream(tokenizer, skip_special=False)
    pieces = [stream.push(token_id) for token_id in ids] + [stream.finish()]
    if "\N{REPLACEMENT CHARACTER}" not in tokenizer.decode(ids):
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def test_character_of_three_tokens_is_shown_once_it_is_whole():
    """The bytes of one character are held back until the last has come."""
    tokenizer = TOKENIZERS["bytes"]
    ids = tokenizer("€a")["input_ids"]
    stream = TextStream(tokenizer)
    assert [stream.push(token_id) for token_id in ids] == ["", "", "€", "a"]


def test_byte_tokens_wait_for_the_end_of_their_run():
    """A run of byte tokens is decoded as a whole, so it is shown as a whole."""
    tokenizer = TOKENIZERS["pieces"]
    ids = tokenizer("€a", add_special_tokens=False)["input_ids"]
    stream = TextStream(tokenizer)
    assert [stream.push(token_id) for token_id in ids][-4:] == ["", "", "", "€a"]


def test_spaces_between_words_are_kept():
    """The space that only the beginning of a text drops is kept between words."""
    tokenizer = TOKENIZERS["pieces"]
    ids = tokenizer("Hello plan", add_special_tokens=False)["input_ids"]
    stream = TextStream(tokenizer)
    assert "".join([stream.push(i) for i in ids]) + stream.finish() == "Hello plan"


def test_special_tokens_are_not_shown():
    """End-of-turn tokens do not appear in the text, unless asked for."""
    tokenizer = TOKENIZERS["bytes"]
    shown = TextStream(tokenizer, skip_special=False)
    assert (TextStream(tokenizer).push(4), shown.push(4)) == ("", "<|im_end|>")


def search(text, stops):
    """Where a search in the whole text cuts it."""
    hits = [at for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(hits)] if hits else text


@given(
    st.lists(st.text("ab\n", max_size=4), max_size=12),
    st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=4),
)
def test_stop_strings_cut_as_a_search_in_the_whole_text(chunks, stops):
    """However the text is cut into pieces, it stops where a search of the whole would stop."""
    matcher = StopStrings(stops)
    shown = "".join(matcher.push(chunk)[0] for chunk in chunks)
    rest, hit = matcher.finish()
    text = "".join(chunks)
    assert shown + rest == search(text, stops)
    assert (hit is not None) is any(stop in text for stop in stops)
    assert hit is None or text.startswith(hit, len(shown + rest))


@given(
    st.lists(st.text("ab\n", max_size=4), max_size=12),
    st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=4),
)
def test_only_what_could_become_a_stop_string_is_held_back(chunks, stops):
    """Held back text always begins a stop string, or waits for one that began before a hit."""
    matcher = StopStrings(stops)
    shown = ""
    for index, chunk in enumerate(chunks):
        shown += matcher.push(chunk)[0]
        held = "".join(chunks[: index + 1])[len(shown) :]
        if matcher.hit is None and held and not any(stop in held for stop in stops):
            assert any(stop.startswith(held) for stop in stops)


def test_stop_string_across_tokens_is_found():
    """A stop string that arrives in three pieces is found and never shown."""
    matcher = StopStrings(["\n\nUser:"])
    assert matcher.push("Hi\n") == ("Hi", None)
    assert matcher.push("\nUs") == ("", None)
    assert matcher.push("er: a") == ("", "\n\nUser:")
    assert matcher.push("more") == ("", "\n\nUser:")


def test_unfinished_stop_string_is_shown_at_the_end():
    """What was held back in vain is part of the text."""
    matcher = StopStrings(["stop"])
    assert matcher.push("a sto") == ("a ", None)
    assert matcher.finish() == ("sto", None)


def test_stop_string_that_begins_earlier_wins():
    """A longer stop string that began earlier is waited for, as a search would find it first."""
    matcher = StopStrings(["b", "abc"])
    assert matcher.push("ab") == ("", None)
    assert matcher.push("c") == ("", "abc")


def test_empty_stop_strings_are_refused():
    """An empty stop string would stop everything, so it is an input error."""
    with pytest.raises(InputError):
        StopStrings([""])
