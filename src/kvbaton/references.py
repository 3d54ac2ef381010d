"""Batons as a caller names them: opened, checked to be current, passed by the filters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvbaton.clock import Clock
from kvbaton.errors import BatonUnavailable, Filtered, InputError, NotTrusted, Superseded
from kvbaton.following import Look, NewerBatons
from kvbaton.gating import TextGate, as_words
from kvbaton.opening import Bearer, Spending
from kvbaton.reasons import refusal_reason, unavailable_reason
from kvbaton.relay import Relay
from kvbaton.stores import Key
from kvbaton.types import Baton, BatonRef, Mode, Outcome, Reason, ReasonCode

MAX_NEWER = 3
"""How often a stale baton is replaced by the head of its ref in one take."""


def references_in(
    given: Sequence[Baton | BatonRef | str], instruction: str
) -> tuple[list[Baton | BatonRef | str], str]:
    """Batons and the instruction, which may come as the last string.

    Raises
    ------
    InputError
        There is no baton, or a string that is no id.
    """
    several, said = list(given), instruction
    last = several[-1] if len(several) > 1 else None
    if isinstance(last, str) and not said and not Key.is_name(last):
        said = last
        several.pop()
    if not several:
        raise InputError("there is no baton to take")
    for index, one in enumerate(several[1:], start=1):
        if isinstance(one, str) and not Key.is_name(one):
            raise InputError(f"{one[:40]!r} is no baton's id", at=f"$.batons[{index}]")
    return several, said


def bearers(name: str, ticket: str | Sequence[str] | None, count: int) -> list[Bearer]:
    """Who takes each baton, by which ticket.

    Raises
    ------
    InputError
        There are not as many tickets as batons.
    """
    if ticket is None:
        return [Bearer(name)] * count
    several = [ticket] if isinstance(ticket, str) else list(ticket)
    if len(several) != count:
        raise InputError(f"{len(several)} tickets for {count} batons", at="$.ticket")
    return [Bearer(name, one) for one in several]


def open_all(
    relay: Relay,
    gate: TextGate,
    references: Sequence[Baton | BatonRef | str],
    several: Sequence[Bearer],
    clock: Clock,
    *,
    mode: Mode | None,
    deadline_s: float,
    look: Callable[[Sequence[Baton]], None] = lambda batons: None,
) -> tuple[list[Baton], tuple[Reason, ...], tuple[Reason, ...]]:
    """Batons as they may be used, with the reasons of filters and the warnings.

    All of them are verified before the text of any reaches a filter, and no ticket is spent before
    all of them are known to be right, and ``look`` has seen them.

    Raises
    ------
    NotTrusted, BatonUnavailable, Filtered
        One of them cannot be used.
    InputError
        Several are taken in another mode than ``slice``.
    """
    unspent: list[Spending] = []
    with clock.phase("get"):
        found = [
            as_words(
                relay.engine,
                relay.open(one, deadline_s=deadline_s, bearer=bearer, unspent=unspent),
            )
            for one, bearer in zip(references, several, strict=True)
        ]
        wanted = mode or found[0].manifest.mode
        if len(found) > 1 and wanted is not Mode.SLICE:
            raise InputError(
                f"several batons cannot be taken in mode {wanted.value!r}",
                hint="mode='slice' hangs one behind the other",
            )
        look(found)
        relay.opening.spend(unspent, deadline_s=deadline_s - clock.elapsed())
    warnings = tuple(warning for one in found for warning in one.warnings)
    if not gate.filters:
        return found, (), warnings
    reasons: tuple[Reason, ...] = ()
    opened = []
    with clock.phase("filter"):
        for one in found:
            baton, why = gate.arriving(one)
            opened.append(baton)
            reasons += why
    return opened, reasons, warnings


def signers_of(batons: Sequence[Baton]) -> tuple[str, ...]:
    """Key ids of all who have had a part in some batons, sorted."""
    return tuple(sorted({k for b in batons for k in (b.signer, *b.manifest.signers) if k}))


NotUsed = NotTrusted | BatonUnavailable | Filtered | Superseded
"""Why nothing of a baton is used."""


def not_opened(error: NotUsed) -> tuple[Outcome, Reason]:
    """Outcome and reason of a baton of which nothing is used."""
    if isinstance(error, Superseded):
        return Outcome.SUPERSEDED, Reason(ReasonCode.STALE, error.sentence)
    if isinstance(error, NotTrusted):
        return Outcome.NOT_TRUSTED, refusal_reason(error)
    if isinstance(error, Filtered):
        return Outcome.FILTERED, Reason(ReasonCode.FILTER_REFUSED, error.sentence, error.at)
    return Outcome.UNAVAILABLE, unavailable_reason(error)


def open_current(
    relay: Relay,
    gate: TextGate,
    references: Sequence[Baton | BatonRef | str],
    several: Sequence[Bearer],
    clock: Clock,
    *,
    mode: Mode | None,
    deadline_s: float,
    look: Look,
) -> tuple[list[Baton], tuple[Reason, ...], tuple[Reason, ...]]:
    """Batons as they may be used, or the newer ones in place of those that are stale.

    Raises
    ------
    Superseded
        One is stale, and that is refused.
    NotTrusted, BatonUnavailable, Filtered, InputError
        See ``open_all``.
    """
    for _ in range(MAX_NEWER):
        try:
            return open_all(
                relay, gate, references, several, clock, mode=mode,
                deadline_s=deadline_s - clock.elapsed(), look=look.at,
            )  # fmt: skip
        except NewerBatons as newer:
            references = [new or old for new, old in zip(newer.references, references, strict=True)]
            several = [
                old if new is None else Bearer(old.name)  # a ticket is one baton's
                for new, old in zip(newer.references, several, strict=True)
            ]
    raise Superseded("the ref moves faster than its batons can be read")
