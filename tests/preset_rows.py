"""Requests that use every parameter of the tables under every preset, and what of the tables they leave out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from strategies import VALUES, applies

from tirage import SamplingParams
from tirage.history import History
from tirage.operators import END, OPERATIONS
from tirage.params import FIELDS
from tirage.processors import register_processor
from tirage.sampling_batch import SamplingRow
from tirage.semantics import PRESETS, Semantics

PAST = (1, 2, 3, 1, 2), (3, 1, 2)
"""Prompt and output of every row: tokens that repeat, so that penalties, n-grams and words find some."""

FURTHER: tuple[dict[str, Any], ...] = (
    {"logit_bias": {0: 1.5, 2: -100.0, 5: -float("inf")}},
    {"sequence_bias": (((2,), 0.7), ((1, 2, 3), -1.5), ((1, 2, 4), -float("inf")), ((2, 9), 3.0))},
    {"allowed_token_ids": (1, 2, 3, 8, 13, 21)},
    {"bad_words_token_ids": ((2,), (1, 2, 4))},
    {"stop_token_ids": (1, 7), "min_tokens": 9},
    {"xtc_probability": 0.7, "xtc_threshold": 0.01, "xtc_protected_ids": (1, 4)},
    {"logits_processors": (("preset_rows_half", {}),)},
    {"min_keep": 3, "top_p": 0.2, "min_p": 0.9},
    {"min_keep": 5, "typical_p": 0.2},
    {"min_keep": 30, "xtc_probability": 0.7, "xtc_threshold": 0.01},
)
"""Parameters that hold token ids or names, beside the numbers of VALUES."""


def _half(x: NDArray[np.float32], args: list[dict]) -> NDArray[np.float32]:
    return x * np.float32(0.5)


register_processor("preset_rows_half", _half, replace=True)


def requests(semantics: Semantics) -> list[SamplingParams]:
    """Each parameter that a stage of the preset reads, at each value, alone and with company; seeds count from 0."""
    company: dict[str, Any] = {"top_p": 0.8} if "top_p" in semantics.stages else {}
    asked: list[dict[str, Any]] = []
    for at, (name, values) in enumerate((n, v) for n, v in VALUES.items() if applies(n, semantics)):
        given = [value for value in values[1:] if (name, value, semantics.greedy) != ("temperature", 0.0, "refused")]
        asked += [{**(company if at % 2 else {}), name: value, "xtc_threshold": 0.02} for value in given]
    asked += [fields for fields in FURTHER if _stages(fields) <= set(semantics.stages)]
    modes = ("raw", "processed", "sampled")
    return [
        # A row that reports nothing may take another path than one that does.
        SamplingParams(
            **fields,
            seed=seed,
            semantics=semantics,
            logprobs=None if seed % 4 == 3 else 3,
            logprobs_mode=modes[seed % 3],
        )
        for seed, fields in enumerate(asked)
    ]


def every_request() -> list[SamplingParams]:
    """The requests of all presets."""
    return [params for semantics in PRESETS.values() for params in requests(semantics)]


def _stages(fields: Mapping[str, Any]) -> set[str]:
    """The stages that parameters need."""
    return {FIELDS[name].stage for name in fields} - {"", None}  # pyright: ignore[reportReturnType]


def states(params: Iterable[SamplingParams], vocab_size: int) -> list[SamplingRow]:
    """The requests as rows in flight, all with the same past."""
    return [SamplingRow.of(p, History.of(*PAST, vocab_size=vocab_size)) for p in params]


# --- what is left out -------------------------------------------------------------------------------------------------


def unused_parameters(semantics: Semantics) -> set[str]:
    """Parameters with a stage in this preset that none of its requests switches on."""
    made = requests(semantics)
    return {
        name
        for name, field in FIELDS.items()
        if field.stage and (field.stage in semantics.stages or (name == "temperature" and "scale" in semantics.stages))
        if all(field.is_off(getattr(params, name)) for params in made)
    }


def unused_operations(every: Iterable[int] = OPERATIONS) -> set[int]:
    """Operations that no request of any preset is lowered to."""
    used = {step.op for state in states(every_request(), 64) for step in state.lower().steps}
    return set(every) - used - {END}
