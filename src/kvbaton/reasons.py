"""Errors become reasons: what stands in a receipt when a baton could not be used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kvbaton.errors import (
    BatonUnavailable,
    Fault,
    FormatError,
    KvbatonError,
    NotFound,
    NotTrusted,
    OutOfMemory,
    SliceError,
    StoreError,
    StoreTimeout,
    UnsupportedLayout,
)
from kvbaton.types import Reason, ReasonCode


@contextmanager
def located(at: str) -> Iterator[None]:
    """Prefix the path of errors with the place of the segment in the manifest."""
    try:
        yield
    except KvbatonError as error:
        placed(error, at)
        raise


def placed(error: KvbatonError, at: str) -> KvbatonError:
    """The same error, its path prefixed with the place of the segment in the manifest."""
    if not error.at.startswith(at):
        error.at = at + error.at.removeprefix("$")
    return error


@contextmanager
def unavailable(what: str) -> Iterator[None]:
    """Map errors of the block: the baton's manifest or transcript cannot be had."""
    try:
        yield
    except NotFound as error:
        raise BatonUnavailable(f"the baton's {what} is not in the store") from error
    except FormatError as error:
        raise BatonUnavailable(
            f"the baton's {what} is damaged: {error.sentence}", at=error.at, hint=error.hint
        ) from error
    except StoreError as error:
        raise BatonUnavailable(
            f"the baton's {what} cannot be read: {error.sentence}", hint=error.hint
        ) from error


def unavailable_reason(error: BatonUnavailable) -> Reason:
    """The reason that stands in a receipt for an unavailable baton."""
    missing = isinstance(error.__cause__, NotFound)
    of_transcript = "transcript" in error.sentence.split(" is ")[0]
    if isinstance(error.__cause__, FormatError) or missing:
        codes = {
            (False, False): ReasonCode.MANIFEST_CORRUPT,
            (False, True): ReasonCode.MANIFEST_MISSING,
            (True, False): ReasonCode.TRANSCRIPT_CORRUPT,
            (True, True): ReasonCode.TRANSCRIPT_MISSING,
        }
        return Reason(codes[of_transcript, missing], error.sentence, error.at)
    late = isinstance(error.__cause__, StoreTimeout)
    code = ReasonCode.DEADLINE if late else ReasonCode.STORE_ERROR
    return Reason(code, error.sentence, error.at)


def reason_of(error: BaseException) -> Reason:
    """Why a cache could not be attached."""
    if not isinstance(error, KvbatonError):
        return Reason(ReasonCode.MEMORY, "memory ran out while the cache was being attached")
    code = ReasonCode.STORE_ERROR
    if isinstance(error, NotFound):
        code = ReasonCode.SEGMENT_MISSING
    elif isinstance(error, OutOfMemory):
        code = ReasonCode.MEMORY
    elif isinstance(error, SliceError | UnsupportedLayout):
        code = ReasonCode.SLICE_REFUSED
    elif isinstance(error, FormatError):
        code = {
            Fault.UNKNOWN_CODEC: ReasonCode.CODEC_UNKNOWN,
            Fault.RANGES: ReasonCode.SEGMENT_CONTRADICTS,
            Fault.SPANS: ReasonCode.SEGMENT_CONTRADICTS,
            Fault.TOKENS: ReasonCode.SEGMENT_CONTRADICTS,
            Fault.BINDING: ReasonCode.KV_OTHER_TOKENS,
            Fault.NOT_COMPARABLE: ReasonCode.PROBE_IMPOSSIBLE,
        }.get(error.fault, ReasonCode.SEGMENT_CORRUPT)
    return Reason(code, error.sentence, error.at)


def refusal_reason(error: NotTrusted) -> Reason:
    """The reason that stands in a receipt for a baton that is not trusted."""
    return Reason(ReasonCode(error.fault.value), error.sentence, error.at)
