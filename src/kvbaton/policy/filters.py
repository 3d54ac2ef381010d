"""Text gates: what the tokens say passes the user's filters, because their KV passes none.

A filter is asked for the text that a cache stands for, before anything is exported and before
anything is attached.  It lets the text pass, gives it back without what may not leave, or refuses
it.  Filters stand in an order; each sees what the one before has left.  A filter that fails, or
answers with anything else, refuses: nothing passes by accident.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kvbaton.errors import InputError
from kvbaton.types import Reason, ReasonCode

MAX_NAME_CHARS = 64
MAX_PATTERNS = 256
MAX_PATTERN_CHARS = 4096
ROUNDS = 8
"""How often a text is searched anew after a redaction, before it is refused."""

Action = Literal["redact", "refuse"]
ACTIONS: tuple[Action, ...] = ("redact", "refuse")


@dataclass(frozen=True, slots=True)
class Passed:
    """The text may be passed on as it is."""


@dataclass(frozen=True, slots=True)
class Redact:
    """The text as it may be passed on, and from how many places something was taken out.

    Where ``text`` is what the filter was given, nothing was, and the text has passed.
    """

    text: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Refuse:
    """The text may not be passed on in any form.

    The sentence is for whoever wrote the filter: it goes into no receipt, and so it may say what
    was found.
    """

    sentence: str = ""


Ruling = Passed | Redact | Refuse
"""A filter's answer."""

TextFilter = Callable[[str], Ruling]
"""Called with a text.  Its ``name`` stands in receipts; without one, a function's own name."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Which filter refused, and its own words for it."""

    filter: str
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class FilterOutcome:
    """What several filters have left of a text.

    ``redacted`` are the names of those that took something out, in their order, and ``counts``
    from how many places each did.  After a refusal ``text`` is empty.
    """

    text: str
    redacted: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    refusal: Refusal | None = None

    @property
    def passed(self) -> bool:
        """Whether all filters let the text pass as it was."""
        return self.refusal is None and not self.redacted

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """What a receipt says: the filters by name, nothing of the text or of their own words."""
        found = [
            Reason(
                ReasonCode.FILTER_REDACTED,
                f"the filter {name!r} took something out of the text, at {_places(count)}",
            )
            for name, count in zip(self.redacted, self.counts, strict=True)
        ]
        if self.refusal is not None:
            sentence = f"the filter {self.refusal.filter!r} refused the text"
            found.append(Reason(ReasonCode.FILTER_REFUSED, sentence))
        return tuple(found)


def _places(count: int) -> str:
    return "1 place" if count == 1 else f"{count} places"


def run_filters(filters: Sequence[TextFilter], text: str) -> FilterOutcome:
    """Ask filters in their order, each for what the one before has left.

    The first refusal ends it.  A filter that raises, or answers with anything but ``Passed``,
    ``Redact`` or ``Refuse``, has refused; what it raised is not kept.

    Parameters
    ----------
    filters
        Callables; see :data:`TextFilter`.
    text
        What would be passed on.

    Raises
    ------
    InputError
        A filter's name cannot stand in a receipt.
    """
    redacted: list[tuple[str, int]] = []
    for one in filters:
        name = filter_name(one)
        ruling = _ruling(one, text)
        if isinstance(ruling, Refuse):
            names, counts = _apart(redacted)
            return FilterOutcome("", names, counts, Refusal(name, ruling.sentence))
        if isinstance(ruling, Redact) and ruling.text != text:
            redacted.append((name, ruling.count))
            text = ruling.text
    return FilterOutcome(text, *_apart(redacted))


def _apart(redacted: Sequence[tuple[str, int]]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    return tuple(name for name, _ in redacted), tuple(count for _, count in redacted)


def _ruling(asked: TextFilter, text: str) -> Ruling:
    """The answer of a filter; a refusal where it fails or answers with something else."""
    try:
        found: Any = asked(text)
    except Exception as error:  # noqa: BLE001 - the user's code: what fails has not passed
        return Refuse(f"the filter failed with {type(error).__name__}")
    if isinstance(found, Passed | Refuse) or (isinstance(found, Redact) and _is_sound(found)):
        return found
    return Refuse(f"the answer, a {type(found).__name__}, is no sound Passed, Redact or Refuse")


def _is_sound(found: Redact) -> bool:
    """Whether a redaction holds Unicode text and a count of places."""
    if type(found.text) is not str or type(found.count) is not int or found.count < 1:
        return False
    try:
        found.text.encode()
    except UnicodeEncodeError:
        return False
    return True


def filter_name(asked: TextFilter) -> str:
    """How receipts call a filter: its ``name``, or that of the function or class.

    Raises
    ------
    InputError
        It is none of 1 to 64 printable characters.
    """
    name = getattr(asked, "name", None) or getattr(asked, "__name__", None) or type(asked).__name__
    return _checked_name(name)


def _checked_name(name: Any, at: str = "$.name") -> str:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable():
        raise InputError(
            f"a filter's name is 1 to {MAX_NAME_CHARS} printable characters, not {name!r:.90}",
            at=at,
        )
    return name


# --- filters of patterns ------------------------------------------------------------------------


@dataclass(frozen=True)
class PatternFilter:
    """Regular expressions whose matches are taken out, or refused.

    A text that it lets pass, or gives back, holds no match of any pattern: where a redaction has
    put together what matches anew, it is searched again, and refused after ``ROUNDS`` rounds.

    Python's ``re`` cannot be interrupted, and a pattern with nested repetitions such as
    ``(a+)+$`` may take longer than anybody waits.  Write patterns whose repetitions do not
    overlap, and read none from people whom you do not trust.

    Parameters
    ----------
    name
        What receipts call it.
    patterns
        Regular expressions by label.  Labels stand in errors only.
    action
        ``redact`` or ``refuse``.
    replacement
        What stands in the place of a match; no pattern may match it.
    ignore_case
        Whether letters match in either case.

    Raises
    ------
    InputError
        There is no pattern or too many, one is no regular expression, too long, matches an empty
        text or the replacement; the action or the name is not one.
    """

    name: str
    patterns: Mapping[str, str]
    action: Action = "redact"
    replacement: str = "[redacted]"
    ignore_case: bool = False
    _compiled: tuple[re.Pattern[str], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _checked_name(self.name)
        if self.action not in ACTIONS:
            raise InputError(
                f"{self.action!r:.80} is no action", at="$.action", hint=f"{' or '.join(ACTIONS)}"
            )
        if not 0 < len(self.patterns) <= MAX_PATTERNS:
            raise InputError(
                f"a filter has 1 to {MAX_PATTERNS} patterns, not {len(self.patterns)}",
                at="$.patterns",
            )
        patterns = dict(self.patterns)
        compiled = tuple(self._compile(label, text) for label, text in patterns.items())
        object.__setattr__(self, "patterns", patterns)
        object.__setattr__(self, "_compiled", compiled)

    def __hash__(self) -> int:
        return hash((self.name, tuple(self.patterns.items()), self.action, self.replacement))

    def _compile(self, label: str, pattern: str) -> re.Pattern[str]:
        at = f"$.patterns.{label:.80}"
        if len(pattern) > MAX_PATTERN_CHARS:
            raise InputError(f"a pattern has at most {MAX_PATTERN_CHARS} characters", at=at)
        try:
            found = re.compile(pattern, re.IGNORECASE if self.ignore_case else 0)
        except (re.error, OverflowError, RecursionError) as error:
            raise InputError(f"no regular expression: {error}", at=at) from error
        if found.search("") is not None:
            raise InputError("the pattern matches an empty text", at=at)
        if self.action == "redact" and found.search(self.replacement) is not None:
            raise InputError("the pattern matches the replacement", at=at)
        return found

    def __call__(self, text: str) -> Ruling:
        """Look for all patterns in a text."""
        if not self._matches(text):
            return Passed()
        if self.action == "refuse":
            return Refuse("a pattern matches")
        count = 0
        for _ in range(ROUNDS):
            text, found = self._once(text)
            count += found
            if not self._matches(text):
                return Redact(text, count)
        return Refuse("matches are left after every redaction")

    def _matches(self, text: str) -> bool:
        """Whether any pattern matches a part of the text that is not empty."""
        return any(
            found.end() > found.start()
            for pattern in self._compiled
            for found in pattern.finditer(text)
        )

    def _once(self, text: str) -> tuple[str, int]:
        """Every match of every pattern replaced, and how many there were."""
        count = 0

        def replaced(found: re.Match[str]) -> str:
            nonlocal count
            if found.end() == found.start():
                return ""
            count += 1
            return self.replacement

        for pattern in self._compiled:
            text = pattern.sub(replaced, text)
        return text, count
