"""Arguments and options that several commands share."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

import typer

from kvbaton.errors import InputError

_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"([0-9]{1,9})([smhd]?)")


class Dtype(StrEnum):
    """dtype of weights and cache."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"


BatonArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The baton's id: 64 hexadecimal digits.")
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="The store, such as dir:///var/lib/kvbaton; by default the settings' own.",
    ),
]
ModelOption = Annotated[
    str,
    typer.Option(
        "--model", metavar="NAME", help="Built-in name, folder with a checkpoint, or hub id."
    ),
]
DtypeOption = Annotated[
    Dtype, typer.Option("--dtype", metavar="D", help="dtype of weights and cache.")
]
SystemOption = Annotated[
    str | None, typer.Option("--system", metavar="TEXT", help="The agent's own system prompt.")
]
ProfileOption = Annotated[
    str,
    typer.Option(
        "--profile",
        metavar="NAME",
        help="How caches are encoded: exact, near-lossless, layered, compact, tiny, or one of your "
        "own; all but exact must have been measured on the model (kvbaton tune-codec).",
    ),
]


def duration_s(text: str, option: str) -> int:
    """Seconds of a time such as ``30s``, ``10m``, ``2h`` or ``7d``.

    Raises
    ------
    InputError
        It is none; ``at`` is the option.
    """
    found = _DURATION.fullmatch(text)
    if found is None:
        raise InputError(
            f"{option} is {text[:40]!r}, and must be a time", at=option, hint="30s, 10m, 2h or 7d"
        )
    return int(found.group(1)) * _UNITS_S[found.group(2)]
