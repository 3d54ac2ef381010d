"""A tiny model, small pipelines written as TOML, and a store that may not be touched."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from tests.engines.chat_tokenizers import CHATML, word_tokenizer
from tests.engines.families import build

from kvbaton.engines.transformers.load import wrap_model
from kvbaton.pipelines import Pipeline, parse_pipeline, with_document
from kvbaton.stores import Entry, Key, Kind, MemoryStore, Reader, Store

DOCUMENT = "".join(f"Room {n} has key {n + 7}. " for n in range(10, 22))
"""About 250 byte tokens of a window of 512."""


class ForbiddenStore(Store):
    """Fails the test that touches it."""

    url = "memory://forbidden"

    def put(self, key: Key, parts: Sequence[memoryview | bytes]) -> int:
        """Never allowed."""
        pytest.fail(f"put {key}")

    def open(self, key: Key) -> Reader:
        """Never allowed."""
        pytest.fail(f"open {key}")

    def delete(self, key: Key) -> bool:
        """Never allowed."""
        pytest.fail(f"delete {key}")

    def list(self, kind: Kind) -> Iterator[Entry]:
        """Never allowed."""
        pytest.fail(f"list {kind}")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors are faster on one thread, above all while the cores are busy."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def engine() -> Any:
    """A tiny Llama in float32 with a window of 512 byte tokens."""
    tokenizer = word_tokenizer()
    tokenizer.chat_template = CHATML
    return wrap_model(build("smollm"), tokenizer, name="tiny")


@pytest.fixture
def store() -> Store:
    """A store of its own for every test."""
    return MemoryStore()


@pytest.fixture(scope="session")
def pipeline_of() -> Callable[..., Pipeline]:
    """Makes a pipeline of TOML; one that reads an input gets the document."""

    def make(text: str, document: str = DOCUMENT) -> Pipeline:
        pipeline = parse_pipeline(tomllib.loads(f'name = "test"\n{text}'))
        return with_document(pipeline, document) if pipeline.reads_input else pipeline

    return make
