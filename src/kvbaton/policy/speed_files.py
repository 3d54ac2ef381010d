"""Where speeds are kept: one file for each function, in a folder of the host that they are of.

None is shipped: speeds of another machine say nothing here, and a file of one is never used.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvbaton.errors import Fault, FormatError, InputError, KvbatonError, NotMeasuredHere
from kvbaton.policy.hosts import host_id
from kvbaton.policy.learning import Learnt
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


def store_speeds(speeds: Speeds, data_dir: Path, learnt: Learnt | None = None) -> Path:
    """Keep speeds, and what was learnt since, in place of earlier ones; whole or not at all.

    Raises
    ------
    InputError
        The folder cannot be written.
    FormatError
        Host or function is no digest.
    """
    check_hex64(speeds.host, "$.host")
    value = {"format": FORMAT, "speeds": speeds.to_json(), "learnt": (learnt or Learnt()).to_json()}
    text = json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n"
    target = speeds_file(data_dir, speeds.function, host=speeds.host)
    return keep(target, text, what="the measured speeds")


def read_speeds(
    data_dir: Path, function: str, *, host: str | None = None
) -> tuple[Speeds, Learnt] | None:
    """Speeds of a function on this host, and what was learnt since; None where there are none.

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
        fields = read_object(value, "$", {"format", "speeds", "learnt"})
        speeds = Speeds.from_json(fields["speeds"], "$.speeds")
        learnt = Learnt.from_json(fields["learnt"], "$.learnt")
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
    return speeds, learnt


def load_speeds(
    data_dir: Path, function: str, *, host: str | None = None
) -> tuple[Speeds | None, Learnt, KvbatonError | None]:
    """``read_speeds`` for who answers with or without them: what is wrong is returned, not raised.

    Returns
    -------
    tuple
        Speeds or None, what was learnt since, and why speeds that are there are not used.
    """
    try:
        found = read_speeds(data_dir, function, host=host)
    except (NotMeasuredHere, FormatError) as error:
        return None, Learnt(), error
    return (None, Learnt(), None) if found is None else (*found, None)


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
