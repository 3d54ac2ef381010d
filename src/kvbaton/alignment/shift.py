"""Moving the keys of a slice to the receiver's positions: one rotation, from the original."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvbaton import rope
from kvbaton.errors import InputError, UnsupportedLayout
from kvbaton.types import KVLayout, RopeSpec


def shift_keys(
    keys: torch.Tensor,
    *,
    spec_from: RopeSpec,
    spec_to: RopeSpec,
    old_first: int,
    new_first: int,
    tables: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Keys ``[kv_heads, n, k_dim]`` as they would be at other positions, in their dtype.

    Parameters
    ----------
    keys
        Keys after RoPE, at positions ``old_first`` on.
    spec_from, spec_to
        How the sender rotated them, and how the receiver rotates.
    new_first
        Position of the first one at the receiver.
    tables
        Inverse frequencies of both; by default those that the specs state.

    Raises
    ------
    UnsupportedLayout
        The specs do not state their tables, rotate other channels, or pair them otherwise.
    InputError
        A negative position, or keys with fewer channels than are rotated.
    """
    if tables is None:
        tables = (stated_table(spec_from), stated_table(spec_to))
    rotation = _rotation(
        (spec_from, spec_to), tables, first=(old_first, new_first), count=keys.shape[1]
    )
    return keys if rotation is None else rotation.of(keys)


def stated_table(
    spec: RopeSpec, *, length: int | None = None, original: int | None = None
) -> torch.Tensor:
    """Inverse frequencies of a spec whose table is the one that its parameters give.

    Raises
    ------
    UnsupportedLayout
        The model's table is another one, which only the model has.
    """
    if not rope.is_stated(spec):
        raise UnsupportedLayout(
            "the model's table of frequencies is not the one that its configuration gives",
            at="$.ropes.table",
            hint="pass the tables of the model",
        )
    return rope.inverse_frequencies(spec, length=length, original=original)


def _rotation(
    specs: tuple[RopeSpec, RopeSpec],
    tables: tuple[torch.Tensor, torch.Tensor],
    *,
    first: tuple[int, int],
    count: int,
) -> rope.Rotation | None:
    """The rotation from the old angles to the new ones; None where they are the same."""
    if min(first) < 0:
        raise InputError(f"there is no position {min(first)}")
    same = ("pairing", "rotary_dim")
    differing = [name for name in same if getattr(specs[0], name) != getattr(specs[1], name)]
    if differing:
        raise UnsupportedLayout(
            f"keys cannot be moved between models that differ in {' and '.join(differing)}",
            at=f"$.ropes.{differing[0]}",
        )
    factor = specs[1].attention_factor / specs[0].attention_factor
    if first[0] == first[1] and factor == 1 and torch.equal(*tables):
        return None
    old, new = (
        rope.angles(table, torch.arange(start, start + count))
        for table, start in zip(tables, first, strict=True)
    )
    turns = rope.turned(old, new)
    return rope.Rotation.by(turns, pairing=specs[0].pairing, factor=factor)


class Shifter:
    """Moves the keys of one take; rotations are computed once and used for every layer.

    Parameters
    ----------
    layout_from, layout_to
        Of the sender's cache and of the receiver's, which may be the same object.
    tables_from, tables_to
        Inverse frequencies by index of the RoPE, as the models have them; by default those that
        the specs state.
    device
        Where the keys are.

    Raises
    ------
    UnsupportedLayout
        A spec does not state its table and no tables are given.
    """

    def __init__(
        self,
        layout_from: KVLayout,
        layout_to: KVLayout,
        *,
        tables_from: Sequence[torch.Tensor] | None = None,
        tables_to: Sequence[torch.Tensor] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self._from, self._to, self._device = layout_from, layout_to, device
        self._tables = _tables(layout_from, tables_from), _tables(layout_to, tables_to)
        self._known: dict[tuple[int, int, int, int, int], rope.Rotation | None] = {}

    def moved(
        self, keys: torch.Tensor, *, layer: int, old_first: int, new_first: int
    ) -> torch.Tensor:
        """Keys ``[kv_heads, n, k_dim]`` of one layer at the receiver's positions.

        The result is the argument itself where nothing has to be turned.

        Raises
        ------
        UnsupportedLayout
            The two models rotate other channels of this layer, or pair them otherwise.
        InputError
            A negative position, or keys of another shape.
        """
        ropes = self._from.layers[layer].rope, self._to.layers[layer].rope
        if -1 in ropes:
            if ropes != (-1, -1):
                raise UnsupportedLayout(
                    f"layer {layer} has rotary positions in one of the two models only",
                    at=f"$.layers[{layer}].rope",
                )
            return keys
        rotation = self._rotation(ropes, (old_first, new_first), keys.shape[1])
        return keys if rotation is None else rotation.of(keys)

    def _rotation(
        self, ropes: tuple[int, int], first: tuple[int, int], count: int
    ) -> rope.Rotation | None:
        key = (*ropes, *first, count)
        if key not in self._known:
            specs = self._from.ropes[ropes[0]], self._to.ropes[ropes[1]]
            tables = self._tables[0][ropes[0]], self._tables[1][ropes[1]]
            found = _rotation(specs, tables, first=first, count=count)
            self._known[key] = None if found is None else found.to(self._device)
        return self._known[key]


def _tables(layout: KVLayout, given: Sequence[torch.Tensor] | None) -> tuple[torch.Tensor, ...]:
    if given is not None:
        return tuple(table.to("cpu", torch.float32) for table in given)
    return tuple(stated_table(spec) for spec in layout.ropes)
