"""What a segment says about itself: the object under ``kvbaton`` in the safetensors metadata."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvbaton.errors import Fault
from kvbaton.types import (
    JSON,
    Fidelity,
    FidelityClass,
    KVLayout,
    LayerRange,
    SegmentKind,
    SegmentSpan,
    TokenRun,
)
from kvbaton.wire import fields as f
from kvbaton.wire.layout import encode_layout, parse_layout
from kvbaton.wire.limits import (
    FORMAT,
    MAX_CODEC_STEPS,
    MAX_CODECS,
    MAX_LAYERS,
    MAX_POSITION,
    MAX_SEGMENT_BYTES,
)

_FIELDS = frozenset(
    {
        "codecs",
        "count",
        "fidelity",
        "first",
        "format",
        "function",
        "kind",
        "layout",
        "prefix_key",
        "producer",
        "ranges",
        "token_digest",
    }
)
_RANGE_FIELDS = frozenset(
    {"count", "digest", "first", "k_codec", "layer", "start", "stop", "v_codec"}
)
_FIDELITY_FIELDS = frozenset({"calibration", "class", "codec"})


@dataclass(frozen=True, slots=True)
class Description:
    """A segment header without its tensors."""

    span: SegmentSpan
    function: str
    layout: KVLayout
    codecs: tuple[tuple[JSON, ...], ...]
    fidelity: Fidelity
    token_digest: str
    prefix_key: str
    producer: tuple[tuple[str, str], ...]
    ranges: tuple[LayerRange, ...]


def encode_description(value: Description) -> JSON:
    """The description as a JSON object."""
    return {
        "codecs": [list(chain) for chain in value.codecs],
        "count": value.span.count,
        "fidelity": value.fidelity.to_json(),
        "first": value.span.first,
        "format": FORMAT,
        "function": value.function,
        "kind": value.span.kind.value,
        "layout": encode_layout(value.layout),
        "prefix_key": value.prefix_key,
        "producer": dict(value.producer),
        "ranges": [_encode_range(part) for part in value.ranges],
        "token_digest": value.token_digest,
    }


def _encode_range(part: LayerRange) -> JSON:
    return {
        "count": part.run.count,
        "digest": part.digest,
        "first": part.run.first,
        "k_codec": part.k_codec,
        "layer": part.layer,
        "start": part.start,
        "stop": part.stop,
        "v_codec": part.v_codec,
    }


def parse_description(value: Any) -> Description:
    """Inverse of :func:`encode_description`; what the fields say together is checked elsewhere.

    Raises
    ------
    FormatError
        With the path of the field.
    """
    f.require_format(value, "$", FORMAT)
    top = f.read_object(value, "$", _FIELDS)
    f.read_format(top["format"], "$.format", FORMAT)
    codecs = _parse_codecs(top["codecs"], "$.codecs")
    ranges = f.read_list(top["ranges"], "$.ranges", at_least=1, at_most=MAX_LAYERS)
    described = Description(
        span=read_segment_span(top, "$"),
        function=f.read_hex64(top, "function", "$"),
        layout=parse_layout(top["layout"], "$.layout"),
        codecs=codecs,
        fidelity=read_fidelity(top["fidelity"], "$.fidelity"),
        token_digest=f.read_hex64(top, "token_digest", "$"),
        prefix_key=f.read_hex64(top, "prefix_key", "$"),
        producer=f.read_table(top["producer"], "$.producer"),
        ranges=tuple(
            _parse_range(part, f"$.ranges[{i}]", len(codecs)) for i, part in enumerate(ranges)
        ),
    )
    _check_use(described)
    return described


def read_run(value: JSON, at: str) -> TokenRun:
    """``first`` and ``count`` of an object: at least one position, all of them representable."""
    first = f.read_int(value, "first", at, 0, MAX_POSITION - 1)
    return TokenRun(first, f.read_int(value, "count", at, 1, MAX_POSITION - first))


def read_segment_span(value: JSON, at: str) -> SegmentSpan:
    """``first``, ``count`` and ``kind`` of an object."""
    kind = f.read_enum(value, "kind", at, SegmentKind, Fault.UNKNOWN_KIND)
    run = read_run(value, at)
    return SegmentSpan(run.first, run.count, kind)


def read_fidelity(value: Any, at: str) -> Fidelity:
    """``{"calibration", "class", "codec"}``."""
    top = f.read_object(value, at, _FIDELITY_FIELDS)
    measured = top["calibration"] is not None
    return Fidelity(
        kind=f.read_enum(top, "class", at, FidelityClass, Fault.UNKNOWN_KIND),
        codec=f.read_name(top, "codec", at),
        calibration=f.read_hex64(top, "calibration", at) if measured else None,
    )


def _parse_codecs(value: Any, at: str) -> tuple[tuple[JSON, ...], ...]:
    chains = f.read_list(value, at, at_least=1, at_most=MAX_CODECS)
    return tuple(_parse_chain(chain, f"{at}[{i}]") for i, chain in enumerate(chains))


def _parse_chain(value: Any, at: str) -> tuple[JSON, ...]:
    steps = f.read_list(value, at, at_least=1, at_most=MAX_CODEC_STEPS)
    for i, step in enumerate(steps):
        here = f"{at}[{i}]"
        if type(step) is not dict:
            raise f.refuse("a codec is an object", Fault.WRONG_TYPE, here)
        if "name" not in step:
            raise f.refuse("field 'name' is missing", Fault.MISSING_FIELD, f"{here}.name")
        f.read_name(step, "name", here)
    return tuple(steps)


def _parse_range(value: Any, at: str, codecs: int) -> LayerRange:
    top = f.read_object(value, at, _RANGE_FIELDS)
    start = f.read_int(top, "start", at, 0, MAX_SEGMENT_BYTES)
    return LayerRange(
        layer=f.read_int(top, "layer", at, 0, MAX_LAYERS - 1),
        run=read_run(top, at),
        start=start,
        stop=f.read_int(top, "stop", at, 0, MAX_SEGMENT_BYTES),
        digest=f.read_hex64(top, "digest", at),
        k_codec=f.read_int(top, "k_codec", at, 0, codecs - 1),
        v_codec=f.read_int(top, "v_codec", at, 0, codecs - 1),
    )


def _check_use(described: Description) -> None:
    """Codec chains are unique, used, and in order of first use: one spelling per segment."""
    used = first_use(described.ranges)
    chains = described.codecs
    if used != list(range(len(chains))) or any(c in chains[:i] for i, c in enumerate(chains)):
        raise f.refuse(
            "codec chains are unique and in order of first use", Fault.NOT_CANONICAL, "$.codecs"
        )


def first_use(ranges: Sequence[LayerRange]) -> list[int]:
    """Codec indices in order of first use, keys before values."""
    return list(dict.fromkeys(i for part in ranges for i in (part.k_codec, part.v_codec)))
