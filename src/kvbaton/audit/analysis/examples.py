"""Questions that a treatment answers otherwise than its reference, side by side."""

from __future__ import annotations

from collections.abc import Sequence

from kvbaton.audit.analysis.blocks import Block, is_right
from kvbaton.audit.analysis.result import FlipExample
from kvbaton.audit.analysis.runs import Compared

MOST = 6
"""Per treatment."""


def flip_examples(
    blocks: Sequence[Block], treatments: Sequence[Compared], *, most: int = MOST
) -> list[FlipExample]:
    """Lost answers first, one per unit before a second one of any; controls come last."""
    ordered = sorted(treatments, key=lambda t: t.role == "control")
    return [example for treatment in ordered for example in _of(blocks, treatment)[:most]]


def _of(blocks: Sequence[Block], treatment: Compared) -> list[FlipExample]:
    ranked: list[tuple[tuple[int, int, str, str], FlipExample]] = []
    for block in blocks:
        one, two = block.answers(treatment.name), block.answers(treatment.reference)
        seen = 0
        for question in sorted(one.keys() & two.keys()):
            now, was = is_right(one[question]), is_right(two[question])
            if now is None or was is None or now == was:
                continue
            words = block.asked.get(question)
            example = FlipExample(
                unit=block.unit,
                treatment=treatment.name,
                question=words.text if words else question,
                kind="gained" if now else "lost",
                expected=words.expected if words else None,
                reference_text=str(two[question].get("text", "")),
                text=str(one[question].get("text", "")),
            )
            ranked.append(((int(now), seen, block.unit, question), example))
            seen += 1
    return [example for _, example in sorted(ranked, key=lambda pair: pair[0])]
