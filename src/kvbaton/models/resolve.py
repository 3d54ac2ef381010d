"""What a model's name means: a built-in model, a folder on this machine, or a Hugging Face id."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kvbaton.errors import ModelUnavailable, UnknownModel
from kvbaton.models.catalog import BuiltinModel, builtins, unknown_model
from kvbaton.models.install import installed, model_folder

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")


class SourceKind(StrEnum):
    """Where a model comes from."""

    BUILTIN = "built-in"
    FOLDER = "folder"
    HUB = "hugging-face"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What a loader needs: ``path_or_id`` is a folder, or an id for kind ``hugging-face``."""

    name: str
    path_or_id: str
    kind: SourceKind
    license: str = ""


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """A built-in model and whether it is on this machine."""

    model: BuiltinModel
    installed: bool
    path: Path


def list_models(*, data_dir: Path) -> tuple[ModelStatus, ...]:
    """Return the built-in models, smallest first, with whether each is installed."""
    models = sorted(builtins().values(), key=lambda model: model.parameters)
    return tuple(
        ModelStatus(model, installed(model, data_dir), model_folder(model.name, data_dir))
        for model in models
    )


def resolve(name_or_path: str, *, data_dir: Path) -> ModelSource:
    """Return what ``name_or_path`` means.

    A built-in name wins over a folder of the same name; write ``./name`` for the folder.  Whether
    a Hugging Face id exists is found out by loading it.

    Raises
    ------
    ModelUnavailable
        A built-in model that has not been pulled.
    UnknownModel
        Neither a built-in name, nor a folder with a ``config.json``, nor an id.
    """
    if name_or_path in builtins():
        return _resolve_builtin(builtins()[name_or_path], data_dir)
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return _resolve_folder(path)
    if _HUB_ID.fullmatch(name_or_path):
        return ModelSource(name_or_path, name_or_path, SourceKind.HUB)
    raise unknown_model(name_or_path)


def _resolve_builtin(model: BuiltinModel, data_dir: Path) -> ModelSource:
    if not installed(model, data_dir):
        raise ModelUnavailable(
            f"{model.name} is not on this machine",
            hint=f"kvbaton models pull {model.name} fetches {model.download_bytes / 1e6:.0f} MB",
        )
    folder = model_folder(model.name, data_dir)
    return ModelSource(model.name, str(folder), SourceKind.BUILTIN, model.license)


def _resolve_folder(path: Path) -> ModelSource:
    if not (path / "config.json").is_file():
        raise UnknownModel(f"the folder {path} holds no config.json")
    return ModelSource(path.resolve().name, str(path.resolve()), SourceKind.FOLDER)
