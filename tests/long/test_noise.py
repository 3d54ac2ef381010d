"""What noise on K and V costs and what it hides, on a real model: the guide's claims."""

from __future__ import annotations

from typing import Any

import pytest

from kvbaton.arrows import slice_layers
from kvbaton.bench.fidelity.answers import greedy_answers
from kvbaton.bench.kl import Reference, segment_spans, text_ids
from kvbaton.bench.questions import make_document
from kvbaton.bench.texts import real_texts
from kvbaton.noise import blur_layers, span_seeds
from kvbaton.probes.reconstruction import held_values, read_tokens
from kvbaton.types import AlignedLayer
from kvbaton.wire.digests import DomainKeys

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
TOKENS, POSITIONS, ROOM = 512, 64, 800


def blurred(engine: Any, cache: Any, ids: Any, tokens: int, level: float) -> Any:
    """The first ``tokens`` positions of a cache with noise, as a receiver attaches them."""
    slot = engine.slot(tokens, room=ROOM)
    seeds = span_seeds(DomainKeys(bytes(32)), engine.function.digest, ids)
    spans = segment_spans(engine.layout, tokens, 256)
    for part in blur_layers(slice_layers(engine.export(cache, spans)), level, seeds):
        slot.write(AlignedLayer(part.span, part.layer, part.run, part.keys, part.values))
    return slot.finish()


def share_read(engine: Any, cache: Any, ids: Any) -> float:
    """Share of tokens that the nearest V of layer 0 tells."""
    _, values = held_values(engine, cache)
    read = read_tokens(engine, values)
    return sum(a == b for a, b in zip(read, ids, strict=True)) / len(read)


def test_noise_that_ruins_answers_leaves_the_text_readable(smollm2_f32: Any) -> None:
    """KL grows with the square of the level; at level 1 nothing can be answered from the cache,
    and a plain look-up still reads nearly every token of the prompt."""
    engine = smollm2_f32
    ids = text_ids(engine, real_texts()[0], TOKENS + POSITIONS)
    reference = Reference(engine, "manual", ids, TOKENS)
    kl, read = {}, {}
    for level in (0.0, 0.01, 0.1, 1.0):
        cache = blurred(engine, reference.cache, ids, TOKENS, level)
        kl[level] = reference.loss(cache).kl_mean
        read[level] = share_read(engine, cache, ids[:TOKENS])
    print({level: (kl[level], read[level]) for level in kl})
    assert kl[0.0] == 0.0
    assert 30 < kl[0.1] / kl[0.01] < 300
    assert kl[1.0] > 1.0
    assert read[0.0] == read[0.01] == read[0.1] == 1.0
    assert read[1.0] > 0.95


def test_private_facts_are_lost_before_the_text_is_hidden(smollm2_f32: Any) -> None:
    """At level 0.3 most codes of a document cannot be asked for any more, and all can be read."""
    engine = smollm2_f32
    document = make_document(
        0, lambda text: len(engine.tokenizer.encode(text)), tokens=300, system_tokens=60
    )
    told = [
        {"role": "user", "content": document.prompt},
        {"role": "assistant", "content": "I have read the notes."},
    ]
    ids = engine.chat.render(told, add_generation_prompt=False).ids
    cache = engine.new_cache(len(ids) + ROOM)
    engine.forward(cache, ids)
    asked = [
        (
            *engine.chat.suffix(ids, [{"role": "user", "content": fact.question}]).ids,
            *engine.chat.ids_of(fact.opening, joined=True),
        )
        for fact in document.facts
    ]
    right = {}
    for level in (0.0, 0.01, 0.3):
        noisy = blurred(engine, cache, ids, len(ids), level)
        answers = greedy_answers(engine, noisy, asked, new_tokens=6)
        right[level] = sum(
            fact.code in engine.chat.text_of(answer)
            for fact, answer in zip(document.facts, answers, strict=True)
        )
        assert share_read(engine, noisy, ids) == 1.0
    print(right)
    assert right[0.0] >= 8
    assert right[0.01] >= right[0.0] - 2
    assert right[0.3] <= right[0.0] - 4
