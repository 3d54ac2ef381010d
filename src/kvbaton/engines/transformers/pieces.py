"""Where the parts of a conversation end in its rendered text.

A template may trim what it is given and wrap it in any markup, so ends are found by rendering the
same conversation twice, the second time with a mark behind every part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile

from kvbaton.engines.transformers.messages import ChatMessage
from kvbaton.types import Role


@dataclass(frozen=True, slots=True)
class Piece:
    """The text up to ``stop``, from where the piece before it ended, has this role."""

    role: Role
    stop: int


@dataclass(frozen=True, slots=True)
class LaidOut:
    """A rendered conversation; the pieces partition the text."""

    text: str
    pieces: tuple[Piece, ...]


def unused_word(texts: Iterable[str]) -> str:
    """The beginning of a word that occurs in none of the texts."""
    every = "\n".join(texts)
    return next(stem for n in count() if (stem := f"Zq{n}x") not in every)


def marks_for(text: str, messages: Sequence[ChatMessage]) -> dict[str, tuple[int, int]]:
    """A word for each part that has text, which occurs nowhere else."""
    stem = unused_word([text, *(part.text for m in messages for part in m.parts)])
    return {
        f"{stem}{i}x{j}qZ": (i, j)
        for i, m in enumerate(messages)
        for j, part in enumerate(m.parts)
        if part.text
    }


def inner_stops(message: ChatMessage, ends: Sequence[int | None]) -> list[tuple[int, Role]]:
    """Ends of parts that the turn itself does not end with."""
    last = len(message.parts) - 1
    return [
        (stop, part.role)
        for j, (part, stop) in enumerate(zip(message.parts, ends, strict=True))
        if stop is not None and (j < last or part.role is Role.SHARED)
    ]


def partition(stops: Iterable[tuple[int, Role]]) -> list[Piece]:
    """Pieces in the order of the text, none of them empty."""
    pieces: list[Piece] = []
    for stop, role in sorted(stops, key=lambda pair: pair[0]):
        if stop > (pieces[-1].stop if pieces else 0):
            pieces.append(Piece(role, stop))
    return pieces


def follow(
    text: str, rendered: str, marks: Mapping[str, tuple[int, int]]
) -> list[tuple[tuple[int, int], int]]:
    """Ends of parts in ``text``, which is ``rendered`` without marks and perhaps trimmed."""
    placed = sorted((at, m) for m in marks if (at := rendered.find(m)) >= 0)
    runs, cursor = [], 0
    for at, mark in placed:
        runs.append((marks[mark], rendered[cursor:at]))
        cursor = at + len(mark)
    following = [run for _, run in runs[1:]] + [rendered[cursor:]]
    found: list[tuple[tuple[int, int], int]] = []
    position = 0
    for (place, run), after in zip(runs, following, strict=False):
        stop = next(
            (
                position + len(form)
                for form in (run, run.rstrip())
                if text.startswith(form, position)
                and text.startswith(after.rstrip(), position + len(form))
            ),
            None,
        )
        if stop is None:
            break
        found.append((place, stop))
        position = stop
    return found


def alike(a: str, b: str) -> int:
    """Length of the longest common beginning of two texts."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
