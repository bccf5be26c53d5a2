"""Beam search: of all texts, the likeliest that a search of bounded width finds.

The rules are those of transformers (SPEC.md S-B1 ... S-B5), with what they leave open settled: no placeholder is
ever returned, equal scores go by beam and token id, and texts may end at strings and patterns too.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.draw import Status
from tirage.engine.completion import Completion, Sample
from tirage.engine.engine import Engine
from tirage.engine.logprobs import PromptScores, entry, top_entries
from tirage.engine.request import Request
from tirage.engine.sample import GrowingSample, stack_masks
from tirage.errors import ParamsError
from tirage.history import History
from tirage.models import StepModel
from tirage.params import FIELDS, BeamSearchParams, SamplingParams
from tirage.rows import Frame, RowState
from tirage.sampling import on_host, outcomes, sample
from tirage.semantics import EDITS, resolve
from tirage.text import Stop, Tokenizer

_OK = Status.ok
_log = logging.getLogger("tirage")
_BY_BEAMS = ("n", "best_of", "seed", "max_tokens", "ignore_eos", "include_stop_str_in_output", "dynatemp_range")
"""Sampling parameters that say how to draw, or that BeamSearchParams say themselves."""


@dataclass(slots=True, kw_only=True)
class Beam:
    """A text in the search: its sample, the sum of its tokens' log-probabilities, its row, and next
    logits [1, V] with the mask of what may follow."""

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


@dataclass(slots=True, kw_only=True)
class Search:
    """The state of one prompt's search.

    `finished` holds at most `beam_width` (score, sample), best first. `improvable` turns false for good once the
    running beams cannot improve on them.
    """

    beams: BeamSearchParams
    request: Request
    running: list[Beam]
    finished: list[tuple[float, GrowingSample]] = field(default_factory=list)
    improvable: bool = True
    failure: Stop | None = None

    @property
    def full(self) -> bool:
        """Whether every place among the finished is taken."""
        return len(self.finished) >= self.beams.beam_width

    @property
    def over(self) -> bool:
        """Whether the search has ended."""
        return not self.running or not self.improvable or (self.full and self.beams.early_stopping is True)

    def score(self, total: float, length: int) -> float:
        """A total divided by the length to the power of the penalty."""
        return total / max(length, 1) ** self.beams.length_penalty

    def finish(self, total: float, sample: GrowingSample) -> None:
        """Takes a finished text, unless better ones fill every place; of equals the earlier stays."""
        self.finished.append((self.score(total, len(sample.token_ids)), sample))
        self.finished.sort(key=lambda pair: -pair[0])
        del self.finished[self.beams.beam_width :]

    def look_ahead(self, longest: int) -> None:
        """Notes whether the best running beam could still beat the worst finished text, as transformers guesses it."""
        if not self.running or not self.full:
            return
        best = self.running[0]
        never = self.beams.early_stopping == "never" and self.beams.length_penalty > 0
        length = longest if never else len(best.sample.token_ids)
        self.improvable = self.improvable and self.score(best.total, length) > self.finished[-1][0]


def sampling_of(beams: BeamSearchParams, sampling: SamplingParams | None) -> SamplingParams:
    """The parameters of one hypothesis: stops, penalties, masks and processors of `sampling`, the rest of `beams`.

    Raises ParamsError for a parameter that says how to draw, since nothing is drawn, and for one that `beams` say.
    """
    given = SamplingParams() if sampling is None else sampling
    if not isinstance(given, SamplingParams):
        raise ParamsError(f"sampling must be a SamplingParams or None, got {type(given).__name__}")
    for name, spec in FIELDS.items():
        value = getattr(given, name)
        filters = spec.stage is not None and spec.stage not in EDITS
        if (filters or name in _BY_BEAMS) and value != spec.default:
            raise ParamsError(
                f"{name} must keep its default {spec.default!r} in a beam search, which draws nothing, got {value!r}; "
                "leave it out or set it in BeamSearchParams"
            )
    return given.replace(
        temperature=beams.temperature or 1.0,
        max_tokens=beams.max_tokens,
        ignore_eos=beams.ignore_eos,
        include_stop_str_in_output=beams.include_stop_str_in_output,
        seed=0,
    )


def search(engine: Engine, tokenizer: Tokenizer, request: Request, beams: BeamSearchParams) -> Completion:
    """The hypotheses of one prompt as `samples`, best first, each with its `score`; at least one, no more than asked.

    Fewer than `beam_width` come back when that many texts do not exist. Logits that leave no token end a beam; when
    no text is left at all, or the model fails, one comes back with finish reason "error". Other requests take turns
    with the search, step by step.
    """
    first = request.samples[0]
    state = Search(beams=beams, request=request, running=[])
    if first.stop is not None and not request.inputs.score:
        return answer(state, [(0.0, first)])
    model, scorer = engine.model, Scorer(engine.model, tokenizer, request, beams)
    try:
        engine.call(lambda: begin(state, model, tokenizer))
        while not state.over:
            engine.call(lambda: step(state, scorer, model))
    except Exception as error:
        _log.error("a beam search ended with an error: %s: %s", type(error).__name__, error, exc_info=error)
        state.failure = Stop(kind="model_failed", matched_text=f"{type(error).__name__}: {error}")
        state.finished.clear()
    finally:
        engine.call(lambda: drop(model, state.running))
    if first.stop is not None and state.failure is None:
        return answer(state, [(0.0, first)])
    return answer(state, state.finished or failed(state, first))


def begin(state: Search, model: StepModel, tokenizer: Tokenizer) -> None:
    """Reads the prompt; the search starts from the one beam that has no token yet."""
    request = state.request
    beam = Beam(sample=request.samples[0], row=model.open(request.inputs))
    state.running = [beam] if beam.sample.stop is None else []
    request.cached_tokens = beam.row.cached
    scores = PromptScores(request, tokenizer) if request.inputs.score else None
    while beam.row.left:
        logits = model.read(beam.row)
        if scores is not None:
            scores.add(logits)
        beam.logits = logits[-1:]
    request.prompt_logprobs = None if scores is None else scores.entries
    if beam.sample.stop is not None:
        drop(model, [beam])


def drop(model: StepModel, beams: Sequence[Beam]) -> None:
    """Frees the rows of beams that do not go on."""
    for beam in beams:
        model.close(beam.row, reuse=False)


def failed(state: Search, first: GrowingSample) -> list[tuple[float, GrowingSample]]:
    """What is returned when no hypothesis could end: the text so far of the best, as an error."""
    first.fail(state.failure or Stop(kind="no_allowed_token"))
    return [(-np.inf, first)]


def step(state: Search, scorer: Scorer, model: StepModel) -> None:
    """One token further: the best candidates end or run on, and the model reads those that run on."""
    state.request.mark_token()
    parents = state.running
    candidates, state.failure = scorer.candidates(parents)
    running: list[tuple[Candidate, GrowingSample]] = []
    width, room = state.beams.beam_width, not (state.full and state.beams.early_stopping is True)
    for rank, candidate in enumerate(candidates):
        if len(running) == width and rank >= width:
            break
        sample = parents[candidate.parent].sample.fork()
        sample.accept(candidate.token_id, -candidate.cost - parents[candidate.parent].total)
        if sample.stop is None:
            running.append((candidate, sample))
        elif rank < width and room and state.improvable:
            scorer.note(sample, parents[candidate.parent])
            state.finish(-candidate.cost, sample)
    for candidate, sample in running:
        scorer.note(sample, parents[candidate.parent])
    state.running = descend(model, parents, running[:width])
    if state.running:
        logits = model.decode([beam.sample.token_ids[-1] for beam in state.running], [b.row for b in state.running])
        for beam, after in zip(state.running, logits, strict=True):
            beam.logits = after[None]
    state.look_ahead(state.request.limit)


def descend(model: StepModel, parents: Sequence[Beam], chosen: Sequence[tuple[Candidate, GrowingSample]]) -> list[Beam]:
    """The beams of the chosen candidates, whose tokens the model has yet to read; the other parents are dropped."""
    last = {candidate.parent: index for index, (candidate, _) in enumerate(chosen)}
    # Dropped first: rows that leave a group later would take copies of their caches along.
    drop(model, [beam for index, beam in enumerate(parents) if index not in last])
    beams = []
    for index, (candidate, text) in enumerate(chosen):
        row = parents[candidate.parent].row
        # The last to use a row may have it; the others, before, take copies.
        row = row if last[candidate.parent] == index else model.fork(row)
        beams.append(Beam(sample=text, total=-candidate.cost, row=row))
    return beams


class Scorer:
    """Log-probabilities of next tokens under one request's stages, and the entries it asked for.

    Under the `hf` semantics the stages edit log-probabilities, as transformers' beams do; under any other they edit
    logits, and the log-probabilities are of what comes out.
    """

    def __init__(self, model: StepModel, tokenizer: Tokenizer, request: Request, beams: BeamSearchParams) -> None:
        params = request.params
        self._model, self._tokenizer, self._request = model, tokenizer, request
        ends = len(params.stop_token_ids) + (0 if params.ignore_eos else len(params.eos_token_ids))
        # Enough that `beam_width` go on when every best one ends.
        self._count = min(max(2, 1 + ends) * beams.beam_width, model.vocab_size)
        self._limit = max(2, 1 + ends) * beams.beam_width
        self._edits_logprobs = resolve(params.semantics).name == "hf"

    def candidates(self, parents: Sequence[Beam]) -> tuple[list[Candidate], Stop | None]:
        """The best continuations of all beams, best first, and why there are none for some beam."""
        for beam in parents:
            beam.mask = beam.sample.mask(self._model.vocab_size)
        listed = self._listed(parents)
        late = [beam for beam, (found, status) in zip(parents, listed, strict=True) if not found and status is _OK]
        for beam in late:
            # No good token lets its constraint be closed in time: the way to the end is all that is left.
            beam.mask = beam.sample.closing_mask(self._model.vocab_size)
        listed = self._listed(parents) if late else listed
        stuck = [
            beam
            for beam, (found, status) in zip(parents, listed, strict=True)
            if not found and status is Status.no_allowed_token and beam.sample.is_forced
        ]
        for beam in stuck:
            beam.mask = beam.sample.other_mask(self._model.vocab_size, last=True)
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
            logprobs=min(max(params.logprobs or 0, self._count), self._model.vocab_size),
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
        history = [History.of(*pair, vocab_size=self._model.vocab_size) for pair in self._history(parents)]
        frame = Frame.of([RowState.of(params, each) for each in history], self._model.vocab_size)
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
        return stack_masks([beam.mask for beam in parents], self._model.vocab_size)

    def _history(self, parents: Sequence[Beam]) -> list[tuple[list[int], list[int]]]:
        return [(self._request.prompt_ids, beam.sample.token_ids) for beam in parents]


def answer(state: Search, found: Sequence[tuple[float, GrowingSample]]) -> Completion:
    """The completion of a search, with its hypotheses in order."""
    samples: list[Sample] = [sample.freeze(index=rank, score=score) for rank, (score, sample) in enumerate(found)]
    return state.request.completion(samples)
