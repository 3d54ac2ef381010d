"""Mode ``slice``: how far a slice lies from the same ids as text, shifted, unshifted, repaired."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from kvbaton.alignment.recompute import DEFAULT_CHOOSER, DEFAULT_FRACTION, Repair
from kvbaton.bench.fidelity.session import Row, Session, Task, loss_json
from kvbaton.bench.fidelity.splice import Case, Hanging, UnshiftedRelay
from kvbaton.bench.texts import Text
from kvbaton.engines.transformers.recompute import causal_rows
from kvbaton.relay import Relay
from kvbaton.types import JSON

SPLICING = ("get", "verify", "decode", "align", "attach")
"""Phases in which slices come behind the receiver's beginning."""
_SEVERAL_TEXTS = 3


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to hang the same slices."""

    name: str
    mode: str
    profile: str = "exact"
    fraction: float | None = None
    chooser: str | None = None

    @property
    def relay(self) -> type[Relay]:
        """The relay that hangs them so."""
        return UnshiftedRelay if self.mode == "slice-unshifted" else Relay

    @property
    def repair(self) -> Repair | None:
        """Which rows are computed again; None for none."""
        if not self.fraction or self.chooser is None:
            return None
        return Repair(self.fraction, self.chooser)


def variants(session: Session) -> list[Variant]:
    """With and without shift, by every profile, and with every repair."""
    scope = session.scope
    return [
        *(Variant(name, "slice", name, 0.0) for name in scope.profiles),
        Variant("unshifted", "slice-unshifted", fraction=0.0),
        *(
            Variant(f"{how}-{share:g}", "slice-recompute", "exact", share, how)
            for how in scope.choosers
            for share in scope.fractions
        ),
    ]


SEVERAL = (
    Variant("exact", "slice", "exact", 0.0),
    Variant(
        f"{DEFAULT_CHOOSER}-{DEFAULT_FRACTION:g}",
        "slice-recompute",
        "exact",
        DEFAULT_FRACTION,
        DEFAULT_CHOOSER,
    ),
)
"""Several slices: as they are, and with the default repair."""


def tasks(session: Session) -> list[Task]:
    """One measurement per text and variant, then those of several slices."""
    return list({task.key: task for task, _ in _all(session)}.values())


def _all(session: Session) -> Iterator[tuple[Task, tuple[int, Variant]]]:
    texts = _texts(session)
    for text in texts:
        for variant in variants(session):
            yield _task(session, texts, text, 1, variant), (1, variant)
    for text in texts[:_SEVERAL_TEXTS]:
        for count in session.scope.counts:
            for variant in SEVERAL:
                yield _task(session, texts, text, count, variant), (count, variant)


def _texts(session: Session) -> Sequence[Text]:
    scope = session.scope
    before = max(scope.prefix_tokens, scope.before_tokens)
    fits = before + scope.slice_tokens + scope.positions <= session.engine.max_tokens
    return session.texts(scope.slice_tokens) if fits else ()


def _task(
    session: Session, texts: Sequence[Text], text: Text, count: int, variant: Variant
) -> Task:
    scope = session.scope

    def run() -> JSON:
        case: Case = session.kept(
            "case", (text.name, count), lambda: _case(session, texts, text, count)
        )
        hanging = case.hung(variant.profile, kind=variant.relay, repair=variant.repair)
        loss = case.loss(hanging)
        mask_s = _mask_s(session, hanging)
        return loss_json(loss, seconds=hanging.seconds, prefill_s=case.prefill_s, mask_s=mask_s)

    name = variant.name if variant.name not in scope.profiles else session.plan_key(variant.name)
    key = f"slice/{scope.slice_tokens}/{text.name}/{count}/{name}"
    return Task(key, f"slices: {variant.mode} {variant.name} on {text.name}, {count}", run)


def _case(session: Session, texts: Sequence[Text], text: Text, count: int) -> Case:
    place = [known.name for known in texts].index(text.name)
    before, own = (texts[(place + step) % len(texts)] for step in (1, 2))
    return Case(session, text, before, own, slices=count)


def _mask_s(session: Session, hanging: Hanging) -> float:
    """Seconds to make the mask of a default repair's rows."""
    import torch

    tokens = hanging.cache.length
    rows = torch.arange(0, tokens, max(1, round(1 / DEFAULT_FRACTION)))
    return best(lambda: causal_rows(rows, tokens, session.engine.dtype), session.scope.repeats)


def best(work: Callable[[], object], repeats: int) -> float:
    """The shortest of several runs, in seconds."""
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)


# --- rows ---------------------------------------------------------------------------------------


def rows(session: Session) -> list[JSON]:
    """One row per number of slices and variant."""
    grouped: dict[tuple[int, Variant], dict[str, Task]] = {}
    for task, place in _all(session):
        grouped.setdefault(place, {})[task.key] = task
    found = {place: session.found(list(tasks.values())) for place, tasks in grouped.items()}
    return [
        _row(session, count, variant, losses)
        for (count, variant), losses in found.items()
        if losses
    ]


def _row(session: Session, count: int, variant: Variant, losses: Sequence[JSON]) -> JSON:
    splice = [sum(loss["seconds"].get(p, 0.0) for p in SPLICING) for loss in losses]
    repair = [loss["seconds"].get("repair", 0.0) for loss in losses]
    return Row(
        variant.profile,
        variant.mode,
        session.scope.slice_tokens,
        session.engine.layout.dtype,
        recompute_fraction=variant.fraction,
        losses=losses,
        more={
            "slices": count,
            "chooser": variant.chooser,
            "splice_s": median(splice),
            "mask_s": median(loss["mask_s"] for loss in losses),
            "repair_s": median(repair),
            "prefill_s": median(loss["prefill_s"] for loss in losses),
        },
    ).to_json()
