"""MindIE: the fields of one request of its `SamplingParam`, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tirage.dialects.hf import when_sampling
from tirage.dialects.table import Dialect, FieldMapping, Fields, same
from tirage.dialects.unsupported import MINDIE_PARAM
from tirage.fields.rules import Bool, Float, Int
from tirage.params import SamplingParams

_DECIDES = ("temperature", "top_k", "top_p")
"""Without `do_sample`, a request that has none of these is greedy."""


def _adjust(given: Mapping[str, Any], ours: Fields) -> Fields:
    found = {**ours, "max_tokens": None}
    if ours["top_p"] == 0.0:
        found |= {"top_p": 1.0, "top_k": 1}
    samples = given.get("do_sample", any(name in given for name in _DECIDES))
    return found if samples else {**found, "temperature": 0.0}


MINDIE = Dialect.of(
    "MindIE",
    "mindie",
    [
        same("repetition_penalty"),
        same("frequency_penalty"),
        same("presence_penalty"),
        when_sampling("temperature", 1.0, Float(low=1e-20, high=1e20, zero=True)),
        when_sampling("top_k", 0, Int(low=0)),
        when_sampling("top_p", 1.0, Float(low=0.0, high=1.0)),
        same("seed", rule=Int(low=0, high=2**63 - 1, optional=True)),
        FieldMapping(
            name="do_sample",
            rule=Bool(),
            default=None,
            into=lambda value: {},
            out_of=lambda params: True if params.temperature > 0 else None,
            ours=("temperature",),
            meaning="draw the next token; otherwise the likeliest is taken",
        ),
    ],
    adjust=_adjust,
    unsupported=MINDIE_PARAM,
)


def from_mindie(data: Mapping[str, Any]) -> SamplingParams:
    """The parameters that the values of one request in MindIE's `SamplingParam` ask for, in MindIE's meaning.

    A request with `do_sample` False is greedy, and so is one without it and without `temperature`, `top_k` and `top_p`.
    `top_p` 0 is one token. MindIE's sampler knows no end of a text: `max_tokens` is None. Raises DialectError (a
    ParamsError) with MindIE's name. `tirage.compat.mindie` takes the arrays of a whole batch.
    """
    return MINDIE.read(data).params


def to_mindie(params: SamplingParams, *, lossy: bool = False) -> Any:
    """The values of one request for MindIE's `SamplingParam`; those at MindIE's defaults are left out.

    A field that MindIE cannot express raises ParamsError, or with `lossy` the result is `(dict, names lost)`.
    """
    return MINDIE.write(params, lossy=lossy)
