"""The public suite on engines of tiny models: full layers, window layers, both."""

import pytest
import torch
from tests.engines.families import WINDOW, tiny

from kvbaton.engines.base import Engine
from kvbaton.testing import EngineTests

AROUND_WINDOW = (1, WINDOW // 2, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW)


class TestFullLayers(EngineTests):
    """A Llama."""

    @classmethod
    def make_engine(cls) -> Engine:
        """The engine under test."""
        return tiny("llama")


class TestWindowLayers(EngineTests):
    """A Mistral: nothing but window layers."""

    contexts = AROUND_WINDOW

    @classmethod
    def make_engine(cls) -> Engine:
        """The engine under test."""
        return tiny("mistral")


class TestMixedLayers(EngineTests):
    """A Gemma 3: window layers and full ones, with a RoPE for each."""

    contexts = AROUND_WINDOW

    @classmethod
    def make_engine(cls) -> Engine:
        """The engine under test."""
        return tiny("gemma3")


class TestBfloat16(EngineTests):
    """A Gemma 2 in bfloat16."""

    contexts = AROUND_WINDOW

    @classmethod
    def make_engine(cls) -> Engine:
        """The engine under test."""
        return tiny("gemma2", dtype=torch.bfloat16)


class TestDeterministic(EngineTests):
    """A deterministic engine keeps the laws."""

    @classmethod
    def make_engine(cls) -> Engine:
        """The engine under test."""
        return tiny("qwen2", deterministic=True)


class TestEagerAttention(EngineTests):
    """Another attention kernel keeps the laws."""

    contexts = AROUND_WINDOW

    @classmethod
    def make_engine(cls) -> Engine:
        """The engine under test."""
        return tiny("qwen2-window", attention="eager")


@pytest.mark.cuda
class TestOnGpu(EngineTests):
    """A Gemma 3 on a GPU."""

    contexts = AROUND_WINDOW

    @classmethod
    def make_engine(cls) -> Engine:
        """The engine under test."""
        return tiny("gemma3", device="cuda")
