"""The vocabulary's closed lists: each value is how receipts, manifests and files spell it."""

from __future__ import annotations

from enum import StrEnum


class SegmentKind(StrEnum):
    """``run``: full-attention layers of a run of tokens.  ``window``: the window layers' state."""

    RUN = "run"
    WINDOW = "window"


class FidelityClass(StrEnum):
    """From best to worst."""

    EXACT = "exact"
    LOSSY = "lossy"
    APPROXIMATE = "approximate"


class Mode(StrEnum):
    """How the receiver uses the sender's context."""

    CONTINUE = "continue"
    SHARED_PREFIX = "shared-prefix"
    SLICE = "slice"


class Route(StrEnum):
    """How the answer was computed."""

    BATON = "baton"
    PARTIAL = "partial"
    TEXT = "text"


class Importance(StrEnum):
    """How closely a received cache is looked at: ``critical`` computes some of it again."""

    ORDINARY = "ordinary"
    CRITICAL = "critical"


class Outcome(StrEnum):
    """Outcome classes of a take; never mixed."""

    USED = "used"
    KV_UNUSABLE = "kv-unusable"
    UNAVAILABLE = "unavailable"
    NOT_TRUSTED = "not-trusted"
    SUPERSEDED = "superseded"
    FILTERED = "filtered"
    NO_BATON = "no-baton"


class Role(StrEnum):
    """Whose words a span of tokens is."""

    SHARED = "shared"
    SYSTEM = "system"
    TASK = "task"
    TOOL = "tool"
    REASONING = "reasoning"
    GENERATED = "generated"
    HISTORY = "history"


class ReasonCode(StrEnum):
    """Why a baton was not used, or not wholly; also counters' label."""

    FUNCTION_DIFFERS = "function-differs"
    DOMAIN_DIFFERS = "domain-differs"
    WINDOW_EXCEEDED = "window-exceeded"
    MEMORY = "memory"
    SEGMENT_MISSING = "segment-missing"
    SEGMENT_CORRUPT = "segment-corrupt"
    SEGMENT_CONTRADICTS = "segment-contradicts"
    MANIFEST_CORRUPT = "manifest-corrupt"
    MANIFEST_MISSING = "manifest-missing"
    TRANSCRIPT_CORRUPT = "transcript-corrupt"
    TRANSCRIPT_MISSING = "transcript-missing"
    STORE_ERROR = "store-error"
    DEADLINE = "deadline"
    OVERTOOK = "overtook-text"
    TOKENS_DIVERGE = "tokens-diverge"
    WINDOW_STATE = "window-state"
    FIDELITY = "fidelity"
    CODEC_UNKNOWN = "codec-unknown"
    NO_KV = "no-kv"
    ASKED_FOR_TEXT = "asked-for-text"
    TWO_SYSTEM_PROMPTS = "two-system-prompts"
    PREFIX_HIT = "prefix-hit"
    SHARED_PREFIX_DIFFERS = "shared-prefix-differs"
    HOPS = "lossy-hops"
    SUMMARIZED = "summarized"
    CALIBRATION = "calibration-missing"
    SLICE_REFUSED = "slice-refused"
    WINDOW_FITTED = "window-fitted"
    FIRST_TOKENS = "first-tokens-odd"
    UNSIGNED = "unsigned"
    DOUBLY_SIGNED = "doubly-signed"
    ENVELOPE = "envelope-malformed"
    PAYLOAD_TYPE = "payload-type"
    OTHER_BATON = "other-baton"
    KEYID = "keyid-wrong"
    UNKNOWN_KEY = "unknown-key"
    KEY_REVOKED = "key-revoked"
    ANCESTOR_REVOKED = "ancestor-revoked"
    SIGNATURE = "signature-wrong"
    SIGNER = "signer-not-sender"
    EXPIRED = "expired"
    NOT_YET = "not-yet-valid"
    CLAIMS = "claims-too-good"
    PARENT_MISSING = "parent-missing"
    TICKET_MISSING = "ticket-missing"
    TICKET_INVALID = "ticket-invalid"
    TICKET_OTHER = "ticket-other-baton"
    TICKET_AUDIENCE = "ticket-audience"
    TICKET_EXPIRED = "ticket-expired"
    TICKET_SPENT = "ticket-spent"
    KV_OTHER_TOKENS = "kv-other-tokens"
    PARTLY_CHECKED = "partly-checked"
    WINDOWS_ODD = "windows-odd"
    PROBE_IMPOSSIBLE = "probe-impossible"
    FILTER_REDACTED = "filter-redacted"
    FILTER_REFUSED = "filter-refused"
    STALE = "stale"
    FRESHNESS_UNKNOWN = "freshness-unknown"
    REPLACED = "replaced-by-newer"
    LEDGER = "ledger-unusable"
    POLICY = "policy-unusable"
    NOT_MEASURED = "not-measured-here"
    KILL_SWITCH = "kill-switch"
    NOT_ROLLED_OUT = "not-rolled-out"
    SHADOW = "shadow"
    ROUTE_NOT_ALLOWED = "route-not-allowed"
    CRITICAL_PATH = "critical-path"
    EXACT_HOPS = "exact-hops"
    ROUNDS = "too-many-rounds"
    CHANGE_RATE = "changes-too-often"
    TOO_SHORT = "too-short"
    TEXT_FASTER = "text-faster"
