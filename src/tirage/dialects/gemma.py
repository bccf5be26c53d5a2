"""Gemma's `gm.text`: a sampling method by its name with its arguments, and the fields of the sampler around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tirage.dialects.table import Dialect, DialectError, FieldMapping, Fields, Inexpressible, same
from tirage.dialects.unsupported import GEMMA_SAMPLER
from tirage.fields.rules import BrokenRuleError, Custom, Float, Ids, Int, OneOf, shown
from tirage.params import SamplingParams

ARGUMENTS = {
    "Greedy": (),
    "RandomSampling": ("temperature",),
    "TopkSampling": ("temperature", "k"),
    "TopPSampling": ("temperature", "p"),
}
"""Gemma's sampling methods and their arguments."""
MOST_TOKENS = 2048
_K, _P = 1, 0.9


def _method(params: SamplingParams) -> str:
    """The method for some parameters; one that has both a `top_k` and a `top_p` is written with the first."""
    if params.temperature == 0.0:
        return "Greedy"
    if params.top_k:
        return "TopkSampling"
    return "TopPSampling" if params.top_p < 1.0 else "RandomSampling"


def _argument(name: str, ours: str, default: Any, rule: Any, meaning: str) -> FieldMapping:
    def write(params: SamplingParams) -> Any:
        if name not in ARGUMENTS[_method(params)]:
            raise Inexpressible
        return getattr(params, ours)

    return FieldMapping(
        name=name, rule=rule, default=default, into=lambda value: {}, out_of=write, ours=(ours,), meaning=meaning
    )


_TEMPERATURE = _argument(
    "temperature", "temperature", 1.0, Float(low=1e-20, high=1e20, zero=True), "of every method but Greedy"
)


def _p(value: Any) -> Any:
    return Float(low=-1e30, high=1e30).check(value)


def _ids(value: Any) -> Any:
    rule = "a list of token ids; words need the tokenizer, and tirage.compat.gemma takes them"
    try:
        return Ids().check(value)
    except BrokenRuleError as broken:
        raise BrokenRuleError(rule, broken.value, broken.where) from None


_IDS = Custom("a list of token ids", _ids, list, lambda plain: plain)


def _single(words: Any) -> list[int] | None:
    if any(len(word) > 1 for word in words):
        raise Inexpressible
    return [word[0] for word in words] or None


def _adjust(given: Mapping[str, Any], ours: Fields) -> Fields:
    method = given.get("sampling", "Greedy")
    for name in ("temperature", "k", "p"):
        if name in given and name not in ARGUMENTS[method]:
            takers = [each for each, names in ARGUMENTS.items() if name in names]
            raise DialectError(
                f"{name} must go with the sampling {' or '.join(takers)}, got {shown(given[name])} with {method}", name
            )
    return {**ours, **_drawn(method, given)}


def _drawn(method: str, given: Mapping[str, Any]) -> Fields:
    found: Fields = {"temperature": 0.0 if method == "Greedy" else given.get("temperature", 1.0)}
    if found["temperature"] == 0.0:
        return found
    if method == "TopkSampling":
        found["top_k"] = given.get("k", _K)
    if method == "TopPSampling":
        p = given.get("p", _P)
        found |= {"temperature": 0.0} if p <= 0 else {}
        found |= {"semantics": "gemma-topp", "top_p": p} if 0 < p < 1 else {}
    return found


GEMMA = Dialect.of(
    "Gemma",
    "gemma-topk",
    [
        FieldMapping(
            name="sampling",
            rule=OneOf(tuple(ARGUMENTS)),
            default="Greedy",
            into=lambda value: {},
            out_of=_method,
            ours=("temperature",),
            meaning="the sampling method",
        ),
        _TEMPERATURE,
        _argument("k", "top_k", _K, Int(low=1), "of TopkSampling: how many of the likeliest tokens stay"),
        _argument(
            "p", "top_p", _P, Custom("a number", _p, float, lambda plain: plain), "of TopPSampling: the mass that stays"
        ),
        same(
            "max_new_tokens",
            "max_tokens",
            default=None,
            rule=Int(low=0, high=MOST_TOKENS, optional=True),
            read=lambda limit: limit or MOST_TOKENS,
            write=lambda limit: _limit(limit),
        ),
        same(
            "stop_tokens",
            "stop_token_ids",
            default=None,
            rule=_IDS,
            read=lambda v: v or (),
            write=lambda v: list(v) or None,
        ),
        same(
            "forbidden_tokens",
            "bad_words_token_ids",
            default=None,
            rule=_IDS,
            read=lambda v: tuple((token,) for token in v or ()),
            write=_single,
        ),
        same("rng", "seed"),
    ],
    adjust=_adjust,
    unsupported=GEMMA_SAMPLER,
)


def _limit(limit: int | None) -> int | None:
    if limit is None or limit == 0 or limit > MOST_TOKENS:
        raise Inexpressible
    return None if limit == MOST_TOKENS else limit


def from_gemma(data: Mapping[str, Any]) -> SamplingParams:
    """The parameters that a sampling method of Gemma's and its sampler's fields ask for, in Gemma's meaning.

    `sampling` is the method's name, `temperature`, `k` and `p` are its arguments; without it the answer is greedy. `p`
    of 1 or more is off, of 0 or less greedy; `max_new_tokens` None or 0 is 2048. Raises DialectError (a ParamsError)
    with Gemma's name, also for an argument that the method does not have and for words, which need a tokenizer.
    """
    if not isinstance(data, Mapping):
        return GEMMA.read(data).params
    return GEMMA.read({name: value for name, value in data.items() if name not in NOTES}).params


NOTES = ("model", "params", "tokenizer")
"""What a Sampler holds besides parameters."""


def to_gemma(params: SamplingParams, *, lossy: bool = False) -> Any:
    """A sampling method of Gemma's and its sampler's fields; those at Gemma's defaults are left out.

    Of `top_k` and `top_p`, which no method has together, the first is written. A field that Gemma cannot express raises
    ParamsError, or with `lossy` the result is `(dict, names lost)`.
    """
    return GEMMA.write(params, lossy=lossy)
