"""What a beam search ranks by: log-probabilities of next tokens under the stages of one request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.draw import Status
from tirage.engine.logprobs import entry, top_entries
from tirage.engine.request import EngineRequest
from tirage.engine.sample import GrowingSample, stack_masks
from tirage.history import History
from tirage.params import BeamSearchParams, SamplingParams
from tirage.sampling import on_host, outcomes, sample
from tirage.sampling_batch import SamplingBatch, SamplingRow
from tirage.semantics import resolve
from tirage.text import Stop, Tokenizer

_OK = Status.ok


@dataclass(slots=True, kw_only=True)
class Beam:
    """A text in the search: its sample, the sum of its tokens' log-probabilities, its row, and next
    logits [V] with the mask of what may follow."""

    sample: GrowingSample
    total: float = 0.0
    row: Any = None
    logits: Any = None
    mask: NDArray[np.int32] | None = None


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """A beam with one more token; the smallest is the best: higher total, then lower beam, then lower token."""

    cost: float
    parent: int
    token_id: int


class Scorer:
    """Log-probabilities of next tokens under one request's stages, and the entries it asked for.

    Under the `hf` semantics the stages edit log-probabilities, as transformers' beams do; under any other they edit
    logits, and the log-probabilities are of what comes out.
    """

    def __init__(
        self, request: EngineRequest, tokenizer: Tokenizer, *, beams: BeamSearchParams, vocab_size: int
    ) -> None:
        params = request.params
        self._vocab_size, self._tokenizer, self._request = vocab_size, tokenizer, request
        ends = len(params.stop_token_ids) + (0 if params.ignore_eos else len(params.eos_token_ids))
        # Enough that `beam_width` go on when every best one ends.
        self._count = min(max(2, 1 + ends) * beams.beam_width, vocab_size)
        self._limit = max(2, 1 + ends) * beams.beam_width
        self._edits_logprobs = resolve(params.semantics).name == "hf"

    def candidates(self, parents: Sequence[Beam]) -> tuple[list[Candidate], Stop | None]:
        """The best continuations of all beams, best first, and why there are none for some beam."""
        for beam in parents:
            beam.mask = beam.sample.mask(self._vocab_size)
        listed = self._listed(parents)
        late = [beam for beam, (found, status) in zip(parents, listed, strict=True) if not found and status is _OK]
        for beam in late:
            # No good token lets its constraint be closed in time: the way to the end is all that is left.
            beam.mask = beam.sample.closing_mask(self._vocab_size)
        listed = self._listed(parents) if late else listed
        stuck = [
            beam
            for beam, (found, status) in zip(parents, listed, strict=True)
            if not found and status is Status.no_allowed_token and beam.sample.is_forced
        ]
        for beam in stuck:
            beam.mask = beam.sample.other_mask(self._vocab_size, last=True)
        listed = self._listed(parents) if stuck else listed
        found, failure = [], None
        for index, (beam, (pairs, status)) in enumerate(zip(parents, listed, strict=True)):
            found += [Candidate(-(beam.total + logprob), index, token) for token, logprob in pairs]
            if status is not _OK:
                failure = beam.sample.blame(Stop(kind=status.name))  # type: ignore[arg-type]
        return sorted(found)[: self._limit], failure

    def _listed(self, parents: Sequence[Beam]) -> list[tuple[list[tuple[int, float]], Status]]:
        """For each beam its best next tokens with their log-probabilities; none of a beam whose draw fails."""
        listed = self._after_logprobs(parents) if self._edits_logprobs else self._after_logits(parents)
        return [
            (
                [
                    (int(token), float(logprob))
                    for token, logprob in zip(tokens, logprobs, strict=True)
                    if status is _OK and token >= 0 and logprob > -np.inf and beam.sample.keeps(int(token))
                ],
                status,
            )
            for beam, (tokens, logprobs, status) in zip(parents, listed, strict=True)
        ]

    def note(self, sample: GrowingSample, parent: Beam) -> None:
        """Adds the logprob entry of the newest token, where the request asks for entries."""
        params = self._request.params
        if params.logprobs is None and not params.logprob_token_ids:
            return
        token = sample.token_ids[-1]
        asked = params.replace(
            logprobs=min(max(params.logprobs or 0, self._count), self._vocab_size),
            logprob_token_ids=(token, *params.logprob_token_ids),
        )
        drawn = self._draw([parent], asked)
        assert drawn.given_logprobs is not None
        given = dict(zip(asked.logprob_token_ids, map(float, drawn.given_logprobs[0]), strict=True))
        above = np.asarray(drawn.top_logprobs[0]) > np.float32(given[token])
        row = on_host(parent.logits)[0]
        rank = np.count_nonzero(row > row[token]) if params.logprobs_mode == "raw" else np.count_nonzero(above)
        sample.entries.append(
            entry(
                self._tokenizer,
                token,
                given[token],
                1 + int(rank),
                offset=parent.sample.offset,
                top=top_entries(drawn, 0, params.logprobs or 0, self._tokenizer),
                given=tuple((i, given[i]) for i in params.logprob_token_ids),
            )
        )

    def _after_logits(self, parents: Sequence[Beam]) -> list[tuple[Any, Any, Status]]:
        drawn = self._draw(parents, self._request.params.replace(logprobs=self._count, logprobs_mode="processed"))
        return [
            (drawn.top_token_ids[row], drawn.top_logprobs[row], Status(int(drawn.status[row])))
            for row in range(len(parents))
        ]

    def _after_logprobs(self, parents: Sequence[Beam]) -> list[tuple[Any, Any, Status]]:
        logprobs = np.stack([self._log_softmax(on_host(beam.logits)[0]) for beam in parents])
        params = self._request.params.replace(temperature=1.0)
        history = [History.of(*pair, vocab_size=self._vocab_size) for pair in self._history(parents)]
        frame = SamplingBatch.of([SamplingRow.of(params, each) for each in history], self._vocab_size)
        listed = []
        for result in outcomes(logprobs, frame, self._masks(parents)):
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

    def _draw(self, parents: Sequence[Beam], params: SamplingParams) -> Any:
        logits = np.concatenate([on_host(beam.logits) for beam in parents])
        return sample(logits, params, history=self._history(parents), mask=self._masks(parents))

    def _masks(self, parents: Sequence[Beam]) -> NDArray[np.int32] | None:
        return stack_masks([beam.mask for beam in parents], self._vocab_size)

    def _history(self, parents: Sequence[Beam]) -> list[tuple[list[int], list[int]]]:
        return [(self._request.prompt_ids, beam.sample.token_ids) for beam in parents]
