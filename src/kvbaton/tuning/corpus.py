"""Texts to search with, and others to verify with: a plan is judged on what it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvbaton.bench.kl import corpus_digest, long_enough
from kvbaton.bench.texts import Text, real_texts, text_kinds
from kvbaton.errors import InputError


@dataclass(frozen=True)
class Corpus:
    """Texts for the search, and those that are held out."""

    search: tuple[Text, ...]
    held_out: tuple[Text, ...]

    @property
    def digest(self) -> str:
        """Digest of the texts that were held out: those that records state figures of."""
        return corpus_digest(self.held_out)


def built_in_corpus(engine: Any, tokens: int) -> Corpus:
    """Prose, code and a dialogue from elsewhere to search with; five kinds of text held out.

    With one text alone a search was found to choose worse plans than none.

    Texts with fewer than ``tokens`` tokens are left out.

    Raises
    ------
    InputError
        All are too short.
    """
    kinds = {text.name: text.text for text in text_kinds()}
    seen = (
        real_texts()[2],
        Text("code-2", _second_half(kinds["code"])),
        Text("dialogue-2", _second_half(kinds["dialogue"])),
    )
    return _long(engine, Corpus(seen, text_kinds()), tokens)


def own_corpus(engine: Any, texts: Sequence[Text], tokens: int) -> Corpus:
    """The user's texts: first halves held out, second halves to search with.

    Raises
    ------
    InputError
        There are no texts, or their halves are too short.
    """
    if not texts:
        raise InputError("there are no texts to measure with")
    held_out = tuple(Text(one.name, one.text[: _middle(one.text)]) for one in texts)
    seen = tuple(Text(f"{one.name}-2", _second_half(one.text)) for one in texts)
    return _long(engine, Corpus(seen, held_out), tokens)


def read_texts(paths: Sequence[Path]) -> tuple[Text, ...]:
    """Texts from files in UTF-8, named by the files.

    Raises
    ------
    InputError
        A file cannot be read, or is no text.
    """
    texts = []
    for path in paths:
        try:
            texts.append(Text(path.name, path.read_text(encoding="utf-8")))
        except OSError as error:
            raise InputError(
                f"the text cannot be read: {error.strerror or error}", at=str(path)
            ) from error
        except UnicodeDecodeError as error:
            raise InputError("the file is no text in UTF-8", at=str(path)) from error
    return tuple(texts)


def _long(engine: Any, corpus: Corpus, tokens: int) -> Corpus:
    kept = Corpus(
        long_enough(engine, corpus.search, tokens), long_enough(engine, corpus.held_out, tokens)
    )
    if not (kept.search and kept.held_out):
        raise InputError(
            f"no text has {tokens} tokens to search with and {tokens} others to verify with",
            hint="give longer texts, or fewer --tokens",
        )
    return kept


def _middle(text: str) -> int:
    """Where the second half begins: behind a line, if there are lines."""
    half = len(text) // 2
    return text.find("\n", half) + 1 or half


def _second_half(text: str) -> str:
    return text[_middle(text) :]
