"""A request's progress as deltas, made in the engine's thread so that each shows one moment."""

from __future__ import annotations

from collections.abc import Callable

from tirage.engine.completion import Delta
from tirage.engine.request import Request
from tirage.engine.sample import GrowingSample
from tirage.params import RequestOutputKind


class Deltas:
    """Turns each move of a request's samples into a Delta, in the kind it asked for, and passes it on.

    After the last delta `put` is called with None. With `whole` there is one delta, whatever the kind.
    """

    def __init__(self, request: Request, put: Callable[[Delta | None], object], *, whole: bool = False) -> None:
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


def make_delta(request: Request, sample: GrowingSample, chars: int, tokens: int, *, whole: bool) -> Delta:
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
