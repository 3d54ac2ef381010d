"""What a collection remembers for the next: since when each object was not needed.

Text: a first line with the clock's name, one line per object, a last line with their number.  What
is cut short, or was written by another clock, is forgotten: everything then waits anew, and nothing
goes too early.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvbaton.stores.base import Entry, Key, Kind
from kvbaton.stores.lease_clock import SteadyClock

_FIRST = re.compile(r"kvbaton-marks 1 clock=([0-9a-z-]{1,80})")
_LINE = re.compile(r"([a-z]+)/([0-9a-f]{64}) used=(\S{1,40}) since_ms=(\d{1,16})")
_KINDS = frozenset(kind.value for kind in Kind)


@dataclass(frozen=True, slots=True)
class Mark:
    """That an object whose last use was at ``used_s`` was not needed since ``since_ms``.

    ``used_s`` is as the listing has it and is only compared for equality: it may be any clock's.
    ``since_ms`` is by the clock of whoever collects.
    """

    used_s: float
    since_ms: int


@dataclass(frozen=True, slots=True)
class Marks:
    """All marks of one store."""

    clock: str
    marks: Mapping[Key, Mark] = field(default_factory=dict)

    @classmethod
    def parse(cls, data: bytes, clock: SteadyClock) -> Marks:
        """What was written by :meth:`encode`, as far as this clock can tell its age."""
        try:
            lines = data.decode("ascii").splitlines()
        except UnicodeDecodeError:
            lines = []
        first = _FIRST.fullmatch(lines[0]) if lines else None
        whole = lines[1:] and data.endswith(b"\n") and lines[-1] == f"end {len(lines) - 2}"
        if first is None or first[1] != clock.name or not whole:
            return cls(clock.name)
        found = map(_mark, lines[1:-1])
        return cls(clock.name, dict(one for one in found if one is not None))

    def encode(self) -> bytes:
        """As they are stored."""
        lines = [
            f"{key} used={mark.used_s.hex()} since_ms={mark.since_ms}"
            for key, mark in sorted(self.marks.items())
        ]
        whole = [f"kvbaton-marks 1 clock={self.clock}", *lines, f"end {len(lines)}", ""]
        return "\n".join(whole).encode("ascii")

    def again(self, entry: Entry, now_ms: int) -> Mark:
        """The mark of what is not needed now: the one that it has, unless it was used since."""
        known = self.marks.get(entry.key)
        if known is not None and known.used_s == entry.modified_s and known.since_ms <= now_ms:
            return known
        return Mark(entry.modified_s, now_ms)


def _mark(line: str) -> tuple[Key, Mark] | None:
    match = _LINE.fullmatch(line)
    if match is None or match[1] not in _KINDS:
        return None
    try:
        used_s = float.fromhex(match[3])
    except (ValueError, OverflowError):
        return None
    return Key(Kind(match[1]), match[2]), Mark(used_s, int(match[4]))
