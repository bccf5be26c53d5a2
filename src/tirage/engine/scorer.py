"""The log-probabilities that a beam search ranks by: of next tokens, under the stages of one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.draw import Status
from tirage.engine.completion import LogprobEntry
from tirage.engine.draw_steps import DrawSteps
from tirage.engine.logprobs import entry, top_entries
from tirage.engine.request import EngineRequest
from tirage.engine.sample import GrowingSample, stack_masks
from tirage.history import History
from tirage.params import BeamSearchParams, SamplingParams
from tirage.sampling import on_host, outcomes, sample
from tirage.sampling_batch import SamplingBatch, SamplingRow
from tirage.semantics import resolve
from tirage.text import Stop, Tokenizer


@dataclass(slots=True, kw_only=True)
class Beam:
    """A running hypothesis of a search.

    `total` is the sum of its tokens' log-probabilities, `row` the model's own object for its tokens. `logits` float32
    [V] are those of its next token, None until its last one is decoded; `mask` int32 [ceil(V / 32)] says which ids are
    allowed, None for all. `listed` are its own best next tokens, once they are known.
    """

    sample: GrowingSample
    total: float = 0.0
    row: Any = None
    logits: Any = None
    mask: NDArray[np.int32] | None = None
    is_masked: bool = True
    listed: NextTokens | None = None


@dataclass(frozen=True, slots=True)
class NextTokens:
    """The best next tokens of a beam: ids int64 [k] with log-probabilities float64 [k]; none if its draw failed."""

    token_ids: NDArray[np.int64]
    logprobs: NDArray[np.float64]
    status: Status


@dataclass(frozen=True, slots=True)
class Candidate:
    """A beam with one more token. The best has the highest total, then the lowest beam, then the lowest token id.

    `cost` is the negative sum of log-probabilities, `parent` the index of the beam.
    """

    cost: float
    parent: int
    token_id: int


class Scorer:
    """The log-probabilities of next tokens under one request's stages, and the entries that it asks for.

    Under the `hf` semantics the stages edit log-probabilities, as in transformers' beam search; under any other they
    edit logits, and the log-probabilities are those of the result.
    """

    def __init__(
        self, request: EngineRequest, tokenizer: Tokenizer, *, beams: BeamSearchParams, vocab_size: int
    ) -> None:
        params = request.params
        self._vocab_size, self._tokenizer, self._request = vocab_size, tokenizer, request
        stops = len(params.stop_token_ids) + (0 if params.ignore_eos else len(params.eos_token_ids))
        # Enough that `beam_width` candidates go on when all better ones end.
        self._limit = max(2, 1 + stops) * beams.beam_width
        self._count = min(self._limit, vocab_size)
        self._edits_logprobs = resolve(params.semantics).name == "hf"
        if self._edits_logprobs:
            self._ranking = params.replace(temperature=1.0)
        else:
            self._ranking = params.replace(logprobs=self._count, logprobs_mode="processed")

    def list_next(self, beams: Sequence[Beam]) -> DrawSteps[None]:
        """Finds the best next tokens of each beam, as its `listed`; its company does not matter."""
        for beam in beams:
            beam.mask = beam.sample.mask(self._vocab_size)
        listed = yield from self._listed(beams)
        late = [beam for beam, found in zip(beams, listed, strict=True) if not found.token_ids.size and is_ok(found)]
        for beam in late:
            # After none of its best tokens could the constraint be closed in time, so it is closed now.
            beam.mask = beam.sample.closing_mask(self._vocab_size)
        listed = (yield from self._listed(beams)) if late else listed
        stuck = [
            beam
            for beam, found in zip(beams, listed, strict=True)
            if found.status is Status.no_allowed_token and beam.sample.is_closing
        ]
        for beam in stuck:
            beam.mask = beam.sample.next_closing_mask(self._vocab_size, last=True)
        listed = (yield from self._listed(beams)) if stuck else listed
        for beam, found in zip(beams, listed, strict=True):
            beam.listed = found

    def candidates(self, parents: Sequence[Beam]) -> tuple[list[Candidate], Stop | None]:
        """The best candidates of all beams, whose next tokens are listed, best first; the failure of one without."""
        failure, listed = None, [beam.listed for beam in parents if beam.listed is not None]
        for beam, found in zip(parents, listed, strict=True):
            if not is_ok(found):
                failure = beam.sample.cause_of(Stop(kind=found.status.name))  # type: ignore[arg-type]
        costs = np.concatenate([-(beam.total + each.logprobs) for beam, each in zip(parents, listed, strict=True)])
        tokens = np.concatenate([each.token_ids for each in listed])
        beams = np.repeat(np.arange(len(parents)), [each.token_ids.size for each in listed])
        if costs.size > self._limit:
            # Only these can be among the best; to order all of them takes ten times as long.
            near = np.flatnonzero(costs <= np.partition(costs, self._limit - 1)[self._limit - 1])
            costs, beams, tokens = costs[near], beams[near], tokens[near]
        best = np.lexsort((tokens, beams, costs))[: self._limit]
        columns = (costs[best].tolist(), beams[best].tolist(), tokens[best].tolist())
        return [Candidate(*each) for each in zip(*columns, strict=True)], failure

    def _listed(self, parents: Sequence[Beam]) -> DrawSteps[list[NextTokens]]:
        """The best next tokens of each beam after which its constraint, if any, can still be closed in time."""
        listed = yield partial(self._after_logprobs if self._edits_logprobs else self._after_logits, parents)
        return [next_tokens(beam.sample, *found) for beam, found in zip(parents, listed, strict=True)]

    def add_entries(self, pairs: Sequence[tuple[GrowingSample, Beam]]) -> DrawSteps[None]:
        """Adds the logprob entry of the last token to samples that continue beams, if the request asks for any."""
        params = self._request.params
        if not pairs or (params.logprobs is None and not params.logprob_token_ids):
            return
        most = min(max(params.logprobs or 0, self._count), self._vocab_size)
        asked = params.replace_unchecked(logprobs=most, logprob_token_ids=())
        drawn = yield partial(self._draw, [parent for _, parent in pairs], asked)
        given = [logprobs_in(drawn, row, longer.token_ids[-1]) for row, (longer, _) in enumerate(pairs)]
        # Draws that name tokens take much longer.
        left = [row for row, found in enumerate(given) if not found or params.logprob_token_ids]
        if left:
            found = yield from self._named([pairs[row] for row in left])
            for row, each in zip(left, found, strict=True):
                given[row] = each
        for row, (longer, parent) in enumerate(pairs):
            longer.entries.append(self._entry(longer.token_ids[-1], parent, drawn, row, given[row]))

    def _named(self, pairs: Sequence[tuple[GrowingSample, Beam]]) -> DrawSteps[list[dict[int, float]]]:
        """The logprobs of the last token of each sample, and of the tokens that the request names."""
        params = self._request.params
        tokens = [tuple(dict.fromkeys((longer.token_ids[-1], *params.logprob_token_ids))) for longer, _ in pairs]
        asked = [params.replace_unchecked(logprobs=0, logprob_token_ids=each) for each in tokens]
        drawn = yield partial(self._draw, [parent for _, parent in pairs], asked)
        assert drawn.given_logprobs is not None
        rows = zip(tokens, drawn.given_logprobs, strict=True)
        return [dict(zip(ids, map(float, logprobs), strict=True)) for ids, logprobs in rows]

    def _entry(self, token: int, parent: Beam, drawn: Any, row: int, given: Mapping[int, float]) -> LogprobEntry:
        """The entry of a token, from the row of its draw and the logprobs given there."""
        params = self._request.params
        above = np.asarray(drawn.top_logprobs[row]) > np.float32(given[token])
        logits = on_host(parent.logits)[0]
        rank = np.count_nonzero(logits > logits[token]) if params.logprobs_mode == "raw" else np.count_nonzero(above)
        return entry(
            self._tokenizer,
            token,
            given[token],
            1 + int(rank),
            offset=parent.sample.offset,
            top=top_entries(drawn, row, params.logprobs or 0, self._tokenizer),
            given=tuple((i, given[i]) for i in params.logprob_token_ids),
        )

    def _after_logits(self, parents: Sequence[Beam]) -> list[tuple[Any, Any, Status]]:
        drawn = self._draw(parents, self._ranking)
        return [
            (drawn.top_token_ids[row], drawn.top_logprobs[row], Status(int(drawn.status[row])))
            for row in range(len(parents))
        ]

    def _after_logprobs(self, parents: Sequence[Beam]) -> list[tuple[Any, Any, Status]]:
        logprobs = np.stack([self._log_softmax(on_host(beam.logits)[0]) for beam in parents])
        histories = [History.of(*pair, vocab_size=self._vocab_size) for pair in self._history(parents)]
        rows = [SamplingRow.of(self._ranking, history) for history in histories]
        batch = SamplingBatch.of(rows, self._vocab_size)
        listed = []
        for result in outcomes(logprobs, batch, self._masks(parents)):
            x = result.off.row.x
            best = np.argsort(-x.astype(np.float64), kind="stable")[: self._count]
            listed.append((best, x[best], Status(result.status)))
        return listed

    def _log_softmax(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        scaled = logits.astype(np.float64) / self._request.params.temperature
        if scaled.max() == -np.inf:
            return logits  # No token is possible, which is not the same as NaN.
        with np.errstate(invalid="ignore"):
            shifted = scaled - scaled.max()
            return (shifted - np.log(np.exp(shifted).sum())).astype(np.float32)

    def _draw(self, parents: Sequence[Beam], params: SamplingParams | Sequence[SamplingParams]) -> Any:
        logits = np.concatenate([on_host(beam.logits) for beam in parents])
        return sample(logits, params, history=self._history(parents), mask=self._masks(parents))

    def _masks(self, parents: Sequence[Beam]) -> NDArray[np.int32] | None:
        return stack_masks([beam.mask for beam in parents], self._vocab_size)

    def _history(self, parents: Sequence[Beam]) -> list[tuple[list[int], list[int]]]:
        return [(self._request.prompt_ids, beam.sample.token_ids) for beam in parents]


def logprobs_in(drawn: Any, row: int, token: int) -> dict[int, float]:
    """The logprob of a token by its id, if it is among the likeliest tokens of a row."""
    at = np.flatnonzero(np.asarray(drawn.top_token_ids[row]) == token)
    return {token: float(drawn.top_logprobs[row][at[0]])} if at.size else {}


def is_ok(found: NextTokens) -> bool:
    """Whether the draw of a beam has not failed."""
    return found.status is Status.ok


def next_tokens(sample: GrowingSample, token_ids: Any, logprobs: Any, status: Status) -> NextTokens:
    """The ids [k] with their log-probabilities [k], without those that a sample cannot continue with."""
    ids, totals = np.asarray(token_ids, np.int64), np.asarray(logprobs, np.float64)
    kept = (ids >= 0) & (totals > -np.inf) & (status is Status.ok)
    if sample.grammar is not None:
        kept[kept] = [sample.can_close_after(token) for token in ids[kept].tolist()]
    return NextTokens(ids[kept], totals[kept], status)
