"""Explanations: every gate and prediction with its mark, and the first that decided.

An explanation is made of a decision, or of a receipt as it was stored: one line of JSON.  Receipts
that keep their ``decision`` are explained wholly; of others, the gate that refused is found by its
reason, those before it have passed, and what came after it was not asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvbaton.errors import InputError
from kvbaton.policy.base import Decision
from kvbaton.policy.explanation import (
    ALLOWED,
    LESSER,
    NOT_ASKED,
    REFUSED,
    Explanation,
    Line,
    PredictedRoute,
)
from kvbaton.policy.gates import GATES, SLICE_GATES, gate_name
from kvbaton.policy.routes import TEXT
from kvbaton.types import Mode, ReasonCode, Receipt, Route

MAX_ENTRIES = 256
MAX_TEXT_CHARS = 1000
MAX_NUMBER = 1e12

_MARKS = {"allow": ALLOWED, "degrade": LESSER, "deny": REFUSED}
_GATE_OF: Mapping[str, str] = {
    ReasonCode.KILL_SWITCH: "kill-switch",
    ReasonCode.NO_KV: "has-kv",
    ReasonCode.FUNCTION_DIFFERS: "compatibility",
    ReasonCode.STALE: "freshness",
    ReasonCode.FRESHNESS_UNKNOWN: "freshness",
    ReasonCode.ROUTE_NOT_ALLOWED: "allow-list",
    ReasonCode.FIDELITY: "fidelity",
    ReasonCode.CRITICAL_PATH: "critical-path",
    ReasonCode.CALIBRATION: "calibration",
    ReasonCode.HOPS: "hops",
    ReasonCode.EXACT_HOPS: "exact-hops",
    ReasonCode.ROUNDS: "rounds",
    ReasonCode.CHANGE_RATE: "change-rate",
    ReasonCode.TOKENS_DIVERGE: "divergence",
    ReasonCode.WINDOW_STATE: "divergence",
    ReasonCode.TOO_SHORT: "minimum-length",
    ReasonCode.WINDOW_EXCEEDED: "window",
    ReasonCode.MEMORY: "memory",
    ReasonCode.TEXT_FASTER: "worth-it",
}
"""Reason -> the gate that gives it."""


def explain(what: Receipt | Decision | Mapping[str, Any]) -> Explanation:
    """Explain a decision, or a receipt, which may come as the JSON object that was stored.

    Raises
    ------
    InputError
        The JSON object is no receipt; ``at`` is the place.
    """
    if isinstance(what, Decision):
        return _of_decision(what.to_json(), "$")
    stored = what.to_json() if isinstance(what, Receipt) else what
    return _of_receipt(_object(stored, "$"))


# --- making -------------------------------------------------------------------------------------


def _of_decision(decision: Mapping[str, Any], at: str) -> Explanation:
    decided_by = _text(decision, "decided_by", at)
    listed = tuple(
        _judged(_object(one, place), place, decided_by)
        for one, place in _items(decision, "gates", at)
    )
    beyond: tuple[Line, ...] = ()
    if decided_by and decided_by not in {line.name for line in listed}:
        sentences = "; ".join(sentence for _, sentence in _reasons(decision, at))
        beyond = (Line(REFUSED, decided_by, sentences, decided=True),)
    return Explanation(
        id="",
        route=_route(decision, at),
        chosen=_text(decision, "chosen", at),
        outcome="",
        gates=listed,
        afterwards=beyond,
        predictions=_predictions(decision, at),
        decided_by=decided_by,
        policy=_text(decision, "policy", at),
        shadow=decision.get("shadow") is True,
    )


def _judged(judgement: Mapping[str, Any], at: str, decided_by: str) -> Line:
    name, said = _text(judgement, "gate", at), _text(judgement, "said", at)
    if said not in _MARKS:
        raise InputError(f"{said[:80]!r} is nothing that a gate says", at=f"{at}.said")
    reason = judgement.get("reason")
    sentence = "" if reason is None else _text(_object(reason, f"{at}.reason"), "sentence", at)
    return Line(_MARKS[said], name, sentence, decided=name == decided_by)


def _of_receipt(receipt: Mapping[str, Any]) -> Explanation:
    reasons, route = _reasons(receipt, "$"), _route(receipt, "$")
    kept = receipt.get("decision")
    found = _inferred(receipt, route, reasons) if kept is None else _kept(kept, route, reasons)
    seconds = _object(receipt.get("seconds", {}), "$.seconds")
    actual_s = _number(seconds, "ttft", "$.seconds") if "ttft" in seconds else None
    taken = TEXT if route == Route.TEXT else found.chosen
    return Explanation(
        id=_text(receipt, "id", "$"),
        route=route,
        chosen=found.chosen,
        outcome=_text(receipt, "outcome", "$"),
        gates=found.gates,
        afterwards=found.afterwards,
        predictions=_with_actual(found.predictions, taken, actual_s),
        decided_by=found.decided_by,
        policy=found.policy,
        shadow=found.shadow,
        whole=kept is not None,
        compared=_compared(receipt.get("shadow")),
    )


def _kept(kept: Any, route: str, reasons: Sequence[tuple[str, str]]) -> Explanation:
    """A decision that the receipt has kept, and what the take has added to it."""
    at = "$.decision"
    decision = _object(kept, at)
    found, known = _of_decision(decision, at), set(_reasons(decision, at))
    later = [reason for reason in reasons if reason not in known]
    worse = _rank(route) > _rank(found.route)
    lines = tuple(
        Line(REFUSED if worse else LESSER, code, sentence, decided=worse and n == 0)
        for n, (code, sentence) in enumerate(later)
    )
    decided_by = later[0][0] if worse and later else found.decided_by
    gates = found.gates
    if decided_by != found.decided_by:
        gates = tuple(Line(one.mark, one.name, one.sentence) for one in gates)
    return Explanation(
        id="",
        route=route,
        chosen=TEXT if worse and route == Route.TEXT else found.chosen,
        outcome="",
        gates=gates,
        afterwards=(*found.afterwards, *lines),
        predictions=found.predictions,
        decided_by=decided_by,
        policy=found.policy,
        shadow=found.shadow,
    )


def _inferred(
    receipt: Mapping[str, Any], route: str, reasons: Sequence[tuple[str, str]]
) -> Explanation:
    """What the reasons of a receipt say about the gates, where no decision was kept."""
    untrusted = receipt.get("outcome") == "not-trusted"
    said = {_gate_of(code, untrusted=untrusted): sentence for code, sentence in reversed(reasons)}
    said.pop("", None)
    gates = SLICE_GATES if receipt.get("mode") == Mode.SLICE else GATES
    names = [gate_name(gate) for gate in gates]
    asked = receipt.get("baton") is not None and receipt.get("outcome") != "unavailable"
    # a gate that refuses is the last that was asked, and then its reason stands alone
    denied = next((name for name in names if name in said and route == Route.TEXT), None)
    decided_by = _deciding(route, reasons, untrusted=untrusted)
    lines = []
    for name in names:
        if name in said:
            mark = REFUSED if name == denied else LESSER
            lines.append(Line(mark, name, said[name], decided=name == decided_by))
        else:
            lines.append(Line(ALLOWED if asked else NOT_ASKED, name))
        asked = asked and name != denied
    afterwards = tuple(
        Line(REFUSED, code, sentence, decided=code == decided_by)
        for code, sentence in reasons
        if not _gate_of(code, untrusted=untrusted)
    )
    return Explanation(
        id="",
        route=route,
        chosen=TEXT if route == Route.TEXT else "",
        outcome="",
        gates=tuple(lines),
        afterwards=afterwards,
        predictions=(),
        decided_by=decided_by,
    )


def _deciding(route: str, reasons: Sequence[tuple[str, str]], *, untrusted: bool) -> str:
    """The first reason against a better route, by its gate if it has one."""
    labels = () if route == Route.TEXT else (ReasonCode.STALE,)
    against = [code for code, _ in reasons if code not in labels]
    if route == Route.BATON or not against:
        return ""
    return _gate_of(against[0], untrusted=untrusted) or against[0]


def _gate_of(code: str, *, untrusted: bool) -> str:
    """Name of the gate that gives a reason; empty where none does."""
    if untrusted:
        return "audience" if code.startswith("ticket-") else "trust"
    return _GATE_OF.get(code, "")


def _predictions(decision: Mapping[str, Any], at: str) -> tuple[PredictedRoute, ...]:
    found = [_predicted(_object(one, at), at) for one, at in _items(decision, "predictions", at)]
    best_s = min((one.ttft_s for one in found), default=0.0)
    return tuple(replace(one, fastest=one.ttft_s == best_s) for one in found)


def _predicted(row: Mapping[str, Any], at: str) -> PredictedRoute:
    ttft_s, low_s, high_s = (_number(row, key, at) for key in ("ttft_s", "low_s", "high_s"))
    return PredictedRoute(_text(row, "route", at), ttft_s, low_s, high_s, fastest=False)


def _with_actual(
    predictions: Sequence[PredictedRoute], taken: str, actual_s: float | None
) -> tuple[PredictedRoute, ...]:
    return tuple(
        replace(one, actual_s=actual_s if one.route == taken else None) for one in predictions
    )


def _rank(route: str) -> int:
    return [one.value for one in Route].index(route)


def _compared(shadow: Any) -> str:
    """What a receipt says of an answer that nobody saw."""
    if shadow is None:
        return ""
    at = "$.shadow"
    report = _object(shadow, at)
    route = _text(report, "route", at)
    if "error" in report:
        return f"{route} could not be compared: {_text(report, 'error', at)}"
    times = [report.get(name) for name in ("text_ttft_s", "shadow_ttft_s")]
    seconds = ""
    if None not in times:
        by_text_s, by_cache_s = (_number(report, n, at) for n in ("text_ttft_s", "shadow_ttft_s"))
        seconds = f"; first token after {by_cache_s:.3g} s, by text after {by_text_s:.3g} s"
    same, tokens = _number(report, "same_tokens", at), _number(report, "text_tokens", at)
    if report.get("first_divergence") is None:
        return f"{route} gave the same {tokens:.0f} tokens{seconds}"
    return f"{route} agreed for the first {same:.0f} of {tokens:.0f} tokens{seconds}"


# --- reading ------------------------------------------------------------------------------------


def _object(value: Any, at: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError("must be a JSON object", at=at)
    return value


def _items(inside: Mapping[str, Any], key: str, at: str) -> list[tuple[Any, str]]:
    value = inside.get(key, [])
    if not isinstance(value, list) or len(value) > MAX_ENTRIES:
        raise InputError(f"must be a list of at most {MAX_ENTRIES}", at=f"{at}.{key}")
    return [(item, f"{at}.{key}[{n}]") for n, item in enumerate(value)]


def _reasons(inside: Mapping[str, Any], at: str) -> list[tuple[str, str]]:
    found = [(_object(one, place), place) for one, place in _items(inside, "reasons", at)]
    return [(_text(one, "code", place), _text(one, "sentence", place)) for one, place in found]


def _text(inside: Mapping[str, Any], key: str, at: str) -> str:
    """A string without what could steer a terminal: receipts may come from elsewhere."""
    value = inside.get(key)
    if not isinstance(value, str):
        raise InputError("must be a string", at=f"{at}.{key}")
    return "".join(c if c.isprintable() else "�" for c in value[:MAX_TEXT_CHARS])


def _route(inside: Mapping[str, Any], at: str) -> str:
    route = _text(inside, "route", at)
    if route not in {one.value for one in Route}:
        raise InputError(f"{route[:80]!r} is no route", at=f"{at}.route")
    return route


def _number(inside: Mapping[str, Any], key: str, at: str) -> float:
    value = inside.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError("must be a number", at=f"{at}.{key}")
    if not abs(value) <= MAX_NUMBER:
        raise InputError("is no number of seconds", at=f"{at}.{key}")
    return float(value)
