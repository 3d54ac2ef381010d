"""Plans as users write them: rules that name layers, in JSON or TOML.

``layers 0 to 9 raw, keys of the rest in 8 bits, values in 4``::

    name = "mine"
    first = 4                     # first tokens that stay exact; 4 where it is not given

    [[rules]]
    layers = "0-9"                # 7, "7", "0-9", "20-", [0, 3, 5], or "rest"
    codec = "raw"                 # keys and values alike

    [[rules]]
    layers = "rest"
    keys = "int8"
    values = { name = "int", bits = 4, axis = "token", group = 32 }

The first rule that names a layer decides, so ``rest`` (which is also what a rule without
``layers`` means) comes last.  ``raw`` are the cache's own bytes, ``int2`` to ``int8`` the
granularity of the named profiles; an object is one codec with its fields, a list of them a chain.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from kvbaton.codecs.base import CodecChain
from kvbaton.codecs.plan import Chains, CodecPlan, check_chains, plan_of
from kvbaton.codecs.profiles import SINKS, codec, key_chain, value_chain
from kvbaton.codecs.raw import Raw
from kvbaton.errors import InputError
from kvbaton.types import JSON, KVLayout

_FIELDS = frozenset({"name", "first", "rules"})
_RULE_FIELDS = frozenset({"layers", "codec", "keys", "values"})
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_RANGE = re.compile(r"(\d{1,6})(?:(-)(\d{1,6})?)?")
_INT = re.compile(r"int([2-8])")


def plan_from_spec(spec: Any, layout: KVLayout) -> CodecPlan:
    """The plan that rules describe, for a layout.

    Raises
    ------
    InputError
        A rule names layers that do not exist, or codecs that do not fit them; a layer that no
        rule names; anything that is misspelled.  ``at`` is the place in ``spec``.
    """
    fields = _object(spec, _FIELDS, "$")
    name, first = _name(fields), _first(fields)
    rules = fields.get("rules")
    if not isinstance(rules, list) or not rules:
        raise InputError("a plan has a list of rules", at="$.rules")
    chosen: dict[int, Chains] = {}
    for index, entry in enumerate(rules):
        at = f"$.rules[{index}]"
        rule = _object(entry, _RULE_FIELDS, at)
        for layer in _layers(rule.get("layers", "rest"), len(layout.layers), f"{at}.layers"):
            if layer not in chosen:
                chosen[layer] = _chains(rule, layout, layer, first, at)
    missing = [layer for layer in range(len(layout.layers)) if layer not in chosen]
    if missing:
        raise InputError(
            f"no rule names layer {missing[0]}",
            at="$.rules",
            hint='add a last rule with layers = "rest"',
        )
    return plan_of(name, [chosen[layer] for layer in range(len(layout.layers))])


def _object(value: Any, known: frozenset[str], at: str) -> JSON:
    if not isinstance(value, dict):
        raise InputError("not an object", at=at)
    for name in value:
        if name not in known:
            raise InputError(
                f"unknown field {str(name)[:40]!r}",
                at=at,
                hint=f"known: {', '.join(sorted(known))}",
            )
    return value


def _name(fields: JSON) -> str:
    name = fields.get("name", "custom")
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise InputError("a plan's name is 1 to 64 of a-z, 0-9, '.', '_', '-'", at="$.name")
    return name


def _first(fields: JSON) -> int:
    first = fields.get("first", SINKS)
    if type(first) is not int or first < 0:
        raise InputError("first is a number of tokens", at="$.first")
    return first


# --- layers --------------------------------------------------------------------------------------


def _layers(value: Any, count: int, at: str) -> Sequence[int]:
    """Indices that a selector names."""
    if value == "rest":
        return range(count)
    if isinstance(value, list):
        return [_layer(one, count, f"{at}[{i}]") for i, one in enumerate(value)]
    if type(value) is int:
        return [_layer(value, count, at)]
    found = _RANGE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise InputError(
            f"not a choice of layers: {str(value)[:40]!r}",
            at=at,
            hint='7, "0-9", "20-", [0, 3, 5] or "rest"',
        )
    low = _layer(int(found[1]), count, at)
    if not found[2]:
        return [low]
    high = _layer(int(found[3]), count, at) if found[3] else count - 1
    if high < low:
        raise InputError(f"layers {value} run backwards", at=at)
    return range(low, high + 1)


def _layer(value: Any, count: int, at: str) -> int:
    if type(value) is not int or not 0 <= value < count:
        raise InputError(f"the model has layers 0 to {count - 1}, not {str(value)[:40]}", at=at)
    return value


# --- chains --------------------------------------------------------------------------------------


def _chains(rule: JSON, layout: KVLayout, layer: int, first: int, at: str) -> Chains:
    found = []
    for name in ("keys", "values"):
        field = name if name in rule else "codec"
        if field not in rule:
            raise InputError(f"the rule says nothing of {name}", at=at)
        found.append(_chain(rule[field], name, layout, layer, first, f"{at}.{field}"))
    keys, values = found
    check_chains((keys, values), layout, layer, at=at)
    return keys, values


def _chain(value: Any, name: str, layout: KVLayout, layer: int, first: int, at: str) -> CodecChain:
    if isinstance(value, str):
        return _named(value, name, layout, layer, first, at)
    entries = [value] if isinstance(value, dict) else value
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InputError("a codec is a name, an object, or a list of objects", at=at)
    built = []
    for index, entry in enumerate(entries):
        place = at if isinstance(value, dict) else f"{at}[{index}]"
        kind = entry.get("name")
        try:
            built.append(codec(str(kind), **{k: v for k, v in entry.items() if k != "name"}))
        except InputError as error:
            error.at = place + error.at.removeprefix("$")
            raise
    try:
        return CodecChain(tuple(built))
    except InputError as error:
        error.at = at
        raise


def _named(word: str, name: str, layout: KVLayout, layer: int, first: int, at: str) -> CodecChain:
    if word == "raw":
        return CodecChain((Raw(),))
    bits = _INT.fullmatch(word)
    if bits is None:
        raise InputError(
            f"no codec is called {word[:40]!r}", at=at, hint='"raw", "int2" to "int8", or an object'
        )
    make = key_chain if name == "keys" else value_chain
    return make(layout, layer, int(bits[1]), first=first)
