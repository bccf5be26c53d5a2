"""The operators: one file for each stage of the pipeline, from its parameters to the words of `explain`.

`OPERATORS` lists them in the canonical order (SPEC.md S-P1). Everything that speaks of stages is derived from it: the
fields of SamplingParams, the stages that a Semantics may list, the steps that backends run, the notes of `explain`, the
parameter reference and the cases of the tests. CONTRIBUTING.md shows how one is added.
"""

from __future__ import annotations

from typing import Any

from tirage.operators import (
    adaptive_p,
    bad_words,
    dry,
    epsilon,
    eta,
    frequency,
    logit_bias,
    min_keep,
    min_p,
    min_tokens,
    mirostat,
    no_repeat_ngram,
    p_less,
    presence,
    processors,
    repetition,
    scale,
    sequence_bias,
    smoothing,
    temperature,
    tfs,
    top_a,
    top_h,
    top_k,
    top_n_sigma,
    top_p,
    typical,
    watermark,
    xtc,
)
from tirage.operators.operator import (
    END,
    FIRST_FILTER,
    OPERATIONS,
    Edit,
    Ids,
    Moment,
    Operation,
    Operator,
    Step,
    counted,
)

ALWAYS = (bad_words.OPERATOR, min_tokens.OPERATOR)
"""Hard masks that exist under every semantics and are no stage of it."""

CANONICAL = tuple(
    module.OPERATOR
    for module in (
        logit_bias,
        sequence_bias,
        repetition,
        frequency,
        presence,
        dry,
        no_repeat_ngram,
        processors,
        smoothing,
        temperature,
        min_keep,
        top_n_sigma,
        top_k,
        top_p,
        min_p,
        top_a,
        p_less,
        tfs,
        typical,
        epsilon,
        eta,
        top_h,
        xtc,
        mirostat,
        adaptive_p,
    )
)
"""The stages of the canonical semantics, in its order."""

LAST = (watermark.OPERATOR,)
"""What comes after all stages under every semantics and is no stage of it."""

OPERATORS: dict[str, Operator] = {operator.name: operator for operator in (*ALWAYS, *CANONICAL, scale.OPERATOR, *LAST)}
"""Every operator by the name of its stage."""


def declared(field: str) -> Any:
    """The declaration of a parameter by the operator that reads it: default, rule, meaning, source."""
    return next(operator.fields[field] for operator in OPERATORS.values() if field in operator.fields)


__all__ = [
    "ALWAYS",
    "CANONICAL",
    "END",
    "FIRST_FILTER",
    "LAST",
    "OPERATIONS",
    "OPERATORS",
    "Edit",
    "Ids",
    "Moment",
    "Operation",
    "Operator",
    "Step",
    "counted",
    "declared",
]
