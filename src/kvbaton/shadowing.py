"""Shadows: an answer by the cache besides the one by text, compared and thrown away."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvbaton.account import Account
from kvbaton.clock import Clock
from kvbaton.conversation import Turn
from kvbaton.decoding import Decoding, decode
from kvbaton.errors import KvbatonError
from kvbaton.policy.shadow import compare_answers
from kvbaton.prompts import Messages
from kvbaton.taking import Taker
from kvbaton.types import JSON, Baton, Mode, Outcome, Route


def shadow_of(
    turn: Turn,
    taker: Taker,
    batons: Sequence[Baton],
    instruction: str,
    messages: Messages | None,
    *,
    route: str,
) -> JSON:
    """How the answer by a cache compares with a turn that was answered by text.

    The cache is taken as it would have been; nobody sees the answer, nothing is kept or logged.
    What goes wrong is stated, and stays without consequences.

    Parameters
    ----------
    taker
        That of the turn; its account is left alone.
    batons, instruction, messages
        What it was given.
    route
        Name of the route that is compared.
    """
    clock = Clock()
    account = Account(Outcome.USED, taker.account.mode, Route.BATON, clock=clock, baton=batons[0])
    account.batons = taker.account.batons
    how = replace(taker.how, on_text=None, hand_off_when=())
    receiving = replace(taker.terms.receiving, in_shadow=True)
    terms = replace(taker.terms, receiving=receiving, strict=False, by_text=False)
    again = replace(taker, account=account, how=how, terms=terms)
    try:
        return _compared(turn, again, batons, instruction, messages, route)
    except Exception as error:  # noqa: BLE001 - the answer is there: nothing may cost it
        said = error.sentence if isinstance(error, KvbatonError) else type(error).__name__
        return {"route": route, "error": said}


def seeded(how: Decoding) -> Decoding:
    """The same, with a seed where tokens are drawn without one."""
    drawn = how.sampling
    if drawn.seed is not None or drawn.temperature <= 0:
        return how
    return replace(how, sampling=replace(drawn, seed=secrets.randbelow(2**63)))


def _compared(
    turn: Turn,
    taker: Taker,
    batons: Sequence[Baton],
    instruction: str,
    messages: Messages | None,
    route: str,
) -> JSON:
    account = taker.account
    if account.mode is Mode.SLICE:
        wanted, cache = taker.joined(batons, instruction)
    else:
        wanted, cache = taker.whole(batons[0], instruction, messages)
    if account.hedge is not None:  # what is too late for an answer is so for its shadow
        account.hedge.late.let_go()
    if cache is None:
        why = account.reasons[0].sentence if account.reasons else "the cache was not used"
        return {"route": route, "error": why}
    start = account.reused if account.start is None else account.start
    found, ttft_s = _answered(taker, cache, wanted.ids[start:], start, taker.how)
    report = compare_answers(
        turn.ids,
        found,
        route=route,
        text_ttft_s=turn.receipt.seconds.get("ttft"),
        shadow_ttft_s=ttft_s,
    )
    return report.to_json()


def _answered(
    taker: Taker, cache: Any, fed: Sequence[int], start: int, how: Decoding
) -> tuple[tuple[int, ...], float | None]:
    times: list[float] = []
    answer = decode(
        taker.engine, cache, fed, how, after=start,
        first_token=lambda: times.append(taker.account.clock.elapsed()),
    )  # fmt: skip
    return answer.ids, times[0] if times else None
