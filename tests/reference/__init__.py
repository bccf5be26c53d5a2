"""The whole rule again, one row at a time, in Python integers and fractions: the executable form of SPEC.md.

It shares no code with the paths that are in use: it reads the request itself (`SamplingParams` and its `Semantics`)
instead of a lowered stage list, sorts every candidate, and never groups or skips. Slow and obvious. Where a fast
path disagrees with it, one of the two contradicts SPEC.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from reference.outcome import Result, evaluate, report
from reference.row import first_state, next_state
from tirage.params import SamplingParams

__all__ = ["Result", "draw", "first_state", "law", "next_state"]


def draw(
    logits: Sequence[float],
    params: SamplingParams,
    prompt_ids: Sequence[int] = (),
    output_ids: Sequence[int] = (),
    *,
    seed: int,
    step: int | None = None,
    sample_index: int = 0,
    mask: Sequence[bool] | None = None,
    state: float | None = None,
) -> Result:
    """One row's Result: token, status, support, weights and logprobs.

    `logits` are rounded to binary32; `mask` holds one truth value per token. A row without a legal token has token -1
    and NaN logprobs. `step` defaults to the number of output ids, `state` to what a row begins with.
    """
    at = len(output_ids) if step is None else step
    result = evaluate(logits, params, prompt_ids, output_ids, step=at, mask=mask, state=state)
    return report(result, seed=seed, step=at, sample_index=sample_index)


def law(
    logits: Sequence[float],
    params: SamplingParams,
    prompt_ids: Sequence[int] = (),
    output_ids: Sequence[int] = (),
    *,
    step: int | None = None,
    mask: Sequence[bool] | None = None,
    state: float | None = None,
) -> list[Fraction] | None:
    """The exact probability of every token, or None for a row that draws nothing."""
    result = evaluate(logits, params, prompt_ids, output_ids, step=step, mask=mask, state=state)
    if result.status:
        return None
    exact = result.law()
    return [exact.get(t, Fraction(0)) for t in range(len(logits))]
