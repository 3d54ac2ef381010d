"""The cost model: seconds to the first token by every route, from what was measured here.

The phases of a take follow one another, layer by layer in one thread, so their times add up.  Pure
functions; one asks for a handful of them per take.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvbaton.policy.gates import TakeContext
from kvbaton.policy.routes import EXACT, SLICE, TEXT, Prediction, route_name
from kvbaton.policy.speeds import EXACT_CODEC, Speeds, Spread, StoreSpeed
from kvbaton.types import Manifest

SEGMENT_TOKENS = 256
"""Tokens of a full segment, where no manifest says how many there are."""


@dataclass(frozen=True, slots=True)
class CacheTake:
    """What is known of a take by cache before it begins.

    Parameters
    ----------
    prompt_tokens, reusable_tokens
        Tokens of the receiver's prompt, and how many of them the cache covers.
    read_tokens, read_bytes, segments
        What is read, verified and decoded for that: whole segments.
    codec
        Name of the profile, ``exact`` for the cache's own bytes.
    turned_tokens
        Tokens whose keys are turned to other positions.
    recomputed_tokens
        Rows of slices that are computed again.
    """

    prompt_tokens: int
    reusable_tokens: int
    read_tokens: int
    read_bytes: float
    segments: int
    codec: str = EXACT_CODEC
    turned_tokens: int = 0
    recomputed_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds of a take by cache on an idle host, phase by phase as receipts name them.

    ``get_s`` is the store's share of ``get`` and does not depend on how busy the host is;
    ``opening_s`` is the host's.
    """

    get_s: float
    opening_s: float
    verify_s: float
    decode_s: float
    probe_s: float
    align_s: float
    attach_s: float
    forward_s: float
    recompute_s: float
    overhead_s: float

    @property
    def host_s(self) -> float:
        """Everything but the store."""
        return (
            self.opening_s
            + self.verify_s
            + self.decode_s
            + self.probe_s
            + self.align_s
            + self.attach_s
            + self.forward_s
            + self.recompute_s
            + self.overhead_s
        )


def text_s(speeds: Speeds, prompt_tokens: int) -> float:
    """Seconds to the first token by text on an idle host."""
    return speeds.overhead.seconds(prompt_tokens) + speeds.prefill_s(max(1, prompt_tokens))


def cache_phases(speeds: Speeds, take: CacheTake, store: StoreSpeed) -> Phases | None:
    """Seconds of a take by cache on an idle host; None for a codec that was not measured."""
    codec = speeds.codecs.get(take.codec)
    if codec is None:
        return None
    new_tokens = max(1, take.prompt_tokens - take.reusable_tokens)
    reads = take.segments * speeds.layers
    again = take.recomputed_tokens
    return Phases(
        get_s=store.get_s(take.read_bytes, objects=take.segments, reads=reads),
        opening_s=speeds.opening.seconds(take.segments),
        verify_s=speeds.verify.seconds(take.read_bytes),
        decode_s=codec.decode.seconds(take.read_tokens),
        probe_s=speeds.probe.seconds(take.reusable_tokens),
        align_s=speeds.align.seconds(take.turned_tokens) if take.turned_tokens else 0.0,
        attach_s=speeds.attach.seconds(take.reusable_tokens),
        forward_s=speeds.forward_s(new_tokens, take.reusable_tokens),
        recompute_s=speeds.recompute.seconds(again) if again else 0.0,
        overhead_s=speeds.overhead.seconds(take.prompt_tokens),
    )


def predict(
    speeds: Speeds,
    prompt_tokens: int,
    takes: Iterable[tuple[str, CacheTake]],
    *,
    store: str,
    load: float = 1.0,
) -> tuple[Prediction, ...]:
    """Predict text, and those takes by cache, by the name of their route, that can be.

    Parameters
    ----------
    store
        URL of the store that is read from.
    load
        How many times as slow the host is as when its speeds were measured; the store is not.
    """
    found = [_prediction(TEXT, load * text_s(speeds, prompt_tokens), speeds.text_spread)]
    line = speeds.store(store)
    if line is not None:
        for route, take in takes:
            phases = cache_phases(speeds, take, line)
            if phases is not None:
                seconds = phases.get_s + load * phases.host_s
                found.append(_prediction(route, seconds, speeds.cache_spread))
    return tuple(found)


def _prediction(route: str, seconds: float, spread: Spread) -> Prediction:
    return Prediction(route, seconds, seconds * spread.low, seconds * spread.high)


# --- of a baton that is there ------------------------------------------------------------------


def predictions_for(
    speeds: Speeds,
    manifest: Manifest,
    context: TakeContext,
    *,
    store: str,
    load: float = 1.0,
    recompute_share: float = 0.0,
) -> tuple[Prediction, ...]:
    """What is predicted of text and of a baton's cache, for the gate ``worth_it``.

    A slice is held against text for its own tokens, and as many beside them at most.

    Parameters
    ----------
    speeds
        Of the receiver's function; those of another predict nothing.
    store
        URL of the store that holds the baton.
    load
        See ``predict``.
    recompute_share
        Share of a slice's rows that are computed again.
    """
    if context.function.digest != speeds.function:
        return ()
    take = _take_of(manifest, context, recompute_share)
    takes = [(route_name(manifest, sliced=context.sliced), take)] if take.reusable_tokens else []
    return predict(speeds, take.prompt_tokens, takes, store=store, load=load)


def _take_of(manifest: Manifest, context: TakeContext, share: float) -> CacheTake:
    reusable = min(context.reusable_tokens, manifest.cached_tokens)
    read = [ref for ref in manifest.segments if context.sliced or ref.run.first < reusable]
    moved = any(ref.moved for ref in read)
    fidelity, prompt = manifest.fidelity, context.prompt_tokens
    if context.sliced:
        # what a prompt holds beyond as much again may well come from other slices: were it
        # counted, many small ones could never be worth it
        prompt = min(prompt, 2 * max(1, reusable))
    return CacheTake(
        prompt_tokens=prompt,
        reusable_tokens=reusable,
        read_tokens=sum(ref.span.count for ref in read),
        read_bytes=sum(ref.size_bytes for ref in read),
        segments=len(read),
        codec=fidelity.codec if fidelity.compressed else EXACT_CODEC,
        turned_tokens=reusable if context.sliced or moved else 0,
        recomputed_tokens=round(share * reusable) if context.sliced else 0,
    )


# --- of a baton that is yet to be made ---------------------------------------------------------


def predictions_ahead(
    speeds: Speeds,
    *,
    cached_tokens: int,
    new_tokens: int,
    store: str,
    load: float = 1.0,
    recompute_share: float = 0.0,
    segment_tokens: int = SEGMENT_TOKENS,
) -> tuple[Prediction, ...]:
    """What every route would take: text, ``exact``, each measured profile, and ``slice``.

    Parameters
    ----------
    cached_tokens
        Of the context that would be handed off.
    new_tokens
        That the receiver would compute behind it.
    segment_tokens
        Tokens of a full segment.
    """
    prompt = cached_tokens + new_tokens
    codecs = sorted(speeds.codecs, key=lambda name: (name != EXACT_CODEC, name))
    takes = [
        (EXACT if name == EXACT_CODEC else name, take_ahead(speeds, name, cached_tokens, prompt,
                                                            segment_tokens=segment_tokens))
        for name in codecs
    ]  # fmt: skip
    if EXACT_CODEC in speeds.codecs:
        moved = take_ahead(
            speeds, EXACT_CODEC, cached_tokens, prompt,
            segment_tokens=segment_tokens, turned=True, recompute_share=recompute_share,
        )  # fmt: skip
        takes.append((SLICE, moved))
    return predict(speeds, prompt, takes, store=store, load=load)


def take_ahead(
    speeds: Speeds,
    codec: str,
    cached_tokens: int,
    prompt_tokens: int,
    *,
    segment_tokens: int = SEGMENT_TOKENS,
    turned: bool = False,
    recompute_share: float = 0.0,
) -> CacheTake:
    """The take of a context that would be encoded by a measured codec."""
    return CacheTake(
        prompt_tokens=prompt_tokens,
        reusable_tokens=cached_tokens,
        read_tokens=cached_tokens,
        read_bytes=cached_tokens * speeds.codecs[codec].token_bytes,
        segments=-(-cached_tokens // segment_tokens),
        codec=codec,
        turned_tokens=cached_tokens if turned else 0,
        recomputed_tokens=round(recompute_share * cached_tokens),
    )


def hand_off_s(
    speeds: Speeds, codec: str, tokens: int, *, store: str, load: float = 1.0
) -> float | None:
    """Seconds in which a sender encodes and stores so many tokens; None where not measured.

    Behind the last token of an answer that was streamed these are those of the last segment.
    """
    found, line = speeds.codecs.get(codec), speeds.store(store)
    if found is None or line is None:
        return None
    size_bytes = tokens * found.token_bytes
    return load * found.encode.seconds(tokens) + line.open_s + size_bytes / line.put_bytes_per_s
