"""Real text to measure with: what every Python brings along."""

from __future__ import annotations

import importlib.util
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kvbaton.errors import InputError

_MODULES = ("argparse", "ast", "difflib", "inspect", "mailbox", "tarfile", "turtle", "typing")
_FILLERS = (" a", " the", ".", " .", "a", "\n")
_CHARACTERS_PER_TOKEN = 12


@dataclass(frozen=True, slots=True)
class Text:
    """A text with a name that says what kind it is."""

    name: str
    text: str


@cache
def real_texts() -> tuple[Text, ...]:
    """Texts of several kinds: a language manual in two halves, source code, a licence.

    The licence is left out where the installation does not carry it.
    """
    manual, code = _manual(), _code()
    half = manual.index("\n\n", len(manual) // 2)
    texts = [Text("manual", manual[:half]), Text("code", code), Text("manual-2", manual[half:])]
    licence = Path(sysconfig.get_path("stdlib")) / "LICENSE.txt"
    if licence.is_file():
        texts.append(Text("licence", licence.read_text(encoding="utf-8", errors="replace")))
    return tuple(texts)


def _manual() -> str:
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name].strip() for name in sorted(topics))


def _code() -> str:
    files = [spec.origin for name in _MODULES if (spec := importlib.util.find_spec(name))]
    return "\n\n".join(
        Path(file).read_text(encoding="utf-8") for file in files if file and file.endswith(".py")
    )


def fitted(text: str, wanted: int, count: Callable[[str], int]) -> str:
    """The beginning of a text that ``count`` says is exactly ``wanted`` long.

    The longest beginning that is not longer is filled up with a few short words.

    Parameters
    ----------
    count
        Tokens of a text, or of a prompt that is made of it; does not fall as the text grows,
        but for a few tokens.

    Raises
    ------
    InputError
        No beginning has that length.
    """
    low, high = 1, max(2, min(len(text), _CHARACTERS_PER_TOKEN * wanted))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count(text[:middle]) <= wanted else (low, middle - 1)
    for shorter in range(min(low, 40)):
        for filler in _FILLERS:
            found = _filled(text[: low - shorter], filler, wanted, count)
            if found is not None:
                return found
    raise InputError(
        f"no text gives a prompt of exactly {wanted} tokens",
        hint=f"the shortest prompt of this model has {count(text[:1])} tokens",
    )


def _filled(text: str, filler: str, wanted: int, count: Callable[[str], int]) -> str | None:
    have = count(text)
    while have < wanted:
        text += filler
        before, have = have, count(text)
        if have <= before:
            return None
    return text if have == wanted else None
