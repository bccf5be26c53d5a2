"""Beam search: the most likely texts that a search of bounded width finds.

The rules are those of transformers (SPEC.md S-B1 ... S-B5). Where they leave something open: no placeholder is ever
returned, equal scores are ordered by beam and token id, and texts may also end at strings and patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.engine.draw_steps import DrawSteps, run
from tirage.engine.request import EngineRequest
from tirage.engine.sample import GrowingSample
from tirage.engine.scorer import Beam, Candidate, ClosingChecks, Scorer, failure_of
from tirage.engine.step_time import StepTime
from tirage.errors import ParamsError
from tirage.models import StepModel
from tirage.params import FIELDS, BeamSearchParams, SamplingParams
from tirage.semantics import EDITS
from tirage.text import Stop, Tokenizer

_NOT_FOR_BEAMS = (
    "n", "best_of", "seed", "max_tokens", "ignore_eos", "include_stop_str_in_output", "dynatemp_range", "forcing",
    "return_kept", "max_kept_ids", "watermark",
)  # fmt: skip
"""Sampling parameters that say how to draw, or that BeamSearchParams has too."""


def sampling_of(beams: BeamSearchParams, sampling: SamplingParams | None) -> SamplingParams:
    """The parameters of a hypothesis: stops, penalties, masks and processors from `sampling`, the rest from `beams`.

    Raises ParamsError for a parameter that says how to draw, as nothing is drawn, and for one that `beams` sets.
    """
    given = SamplingParams() if sampling is None else sampling
    if not isinstance(given, SamplingParams):
        raise ParamsError(f"sampling must be a SamplingParams or None, got {type(given).__name__}")
    given = given.unwrapped
    for name, spec in FIELDS.items():
        value = getattr(given, name)
        filters = spec.stage is not None and spec.stage not in EDITS
        agreed = value in (spec.default, getattr(beams, name, spec.default))
        if (filters or name in _NOT_FOR_BEAMS) and not agreed:
            rule = f"{name} must keep its default {spec.default!r} in a beam search, which draws nothing, got {value!r}"
            raise ParamsError(f"{rule}; leave it out{' or set it in BeamSearchParams' if hasattr(beams, name) else ''}")
    return given.replace(
        temperature=beams.temperature or 1.0,
        max_tokens=beams.max_tokens,
        ignore_eos=beams.ignore_eos,
        include_stop_str_in_output=beams.include_stop_str_in_output,
        seed=0,
    )


ENTRIES_AT_ONCE = 32
"""Hypotheses whose logprob entries are drawn together: there may be time for no more in a step."""


@dataclass(slots=True)
class Longer:
    """Hypotheses that are one token longer, made so far from the first `count` of the `candidates`, best first.

    `most` is how many candidates were asked for: few are needed where few hypotheses end. `chosen` go on and `ended`
    have ended, each with the beam that it continues; `accepts_more` says whether ended ones may be added. The first
    `entered` of both have their logprob entries.
    """

    accepts_more: bool
    candidates: Sequence[Candidate] = ()
    most: int = 0
    count: int = 0
    chosen: list[tuple[Candidate, GrowingSample]] = field(default_factory=list)
    ended: list[tuple[GrowingSample, Beam]] = field(default_factory=list)
    entered: int = 0


class BeamSearch:
    """The beam search of one prompt: `step` chooses the beams that go on, whose tokens the scheduler then decodes.

    `running` are the beams that go on, best first; `logits` float32 [V] are those after the prompt. `_ended` holds at
    most `beam_width` hypotheses as (score, sample), best first. `_improvable` turns False for good once no running beam
    can still beat them.
    """

    def __init__(
        self, model: StepModel, tokenizer: Tokenizer, request: EngineRequest, *, row: Any, logits: NDArray[np.float32]
    ) -> None:
        assert request.beams is not None
        self._model, self._request, self._beams = model, request, request.beams
        self._scorer = Scorer(request, tokenizer, beams=request.beams, vocab_size=model.vocab_size)
        self.running = [Beam(sample=request.samples[0], row=row, logits=logits)]
        self._ended: list[tuple[float, GrowingSample]] = []
        self._improvable = True
        self._failure = Stop(kind="no_allowed_token")
        self._longer: Longer | None = None

    @property
    def finished(self) -> bool:
        """Whether the search has ended."""
        return not self.running or not self._improvable or (self._full and self._beams.early_stopping is True)

    @property
    def undecoded(self) -> list[Beam]:
        """The running beams whose last token is yet to be decoded, best first."""
        return [beam for beam in self.running if beam.logits is None]

    @property
    def unlisted(self) -> list[Beam]:
        """The running beams whose next tokens are yet to be listed, and can be, best first."""
        return [beam for beam in self.running if beam.listed is None and beam.logits is not None]

    def keep_logits(self) -> None:
        """Copies the logits of running beams that are part of those of a whole step, which the model may write to."""
        for beam in self.running:
            if beam.logits is not None and beam.logits.base is not None:
                beam.logits = beam.logits.copy()

    def step(self, time: StepTime, *, most: int | None = None) -> bool:
        """Lists the next tokens of beams, of `most` at once; True once all are listed and the search is a token longer.

        What follows on the lists takes the time that is left in the step. A search may so be spread over several steps
        of the engine; its result is the same.
        """
        return run(self.draw_steps(time, most=most))

    def draw_steps(self, time: StepTime, *, most: int | None = None) -> DrawSteps[bool]:
        """A `step` whose draws may be made in another thread."""
        ready = [beam for beam in self.unlisted[:most] if beam.is_masked]
        if ready:
            yield from self._scorer.list_next(ready)
        if any(beam.listed is None for beam in self.running):
            return False
        if self._longer is None:
            self._longer = Longer(accepts_more=not (self._full and self._beams.early_stopping is True))
        longer = self._longer
        while not self._is_enough(longer):
            if longer.count == len(longer.candidates) and not (yield from self._add_candidates(longer, time)):
                return False
            if not self._lengthen(longer, time):
                return False
        if not (yield from self._add_entries(longer, time)):
            return False
        self._longer = None
        self._go_on(longer)
        return True

    def _is_enough(self, longer: Longer) -> bool:
        """Whether no more hypotheses are needed, or there are none."""
        width = self._beams.beam_width
        if len(longer.chosen) == width and longer.count >= width:
            return True
        # Where fewer candidates were found than asked for, there are no others.
        is_last = len(longer.candidates) < longer.most or longer.count == self._scorer.limit
        return is_last and longer.count == len(longer.candidates)

    def _add_candidates(self, longer: Longer, time: StepTime) -> DrawSteps[bool]:
        """Adds the best candidates of the running beams behind those that there are; False where a step lacks time."""
        checks, most = ClosingChecks(time), 4 * longer.most or 2 * self._beams.beam_width
        late = checks.late(self.running)
        if late:
            yield from self._scorer.close(late)
        candidates = None if late is None else self._scorer.candidates(self.running, most, checks)
        if candidates is None:
            return False
        longer.candidates, longer.most = candidates, most
        return True

    def _lengthen(self, longer: Longer, time: StepTime) -> bool:
        """Makes hypotheses of the candidates, best first, while there is time in a step and more are needed.

        Those that end are added to the ended ones. False where there was no time.
        """
        width = self._beams.beam_width
        while longer.count < len(longer.candidates) and not self._is_enough(longer):
            if not time.is_left():
                return False
            candidate = longer.candidates[longer.count]
            longer.count += 1
            parent = self.running[candidate.parent]
            sample = parent.sample.fork()
            sample.accept(candidate.token_id, -candidate.cost - parent.total)
            if sample.stop is None:
                longer.chosen.append((candidate, sample))
            elif longer.count <= width and longer.accepts_more and self._improvable:
                longer.ended.append((sample, parent))
                self._add_ended(-candidate.cost, sample)
        return True

    def _add_entries(self, longer: Longer, time: StepTime) -> DrawSteps[bool]:
        """Adds the logprob entries of the hypotheses, if the request asks for any; False where a step lacks time."""
        chosen = longer.chosen[: self._beams.beam_width]
        pairs = [*longer.ended, *((sample, self.running[candidate.parent]) for candidate, sample in chosen)]
        while self._scorer.lists_entries and longer.entered < len(pairs):
            if not time.is_left():
                return False
            part = pairs[longer.entered : longer.entered + ENTRIES_AT_ONCE]
            yield from self._scorer.add_entries(part)
            longer.entered += len(part)
        return True

    def _go_on(self, longer: Longer) -> None:
        """Goes on with the hypotheses that did not end; the rows of other beams are freed."""
        self._request.mark_token()
        parents, chosen = self.running, longer.chosen[: self._beams.beam_width]
        self._failure = failure_of(parents) or Stop(kind="no_allowed_token")
        self.running = self._continue(parents, chosen)
        self._check_improvable()
        self._request.live = [*(beam.sample for beam in self.running), *(sample for _, sample in self._ended)]

    def finish(self, stop: Stop | None = None) -> None:
        """Makes the ended hypotheses the samples of the request; with a `stop`, which ends the search, the best beam.

        A beam whose logits allow no token is dropped; if nothing is left at all, there is one sample with finish reason
        "error".
        """
        best = self.running[0] if self.running else Beam(sample=self._request.samples[0])
        if stop is not None or not self._ended:
            best.sample.fail(self._failure if stop is None else stop)
            self._ended = [(self._score(best.total, len(best.sample.token_ids)), best.sample)]
        self._request.set_hypotheses(self._ended[: self._beams.returned])

    @property
    def _full(self) -> bool:
        return len(self._ended) >= self._beams.beam_width

    def _score(self, total: float, length: int) -> float:
        """A sum of log-probabilities divided by the length to the power of the length penalty."""
        return total / max(length, 1) ** self._beams.length_penalty

    def _add_ended(self, total: float, sample: GrowingSample) -> None:
        """Adds a hypothesis that ended and drops the worst one beyond `beam_width`; of equal ones the last."""
        self._ended.append((self._score(total, len(sample.token_ids)), sample))
        self._ended.sort(key=lambda pair: -pair[0])
        del self._ended[self._beams.beam_width :]

    def _check_improvable(self) -> None:
        """Notes whether the best beam could still beat the worst ended hypothesis, by the estimate of transformers."""
        if not self.running or not self._full:
            return
        best = self.running[0]
        never = self._beams.early_stopping == "never" and self._beams.length_penalty > 0
        length = self._request.limit if never else len(best.sample.token_ids)
        self._improvable = self._improvable and self._score(best.total, length) > self._ended[-1][0]

    def _continue(self, parents: Sequence[Beam], chosen: Sequence[tuple[Candidate, GrowingSample]]) -> list[Beam]:
        """The beams of the chosen candidates, whose tokens are yet to be decoded; parents without any are dropped."""
        last = {candidate.parent: index for index, (candidate, _) in enumerate(chosen)}
        # First, because the forks below would copy the caches of rows that share a batch with these.
        drop(self._model, [beam for index, beam in enumerate(parents) if index not in last])
        beams = []
        for index, (candidate, sample) in enumerate(chosen):
            row = parents[candidate.parent].row
            # The last candidate of a parent takes its row, those before it take forks.
            row = row if last[candidate.parent] == index else self._model.fork(row)
            beams.append(Beam(sample=sample, total=-candidate.cost, row=row))
        return beams


def drop(model: StepModel, beams: Sequence[Beam]) -> None:
    """Frees the rows of beams that do not go on."""
    for beam in beams:
        model.close(beam.row, reuse=False)
