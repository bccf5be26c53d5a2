"""Packed rows as one shard sees them: of every table its own token ids, counted from its first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tirage.operators.logit_bias import ADD
from tirage.operators.masks import BAN
from tirage.sampling_metadata import SamplingMetadata


def localised(rows: SamplingMetadata, start: int, stop: int) -> SamplingMetadata:
    """`rows` with the bans, additions, counts, protected ids and masks of the tokens [start, stop) alone.

    Asked ids stay global. A shard without tokens has one column, to which nothing refers.
    """
    edits, edit_at = _inside(rows.edit_ids, start, stop)
    counted, count_at = _inside(rows.count_ids, start, stop)
    spared, spared_at = _inside(rows.protected_ids, start, stop)
    programs = rows.programs.copy()
    spans = np.isin(programs[:, :, 0], (BAN, ADD))
    programs[spans, 1:3] = edit_at[programs[spans, 1:3]]
    return replace(
        rows,
        programs=programs,
        edit_ids=rows.edit_ids[edits] - np.int32(start),
        edit_values=rows.edit_values[edits],
        count_start=count_at[rows.count_start],
        count_ids=rows.count_ids[counted] - np.int32(start),
        prompt_counts=rows.prompt_counts[counted],
        output_counts=rows.output_counts[counted],
        protected_start=spared_at[rows.protected_start],
        protected_ids=rows.protected_ids[spared] - np.int32(start),
        masks=_part_of_mask(rows.masks, start, stop),
        checks=_part_of_mask(rows.checks, start, stop),
        memo={},
    )


def _inside(ids: NDArray[np.int32], start: int, stop: int) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Which ids lie in [start, stop), and how many of them lie before each position (one more than there are ids)."""
    inside = (ids >= start) & (ids < stop)
    return inside, np.concatenate([[0], np.cumsum(inside)]).astype(np.int64)


def _part_of_mask(masks: NDArray[np.int32], start: int, stop: int) -> NDArray[np.int32]:
    """Bits [start, stop) of int32 bitmasks as bitmasks of their own."""
    if not masks.size:
        return masks
    words = np.ascontiguousarray(masks[:, start // 32 : -(-stop // 32)])
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, start % 32 :][:, : stop - start]
    whole = np.ones((masks.shape[0], -(-max(stop - start, 1) // 32) * 32), np.uint8)
    whole[:, : stop - start] = bits
    return np.packbits(whole, axis=1, bitorder="little").view(np.int32)
