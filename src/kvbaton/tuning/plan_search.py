"""Searching a plan for one engine: chosen bits to chains and bytes, predictions to measurements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from kvbaton.bench.kl import SEGMENT_TOKENS, Reference, coded_cache, segment_spans
from kvbaton.codecs import CodecPlan
from kvbaton.codecs.profiles import SINKS, bands, bits_plan
from kvbaton.errors import InputError
from kvbaton.tuning.measure import measure_on
from kvbaton.tuning.search import Choice, Picked, within_cost, within_loss
from kvbaton.tuning.sensitivity import CHOICES, Progress, Sensitivities, Slot, slots
from kvbaton.types import KVLayout, TokenRun

_ROUNDS = 5
_SLACK = 2e-4
_NEAR = 0.9
"""A plan whose loss is that share of the bound is good enough."""


# --- from chosen bits to a plan, and to bytes ---------------------------------------------------


def picked_plan(name: str, layout: KVLayout, picked: Picked, *, first: int = SINKS) -> CodecPlan:
    """The plan of what a search has picked, in the order of :func:`slots`."""
    keys: dict[int, list[int]] = {}
    values: dict[int, int] = {}
    for (layer, what), choice in zip(slots(layout), picked, strict=True):
        if what == "v":
            values[layer] = choice.name
        else:
            keys.setdefault(layer, []).append(choice.name)
    return bits_plan(name, layout, lambda layer: (tuple(keys[layer]), values[layer]), first=first)


def slot_bytes(
    layout: KVLayout, slot: Slot, bits: int, tokens: int, *, first: int = SINKS
) -> float:
    """Bytes of a slot's codes over all segments of a context; parameters cost the same always."""
    layer, what = slot
    spec = layout.layers[layer]
    dim = spec.v_dim if what == "v" else spec.k_dim / (bands(layout, layer) if what != "k" else 1)
    held = sum(
        run.count - max(0, min(first - run.first, run.count))
        for run in _runs(layout, layer, tokens)
    )
    return spec.kv_heads * held * dim * bits / 8


def _runs(layout: KVLayout, layer: int, tokens: int) -> Iterator[TokenRun]:
    """Positions of a layer that each segment of its kind holds."""
    spec = layout.layers[layer]
    for span in segment_spans(layout, tokens, SEGMENT_TOKENS):
        if span.kind.value == ("window" if spec.window else "run"):
            held = min(span.count, spec.window - 1) if spec.window else span.count
            yield TokenRun(span.stop - held, held)


def choices(
    layout: KVLayout, sensitivities: Sensitivities, tokens: int, *, first: int = SINKS
) -> list[list[Choice]]:
    """What a search may choose from, in the order of :func:`slots`."""
    return [
        [
            Choice(
                bits,
                slot_bytes(layout, slot, bits, tokens, first=first),
                sensitivities.steady_loss(slot, bits),
            )
            for bits in CHOICES
        ]
        for slot in slots(layout)
    ]


# --- searches ------------------------------------------------------------------------------------


class Search:
    """Searches plans for one engine by sensitivities, and checks them on the search's own texts.

    Parameters
    ----------
    references
        Texts to search with, and their exact caches.
    sensitivities
        What single slots cost.
    first
        Tokens that stay exact.
    """

    def __init__(
        self,
        references: Sequence[Reference],
        sensitivities: Sensitivities,
        *,
        first: int = SINKS,
        progress: Progress | None = None,
    ) -> None:
        self.references, self.first = references, first
        self.layout: KVLayout = references[0].engine.layout
        self.tokens = references[0].tokens
        self.options = choices(self.layout, sensitivities, self.tokens, first=first)
        self._say: Progress = progress or (lambda label: None)

    def under_bits(self, name: str, max_bits: float) -> CodecPlan:
        """The plan with the smallest predicted loss of at most ``max_bits`` per element.

        Raises
        ------
        InputError
            Even the smallest plan has more.
        """
        found = self.fitting(name, max_bits)
        if found is None:
            raise InputError(f"no plan takes at most {max_bits} bits per element")
        return found

    def fitting(self, name: str, max_bits: float) -> CodecPlan | None:
        """As :meth:`under_bits`; None where headers leave too little, as in short contexts."""
        budget = max_bits * self._elements / 8
        least = sum(min(choice.cost for choice in slot) for slot in self.options)
        picked = within_cost(self.options, max(budget, least))
        wanted = budget - self._rest(self._plan(name, picked), picked)
        for round_ in range(_ROUNDS):
            if wanted < least:
                return None
            self._say(f"searching {name}: at most {max_bits} bits per element")
            plan = self._plan(name, within_cost(self.options, wanted))
            over = self._size(plan) - budget
            if over <= 0:
                return plan
            wanted -= over + round_ * _SLACK * budget  # headers change a little with every plan
        return None

    def under_loss(self, name: str, max_kl: float, *, max_bits: float | None = None) -> CodecPlan:
        """The smallest plan whose loss on the search's texts is at most ``max_kl``.

        Predictions are corrected by what is measured, a few times.

        Raises
        ------
        InputError
            There is none, or none of at most ``max_bits``.
        """
        finest = within_cost(self.options, float("inf"))
        plan = self._plan(name, finest)
        kl = self.kl(plan)
        rest = max(0.0, kl - sum(choice.loss for choice in finest))
        best = (self._size(plan), plan) if kl <= max_kl else None
        scale = 1.0
        for _ in range(_ROUNDS if best else 0):
            plan = self._plan(name, within_loss(self.options, (max_kl - rest) * scale))
            kl = self.kl(plan)
            self._say(f"searching {name}: KL {kl:.1e} of at most {max_kl:.1e}")
            if kl <= max_kl and best and self._size(plan) < best[0]:
                best = self._size(plan), plan
            if _NEAR * max_kl <= kl <= max_kl:
                break
            scale *= 0.97 * (max_kl - rest) / max(kl - rest, _NEAR * (max_kl - rest) / 8)
        return self._bounded(best, max_kl, max_bits)

    def _bounded(
        self, best: tuple[int, CodecPlan] | None, max_kl: float, max_bits: float | None
    ) -> CodecPlan:
        if best is None:
            raise InputError(f"no plan with a KL of at most {max_kl:.1e} was found")
        bits = 8 * best[0] / self._elements
        if max_bits is not None and bits > max_bits:
            raise InputError(
                f"a KL of at most {max_kl:.1e} takes {bits:.2f} bits per element, "
                f"more than {max_bits}"
            )
        return best[1]

    def kl(self, plan: CodecPlan) -> float:
        """Mean loss of a plan on the search's texts, in nats."""
        return fmean(measure_on(one, plan)[0].kl_mean for one in self.references)

    def _plan(self, name: str, picked: Picked) -> CodecPlan:
        return picked_plan(name, self.layout, picked, first=self.first)

    @property
    def _elements(self) -> int:
        return sum(
            spec.kv_heads * (spec.k_dim + spec.v_dim) * run.count
            for layer, spec in enumerate(self.layout.layers)
            for run in _runs(self.layout, layer, self.tokens)
        )

    def _size(self, plan: CodecPlan) -> int:
        """Bytes of the segment files, by making them."""
        one = self.references[0]
        return coded_cache(one.engine, one.cache, plan, tokens=self.tokens, room=1).size_bytes

    def _rest(self, plan: CodecPlan, picked: Picked) -> float:
        """Bytes of a plan's files that no slot accounts for: headers, parameters, layer 0."""
        return self._size(plan) - sum(choice.cost for choice in picked)
