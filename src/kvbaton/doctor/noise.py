"""The noise floor of a model: how far its own answers lie apart when nothing is wrong.

The same prompt prefilled in chunks and in one go does not give the same numbers, because kernels
add up in another order.  A baton differs from text in the same way (its tokens were computed in
other batches), so every loss is stated as a multiple of this floor.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from kvbaton.bench.texts import Text, real_texts
from kvbaton.errors import Fault, FormatError, InputError, WindowExceeded
from kvbaton.records import keep, kept
from kvbaton.types import JSON

if TYPE_CHECKING:
    import torch

FORMAT = "kvbaton noise floor 1"
TOKENS, CHUNK, POSITIONS, TEXTS = 1024, 256, 256, 3
_AT_ONCE = 32
"""Positions whose distributions are in memory at once."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TextNoise:
    """One text: KL(one shot || chunked) per position in nats, and the share of other argmaxes."""

    text: str
    kl_mean: float
    kl_median: float
    kl_max: float
    flips: float


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """A measured noise floor.

    ``kl`` is the median over the texts of the mean KL divergence, in nats; ``flips`` is the mean
    share of positions at which another token is the most likely one.  It holds for one function
    (``function`` is the digest of the function id) and is recorded with who measured it.
    """

    function: str
    model: str
    dtype: str
    kl: float
    flips: float
    tokens: int
    chunk: int
    positions: int
    texts: tuple[TextNoise, ...]
    producer: tuple[tuple[str, str], ...]
    created_s: int

    def to_json(self) -> JSON:
        """As it is stored."""
        plain = asdict(self) | {"producer": dict(self.producer)}
        return {"format": FORMAT, **plain, "texts": [asdict(text) for text in self.texts]}

    @classmethod
    def from_json(cls, value: Any) -> NoiseFloor:
        """Read what ``to_json`` wrote.

        Raises
        ------
        FormatError
            It is something else.
        """
        try:
            if value["format"] != FORMAT:
                raise KeyError(value["format"])
            fields = {name: value[name] for name in cls.__dataclass_fields__}
            fields["texts"] = tuple(TextNoise(**text) for text in fields["texts"])
            fields["producer"] = tuple(sorted(fields["producer"].items()))
            return cls(**fields)
        except (KeyError, TypeError, AttributeError) as error:
            raise FormatError("not a noise floor", fault=Fault.UNKNOWN_FORMAT) from error


def noise_floor(
    engine: Any,
    *,
    texts: Sequence[Text] | None = None,
    tokens: int = TOKENS,
    chunk: int = CHUNK,
    positions: int = POSITIONS,
    progress: Progress | None = None,
) -> NoiseFloor:
    """Measure a model's noise floor on real texts.

    Parameters
    ----------
    engine
        A transformers engine.
    texts
        By default those of the Python installation: a manual, source code, a licence.
    tokens, chunk
        Tokens of each text, prefilled in one go and in chunks of ``chunk``.
    positions
        The last positions of each text that are compared; at most ``chunk``.
    progress
        Is told which text is being measured.

    Raises
    ------
    InputError
        There are no texts, they are too short, or the numbers do not fit each other.
    WindowExceeded
        The model cannot attend to so many tokens.
    """
    if not 1 <= positions <= min(chunk, tokens):
        raise InputError("positions must be at least 1, and at most the chunk and the tokens")
    if tokens > engine.max_tokens:
        raise WindowExceeded(f"{tokens} tokens do not fit the window of {engine.max_tokens}")
    chosen = real_texts() if texts is None else texts
    if not chosen:
        raise InputError("there are no texts to measure with")
    measured = []
    for number, text in enumerate(chosen, 1):
        if progress is not None:
            progress(f"noise floor: {text.name} ({number} of {len(chosen)})")
        measured.append(_of_text(engine, text, tokens, chunk, positions))
    return NoiseFloor(
        function=engine.function.digest,
        model=engine.name,
        dtype=engine.layout.dtype,
        kl=median(one.kl_mean for one in measured),
        flips=fmean(one.flips for one in measured),
        tokens=tokens,
        chunk=chunk,
        positions=positions,
        texts=tuple(measured),
        producer=engine.producer,
        created_s=int(time.time()),
    )


def _of_text(engine: Any, text: Text, tokens: int, chunk: int, positions: int) -> TextNoise:
    ids = engine.tokenizer.encode(text.text[: 16 * tokens], add_special_tokens=True)[:tokens]
    if len(ids) < tokens:
        raise InputError(f"the text {text.name!r} has {len(ids)} tokens, not {tokens}")
    whole = _last_logits(engine, engine.new_cache(tokens), ids, positions)
    cache = engine.new_cache(tokens)
    last = (tokens - 1) // chunk * chunk
    if tokens - last < positions:
        last = tokens - positions
    for start in range(0, last, chunk):
        engine.forward(cache, ids[start : min(start + chunk, last)])
    chunked = _last_logits(engine, cache, ids[last:], positions)
    kl, flips = divergence(whole, chunked)
    return TextNoise(text.name, fmean(kl), median(kl), max(kl), flips)


def _last_logits(engine: Any, cache: Any, ids: Sequence[int], positions: int) -> torch.Tensor:
    """Logits ``[positions, vocab]`` of the last positions of ``ids``, in the model's dtype."""
    import torch

    from kvbaton.engines.transformers import compat

    start = cache.length
    places = torch.arange(start, start + len(ids), device=engine.device).unsqueeze(0)
    with torch.inference_mode():
        output = engine.model(
            input_ids=torch.tensor([list(ids)], device=engine.device),
            position_ids=places,
            use_cache=True,
            logits_to_keep=positions,
            **{compat.cache_argument(engine.model): cache},
        )
    logits: torch.Tensor = output.logits[0]
    return logits


def divergence(reference: torch.Tensor, other: torch.Tensor) -> tuple[list[float], float]:
    """KL(reference || other) in nats per position, and the share of positions whose argmax differs.

    Both are logits ``[positions, vocab]``; sums are made in float64.
    """
    import torch

    kl: list[float] = []
    flips = 0
    for start in range(0, len(reference), _AT_ONCE):
        mine = reference[start : start + _AT_ONCE].double().log_softmax(-1)
        theirs = other[start : start + _AT_ONCE].double().log_softmax(-1)
        kl.extend(torch.sum(mine.exp() * (mine - theirs), -1).clamp(min=0).tolist())
        flips += int((mine.argmax(-1) != theirs.argmax(-1)).sum())
    return kl, flips / len(reference)


# --- where it is kept --------------------------------------------------------------------------


def store_noise_floor(floor: NoiseFloor, data_dir: Path) -> Path:
    """Keep a noise floor for its function; the file is there whole or not at all.

    Raises
    ------
    InputError
        The folder cannot be written.
    """
    target = data_dir / "noise" / f"{floor.function}.json"
    text = json.dumps(floor.to_json(), indent=1, sort_keys=True) + "\n"
    return keep(target, text, what="the noise floor")


def stored_noise_floor(engine: Any, data_dir: Path) -> NoiseFloor | None:
    """The noise floor of an engine's function: measured here before, or shipped with kvbaton.

    Raises
    ------
    FormatError
        There is a file of that name, and it is something else; ``at`` names it.
    """
    found = kept("noise", f"{engine.function.digest}.json", data_dir)
    return None if found is None else _read(*found)


def model_noise_floor(model: str, dtype: str, data_dir: Path) -> NoiseFloor | None:
    """The noise floor of a model by its name in another dtype; the newest that is known.

    Names are no identities: this is for comparing sizes, never for a gate.

    Raises
    ------
    FormatError
        A file in such a folder is something else; ``at`` names it.
    """
    folders = (files("kvbaton").joinpath("data", "noise"), data_dir / "noise")
    places = [p for folder in folders if folder.is_dir() for p in folder.iterdir()]
    found = [
        _read(place.read_text(encoding="utf-8"), str(place))
        for place in places
        if place.name.endswith(".json")
    ]
    fitting = [one for one in found if (one.model, one.dtype) == (model, dtype)]
    return max(fitting, key=lambda one: one.created_s, default=None)


def _read(text: str, at: str) -> NoiseFloor:
    try:
        value: Mapping[str, Any] = json.loads(text)
        return NoiseFloor.from_json(value)
    except (ValueError, FormatError) as error:
        raise FormatError(
            "the file holds no noise floor",
            fault=Fault.UNKNOWN_FORMAT,
            at=at,
            hint="delete it, and measure again",
        ) from error
