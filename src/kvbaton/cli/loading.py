"""Loading a model for a command: unknown names fail before torch is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbaton import models, settings
from kvbaton.cli.output import Output

if TYPE_CHECKING:
    from kvbaton.codecs.plan import CodecPlan
    from kvbaton.engines.base import Engine


def load_engine(output: Output, name: str, *, dtype: str) -> Engine:
    """Load a model, with progress, and keep transformers off the terminal.

    Raises
    ------
    UnknownModel, ModelUnavailable
        Nothing of that name, or nothing of it on this machine.
    UnsupportedLayout, UnsupportedModel
        The model's cache cannot be handed over faithfully.
    """
    models.resolve(name, data_dir=settings.from_environment().data_dir)
    with output.progress(f"loading {name}"):
        from kvbaton import api
        from kvbaton.engines.transformers.quiet import silence

        silence()
        return api.load(name, dtype=dtype)


def warm_now(output: Output, plan: CodecPlan, dtype: str) -> None:
    """Have a plan's kernels compiled before anything is timed."""
    from kvbaton.warming import chains_of, warm_soon

    thread = warm_soon(chains_of(plan), dtype)
    if thread is not None:
        with output.progress("compiling codecs, once on this machine"):
            thread.join()
