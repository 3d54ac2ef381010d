"""Padding never leaves: each row of a batch becomes the sequence that it would be alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.engines.families import FAMILIES, WINDOW
from tests.engines.own_loops import (
    assert_like_alone,
    batch,
    forward,
    generate,
    positions_of,
    prefilled,
    prompt,
)
from transformers import DynamicCache

from kvbaton.engines.transformers.adopt import adopt
from kvbaton.errors import InputError

LONGROPE = "phi3-rope-longrope"
"""Its RoPE table is another one from 33 tokens on."""


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != LONGROPE])
def test_a_left_padded_batch(tiny_engine: Callable[..., Any], family: str) -> None:
    """Each row of a left-padded batch becomes the sequence that it would be alone."""
    engine = tiny_engine(family)
    rows = [prompt(3, 1), prompt(WINDOW + 5, 2), prompt(3 * WINDOW, 3)]
    cache, ids, mask = prefilled(engine, rows)
    adopted = adopt(engine, cache, ids, mask)
    for one, row in zip(adopted, rows, strict=True):
        assert_like_alone(engine, one, row, len(row))


def test_a_batch_shares_one_changing_table(tiny_engine: Callable[..., Any]) -> None:
    """Where a long row has changed the RoPE table of a short one, the batch is refused."""
    engine = tiny_engine(LONGROPE)
    short = [prompt(3, 1), prompt(30, 2)]
    cache, ids, mask = prefilled(engine, short)
    for one, row in zip(adopt(engine, cache, ids, mask), short, strict=True):
        assert_like_alone(engine, one, row, len(row))
    cache, ids, mask = prefilled(engine, [prompt(3, 1), prompt(33, 2)])
    with pytest.raises(InputError, match="table changes with the length"):
        adopt(engine, cache, ids, mask)
    cache, ids, mask = prefilled(engine, [prompt(40, 2)])
    assert_like_alone(engine, adopt(engine, cache, ids, mask)[0], prompt(40, 2), 40)


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "gemma3", "mistral"])
def test_a_batch_that_generate_has_filled(tiny_engine: Callable[..., Any], family: str) -> None:
    """After `generate` over a padded batch the last token of each row is pending."""
    engine = tiny_engine(family)
    rows = [prompt(5, 1), prompt(WINDOW + 5, 2)]
    ids, mask = batch(rows)
    said = generate(engine, ids, 7, attention_mask=mask)
    adopted = adopt(engine, said, said.sequences, mask)
    for index, (one, row) in enumerate(zip(adopted, rows, strict=True)):
        whole = [*row, *said.sequences[index, ids.shape[1] :].tolist()]
        assert len(whole) == len(row) + 7
        assert_like_alone(engine, one, whole, len(whole) - 1)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_right_padded_batch(tiny_engine: Callable[..., Any], family: str) -> None:
    """Right padding is left out as well, as long as it has pushed nothing out of a window."""
    engine = tiny_engine(family)
    rows = [prompt(6, 1), prompt(WINDOW - 2, 2)]
    cache, ids, mask = prefilled(engine, rows, "right")
    for one, row in zip(adopt(engine, cache, ids, mask), rows, strict=True):
        assert_like_alone(engine, one, row, len(row))


def test_padding_between_tokens(tiny_engine: Callable[..., Any]) -> None:
    """Tokens that were decoded behind right padding stand behind the prompt, without a gap."""
    engine = tiny_engine("llama")
    rows = [prompt(4, 1), prompt(9, 2)]
    cache, ids, mask = prefilled(engine, rows, "right")
    for token in (40, 50):
        ids = torch.cat([ids, torch.tensor([[token], [token + 1]])], dim=1)
        mask = torch.cat([mask, torch.ones(2, 1, dtype=mask.dtype)], dim=1)
        forward(engine, cache, ids[:, -1:], mask, positions_of(mask)[:, -1:])
    for index, one in enumerate(adopt(engine, cache, ids, mask)):
        whole = [*rows[index], 40 + index, 50 + index]
        assert_like_alone(engine, one, whole, len(whole))


def test_padding_that_windows_count_in_is_refused(tiny_engine: Callable[..., Any]) -> None:
    """With window layers, tokens behind right padding see another window: refused."""
    engine = tiny_engine("gemma3")
    cache, ids, mask = prefilled(engine, [prompt(4, 1), prompt(9, 2)], "right")
    ids = torch.cat([ids, torch.tensor([[40], [41]])], dim=1)
    mask = torch.cat([mask, torch.ones(2, 1, dtype=mask.dtype)], dim=1)
    forward(engine, cache, ids[:, -1:], mask, positions_of(mask)[:, -1:])
    with pytest.raises(InputError, match="between its tokens") as caught:
        adopt(engine, cache, ids, mask)
    assert "left" in caught.value.hint


def test_padding_that_pushed_tokens_out_is_refused(tiny_engine: Callable[..., Any]) -> None:
    """Right padding longer than a window has cost the window its tokens: refused by layer."""
    engine = tiny_engine("gemma3")
    cache, ids, mask = prefilled(engine, [prompt(4, 1), prompt(3 * WINDOW, 2)], "right")
    with pytest.raises(InputError, match="out of the window") as caught:
        adopt(engine, cache, ids, mask)
    assert caught.value.at == "$.layers[0]"


def test_rows_that_end_early_leave_their_padding(tiny_engine: Callable[..., Any]) -> None:
    """A row that `generate` has padded behind its end is taken up to its end."""
    engine = tiny_engine("llama")
    ids, mask = batch([prompt(5, 1), prompt(8, 2)])
    free = generate(engine, ids, 6, attention_mask=mask).sequences[0, 8:].tolist()
    end = free[2]
    said = generate(engine, ids, 6, attention_mask=mask, eos_token_id=end)
    assert said.sequences[0, 8:].tolist() == [*free[:3], 0, 0, 0]
    engine.model.generation_config.eos_token_id = end
    try:
        first, second = adopt(engine, said, said.sequences, mask)
    finally:
        engine.model.generation_config.eos_token_id = 2
    assert_like_alone(engine, first, [*prompt(5, 1), *free[:3]], 8)
    assert len(second.ids) == 8 + 6
    assert second.cache.length == len(second.ids) - 1


def test_tokens_behind_an_end_are_not_cut_off(tiny_engine: Callable[..., Any]) -> None:
    """Where a sequence goes on behind an end token, a mask for all ids is asked for."""
    engine = tiny_engine("llama")
    cache, ids, mask = prefilled(engine, [prompt(6)])
    more = torch.tensor([[2, 30, 31]])
    forward(engine, cache, more)
    whole = torch.cat([ids, more], dim=1)
    with pytest.raises(InputError, match="after its end"):
        adopt(engine, cache, whole, mask)
    (adopted,) = adopt(engine, cache, whole, torch.ones_like(whole))
    assert adopted.ids == tuple(whole[0].tolist())


def test_a_missing_mask_is_noticed(tiny_engine: Callable[..., Any]) -> None:
    """Ids that begin or end with padding and no mask raise InputError; a mask of ones says it."""
    engine = tiny_engine("llama")
    for side in ("left", "right"):
        cache, ids, _ = prefilled(engine, [prompt(4, 1), prompt(7, 2)], side)
        with pytest.raises(InputError, match="padding token"):
            adopt(engine, cache, ids)
    cache = DynamicCache(config=engine.model.config)
    forward(engine, cache, torch.tensor([[0, 30, 31]]))
    (adopted,) = adopt(engine, cache, [0, 30, 31], [1, 1, 1])
    assert adopted.ids == (0, 30, 31)


def test_padding_without_positions_is_refused(tiny_engine: Callable[..., Any]) -> None:
    """A left-padded forward pass without position_ids rotates keys by the padding: refused."""
    engine = tiny_engine("llama")
    ids, mask = batch([prompt(4, 1), prompt(7, 2)])
    cache = DynamicCache(config=engine.model.config)
    forward(engine, cache, ids, mask)
    with pytest.raises(InputError, match="under another position") as caught:
        adopt(engine, cache, ids, mask)
    assert "position_ids" in caught.value.hint


def test_masks_that_do_not_fit_are_refused(tiny_engine: Callable[..., Any]) -> None:
    """A mask of other rows, of more columns, or of four dimensions raises InputError."""
    engine = tiny_engine("llama")
    cache, ids, mask = prefilled(engine, [prompt(4), prompt(5)])
    longer = torch.ones(2, ids.shape[1] + 1)
    for wrong in (mask[:1], longer, torch.ones(2, 1, 5, 5)):
        with pytest.raises(InputError, match="does not fit"):
            adopt(engine, cache, ids, wrong)
    with pytest.raises(InputError, match="instead of"):
        adopt(engine, cache, ids[:1], mask[:1])
