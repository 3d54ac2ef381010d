"""A tiny random checkpoint in a folder, with a tokenizer whose tokens are bytes."""

from pathlib import Path

import torch
from tests.engines import families
from tests.engines.chat_tokenizers import word_tokenizer


def checkpoint(folder: Path, family: str = "smollm", dtype: torch.dtype = torch.float32) -> Path:
    """Write a model of ``tests.engines.families`` and its tokenizer into ``folder``."""
    families.build(family, dtype).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder
