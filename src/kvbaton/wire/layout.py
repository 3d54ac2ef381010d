"""The layout of a cache as JSON: unique layer records, and which run of layers has which.

A model's layers are mostly alike, so the layout of 30 layers is one record and ``[[0, 30]]``.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby, pairwise
from typing import Any, get_args

from kvbaton.errors import Fault, FormatError, InputError
from kvbaton.types import DTYPE_BYTES, JSON, KVLayout, LayerKind, LayerLayout, Pairing, RopeSpec
from kvbaton.wire import fields as f
from kvbaton.wire.canonical import INT_MAX, INT_MIN, dumps, hex_float, loads, parse_hex_float
from kvbaton.wire.limits import (
    MAX_DIM,
    MAX_HEADER_BYTES,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_POSITION,
    MAX_ROPES,
)

CACHE_DTYPES = frozenset({"BF16", "F16", "F32", "F64"})
_PAIRINGS = frozenset(get_args(Pairing))
_LAYER_FIELDS = frozenset({"k_dim", "kind", "kv_heads", "rope", "v_dim", "window"})
_LAYOUT_FIELDS = frozenset({"dtype", "layers", "ropes", "specs"})
_ROPE_FIELDS = frozenset(
    {"attention_factor", "base", "kind", "pairing", "parameters", "rotary_dim", "table"}
)
_CACHED_LAYOUT_BYTES = 1 << 16


# --- encode ------------------------------------------------------------------------------------


def encode_layout(layout: KVLayout) -> JSON:
    """The layout as a JSON object.

    Raises
    ------
    InputError
        The layout cannot be written so that it is read back as the same layout.
    """
    specs = list(dict.fromkeys(layout.layers))
    runs = [[specs.index(s), len(list(same))] for s, same in groupby(layout.layers)]
    value = {
        "dtype": layout.dtype,
        "layers": runs,
        "ropes": [_encode_rope(r) for r in layout.ropes],
        "specs": [_encode_layer(s) for s in specs],
    }
    try:
        same = parse_layout(loads(dumps(value), limit_bytes=MAX_HEADER_BYTES, what="layout"), "$")
    except FormatError as error:
        raise InputError(error.sentence, at=error.at) from error
    if same != layout:
        raise InputError("the layout's RoPE parameters are not sorted by name")
    return value


def _encode_layer(spec: LayerLayout) -> JSON:
    return {
        "k_dim": spec.k_dim,
        "kind": spec.kind.value,
        "kv_heads": spec.kv_heads,
        "rope": spec.rope,
        "v_dim": spec.v_dim,
        "window": spec.window,
    }


def _encode_rope(rope: RopeSpec) -> JSON:
    return {
        "attention_factor": hex_float(rope.attention_factor),
        "base": hex_float(rope.base),
        "kind": rope.kind,
        "pairing": rope.pairing,
        "parameters": {name: _encode_parameter(value) for name, value in rope.parameters},
        "rotary_dim": rope.rotary_dim,
        "table": rope.table,
    }


def _encode_parameter(value: float | int | str | tuple[float, ...]) -> JSON:
    if isinstance(value, str):
        return {"text": value}
    if isinstance(value, tuple):
        return {"floats": [hex_float(x) for x in value]}
    return {"float": hex_float(value)} if isinstance(value, float) else {"int": int(value)}


# --- parse -------------------------------------------------------------------------------------


def parse_layout(value: Any, at: str) -> KVLayout:
    """Inverse of :func:`encode_layout`.  Equal layouts seen lately are the same object.

    Raises
    ------
    FormatError
        With the path of what is wrong.
    """
    spelled = dumps(value)
    if len(spelled) > _CACHED_LAYOUT_BYTES:
        return _parse_layout(value, at)
    return _parse_spelled(spelled, at)


@lru_cache(maxsize=64)
def _parse_spelled(spelled: bytes, at: str) -> KVLayout:
    return _parse_layout(loads(spelled, limit_bytes=_CACHED_LAYOUT_BYTES, what="layout"), at)


def _parse_layout(value: Any, at: str) -> KVLayout:
    top = f.read_object(value, at, _LAYOUT_FIELDS)
    dtype = f.read_name(top, "dtype", at)
    if dtype not in CACHE_DTYPES or dtype not in DTYPE_BYTES:
        raise f.refuse(f"no cache has dtype {dtype!r}", Fault.UNKNOWN_DTYPE, f"{at}.dtype")
    ropes = f.read_list(top["ropes"], f"{at}.ropes", at_most=MAX_ROPES)
    specs = f.read_list(top["specs"], f"{at}.specs", at_least=1, at_most=MAX_LAYERS)
    layers = [_parse_layer(spec, f"{at}.specs[{i}]", len(ropes)) for i, spec in enumerate(specs)]
    return KVLayout(
        dtype=dtype,
        layers=_parse_runs(top["layers"], f"{at}.layers", layers),
        ropes=tuple(_parse_rope(r, f"{at}.ropes[{i}]") for i, r in enumerate(ropes)),
    )


def _parse_layer(value: Any, at: str, ropes: int) -> LayerLayout:
    top = f.read_object(value, at, _LAYER_FIELDS)
    kind = f.read_enum(top, "kind", at, LayerKind, Fault.UNKNOWN_KIND)
    window = f.read_int(top, "window", at, 0, MAX_POSITION)
    if (kind is LayerKind.FULL) != (window == 0) or window == 1:
        raise f.refuse(f"a {kind} layer with window {window}", Fault.OUT_OF_RANGE, f"{at}.window")
    return LayerLayout(
        kind=kind,
        kv_heads=f.read_int(top, "kv_heads", at, 1, MAX_HEADS),
        k_dim=f.read_int(top, "k_dim", at, 1, MAX_DIM),
        v_dim=f.read_int(top, "v_dim", at, 1, MAX_DIM),
        window=window,
        rope=f.read_int(top, "rope", at, -1, ropes - 1),
    )


def _parse_runs(value: Any, at: str, specs: list[LayerLayout]) -> tuple[LayerLayout, ...]:
    """Expand ``[[spec, layers], ...]``; the sum is bounded before anything is expanded."""
    layers: list[LayerLayout] = []
    order: list[int] = []
    for i, run in enumerate(f.read_list(value, at, at_least=1, at_most=MAX_LAYERS)):
        here = f"{at}[{i}]"
        f.read_list(run, here, at_least=2, at_most=2)
        spec = f.read_int(run, 0, here, 0, len(specs) - 1)
        count = f.read_int(run, 1, here, 1, MAX_LAYERS - len(layers))
        order.append(spec)
        layers.extend([specs[spec]] * count)
    alike = any(a == b for a, b in pairwise(order))
    unused = list(dict.fromkeys(order)) != list(range(len(specs)))
    if alike or unused or len(set(specs)) != len(specs):
        raise f.refuse(
            "layer records are unique, in order of first use, in runs as long as possible",
            Fault.NOT_CANONICAL,
            at,
        )
    return tuple(layers)


def _parse_rope(value: Any, at: str) -> RopeSpec:
    top = f.read_object(value, at, _ROPE_FIELDS)
    pairing = f.read_name(top, "pairing", at)
    if pairing not in _PAIRINGS:
        raise f.refuse(f"unknown pairing {pairing!r}", Fault.UNKNOWN_KIND, f"{at}.pairing")
    parameters = top["parameters"]
    if type(parameters) is not dict:
        raise f.refuse("parameters are an object", Fault.WRONG_TYPE, f"{at}.parameters")
    return RopeSpec(
        kind=f.read_name(top, "kind", at),
        pairing=pairing,  # type: ignore[arg-type]  # narrowed by the look-up above
        rotary_dim=f.read_int(top, "rotary_dim", at, 1, MAX_DIM),
        base=_parse_float(top, "base", at),
        attention_factor=_parse_float(top, "attention_factor", at),
        table=f.read_hex64(top, "table", at),
        parameters=tuple(
            (f.check_name(name, f"{at}.parameters"), _parse_parameter(v, f"{at}.parameters.{name}"))
            for name, v in parameters.items()
        ),
    )


def _parse_parameter(value: Any, at: str) -> float | int | str | tuple[float, ...]:
    if type(value) is not dict or len(value) != 1:
        raise f.refuse("a parameter is an object with one field", Fault.WRONG_TYPE, at)
    ((tag, inner),) = value.items()
    if tag == "float":
        return _parse_float(value, tag, at)
    if tag == "int":
        return f.read_int(value, tag, at, INT_MIN, INT_MAX)
    if tag == "text":
        return f.read_name(value, tag, at, empty=True)
    if tag == "floats":
        several = f.read_list(inner, f"{at}.floats", at_most=MAX_DIM)
        return tuple(_parse_float(several, i, f"{at}.floats") for i in range(len(several)))
    raise f.refuse(f"unknown field {tag[:80]!r}", Fault.UNKNOWN_FIELD, f"{at}.{tag[:80]}")


def _parse_float(value: Any, key: str | int, at: str) -> float:
    return parse_hex_float(f.read_text(value, key, at, at_most=64), at=f.place(at, key))
