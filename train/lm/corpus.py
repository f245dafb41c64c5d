"""The corpus: a text file as blocks of byte tokens."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import ByT5Tokenizer

from lm.errors import TrainingError

VOCABULARY = 384
"""ByT5's: 3 special tokens, 256 bytes, 125 sentinels. The tokenizer needs no file and no hub."""


def load_blocks(path: Path, length: int) -> torch.Tensor:
    """The text at `path` as blocks of `length` tokens: int64, shape (blocks, length).

    A rest that is too short for a block is dropped.

    Raises:
        TrainingError: the file cannot be read, is not UTF-8, or is too short for one block.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TrainingError(
            f"cannot read the corpus {path}: {error}; name a UTF-8 text file with --data"
        ) from error
    tokens = torch.tensor(ByT5Tokenizer()(text)["input_ids"])
    blocks = len(tokens) // length
    if blocks == 0:
        raise TrainingError(
            f"the corpus {path} has {len(tokens)} tokens: too few for --sequence-length {length}"
        )
    return tokens[: blocks * length].view(blocks, length)
