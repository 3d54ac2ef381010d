"""Everything that could see an untrusted baton, watched; and batons full of words to be seen.

Each word begins with ``zqx``, which nothing else says; the ids hold it, too, and the tensors hold a
number that nothing else computes.
"""

from __future__ import annotations

import io
import json
import logging
import traceback
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from typing import Any

import torch
from attacks.scene import DOMAIN, Scene, agent_of
from tests.relay.conftest import make_engine

from kvbaton.agent import Agent
from kvbaton.backing import Source
from kvbaton.policy.filters import Passed, Ruling
from kvbaton.types import Baton, Receipt

WORD = "zqx"
NUMBER = 12345.0
SENDER = "zqxsender"
TEXT = "zqxprompt Hello there, you plan and code. " * 3
PROBES = ("tokenizer", "model", "cache", "filters", "logs", "receipt", "events", "errors")


class Witness:
    """What each probe has seen, as text."""

    def __init__(self) -> None:
        self.seen: dict[str, list[str]] = defaultdict(list)

    def note(self, probe: str, *several: Any) -> None:
        """Remember what a probe has seen."""
        self.seen[probe] += [spelled(one) for one in several]

    def tainted(self) -> dict[str, str]:
        """By probe, the first thing that holds something of the baton."""
        found = {}
        for probe, several in self.seen.items():
            bad = next((one for one in several if is_tainted(one)), None)
            if bad is not None:
                at = max(0, bad.lower().find(WORD) - 60)
                found[probe] = bad[at : at + 160]
        return found


def is_tainted(text: str) -> bool:
    """Whether a text holds the word, its ids one behind the other, or the number."""
    return WORD in text.lower() or WORD_IDS in text or "zqxtensor" in text


def spelled(value: Any) -> str:
    """Anything as text: ids as one line of numbers, tensors by whether they hold the number."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            return "zqxtensor" if bool((value == NUMBER).any()) else "tensor"
        value = value.flatten().tolist()
    if isinstance(value, int):
        value = [value]
    if isinstance(value, Sequence) and value and all(isinstance(one, int) for one in value):
        return f" {' '.join(map(str, value))} "
    if isinstance(value, Mapping):
        return " ".join(spelled(one) for pair in value.items() for one in pair)
    if isinstance(value, list | tuple):
        return " ".join(map(spelled, value))
    return repr(value)


# --- the probes ----------------------------------------------------------------------------------

_METHODS = (
    "__call__", "encode", "decode", "batch_decode", "apply_chat_template", "convert_ids_to_tokens",
    "convert_tokens_to_ids", "convert_tokens_to_string", "tokenize",
)  # fmt: skip


def watched_engine(witness: list[Witness]) -> Any:
    """A tiny engine that tells the last witness of the list what reaches tokenizer, model and
    cache."""
    engine = make_engine()
    watch_tokenizer(engine.tokenizer, witness)
    watch_model(engine, witness)
    return engine


def watch_tokenizer(tokenizer: Any, witness: list[Witness]) -> None:
    """Tell what goes in and what comes out of every method that reads text or ids."""
    kind = type(tokenizer)

    def telling(name: str) -> Any:
        method = getattr(kind, name)

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            found = method(self, *args, **kwargs)
            said = found["input_ids"] if hasattr(found, "input_ids") else found
            witness[-1].note("tokenizer", *args, *kwargs.values(), said)
            return found

        return call

    methods = {name: telling(name) for name in _METHODS}
    tokenizer.__class__ = type(kind.__name__, (kind,), methods)


def watch_model(engine: Any, witness: list[Witness]) -> None:
    """Tell what the model is called with, and what is written into a cache for it."""

    def before(module: Any, args: Any, kwargs: Any) -> None:
        witness[-1].note("model", *args, *kwargs.values())

    engine.model.register_forward_pre_hook(before, with_kwargs=True)
    make_slot = engine.slot

    def slot(*args: Any, **kwargs: Any) -> Any:
        made = make_slot(*args, **kwargs)
        write = made.write

        def telling(part: Any) -> None:
            witness[-1].note("cache", part.keys, part.values)
            write(part)

        made.write = telling
        return made

    engine.slot = slot


class _Handler(logging.Handler):
    def __init__(self, witness: Witness) -> None:
        super().__init__(0)
        self.witness = witness

    def emit(self, record: logging.LogRecord) -> None:
        self.witness.note("logs", record.getMessage(), str(record.__dict__))


@contextmanager
def watching(witness: Witness) -> Iterator[None]:
    """Logs of every library, warnings, and both standard streams."""
    handler, out = _Handler(witness), io.StringIO()
    loggers = [logging.getLogger(name) for name in (None, "kvbaton", "transformers", "torch")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings(record=True) as said, redirect_stdout(out), redirect_stderr(out):
        warnings.simplefilter("always")
        for logger in loggers:
            logger.addHandler(handler)
            logger.setLevel(1)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.removeHandler(handler)
                logger.setLevel(level)
            witness.note("logs", out.getvalue(), *(str(one.message) for one in said))


def texts_of(error: BaseException | None) -> Iterator[str]:
    """All that an error says, and each that stands behind it, also where that is not shown."""
    todo, seen = [error], set()
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield from (str(one), repr(one), repr(one.args), repr(vars(one)))
        yield from map(str, getattr(one, "__notes__", ()))
        for frame in traceback.extract_tb(one.__traceback__, limit=-50):
            yield f"{frame.name} {frame.locals}"
        todo += [one.__cause__, one.__context__]


def receiver(scene: Scene, engine: Any, witness: Witness, store: Any = None) -> Agent:
    """An agent that tells the witness everything."""

    def see(text: str) -> Ruling:
        witness.note("filters", text)
        return Passed()

    def log(receipt: Receipt) -> None:
        witness.note("receipt", json.dumps(receipt.to_json()), repr(receipt))

    return agent_of(
        "coder", store or scene.store, scene.domain, engine=engine, filters=[see], log=log,
        observer=lambda event, facts: witness.note("events", event, dict(facts)),
    )  # fmt: skip


# --- the baton -----------------------------------------------------------------------------------


def canary(scene: Scene, **options: Any) -> Baton:
    """A baton that is full of the word, by a sender with a key of its own."""
    from kvbaton.seals import Grant

    if not any(key.speaks_for(SENDER, DOMAIN) for key in tuple(scene.trust.keys())):
        scene.ring.generate([Grant(SENDER, DOMAIN)])
    sender = scene.agent(SENDER, system="zqxsystem", stream=False)
    turn = sender.run(TEXT, max_new_tokens=2)
    poison(turn.conversation.cache, turn.cached)
    terms = {
        "instruction": "zqxinstruction", "summary": "zqxsummary", "goal": "zqxgoal",
        "receiver": "zqxreceiver",
    }  # fmt: skip
    return sender.hand_off(turn, **terms, **options)


def poison(cache: Any, tokens: int) -> None:
    """Put the number into the last layer, where the check of layer 0 does not look."""
    keys, values = cache.layer_view(3, 0, tokens)
    keys[..., 0] = NUMBER
    values[..., 0] = NUMBER


def marked(listing: Any) -> Any:
    """A manifest with the word wherever a manifest has room for one."""
    function = replace(listing.function, parts=(*listing.function.parts, ("zqxpart", "zqxvalue")))
    return replace(
        listing, function=function, ref="zqxref", producer=(("zqxproducer", "zqxvalue"),),
        terms=replace(listing.terms, goal="zqxgoal"),
    )  # fmt: skip


def poisoned_source(scene: Scene, prompt: str) -> Source:
    """A cache of another text than its ids, with the number in its last layer."""
    sender = scene.agent("planner", stream=False)
    ids = sender.writer.fresh(prompt, None).ids
    cache = sender.engine.new_cache(len(ids))
    sender.engine.forward(cache, tuple(reversed(ids[:-1])))
    poison(cache, len(ids) - 1)
    return Source(cache, len(ids) - 1, ids)


WORD_IDS = spelled([int(i) for i in make_engine().tokenizer.encode(WORD)])
