"""Frozen value objects: the vocabulary of ``docs/design.md`` as types, one per arrow.

Tensors appear in annotations only, so this module imports nothing heavy.  Shapes are written
``[kv_heads, tokens, head_dim]`` and are always one sequence; keys are *after* RoPE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from kvbaton.kinds import FidelityClass as FidelityClass
from kvbaton.kinds import Importance as Importance
from kvbaton.kinds import Mode as Mode
from kvbaton.kinds import Outcome as Outcome
from kvbaton.kinds import ReasonCode as ReasonCode
from kvbaton.kinds import Role as Role
from kvbaton.kinds import Route as Route
from kvbaton.kinds import SegmentKind as SegmentKind
from kvbaton.layouts import DTYPE_BYTES as DTYPE_BYTES
from kvbaton.layouts import KVLayout as KVLayout
from kvbaton.layouts import LayerKind as LayerKind
from kvbaton.layouts import LayerLayout as LayerLayout
from kvbaton.layouts import Pairing as Pairing
from kvbaton.layouts import RopeSpec as RopeSpec

if TYPE_CHECKING:
    import torch

JSON = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FunctionId:
    """Identity of the function that produced a cache.

    ``parts`` maps part names (``weights``, ``config``, ``rope``, ``tokenizer``, ``template``,
    ``adapter``, ``dtype``, ``quantization``, ``aligner``) to digests or plain values, sorted.
    ``digest`` is the BLAKE3 digest (hex) over them.
    """

    digest: str
    parts: tuple[tuple[str, str], ...]

    def differing(self, other: FunctionId) -> tuple[str, ...]:
        """Names of the parts in which two functions differ."""
        mine, theirs = dict(self.parts), dict(other.parts)
        return tuple(sorted(k for k in mine.keys() | theirs.keys() if mine.get(k) != theirs.get(k)))


@dataclass(frozen=True, slots=True)
class Fidelity:
    """What the bytes promise.  ``calibration`` is the digest of a calibration record."""

    kind: FidelityClass = FidelityClass.EXACT
    codec: str = "raw"
    calibration: str | None = None

    @property
    def rank(self) -> int:
        """0 for exact, larger is worse."""
        return list(FidelityClass).index(self.kind)

    @property
    def compressed(self) -> bool:
        """Whether a codec has lost something of it, whatever its class."""
        return self.codec != "raw"

    def to_json(self) -> JSON:
        """``{"class", "codec", "calibration"}``."""
        return {"class": self.kind.value, "codec": self.codec, "calibration": self.calibration}


EXACT = Fidelity()
"""Lossless bytes of the sender's own cache."""


def worst_fidelity(*several: Fidelity) -> Fidelity:
    """The worst class of several, with the codec of the worst one that has lost something."""
    worst = max(several, key=lambda f: f.rank, default=Fidelity())
    lossy = [f for f in several if f.compressed]
    if not lossy or worst.compressed:
        return worst
    return replace(max(lossy, key=lambda f: f.rank), kind=worst.kind)


@dataclass(frozen=True, slots=True)
class TokenRun:
    """Positions ``first`` to ``first + count - 1`` of a sequence."""

    first: int
    count: int

    @property
    def stop(self) -> int:
        """One past the last position."""
        return self.first + self.count


@dataclass(frozen=True, slots=True)
class Move:
    """Positions ``run`` of a baton that come to stand at ``to`` and the following positions."""

    run: TokenRun
    to: int


@dataclass(frozen=True, slots=True)
class SegmentSpan(TokenRun):
    """A run of tokens that becomes one segment."""

    kind: SegmentKind = SegmentKind.RUN


# --- the arrows of hand_off: export -> slice -> encode -> seal -> put --------------------------


@dataclass(frozen=True, slots=True)
class ExportedLayer:
    """K ``[kv_heads, tokens, k_dim]`` and V ``[kv_heads, tokens, v_dim]`` of one layer, at the
    positions ``run``, in the cache's own dtype.  A copy on the host that nobody else writes."""

    span: SegmentSpan
    layer: int
    run: TokenRun
    keys: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class SlicedLayer(ExportedLayer):
    """An exported layer of which only the wanted positions are left."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where K or V of one layer belongs: what a codec may know besides the numbers.

    ``name`` is ``k`` or ``v``; ``first`` is the position of the first token in the sequence in
    which it was computed; ``rope`` is how keys of this layer were rotated, None where they were
    not (and for values).
    """

    name: Literal["k", "v"]
    layer: int
    first: int
    rope: RopeSpec | None = None


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as it lies in a segment: ``name`` without the layer prefix (``k``, ``v``,
    ``k.scale``), safetensors ``dtype``, ``shape``, and its little-endian bytes in C order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview


@dataclass(frozen=True, slots=True)
class EncodedLayer:
    """The stored tensors of one layer, sorted by name, and the codec chains that made K and V."""

    span: SegmentSpan
    layer: int
    run: TokenRun
    k_codec: tuple[JSON, ...]
    v_codec: tuple[JSON, ...]
    tensors: tuple[StoredTensor, ...]
    fidelity: Fidelity = field(default_factory=Fidelity)


# --- what lies in a store ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """One entry of a segment's header: full name, dtype, shape, byte range within the body."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class LayerRange:
    """The bytes of one layer in a segment's body.

    ``run`` are the positions that the layer covers (window layers may cover fewer than the
    segment); ``k_codec`` and ``v_codec`` index ``SegmentHeader.codecs``; ``digest`` is the
    BLAKE3-256 (hex) of ``body[start:stop]``.
    """

    layer: int
    run: TokenRun
    start: int
    stop: int
    digest: str
    k_codec: int = 0
    v_codec: int = 0


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """Everything that a segment says about itself.  ``prefix_key`` hashes all tokens before
    ``span.first``; ``token_digest`` those of the segment; both keyed by the trust domain."""

    span: SegmentSpan
    function: str
    layout: KVLayout
    codecs: tuple[tuple[JSON, ...], ...]
    fidelity: Fidelity
    token_digest: str
    prefix_key: str
    producer: tuple[tuple[str, str], ...]
    ranges: tuple[LayerRange, ...]
    tensors: tuple[TensorRecord, ...]
    body_start: int = 0

    @property
    def size_bytes(self) -> int:
        """Size of the whole file."""
        return self.body_start + (self.ranges[-1].stop if self.ranges else 0)


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """A segment ready to be put: its address, and the parts whose concatenation is the file."""

    address: str
    header: SegmentHeader
    parts: tuple[memoryview, ...]


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """A segment as a manifest lists it.

    ``span`` are the positions at which it was computed.  ``shift`` is how far it was moved from
    there, behind other tokens than those it was computed behind, so that its keys are rotated
    when it is attached; None where it stands in its place.
    """

    address: str
    span: SegmentSpan
    size_bytes: int
    fidelity: Fidelity = field(default_factory=Fidelity)
    shift: int | None = None

    @property
    def run(self) -> TokenRun:
        """Its positions in the baton."""
        return TokenRun(self.span.first + (self.shift or 0), self.span.count)

    @property
    def moved(self) -> bool:
        """Whether it stands behind other tokens than those it was computed behind."""
        return self.shift is not None

    @property
    def promised(self) -> Fidelity:
        """What it promises where it stands: what was moved is approximate."""
        if not self.moved:
            return self.fidelity
        return replace(self.fidelity, kind=FidelityClass.APPROXIMATE)


@dataclass(frozen=True, slots=True)
class Span:
    """A run of tokens with its role.  ``shift`` is the distance that a slice was moved by."""

    role: Role
    run: TokenRun
    shift: int = 0


@dataclass(frozen=True, slots=True)
class Hops:
    """Hand-offs since the last prefill from text: exact ones, and lossy or approximate ones."""

    exact: int = 0
    lossy: int = 0


@dataclass(frozen=True, slots=True)
class Terms:
    """What the sender tells the receiver besides the context."""

    instruction: str = ""
    summary: str = ""
    goal: str = ""
    round: int = 0
    receiver: str = ""


@dataclass(frozen=True, slots=True)
class BlockScores:
    """How much attention blocks of ``block_tokens`` positions got, from position 0 on: 0 to 255,
    relative to the most important one."""

    block_tokens: int
    scores: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Export:
    """A text-only baton is for this other ``domain``.  ``salt`` (64 hexadecimal digits, random)
    keys its digests in place of a domain's secret, which the other one does not have."""

    domain: str
    salt: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The payload of a baton.

    ``created_ms`` and ``expires_ms`` are milliseconds since the epoch, 0 for a baton that does not
    expire; ``sequence`` is -1 where no ref was moved; ``importance`` is None where the sender
    recorded none.  ``signers`` are the key ids of all its ancestors' signers, sorted.  ``noise``
    is the relative size of the noise that was added to K and V.  ``redacted`` names what was taken
    out of a text-only baton; ``export`` says for which other domain it is.
    """

    function: FunctionId
    domain: str
    sender: str
    mode: Mode
    created_ms: int
    cached_tokens: int
    pending_tokens: int
    token_digest: str
    transcript: str
    transcript_bytes: int
    spans: tuple[Span, ...]
    segments: tuple[SegmentRef, ...]
    fidelity: Fidelity
    hops: Hops
    parents: tuple[str, ...]
    terms: Terms
    producer: tuple[tuple[str, str], ...]
    ref: str = ""
    sequence: int = -1
    importance: BlockScores | None = None
    expires_ms: int = 0
    export: Export | None = None
    signers: tuple[str, ...] = ()
    noise: float = 0.0
    redacted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Transcript:
    """Token ids (cached, then pending), the text they stand for, and the chat messages it came
    from (``role``, ``content`` and, for tools, further string-valued or JSON fields)."""

    ids: tuple[int, ...]
    text: str
    messages: tuple[JSON, ...] = ()


@dataclass(frozen=True, slots=True)
class BatonRef:
    """A small reference: the baton's id and the URL of the store that holds it."""

    id: str
    store: str


@dataclass(frozen=True, slots=True)
class Baton:
    """A baton in process: its reference with manifest and transcript, so it always answers.

    ``manifest`` says what is believed: hops and fidelity as its verified parents allow.
    ``signer`` is the id of the key that signed ``envelope``, its exact bytes; ``warnings`` say
    what could not be verified.  One that was only ``looked_at`` is no better than its reference.
    Pickled it is its reference: another process verifies it, and asks for a ticket.
    """

    ref: BatonRef
    manifest: Manifest
    transcript: Transcript = field(repr=False)
    signer: str = ""
    envelope: bytes = field(default=b"", repr=False, compare=False)
    warnings: tuple[Reason, ...] = ()
    bytes_written: int = 0
    bytes_deduplicated: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    looked_at: bool = False

    def __reduce__(self) -> tuple[type[BatonRef], tuple[str, str]]:
        return BatonRef, (self.ref.id, self.ref.store)

    def __copy__(self) -> Baton:
        return self

    def __deepcopy__(self, memo: object) -> Baton:
        return self

    @property
    def id(self) -> str:
        """BLAKE3 digest (hex) of the manifest's exact bytes."""
        return self.ref.id

    @property
    def store(self) -> str:
        """URL of the store."""
        return self.ref.store


# --- the arrows of take: get -> verify -> decode -> align -> attach ----------------------------


@dataclass(frozen=True, slots=True)
class FetchedLayer:
    """Bytes of one layer range, copied into memory that nobody else can write; not yet trusted."""

    header: SegmentHeader
    range: LayerRange
    data: memoryview


@dataclass(frozen=True, slots=True)
class VerifiedLayer(FetchedLayer):
    """A fetched layer whose bytes have the promised digest.  Only these can be decoded."""


@dataclass(frozen=True, slots=True)
class DecodedLayer:
    """K and V of one layer at positions ``run``; valid until the iterator moves on."""

    span: SegmentSpan
    layer: int
    run: TokenRun
    keys: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class AlignedLayer(DecodedLayer):
    """A decoded layer whose keys stand at the receiver's positions."""


# --- decisions and evidence --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reason:
    """A code for machines and a sentence for people; ``at`` is the place in the data."""

    code: ReasonCode
    sentence: str
    at: str = ""

    def to_json(self) -> JSON:
        """``{"code", "sentence"}`` and, where there is one, ``"at"``."""
        out = {"code": self.code.value, "sentence": self.sentence}
        return out | {"at": self.at} if self.at else out


@dataclass(frozen=True, slots=True)
class Allow:
    """A gate lets the baton pass."""


@dataclass(frozen=True, slots=True)
class Degrade:
    """A gate lets the baton pass by a lesser route."""

    to: Route
    reason: Reason


@dataclass(frozen=True, slots=True)
class Deny:
    """A gate refuses the baton's cache."""

    reason: Reason


Verdict = Allow | Degrade | Deny


@dataclass(frozen=True, slots=True)
class Receipt:
    """The evidence of one run or take.

    Token counts: ``context_tokens`` is everything before the first new token,
    ``reused_tokens`` came from a cache, ``pending_tokens`` were sampled by the sender but never
    fed, ``computed_tokens`` are positions run through the model before the first token was out
    (counted at the model), ``generated_tokens`` were sampled.  ``seconds`` are wall seconds per
    phase (``get``, ``verify``, ``decode``, ``align``, ``attach``, ``first_forward``, ``ttft``,
    ``total``), ``sender_seconds`` those of the hand-off.  ``first_divergence`` is the first
    position whose id differs from the baton's, or None.  ``batons`` are all that were taken, where
    slices of several were; ``baton`` is the first, and ``signer`` the id of the key that signed
    it.  ``freshness`` is what the ledger said of the batons before the answer and, as ``after``,
    behind it; ``decision`` is what the policy said, gate by gate, and ``shadow`` how an answer
    that nobody saw compares.  ``labels`` are the caller's own, such as the conversation and the
    arm of an experiment.  ``created_ms`` is when the answer was finished, in milliseconds since the
    epoch.
    """

    id: str
    agent: str
    model: str
    outcome: Outcome
    mode: Mode
    route: Route
    baton: str | None = None
    batons: tuple[str, ...] = ()
    signer: str = ""
    reasons: tuple[Reason, ...] = ()
    warnings: tuple[Reason, ...] = ()
    context_tokens: int = 0
    reused_tokens: int = 0
    pending_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    probe_tokens: int = 0
    recomputed_token_layers: int = 0
    bytes_moved: int = 0
    bytes_deduplicated: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    sender_seconds: Mapping[str, float] = field(default_factory=dict)
    fidelity: Fidelity = field(default_factory=Fidelity)
    hops: Hops = field(default_factory=Hops)
    freshness: Mapping[str, Any] = field(default_factory=lambda: {"standing": "unknown"})
    decision: Mapping[str, Any] = field(default_factory=dict)
    shadow: Mapping[str, Any] = field(default_factory=dict)
    first_divergence: int | None = None
    finish: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    created_ms: int = 0

    def to_json(self) -> JSON:
        """A JSON object without any prompt text."""
        return {
            "id": self.id,
            "agent": self.agent,
            "model": self.model,
            "baton": self.baton,
            "batons": list(self.batons),
            "signer": self.signer,
            "outcome": self.outcome.value,
            "mode": self.mode.value,
            "route": self.route.value,
            "reasons": [r.to_json() for r in self.reasons],
            "warnings": [r.to_json() for r in self.warnings],
            "context_tokens": self.context_tokens,
            "reused_tokens": self.reused_tokens,
            "pending_tokens": self.pending_tokens,
            "computed_tokens": self.computed_tokens,
            "generated_tokens": self.generated_tokens,
            "probe_tokens": self.probe_tokens,
            "recomputed_token_layers": self.recomputed_token_layers,
            "bytes_moved": self.bytes_moved,
            "bytes_deduplicated": self.bytes_deduplicated,
            "seconds": dict(self.seconds),
            "sender_seconds": dict(self.sender_seconds),
            "fidelity": self.fidelity.to_json(),
            "hops": {"exact": self.hops.exact, "lossy": self.hops.lossy},
            "freshness": dict(self.freshness),
            "decision": dict(self.decision) or None,
            "shadow": dict(self.shadow) or None,
            "first_divergence": self.first_divergence,
            "finish": self.finish,
            "labels": dict(self.labels),
            "created_ms": self.created_ms,
        }


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix of two id sequences."""
    limit = min(len(a), len(b))
    if tuple(a[:limit]) == tuple(b[:limit]):
        return limit
    return next(i for i in range(limit) if a[i] != b[i])
