"""Real text to measure with: what every Python brings along, and two texts of our own."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distributions
from importlib.resources import files
from pathlib import Path

from kvbaton.errors import InputError

_MODULES = ("argparse", "ast", "difflib", "inspect", "mailbox", "tarfile", "turtle", "typing")
_ASKED = ("shutil", "textwrap", "statistics", "random", "heapq", "bisect", "calendar", "inspect")
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


@cache
def text_kinds() -> tuple[Text, ...]:
    """One text of each kind: prose, code, licence, dialogue, Chinese.

    Prose is a language manual; licences are those of Python and of installed packages; the
    dialogue is one of ours and goes on with questions and answers about the library; the Chinese
    text is ours and has about 2,000 characters.  A text that is too short for a measurement is
    for the measurement to leave out.
    """
    manual, code = real_texts()[:2]
    return (
        Text("prose", manual.text),
        Text("code", code.text),
        Text("licence", _licences()),
        Text("dialogue", _own("dialogue.md") + _questions()),
        Text("chinese", _own("chinese.md")),
    )


def _own(name: str) -> str:
    return files("kvbaton").joinpath("data", "texts", name).read_text(encoding="utf-8")


def _licences() -> str:
    """Licences of Python and of installed packages, each once, in the order of their names."""
    texts: dict[str, None] = {}
    own = Path(sysconfig.get_path("stdlib")) / "LICENSE.txt"
    if own.is_file():
        texts[own.read_text(encoding="utf-8", errors="replace").strip()] = None
    for distribution in sorted(distributions(), key=lambda d: str(d.metadata["Name"]).lower()):
        for file in distribution.files or ():
            if file.name.upper().startswith(("LICENSE", "LICENCE", "COPYING")):
                place = Path(str(file.locate()))
                if place.is_file():
                    text = place.read_text(encoding="utf-8", errors="replace").strip()
                    texts[text] = None
    return "\n\n".join(texts)


def _questions() -> str:
    """Questions about functions of the library, answered by their documentation."""
    turns = []
    for module_name in _ASKED:
        module = importlib.import_module(module_name)
        for name, thing in sorted(vars(module).items()):
            answer = inspect.getdoc(thing) if inspect.isfunction(thing) else None
            if answer and not name.startswith("_") and thing.__module__ == module_name:
                question = f"User: What does {name} do, in the module {module_name}?"
                turns.append(f"{question}\n\nAssistant: {answer}\n\nUser: Thank you.")
    return "\n\n".join(turns)


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
