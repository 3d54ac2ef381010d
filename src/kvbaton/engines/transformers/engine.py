"""The engine for decoder-only models of Hugging Face transformers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import psutil
import torch

from kvbaton.engines.base import Engine
from kvbaton.engines.transformers import (
    compat,
    first_layer,
    identity,
    importance,
    layout,
    recompute,
)
from kvbaton.engines.transformers.cache import KVCache
from kvbaton.engines.transformers.chat import ChatFormat
from kvbaton.engines.transformers.slot import CacheSlot, integer_view
from kvbaton.engines.transformers.weights import WeightWatch
from kvbaton.errors import EmptyInput, InputError, OutOfMemory, WindowExceeded
from kvbaton.types import (
    ExportedLayer,
    FunctionId,
    LayerKind,
    SegmentKind,
    SegmentSpan,
    TokenRun,
)

CHUNK_TOKENS = 256
"""Prefill chunk of deterministic engines, at absolute multiples of itself."""
FIRST_LAYER_TOKENS = 1024
"""Tokens whose layer 0 is computed at once: to begin costs as much as some 200 of them."""

_THREADS_LOCK = threading.RLock()
"""The number of threads is one for the whole process."""


class TransformersEngine(Engine):
    """A loaded model with its tokenizer.

    Parameters
    ----------
    model, tokenizer
        A decoder-only model of transformers in evaluation mode, and its tokenizer.
    name
        How receipts call the model.
    weights
        Digest of the weights; computed from the tensors when it is not given.
    deterministic
        Fix chunks and threads, so that two processes export identical bytes for the same ids.
    threads
        Threads of a deterministic engine.

    ``cache_argument`` is the name under which the model and its ``generate`` take a cache:
    ``cache`` in the newest versions of transformers, ``past_key_values`` before.

    Raises
    ------
    UnsupportedLayout, UnsupportedModel
        The cache of this model cannot be handed over faithfully; the sentence says why.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str,
        weights: str | None = None,
        deterministic: bool = False,
        threads: int = 1,
    ) -> None:
        compat.require_supported_version()
        identity.require_plain(model)
        self.model, self.tokenizer, self.name = model.eval(), tokenizer, name
        self.dtype, self.device = model.dtype, model.device
        self.layout = layout.build_layout(model, self.dtype)
        self.chat = ChatFormat(tokenizer, generation_config=model.generation_config)
        self.max_tokens = int(model.config.max_position_embeddings)
        self.vocabulary = int(model.get_input_embeddings().num_embeddings)
        self.default_room = 512
        self.prefill_tokens_per_s = 0.0
        self.deterministic, self._threads = deterministic, threads
        self.chunk = CHUNK_TOKENS if deterministic else None
        self.producer = identity.producer_record(
            model, chunk=self.chunk, threads=threads if deterministic else None
        )
        self._weights = weights
        self._function: FunctionId | None = None
        self._identifying = threading.Lock()
        self._watch = WeightWatch(model)
        self._words = self._tokenizer_state()
        self.cache_argument = compat.cache_argument(model)
        self._counter = threading.local()
        self._hook = model.get_input_embeddings().register_forward_hook(self._count)
        stateful = any(rope.kind in identity.STATEFUL_ROPE for rope in self.layout.ropes)
        self._rope_lock: Any = threading.Lock() if stateful else nullcontext()

    def close(self) -> None:
        """Take the counting hook off the model."""
        self._hook.remove()

    # -- identity -------------------------------------------------------------------------------

    def _tokenizer_state(self) -> tuple[Any, ...]:
        """Changes when tokens are added or the template is replaced."""
        added = len(self.tokenizer.added_tokens_decoder)
        return self.tokenizer.vocab_size, added, getattr(self.tokenizer, "chat_template", None)

    @property
    def function(self) -> FunctionId:
        """Identity of the function: computed once, and again after something changed in memory.

        What counts as a change of the weights is what ``WeightWatch`` notices.
        """
        with self._identifying:
            if self._watch.changed():
                self._weights = self._function = None
            words = self._tokenizer_state()
            if words != self._words:
                self._words, self._function = words, None
            if self._function is None:
                self._function = self._identify()
            return self._function

    @function.setter
    def function(self, value: FunctionId) -> None:
        self._function = value

    def _identify(self) -> FunctionId:
        if self._weights is None:
            named = [*self.model.named_parameters(), *self._persistent_buffers()]
            self._weights = identity.weights_digest(named)
        parts = identity.model_parts(self.model, self.tokenizer, self.layout, self._weights)
        return identity.function_id(parts)

    @property
    def weights(self) -> str:
        """Digest of the weights as loaded."""
        return dict(self.function.parts)["weights"]

    def _persistent_buffers(self) -> list[tuple[str, torch.Tensor]]:
        kept = self.model.state_dict().keys()
        return [(n, b) for n, b in self.model.named_buffers() if n in kept]

    @property
    def frequencies(self) -> tuple[torch.Tensor, ...]:
        """Inverse frequencies ``[rotary_dim / 2]`` float32 by index of the RoPE.

        Those that the model has in memory, at lengths up to the original one.
        """
        return tuple(t.inv_freq for t in compat.rope_tables(self.model, self.model.config))

    # -- computing ------------------------------------------------------------------------------

    def _count(self, module: Any, arguments: tuple[Any, ...], output: torch.Tensor) -> None:
        counted = output.shape[0] * output.shape[1]
        self._counter.total = getattr(self._counter, "total", 0) + counted

    def computed_tokens(self) -> int:
        """Positions that this thread has run through the embedding so far."""
        return int(getattr(self._counter, "total", 0))

    def new_cache(self, capacity: int) -> KVCache:
        """An empty cache with room for ``capacity`` positions."""
        return KVCache(self.layout, capacity, self.dtype, self.device)

    def forward(self, cache: KVCache, ids: Sequence[int]) -> torch.Tensor:
        """Feed ``ids`` behind the cache; float32 logits ``[vocab]`` of the last position.

        If the model fails, or is interrupted, the cache is as it was before that chunk.
        """
        if not ids:
            raise EmptyInput("there is nothing to feed to the model")
        self.require_known(ids)
        if cache.length + len(ids) > self.max_tokens:
            raise WindowExceeded(
                f"{cache.length + len(ids)} tokens do not fit the model's window of "
                f"{self.max_tokens}",
                hint="shorten the context, or use a model with a longer window",
            )
        started, logits = time.perf_counter(), None
        with self._fixed_threads(), self._rope_lock:
            for chunk in self._chunks(cache.length, ids):
                logits = self._step(cache, chunk)
        if len(ids) >= CHUNK_TOKENS:
            self.wait_for_device()
            self.prefill_tokens_per_s = len(ids) / (time.perf_counter() - started)
        if logits is None:
            raise EmptyInput("there is nothing to feed to the model")
        return logits

    def require_known(self, ids: Sequence[int]) -> None:
        """Raise ``InputError`` for an id that the model has no embedding for."""
        if min(ids) < 0 or max(ids) >= self.vocabulary:
            strange = next(i for i in ids if not 0 <= i < self.vocabulary)
            raise InputError(f"id {strange} is none of the model's {self.vocabulary}")

    def _chunks(self, start: int, ids: Sequence[int]) -> Iterator[Sequence[int]]:
        """All ids at once, or cut at absolute multiples of the chunk."""
        if self.chunk is None:
            yield ids
            return
        done = 0
        while done < len(ids):
            size = self.chunk - (start + done) % self.chunk
            yield ids[done : done + size]
            done += size

    @contextmanager
    def _fixed_threads(self) -> Iterator[None]:
        if not self.deterministic:
            yield
            return
        with _THREADS_LOCK:
            before = torch.get_num_threads()
            torch.set_num_threads(self._threads)
            try:
                yield
            finally:
                torch.set_num_threads(before)

    @torch.inference_mode()
    def _step(self, cache: KVCache, ids: Sequence[int]) -> torch.Tensor:
        position = cache.length
        tokens = torch.tensor([list(ids)], dtype=torch.long, device=self.device)
        positions = torch.arange(position, position + len(ids), device=self.device).unsqueeze(0)
        try:
            output = self.model(
                input_ids=tokens,
                position_ids=positions,
                use_cache=True,
                logits_to_keep=1,
                **{self.cache_argument: cache},
            )
        except BaseException:
            cache.take_back(position)
            raise
        logits: torch.Tensor = output.logits[0, -1].float()
        return logits

    def first_layer(self, ids: Sequence[int], first: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V ``[kv_heads, n, head_dim]`` of layer 0 for ``ids`` at positions ``first`` on.

        The other layers are not run.
        """
        tokens = torch.tensor([list(ids)], dtype=torch.long, device=self.device)
        positions = torch.arange(first, first + len(ids), device=self.device).unsqueeze(0)
        split = (x.split(FIRST_LAYER_TOKENS, dim=1) for x in (tokens, positions))
        pieces = zip(*split, strict=True)
        with self._fixed_threads(), self._rope_lock:
            parts = [first_layer.compute(self.model, self.cache_argument, *p) for p in pieces]
        keys, values = zip(*parts, strict=True)
        return torch.cat(keys, dim=1), torch.cat(values, dim=1)

    def first_values(self, ids: Sequence[int]) -> torch.Tensor:
        """V ``[kv_heads, n, v_dim]`` of layer 0 for each of ``ids``, on the host."""
        if not ids:
            raise EmptyInput("there are no ids to compute values of")
        self.require_known(ids)
        with self._uncounted():
            size = min(FIRST_LAYER_TOKENS, self.max_tokens)
            parts = [
                self.first_layer(ids[start : start + size], 0)[1]
                for start in range(0, len(ids), size)
            ]
            return torch.cat(parts, dim=1).cpu()

    def window_differences(
        self, cache: KVCache, ids: Sequence[int], rows: Sequence[int]
    ) -> torch.Tensor:
        """Relative differences ``[2, layers, n]`` of rows to those computed anew; see the base."""
        layers = self._require_recomputable(cache, ids, rows, None)
        with self._uncounted(), self._fixed_threads(), self._rope_lock:
            return recompute.differences(
                self.model, self.cache_argument, cache, ids, rows, layers=layers
            )

    @contextmanager
    def _uncounted(self) -> Iterator[None]:
        """Leave what is computed here out of this thread's count."""
        before = self.computed_tokens()
        try:
            yield
        finally:
            self._counter.total = before

    def recompute(
        self,
        cache: KVCache,
        ids: Sequence[int],
        rows: Sequence[int],
        *,
        layers: int | None = None,
    ) -> int:
        """Compute K and V of chosen positions anew, in place, against all that is before them."""
        layers = self._require_recomputable(cache, ids, rows, layers)
        with self._fixed_threads(), self._rope_lock:
            return recompute.recompute(
                self.model, self.cache_argument, cache, ids, rows, layers=layers
            )

    def deviation(
        self, cache: KVCache, ids: Sequence[int], first: int, stop: int, *, check_layer: int
    ) -> torch.Tensor:
        """How far K and V of positions move at ``check_layer`` when they are computed anew."""
        rows = range(first, stop)
        layers = self._require_recomputable(cache, ids, rows, check_layer + 1)
        deviation = recompute.Deviation(check_layer)
        with self._fixed_threads(), self._rope_lock:
            recompute.recompute(
                self.model, self.cache_argument, cache, ids, rows, layers=layers, told=deviation
            )
        return deviation.squared

    def attention_importance(
        self, cache: KVCache, ids: Sequence[int], *, queries: int = 32
    ) -> torch.Tensor:
        """Share of the last tokens' attention that each layer pays to each position."""
        self._require_recomputable(cache, ids, range(1), None)
        with self._fixed_threads(), self._rope_lock:
            return importance.attention_importance(
                self.model, self.cache_argument, cache, ids, queries=queries
            )

    def _require_recomputable(
        self, cache: KVCache, ids: Sequence[int], rows: Sequence[int], layers: int | None
    ) -> int:
        layers = len(self.layout.layers) if layers is None else layers
        if not 1 <= layers <= len(self.layout.layers):
            raise InputError(f"a model of {len(self.layout.layers)} layers has no first {layers}")
        if not rows:
            raise EmptyInput("there are no positions to compute again")
        if len(ids) != cache.length:
            raise InputError(f"{len(ids)} ids for a cache of {cache.length} positions")
        self.require_known(ids)
        recompute.require_rows(rows, cache.length)
        recompute.require_recomputable(
            self.layout,
            str(self.model.config._attn_implementation),
            tokens=cache.length,
            max_tokens=self.max_tokens,
        )
        return layers

    # -- handing over ---------------------------------------------------------------------------

    def export(self, cache: KVCache, spans: Sequence[SegmentSpan]) -> Iterator[ExportedLayer]:
        """Copies of the spans' K and V on the host, by span and then by layer."""
        for span in spans:
            wanted = LayerKind.FULL if span.kind is SegmentKind.RUN else LayerKind.WINDOW
            for index, spec in enumerate(self.layout.layers):
                if spec.kind is not wanted:
                    continue
                run = TokenRun(span.first, span.count)
                if wanted is LayerKind.WINDOW:
                    held = min(span.stop, spec.window - 1)
                    run = TokenRun(span.stop - held, held)
                keys, values = cache.layer_view(index, run.first, run.count)
                yield ExportedLayer(span, index, run, _host_copy(keys), _host_copy(values))

    def slot(self, tokens: int, *, room: int) -> CacheSlot:
        """A slot for ``tokens`` positions with room for ``room`` more."""
        try:
            cache = self.new_cache(tokens + room)
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "memory" not in str(error).lower():
                raise
            raise OutOfMemory(f"no memory for a cache of {tokens + room} tokens") from error
        return CacheSlot(cache, tokens, self.layout)

    def append(self, cache: KVCache, part: KVCache) -> None:
        """Copy all positions of another cache behind those of ``cache``; full layers only."""
        self._require_full_layers()
        with torch.inference_mode():
            for state, new in zip(cache.layers, part.layers, strict=True):
                state.update(new.keys, new.values)

    def append_blank(self, cache: KVCache, tokens: int) -> None:
        """Make positions behind those of ``cache`` that have no KV yet."""
        self._require_full_layers()
        with torch.inference_mode():
            for state in cache.layers:
                spec = state.spec
                shape = (1, spec.kv_heads, tokens)
                keys, values = (
                    torch.zeros((*shape, dim), dtype=self.dtype, device=self.device)
                    for dim in (spec.k_dim, spec.v_dim)
                )
                state.update(keys, values)

    def _require_full_layers(self) -> None:
        if self.layout.window_layers:
            raise InputError("a cache with window layers cannot be put together from parts")

    def wait_for_device(self) -> None:
        """Let what was asked of a GPU be done before the clock is read."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def free_memory_bytes(self) -> int:
        """Memory in which a cache could be placed now."""
        if self.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self.device)
            kept = torch.cuda.memory_reserved(self.device)
            return int(free + kept - torch.cuda.memory_allocated(self.device))
        return int(psutil.virtual_memory().available)


def _host_copy(view: torch.Tensor) -> torch.Tensor:
    """A contiguous copy on the host; on the CPU by numpy, on one thread."""
    if view.device.type != "cpu":
        return view.to("cpu", copy=True).contiguous()
    copy = torch.empty(view.shape, dtype=view.dtype)
    integer_view(copy)[...] = integer_view(view)
    return copy
