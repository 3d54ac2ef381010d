"""Calibration records: what a codec plan was measured to cost on one model.

A lossy profile is used only where a record says what it costs: the loss depends on the model, not
on the codec alone.  A record holds the complete plan, so the sender that names it encodes with
just the plan that was measured, and its digest travels with everything that was encoded so.

Records are files, named by profile and digest, in a folder per function.  Those of the built-in
models ship with the package; ``kvbaton tune-codec`` adds others to the data folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from kvbaton.codecs.plan import CodecPlan, exact_plan, plan_from_json
from kvbaton.codecs.registered import CODECS
from kvbaton.errors import Fault, FormatError, InputError, NotCalibrated
from kvbaton.records import keep
from kvbaton.types import JSON, KVLayout
from kvbaton.wire.canonical import dumps, hex_float
from kvbaton.wire.digests import range_digest
from kvbaton.wire.fields import check_hex64

FORMAT = "kvbaton calibration 1"
FOLDER = "calibration"
EXACT_PROFILE = "exact"

_COMMAND_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}


@dataclass(frozen=True, slots=True)
class TextMeasure:
    """One text: mean KL in nats, share of other argmaxes, perplexity ratio."""

    text: str
    kl: float
    flips: float
    ppl_ratio: float


@dataclass(frozen=True)
class CalibrationRecord:
    """What one plan costs on one model.

    Parameters
    ----------
    function, model, dtype
        Digest of the function id, name, and the cache's dtype (safetensors name).
    profile
        Name under which the plan is asked for.
    plan
        The plan that was measured, whole.
    searched
        Whether the plan was searched for this model, or is the profile's own.
    corpus, texts
        Digest of the texts that were measured, and what each of them showed.
    tokens, positions
        Tokens of context of each text, and positions behind it that were compared.
    kl, kl_worst, flips, ppl_ratio
        Median and worst text's mean KL in nats; mean share of flips; median perplexity ratio.
    bits_per_element
        Of the segment files, all overhead counted.
    noise_floor_kl, bf16_floor_kl
        The model's own noise in this dtype and in bfloat16, in nats; None where it was not
        measured.  In float32 it is next to nothing, so multiples of it say little.
    first_layer_error
        Largest relative error of a token's V in layer 0, for the check of tokens against layer 0.
    producer, created_s
        Who measured, and when (seconds since the epoch).
    """

    function: str
    model: str
    dtype: str
    profile: str
    plan: CodecPlan
    searched: bool
    corpus: str
    texts: tuple[TextMeasure, ...]
    tokens: int
    positions: int
    kl: float
    kl_worst: float
    flips: float
    ppl_ratio: float
    bits_per_element: float
    noise_floor_kl: float | None = None
    bf16_floor_kl: float | None = None
    first_layer_error: float = 0.0
    producer: tuple[tuple[str, str], ...] = ()
    created_s: int = 0

    @property
    def noise_multiple(self) -> float | None:
        """KL in multiples of the noise floor; None where that is unknown or zero."""
        return self.kl / self.noise_floor_kl if self.noise_floor_kl else None

    @property
    def bf16_multiple(self) -> float | None:
        """KL in multiples of the noise floor in bfloat16; None where that is unknown or zero."""
        return self.kl / self.bf16_floor_kl if self.bf16_floor_kl else None

    @cached_property
    def digest(self) -> str:
        """BLAKE3-256 (hex) of the record's canonical JSON, floats in hexadecimal."""
        return range_digest(dumps(_without_floats(self.to_json()), what="calibration record"))

    @property
    def calibrated_plan(self) -> CodecPlan:
        """The plan, which names this record."""
        return self.plan.calibrated(self.digest)

    def to_json(self) -> JSON:
        """As it is stored."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {
            "format": FORMAT,
            **plain,
            "plan": self.plan.to_json(),
            "texts": [asdict(text) for text in self.texts],
            "producer": dict(self.producer),
        }

    @classmethod
    def from_json(cls, value: Any) -> CalibrationRecord:
        """Read what ``to_json`` wrote.

        Raises
        ------
        FormatError
            It is something else, or its plan has a codec that is not known here.
        """
        try:
            if value["format"] != FORMAT:
                raise KeyError(value["format"])
            fields = {name: value[name] for name in cls.__dataclass_fields__}
            fields["texts"] = tuple(TextMeasure(**text) for text in fields["texts"])
            fields["producer"] = tuple(sorted(fields["producer"].items()))
        except (KeyError, TypeError, AttributeError) as error:
            raise FormatError("not a calibration record", fault=Fault.UNKNOWN_FORMAT) from error
        fields["plan"] = plan_from_json(fields["plan"], CODECS, at="$.plan")
        return cls(**fields)


def _without_floats(value: Any) -> Any:
    """The same with floats spelled in hexadecimal: canonical JSON has none."""
    if isinstance(value, float):
        return hex_float(value)
    if isinstance(value, Mapping):
        return {str(name): _without_floats(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_floats(inner) for inner in value]
    return value


class Calibrations:
    """Records at hand, by digest and by function and profile; the newest of several counts."""

    def __init__(self, records: Iterable[CalibrationRecord] = ()) -> None:
        self._by_digest: dict[str, CalibrationRecord] = {}
        self._newest: dict[tuple[str, str], CalibrationRecord] = {}
        for record in records:
            self.add(record)

    def add(self, record: CalibrationRecord) -> None:
        """Keep one more record."""
        self._by_digest[record.digest] = record
        key = record.function, record.profile
        known = self._newest.get(key)
        if known is None or record.created_s >= known.created_s:
            self._newest[key] = record

    @property
    def records(self) -> tuple[CalibrationRecord, ...]:
        """All records, by digest."""
        return tuple(self._by_digest[digest] for digest in sorted(self._by_digest))

    @property
    def digests(self) -> frozenset[str]:
        """Digests of all records: what a gate needs to know."""
        return frozenset(self._by_digest)

    def get(self, digest: str) -> CalibrationRecord | None:
        """The record with this digest."""
        return self._by_digest.get(digest)

    def find(self, function: str, profile: str) -> CalibrationRecord | None:
        """The newest record of a profile for a function's digest."""
        return self._newest.get((function, profile))

    def profiles(self, function: str) -> tuple[str, ...]:
        """Profiles that were measured on a function, sorted."""
        return tuple(sorted(name for owner, name in self._newest if owner == function))


def plan_for(
    profile: str, *, function: str, model: str, layout: KVLayout, calibrations: Calibrations
) -> CodecPlan:
    """The plan of a profile as it was measured on a model; ``exact`` needs no measuring.

    Parameters
    ----------
    function, model
        Digest of the function id, and the name that the hint gives to ``kvbaton tune-codec``.

    Raises
    ------
    NotCalibrated
        The profile was not measured on this function; the hint is the command that does.
    InputError
        The record's plan is for another number of layers.
    """
    layers = len(layout.layers)
    if profile == EXACT_PROFILE:
        return exact_plan(layers)
    record = calibrations.find(function, profile)
    if record is None:
        raise not_calibrated(profile, model=model, dtype=layout.dtype)
    if len(record.plan.layers) != layers:
        raise InputError(
            f"the record of {profile!r} names {len(record.plan.layers)} layers, "
            f"the model has {layers}"
        )
    return record.calibrated_plan


def not_calibrated(profile: str, *, model: str, dtype: str) -> NotCalibrated:
    """The error of a lossy profile without a record, with the command that makes one."""
    return NotCalibrated(
        f"the profile {profile!r} was not measured on {model} in {dtype}",
        hint=f"run: {tune_command(profile, model=model, dtype=dtype)}",
    )


def tune_command(profile: str, *, model: str, dtype: str) -> str:
    """The command line that measures a profile on a model."""
    spelled = _COMMAND_DTYPES.get(dtype, dtype)
    return f"kvbaton tune-codec {model} --profile {profile} --dtype {spelled}"


# --- where they are kept -----------------------------------------------------------------------


def store_calibration(record: CalibrationRecord, data_dir: Path) -> Path:
    """Keep a record; the file is there whole or not at all.

    Earlier records stay: what was encoded with them is still read.

    Raises
    ------
    InputError
        The folder cannot be written.
    """
    name = f"{record.profile}-{record.digest}.json"
    target = data_dir / FOLDER / record.function / name
    return keep(target, record_text(record), what="the calibration")


def record_text(record: CalibrationRecord) -> str:
    """The text of a record's file."""
    return json.dumps(record.to_json(), indent=1, sort_keys=True) + "\n"


def stored_calibrations(function: str, data_dir: Path | None = None) -> Calibrations:
    """The records of a function's digest: shipped with kvbaton, and measured here.

    Raises
    ------
    FormatError
        A file in such a folder is no record of this function; ``at`` names it.  Or ``function``
        is no digest.
    """
    check_hex64(function, "$.function")
    places = [files("kvbaton").joinpath("data", FOLDER, function)]
    if data_dir is not None:
        places.append(data_dir / FOLDER / function)
    found = Calibrations()
    for place in places:
        if not place.is_dir():
            continue
        for entry in sorted(place.iterdir(), key=lambda entry: entry.name):
            if entry.name.endswith(".json"):
                found.add(_read(entry.read_text(encoding="utf-8"), function, str(entry)))
    return found


def _read(text: str, function: str, at: str) -> CalibrationRecord:
    try:
        record = CalibrationRecord.from_json(json.loads(text))
        if record.function != function:
            raise ValueError(record.function)
        return record
    except (ValueError, FormatError) as error:
        raise FormatError(
            "the file holds no calibration record of this function",
            fault=Fault.UNKNOWN_FORMAT,
            at=at,
            hint="delete it, and measure again",
        ) from error
