"""Beam search: of all texts, the likeliest that a search of bounded width finds.

The rules are those of transformers (SPEC.md S-B1 ... S-B5), with what they leave open settled: no placeholder is
ever returned, equal scores go by beam and token id, and texts may end at strings and patterns too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.engine.request import EngineRequest
from tirage.engine.sample import GrowingSample
from tirage.engine.scorer import Beam, Candidate, Scorer
from tirage.errors import ParamsError
from tirage.models import StepModel
from tirage.params import FIELDS, BeamSearchParams, SamplingParams
from tirage.semantics import EDITS
from tirage.text import Stop, Tokenizer

_BY_BEAMS = ("n", "best_of", "seed", "max_tokens", "ignore_eos", "include_stop_str_in_output", "dynatemp_range")
"""Sampling parameters that say how to draw, or that BeamSearchParams say themselves."""


def sampling_of(beams: BeamSearchParams, sampling: SamplingParams | None) -> SamplingParams:
    """The parameters of one hypothesis: stops, penalties, masks and processors of `sampling`, the rest of `beams`.

    Raises ParamsError for a parameter that says how to draw, since nothing is drawn, and for one that `beams` say.
    """
    given = SamplingParams() if sampling is None else sampling
    if not isinstance(given, SamplingParams):
        raise ParamsError(f"sampling must be a SamplingParams or None, got {type(given).__name__}")
    given = given.unwrapped
    for name, spec in FIELDS.items():
        value = getattr(given, name)
        filters = spec.stage is not None and spec.stage not in EDITS
        agreed = value in (spec.default, getattr(beams, name, spec.default))
        if (filters or name in _BY_BEAMS) and not agreed:
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


class BeamSearch:
    """One prompt's search, a step at a time: `step` chooses the beams that go on, the scheduler reads them.

    `running` beams go on, best first. `_finished` holds at most `beam_width` (score, sample), best first.
    `_improvable` turns false for good once the running beams cannot improve on them.
    """

    def __init__(
        self, model: StepModel, tokenizer: Tokenizer, request: EngineRequest, *, row: Any, logits: NDArray[np.float32]
    ) -> None:
        assert request.beams is not None
        self._model, self._request, self._beams = model, request, request.beams
        self._scorer = Scorer(request, tokenizer, beams=request.beams, vocab_size=model.vocab_size)
        self.running = [Beam(sample=request.samples[0], row=row, logits=logits)]
        self._finished: list[tuple[float, GrowingSample]] = []
        self._improvable = True
        self._failure = Stop(kind="no_allowed_token")

    @property
    def over(self) -> bool:
        """Whether the search has ended."""
        return not self.running or not self._improvable or (self._full and self._beams.early_stopping is True)

    def step(self) -> None:
        """One token further: the best candidates end or run on; the rows of the others are freed."""
        self._request.mark_token()
        parents = self.running
        candidates, failure = self._scorer.candidates(parents)
        self._failure = failure or Stop(kind="no_allowed_token")
        going: list[tuple[Candidate, GrowingSample]] = []
        width, room = self._beams.beam_width, not (self._full and self._beams.early_stopping is True)
        for rank, candidate in enumerate(candidates):
            if len(going) == width and rank >= width:
                break
            parent = parents[candidate.parent]
            sample = parent.sample.fork()
            sample.accept(candidate.token_id, -candidate.cost - parent.total)
            if sample.stop is None:
                going.append((candidate, sample))
            elif rank < width and room and self._improvable:
                self._scorer.note(sample, parent)
                self._finish(-candidate.cost, sample)
        for candidate, sample in going[:width]:
            self._scorer.note(sample, parents[candidate.parent])
        self.running = self._descend(parents, going[:width])
        self._look_ahead()
        self._request.live = [*(beam.sample for beam in self.running), *(sample for _, sample in self._finished)]

    def settle(self, stop: Stop | None = None) -> None:
        """Makes the hypotheses the request's samples: those that ended or, with a stop, the best that was running.

        Logits that leave no token end a beam; when no text is left at all, one comes back with finish reason "error".
        """
        best = self.running[0] if self.running else Beam(sample=self._request.samples[0])
        if stop is not None or not self._finished:
            best.sample.fail(self._failure if stop is None else stop)
            self._finished = [(self._score(best.total, len(best.sample.token_ids)), best.sample)]
        self._request.settle(self._finished[: self._beams.returned])

    @property
    def _full(self) -> bool:
        return len(self._finished) >= self._beams.beam_width

    def _score(self, total: float, length: int) -> float:
        """A total divided by the length to the power of the penalty."""
        return total / max(length, 1) ** self._beams.length_penalty

    def _finish(self, total: float, sample: GrowingSample) -> None:
        """Takes a finished text, unless better ones fill every place; of equals the earlier stays."""
        self._finished.append((self._score(total, len(sample.token_ids)), sample))
        self._finished.sort(key=lambda pair: -pair[0])
        del self._finished[self._beams.beam_width :]

    def _look_ahead(self) -> None:
        """Notes whether the best running beam could still beat the worst finished text, as transformers guesses it."""
        if not self.running or not self._full:
            return
        best = self.running[0]
        never = self._beams.early_stopping == "never" and self._beams.length_penalty > 0
        length = self._request.limit if never else len(best.sample.token_ids)
        self._improvable = self._improvable and self._score(best.total, length) > self._finished[-1][0]

    def _descend(self, parents: Sequence[Beam], chosen: Sequence[tuple[Candidate, GrowingSample]]) -> list[Beam]:
        """The beams of the chosen candidates, whose tokens the model has yet to read; other parents are dropped."""
        last = {candidate.parent: index for index, (candidate, _) in enumerate(chosen)}
        # Dropped first: rows that leave a group later would take copies of their caches along.
        drop(self._model, [beam for index, beam in enumerate(parents) if index not in last])
        beams = []
        for index, (candidate, text) in enumerate(chosen):
            row = parents[candidate.parent].row
            # The last to use a row may have it; the others, before, take copies.
            row = row if last[candidate.parent] == index else self._model.fork(row)
            beams.append(Beam(sample=text, total=-candidate.cost, row=row))
        return beams


def drop(model: StepModel, beams: Sequence[Beam]) -> None:
    """Frees the rows of beams that do not go on."""
    for beam in beams:
        model.close(beam.row, reuse=False)
