"""What all tests share: a real small model, tiny models of every family, a trust domain.

Nothing here reaches for the network: the built-in model has been pulled before, by `make model`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported: it reads this once
# Before torch is: threads that spin while they wait slow tiny models down on busy cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from kvbaton import models, settings
from kvbaton.errors import ModelUnavailable
from kvbaton.ledgers import close_keepers
from kvbaton.seals import TrustDomain
from kvbaton.wire.digests import DomainKeys

if TYPE_CHECKING:
    from kvbaton.engines.transformers.engine import TransformersEngine

SMALL_MODEL = "smollm2-135m"
hypothesis.settings.register_profile("untimed", deadline=None)  # no test asserts on a clock
hypothesis.settings.load_profile("untimed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that need a GPU where there is none."""
    wanted = [item for item in items if item.get_closest_marker("cuda") is None or _has_gpu()]
    if len(wanted) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
        items[:] = wanted


@cache
def _has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


@pytest.fixture(autouse=True)
def _no_compiler_outlives_a_test() -> Iterator[None]:
    """Wait for kernels that a test has begun to compile: numba changes the filters of warnings,
    which are the whole process's, so another test's would be gone in the middle of it."""
    yield
    for thread in threading.enumerate():
        if thread.name == "kvbaton-warm":
            thread.join()


@pytest.fixture(autouse=True)
def _no_ledger_outlives_a_test() -> Iterator[None]:
    """Let go of the ledgers that agents of a test have opened."""
    yield
    close_keepers()


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The folder of the built-in SmolLM2-135M."""
    try:
        source = models.resolve(SMALL_MODEL, data_dir=settings.from_environment().data_dir)
    except ModelUnavailable as error:
        pytest.fail(f"{error}; or run: make model")
    return Path(source.path_or_id)


@pytest.fixture(scope="session")
def tokenizer(smollm2_path: Path) -> Any:
    """SmolLM2's own tokenizer; tests must not change it."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2_path)


def _load(path: Path, dtype: str) -> TransformersEngine:
    from kvbaton.engines.transformers.load import load_checkpoint

    digests = settings.from_environment().cache_dir / "digests"
    return load_checkpoint(
        path, name=SMALL_MODEL, dtype=dtype, device="cpu", digests=digests, offline=True
    )


@pytest.fixture(scope="session")
def smollm2_f32(smollm2_path: Path) -> TransformersEngine:
    """SmolLM2-135M in float32; tests must not change it."""
    return _load(smollm2_path, "float32")


@pytest.fixture(scope="session")
def smollm2_bf16(smollm2_path: Path) -> TransformersEngine:
    """SmolLM2-135M in bfloat16; tests must not change it."""
    return _load(smollm2_path, "bfloat16")


@pytest.fixture(scope="session")
def tiny_engine() -> Callable[..., TransformersEngine]:
    """Make the engine of a tiny random model by family; the same one for the same arguments.

    Further arguments are ``dtype`` and the options of ``kvbaton.wrap``.  Tests must not change
    what they get: those that do build their own.
    """
    from tests.engines.families import tiny

    return cache(tiny)


@pytest.fixture(scope="session")
def domain() -> TrustDomain:
    """A trust domain with a fixed key."""
    return TrustDomain("local", DomainKeys(bytes(range(32))))
