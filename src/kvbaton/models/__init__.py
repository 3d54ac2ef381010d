"""Built-in models: which there are, how they get onto this machine, and what a name means.

Nothing here imports torch: weights are converted in a child process.
"""

from __future__ import annotations

from kvbaton.models.catalog import BuiltinModel, Part, builtin, builtins
from kvbaton.models.install import pull
from kvbaton.models.progress import Progress, ProgressCallback, Stage
from kvbaton.models.resolve import ModelSource, ModelStatus, SourceKind, list_models, resolve

__all__ = [
    "BuiltinModel",
    "ModelSource",
    "ModelStatus",
    "Part",
    "Progress",
    "ProgressCallback",
    "SourceKind",
    "Stage",
    "builtin",
    "builtins",
    "list_models",
    "pull",
    "resolve",
]
