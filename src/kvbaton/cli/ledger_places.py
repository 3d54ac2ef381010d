"""The ledger that a command works on, from its options and the settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvbaton import settings
from kvbaton.cli.output import Output
from kvbaton.errors import LedgerError, LedgerRolledBack, LedgerUnavailable
from kvbaton.ledgers import folder_of, keeper_of
from kvbaton.lineage.keeper import LedgerKeeper

if TYPE_CHECKING:
    from kvbaton.lineage.ledger import Ledger

LedgerOption = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        help="The ledger, such as sqlite:////var/lib/kvbaton/ledger.db, or the path of its file; "
        "by default the settings' own.",
    ),
]
DomainOption = Annotated[
    str | None,
    typer.Option("--domain", metavar="NAME", help="Trust domain; by default the settings' own."),
]

_CATCH_UP_S = 5.0


@dataclass(frozen=True, slots=True)
class LedgerPlace:
    """Where one trust domain's part of a ledger is, the folder of what waits for it, and that of
    what was seen of it."""

    url: str
    domain: str
    folder: Path
    seen: Path

    def open(self) -> Ledger:
        """Open the ledger, which must be there: nothing is made.

        Raises
        ------
        InputError
            The URL names no database that could be used.
        LedgerUnavailable
            It is not there, or cannot be used.
        LedgerVersion
            It is of another version; the hint migrates it.
        """
        from kvbaton.lineage.ledger import Ledger

        self.require_there()
        return Ledger(self.url, self.domain, must_exist=True)

    def keeper(self) -> LedgerKeeper:
        """The way of this process to the ledger, which notices old copies of it.

        Raises
        ------
        LedgerUnavailable
            It is not there.
        """
        self.require_there()
        return keeper_of(self.url, self.domain, self.folder.parent, self.seen)

    def require_there(self) -> None:
        """Refuse a ledger that is not there.

        Raises
        ------
        LedgerUnavailable
            It is not.
        """
        from kvbaton.lineage.connection import is_there

        if not is_there(self.url):
            raise LedgerUnavailable(
                "there is no ledger yet",
                at=self.url,
                hint="the first agent that hands off makes one; --ledger names another",
            )


def ledger_place(ledger: str | None, domain: str | None) -> LedgerPlace:
    """The ledger that is named, or the settings' own.

    Raises
    ------
    LedgerUnavailable
        None is named, and the settings name none.
    """
    chosen = settings.from_environment()
    url = chosen.ledger if ledger is None else ledger
    if not url:
        raise LedgerUnavailable(
            "the settings switch the ledger off", at="KVBATON_LEDGER", hint="--ledger names one"
        )
    if "://" not in url:
        url = f"sqlite:///{Path(url).expanduser().absolute()}"
    name = domain or chosen.domain
    folder = folder_of(url, name, chosen.ledger_records)
    return LedgerPlace(url, name, folder, chosen.ledger_seen)


def warm_ledger() -> None:
    """Open the settings' ledger beside other work, if there is one."""
    chosen = settings.from_environment()
    if chosen.ledger:
        keeper_of(chosen.ledger, chosen.domain, chosen.ledger_records, chosen.ledger_seen).warm()


@contextmanager
def opened(output: Output, ledger: str | None, domain: str | None) -> Iterator[Ledger]:
    """The ledger, with what dead processes have left for it; an old copy of it is warned of.

    Raises
    ------
    InputError, LedgerError
        See :meth:`LedgerPlace.open`.
    """
    place = ledger_place(ledger, domain)
    with place.open() as found:
        _catch_up(output, place)
        _compare(output, place, found)
        yield found


def _catch_up(output: Output, place: LedgerPlace) -> None:
    """Write the records that wait, so that nobody reads past them."""
    from kvbaton.lineage.recorder import Recorder
    from kvbaton.lineage.spool import SUFFIX

    if not any(place.folder.glob(f"*{SUFFIX}")):
        return
    with Recorder(
        place.open, place.folder, complain=lambda error: output.warn(str(error))
    ) as recorder:
        recorder.flush(_CATCH_UP_S)


def _compare(output: Output, place: LedgerPlace, found: Ledger) -> None:
    """Warn where the ledger says less than was seen; what it says more is remembered."""
    from kvbaton.lineage.seen import Seen

    seen = Seen(place.seen, place.url, place.domain)
    before = seen.so_far()
    try:
        seen.check(before, found.sequence(), keep=False)
        for head in found.heads():
            number, baton = head.sequence, head.baton
            seen.check(before, head.as_of, ref=head.ref, number=number, baton=baton, keep=False)
    except LedgerRolledBack as error:
        output.warn(str(error))
    try:
        seen.close()
    except LedgerError as error:  # it stops nobody from reading
        output.warn(str(error))
