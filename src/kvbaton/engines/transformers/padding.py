"""Which columns of a batch are tokens and which are padding."""

from __future__ import annotations

from typing import Any

import torch

from kvbaton.errors import InputError


def valid_columns(rows: torch.Tensor, mask: Any, model: Any, tokenizer: Any) -> torch.Tensor:
    """True for tokens and False for padding, ``[batch, n]`` like ``rows``.

    Columns behind a mask that is shorter than the rows were generated; ``generate`` pads them
    behind the end of a sequence that ends before the others.

    Raises
    ------
    InputError
        The mask does not fit, or is missing where there seems to be padding.
    """
    ends = _ends(model)
    pad = _padding_id(model, tokenizer, ends)
    if mask is None:
        _require_no_padding(rows, pad, ends)
        return torch.ones_like(rows, dtype=torch.bool)
    given = torch.as_tensor(mask).cpu()
    given = (given.unsqueeze(0) if given.dim() == 1 else given).bool()
    if given.dim() != 2 or len(given) != len(rows) or given.shape[1] > rows.shape[1]:
        raise InputError(
            f"an attention mask of {tuple(given.shape)} does not fit ids of {tuple(rows.shape)}"
        )
    behind = rows[:, given.shape[1] :]
    generated = [_until_end(row, pad, ends) for row in behind]
    return torch.cat([given, torch.stack(generated)], dim=1)


def _ends(model: Any) -> tuple[int, ...]:
    """Tokens that end a sequence in ``generate``."""
    ends = getattr(model.generation_config, "eos_token_id", None)
    if ends is None:
        return ()
    return (int(ends),) if isinstance(ends, int) else tuple(int(end) for end in ends)


def _padding_id(model: Any, tokenizer: Any, ends: tuple[int, ...]) -> int | None:
    """What ``generate`` or the tokenizer pads with."""
    own = getattr(tokenizer, "pad_token_id", None)
    pad = model.generation_config.pad_token_id if own is None else own
    return pad if pad is not None else next(iter(ends), None)


def _require_no_padding(rows: torch.Tensor, pad: int | None, ends: tuple[int, ...]) -> None:
    """Without a mask no row may begin or end with padding.

    One sequence alone may end with a padding token that is also its end.
    """
    if pad is None or (len(rows) == 1 and pad in ends):
        return
    if bool((rows[:, 0] == pad).any() or (rows[:, -1] == pad).any()):
        raise InputError(
            "a sequence begins or ends with the padding token and there is no attention mask",
            hint="pass attention_mask; of ones, if it is no padding",
        )


def _until_end(generated: torch.Tensor, pad: int | None, ends: tuple[int, ...]) -> torch.Tensor:
    """Which generated tokens of one row are valid: those up to the first end."""
    valid = torch.ones_like(generated, dtype=torch.bool)
    found = torch.isin(generated, torch.tensor(ends, dtype=generated.dtype)).nonzero()
    if len(found) == 0:
        return valid
    stop = int(found[0]) + 1
    if bool((generated[stop:] != pad).any()):
        raise InputError(
            "behind the attention mask a sequence goes on after its end",
            hint="pass an attention mask for all ids",
        )
    valid[stop:] = False
    return valid
