"""From sampled token ids to text, one token at a time.

``TextStream`` turns ids into text that is final: what it has returned never changes, whatever
follows.  ``StopStrings`` finds stop strings in a stream of text, however it is cut.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from kvbaton.errors import InputError

_BYTE_TOKEN = re.compile(r"\A<0x[0-9A-F]{2}>\Z")
_BROKEN = "\N{REPLACEMENT CHARACTER}"


def decode(tokenizer: Any, ids: Sequence[int], *, skip_special: bool) -> str:
    """Text of ``ids`` without any clean-up of spaces.

    Raises
    ------
    InputError
        An id that the tokenizer does not have.
    """
    try:
        text = tokenizer.decode(
            list(ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
        )
    except (OverflowError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"ids that the tokenizer cannot decode: {error}") from error
    return str(text)


def special_ids(tokenizer: Any) -> frozenset[int]:
    """Ids of the tokens that ``skip_special`` leaves out."""
    added = tokenizer.added_tokens_decoder.items()
    return frozenset(token_id for token_id, token in added if token.special)


def special_tokens(tokenizer: Any) -> frozenset[str]:
    """Their texts."""
    added = tokenizer.added_tokens_decoder.values()
    return frozenset(str(token) for token in added if token.special and str(token))


class TextStream:
    """Incremental detokenizer: the pieces returned add up to the text of all ids.

    A token is decoded together with the tokens before it back to the last clean boundary, so that
    word-initial spaces come out right.  What could still change is held back: an incomplete UTF-8
    sequence, and a run of byte tokens (``<0xE4>``), whose decoder judges the run as a whole.

    Parameters
    ----------
    tokenizer
        A Hugging Face tokenizer.
    skip_special
        Leave special tokens out of the text.
    """

    def __init__(self, tokenizer: Any, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._unseen = special_ids(tokenizer) if skip_special else frozenset()
        self._window: list[int] = []
        self._known = 0
        self._emitted = 0

    def push(self, token_id: int) -> str:
        """Add an id and return the text that has become final, possibly empty."""
        self._window.append(token_id)
        if token_id in self._unseen or self._is_byte(token_id):
            return ""
        text = self._decode(self._window)
        if text.endswith(_BROKEN) or len(text) <= self._emitted:
            return ""
        new = text[self._emitted :]
        self._window = self._window[self._known :]
        self._known = len(self._window)
        self._emitted = len(self._decode(self._window))
        return new

    def finish(self) -> str:
        """The text that was held back.  The stream is empty afterwards."""
        new = self._decode(self._window)[self._emitted :]
        self._window, self._known, self._emitted = [], 0, 0
        return new

    def _decode(self, ids: Sequence[int]) -> str:
        return decode(self._tokenizer, ids, skip_special=self._skip_special)

    def _is_byte(self, token_id: int) -> bool:
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        return isinstance(token, str) and _BYTE_TOKEN.match(token) is not None


class StopStrings:
    """Finds the first of several stop strings in a stream of text.

    The text is cut before the leftmost occurrence of any stop string, exactly as a search in the
    whole text would cut it, whatever the pieces are.  Only text that could still turn out to be
    (part of) a stop string is held back.

    Raises
    ------
    InputError
        A stop string is empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if any(not stop for stop in stops):
            raise InputError("a stop string must not be empty")
        self._stops = tuple(sorted(set(stops), key=lambda stop: (len(stop), stop)))
        self._held = ""
        self._hit: str | None = None

    @property
    def hit(self) -> str | None:
        """The stop string that was found, or None."""
        return self._hit

    def push(self, text: str) -> tuple[str, str | None]:
        """Add text; return the text that is safe to show and the stop string that was hit.

        Of stop strings that begin at the same place the shortest is reported.  After a hit
        nothing more is returned.
        """
        if self._hit is not None:
            return "", self._hit
        self._held += text
        found = self._first_match()
        partial = self._first_partial()
        if found is not None and found[0] <= partial:
            safe, self._held, self._hit = self._held[: found[0]], "", found[1]
            return safe, self._hit
        safe, self._held = self._held[:partial], self._held[partial:]
        return safe, None

    def finish(self) -> tuple[str, str | None]:
        """Return what was held back, cut at a stop string if it holds one."""
        if self._hit is None:
            found = self._first_match()
            if found is not None:
                self._held, self._hit = self._held[: found[0]], found[1]
        safe, self._held = self._held, ""
        return safe, self._hit

    def _first_match(self) -> tuple[int, str] | None:
        hits = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        return min(hits, key=lambda hit: (hit[0], len(hit[1])), default=None)

    def _first_partial(self) -> int:
        """Where the first unfinished occurrence of a stop string begins."""
        longest = len(self._stops[-1]) if self._stops else 1
        for at in range(max(0, len(self._held) - longest + 1), len(self._held)):
            tail = self._held[at:]
            if any(len(stop) > len(tail) and stop.startswith(tail) for stop in self._stops):
                return at
        return len(self._held)
