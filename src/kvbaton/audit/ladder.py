"""Text and cache at rising lengths: where the break-even of a route is measured."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack

from kvbaton.agent import Agent
from kvbaton.audit.case import DEADLINE_S, Equipment
from kvbaton.audit.load import Load, Meter
from kvbaton.audit.treatments import Content, Role, Treatment
from kvbaton.backing import Source
from kvbaton.bench.kl import text_ids
from kvbaton.bench.texts import real_texts
from kvbaton.relay import Relay
from kvbaton.shipping import Packing
from kvbaton.types import JSON, Baton, Route, Span, TokenRun
from kvbaton.types import Role as SpanRole

_INSTRUCTION = "Go on."


def ladder_routes(treatments: Sequence[Treatment]) -> tuple[Treatment, ...]:
    """The treatments whose break-even is looked for: text, and T3 with each profile."""
    whole = [t for t in treatments if t.content is Content.WHOLE and t.role is not Role.CONTROL]
    return tuple(t for t in whole if t.name == "T0" or t.name.partition(":")[0] == "T3")


class Ladder:
    """Times takes of contexts of real text.

    Parameters
    ----------
    equipment
        Model and stores.
    routes
        What is timed at each length, in a random order.
    repeats
        Runs of each.
    seed
        Decides the order.
    """

    def __init__(
        self,
        equipment: Equipment,
        routes: Sequence[Treatment],
        *,
        repeats: int,
        seed: int,
        meter: Meter,
    ) -> None:
        self._equipment, self._engine, self._routes = equipment, equipment.engine, tuple(routes)
        self._repeats, self._seed, self._meter = repeats, seed, meter

    def trials(self, tokens: int, todo: Callable[[str, int], bool]) -> Iterator[JSON]:
        """The trials of one length that are still to be done."""
        order = [(route, repeat) for repeat in range(self._repeats) for route in self._routes]
        random.Random(f"{self._seed} ladder {tokens}").shuffle(order)
        wanted = [(route, repeat) for route, repeat in order if todo(route.name, repeat)]
        if not wanted:
            return
        routes = {route.name: route for route, _ in wanted}.values()
        with ExitStack() as stores:
            with self._meter.work():
                batons = self._batons(tokens, routes, stores)
            for route, repeat in wanted:
                yield self._timed(tokens, route, repeat, *batons[route.name])

    def _batons(
        self, tokens: int, routes: Iterable[Treatment], stores: ExitStack
    ) -> dict[str, tuple[Relay, Baton]]:
        """One baton per route, of one and the same cache."""
        engine, equipment = self._engine, self._equipment
        ids = text_ids(engine, real_texts()[0], tokens)
        cache = engine.new_cache(tokens)
        engine.forward(cache, ids)
        made = {}
        for route in routes:
            relay = equipment.relay(stores)
            baton = relay.hand_off(
                Source(cache, tokens, ids),
                sender="sender",
                text=engine.chat.text_of(ids),
                spans=(Span(SpanRole.HISTORY, TokenRun(0, tokens)),),
                packing=Packing(equipment.plan_of(route.profile)),
            )
            made[route.name] = relay, baton
        return made

    def _timed(
        self, tokens: int, route: Treatment, repeat: int, relay: Relay, baton: Baton
    ) -> JSON:
        receiver = Agent("receiver", self._engine, relay, stream=False, deadline_s=DEADLINE_S)
        load = Load()
        with self._meter.work():
            if route.role is Role.REFERENCE:
                turn = receiver.take(baton, _INSTRUCTION, max_new_tokens=1, route=Route.TEXT)
            else:
                turn = receiver.take(baton.ref, _INSTRUCTION, max_new_tokens=1)
        return {
            "kind": "ladder",
            "tokens": tokens,
            "treatment": route.name,
            "repeat": repeat,
            "ttft_s": turn.receipt.seconds["ttft"],
            "bytes_moved": turn.receipt.bytes_moved,
            "route": turn.receipt.route.value,
            **load.taken(),
        }
