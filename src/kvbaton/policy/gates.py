"""Gates: each looks at a manifest and a context and says ``Allow``, ``Degrade`` or ``Deny``.

Pure functions, in the order in which they are asked; the first that denies decides.  Gates of the
owner's rules let everything pass until a rule is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kvbaton.policy.judgements import Judgement, ruling
from kvbaton.policy.routes import EXACT, TEXT, Prediction, fastest, find_prediction, route_name
from kvbaton.policy.rules import NO_RULES, PolicyRules, StaleRule
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

    ``rules`` are the owner's.  ``killed`` says who has switched hand-off off; empty where nobody
    has.  ``distrust`` is why the baton is not trusted, where that is known.  ``standing`` is
    ``current``, ``stale`` (``stale_why`` is a sentence) or ``unknown``, as the ledger says;
    ``moves_per_minute`` is how often the baton's ref has moved of late, None where unknown;
    ``tags`` are those of the task; ``predictions`` are of routes to the first token, empty where
    nothing was measured.
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
    rules: PolicyRules = NO_RULES
    killed: str = ""
    distrust: Reason | None = None
    standing: str = "unknown"
    stale_why: str = ""
    moves_per_minute: float | None = None
    tags: frozenset[str] = frozenset()
    predictions: tuple[Prediction, ...] = ()


Gate = Callable[[Manifest, TakeContext], Verdict]


def _deny(code: ReasonCode, sentence: str) -> Deny:
    return Deny(Reason(code, sentence))


def kill_switch(manifest: Manifest, context: TakeContext) -> Verdict:
    """While hand-off is switched off, no cache is used."""
    if not context.killed:
        return Allow()
    return _deny(ReasonCode.KILL_SWITCH, f"hand-off is switched off: {context.killed}")


def trust(manifest: Manifest, context: TakeContext) -> Verdict:
    """The baton must be authentic; decided when it was opened."""
    refused = context.distrust
    if refused is None or _is_of_ticket(refused):
        return Allow()
    return Deny(refused)


def audience(manifest: Manifest, context: TakeContext) -> Verdict:
    """The receiver must be allowed to take the baton; decided when it was opened."""
    refused = context.distrust
    if refused is None or not _is_of_ticket(refused):
        return Allow()
    return Deny(refused)


def _is_of_ticket(reason: Reason) -> bool:
    return reason.code.value.startswith("ticket-")


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
    asked = (Fidelity(context.minimum), Fidelity(context.rules.minimum_fidelity))
    minimum = min(asked, key=lambda one: one.rank)
    if found.rank <= minimum.rank:
        return Allow()
    return _deny(
        ReasonCode.FIDELITY, f"the cache is {found.kind}, the receiver asks for {minimum.kind}"
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
    limits = (context.max_lossy_hops, context.rules.max_lossy_hops)
    limit = min((one for one in limits if one is not None), default=None)
    lossy = manifest.hops.lossy
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
        f"{limit} are accepted{_reference(manifest)}",
    )


def exact_hops(manifest: Manifest, context: TakeContext) -> Verdict:
    """A chain may be only so long since somebody has read the text."""
    limit, exact = context.rules.max_exact_hops, manifest.hops.exact
    if limit is None or exact <= limit:
        return Allow()
    if exact >= MAX_HOPS:
        return _deny(
            ReasonCode.EXACT_HOPS,
            "the exact hand-offs since the last prefill cannot be counted: a parent is missing",
        )
    return _deny(
        ReasonCode.EXACT_HOPS,
        f"{exact} exact hand-offs since the last prefill from text, and at most {limit} are "
        f"accepted{_reference(manifest)}",
    )


def _reference(manifest: Manifest) -> str:
    """Which state of a context that goes by text is read."""
    return f"; the text of {manifest.ref}@{manifest.sequence} is read" if manifest.ref else ""


def freshness(manifest: Manifest, context: TakeContext) -> Verdict:
    """A baton whose context is no longer current is replaced, refused or labelled."""
    rules = context.rules
    if context.standing == "stale":
        reason = Reason(ReasonCode.STALE, _stale_sentence(manifest, context))
        return Degrade(Route.BATON, reason) if rules.stale is StaleRule.LABEL else Deny(reason)
    if context.standing == "current" or not rules.known_freshness:
        return Allow()
    return _deny(
        ReasonCode.FRESHNESS_UNKNOWN,
        "nobody can say whether the baton's context is the current one, and that is asked for",
    )


def _stale_sentence(manifest: Manifest, context: TakeContext) -> str:
    based = f", {manifest.ref}@{manifest.sequence}" if manifest.ref else ""
    why = f": {context.stale_why}" if context.stale_why else ""
    return f"based on stale context{based}{why}"


def allow_list(manifest: Manifest, context: TakeContext) -> Verdict:
    """The baton's route must be one that may be taken."""
    name = route_name(manifest, sliced=context.sliced)
    if context.rules.allows(name):
        return Allow()
    listed = ", ".join(sorted(context.rules.routes or ())) or "text only"
    return _deny(
        ReasonCode.ROUTE_NOT_ALLOWED, f"the route {name!r} is not allowed here; allowed: {listed}"
    )


def critical_path(manifest: Manifest, context: TakeContext) -> Verdict:
    """Tasks on the critical path accept exact caches only."""
    rules = context.rules
    if not rules.is_critical(context.tags):
        return Allow()
    if route_name(manifest, sliced=context.sliced) == EXACT:
        return Allow()
    tags = ", ".join(sorted(rules.critical_tags & context.tags))
    return _deny(
        ReasonCode.CRITICAL_PATH,
        f"the task is on the critical path ({tags}), which accepts exact caches only",
    )


def rounds(manifest: Manifest, context: TakeContext) -> Verdict:
    """After so many rounds between agents, the text is read again."""
    limit, found = context.rules.max_rounds, manifest.terms.round
    if limit is None or found <= limit:
        return Allow()
    return _deny(ReasonCode.ROUNDS, f"round {found} of the chain, and at most {limit} are accepted")


def change_rate(manifest: Manifest, context: TakeContext) -> Verdict:
    """A context that changes all the time is stale before it is used."""
    limit, found = context.rules.max_moves_per_minute, context.moves_per_minute
    if limit is None or found is None or found <= limit:
        return Allow()
    return _deny(
        ReasonCode.CHANGE_RATE,
        f"the ref {manifest.ref!r} moves {found:.3g} times a minute, and at most {limit:.3g} are "
        f"accepted{_reference(manifest)}",
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


def minimum_length(manifest: Manifest, context: TakeContext) -> Verdict:
    """Too few tokens are not worth a look at the store."""
    needed = context.rules.min_tokens
    found = min(context.reusable_tokens, manifest.cached_tokens)
    if found >= needed:
        return Allow()
    return _deny(
        ReasonCode.TOO_SHORT, f"{found} tokens could be reused, and at least {needed} are asked for"
    )


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


def worth_it(manifest: Manifest, context: TakeContext) -> Verdict:
    """The cache must be predicted to be faster than text, where anything is predicted."""
    name = route_name(manifest, sliced=context.sliced)
    predictions = context.predictions
    text, cache = find_prediction(predictions, TEXT), find_prediction(predictions, name)
    if text is None or cache is None or not context.rules.worth_it:
        return Allow()
    best = fastest((text, cache), (TEXT, name), tie=context.rules.tie)
    if best is None or best is cache:
        return Allow()
    return _deny(
        ReasonCode.TEXT_FASTER,
        f"predicted are {text.ttft_s:.3g} s to the first token by text and {cache.ttft_s:.3g} s by "
        f"the route {name!r}",
    )


GATES: tuple[Gate, ...] = (
    kill_switch, trust, audience, has_kv, compatibility, freshness, allow_list, fidelity,
    critical_path, calibration, hops, exact_hops, rounds, change_rate, divergence, minimum_length,
    window, memory, worth_it,
)  # fmt: skip
"""All gates in their order."""


HOP_GATES = frozenset({"hops", "exact-hops"})
"""Names of the gates that count hand-offs."""

SLICE_GATES: tuple[Gate, ...] = tuple(gate for gate in GATES if gate is not divergence)
"""The gates of a slice: its ids are the receiver's own choice, so nothing can diverge."""


def gate_name(gate: Gate) -> str:
    """A gate's name, as explanations and receipts have it."""
    return gate.__name__.replace("_", "-")


def examine(
    manifest: Manifest, context: TakeContext, gates: Sequence[Gate] = GATES
) -> tuple[Judgement, ...]:
    """What every gate says, also those after the first that denies."""
    return tuple(_judgements(manifest, context, gates))


def _judgements(
    manifest: Manifest, context: TakeContext, gates: Sequence[Gate]
) -> Iterator[Judgement]:
    return (Judgement(gate_name(gate), gate(manifest, context)) for gate in gates)


def decide(
    manifest: Manifest, context: TakeContext, gates: Sequence[Gate] = GATES
) -> tuple[Route, tuple[Reason, ...]]:
    """Ask the gates in order; the route that is left and the reasons against better ones."""
    found = ruling(_judgements(manifest, context, gates))
    return found.route, found.reasons
