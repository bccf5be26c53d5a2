"""The log-probabilities that a beam search ranks by: of next tokens, under the stages of one request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.draw import Status
from tirage.engine.completion import LogprobEntry
from tirage.engine.draw_steps import DrawSteps
from tirage.engine.drawn_row import lists_by_logits
from tirage.engine.entry_lists import entry, given_logprobs, groups_of, listed_ids, ranks_of, top_entries
from tirage.engine.request import EngineRequest
from tirage.engine.sample import GrowingSample, stack_masks
from tirage.engine.step_time import StepTime
from tirage.exact.keys import keys
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
    allowed, None for all. `listed` are its own best next tokens, once they are known, and `is_closing` says that they
    were listed again under the closing path of its constraint, as after no other it could be closed in time.
    """

    sample: GrowingSample
    total: float = 0.0
    row: Any = None
    logits: Any = None
    mask: NDArray[np.int32] | None = None
    is_masked: bool = True
    listed: NextTokens | None = None
    is_closing: bool = False


@dataclass(frozen=True, slots=True)
class NextTokens:
    """The best next tokens of a beam, best first; none if its draw failed.

    `token_ids` int64 [k], `logprobs` float64 [k]. `closable` int8 [k]: whether the constraint can still be closed in
    time after each, 1 or 0; -1 where nobody has asked, which `ClosingChecks` does for the best only.
    """

    token_ids: NDArray[np.int64]
    logprobs: NDArray[np.float64]
    status: Status
    closable: NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A beam with one more token. The best has the highest total, then the lowest beam, then the lowest token id.

    `cost` is the negative sum of log-probabilities, `parent` the index of the beam.
    """

    cost: float
    parent: int
    token_id: int


class ClosingChecks:
    """Finds out after which tokens constraints can still be closed in time, while there is time in a step.

    It may take a search for each.
    """

    def __init__(self, time: StepTime) -> None:
        self._time = time

    def late(self, beams: Sequence[Beam]) -> list[Beam] | None:
        """The beams that can be closed in time after none of their listed tokens; None if there is no time to know."""
        found = []
        for beam in beams:
            if beam.listed is None or not is_ok(beam.listed) or beam.is_closing:
                continue
            for at in range(beam.listed.token_ids.size):
                can_close = self._can_close(beam, at)
                if can_close is None:
                    return None
                if can_close:
                    break
            else:
                found.append(beam)
        return found

    def first(
        self, most: int, candidates: Sequence[Candidate], parents: Sequence[Beam], places: Sequence[int]
    ) -> list[Candidate] | None:
        """The first candidates, at `most` so many, that can be closed in time; None if there is no time to know.

        `places` are those of their tokens among the listed ones of their beams.
        """
        found = []
        for candidate, at in zip(candidates, places, strict=True):
            can_close = self._can_close(parents[candidate.parent], at)
            if can_close is None:
                return None
            if can_close:
                found.append(candidate)
                if len(found) == most:
                    break
        return found

    def _can_close(self, beam: Beam, at: int) -> bool | None:
        """Whether a beam can be closed in time after its listed token at this place."""
        listed = beam.listed
        assert listed is not None
        if listed.closable[at] < 0:
            if not self._time.is_left():
                return None
            listed.closable[at] = beam.sample.can_close_after(int(listed.token_ids[at]))
        return bool(listed.closable[at])


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
        # As an array, since every draw checks it once for each beam.
        self._prompt = np.array(request.prompt_ids, np.int32)
        stops = len(params.stop_token_ids) + (0 if params.ignore_eos else len(params.eos_token_ids))
        # Enough that `beam_width` candidates go on when all better ones end.
        self.limit = max(2, 1 + stops) * beams.beam_width
        self._count = min(self.limit, vocab_size)
        self._edits_logprobs = resolve(params.semantics).name == "hf"
        if self._edits_logprobs:
            self._ranking = params.replace(temperature=1.0)
        else:
            self._ranking = params.replace(logprobs=self._count, logprobs_mode="processed")

    def list_next(self, beams: Sequence[Beam]) -> DrawSteps[None]:
        """Finds the best next tokens of each beam, as its `listed`; they do not depend on the other beams."""
        for beam in beams:
            beam.mask = beam.sample.mask(self._vocab_size)
        yield from self._list(beams)

    def close(self, beams: Sequence[Beam]) -> DrawSteps[None]:
        """Lists the next tokens of beams again, whose constraints can be closed after none of those listed: they are
        closed now."""
        for beam in beams:
            beam.mask, beam.is_closing = beam.sample.closing_mask(self._vocab_size), True
        yield from self._list(beams)

    def _list(self, beams: Sequence[Beam]) -> DrawSteps[None]:
        """Lists the next tokens of beams under their masks; where a closing path is forbidden, under another one."""
        yield from self._list_masked(beams)
        stuck = [beam for beam in beams if is_stuck(beam)]
        for beam in stuck:
            beam.mask = beam.sample.next_closing_mask(self._vocab_size, last=True)
        if stuck:
            yield from self._list_masked(stuck)

    def _list_masked(self, beams: Sequence[Beam]) -> DrawSteps[None]:
        listed = yield partial(self._after_logprobs if self._edits_logprobs else self._after_logits, beams)
        for beam, found in zip(beams, listed, strict=True):
            beam.listed = next_tokens(beam.sample, *found)

    def candidates(self, parents: Sequence[Beam], most: int, checks: ClosingChecks) -> list[Candidate] | None:
        """The best candidates of all beams, whose next tokens are listed, best first, and at `most` so many.

        Constraints can be closed after each of them; None without time to check them. What was found out about that is
        kept for the next call.
        """
        most = min(most, self.limit)
        listed = [beam.listed for beam in parents if beam.listed is not None]
        costs = np.concatenate([-(beam.total + each.logprobs) for beam, each in zip(parents, listed, strict=True)])
        sizes = [each.token_ids.size for each in listed]
        tokens, beams = np.concatenate([each.token_ids for each in listed]), np.repeat(np.arange(len(parents)), sizes)
        places = np.concatenate([np.arange(size) for size in sizes])
        kept: list[Candidate] | None = []
        for count in counts_up_to(costs.size, most):
            # Only these can be among the best; to order all of them takes ten times as long.
            near = np.flatnonzero(costs <= np.partition(costs, count - 1)[count - 1])
            best = near[np.lexsort((tokens[near], beams[near], costs[near]))]
            columns = (costs[best].tolist(), beams[best].tolist(), tokens[best].tolist())
            found = [Candidate(*each) for each in zip(*columns, strict=True)]
            kept = checks.first(most, found, parents, places[best].tolist())
            if kept is None or len(kept) == most:
                break
        return kept

    @property
    def lists_entries(self) -> bool:
        """Whether the request asks for logprob entries."""
        return self._request.params.lists_logprobs

    def add_entries(self, pairs: Sequence[tuple[GrowingSample, Beam]]) -> DrawSteps[None]:
        """Adds the logprob entry of the last token to samples that continue beams."""
        params = self._request.params
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
        params, logits = self._request.params, on_host(parent.logits)[0]
        listed = logits[listed_ids(drawn, row)] if lists_by_logits(params) else None
        raw = params.logprobs_mode == "raw"
        rank = rank_in(logits, token) if raw else listed_rank(drawn, row, token, given[token], listed)
        return entry(
            self._tokenizer,
            token,
            given[token],
            rank,
            offset=parent.sample.offset,
            top=top_entries(drawn, row, params.logprobs or 0, self._tokenizer, own=(token, rank), logits=listed),
            given=given_logprobs(params.logprob_token_ids, [given[i] for i in params.logprob_token_ids]),
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

    def _history(self, parents: Sequence[Beam]) -> list[tuple[NDArray[np.int32], list[int]]]:
        return [(self._prompt, beam.sample.token_ids) for beam in parents]


def rank_in(logits: NDArray[np.float32], token: int) -> int:
    """The rank of a token by logits [V]: by their keys, as floats near zero depend on the modes of the processor."""
    every = keys(logits)
    return 1 + int(np.count_nonzero(every > every[token]))


def listed_rank(drawn: Any, row: int, token: int, logprob: float, logits: NDArray[np.float32] | None) -> int:
    """The rank of a token with this logprob by the list of the most likely ones of a row.

    `logits` float32 [n] are those of the listed tokens, where the list was ordered by them.
    """
    ids, values = listed_ids(drawn, row), np.asarray(drawn.top_logprobs[row])
    at = np.flatnonzero(ids == token)
    if not at.size:
        return 1 + int(np.count_nonzero(values > np.float32(logprob)))
    order = groups_of(ids, values[: ids.size], None) if logits is None else keys(logits)
    return ranks_of(order.tolist())[at[0]]


def logprobs_in(drawn: Any, row: int, token: int) -> dict[int, float]:
    """The logprob of a token by its id, if it is among the likeliest tokens of a row."""
    at = np.flatnonzero(np.asarray(drawn.top_token_ids[row]) == token)
    return {token: float(drawn.top_logprobs[row][at[0]])} if at.size else {}


def is_ok(found: NextTokens) -> bool:
    """Whether the draw of a beam has not failed."""
    return found.status is Status.ok


def is_stuck(beam: Beam) -> bool:
    """Whether a beam has no next token because other parameters forbid the closing path of its constraint."""
    return beam.listed is not None and beam.listed.status is Status.no_allowed_token and beam.sample.is_closing


def next_tokens(sample: GrowingSample, token_ids: Any, logprobs: Any, status: Status) -> NextTokens:
    """The ids [k] with their log-probabilities [k], without those that are forbidden."""
    ids, totals = np.asarray(token_ids, np.int64), np.asarray(logprobs, np.float64)
    kept = (ids >= 0) & (totals > -np.inf) & (status is Status.ok)
    ids, unknown = ids[kept], sample.grammar is not None
    return NextTokens(ids, totals[kept], status, np.full(ids.size, -1 if unknown else 1, np.int8))


def failure_of(parents: Sequence[Beam]) -> Stop | None:
    """Why the last of the beams that have no next token has none."""
    failure = None
    for beam in parents:
        if beam.listed is not None and not is_ok(beam.listed):
            failure = beam.sample.cause_of(Stop(kind=beam.listed.status.name))  # type: ignore[arg-type]
    return failure


def counts_up_to(size: int, first: int) -> Iterator[int]:
    """`first`, and four times as many each time until all of `size` are counted."""
    count = first
    while count < size:
        yield count
        count *= 4
    if size:
        yield size
