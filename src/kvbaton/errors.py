"""Every error that kvbaton raises.  Foreign errors are mapped into this tree at the boundary.

::

    KvbatonError                      exit code
    ├── InputError                    3   the caller's input is wrong
    │   ├── UnknownModel
    │   ├── EmptyInput                    nothing to read, or a receiver that adds no tokens
    │   ├── WindowExceeded                more tokens than the model can attend to
    │   ├── PipelineError                 a pipeline file, with the path into it
    │   ├── SettingsError                 an environment variable or option value
    │   ├── NotCalibrated                 a lossy profile that was not measured on this model
    │   ├── NotMeasuredHere               speeds of another host, model or version
    │   ├── SliceError                    token ranges that are no slice, with the place
    │   ├── StaleTurn                     a turn whose cache has moved on
    │   ├── CacheBusy                     a cache that another request is using
    │   ├── LossySource                   quantizing again what has been quantized
    │   ├── UnknownRef                    no ref of that name has been moved yet
    │   └── UnknownNode                   the ledger has no node of that id
    ├── Unsupported                   4   never guessed, always refused
    │   ├── UnsupportedLayout             a cache whose meaning we cannot state
    │   └── UnsupportedModel              a model that cannot be loaded faithfully
    ├── BatonRefused                  5   strict mode: the baton would not have been used
    ├── NotTrusted                    6   not authentic, not for us, foreign domain (``fault``)
    ├── BatonUnavailable              7   manifest or transcript absent, unreadable or too late
    ├── FormatError                   8   bytes that do not follow docs/spec (``fault``, ``at``)
    │   └── DigestMismatch                bytes that are not the ones that were promised
    ├── StoreError                    9   the store could not do it
    │   ├── NotFound
    │   ├── StoreFull
    │   ├── StoreTimeout
    │   └── UnknownScheme
    ├── OutOfMemory                   10  the cache would not fit
    ├── DeadlineExceeded              11  no time left, and no route that could still answer
    ├── ModelUnavailable              12  weights that are not here and cannot be fetched
    ├── Filtered                      13  a text filter refused what would have been passed on
    ├── LedgerError                   14  the ledger could not do it
    │   ├── LedgerUnavailable             locked, vanished, or not reachable
    │   ├── LedgerVersion                 its tables are of another version; the hint migrates them
    │   ├── LineageCycle                  a node would descend from itself
    │   ├── RefConflict                   somebody else has moved the ref (compare-and-set)
    │   └── LedgerRolledBack              it says less than it has said here before: an old copy
    └── Superseded                    15  authentic, but a newer baton has taken its place
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar


class KvbatonError(Exception):
    """Root of the tree.

    Parameters
    ----------
    sentence
        What is wrong, in one sentence.
    at
        Path into the data, such as ``$.segments[2].address``; empty where there is none.
    hint
        What to do about it; empty where nothing can be advised.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, sentence: str, *, at: str = "", hint: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.at = at
        self.hint = hint

    @property
    def code(self) -> str:
        """Stable kebab-case name of the error, as receipts and ``--json`` print it."""
        name = type(self).__name__
        return "".join(f"-{c.lower()}" if c.isupper() else c for c in name).lstrip("-")

    def __str__(self) -> str:
        where = f" at `{self.at}`" if self.at else ""
        advice = f" ({self.hint})" if self.hint else ""
        return f"{self.sentence}{where}{advice}"


class InputError(KvbatonError):
    """The caller's input is wrong."""

    exit_code = 3


class UnknownModel(InputError):
    """No built-in model, local path or Hugging Face id of that name."""


class EmptyInput(InputError):
    """There is nothing to read, or a receiver would add no tokens."""


class WindowExceeded(InputError):
    """More tokens than the model can attend to."""


class PipelineError(InputError):
    """A pipeline file is wrong; ``at`` is the path into the file."""


class SettingsError(InputError):
    """An environment variable or an option has a value that cannot be used."""


class NotCalibrated(InputError):
    """A lossy codec profile has no calibration record for this model; the hint makes one."""


class NotMeasuredHere(InputError):
    """Speeds that were measured on another host, of another model, or by another version."""


class SliceError(InputError):
    """Token ranges that cannot be cut out of a turn; ``at`` is the range."""


class StaleTurn(InputError):
    """The turn's cache has moved on, so the turn can no longer be exported."""


class CacheBusy(InputError):
    """The cache is in use by another request."""


class LossySource(InputError):
    """Encoding this would quantize again what a codec has quantized before."""


class UnknownRef(InputError):
    """No ref of that name has been moved yet."""


class UnknownNode(InputError):
    """The ledger has no baton, artefact or answer of that id."""


class Unsupported(KvbatonError):
    """Something that we refuse because we cannot do it faithfully."""

    exit_code = 4


class UnsupportedLayout(Unsupported):
    """A cache whose layers are not on the white list."""


class UnsupportedModel(Unsupported):
    """A model that cannot be loaded or identified faithfully."""


class BatonRefused(KvbatonError):
    """Strict mode: the baton's cache would not have been used; ``reason_code`` says why."""

    exit_code = 5

    def __init__(self, sentence: str, *, reason_code: str, at: str = "", hint: str = "") -> None:
        super().__init__(sentence, at=at, hint=hint)
        self.reason_code = reason_code


class TrustFault(StrEnum):
    """Each way in which a baton or a ticket can be not trusted; also reason codes."""

    DOMAIN = "domain-differs"
    UNSIGNED = "unsigned"
    DOUBLY_SIGNED = "doubly-signed"
    ENVELOPE = "envelope-malformed"
    PAYLOAD_TYPE = "payload-type"
    OTHER = "other-baton"
    KEYID = "keyid-wrong"
    UNKNOWN_KEY = "unknown-key"
    KEY_REVOKED = "key-revoked"
    ANCESTOR_REVOKED = "ancestor-revoked"
    SIGNATURE = "signature-wrong"
    SIGNER = "signer-not-sender"
    EXPIRED = "expired"
    NOT_YET = "not-yet-valid"
    CLAIMS = "claims-too-good"
    TICKET_MISSING = "ticket-missing"
    TICKET_INVALID = "ticket-invalid"
    TICKET_OTHER = "ticket-other-baton"
    TICKET_AUDIENCE = "ticket-audience"
    TICKET_EXPIRED = "ticket-expired"
    TICKET_SPENT = "ticket-spent"


class NotTrusted(KvbatonError):
    """The baton is not authentic or not for this receiver; nothing of it was used.

    ``fault`` says what is wrong.  The sentence never quotes the baton.
    """

    exit_code = 6

    def __init__(
        self,
        sentence: str,
        *,
        fault: TrustFault = TrustFault.DOMAIN,
        at: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(sentence, at=at, hint=hint)
        self.fault = fault


class BatonUnavailable(KvbatonError):
    """Manifest or transcript cannot be had, so the context is unknown."""

    exit_code = 7


class Fault(StrEnum):
    """Each way in which bytes can be bad.  ``docs/spec`` lists them, one test each."""

    TRUNCATED = "truncated"
    TRAILING_BYTES = "trailing-bytes"
    TOO_LARGE = "too-large"
    LENGTH_FIELD = "length-field"
    NOT_UTF8 = "not-ascii"
    NOT_JSON = "not-json"
    NOT_CANONICAL = "not-canonical"
    DUPLICATE_KEY = "duplicate-key"
    TOO_DEEP = "too-deep"
    NOT_AN_INTEGER = "not-an-integer"
    UNKNOWN_FORMAT = "unknown-format"
    UNKNOWN_KIND = "unknown-kind"
    UNKNOWN_FIELD = "unknown-field"
    UNKNOWN_CRITICAL = "unknown-critical"
    MISSING_FIELD = "missing-field"
    WRONG_TYPE = "wrong-type"
    OUT_OF_RANGE = "out-of-range"
    UNKNOWN_DTYPE = "unknown-dtype"
    UNKNOWN_CODEC = "unknown-codec"
    UNKNOWN_TENSOR = "unknown-tensor"
    MISSING_TENSOR = "missing-tensor"
    SHAPE_MISMATCH = "shape-mismatch"
    SIZE_MISMATCH = "size-mismatch"
    GAP = "gap"
    OVERLAP = "overlap"
    PAD_NOT_ZERO = "pad-not-zero"
    RANGES = "ranges"
    TOKENS = "tokens"
    SPANS = "spans"
    NOT_FINITE = "not-finite"
    ENVELOPE = "envelope"
    DIGEST = "digest"
    BINDING = "kv-other-tokens"
    NOT_COMPARABLE = "not-comparable"
    DECRYPTION = "decryption"


class FormatError(KvbatonError):
    """Bytes that do not follow the specification."""

    exit_code = 8

    def __init__(self, sentence: str, *, fault: Fault, at: str = "", hint: str = "") -> None:
        super().__init__(sentence, at=at, hint=hint)
        self.fault = fault


class DigestMismatch(FormatError):
    """Bytes that are not the ones that were promised."""

    def __init__(self, sentence: str, *, at: str = "", hint: str = "") -> None:
        super().__init__(sentence, fault=Fault.DIGEST, at=at, hint=hint)


class StoreError(KvbatonError):
    """The store could not do what was asked."""

    exit_code = 9


class NotFound(StoreError):
    """The store does not hold the object."""


class StoreFull(StoreError):
    """No room: the disk, or the store's own size limit."""


class StoreTimeout(StoreError):
    """The store did not answer in time."""


class UnknownScheme(StoreError):
    """No store is registered for the URL's scheme."""


class OutOfMemory(KvbatonError):
    """The cache would not fit into the memory there is."""

    exit_code = 10


class DeadlineExceeded(KvbatonError):
    """The deadline passed and no route could still answer."""

    exit_code = 11


class ModelUnavailable(KvbatonError):
    """Weights that are not on this machine and cannot be fetched."""

    exit_code = 12


class Filtered(KvbatonError):
    """A text filter refused what would have been handed off or taken; nothing was."""

    exit_code = 13


class LedgerError(KvbatonError):
    """The ledger could not do what was asked."""

    exit_code = 14


class LedgerUnavailable(LedgerError):
    """The ledger's database is locked, has vanished or cannot be reached."""


class LedgerVersion(LedgerError):
    """The ledger's tables are of another version than this program's; the hint says what to do."""


class LineageCycle(LedgerError):
    """What was to be recorded would make a node descend from itself; nothing was recorded."""


class RefConflict(LedgerError):
    """Somebody else has moved the ref in the meantime, or it stands elsewhere than expected."""


class LedgerRolledBack(LedgerError):
    """The ledger says less than it has said before, or something else: an old copy of it."""


class Superseded(KvbatonError):
    """The baton is authentic, and its context is no longer the current one."""

    exit_code = 15
