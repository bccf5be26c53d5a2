"""One branch of one row: edits, then filters, in the order that the semantics lists (S-P, S-O)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from reference import marks, past
from reference.arithmetic import f32, key
from reference.branch import NO_TOKEN, NON_FINITE, NOTHING, OK, PROCESSOR_FAILED, Branch, change
from reference.edits import EDIT_RULES, no_edit
from reference.filters import CUTTING, FILTER_RULES, heeded_by_others
from tirage.params import FIELDS, SamplingParams
from tirage.semantics import EDITS, FILTERS, Semantics


def run(
    logits: Sequence[float],
    params: SamplingParams,
    semantics: Semantics,
    *,
    prompt: Sequence[int],
    output: Sequence[int],
    step: int,
    forbidden: set[int],
    coin: bool,
    state: float | None = None,
) -> Branch:
    """The Branch after all stages, with XTC's coin given and the tokens of `forbidden` masked.

    `state` is what the row carries, by default what it begins with (S-C1).
    """
    masks = forbidden | past.banned_tokens(params, semantics, prompt, output, step)
    row = Branch(params=params, semantics=semantics, x=list(logits), coin=coin)
    row.state = first_state(params) if state is None else state
    _mask(row, masks)
    for stage in stages_of(params, semantics):
        if stage in EDITS and row.status == OK:
            EDIT_RULES.get(stage, no_edit)(row, prompt, output)
            if stage == "processors":
                _mask(row, masks)
                row.status = PROCESSOR_FAILED if row.status == NON_FINITE else row.status
    if row.status == OK:
        _enter(row)
    if row.status == OK:
        _filter(row, lambda: _marked(row, prompt, output))
    return row


def _mask(row: Branch, masks: set[int]) -> None:
    """Forbidden tokens become -inf; NaN or +inf in any other makes the row bad (S-N5)."""
    for token in masks:
        row.x[token] = NOTHING
    if not all(v < math.inf for v in row.x):
        row.status = NON_FINITE


def _enter(row: Branch) -> None:
    candidates = [t for t, v in enumerate(row.x) if v > NOTHING]
    row.ranked = sorted(candidates, key=lambda t: (-key(row.x[t]), t))
    row.listed = len(row.x) - len(candidates)
    if candidates:
        row.rebase()
    else:
        row.status = NO_TOKEN


def first_state(params: SamplingParams) -> float:
    """What a row carries before its first token (S-C1)."""
    return 2.0 * f32(params.mirostat_tau) if params.adaptive_target < 0 else f32(params.adaptive_target)


def next_state(params: SamplingParams, state: float, sampled_logprob: float, chance: float | None = None) -> float:
    """What it carries after a token, each operation rounded to binary64 (S-C1).

    `chance` is the token's share before S-O15, None where that did not run.
    """
    if params.adaptive_target >= 0:
        decay = f32(params.adaptive_decay)
        return state if chance is None else chance * (1.0 - decay) + state * decay
    surprise = -sampled_logprob * float.fromhex("0x1.71547652b82fep+0")
    return state - f32(params.mirostat_eta) * (surprise - f32(params.mirostat_tau))


def stages_of(params: SamplingParams, semantics: Semantics) -> list[str]:
    """The stages of a row in order: all, or those that run beside Mirostat (S-O14)."""
    if params.mirostat and semantics.mirostat_with == "temperature":
        return [stage for stage in semantics.stages if stage in {"logit_bias", "temperature", "mirostat"}]
    return list(semantics.stages)


def filters_of(params: SamplingParams, semantics: Semantics) -> list[str]:
    """The filters of a row in order; T = 0 ends the list where the temperature stage stands (S-P3)."""
    stages = [stage for stage in stages_of(params, semantics) if stage in FILTERS]
    if params.temperature != 0:
        return stages
    if semantics.greedy == "first":
        return ["greedy"]
    return [*stages[: stages.index("temperature")], "greedy"] if "temperature" in stages else ["greedy"]


def _marked(row: Branch, prompt: Sequence[int], output: Sequence[int]) -> None:
    """The watermark: before greedy a bias, else new weights or the winner of a race."""
    mark, before = row.params.watermark, row.weights()
    if mark is not None and row.params.temperature == 0:
        for token in marks.green_tokens(mark, [*prompt, *output], row.ranked, len(row.x)):
            change(row, token, lambda v: f32(v + marks.bias_of(mark)))
        row.ranked.sort(key=lambda t: (-key(row.x[t]), t))
    elif mark is not None:
        after, row.winner = marks.marked(mark, before, row.ranked, prompt, output, len(row.x))
        row.near = row.near if after is before else after


def _filter(row: Branch, mark: Callable[[], None]) -> None:
    heeded = set[str]()
    stages = filters_of(row.params, row.semantics)
    if "min_keep" in stages:
        heeded = set(stages[stages.index("min_keep") :]) & {"top_p", "min_p", "typical", "xtc"}
    for stage in [*stages, "watermark"]:
        if stage == ("watermark" if row.params.temperature else "greedy"):
            mark()
        before, size, entered = row.listed, len(row.ranked), list(row.ranked)
        FILTER_RULES.get(stage, heeded_by_others)(row)
        if stage in heeded and len(row.ranked) < min(row.params.min_keep, size):
            _fill(row, stage, entered)
        if stage == "top_n_sigma":
            row.listed = before + size - len(row.ranked)
        elif stage == "top_k" and row.params.top_k:
            row.listed = max(0, min(before, row.params.top_k - size))
        elif stage in CUTTING and not FIELDS[CUTTING[stage]].is_off(getattr(row.params, CUTTING[stage])):
            row.listed = max(0, min(before, row.params.min_keep - size)) if stage in heeded else 0


def _fill(row: Branch, stage: str, entered: list[int]) -> None:
    """min_keep: the first of the order that the filter goes by, from the tokens that entered it; XTC removes none."""
    row.ranked, row.cut = entered, {}
    if stage == "typical":
        mean = row.mean_q()
        chosen = set(sorted(entered, key=lambda t: abs(row.q(t) - mean))[: row.params.min_keep])
        row.ranked = [t for t in entered if t in chosen]
    elif stage != "xtc":
        row.ranked = entered[: row.params.min_keep]
