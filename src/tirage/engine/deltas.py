"""The progress of a request as deltas, made in the engine's thread so that each shows one moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tirage.engine.completion import Delta
from tirage.engine.request import EngineRequest
from tirage.engine.sample import GrowingSample
from tirage.params import RequestOutputKind

Put = Callable[[Delta | None], object]
"""Takes each delta, and None after the last."""


class DeltaBuilder:
    """The listener of a request: turns each step of its samples into a Delta of the kind that the request asks for.

    With `whole` there is one delta, at the end, whatever the kind.
    """

    def __init__(self, request: EngineRequest, put: Put, *, whole: bool = False) -> None:
        self._request, self._put = request, put
        self._kind = RequestOutputKind.FINAL_ONLY if whole else request.params.output_kind
        self._sent: dict[int, tuple[int, int]] = {}
        self._unfinished = request.sample_count

    def __call__(self, sample: GrowingSample) -> None:
        """Passes on what is new of a sample that got a token or ended."""
        self._unfinished -= sample.stop is not None
        delta = self._delta_of(sample)
        if delta is not None:
            self._put(delta)
        if not self._unfinished:
            self._put(None)

    def _delta_of(self, sample: GrowingSample) -> Delta | None:
        if self._kind is RequestOutputKind.FINAL_ONLY:
            return None if self._unfinished else make_delta(self._request, self._request.samples[0], 0, 0, whole=True)
        chars, tokens = self._sent.get(sample.index, (0, 0))
        if self._request.params.detokenize and len(sample.text) == chars and sample.stop is None:
            return None
        self._sent[sample.index] = (len(sample.text), len(sample.token_ids))
        whole = self._kind is RequestOutputKind.CUMULATIVE or not self._unfinished
        return make_delta(self._request, sample, chars, tokens, whole=whole)


class BeamDeltaBuilder:
    """The listener of a beam search: deltas of its best text as far as it is certain, and at the end of all the rest.

    Certain is the common beginning of all hypotheses that may still be returned; its deltas have index 0. At the end
    each hypothesis has one more delta, with a finish reason, best first: that of the best brings the rest of its text,
    those of the others their whole texts, and the last one has the completion, whatever the kind.
    """

    def __init__(self, request: EngineRequest, put: Put) -> None:
        self._request, self._put = request, put
        self._chars = self._tokens = 0

    def __call__(self, sample: GrowingSample) -> None:
        """Passes on what is new after a step or at the end; `sample` is the best hypothesis."""
        if sample.stop is None:
            self._put_certain()
        else:
            self._put_rest()

    def _put_certain(self) -> None:
        live = self._request.live
        chars = common_length([each.text for each in live], self._chars)
        tokens = common_length([each.token_ids for each in live], self._tokens)
        # Log-probabilities come with their text: other tokens may spell what follows in some of the hypotheses.
        chars = min(
            chars, next((each.entries[tokens].offset or 0 for each in live if len(each.entries) > tokens), chars)
        )
        if chars == self._chars and (self._request.params.detokenize or tokens == self._tokens):
            return
        best, new_chars, new_tokens = live[0], slice(self._chars, chars), slice(self._tokens, tokens)
        self._chars, self._tokens = chars, tokens
        entries = tuple(best.entries[new_tokens]) if best.entries else None
        self._put(Delta(text=best.text[new_chars], token_ids=tuple(best.token_ids[new_tokens]), logprobs=entries))

    def _put_rest(self) -> None:
        samples = self._request.samples
        for sample in samples:
            chars, tokens = (self._chars, self._tokens) if sample is samples[0] else (0, 0)
            self._put(make_delta(self._request, sample, chars, tokens, whole=sample is samples[-1]))
        self._put(None)


def common_length(values: Sequence[Sequence[object]], start: int) -> int:
    """The length of the common beginning of all values, which are known to agree up to `start`."""
    shortest = min(map(len, values), default=start)
    differing = (at for at in range(start, shortest) if any(value[at] != values[0][at] for value in values))
    return next(differing, max(shortest, start))


def listener_of(request: EngineRequest, put: Put, *, whole: bool) -> DeltaBuilder | BeamDeltaBuilder:
    """The listener that turns a request's progress into deltas; with `whole` there is one, at the end."""
    if request.beams is None or whole or request.params.output_kind is RequestOutputKind.FINAL_ONLY:
        return DeltaBuilder(request, put, whole=whole)
    return BeamDeltaBuilder(request, put)


def make_delta(request: EngineRequest, sample: GrowingSample, chars: int, tokens: int, *, whole: bool) -> Delta:
    """What a sample has after its first `chars` characters and `tokens` tokens; the completion too if `whole`."""
    return Delta(
        text=sample.text[chars:],
        token_ids=tuple(sample.token_ids[tokens:]),
        index=sample.index,
        logprobs=tuple(sample.entries[tokens:]) if sample.entries else None,
        records=tuple(sample.records[tokens:]) if sample.records else None,
        finish_reason=sample.finish_reason,
        stop=sample.stop,
        completion=request.completion() if whole else None,
    )
