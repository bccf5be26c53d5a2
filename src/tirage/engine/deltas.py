"""A request's progress as deltas, made in the engine's thread so that each shows one moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tirage.engine.completion import Delta
from tirage.engine.request import EngineRequest
from tirage.engine.sample import GrowingSample
from tirage.params import RequestOutputKind


class Deltas:
    """Turns each move of a request's samples into a Delta, in the kind it asked for, and passes it on.

    After the last delta `put` is called with None. With `whole` there is one delta, whatever the kind.
    """

    def __init__(self, request: EngineRequest, put: Callable[[Delta | None], object], *, whole: bool = False) -> None:
        self._request, self._put = request, put
        self._kind = RequestOutputKind.FINAL_ONLY if whole else request.params.output_kind
        self._shown = {sample.index: (0, 0) for sample in request.samples}
        self._open = len(self._shown)

    def __call__(self, sample: GrowingSample) -> None:
        """Notes that a sample moved or ended."""
        self._open -= sample.stop is not None
        delta = self._delta_of(sample)
        if delta is not None:
            self._put(delta)
        if not self._open:
            self._put(None)

    def _delta_of(self, sample: GrowingSample) -> Delta | None:
        if self._kind is RequestOutputKind.FINAL_ONLY:
            return None if self._open else make_delta(self._request, self._request.samples[0], 0, 0, whole=True)
        chars, tokens = self._shown[sample.index]
        if self._request.params.detokenize and len(sample.text) == chars and sample.stop is None:
            return None
        self._shown[sample.index] = (len(sample.text), len(sample.token_ids))
        whole = self._kind is RequestOutputKind.CUMULATIVE or not self._open
        return make_delta(self._request, sample, chars, tokens, whole=whole)


class BeamDeltas:
    """Turns a beam search into deltas: its best text as far as it is certain, and at the end what is left.

    Certain is what all hypotheses that may still come back begin with. Those deltas have index 0. When the search is
    over, each hypothesis has one delta more, with a finish reason, best first: the best's brings the rest of its text,
    the others' the whole of theirs, and the last one has the completion, whatever the kind.
    """

    def __init__(self, request: EngineRequest, put: Callable[[Delta | None], object]) -> None:
        self._request, self._put = request, put
        self._chars = self._tokens = 0

    def __call__(self, sample: GrowingSample) -> None:
        """Notes that the search has moved or ended, with its best hypothesis."""
        if sample.stop is None:
            self._say_certain()
        else:
            self._say_rest()

    def _say_certain(self) -> None:
        live = self._request.live
        chars = agreed([each.text for each in live], self._chars)
        tokens = agreed([each.token_ids for each in live], self._tokens)
        if chars == self._chars and (self._request.params.detokenize or tokens == self._tokens):
            return
        first, said, drawn = live[0], slice(self._chars, chars), slice(self._tokens, tokens)
        self._chars, self._tokens = chars, tokens
        entries = tuple(first.entries[drawn]) if first.entries else None
        self._put(Delta(text=first.text[said], token_ids=tuple(first.token_ids[drawn]), logprobs=entries))

    def _say_rest(self) -> None:
        samples = self._request.samples
        for sample in samples:
            chars, tokens = (self._chars, self._tokens) if sample is samples[0] else (0, 0)
            self._put(make_delta(self._request, sample, chars, tokens, whole=sample is samples[-1]))
        self._put(None)


def agreed(values: Sequence[Sequence[object]], start: int) -> int:
    """The length of what all values begin with; they are known to agree up to `start`."""
    shortest = min(map(len, values), default=start)
    differing = (at for at in range(start, shortest) if any(value[at] != values[0][at] for value in values))
    return next(differing, max(shortest, start))


def deltas_of(request: EngineRequest, put: Callable[[Delta | None], object], *, whole: bool) -> Deltas | BeamDeltas:
    """What turns a request's progress into deltas; `whole` asks for one, at the end."""
    if request.beams is None or whole or request.params.output_kind is RequestOutputKind.FINAL_ONLY:
        return Deltas(request, put, whole=whole)
    return BeamDeltas(request, put)


def make_delta(request: EngineRequest, sample: GrowingSample, chars: int, tokens: int, *, whole: bool) -> Delta:
    """What a sample has beyond its first `chars` characters and `tokens` tokens."""
    return Delta(
        text=sample.text[chars:],
        token_ids=tuple(sample.token_ids[tokens:]),
        index=sample.index,
        logprobs=tuple(sample.entries[tokens:]) if sample.entries else None,
        finish_reason=sample.finish_reason,
        stop=sample.stop,
        completion=request.completion() if whole else None,
    )
