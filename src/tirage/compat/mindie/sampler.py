"""Sampler and `sample`: the next token of each request, from MindIE's arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from tirage import sampling
from tirage.backends import find, type_name
from tirage.compat.mindie.data import SamplingData
from tirage.compat.mindie.host import opened
from tirage.compat.mindie.param import LogprobsMode, SamplingParam
from tirage.draw import Draw
from tirage.errors import ParamsError
from tirage.params import FIELDS

T = TypeVar("T")

_NO_DATA = SamplingData()
_NO_PARAM = SamplingParam()


@dataclass(frozen=True, slots=True)
class Sampler:
    """A sampler as `self.sampler` of MindIE's generator: a function of its arguments that keeps nothing between calls.

    `pad_token_id`, in [-1, V], is padding in SamplingData's ids besides -1 and V. Inside the vocabulary it hides the
    token of that id from penalties and from the count of output tokens; V, MindIE's advice, hides none.
    `logprobs_mode` says which law the logprobs are of: the model's ("raw"), after penalties ("processed"), or the one
    that the token was drawn from ("sampled", MindIE's own; 0.0 for greedy requests).
    """

    pad_token_id: int | None = None
    logprobs_mode: LogprobsMode = field(default="raw", kw_only=True)

    def __post_init__(self) -> None:
        pad = self.pad_token_id
        if pad is not None and (isinstance(pad, bool) or not isinstance(pad, (int, np.integer)) or pad < -1):
            raise ParamsError(f"pad_token_id must be an integer in [-1, V] or None, got {pad!r}; use V")
        FIELDS["logprobs_mode"].check(self.logprobs_mode)

    def __call__(
        self, logits: Any, sampling_data: SamplingData | None = None, sampling_param: SamplingParam | None = None
    ) -> tuple[Any, Any]:
        """`(logprobs, next_tokens)`: float32 [B], the logprob of each next token, and int64 [B] (JAX int32).

        `logits` [B, V], or [V] for B = 1: raw scores, a NumPy array, a torch tensor, a JAX array, or any tensor with
        `asnumpy`; float16, bfloat16, float32 or float64; never modified. Both other arguments are optional: without
        `sampling_param` every request is greedy, without `sampling_data` nothing has been read or written. The result
        is of the logits' library, or made by `to_tensor` where one was given.

        The order is repetition, frequency, presence, temperature, top-k, top-p (a token is kept while the mass before
        it is at most p), draw. A row of logits with NaN or +inf, or nothing but -inf, has token -1 and logprob NaN;
        other rows are untouched. Raises ParamsError before any work for arguments that do not fit the logits.
        """
        draw, back = self._draw(logits, sampling_data, sampling_param, self.logprobs_mode)
        return back(draw.logprobs), back(draw.token_ids)

    def next_tokens(
        self, logits: Any, sampling_data: SamplingData | None = None, sampling_param: SamplingParam | None = None
    ) -> Any:
        """The next tokens [B] alone, without the work of their logprobs."""
        draw, back = self._draw(logits, sampling_data, sampling_param, None)
        return back(draw.token_ids)

    def _draw(
        self, logits: Any, data: SamplingData | None, param: SamplingParam | None, mode: LogprobsMode | None
    ) -> tuple[Draw, Callable[[Any], Any]]:
        data = _given(data, "sampling_data", SamplingData, _NO_DATA)
        param = _given(param, "sampling_param", SamplingParam, _NO_PARAM)
        array, back = opened(logits, param.to_tensor or data.to_tensor)
        matrix = find(array).as_logits(array)
        count, vocab_size = matrix.shape
        if self.pad_token_id is not None and self.pad_token_id > vocab_size:
            raise ParamsError(f"pad_token_id must be in [-1, {vocab_size}], got {self.pad_token_id}; use {vocab_size}")
        history, requests = data.history((count, vocab_size), self.pad_token_id), param.requests(count, mode)
        data.check_known(requests)
        return sampling.sample(matrix, requests, history=history), back


def sample(
    logits: Any,
    sampling_data: SamplingData | None = None,
    sampling_param: SamplingParam | None = None,
    *,
    pad_token_id: int | None = None,
) -> Any:
    """The next token of each request, int64 [B] (JAX int32); the same as `Sampler(pad_token_id)` gives."""
    return Sampler(pad_token_id).next_tokens(logits, sampling_data, sampling_param)


def _given(value: T | None, name: str, kind: type[T], absent: T) -> T:
    if value is None:
        return absent
    if not isinstance(value, kind):
        raise ParamsError(
            f"{name} must be a {kind.__name__} or None, got {type_name(value)}; use {kind.__name__}.from_numpy"
        )
    return value
