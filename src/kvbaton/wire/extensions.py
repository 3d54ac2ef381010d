"""The extensions of a manifest: fields that came later, and which of them must be understood."""

from __future__ import annotations

from typing import Any

from kvbaton.errors import Fault, FormatError
from kvbaton.types import JSON, BlockScores, Export, Manifest
from kvbaton.wire import fields as f
from kvbaton.wire.canonical import hex_float, parse_hex_float
from kvbaton.wire.limits import MAX_ENTRIES, MAX_NOISE, MAX_POSITION, MAX_SIGNERS

_INT_MAX = (1 << 63) - 1
_IMPORTANCE_FIELDS = frozenset({"block_tokens", "scores"})
_EXPORT_FIELDS = frozenset({"domain", "salt"})
MAX_SCORE, MAX_SCORES = 255, 1 << 16

CRITICAL = frozenset({"expires_ms", "export"})
"""Extensions of this version that a reader must understand."""


def encode_extensions(m: Manifest) -> tuple[list[str], JSON]:
    """``critical`` and ``extensions`` of a manifest; what it does not use is left out."""
    found: JSON = {}
    if m.importance is not None:
        scores = {"block_tokens": m.importance.block_tokens, "scores": list(m.importance.scores)}
        found["importance"] = scores
    if m.expires_ms:
        found["expires_ms"] = m.expires_ms
    if m.export is not None:
        found["export"] = {"domain": m.export.domain, "salt": m.export.salt}
    if m.signers:
        found["signers"] = list(m.signers)
    if m.noise:
        found["noise"] = hex_float(m.noise)
    if m.redacted:
        found["redacted"] = list(m.redacted)
    return sorted(CRITICAL & found.keys()), found


def parse_extensions(critical: Any, extensions: Any) -> dict[str, Any]:
    """Inverse of :func:`encode_extensions`: the manifest's fields.

    Raises
    ------
    FormatError
        ``UNKNOWN_CRITICAL`` for what must be understood and is not; others with the path.
    """
    if type(extensions) is not dict:
        raise f.refuse("extensions are an object", Fault.WRONG_TYPE, "$.extensions")
    _check_critical(critical, extensions)
    at = "$.extensions"
    found: dict[str, Any] = {}
    for name, parse in _PARSERS.items():
        if name in extensions:
            found[name] = parse(extensions, name, at)
    return found


def _check_critical(critical: Any, extensions: JSON) -> None:
    at = "$.critical"
    names = f.read_list(critical, at, at_most=MAX_ENTRIES)
    for i, name in enumerate(names):
        f.read_name(names, i, at)
        if name not in extensions:
            raise f.refuse(
                f"the critical field {name!r} is missing", Fault.MISSING_FIELD, f"{at}[{i}]"
            )
    unknown = [i for i, name in enumerate(names) if name not in CRITICAL]
    if unknown:
        raise FormatError(
            f"the field {names[unknown[0]]!r} must be understood, and is not",
            fault=Fault.UNKNOWN_CRITICAL,
            at=f"{at}[{unknown[0]}]",
            hint="a newer version of kvbaton may read it",
        )
    if names != sorted(CRITICAL & extensions.keys()):
        raise f.refuse(
            "the critical fields are those that must be understood, in order",
            Fault.NOT_CANONICAL,
            at,
        )


def _importance(inside: JSON, name: str, at: str) -> BlockScores:
    at = f"{at}.{name}"
    top = f.read_object(inside[name], at, _IMPORTANCE_FIELDS)
    scores = f.read_list(top["scores"], f"{at}.scores", at_most=MAX_SCORES)
    return BlockScores(
        block_tokens=f.read_int(top, "block_tokens", at, 1, MAX_POSITION),
        scores=tuple(
            f.read_int(scores, i, f"{at}.scores", 0, MAX_SCORE) for i in range(len(scores))
        ),
    )


def _expires(inside: JSON, name: str, at: str) -> int:
    return f.read_int(inside, name, at, 1, _INT_MAX)


def _export(inside: JSON, name: str, at: str) -> Export:
    at = f"{at}.{name}"
    top = f.read_object(inside[name], at, _EXPORT_FIELDS)
    return Export(f.read_name(top, "domain", at), f.read_hex64(top, "salt", at))


def _signers(inside: JSON, name: str, at: str) -> tuple[str, ...]:
    at = f"{at}.{name}"
    items = f.read_list(inside[name], at, at_least=1, at_most=MAX_SIGNERS)
    found = tuple(f.read_hex64(items, i, at) for i in range(len(items)))
    if list(found) != sorted(set(found)):
        raise f.refuse("signers ascend, each once", Fault.NOT_CANONICAL, at)
    return found


def _noise(inside: JSON, name: str, at: str) -> float:
    text = f.read_text(inside, name, at, at_most=64)
    level = parse_hex_float(text, at=f"{at}.{name}")
    if not 0 < level <= MAX_NOISE:
        raise f.refuse(
            f"noise of a level that is not within 0 to {MAX_NOISE}",
            Fault.OUT_OF_RANGE,
            f"{at}.{name}",
        )
    return level


def _redacted(inside: JSON, name: str, at: str) -> tuple[str, ...]:
    at = f"{at}.{name}"
    items = f.read_list(inside[name], at, at_least=1, at_most=MAX_ENTRIES)
    return tuple(f.read_name(items, i, at) for i in range(len(items)))


_PARSERS = {
    "importance": _importance,
    "expires_ms": _expires,
    "export": _export,
    "signers": _signers,
    "noise": _noise,
    "redacted": _redacted,
}
