"""The plan of an audit: everything that is fixed before the first trial, and its digest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

from blake3 import blake3

from kvbaton.audit.treatments import DEFAULT, expanded
from kvbaton.errors import InputError
from kvbaton.types import JSON

FORMAT = "kvbaton audit plan 1"
LADDER = (32, 64, 128, 256, 512, 1024, 2048)
"""Tokens of context at which text and cache are timed for the break-even length."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What an audit does.

    Parameters
    ----------
    tasks
        Name of a built-in task set, or path of a file.
    model, dtype
        Of sender and receiver.
    units
        Tasks for a sender and a receiver; each gets every treatment.
    questions
        Asked per unit; 0 for as many as the built-in set has by default.
    lengths
        Tokens of the senders' contexts, cycled over the units; empty for the set's own.
    treatments
        By name.
    repeats
        Timed trials per unit and treatment.
    fixed_tokens
        Tokens for which answers are timed, since outputs differ in length.
    margin_points
        Accuracy may differ by so many points and still count as the same.
    alpha
        Share of false verdicts that is accepted.
    icc
        How alike the questions of a unit are taken to be (intra-class correlation), 0 to 1.
    ladder, ladder_repeats
        Context lengths for the break-even, and timed runs at each.
    seed
        Decides tasks and order.
    excerpts
        Let records have the first 50 characters of what the sender read.
    """

    tasks: str = "private-facts"
    model: str = "smollm2-135m"
    dtype: str = "bfloat16"
    units: int = 40
    questions: int = 0
    lengths: tuple[int, ...] = ()
    treatments: tuple[str, ...] = DEFAULT
    repeats: int = 3
    fixed_tokens: int = 8
    margin_points: float = 5.0
    alpha: float = 0.05
    icc: float = 0.3
    ladder: tuple[int, ...] = LADDER
    ladder_repeats: int = 5
    seed: int = 1
    excerpts: bool = False

    def __post_init__(self) -> None:
        expanded(self.treatments)
        for name, least in (
            ("units", 1), ("questions", 0), ("repeats", 1), ("fixed_tokens", 1),
            ("ladder_repeats", 1), ("seed", 0),
        ):  # fmt: skip
            _require(getattr(self, name) >= least, name, f"is at least {least}")
        _require(all(n >= 1 for n in (*self.lengths, *self.ladder)), "lengths", "are at least 1")
        _require(0 < self.margin_points <= 100, "margin_points", "lies between 0 and 100")
        _require(0 < self.alpha < 0.5, "alpha", "lies between 0 and 0.5")
        _require(0 <= self.icc <= 1, "icc", "lies between 0 and 1")

    @property
    def digest(self) -> str:
        """BLAKE3 (hex) of the plan as canonical JSON: what a run folder belongs to."""
        canonical = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return str(blake3(canonical.encode("ascii")).hexdigest())

    def to_json(self) -> JSON:
        """As plan files hold it."""
        return {"format": FORMAT} | asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Plan:
        """The plan of a file.

        Raises
        ------
        InputError
            It is none; the field is named.
        """
        if not isinstance(value, Mapping) or value.get("format") != FORMAT:
            raise InputError("this is no plan of an audit", at="$.format")
        known = {field.name for field in fields(cls)}
        for name in value:
            _require(name in known or name == "format", str(name), "is no field of a plan")
        hints = get_type_hints(cls)
        read = {name: _read(name, value[name], hints[name]) for name in known if name in value}
        return cls(**read)


def read_plan(path: Path) -> Plan:
    """The plan of a file, ``plan.json`` of a run folder for one.

    Raises
    ------
    InputError
        It cannot be read, or is no plan.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"the plan cannot be read: {error}", at=str(path)) from error
    return Plan.from_json(value)


def write_plan(plan: Plan, path: Path) -> None:
    """Write a plan, to be read by :func:`read_plan`.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    try:
        path.write_text(json.dumps(plan.to_json(), indent=1) + "\n", encoding="ascii")
    except OSError as error:
        raise InputError(
            f"the plan cannot be written: {error.strerror or error}", at=str(path)
        ) from error


def _require(holds: object, name: str, sentence: str) -> None:
    if not holds:
        raise InputError(f"{name} {sentence}", at=f"$.{name}")


def _read(name: str, value: Any, kind: Any) -> Any:
    """A value of a field's type; whole numbers serve as fractions."""
    if kind in (int, float, str, bool):
        right = type(value) is kind or (kind is float and type(value) is int)
        _require(right, name, f"is a value of type {kind.__name__}")
        return kind(value)
    inner = kind.__args__[0]
    _require(
        isinstance(value, list | tuple) and all(type(one) is inner for one in value),
        name,
        f"is a list of values of type {inner.__name__}",
    )
    return tuple(value)
