"""SamplingData: the tokens of each request of the batch so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.backends import type_name
from tirage.compat.mindie.arrays import (
    ToTensor,
    column,
    copied,
    kind,
    per_row,
    refuse_unknown,
    same_length,
    tensor_maker,
)
from tirage.errors import ParamsError
from tirage.params import SamplingParams

_IDS = ("all_input_ids", "output_ids")
_RULE = "a two-dimensional integer array [B, L] or a list of B id lists"
_NOTHING: NDArray[np.int64] = np.zeros(0, np.int64)

Ids = tuple[NDArray, ...]
"""One array of token ids per request, pads included."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplingData:
    """The tokens of B requests: checked and copied when made, never changed afterwards.

    `all_input_ids`: prompt and output of each request, for the repetition penalty; None: the same as `output_ids`.
    `output_ids`: its output alone, for the frequency and presence penalties; None: no output so far. Its length
    without padding is the step that the seed is combined with, so a seeded request must give it to be drawn with fresh
    randomness at each step. With `is_prefill` False there is some output: parameters that depend on its tokens, or on
    their number, are then refused without it. Each is a two-dimensional integer array [B, L] or a ragged list of id
    lists; -1, V and the sampler's `pad_token_id` are padding at any position and never counted. Another id outside
    [0, V), or another number of requests than the logits have rows, raises ParamsError at the call.

    `to_tensor` makes the results' tensors; None: they are of the logits' library. `request_ids` (one-dimensional,
    distinct) are checked and have no effect: no state is kept between calls.
    """

    all_input_ids: Ids | None = None
    output_ids: Ids | None = None
    to_tensor: ToTensor | None = None
    is_prefill: bool = True
    request_ids: NDArray | None = None

    def __post_init__(self) -> None:
        tensor_maker(self.to_tensor)
        if not isinstance(self.is_prefill, (bool, np.bool_)):
            raise ParamsError(f"is_prefill must be a bool, got {type_name(self.is_prefill)}; use True or False")
        for name in _IDS:
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, _rows(value, name))
        if self.request_ids is not None:
            object.__setattr__(self, "request_ids", _distinct(self.request_ids))
        same_length(self._lengths())

    @classmethod
    def from_numpy(
        cls,
        all_input_ids: Any = None,
        output_ids: Any = None,
        to_tensor: ToTensor | None = None,
        is_prefill: bool = True,
        request_ids: Any = None,
        **unknown: Any,
    ) -> SamplingData:
        """The SamplingData of these arrays, each of them optional; an unknown option raises ParamsError."""
        refuse_unknown(cls.__name__, unknown, cls.__dataclass_fields__)
        return cls(
            all_input_ids=all_input_ids,
            output_ids=output_ids,
            to_tensor=to_tensor,
            is_prefill=is_prefill,
            request_ids=request_ids,
        )

    def history(self, shape: tuple[int, int], pad_token_id: int | None = None) -> list[tuple[NDArray, NDArray]]:
        """(tokens for the repetition penalty, output tokens), each [T], of each row of logits [B, V] = `shape`.

        Padding is left out. Raises ParamsError for ids or a number of requests that do not fit the logits.
        """
        count, vocab_size = shape
        for name, length in self._lengths():
            per_row(name, length, count)
        pads = {-1, vocab_size} if pad_token_id is None else {-1, vocab_size, pad_token_id}
        outputs = self._unpadded("output_ids", vocab_size, pads) or [_NOTHING] * count
        return list(zip(self._unpadded("all_input_ids", vocab_size, pads) or outputs, outputs, strict=True))

    def check_known(self, requests: Iterable[SamplingParams]) -> None:
        """Raises ParamsError for a request whose parameters need its output tokens, past prefill and without them."""
        if self.is_prefill or self.output_ids is not None:
            return
        for at, params in enumerate(requests):
            drawn = params.seed is not None and params.temperature > 0
            needs = {
                "seed": drawn,
                "frequency_penalty": params.frequency_penalty != 0,
                "presence_penalty": params.presence_penalty != 0,
                "repetition_penalty": params.repetition_penalty != 1 and self.all_input_ids is None,
            }
            for name in (name for name, needed in needs.items() if needed):
                raise ParamsError(
                    f"output_ids must be given for {name} when is_prefill is False, got None for request {at}; "
                    "pass what each request has written, or leave is_prefill out before its first token"
                )

    def _lengths(self) -> list[tuple[str, int]]:
        named = [(name, getattr(self, name)) for name in (*_IDS, "request_ids")]
        return [(name, len(value)) for name, value in named if value is not None]

    def _unpadded(self, name: str, vocab_size: int, pads: Iterable[int]) -> list[NDArray] | None:
        rows: Ids | None = getattr(self, name)
        if rows is None:
            return None
        return [_tokens(ids, f"{name} of row {row}", vocab_size, pads) for row, ids in enumerate(rows)]


def _rows(value: Any, name: str) -> Ids:
    if isinstance(value, (list, tuple)) or (
        isinstance(value, np.ndarray) and value.dtype == object and value.ndim == 1
    ):
        return tuple(_row(row, f"{name}[{i}]") for i, row in enumerate(value))
    array = copied(value, name, _RULE)
    if array.ndim != 2 or kind(array) not in "iu":
        raise ParamsError(f"{name} must be {_RULE}, got {array.dtype} of shape {list(array.shape)}")
    return tuple(array)


def _row(value: Any, name: str) -> NDArray:
    ids = copied(value, name, "a list of token ids")
    if ids.size == 0 and ids.ndim == 1:
        return _NOTHING
    if ids.ndim != 1 or kind(ids) not in "iu":
        raise ParamsError(f"{name} must be a list of token ids, got {ids.dtype} of shape {list(ids.shape)}")
    return ids


def _tokens(ids: NDArray, name: str, vocab_size: int, pads: Iterable[int]) -> NDArray[np.int64]:
    padding = np.zeros(ids.shape, bool)
    for pad in pads:
        padding |= ids == pad
    kept = ids[~padding]
    outside = kept[(kept < 0) | (kept >= vocab_size)]
    if outside.size:
        raise ParamsError(
            f"{name} must hold ids in [0, {vocab_size}), got {outside[0]}; pad with -1, {vocab_size} or pad_token_id"
        )
    return kept.astype(np.int64)


def _distinct(value: Any) -> NDArray:
    ids = column(value, "request_ids", "iu", "integer")
    values, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        raise ParamsError(f"request_ids must be distinct, got {values[counts > 1][0]} more than once")
    return ids
