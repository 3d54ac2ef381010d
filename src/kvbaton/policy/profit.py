"""Where which route pays: lengths x routes by stratum, and the file that keeps what was measured.

A record is kept per function, with the host that it was measured on: lengths move with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvbaton.errors import Fault, FormatError
from kvbaton.policy.break_even import MAX_ITEMS, BreakEven, RatioPoint
from kvbaton.records import keep, kept
from kvbaton.types import JSON
from kvbaton.wire.fields import check_hex64, read_int, read_list, read_name, read_object, refuse

FORMAT = "kvbaton break-even 1"
FOLDER = "break-even"
TEXT, UNDECIDED = "text", "undecided"

_MAX_SECONDS = 1 << 40


@dataclass(frozen=True, slots=True)
class ProfitCell:
    """One route at one length in one stratum."""

    stratum: str
    route: str
    point: RatioPoint


@dataclass(frozen=True, slots=True)
class ProfitMap:
    """Ratio of every route at every length, by stratum; a stratum is any label."""

    cells: tuple[ProfitCell, ...]

    @classmethod
    def of(cls, found: Mapping[tuple[str, str], BreakEven]) -> ProfitMap:
        """From what was measured, by (stratum, route)."""
        return cls(
            tuple(
                ProfitCell(stratum, route, point)
                for (stratum, route), one in sorted(found.items())
                for point in one.points
            )
        )

    def winner(self, stratum: str, tokens: int) -> str:
        """The fastest way at a measured length.

        The route with the smallest ratio among those whose interval lies below 1; ``text`` where
        every interval lies above 1; else, and where nothing was measured, ``undecided``.
        """
        here = [c for c in self.cells if (c.stratum, c.point.tokens) == (stratum, tokens)]
        faster = [c for c in here if c.point.ci is not None and c.point.ci[1] < 1]
        if faster:
            return min(faster, key=lambda cell: (cell.point.ratio, cell.route)).route
        slower = all(c.point.ci is not None and c.point.ci[0] > 1 for c in here)
        return TEXT if here and slower else UNDECIDED

    def to_json(self) -> JSON:
        """``{"cells", "winners"}``."""
        places = sorted({(cell.stratum, cell.point.tokens) for cell in self.cells})
        return {
            "cells": [
                {"stratum": cell.stratum, "route": cell.route, **cell.point.to_json()}
                for cell in self.cells
            ],
            "winners": [
                {"stratum": stratum, "tokens": tokens, "winner": self.winner(stratum, tokens)}
                for stratum, tokens in places
            ],
        }

    @classmethod
    def from_json(cls, value: Any, at: str = "$") -> ProfitMap:
        """Read what ``to_json`` wrote; raises ``FormatError``.  Winners must follow from cells."""
        fields = read_object(value, at, {"cells", "winners"})
        cells = []
        for n, one in enumerate(read_list(fields["cells"], f"{at}.cells", at_most=MAX_ITEMS)):
            place = f"{at}.cells[{n}]"
            cell = read_object(one, place, {"stratum", "route", "tokens", "ratio", "ci"})
            point = {name: cell[name] for name in ("tokens", "ratio", "ci")}
            stratum = read_name(cell, "stratum", place, empty=True)
            route = read_name(cell, "route", place)
            cells.append(ProfitCell(stratum, route, RatioPoint.from_json(point, place)))
        read = cls(tuple(cells))
        if read.to_json()["winners"] != fields["winners"]:
            raise refuse(
                "the winners are not those of the cells", Fault.OUT_OF_RANGE, f"{at}.winners"
            )
        return read


# --- where it is kept --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Host:
    """What the lengths were measured on: name and number of its processors."""

    cpu: str
    cores: int


@dataclass(frozen=True, slots=True)
class BreakEvenRecord:
    """Break-even lengths of one function (hex digest) on one host.

    ``pair`` names sender and receiver, ``dtype`` is the cache's (safetensors name), ``created_s``
    are seconds since the epoch.
    """

    function: str
    pair: str
    dtype: str
    host: Host
    created_s: int
    routes: tuple[BreakEven, ...]
    profit: ProfitMap = ProfitMap(())

    def find(self, route: str) -> BreakEven | None:
        """What was measured of a route."""
        return next((one for one in self.routes if one.route == route), None)

    def to_json(self) -> JSON:
        """As it is stored."""
        return {
            "format": FORMAT,
            "function": self.function,
            "pair": self.pair,
            "dtype": self.dtype,
            "host": {"cpu": self.host.cpu, "cores": self.host.cores},
            "created_s": self.created_s,
            "routes": [one.to_json() for one in self.routes],
            "profit": self.profit.to_json(),
        }

    @classmethod
    def from_json(cls, value: Any) -> BreakEvenRecord:
        """Read what ``to_json`` wrote.

        Raises
        ------
        FormatError
            It is something else; ``at`` is the place.
        """
        fields = read_object(value, "$", {"format", *cls.__dataclass_fields__})
        if fields["format"] != FORMAT:
            raise refuse("not a break-even record", Fault.UNKNOWN_FORMAT, "$.format")
        host = read_object(fields["host"], "$.host", {"cpu", "cores"})
        routes = read_list(fields["routes"], "$.routes", at_most=MAX_ITEMS)
        return cls(
            function=check_hex64(fields["function"], "$.function"),
            pair=read_name(fields, "pair", "$"),
            dtype=read_name(fields, "dtype", "$"),
            host=Host(
                read_name(host, "cpu", "$.host"), read_int(host, "cores", "$.host", 0, 1 << 20)
            ),
            created_s=read_int(fields, "created_s", "$", 0, _MAX_SECONDS),
            routes=tuple(
                BreakEven.from_json(one, f"$.routes[{n}]") for n, one in enumerate(routes)
            ),
            profit=ProfitMap.from_json(fields["profit"], "$.profit"),
        )


def store_break_even(record: BreakEvenRecord, data_dir: Path) -> Path:
    """Keep a record for its function, in place of an earlier one; whole or not at all.

    Raises
    ------
    InputError
        The folder cannot be written.
    FormatError
        The function is no digest.
    """
    check_hex64(record.function, "$.function")
    text = json.dumps(record.to_json(), indent=1, sort_keys=True, allow_nan=False) + "\n"
    return keep(data_dir / FOLDER / f"{record.function}.json", text, what="the break-even record")


def stored_break_even(function: str, data_dir: Path) -> BreakEvenRecord | None:
    """The record of a function's digest: measured here before, or shipped with kvbaton.

    It may come from another host: compare ``host`` before relying on it.

    Raises
    ------
    FormatError
        There is a file of that name, and it is something else; or ``function`` is no digest.
    """
    found = kept(FOLDER, f"{check_hex64(function, '$.function')}.json", data_dir)
    if found is None:
        return None
    text, at = found
    try:
        record = BreakEvenRecord.from_json(json.loads(text))
        if record.function != function:
            raise ValueError(record.function)
        return record
    except (ValueError, RecursionError, FormatError) as error:
        raise FormatError(
            "the file holds no break-even record of this function",
            fault=Fault.UNKNOWN_FORMAT,
            at=at,
            hint="delete it, and measure again",
        ) from error
