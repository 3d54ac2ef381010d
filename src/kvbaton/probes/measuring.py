"""Measuring where honest first tokens lie: on real text, by the exact route, as text.

The limit is set without assuming a distribution: among ``n`` honest runs and one more, each is
equally likely to be the oddest, so the ``k``-th smallest of ``n`` scores is exceeded by the next
honest run with probability ``1 - k / (n + 1)`` (split conformal prediction: Vovk, Gammerman and
Shafer, "Algorithmic Learning in a Random World", 2005).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from kvbaton.errors import InputError
from kvbaton.probes.activations import LaterActivations, later_layers
from kvbaton.probes.first_tokens import AlarmCount, WatchRange, sureness
from kvbaton.probes.spread import spread_of
from kvbaton.types import AlignedLayer, SegmentKind, SegmentSpan

if TYPE_CHECKING:
    from kvbaton.engines.transformers.engine import TransformersEngine

TOKENS = 8
ALARM_RATE = 0.005
WARM_TEMPERATURE = 0.8
INSTRUCTIONS = (
    "Summarise this in one sentence.",
    "What is the most important word?",
    "Write a short poem about it.",
    "List three facts from it.",
    "Continue the text.",
    "Translate the first sentence into French.",
    "Write Python code that prints the first word.",
    "Who should read this, and why?",
    "Is this true? Answer yes or no.",
    "Name one thing that is missing.",
    "Explain it to a child.",
    "Review it critically.",
    "Give it a title.",
    "What happens next?",
    "Count the sentences.",
    "Write a JSON object with the key 'topic'.",
)
"""What receivers say behind the texts: answers of many kinds."""
_CHARACTERS_PER_TOKEN = 16
_REPLIES = ("I have read it.", "Understood. What shall I do with it?", "Thank you. This is clear.")

Caches = Mapping[str, Callable[[Any, Sequence[int]], Any]]
"""By name: from an honest cache and its ids to the cache that a receiver would have."""
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Effort:
    """How many runs, and of how many tokens.

    Parameters
    ----------
    spread_runs, limit_runs, check_runs
        Runs that give the spread, that set the limit, and that count false alarms.
    shortest, longest
        Tokens of text in the context.
    """

    spread_runs: int = 80
    limit_runs: int = 200
    check_runs: int = 100
    shortest: int = 48
    longest: int = 512


def measure_range(
    engine: TransformersEngine,
    texts: Sequence[str],
    *,
    tokens: int = TOKENS,
    alarm_rate: float = ALARM_RATE,
    effort: Effort | None = None,
    caches: Caches | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> WatchRange:
    """Measure the range of first tokens of a model.

    Every other run draws its tokens at temperature 0.8, the rest are greedy.

    Parameters
    ----------
    engine
        A transformers engine.
    texts
        Real texts; contexts are cut from them at random places.
    tokens
        Tokens to watch.
    alarm_rate
        False alarms that are accepted, as a share of honest runs.
    effort
        How many runs.
    caches
        Makes the caches of a codec or of a hand-off; false alarms are counted for each of them
        and, as ``text``, for none.
    seed
        Of places, instructions and draws.
    progress
        Is told how many runs are done.

    Raises
    ------
    InputError
        There are no texts or they are too short, or too few runs for the rate.
    """
    how = effort or Effort()
    rank = math.ceil((1 - alarm_rate) * (how.limit_runs + 1))
    if not 0 < alarm_rate < 1 or rank > how.limit_runs:
        raise InputError(
            f"{how.limit_runs} runs cannot set a limit for {alarm_rate:.2%} of false alarms",
            hint=f"at least {math.ceil(1 / alarm_rate) - 1 if alarm_rate > 0 else 'more'} are",
        )
    runs = _Runs(engine, texts, tokens, how, seed)
    spread = [runs.measured(next(runs)) for _ in _told(how.spread_runs, "spread", progress)]
    found = WatchRange(
        tokens=tokens,
        layers=runs.layers,
        activations=spread_of([one.activation for one in spread]),
        choices=spread_of([one.choices for one in spread if one.choices is not None]),
        limit=math.inf,
        alarm_rate=alarm_rate,
        runs=how.limit_runs,
    )
    scores = [
        runs.score(found, runs.measured(next(runs)))
        for _ in _told(how.limit_runs, "limit", progress)
    ]
    found = replace(found, limit=sorted(scores)[rank - 1])
    return replace(found, false_alarms=runs.alarms(found, how.check_runs, caches or {}, progress))


def _told(count: int, what: str, progress: Progress | None) -> Iterator[int]:
    for number in range(count):
        if progress is not None:
            progress(f"first tokens, {what}: {number + 1} of {count} runs")
        yield number


@dataclass(frozen=True, slots=True)
class Prompt:
    """Ids of a context and of what a receiver says behind it; how its tokens are chosen."""

    context: tuple[int, ...]
    feed: tuple[int, ...]
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Sizes of activations, and mean entropy and log probability where no token lacks."""

    activation: tuple[float, ...]
    choices: tuple[float, float] | None


class _Runs:
    """Prompts made of texts, and what a model does with them."""

    def __init__(
        self, engine: Any, texts: Sequence[str], tokens: int, how: Effort, seed: int
    ) -> None:
        self._engine, self._tokens, self._how = engine, tokens, how
        self._random = random.Random(seed)
        self.layers = later_layers(len(engine.layout.layers))
        self._activations = LaterActivations(engine.model, self.layers)
        self._texts = [text for text in texts if self._ids(text, how.shortest)]
        if not self._texts:
            raise InputError(f"no text is as long as {how.shortest} tokens")
        self._made = 0

    def _ids(self, text: str, count: int) -> tuple[int, ...]:
        """The first ``count`` ids of a text; empty where it is shorter."""
        encode = self._engine.tokenizer.encode
        ids = encode(text[: _CHARACTERS_PER_TOKEN * count], add_special_tokens=False)[:count]
        return tuple(ids) if len(ids) == count else ()

    def _excerpt(self) -> tuple[int, ...]:
        """Ids from a random place of a random text; shorter ones near its end."""
        chosen, how = self._random, self._how
        text = chosen.choice(self._texts)
        place = text[chosen.randrange(len(text)) :]
        longest = max(how.shortest, min(how.longest, self._engine.max_tokens // 2))
        count = chosen.randint(how.shortest, longest)
        return self._ids(place, count) or self._ids(text, how.shortest)

    def __next__(self) -> Prompt:
        chosen, chat = self._random, self._engine.chat
        said = [
            {"role": "user", "content": chat.text_of(self._excerpt())},
            {"role": "assistant", "content": chosen.choice(_REPLIES)},
        ]
        context = chat.render(said, add_generation_prompt=False).ids
        asked = [{"role": "user", "content": chosen.choice(INSTRUCTIONS)}]
        self._made += 1
        warm = WARM_TEMPERATURE if self._made % 2 else 0.0
        return Prompt(tuple(context), tuple(chat.suffix(context, asked).ids), warm, self._made)

    def measured(self, prompt: Prompt, cache: Any = None) -> Measured:
        """Run a prompt behind a cache of its context, or as text."""
        feed = prompt.feed
        if cache is None:
            feed = prompt.context + feed
            cache = self._engine.new_cache(len(feed) + self._tokens)
        seen: list[tuple[float, float]] = []
        with self._activations.attached():
            logits = self._engine.forward(cache, feed)
            activation = self._activations.values()
        generator = torch.Generator().manual_seed(prompt.seed)
        while True:
            seen.append(sureness(logits))
            token = _chosen(logits, prompt.temperature, generator)
            if len(seen) == self._tokens or token in self._engine.chat.stop_ids:
                break
            logits = self._engine.forward(cache, [token])
        whole = len(seen) == self._tokens
        entropy, top = (sum(column) / len(seen) for column in zip(*seen, strict=True))
        return Measured(activation, (entropy, top) if whole else None)

    def score(self, limits: WatchRange, one: Measured) -> float:
        """The larger of both distances."""
        score = limits.activations.distance(one.activation)
        return score if one.choices is None else max(score, limits.choices.distance(one.choices))

    def alarms(
        self, limits: WatchRange, count: int, caches: Caches, progress: Progress | None
    ) -> tuple[AlarmCount, ...]:
        """False alarms of further runs, as text and by each kind of cache."""
        alarms = dict.fromkeys(("text", *caches), 0)
        for _ in _told(count, "check", progress):
            prompt = next(self)
            alarms["text"] += self.score(limits, self.measured(prompt)) > limits.limit
            for name, make in caches.items():
                honest = self._engine.new_cache(len(prompt.context))
                self._engine.forward(honest, prompt.context)
                one = self.measured(prompt, make(honest, prompt.context))
                alarms[name] += self.score(limits, one) > limits.limit
        return tuple(AlarmCount(name, number, count) for name, number in alarms.items())


def _chosen(logits: torch.Tensor, temperature: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits.argmax())
    chances = (logits.float().cpu() / temperature).softmax(-1)
    return int(torch.multinomial(chances, 1, generator=generator))


def handed_over(engine: TransformersEngine) -> Callable[[Any, Sequence[int]], Any]:
    """Makes the cache that an exact hand-off gives: exported and attached."""

    def make(cache: Any, ids: Sequence[int]) -> Any:
        kinds = (SegmentKind.RUN, SegmentKind.WINDOW)
        slot = engine.slot(len(ids), room=engine.default_room)
        for part in engine.export(cache, [SegmentSpan(0, len(ids), kind) for kind in kinds]):
            slot.write(AlignedLayer(part.span, part.layer, part.run, part.keys, part.values))
        return slot.finish()

    return make
