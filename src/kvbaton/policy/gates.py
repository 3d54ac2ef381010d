"""Gates: each looks at a manifest and a context and says ``Allow``, ``Degrade`` or ``Deny``.

Pure functions, in the order in which they are asked; the first that denies decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvbaton.types import (
    Allow,
    Degrade,
    Deny,
    Fidelity,
    FidelityClass,
    FunctionId,
    KVLayout,
    Manifest,
    Reason,
    ReasonCode,
    Route,
    Verdict,
    worst_fidelity,
)
from kvbaton.wire.limits import MAX_HOPS


@dataclass(frozen=True, slots=True)
class TakeContext:
    """What the receiver knows before any segment is read.

    ``reusable_tokens`` is the longest common prefix of the baton's ids and the receiver's prompt,
    at least one short of the prompt; ``room_tokens`` is room for generation.  ``max_lossy_hops``
    is how many lossy or approximate hand-offs since the last exact prefill are accepted (None: any
    number); ``calibrations`` are the digests of the calibration records that are known for the
    receiver's function, and ``model`` is what the command that makes one calls it.  ``sliced``
    says that the cache comes to stand behind other tokens than those it was computed behind.
    """

    function: FunctionId
    layout: KVLayout
    max_tokens: int
    prompt_tokens: int
    reusable_tokens: int
    room_tokens: int
    free_memory_bytes: int
    minimum: FidelityClass = FidelityClass.APPROXIMATE
    max_lossy_hops: int | None = 3
    calibrations: frozenset[str] = frozenset()
    model: str = ""
    sliced: bool = False


Gate = Callable[[Manifest, TakeContext], Verdict]


def _deny(code: ReasonCode, sentence: str) -> Deny:
    return Deny(Reason(code, sentence))


def compatibility(manifest: Manifest, context: TakeContext) -> Verdict:
    """The cache must come from the very same function."""
    if manifest.function.digest == context.function.digest:
        return Allow()
    parts = manifest.function.differing(context.function) or ("digest",)
    return _deny(
        ReasonCode.FUNCTION_DIFFERS,
        f"the cache comes from another function: {', '.join(parts)} "
        f"{'differs' if len(parts) == 1 else 'differ'}",
    )


def fidelity(manifest: Manifest, context: TakeContext) -> Verdict:
    """The cache must be at least as faithful as the receiver asks for."""
    moved = Fidelity(FidelityClass.APPROXIMATE) if context.sliced else Fidelity()
    found = worst_fidelity(manifest.fidelity, moved)
    if found.rank <= Fidelity(context.minimum).rank:
        return Allow()
    return _deny(
        ReasonCode.FIDELITY,
        f"the cache is {found.kind}, the receiver asks for {context.minimum}",
    )


def calibration(manifest: Manifest, context: TakeContext) -> Verdict:
    """What a lossy codec encoded must have been measured for this model: a record is known."""
    promised = [manifest.fidelity, *(ref.fidelity for ref in manifest.segments)]
    for fidelity in promised:
        if _needs_record(fidelity) and fidelity.calibration not in context.calibrations:
            return _deny(
                ReasonCode.CALIBRATION,
                f"no calibration record is known here for codec {fidelity.codec!r} on this model; "
                f"make one with: kvbaton tune-codec {context.model or 'MODEL'}",
            )
    return Allow()


def _needs_record(fidelity: Fidelity) -> bool:
    """Whether a codec has lost something: what is approximate may still be the raw bytes."""
    return fidelity.kind is FidelityClass.LOSSY or fidelity.codec != Fidelity().codec


def hops(manifest: Manifest, context: TakeContext) -> Verdict:
    """After too many lossy hand-offs the ids are prefilled, and an exact baton can begin anew."""
    limit, lossy = context.max_lossy_hops, manifest.hops.lossy
    if limit is None or lossy <= limit:
        return Allow()
    if lossy >= MAX_HOPS:
        return _deny(
            ReasonCode.HOPS,
            "the lossy hand-offs since the last exact prefill cannot be counted: a parent is "
            "missing",
        )
    return _deny(
        ReasonCode.HOPS,
        f"{lossy} lossy or approximate hand-offs since the last exact prefill, and at most "
        f"{limit} are accepted",
    )


def has_kv(manifest: Manifest, context: TakeContext) -> Verdict:
    """A text-only baton has no cache to attach."""
    if manifest.segments:
        return Allow()
    return _deny(ReasonCode.NO_KV, "the baton carries text only")


def divergence(manifest: Manifest, context: TakeContext) -> Verdict:
    """The receiver's prompt must begin with the baton's tokens; a shorter match is partial."""
    reusable, cached = context.reusable_tokens, manifest.cached_tokens
    if reusable >= cached:
        return Allow()
    if reusable == 0:
        return _deny(
            ReasonCode.TOKENS_DIVERGE, "the receiver's prompt differs from the first token on"
        )
    where = f"the receiver's prompt differs from the baton's tokens at position {reusable}"
    if context.layout.window_layers:
        return _deny(
            ReasonCode.WINDOW_STATE,
            f"{where}, and window layers are known only at position {cached}",
        )
    return Degrade(Route.PARTIAL, Reason(ReasonCode.TOKENS_DIVERGE, where))


def window(manifest: Manifest, context: TakeContext) -> Verdict:
    """Prompt and at least one new token must fit into the model's window."""
    if context.prompt_tokens <= context.max_tokens:
        return Allow()
    return _deny(
        ReasonCode.WINDOW_EXCEEDED,
        f"{context.prompt_tokens} tokens do not fit the model's window of {context.max_tokens}",
    )


def memory(manifest: Manifest, context: TakeContext) -> Verdict:
    """The attached cache must fit into free memory."""
    needed = context.layout.cache_bytes(context.prompt_tokens + context.room_tokens)
    if needed <= context.free_memory_bytes:
        return Allow()
    return _deny(
        ReasonCode.MEMORY,
        f"the cache needs {needed} bytes and {context.free_memory_bytes} are free",
    )


GATES: tuple[Gate, ...] = (
    has_kv, compatibility, fidelity, calibration, hops, divergence, window, memory,
)  # fmt: skip
"""All gates in their order."""


SLICE_GATES: tuple[Gate, ...] = tuple(gate for gate in GATES if gate is not divergence)
"""The gates of a slice: its ids are the receiver's own choice, so nothing can diverge."""


def decide(
    manifest: Manifest, context: TakeContext, gates: Sequence[Gate] = GATES
) -> tuple[Route, tuple[Reason, ...]]:
    """Ask the gates in order; the route that is left and the reasons against better ones."""
    route, reasons = Route.BATON, []
    for gate in gates:
        verdict = gate(manifest, context)
        if isinstance(verdict, Deny):
            return Route.TEXT, (verdict.reason,)
        if isinstance(verdict, Degrade):
            route = verdict.to
            reasons.append(verdict.reason)
    return route, tuple(reasons)
