"""Tiny models on one thread: thread pools cost more than they compute, above all on busy cores."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engines.chat_tokenizers import CHATML, word_tokenizer
from tests.engines.families import build

from kvbaton.engines.transformers import identity


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Compute on one thread, and leave the number of threads as it was."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A saved tiny Llama with its tokenizer."""
    folder = tmp_path / "model"
    build("llama").save_pretrained(folder)
    tokenizer = word_tokenizer()
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that weights are hashed."""
    calls: list[int] = []
    digest = identity.weights_digest

    def counting(tensors: Any) -> str:
        calls.append(1)
        return digest(tensors)

    monkeypatch.setattr(identity, "weights_digest", counting)
    return calls
