"""Logprob entries for output and prompt tokens, made from draws."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tirage.backends.numpy.kernels import SingleRecord
from tirage.draw import Draw
from tirage.engine.completion import LogprobEntry, TokenRecord
from tirage.engine.drawn_row import DrawnRow
from tirage.engine.entry_lists import TopEntries, entry, given_logprobs, listed_ids, top_entries
from tirage.engine.request import EngineRequest
from tirage.exact.keys import keys
from tirage.params import SamplingParams
from tirage.sampling import sample
from tirage.text import Tokenizer


def token_logprob(drawn: Draw, row: int, params: SamplingParams) -> float:
    """What the token of a row adds to the cumulative logprob: its reported logprob, else that of its draw."""
    return float((drawn.logprobs if params.lists_logprobs else drawn.sampled_logprobs)[row])


def output_entry(row: DrawnRow, params: SamplingParams, tokenizer: Tokenizer, *, offset: int) -> LogprobEntry | None:
    """The entry of the token of a row; None when its request asks for none."""
    if not params.lists_logprobs:
        return None
    drawn, at, logits = row
    given = drawn.given_logprobs[at] if drawn.given_logprobs is not None else ()
    own = int(drawn.token_ids[at]), int(drawn.ranks[at])
    return entry(
        tokenizer,
        own[0],
        float(drawn.logprobs[at]),
        own[1],
        offset=offset,
        top=top_entries(drawn, at, params.logprobs or 0, tokenizer, own=own, logits=logits),
        given=given_logprobs(params.logprob_token_ids, given),
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


def single_record(found: SingleRecord, sampled_logprob: float) -> TokenRecord:
    """The record of the token of a row that is drawn by itself."""
    return TokenRecord(
        kept_ids=found.kept,
        kept_logmass=found.logmass,
        raw_logprob=found.raw,
        processed_logprob=found.processed,
        sampled_logprob=sampled_logprob,
    )


def given_prompt_entry(found: Sequence[tuple[int, float, int]] | None, tokenizer: Tokenizer) -> LogprobEntry | None:
    """The entry of a prompt token from the (token id, logprob, rank) of the token itself, then of the most likely ones.

    None for the first token, which nothing precedes.
    """
    if found is None:
        return None
    (token_id, logprob, rank), *top = found
    pairs = np.array([[i for i, _, _ in top], [value for _, value, _ in top]], np.float64)
    return entry(tokenizer, token_id, logprob, rank, top=TopEntries(pairs, tokenizer) if top else ())


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
        every = keys(logits)
        for row, token_id in enumerate(following):
            values = drawn.given_logprobs[row] if drawn.given_logprobs is not None else ()
            given = dict(zip(ids[row], map(float, values), strict=False))
            rank = 1 + int(np.count_nonzero(every[row] > every[row, token_id]))
            listed = None if drawn.top_token_ids is None else logits[row, listed_ids(drawn, row)]
            self._found.append(
                entry(
                    self._tokenizer,
                    token_id,
                    given.get(token_id, float("nan")),
                    rank,
                    top=top_entries(drawn, row, self._count, self._tokenizer, logits=listed),
                    given=given_logprobs(wanted, [given[i] for i in wanted]) if given else (),
                )
            )
