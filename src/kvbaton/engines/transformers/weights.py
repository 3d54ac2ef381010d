"""Noticing that weights were edited in memory, without hashing them each time."""

from __future__ import annotations

from typing import Any

import torch

_SAMPLES = 8
"""Elements of each parameter that are compared."""


class WeightWatch:
    """Tells whether a model's parameters are still what they were when last asked.

    Looked at are where each parameter lies, how often autograd has seen it written, and a few of
    its elements.  So an optimizer step, ``load_state_dict``, a replaced parameter and any edit of
    a whole matrix through ``.data`` (merging an adapter, scaling) are noticed, for about a
    millisecond per question.  Not noticed is an edit of single elements through ``.data``.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._children: list[tuple[dict[str, Any], tuple[Any, ...]]] = []
        self._own: list[dict[str, Any]] = []
        self._places: tuple[tuple[int, int], ...] = ()
        self._samples: list[torch.Tensor] = []
        self._seen = torch.empty(0)
        self.changed()

    @torch.no_grad()
    def changed(self) -> bool:
        """Whether anything was edited since the last call."""
        parameters = self._parameters()
        places = tuple((p.data_ptr(), _writes(p)) for p in parameters)
        moved = places != self._places
        if moved:
            self._places = places
            self._samples = [_spread(p) for p in parameters]
        values = torch.cat(self._samples).nan_to_num()  # NaN is not equal to itself
        edited = not torch.equal(values, self._seen)
        self._seen = values
        return moved or edited

    def _parameters(self) -> list[torch.Tensor]:
        """All parameters; the tree of modules is walked again only when it has changed.

        Walking it takes longer than all the rest.
        """
        same = self._children and all(
            len(held) == len(now) and all(a is b for a, b in zip(held.values(), now, strict=True))
            for held, now in self._children
        )
        if not same:
            modules = list(self._model.modules())
            self._children = [(m._modules, tuple(m._modules.values())) for m in modules]
            self._own = [m._parameters for m in modules]
        return [p for own in self._own for p in own.values() if p is not None]


def _writes(parameter: torch.Tensor) -> int:
    """Autograd's count of writes in place; tensors made in inference mode have none."""
    return 0 if parameter.is_inference() else int(parameter._version)


def _spread(parameter: torch.Tensor) -> torch.Tensor:
    """A view of some elements, evenly spread over the parameter's memory."""
    steps = zip(parameter.shape, parameter.stride(), strict=True)
    extent = 1 + sum((size - 1) * stride for size, stride in steps)
    count = min(extent, _SAMPLES)
    return parameter.detach().as_strided((count,), (extent // count,))
