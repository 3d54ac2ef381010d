"""Hanging slices of one or several senders behind the receiver's own beginning.

The receiver's own beginning is computed, or reused from its last conversation or the store.  Each
slice's cache is attached behind it, its keys turned to where they stand now.  What has no KV (the
last token that a sender sampled, what closes a turn, a slice whose cache cannot be used) is
computed in between, in one pass together with the repair, and attends to everything before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvbaton.account import Account
from kvbaton.alignment.recompute import Repair, chosen_rows, mend
from kvbaton.deciding import SOMEBODY, Receiving
from kvbaton.prompts import Hung, SlicePrompt
from kvbaton.relay import Relay
from kvbaton.types import FidelityClass, FunctionId, Importance, Route, TokenRun


class Join:
    """Builds the cache of one slice prompt.

    Parameters
    ----------
    relay
        Where the slices come from.
    prompt
        What the receiver reads.
    account
        What the receipt will say.
    repair
        Which positions of slices are computed again; None for none.
    minimum, function
        The least fidelity that is acceptable, and the engine's function.
    importance
        How closely slices are looked at: critical ones are computed from their ids.
    receiving
        Who takes them for what.
    """

    def __init__(
        self,
        relay: Relay,
        prompt: SlicePrompt,
        account: Account,
        *,
        repair: Repair | None,
        minimum: FidelityClass,
        function: FunctionId,
        importance: Importance = Importance.ORDINARY,
        receiving: Receiving = SOMEBODY,
    ) -> None:
        self.relay, self.engine, self.prompt, self.account = relay, relay.engine, prompt, account
        self.repair, self.minimum, self.function = repair, minimum, function
        self.importance, self.receiving = importance, receiving
        self._missing: list[TokenRun] = []
        self._attached: list[TokenRun] = []

    def hang(self, cache: Any, *, deadline_s: float) -> None:
        """Attach all slices behind the receiver's own beginning, which ``cache`` holds.

        What cannot be attached is computed from its ids; the tail of the prompt that has no KV
        is left to be fed.
        """
        for hung in self.prompt.slices:
            self._one(cache, hung, deadline_s)
        self._conclude(cache)

    def _one(self, cache: Any, hung: Hung, deadline_s: float) -> None:
        account = self.account
        left_s = max(0.0, deadline_s - account.clock.elapsed())
        taken = self.relay.hang(
            hung.baton,
            hung.runs,
            at=hung.first,
            prompt_tokens=len(self.prompt.ids),
            deadline_s=left_s,
            minimum=self.minimum,
            function=self.function,
            importance=self.importance,
            receiving=self.receiving,
        )
        part = account.enter_slice(taken)
        if part is None:
            self._missing.append(TokenRun(hung.first, hung.stop - hung.first))
            return
        with account.clock.phase("attach"):
            if hung.first > cache.length:
                self.engine.append_blank(cache, hung.first - cache.length)
            self.engine.append(cache, part)
        self._attached.append(TokenRun(hung.first, taken.reused))
        rest = hung.stop - cache.length
        if rest:
            self._missing.append(TokenRun(cache.length, rest))

    def _conclude(self, cache: Any) -> None:
        """Compute what lies between slices, and repair them."""
        account, attached = self.account, self._attached
        whole = len(attached) == len(self.prompt.slices)
        account.route = Route.BATON if whole else Route.PARTIAL if attached else Route.TEXT
        if not attached:
            return
        gaps = [p for run in self._missing for p in range(run.first, min(run.stop, cache.length))]
        with account.clock.phase("repair"):
            chosen = self._computed_again(cache, gaps)
        account.reused = sum(run.count for run in attached) - len(chosen)
        if chosen:  # what was repaired is no longer what lies in the store
            account.held = tuple(
                ref
                for ref in account.held
                if not any(ref.run.first <= row < ref.run.stop for row in chosen)
            )

    def _computed_again(self, cache: Any, gaps: Sequence[int]) -> frozenset[int]:
        """Fill the gaps and mend the slices, in one pass where that can be; the mended rows."""
        repair = self.repair
        ids, account = self.prompt.ids[: cache.length], self.account
        alone = repair is not None and (
            repair.needs_deviation or repair.needs_importance or repair.layers is not None
        )
        chosen: Sequence[int] = ()
        if repair is not None and not alone:
            chosen = chosen_rows(self._attached, repair)
        rows = sorted({*gaps, *chosen})
        if rows:
            account.recomputed += self.engine.recompute(cache, ids, rows)
        if repair is not None and alone:
            mended = mend(self.engine, cache, ids, self._attached, repair)
            chosen, account.recomputed = mended.rows, account.recomputed + mended.token_layers
        if repair is not None and repair.needs_deviation:  # to measure it changes every row
            return frozenset(p for run in self._attached for p in range(run.first, run.stop))
        return frozenset(chosen)


def own_beginning(
    relay: Relay, prompt: SlicePrompt, known: Any, *, agreed: int, deadline_s: float
) -> Any:
    """A cache that holds the receiver's own beginning and has room for the whole prompt.

    Parameters
    ----------
    known
        The receiver's last cache, or None.
    agreed
        Positions that it has in common with the prompt.
    """
    engine, tokens = relay.engine, prompt.own_tokens
    room = len(prompt.ids) - tokens + engine.default_room
    cache = None
    if known is not None and agreed >= tokens > 0:
        return relay.copy_prefix(known, tokens, room=room)
    found = relay.find_prefix(prompt.ids[: tokens + 1])
    if found:
        stored = found[-1].span.stop
        room += tokens - stored
        cache = relay.attach(found, prompt.ids, stored, room=room, deadline_s=deadline_s).cache
    if cache is None:
        cache = engine.new_cache(tokens + room)
    if cache.length < tokens:
        engine.forward(cache, prompt.ids[cache.length : tokens])
    return cache
