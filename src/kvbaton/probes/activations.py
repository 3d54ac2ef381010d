"""How large the activations of later layers are: what a forward pass leaves behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from kvbaton.errors import UnsupportedModel

_TINY = 1e-30


def later_layers(count: int) -> tuple[int, ...]:
    """Five layers at most, from the middle of ``count`` layers to the last."""
    return tuple(sorted({count // 2, 5 * count // 8, 3 * count // 4, 7 * count // 8, count - 1}))


class LaterActivations:
    """Sizes of the hidden states that some layers put out, at the last position.

    Parameters
    ----------
    model
        A decoder-only model of transformers.
    layers
        Indices of its layers.

    Raises
    ------
    UnsupportedModel
        The model does not keep its layers in one list.
    """

    def __init__(self, model: Any, layers: tuple[int, ...]) -> None:
        found = _layer_list(model)
        if layers and max(layers) >= len(found):
            raise UnsupportedModel(f"the model has {len(found)} layers, and not {max(layers) + 1}")
        self._modules = [found[layer] for layer in layers]
        self._sizes: dict[int, torch.Tensor] = {}

    @contextmanager
    def attached(self) -> Iterator[None]:
        """While this is open, forward passes of this thread are measured."""
        thread = threading.get_ident()
        with ExitStack() as stack:
            for index, module in enumerate(self._modules):
                hook = module.register_forward_hook(self._measuring(index, thread))
                stack.callback(hook.remove)
            yield

    def _measuring(self, index: int, thread: int) -> Any:
        def measure(module: Any, arguments: Any, output: Any) -> None:
            if threading.get_ident() == thread:  # others may run the same model now
                hidden = output[0] if isinstance(output, tuple) else output
                self._sizes[index] = _size(hidden[0, -1])

        return measure

    def values(self) -> tuple[float, ...]:
        """Logarithms of root mean square and largest magnitude, by layer; of the last pass."""
        if len(self._sizes) < len(self._modules):
            return ()
        return tuple(float(x) for i in range(len(self._modules)) for x in self._sizes[i].tolist())


def _size(state: torch.Tensor) -> torch.Tensor:
    """``[2]`` float32 of a hidden state ``[channels]``."""
    wide = state.detach().float()
    sizes = torch.stack((wide.square().mean().sqrt(), wide.abs().max()))
    return sizes.clamp_min(_TINY).log()


def _layer_list(model: Any) -> Any:
    count = int(model.config.num_hidden_layers)
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == count:
            return module
    raise UnsupportedModel(f"the model does not keep its {count} layers in one list")
