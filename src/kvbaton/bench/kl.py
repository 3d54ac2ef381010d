"""How much a changed cache changes what the model says next.

The context of a real text is prefilled once.  Then the positions behind it are fed to the model
on top of that exact cache (teacher forced: the text's own tokens, not the model's) and their
logits are kept.  A candidate is any other cache of the same context; the same positions on top of
it give other logits, and what lies between the two is the candidate's loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from blake3 import blake3

from kvbaton import codecs
from kvbaton.arrows import encode_layers, slice_layers
from kvbaton.bench.texts import Text
from kvbaton.errors import InputError, WindowExceeded
from kvbaton.types import (
    DTYPE_BYTES,
    JSON,
    AlignedLayer,
    EncodedLayer,
    KVLayout,
    SegmentKind,
    SegmentSpan,
)
from kvbaton.wire import segment
from kvbaton.wire.digests import DomainKeys
from kvbaton.wire.structure import layer_places

if TYPE_CHECKING:
    import torch

POSITIONS = 128
SEGMENT_TOKENS = 256
"""Tokens of a segment, as the relay cuts them."""
_AT_ONCE = 16
"""Positions whose distributions are in memory in float64 at once."""
_KEYS = DomainKeys(bytes(32))
_ZEROS = "0" * 64


@dataclass(frozen=True, slots=True)
class Loss:
    """What a changed cache costs on one text.

    ``kl_mean`` and ``kl_max`` are KL(exact || changed) per position in nats, ``flips`` the share
    of positions at which another token is the most likely one, ``ppl_ratio`` the perplexity of
    the text's own tokens divided by that with the exact cache.
    """

    text: str
    kl_mean: float
    kl_max: float
    flips: float
    ppl_ratio: float

    def to_json(self) -> JSON:
        """As reports print it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses on several texts; ``kl`` is the median of their means, ``worst`` the largest."""

    texts: tuple[Loss, ...]

    @property
    def kl(self) -> float:
        """Median over the texts, in nats."""
        return median(loss.kl_mean for loss in self.texts)

    @property
    def worst(self) -> float:
        """The worst text, in nats."""
        return max(loss.kl_mean for loss in self.texts)

    @property
    def flips(self) -> float:
        """Mean share of positions with another most likely token."""
        return fmean(loss.flips for loss in self.texts)

    @property
    def ppl_ratio(self) -> float:
        """Median over the texts."""
        return median(loss.ppl_ratio for loss in self.texts)


class Reference:
    """One text with its exact cache and what the model says behind it.

    Parameters
    ----------
    engine
        A transformers engine.
    name
        The text's name.
    ids
        Token ids of the text: those of the context, then those that are fed behind it.
    tokens
        Tokens of the context.
    cache
        The exact cache of ``ids[:tokens]``; computed where it is not given.

    Raises
    ------
    InputError
        There is nothing behind the context, or no context.
    WindowExceeded
        The model cannot attend to so many tokens.
    """

    def __init__(
        self, engine: Any, name: str, ids: Sequence[int], tokens: int, *, cache: Any = None
    ) -> None:
        if not 0 < tokens < len(ids):
            raise InputError(f"the text {name!r} has {len(ids)} tokens, the context {tokens}")
        if len(ids) > engine.max_tokens:
            raise WindowExceeded(f"{len(ids)} tokens do not fit the window of {engine.max_tokens}")
        self.engine, self.name, self.tokens = engine, name, tokens
        self.ids = tuple(ids)
        if cache is None:
            cache = engine.new_cache(len(ids))
            engine.forward(cache, self.ids[:tokens])
        self.cache = cache
        self.logits = self.logits_behind(cache)

    @property
    def positions(self) -> int:
        """Positions that are fed behind the context."""
        return len(self.ids) - self.tokens

    def logits_behind(self, cache: Any, positions: int | None = None) -> torch.Tensor:
        """Logits ``[positions, vocab]`` in the model's dtype, fed on top of a cache of the context.

        The cache is left as it was.
        """
        import torch

        engine, start = self.engine, self.tokens
        count = self.positions if positions is None else positions
        fed = list(self.ids[start : start + count])
        places = torch.arange(start, start + count, device=engine.device).unsqueeze(0)
        with torch.inference_mode():
            try:
                output = engine.model(
                    input_ids=torch.tensor([fed], device=engine.device),
                    position_ids=places,
                    use_cache=True,
                    logits_to_keep=count,
                    **{engine.cache_argument: cache},
                )
            finally:
                cache.take_back(start)
        logits: torch.Tensor = output.logits[0]
        return logits

    def loss(self, cache: Any, positions: int | None = None) -> Loss:
        """What another cache of the same context costs, over the first ``positions``."""
        return self.loss_of(self.logits_behind(cache, positions))

    def loss_of(self, logits: torch.Tensor) -> Loss:
        """What it costs to say ``logits`` (``[positions, vocab]``) instead of the exact ones."""
        kl: list[float] = []
        flips, worse = 0, 0.0
        following = self.ids[self.tokens + 1 :]
        for start in range(0, len(logits), _AT_ONCE):
            stop = min(start + _AT_ONCE, len(logits))
            mine = self.logits[start:stop].double().log_softmax(-1)
            theirs = logits[start:stop].double().log_softmax(-1)
            kl.extend((mine.exp() * (mine - theirs)).sum(-1).clamp(min=0).tolist())
            flips += int((mine.argmax(-1) != theirs.argmax(-1)).sum())
            worse += _surprise(mine, theirs, following[start:stop])
        predicted = min(len(logits), len(following))
        ratio = _exp(worse / predicted) if predicted else 1.0
        return Loss(self.name, fmean(kl), max(kl), flips / len(logits), ratio)


def _surprise(mine: torch.Tensor, theirs: torch.Tensor, following: Sequence[int]) -> float:
    """Sum over positions of how much less likely the text's own next token has become."""
    import torch

    if not following:
        return 0.0
    rows, columns = torch.arange(len(following)), torch.tensor(following, device="cpu")
    rows, columns = rows.to(mine.device), columns.to(mine.device)
    return float((mine[rows, columns] - theirs[rows, columns]).sum())


def _exp(value: float) -> float:
    from math import exp

    return exp(min(value, 700.0))


def references(
    engine: Any, texts: Iterable[Text], *, tokens: int, positions: int = POSITIONS
) -> Iterator[Reference]:
    """A reference of each text, one at a time: each holds a cache and logits.

    Raises
    ------
    InputError
        A text is too short; use :func:`long_enough` first where that may be.
    """
    for text in texts:
        yield Reference(engine, text.name, text_ids(engine, text, tokens + positions), tokens)


def text_ids(engine: Any, text: Text, wanted: int) -> tuple[int, ...]:
    """The first ``wanted`` token ids of a text.

    Raises
    ------
    InputError
        The text is shorter; names it.
    """
    ids = engine.tokenizer.encode(text.text[: 16 * wanted], add_special_tokens=True)[:wanted]
    if len(ids) < wanted:
        raise InputError(f"the text {text.name!r} has {len(ids)} tokens, not {wanted}")
    return tuple(ids)


def long_enough(engine: Any, texts: Iterable[Text], wanted: int) -> tuple[Text, ...]:
    """The texts that have ``wanted`` tokens or more."""
    kept = []
    for text in texts:
        ids = engine.tokenizer.encode(text.text[: 16 * wanted], add_special_tokens=True)
        if len(ids) >= wanted:
            kept.append(text)
    return tuple(kept)


def corpus_digest(texts: Sequence[Text]) -> str:
    """BLAKE3 (hex) over names and texts, each preceded by its length: the corpus's identity."""
    hasher = blake3()
    for text in texts:
        for part in (text.name.encode(), text.text.encode("utf-8", "surrogatepass")):
            hasher.update(len(part).to_bytes(8, "little") + part)
    return str(hasher.hexdigest())


# --- candidates: the context's cache, through a plan --------------------------------------------


@dataclass(frozen=True)
class Coded:
    """A cache after encoding and decoding, and what it takes to store it.

    ``size_bytes`` are those of the segment files: headers, scales, pads and all.
    """

    cache: Any
    size_bytes: int
    elements: int

    @property
    def bits_per_element(self) -> float:
        """Bits stored per number of the cache, all overhead counted."""
        return 8 * self.size_bytes / self.elements


def coded_cache(
    engine: Any,
    cache: Any,
    plan: codecs.CodecPlan,
    *,
    tokens: int,
    room: int = POSITIONS,
    segment_tokens: int = SEGMENT_TOKENS,
) -> Coded:
    """The first ``tokens`` positions of a cache, encoded segment by segment and decoded again.

    Raises
    ------
    InputError
        The plan does not fit the layout; the place is named.
    """
    slot, size_bytes, elements = engine.slot(tokens, room=room), 0, 0
    for span in segment_spans(engine.layout, tokens, segment_tokens):
        exported = engine.export(cache, [span])
        encoded = list(encode_layers(slice_layers(exported), plan, engine.layout))
        size_bytes += _sealed_bytes(engine, encoded)
        for part in encoded:
            aligned = decoded_layer(plan, engine.layout, part)
            elements += aligned.keys.numel() + aligned.values.numel()
            slot.write(_on(aligned, engine.device))
    return Coded(slot.finish(), size_bytes, elements)


def _on(part: AlignedLayer, device: Any) -> AlignedLayer:
    keys, values = part.keys.to(device), part.values.to(device)
    return AlignedLayer(part.span, part.layer, part.run, keys, values)


def segment_spans(layout: KVLayout, tokens: int, segment_tokens: int) -> list[SegmentSpan]:
    """The segments of a cache as the relay cuts them."""
    spans = []
    if layout.full_layers:
        starts = range(0, tokens, segment_tokens)
        spans = [SegmentSpan(s, min(segment_tokens, tokens - s)) for s in starts]
    if layout.window_layers:
        spans.append(SegmentSpan(0, tokens, SegmentKind.WINDOW))
    return spans


def decoded_layer(plan: codecs.CodecPlan, layout: KVLayout, part: EncodedLayer) -> AlignedLayer:
    """K and V of a layer from its stored tensors, by the plan that made them."""
    spec = layout.layers[part.layer]
    stored: dict[str, dict[str, memoryview]] = {"k": {}, "v": {}}
    for tensor in part.tensors:
        name, _, suffix = tensor.name.partition(".")
        stored[name][suffix] = memoryview(bytearray(tensor.data))
    k_place, v_place = layer_places(layout, part.layer, part.run.first)
    k_chain, v_chain = plan.chains(part.layer)
    k_shape = spec.kv_heads, part.run.count, spec.k_dim
    v_shape = spec.kv_heads, part.run.count, spec.v_dim
    keys = k_chain.decode(stored["k"], layout.dtype, k_shape, k_place)
    values = v_chain.decode(stored["v"], layout.dtype, v_shape, v_place)
    return AlignedLayer(part.span, part.layer, part.run, keys, values)


def _sealed_bytes(engine: Any, encoded: Sequence[EncodedLayer]) -> int:
    """Size of the segment file that these layers become."""
    sealed = segment.seal_segment(
        encoded,
        keys=_KEYS,
        function=_ZEROS,
        layout=engine.layout,
        producer=engine.producer,
        token_digest=_ZEROS,
        prefix_key=_ZEROS,
        storage=codecs.storage,
    )
    return sealed.header.size_bytes


def cache_bits(layout: KVLayout) -> int:
    """Bits of one number of the cache as it is."""
    return 8 * DTYPE_BYTES[layout.dtype]
