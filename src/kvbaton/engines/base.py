"""The engine interface: what the relay needs of whatever runs the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from kvbaton.types import AlignedLayer, ExportedLayer, FunctionId, KVLayout, SegmentSpan

if TYPE_CHECKING:
    import torch

    from kvbaton.engines.transformers.chat import ChatFormat


class Cache(Protocol):
    """The KV cache of one sequence.  ``length`` counts the positions that have KV."""

    @property
    def length(self) -> int:
        """Positions that have KV."""
        ...


class Slot(ABC):
    """A cache being filled by one take.  Nothing sees it before ``finish``."""

    @abstractmethod
    def write(self, part: AlignedLayer) -> None:
        """Copy K ``[kv_heads, n, k_dim]`` and V of one layer to their positions.

        Raises
        ------
        FormatError
            Wrong shape or dtype, or positions that are outside or already written.
        """

    @abstractmethod
    def finish(self) -> Any:
        """Return the filled cache.

        Raises
        ------
        FormatError
            A layer is incomplete.
        """


class Overtaken(Exception):
    """A pass was given up between two layers: what it was for has come from elsewhere.

    The cache is as it was before; raised only where a cache's ``overtaken`` asks for it.
    """


class Engine(ABC):
    """A model that can hand its cache over.

    ``max_tokens`` is the longest sequence the model can attend to; ``vocabulary`` is the number of
    ids that it has embeddings for; ``producer`` is recorded in every segment, shown, and never
    compared.
    """

    name: str
    device: Any
    tokenizer: Any
    layout: KVLayout
    function: FunctionId
    producer: tuple[tuple[str, str], ...]
    max_tokens: int
    vocabulary: int
    chat: ChatFormat
    prefill_tokens_per_s: float
    default_room: int

    @abstractmethod
    def new_cache(self, capacity: int) -> Any:
        """An empty cache with room for ``capacity`` positions; it grows when they are used up."""

    @abstractmethod
    def forward(self, cache: Any, ids: Sequence[int]) -> torch.Tensor:
        """Feed ``ids`` behind the cache and return the logits ``[vocab]`` of the last position,
        float32.

        Raises
        ------
        EmptyInput
            ``ids`` is empty.
        WindowExceeded
            The sequence would be longer than ``max_tokens``.
        """

    @abstractmethod
    def export(self, cache: Any, spans: Sequence[SegmentSpan]) -> Iterator[ExportedLayer]:
        """Copies of the spans' K and V on the host, by span and then by layer.

        Raises
        ------
        StaleTurn
            The positions are no longer in the cache.
        """

    @abstractmethod
    def slot(self, tokens: int, *, room: int) -> Slot:
        """A slot for ``tokens`` positions with room for ``room`` more.

        Raises
        ------
        OutOfMemory
            The memory for it cannot be had.
        """

    @abstractmethod
    def append(self, cache: Any, part: Any) -> None:
        """Copy all positions of another cache behind those of ``cache``; full layers only.

        Raises
        ------
        InputError
            A layer of it has a window.
        """

    @abstractmethod
    def append_blank(self, cache: Any, tokens: int) -> None:
        """Make positions behind those of ``cache`` that have no KV yet, for ``recompute`` to fill.

        Raises
        ------
        InputError
            A layer of it has a window.
        """

    @property
    @abstractmethod
    def frequencies(self) -> tuple[torch.Tensor, ...]:
        """Inverse frequencies ``[rotary_dim / 2]`` float32 by index of the RoPE, as in memory.

        Those of sequences up to the original length, where the RoPE depends on it.
        """

    @abstractmethod
    def recompute(
        self, cache: Any, ids: Sequence[int], rows: Sequence[int], *, layers: int | None = None
    ) -> int:
        """Compute K and V of chosen positions anew, in place, against all that is before them.

        Parameters
        ----------
        ids
            Ids of all positions of the cache.
        rows
            Positions, ascending.
        layers
            Only the first so many layers; by default all.

        Returns
        -------
        int
            Rows times layers.  After a failure the cache is as it was.

        Raises
        ------
        EmptyInput
            There are no rows.
        InputError
            Rows, ids or layers do not fit the cache.
        UnsupportedLayout
            The model has window layers, its attention takes no mask, or its RoPE has changed
            with the length.
        """

    @abstractmethod
    def deviation(
        self, cache: Any, ids: Sequence[int], first: int, stop: int, *, check_layer: int
    ) -> torch.Tensor:
        """Squared distances ``[2, n]`` that K and V of positions move at a layer when computed
        anew.

        The layers up to ``check_layer`` stay computed anew.  Raises as ``recompute`` does.
        """

    @abstractmethod
    def attention_importance(
        self, cache: Any, ids: Sequence[int], *, queries: int = 32
    ) -> torch.Tensor:
        """Share ``[layers, n]`` of the last ``queries`` tokens' attention, which adds up to 1.

        The cache is only read.  Raises as ``recompute`` does.
        """

    @abstractmethod
    def first_values(self, ids: Sequence[int]) -> torch.Tensor:
        """V ``[kv_heads, n, v_dim]`` of layer 0 for each of ``ids``, on the host.

        It depends on the id alone.  The other layers are not run, and ``computed_tokens`` does
        not count it.

        Raises
        ------
        InputError
            The model has no such id.
        """

    @abstractmethod
    def window_differences(
        self, cache: Any, ids: Sequence[int], rows: Sequence[int]
    ) -> torch.Tensor:
        """How far K and V of chosen positions lie from those computed anew on top of the cache.

        The cache is bit for bit the same afterwards, and ``computed_tokens`` does not count it.
        Raises as ``recompute`` does.

        Returns
        -------
        torch.Tensor
            Relative differences of K and of V ``[2, layers, n]``, float32, on the host.
        """

    @abstractmethod
    def free_memory_bytes(self) -> int:
        """Memory in which a cache could be placed now."""

    @abstractmethod
    def computed_tokens(self) -> int:
        """Positions that this thread has run through the model so far, counted at the model."""
