"""Sizes of later layers' activations, against what the model itself reports."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from tests.engines.families import tiny

from kvbaton.errors import UnsupportedModel
from kvbaton.probes.activations import LaterActivations, later_layers

IDS = tuple(range(5, 25))


def test_layers_from_the_middle_to_the_last() -> None:
    """Five of thirty, and of a small model what there is."""
    assert later_layers(30) == (15, 18, 22, 26, 29)
    assert later_layers(4) == (2, 3)
    assert later_layers(1) == (0,)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_neox", "phi3", "qwen2"])
def test_sizes_are_those_of_the_models_own_hidden_states(family: str) -> None:
    """Root mean square and largest magnitude of layers 1 and 2 at the last position."""
    engine: Any = tiny(family)
    activations = LaterActivations(engine.model, (1, 2))
    with activations.attached():
        engine.forward(engine.new_cache(32), IDS)
    with torch.inference_mode():
        states = engine.model(torch.tensor([IDS]), output_hidden_states=True).hidden_states
    wanted = []
    for layer in (1, 2):
        last = states[layer + 1][0, -1]
        wanted += [float(last.pow(2).mean().sqrt().log()), float(last.abs().max().log())]
    assert activations.values() == pytest.approx(wanted, abs=1e-4)


def test_only_the_thread_that_watches_is_measured(engine: Any) -> None:
    """Another answer of the same model at the same time leaves no trace, nor does a later one."""
    activations = LaterActivations(engine.model, (2, 3))
    other = threading.Thread(target=lambda: engine.forward(engine.new_cache(32), IDS))
    with activations.attached():
        other.start()
        other.join()
    engine.forward(engine.new_cache(32), IDS)
    assert activations.values() == ()


def test_hooks_are_taken_off_again(engine: Any) -> None:
    """The model is as it was, also when something fails meanwhile."""
    before = [len(module._forward_hooks) for module in engine.model.modules()]
    activations = LaterActivations(engine.model, (2, 3))
    with pytest.raises(KeyError), activations.attached():
        raise KeyError
    assert [len(module._forward_hooks) for module in engine.model.modules()] == before


def test_layers_that_do_not_exist_are_refused(engine: Any) -> None:
    """A range of another model does not fit."""
    with pytest.raises(UnsupportedModel, match="the model has 4 layers, and not 30"):
        LaterActivations(engine.model, later_layers(30))


def test_a_model_without_a_list_of_layers_is_refused(engine: Any) -> None:
    """Nothing is guessed."""

    class Odd(torch.nn.Module):
        """Layers that stand alone."""

        config = engine.model.config

    with pytest.raises(UnsupportedModel, match="in one list"):
        LaterActivations(Odd(), (0,))
