"""Logs of receipts whose truth is known: the baton route multiplies every time by one ratio."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvbaton.audit.observe.assignment import assign
from kvbaton.audit.observe.reading import Log, Observation
from kvbaton.types import Mode, Outcome, Reason, ReasonCode, Receipt, Route

START_S = 1_790_000_000 // 86_400 * 86_400
"""Midnight of a day in 2026, UTC."""


@dataclass(frozen=True)
class World:
    """How receipts come about.

    Parameters
    ----------
    ratio
        True effect: time by baton over time by text.
    confounding
        How much more often long contexts come by baton; 0 is a coin.  With 1.2, contexts by baton
        are about twice as long.
    by_lot
        Assign conversations to arms instead.
    drift_day, drift_ratio
        From this day on, the ratio is another.
    fallback, fallback_after
        Share of batons that fall back to text (and take its time), before and after that day.
    lost
        Share of the receipts by baton that the log loses.
    accuracy
        Share of right answers by text and by baton.
    """

    conversations: int = 250
    ratio: float = 0.6
    confounding: float = 1.2
    by_lot: bool = False
    days: int = 10
    drift_day: int = 10**6
    drift_ratio: float = 0.6
    fallback: float = 0.0
    fallback_after: float = 0.0
    lost: float = 0.0
    accuracy: tuple[float, float] = (0.8, 0.8)


def simulate(world: World, seed: int) -> list[dict[str, Any]]:
    """Receipts as JSON objects, in the order of time."""
    random = np.random.default_rng(seed)
    rows = []
    for number in range(world.conversations):
        start = START_S + (number + random.random()) / world.conversations * world.days * 86_400
        mean, slow = random.normal(7, 0.7), random.normal(0, 0.15)
        name = f"chat-{seed}-{number}"
        arm = assign(name, salt="simulated") if world.by_lot else ""
        turns = 1 + random.geometric(0.3)
        chat = name, arm, mean, slow
        rows += [_receipt(world, random, chat, start + 60 * turn) for turn in range(turns)]
    rows = [row for row in rows if row["reused_tokens"] == 0 or random.random() >= world.lost]
    return sorted(rows, key=lambda row: int(row["labels"]["time"]))


def _receipt(
    world: World, random: np.random.Generator, chat: tuple[str, str, float, float], time_s: float
) -> dict[str, Any]:
    name, arm, mean, slow = chat
    log_tokens = random.normal(mean, 0.4)
    tokens = int(math.exp(log_tokens)) + 1
    agent = "coder" if random.random() < 0.5 else "reviewer"
    pull = world.confounding * (log_tokens - 7) / 0.8 + (0.4 if agent == "coder" else -0.4)
    chance = 1 / (1 + math.exp(-pull)) if world.confounding else 0.5
    baton = arm == "baton" if arm else random.random() < chance
    late = time_s >= START_S + world.drift_day * 86_400
    fell = baton and random.random() < (world.fallback_after if late else world.fallback)
    ratio = world.drift_ratio if late else world.ratio
    text_s = (0.05 + 2e-4 * tokens) * (1.2 if agent == "coder" else 1.0)
    ttft = text_s * math.exp(slow + random.normal(0, 0.2)) * (ratio if baton and not fell else 1)
    right = random.random() < world.accuracy[int(baton)]
    reasons = () if baton else (Reason(ReasonCode.ASKED_FOR_TEXT, "asked"),)
    receipt = Receipt(
        id=f"{random.integers(1 << 62):016x}",
        agent=agent,
        model="smollm2-135m",
        outcome=Outcome.USED,
        mode=Mode.CONTINUE,
        route=Route.BATON if baton and not fell else Route.TEXT,
        reasons=reasons,
        context_tokens=tokens,
        reused_tokens=tokens if baton and not fell else 0,
        seconds={"ttft": ttft, "total": ttft + 0.5},
        labels={
            "conversation": name,
            "time": str(int(time_s)),
            "score": str(int(right)),
            **({"arm": arm} if arm else {}),
        },
    )
    return receipt.to_json()


def as_log(rows: list[dict[str, Any]]) -> Log:
    """The same without a file."""
    return Log(
        tuple(
            Observation(
                id=row["id"],
                line=line,
                agent=row["agent"],
                model=row["model"],
                mode=row["mode"],
                route=row["route"],
                offered=not row["reasons"],
                context_tokens=row["context_tokens"],
                ttft_s=row["seconds"]["ttft"],
                total_s=row["seconds"]["total"],
                labels=row["labels"],
                arm=row["labels"].get("arm", ""),
                conversation=row["labels"]["conversation"],
                score=float(row["labels"]["score"]),
                time_s=float(row["labels"]["time"]),
            )
            for line, row in enumerate(rows, 1)
        ),
        len(rows),
    )
