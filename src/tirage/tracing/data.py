"""An explanation as plain values for strict JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tirage.params import public_dict, public_values
from tirage.tracing.records import ExplainedDraw, Interval, Stage, Token, TokenStep, TokenTrace, UniformDraw, XtcFlag

SCHEMA = 1
"""Version of the JSON form."""


def plain(explanation: ExplainedDraw) -> dict[str, Any]:
    """Every fact of an explanation in dicts, lists, strings and numbers."""
    e = explanation
    return {
        "schema": SCHEMA,
        "token": None if e.token is None else _token(e.token),
        "token_id": e.token_id,
        "status": e.status.name,
        "reason": e.reason,
        "probability": number(e.probability),
        "logprob": number(e.logprob),
        "support_size": e.support_size,
        "mixed": e.mixed,
        "params": public_dict(e.params),
        "semantics": e.semantics,
        "vocab_size": e.vocab_size,
        "seed": str(e.seed),
        "fresh_seed": e.fresh_seed,
        "step": e.step,
        "sample_index": e.sample_index,
        "stages": [_stage(stage) for stage in e.stages],
        "off": [stage.label for stage in e.all_stages if stage.off],
        "tokens": [_trace(trace) for trace in e.tokens],
        "coin": None if e.coin is None else _coin(e.coin),
        "throws": [_throw(throw) for throw in e.throws],
    }


def number(value: float) -> float | str:
    """`value`, or the string "-inf", "inf" or "nan" that stands for it in JSON."""
    return value if math.isfinite(value) else str(value)


def params_dict(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameter values as `SamplingParams.to_dict` writes them, without the key of a watermark."""
    return public_values(params)


def _token(token: Token) -> dict[str, Any]:
    return {"token_id": token.token_id, "text": token.text, "shown": token.shown}


def _stage(stage: Stage) -> dict[str, Any]:
    return {
        "name": stage.name,
        "label": stage.label,
        "kind": stage.kind,
        "rule": stage.rule,
        "params": params_dict(stage.params),
        "options": dict(stage.options),
        "reached": stage.reached,
        "candidates_before": stage.candidates_before,
        "candidates_after": stage.candidates_after,
        "removed_count": stage.removed_count,
        "added_count": stage.added_count,
        "removed_mass": stage.removed_mass,
        "examples": [{**_token(r.token), "probability": number(r.probability)} for r in stage.examples],
        "changed_count": stage.changed_count,
        "note": stage.note,
    }


def _trace(trace: TokenTrace) -> dict[str, Any]:
    return {
        **_token(trace.token),
        "drawn": trace.drawn,
        "rank": trace.rank,
        "logit": number(trace.logit),
        "model_probability": number(trace.model_probability),
        "probability": number(trace.probability),
        "removed_by": trace.removed_by,
        "steps": [_step(step) for step in trace.steps],
    }


def _step(step: TokenStep) -> dict[str, Any]:
    return {
        "logit_before": number(step.logit_before),
        "logit_after": number(step.logit_after),
        "probability_before": number(step.probability_before),
        "probability_after": number(step.probability_after),
        "cumulative": number(step.cumulative),
        "kept": step.kept,
    }


def _coin(coin: XtcFlag) -> dict[str, Any]:
    return {"value": coin.value, "threshold": coin.threshold, "on": coin.on}


def _throw(throw: UniformDraw) -> dict[str, Any]:
    return {
        "domain": throw.domain,
        "uniform": f"0x{throw.uniform:016x}",
        "fraction": throw.uniform / 2**64,
        "total": str(throw.total),
        "target": str(throw.target),
        "hit": _interval(throw.hit),
        "neighbours": [_interval(interval) for interval in throw.neighbours],
        "greedy": throw.greedy,
        "accepted": throw.accepted,
        **({"keyed": True} if throw.keyed else {}),
    }


def _interval(interval: Interval) -> dict[str, Any]:
    return {**_token(interval.token), "start": str(interval.start), "end": str(interval.end)}
