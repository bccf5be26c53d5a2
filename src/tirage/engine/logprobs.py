"""Logprob entries for output and prompt tokens, made from draws."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tirage.draw import Draw
from tirage.engine.completion import LogprobEntry, TokenRecord
from tirage.engine.request import EngineRequest
from tirage.params import SamplingParams
from tirage.sampling import sample
from tirage.text import Tokenizer


def token_logprob(drawn: Draw, row: int, params: SamplingParams) -> float:
    """What the token of a row adds to the cumulative logprob: its reported logprob, else that of its draw."""
    return float((drawn.logprobs if params.lists_logprobs else drawn.sampled_logprobs)[row])


def output_entry(
    drawn: Draw, row: int, params: SamplingParams, tokenizer: Tokenizer, *, offset: int
) -> LogprobEntry | None:
    """The entry of the token of a row; None when its request asks for none."""
    if not params.lists_logprobs:
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


def token_record(drawn: Draw, row: int, params: SamplingParams) -> TokenRecord | None:
    """The record of the token of a row; None when its request asks for none."""
    if not params.return_kept:
        return None
    start, stop = drawn.kept_offsets[row : row + 2]
    return TokenRecord(
        # A copy: the ids of all rows lie in one array, which other requests need no longer.
        kept_ids=drawn.kept_ids[start:stop].copy(),
        kept_logmass=float(drawn.kept_logmass[row]),
        raw_logprob=float(drawn.raw_logprobs[row]),
        processed_logprob=float(drawn.processed_logprobs[row]),
        sampled_logprob=float(drawn.sampled_logprobs[row]),
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
    """The entry of a token, with its own text and bytes."""
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
    """The entries of the `count` most likely tokens of a row, best first; equal log-probabilities share a rank."""
    if not count or drawn.top_token_ids is None:
        return ()
    ids = [int(i) for i in drawn.top_token_ids[row][:count] if i >= 0]
    values = [float(v) for v in drawn.top_logprobs[row][: len(ids)]]
    ranks = ranks_of(values)
    return tuple(entry(tokenizer, i, v, rank) for i, v, rank in zip(ids, values, ranks, strict=True))


def ranks_of(values: Sequence[float]) -> list[int]:
    """The ranks of values in descending order, from 1; equal ones have the rank of the first."""
    first: dict[float, int] = {}
    return [first.setdefault(value, rank) for rank, value in enumerate(values, start=1)]


def given_prompt_entry(found: Sequence[tuple[int, float, int]] | None, tokenizer: Tokenizer) -> LogprobEntry | None:
    """The entry of a prompt token from the (token id, logprob, rank) of the token itself, then of the most likely ones.

    None for the first token, which nothing precedes.
    """
    if found is None:
        return None
    (token_id, logprob, rank), *top = found
    ranks = ranks_of([value for _, value, _ in top])
    tops = tuple(entry(tokenizer, i, value, place) for (i, value, _), place in zip(top, ranks, strict=True))
    return entry(tokenizer, token_id, logprob, rank, top=tops)


class PromptLogprobs:
    """The entries of a prompt's tokens under the model's own law, added chunk by chunk during the prefill.

    The first entry is None, because nothing precedes its token. Each entry has the logprobs of `logprob_token_ids` too.
    A prompt of embeddings has no entries.
    """

    def __init__(self, request: EngineRequest, tokenizer: Tokenizer) -> None:
        self._request, self._ids, self._tokenizer = request, request.prompt_ids, tokenizer
        self._count = request.params.prompt_logprobs or 0
        self._found: list[LogprobEntry | None] = [None] if self._ids else []

    @property
    def entries(self) -> tuple[LogprobEntry | None, ...]:
        """The entries so far; complete after the last chunk."""
        return tuple(self._found)

    def add(self, logits: NDArray[np.float32]) -> None:
        """Adds the entries that follow from the logits float32 [k, V] after the next k tokens."""
        following = self._ids[len(self._found) : len(self._found) + len(logits)]
        if not following:
            return
        logits = logits[: len(following)]
        wanted = self._request.params.logprob_token_ids
        greedy = SamplingParams(temperature=0, logprobs=self._count)
        # Each id once: first the token itself, then those of `logprob_token_ids` that differ from it.
        ids = [tuple(dict.fromkeys((token_id, *wanted))) for token_id in following]
        drawn = sample(logits, [greedy.replace_unchecked(logprob_token_ids=each) for each in ids])
        for row, token_id in enumerate(following):
            values = drawn.given_logprobs[row] if drawn.given_logprobs is not None else ()
            given = dict(zip(ids[row], map(float, values), strict=False))
            rank = 1 + int(np.count_nonzero(logits[row] > logits[row, token_id]))
            self._found.append(
                entry(
                    self._tokenizer,
                    token_id,
                    given.get(token_id, float("nan")),
                    rank,
                    top=top_entries(drawn, row, self._count, self._tokenizer),
                    given=tuple((i, given[i]) for i in wanted if i in given),
                )
            )
