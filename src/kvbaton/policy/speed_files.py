"""Where speeds are kept: one file for each function, in a folder of the host that they are of.

None is shipped: speeds of another machine say nothing here, and a file of one is never used.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvbaton.errors import Fault, FormatError, InputError, KvbatonError, NotMeasuredHere
from kvbaton.policy.hosts import host_id
from kvbaton.policy.learning import Learner, Learnt
from kvbaton.policy.output_length import OutputLengths
from kvbaton.policy.speeds import Speeds
from kvbaton.records import keep
from kvbaton.wire.fields import check_hex64, read_object

FORMAT = "kvbaton speeds 1"
FOLDER = "speeds"
HINT = "measure this machine with: kvbaton policy calibrate"

_HOST_DIGITS = 16
_MAX_FILE_BYTES = 4 << 20


def speeds_file(data_dir: Path, function: str, *, host: str | None = None) -> Path:
    """The file of a function's speeds on a host, by default this one."""
    check_hex64(function, "$.function")
    return data_dir / FOLDER / (host or host_id())[:_HOST_DIGITS] / f"{function}.json"


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of a function: measured speeds, what receipts have taught of them since, and
    how long answers are."""

    speeds: Speeds
    learnt: Learnt = field(default_factory=Learnt)
    lengths: OutputLengths = field(default_factory=OutputLengths)

    def learner(self) -> Learner:
        """A learner that goes on from here."""
        return Learner(self.speeds, self.learnt, self.lengths)

    @classmethod
    def of(cls, learner: Learner) -> Kept:
        """What a learner knows now."""
        return cls(learner.measured, learner.learnt, learner.lengths)


def store_speeds(kept: Kept, data_dir: Path) -> Path:
    """Keep speeds in place of earlier ones; whole or not at all.

    Raises
    ------
    InputError
        The folder cannot be written.
    FormatError
        Host or function is no digest.
    """
    speeds = kept.speeds
    check_hex64(speeds.host, "$.host")
    value = {
        "format": FORMAT,
        "speeds": speeds.to_json(),
        "learnt": kept.learnt.to_json(),
        "lengths": kept.lengths.to_json(),
    }
    text = json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n"
    target = speeds_file(data_dir, speeds.function, host=speeds.host)
    return keep(target, text, what="the measured speeds")


def read_speeds(data_dir: Path, function: str, *, host: str | None = None) -> Kept | None:
    """Speeds of a function on this host; None where there are none.

    Raises
    ------
    NotMeasuredHere
        There are some, but of another host, another model, or another version of kvbaton.
    FormatError
        There is a file, and it is something else; the hint says what to do.
    """
    here = host or host_id()
    file = speeds_file(data_dir, function, host=here)
    if not file.is_file():
        _refuse_others(data_dir, function)
        return None
    try:
        value: Any = json.loads(_text(file))
        _require_format(value, file)
        fields = read_object(value, "$", {"format", "speeds", "learnt", "lengths"})
        speeds = Speeds.from_json(fields["speeds"], "$.speeds")
        learnt = Learnt.from_json(fields["learnt"], "$.learnt")
        lengths = OutputLengths.from_json(fields["lengths"], "$.lengths")
    except NotMeasuredHere:
        raise
    except (ValueError, RecursionError, OSError, FormatError, InputError) as error:
        raise FormatError(
            "the file holds no measured speeds",
            fault=Fault.UNKNOWN_FORMAT,
            at=str(file),
            hint=f"delete it, and {HINT}",
        ) from error
    if speeds.host != here:
        raise NotMeasuredHere("the speeds are those of another host", at=str(file), hint=HINT)
    if speeds.function != function:
        raise NotMeasuredHere("the speeds are those of another model", at=str(file), hint=HINT)
    return Kept(speeds, learnt, lengths)


def load_speeds(
    data_dir: Path, function: str, *, host: str | None = None
) -> tuple[Kept | None, KvbatonError | None]:
    """``read_speeds`` for who answers with or without them: what is wrong is returned, not raised.

    Returns
    -------
    tuple
        What is kept or None, and why speeds that are there are not used.
    """
    try:
        return read_speeds(data_dir, function, host=host), None
    except (NotMeasuredHere, FormatError) as error:
        return None, error


def speeds_of_model(data_dir: Path, model: str, *, host: str | None = None) -> Kept:
    """What was measured last of a model on this host, whatever its dtype; no model is loaded.

    Raises
    ------
    NotMeasuredHere
        Nothing was.
    FormatError
        A file holds something else.
    """
    here = host or host_id()
    every = [
        kept
        for file in sorted((data_dir / FOLDER / here[:_HOST_DIGITS]).glob("*.json"))
        if (kept := read_speeds(data_dir, file.stem, host=here))
    ]
    found = [kept for kept in every if kept.speeds.model == model]
    if not found:
        names = ", ".join(sorted({kept.speeds.model for kept in every})[:8])
        raise NotMeasuredHere(
            f"{model[:80]!r} was not measured on this machine",
            at=str(data_dir / FOLDER),
            hint=f"{HINT}; measured were: {names}" if names else HINT,
        )
    return max(found, key=lambda kept: kept.speeds.created_s)


def _text(file: Path) -> str:
    with file.open(encoding="ascii") as opened:
        text = opened.read(_MAX_FILE_BYTES + 1)
    if len(text) > _MAX_FILE_BYTES:
        raise ValueError("too large")
    return text


def _require_format(value: Any, file: Path) -> None:
    found = value.get("format") if isinstance(value, dict) else None
    if found != FORMAT and isinstance(found, str) and found.startswith("kvbaton speeds "):
        raise NotMeasuredHere(
            "the speeds were measured by another version of kvbaton", at=str(file), hint=HINT
        )


def _refuse_others(data_dir: Path, function: str) -> None:
    """Say so where the only speeds of a function are those of other hosts."""
    elsewhere = sorted((data_dir / FOLDER).glob(f"*/{function}.json"))
    if elsewhere:
        raise NotMeasuredHere(
            "this model was measured on another host only", at=str(elsewhere[0]), hint=HINT
        )
