"""Logprob entries from draws, for output and for prompt tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tirage.draw import Draw
from tirage.engine.completion import LogprobEntry
from tirage.params import SamplingParams
from tirage.sampling import sample
from tirage.text import Tokenizer


def output_entry(
    drawn: Draw, row: int, params: SamplingParams, tokenizer: Tokenizer, *, offset: int
) -> LogprobEntry | None:
    """The entry of a row's drawn token; None when its request did not ask."""
    if params.logprobs is None and not params.logprob_token_ids:
        return None
    given = drawn.given_logprobs[row] if drawn.given_logprobs is not None else ()
    return entry(
        tokenizer,
        int(drawn.token_ids[row]),
        float(drawn.logprobs[row]),
        int(drawn.ranks[row]),
        offset=offset,
        top=top_entries(drawn, row, params.logprobs or 0, tokenizer),
        given=tuple(zip(params.logprob_token_ids, map(float, given), strict=True)),
    )


def entry(
    tokenizer: Tokenizer,
    token_id: int,
    logprob: float,
    rank: int,
    *,
    offset: int | None = None,
    top: tuple[LogprobEntry, ...] = (),
    given: tuple[tuple[int, float], ...] = (),
) -> LogprobEntry:
    spelled = tokenizer.token_bytes(token_id)
    return LogprobEntry(
        token_id=token_id,
        logprob=logprob,
        rank=rank,
        text=spelled.decode("utf-8", "replace"),
        bytes=spelled,
        offset=offset,
        top=top,
        given=given,
    )


def top_entries(drawn: Draw, row: int, count: int, tokenizer: Tokenizer) -> tuple[LogprobEntry, ...]:
    """The likeliest tokens of a step, likeliest first; equal log-probabilities share a rank."""
    if not count or drawn.top_token_ids is None:
        return ()
    ids = [int(i) for i in drawn.top_token_ids[row][:count] if i >= 0]
    values = [float(v) for v in drawn.top_logprobs[row][: len(ids)]]
    return tuple(entry(tokenizer, i, v, 1 + values.index(v)) for i, v in zip(ids, values, strict=True))


def prompt_entries(
    scores: NDArray[np.float32], token_ids: Sequence[int], count: int, tokenizer: Tokenizer
) -> tuple[LogprobEntry | None, ...]:
    """Entries of the prompt's tokens under the model's own law; None for the first, which nothing precedes.

    `scores` [T, V] are the logits after each of the T ids; `count` likeliest tokens come with each entry.
    """
    if len(token_ids) < 2:
        return (None,) * len(token_ids)
    asked = [SamplingParams(temperature=0, logprobs=count, logprob_token_ids=(i,)) for i in token_ids[1:]]
    drawn = sample(scores[:-1], asked)
    entries: list[LogprobEntry | None] = [None]
    for row, token_id in enumerate(token_ids[1:]):
        logprob = float(drawn.given_logprobs[row][0]) if drawn.given_logprobs is not None else float("nan")
        rank = 1 + int(np.count_nonzero(scores[row] > scores[row, token_id]))
        entries.append(entry(tokenizer, token_id, logprob, rank, top=top_entries(drawn, row, count, tokenizer)))
    return tuple(entries)
