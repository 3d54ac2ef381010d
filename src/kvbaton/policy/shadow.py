"""Shadows: what the answer by cache would have been, held against the one by text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvbaton.errors import InputError
from kvbaton.types import JSON, common_prefix


@dataclass(frozen=True, slots=True)
class ShadowReport:
    """An answer by text, which was given, against one by a cache, which nobody saw.

    Parameters
    ----------
    route
        Name of the route that was compared with text.
    text_tokens, shadow_tokens
        Lengths of both answers.
    same_tokens
        Tokens that both have in common at the beginning.
    first_divergence
        Position of the first token that differs; None where the answers are the same.
    kl
        Mean divergence in nats of the next token, from text to shadow; None where not measured.
    text_ttft_s, shadow_ttft_s
        Seconds to the first token; None where not measured.
    """

    route: str
    text_tokens: int
    shadow_tokens: int
    same_tokens: int
    first_divergence: int | None
    kl: float | None = None
    text_ttft_s: float | None = None
    shadow_ttft_s: float | None = None

    @property
    def identical(self) -> bool:
        """Whether both answers are the same, token by token."""
        return self.first_divergence is None

    def to_json(self) -> JSON:
        """A JSON object of all fields; no token stands in it."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def compare_answers(
    text_ids: Sequence[int],
    shadow_ids: Sequence[int],
    *,
    route: str,
    kl: float | None = None,
    text_ttft_s: float | None = None,
    shadow_ttft_s: float | None = None,
) -> ShadowReport:
    """Hold a shadow's answer against the one by text.

    Raises
    ------
    InputError
        A divergence or a time that is negative or not finite.
    """
    measured = {"kl": kl, "text_ttft_s": text_ttft_s, "shadow_ttft_s": shadow_ttft_s}
    for name, value in measured.items():
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise InputError("must be finite and not negative", at=f"$.{name}")
    same = common_prefix(text_ids, shadow_ids) if text_ids and shadow_ids else 0
    alike = same == len(text_ids) == len(shadow_ids)
    return ShadowReport(
        route=route,
        text_tokens=len(text_ids),
        shadow_tokens=len(shadow_ids),
        same_tokens=same,
        first_divergence=None if alike else same,
        kl=kl,
        text_ttft_s=text_ttft_s,
        shadow_ttft_s=shadow_ttft_s,
    )


@dataclass(frozen=True, slots=True)
class ShadowSummary:
    """Many shadows of one route.

    ``identical`` of ``count`` answers are the same token by token; ``same_share`` is the share of
    the text's tokens that come before the first difference; ``kl`` is the mean of those measured,
    and ``worst_kl`` the largest; ``ttft_ratio`` is the shadows' time to the first token over the
    text's, summed over those that have both.
    """

    route: str
    count: int
    identical: int
    same_share: float
    kl: float | None
    worst_kl: float | None
    ttft_ratio: float | None

    def to_json(self) -> JSON:
        """A JSON object of all fields."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def sum_up(reports: Sequence[ShadowReport]) -> tuple[ShadowSummary, ...]:
    """Sum shadows up, route by route, routes sorted."""
    routes = sorted({one.route for one in reports})
    return tuple(
        _summary(route, [one for one in reports if one.route == route]) for route in routes
    )


def _summary(route: str, reports: Sequence[ShadowReport]) -> ShadowSummary:
    tokens = sum(one.text_tokens for one in reports)
    kls = [one.kl for one in reports if one.kl is not None]
    times = [
        (one.text_ttft_s, one.shadow_ttft_s)
        for one in reports
        if one.text_ttft_s is not None and one.shadow_ttft_s is not None
    ]
    by_text = math.fsum(text for text, _ in times)
    return ShadowSummary(
        route=route,
        count=len(reports),
        identical=sum(one.identical for one in reports),
        same_share=sum(one.same_tokens for one in reports) / tokens if tokens else 1.0,
        kl=math.fsum(kls) / len(kls) if kls else None,
        worst_kl=max(kls, default=None),
        ttft_ratio=math.fsum(shadow for _, shadow in times) / by_text if by_text else None,
    )
