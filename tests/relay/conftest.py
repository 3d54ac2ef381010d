"""A tiny real model with a real tokenizer, so that every test of the flow runs in milliseconds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from tests.engines.chat_tokenizers import word_tokenizer
from tests.engines.families import build

from kvbaton.agent import Agent
from kvbaton.engines.transformers.load import wrap_model
from kvbaton.relay import Relay
from kvbaton.seals import TrustDomain
from kvbaton.stores import MemoryStore, Store
from kvbaton.wire.digests import DomainKeys

SEGMENT_TOKENS = 16
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_engine(family: str = "llama", *, seed_text: str = "", **options: Any) -> Any:
    """A tiny engine; another ``seed_text`` gives other weights."""
    import torch

    model = build(family)
    if seed_text:
        seed = int(hashlib.sha256(seed_text.encode()).hexdigest()[:8], 16)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)
    tokenizer = word_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return wrap_model(model, tokenizer, name=f"tiny-{family}", **options)


@pytest.fixture(scope="session")
def engine() -> Any:
    """A tiny Llama in float32."""
    return make_engine()


@pytest.fixture(scope="session")
def window_engine() -> Any:
    """A tiny Gemma 3: window layers and full ones."""
    return make_engine("gemma3")


@pytest.fixture(scope="session")
def domain() -> TrustDomain:
    """A trust domain with a fixed key."""
    return TrustDomain("local", DomainKeys(bytes(range(32))))


@pytest.fixture
def store() -> Store:
    """A store of its own for every test."""
    return MemoryStore()


@pytest.fixture
def agent_of(engine: Any, domain: TrustDomain, store: Store) -> Callable[..., Agent]:
    """Makes agents that share the test's store, with small segments."""

    def make(name: str, **options: Any) -> Agent:
        relay = Relay(
            options.pop("engine", engine),
            options.pop("store", store),
            options.pop("domain", domain),
            segment_tokens=SEGMENT_TOKENS,
            plan=options.pop("plan", None),
            calibrations=options.pop("calibrations", None),
            max_lossy_hops=options.pop("max_lossy_hops", 3),
            observer=options.pop("observer", None),
        )
        return Agent(name, relay.engine, relay, **options)

    return make
