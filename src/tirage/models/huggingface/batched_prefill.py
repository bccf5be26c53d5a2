"""Several short prompts prefilled in one pass: which rows it takes, its inputs, and a cache for each row after it.

Prompts are right-aligned, as rows are in decode passes: what is right for padding there is right for it here.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from tirage.models.huggingface.batched_cache import pick
from tirage.models.huggingface.row import HuggingFaceRow

PREFILL_BATCH_TOKENS = 256
"""The default of the most tokens, padding included, in one pass over several prompts."""


def is_plain_prompt(row: HuggingFaceRow) -> bool:
    """Whether a row is a prompt of token ids, not begun yet, after which only the next token's logits are wanted."""
    inputs = row.inputs
    special = bool(inputs.media) or inputs.embeds is not None or inputs.score or inputs.hidden_states
    return not special and row.length == 0 and row.left > 0


def padded_size(rows: Sequence[HuggingFaceRow]) -> int:
    """The number of tokens in a pass over the rows, padding included."""
    return len(rows) * max(row.inputs.length for row in rows)


def choose_rows(rows: Sequence[HuggingFaceRow], keys: Sequence[Hashable], limit: int) -> list[int]:
    """The indices of the first row and of those after it that join its pass of at most `limit` tokens.

    `keys` has for each row what rows of one pass must have in common, None for a row that is read alone. A pass has
    prompts of lengths (2^k, 2^(k+1)], so that less than half of it is padding.
    """
    chosen = [0]
    if keys[0] is None:
        return chosen
    octave = octave_of(rows[0])
    for index in range(1, len(rows)):
        fits = keys[index] == keys[0] and octave_of(rows[index]) == octave
        if fits and padded_size([rows[i] for i in (*chosen, index)]) <= limit:
            chosen.append(index)
    return chosen


def octave_of(row: HuggingFaceRow) -> int:
    """The k for which the length of a prompt is in (2^(k-1), 2^k]."""
    return (row.inputs.length - 1).bit_length()


def padded_ids(rows: Sequence[HuggingFaceRow], device: Any) -> tuple[Tensor, Tensor]:
    """The prompts of B rows right-aligned: ids int64 [B, T], 0 where padded, and the mask int64 [B, T], 0 there."""
    width = max(row.inputs.length for row in rows)
    padding = [width - row.inputs.length for row in rows]
    ids = [[0] * count + row.token_ids for count, row in zip(padding, rows, strict=True)]
    mask = [[0] * count + [1] * (width - count) for count in padding]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def padded_positions(rows: Sequence[HuggingFaceRow]) -> Tensor | None:
    """The position ids int64 [..., B, T] of right-aligned prompts, 0 where padded; None if the model takes none."""
    parts = [row.positions for row in rows if row.positions is not None]
    if not parts:
        return None
    width = max(part.shape[-1] for part in parts)
    return torch.cat([torch.nn.functional.pad(part, (width - part.shape[-1], 0)) for part in parts], dim=-2)


def enter_caches(rows: Sequence[HuggingFaceRow], cache: Any) -> None:
    """Gives each row its part of the cache of their pass, and counts its prompt as prefilled."""
    parts = [pick(cache, slot, row.inputs.length) for slot, row in enumerate(rows)]
    for row, part in zip(rows, parts, strict=True):
        row.cache, row.length, row.left = part, row.inputs.length, 0
        row.next_position = None if row.positions is None else row.positions[..., -1:] + 1
