"""SamplingParam: the sampling parameters of each request of the batch, one array per parameter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tirage.compat.mindie.arrays import ToTensor, column, per_row, refuse_unknown, same_length, tensor_maker
from tirage.errors import ParamsError
from tirage.params import SamplingParams
from tirage.semantics import resolve

LogprobsMode = Literal["raw", "processed", "sampled"]

MINDIE = resolve("mindie").replace(name="mindie-arrays", repetition_history="prompt")
"""The preset `mindie` for requests whose "prompt" is `all_input_ids`, which holds the output too."""

_LARGEST = 1e30
_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _Column:
    """The values that one array may hold; `kinds` are NumPy's letters of dtype kinds."""

    word: str
    kinds: str
    rule: str
    legal: Callable[[NDArray], NDArray[np.bool_]]
    remedy: str
    default: float | None = None


# Comparisons with NaN are False, so every rule refuses NaN.
_COLUMNS = {
    "repetition_penalty": _Column(
        "float", "fiu", "a number in [1e-30, 1e30]", lambda v: (v >= 1e-30) & (v <= 1e30), "use 1.0 to turn it off", 1.0
    ),
    "frequency_penalty": _Column("float", "fiu", "a finite number", np.isfinite, "use 0.0 to turn it off", 0.0),
    "presence_penalty": _Column("float", "fiu", "a finite number", np.isfinite, "use 0.0 to turn it off", 0.0),
    "temperature": _Column(
        "float",
        "fiu",
        "0 or a number in [1e-20, 1e20]",
        lambda v: (v == 0) | ((v >= 1e-20) & (v <= 1e20)),
        "use 0 for the largest logit, 1.0 to turn it off",
        1.0,
    ),
    "top_k": _Column("integer", "iu", "an integer >= 0", lambda v: v >= 0, "use 0 to turn it off", 0),
    "top_p": _Column(
        "float", "fiu", "a number in [0, 1]", lambda v: (v >= 0) & (v <= 1), "use 1.0 to turn it off", 1.0
    ),
    "seed": _Column("integer", "iu", "an integer in [0, 2^63)", lambda v: v >= 0, "leave it out for a fresh one"),
    "do_sample": _Column("bool", "b", "True or False", lambda v: np.ones(v.shape, bool), ""),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplingParam:
    """The parameters of B requests, one value each: checked and copied when made, never changed afterwards.

    `repetition_penalty` [1e-30, 1e30], 1 = off; `frequency_penalty` and `presence_penalty`, any finite number, 0 = off,
    counted as at most 1e30 in size, which already leaves nothing of a logit; `temperature` 0 (largest logit) or
    [1e-20, 1e20]; `top_k` >= 0, 0 = off; `top_p` [0, 1], 1 = off, 0 = one token; `seed` [0, 2^63) or uint64, whose
    bits are taken as an int64; `do_sample` bool. All one-dimensional, of one length; None = off for every request.

    A request is drawn at random where its `do_sample` is True and its temperature above 0. Without `do_sample` the
    temperature alone decides, but a SamplingParam that has none of `temperature`, `top_k`, `top_p` is greedy. Any other
    request takes its largest logit, after penalties. An unseeded request gets a fresh seed at each call.
    A value outside its range, NaN too, raises ParamsError with its request, used or not.

    `to_tensor` makes the results' tensors, before SamplingData's; None: they are of the logits' library.
    """

    repetition_penalty: NDArray | None = None
    frequency_penalty: NDArray | None = None
    presence_penalty: NDArray | None = None
    temperature: NDArray | None = None
    top_k: NDArray | None = None
    top_p: NDArray | None = None
    seed: NDArray | None = None
    do_sample: NDArray | None = None
    to_tensor: ToTensor | None = None

    def __post_init__(self) -> None:
        tensor_maker(self.to_tensor)
        for name in _COLUMNS:
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, _checked(value, name))
        same_length(self._lengths())

    @classmethod
    def from_numpy(
        cls,
        repetition_penalty: Any = None,
        frequency_penalty: Any = None,
        presence_penalty: Any = None,
        temperature: Any = None,
        top_k: Any = None,
        top_p: Any = None,
        seed: Any = None,
        do_sample: Any = None,
        to_tensor: ToTensor | None = None,
        **unknown: Any,
    ) -> SamplingParam:
        """The SamplingParam of these arrays, each of them optional; an unknown option raises ParamsError."""
        refuse_unknown(cls.__name__, unknown, cls.__dataclass_fields__)
        return cls(
            repetition_penalty=repetition_penalty,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            do_sample=do_sample,
            to_tensor=to_tensor,
        )

    def requests(self, count: int, logprobs_mode: LogprobsMode | None = None) -> list[SamplingParams]:
        """The SamplingParams of each of `count` requests; with a mode they ask for the drawn token's logprob.

        Raises ParamsError for an array of another length.
        """
        for name, length in self._lengths():
            per_row(name, length, count)
        rows = zip(*(self._values(name, count) for name in _COLUMNS), strict=True)
        return [_request(*row, logprobs_mode=logprobs_mode) for row in rows]

    def _values(self, name: str, count: int) -> list[Any]:
        array = getattr(self, name)
        if array is not None:
            return array.tolist()
        return [self._samples if name == "do_sample" else _COLUMNS[name].default] * count

    @property
    def _samples(self) -> bool:
        """Whether requests are drawn at random when `do_sample` does not say."""
        return any(value is not None for value in (self.temperature, self.top_k, self.top_p))

    def _lengths(self) -> list[tuple[str, int]]:
        named = [(name, getattr(self, name)) for name in _COLUMNS]
        return [(name, value.size) for name, value in named if value is not None]


def _checked(value: Any, name: str) -> NDArray:
    """The array as float64, int64 or bool; ParamsError for the first value outside its range."""
    rules = _COLUMNS[name]
    array = column(value, name, rules.kinds, rules.word)
    if rules.word == "float":
        array = array.astype(np.float64)
    legal = rules.legal(array)
    if not legal.all():
        at = int(np.argmin(legal))
        got = array[at].item()
        raise ParamsError(f"{name} must be {rules.rule}, got {got!r} for request {at}; {rules.remedy}")
    if name == "top_k":
        array = np.minimum(array.astype(np.uint64), _MOST)  # beyond any vocabulary, hence off
    # A uint64 seed keeps its bits (S-S1): 2^64 - 1 becomes -1.
    return array.astype(np.int64) if rules.word == "integer" else array


@lru_cache(maxsize=8192)
def _request(
    repetition: float,
    frequency: float,
    presence: float,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int | None,
    do_sample: bool,
    *,
    logprobs_mode: LogprobsMode | None,
) -> SamplingParams:
    """One request's SamplingParams, cached, because the same requests come again at each step."""
    one_token = np.float32(top_p) == 0
    return SamplingParams(
        repetition_penalty=repetition,
        frequency_penalty=max(-_LARGEST, min(frequency, _LARGEST)),
        presence_penalty=max(-_LARGEST, min(presence, _LARGEST)),
        temperature=temperature if do_sample else 0.0,
        top_k=1 if one_token else top_k,
        top_p=1.0 if one_token else top_p,
        seed=seed,
        logprobs=None if logprobs_mode is None else 0,
        logprobs_mode=logprobs_mode or "raw",
        semantics=MINDIE,
    )
