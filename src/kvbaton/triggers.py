"""When a turn ends in a hand-off: asked in the decode loop, after every token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvbaton.engines.transformers.tools import find_tool_call
from kvbaton.errors import InputError


@dataclass(frozen=True, slots=True)
class Progress:
    """What a trigger sees: the text so far, the ids sampled so far, and whether the turn ended."""

    text: str
    ids: tuple[int, ...]
    ended: bool


@dataclass(frozen=True, slots=True)
class Fired:
    """A trigger that fired, and the receiver that it names (empty: anybody)."""

    trigger: str
    receiver: str = ""


Trigger = Callable[[Progress], Fired | None]


def end_of_turn(receiver: str = "") -> Trigger:
    """Hand off when the turn has ended."""
    return lambda progress: Fired("end-of-turn", receiver) if progress.ended else None


def marker(text: str, receiver: str = "") -> Trigger:
    """Hand off as soon as the answer contains ``text``.

    Raises
    ------
    InputError
        The marker is empty: it would fire at once.
    """
    if not text:
        raise InputError("a marker must not be empty")
    return lambda progress: Fired("marker", receiver) if text in progress.text else None


def tool_call(receiver: str = "") -> Trigger:
    """Hand off as soon as the answer holds a complete tool call."""
    return lambda progress: Fired("tool-call", receiver) if find_tool_call(progress.text) else None


def predicate(test: Callable[[Progress], bool], receiver: str = "") -> Trigger:
    """Hand off as soon as ``test`` is true."""
    return lambda progress: Fired("predicate", receiver) if test(progress) else None


def router(route: Callable[[Progress], str | None]) -> Trigger:
    """Hand off to the receiver that ``route`` names, as soon as it names one."""

    def ask(progress: Progress) -> Fired | None:
        receiver = route(progress)
        return Fired("router", receiver) if receiver else None

    return ask
