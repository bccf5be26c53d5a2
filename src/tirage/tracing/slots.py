"""The stages there are for one request, in order: which parameters govern each, and which rule describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tirage.compiled_params import OPTIONS, masks_of
from tirage.operators import OPERATORS, Operator, Step
from tirage.operators.masks import BAN
from tirage.params import FIELDS, SamplingParams
from tirage.semantics import Semantics
from tirage.tracing.records import Kind

_BITMASKS = ("mask", "allowed_token_ids")
"""Masks over the whole vocabulary, which no operator describes: the call's own and that of a parameter."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in the order where a stage may act."""

    kind: Kind
    name: str

    @property
    def operator(self) -> Operator | None:
        """The operator of the stage; None for the input and for masks over the vocabulary."""
        return OPERATORS.get(self.name)

    def holds(self, step: Step) -> bool:
        """Whether `step` is what this stage was lowered to."""
        kind = "mask" if step.op is BAN else "filter" if step.op.is_filter else "edit"
        return (kind, step.stage) == (self.kind, self.name)

    def rule(self, params: SamplingParams) -> str:
        """The rule of SPEC.md that says what the stage does."""
        if self.operator is None:
            return "S-N4" if self.kind == "input" else "S-P2"
        if self.name == "temperature" and params.temperature == 0:
            return "S-P3"
        if self.name == "temperature" and params.dynatemp_range:
            return "S-O9"
        if self.name == "logit_bias" and self.kind == "mask":
            return "S-P2"
        return self.operator.rule

    @property
    def _fields(self) -> tuple[str, ...]:
        """The parameters that govern the stage; the first decides whether it is on."""
        if self.operator is None:
            return (self.name,) if self.name in FIELDS else ()
        return tuple(name for name in self.operator.governed_by if name in FIELDS)

    def params(self, params: SamplingParams) -> dict[str, Any]:
        """The parameters that govern the stage; secondary ones only where they differ from their default."""
        names = self._fields
        chosen = {n: getattr(params, n) for n in names if n == names[0] or getattr(params, n) != FIELDS[n].default}
        if self.name == "logit_bias":
            chosen["logit_bias"] = self._biases(params)
        return chosen

    def _biases(self, params: SamplingParams) -> dict[int, float]:
        biases = params.logit_bias or {}
        return {t: float(v) for t, v in biases.items() if (v == -np.inf) == (self.kind == "mask")}

    def options(self, semantics: Semantics) -> Mapping[str, Any]:
        """What the semantics says about the stage; a penalty window only where there is one."""
        names = ("mask_mode",) if self.name == "mask" else self.operator.names if self.operator else ()
        chosen = {name: getattr(semantics, name) for name in names if name in OPTIONS}
        return {name: value for name, value in chosen.items() if value is not None}

    def off(self, params: SamplingParams, *, mask: bool) -> bool:
        """Whether the request asks nothing of the stage; `mask` tells whether the call has a mask."""
        if self.name in {"input", "mask"}:
            return self.name == "mask" and not mask
        if self.name == "logit_bias":
            return not self._biases(params)
        if self.name == "temperature":
            return params.temperature == 1.0 and not params.dynatemp_range
        if self.name == "scale":
            return params.temperature in {0.0, 1.0}
        return any(FIELDS[name].is_off(getattr(params, name)) for name in self._fields[:1])


INPUT = Slot("input", "input")
WATERMARK = Slot("filter", "watermark")


def _with_watermark(filters: list[Slot], params: SamplingParams) -> list[Slot]:
    """The filters with that of the watermark, in requests that have one: the last, but before greedy."""
    if params.watermark is None:
        return filters
    at = len(filters)
    if params.temperature == 0:
        at = next((i for i, slot in enumerate(filters) if slot.name == "temperature"), at)
    return [*filters[:at], WATERMARK, *filters[at:]]


def slots(params: SamplingParams, semantics: Semantics) -> list[Slot]:
    """Every place where something can happen to a row under this semantics, in order."""
    masks = [Slot("mask", name) for name in (*_BITMASKS, *(operator.name for operator in masks_of(semantics)))]
    stages = [OPERATORS[name] for name in semantics.stages]
    edits = [Slot("edit", o.name) for o in stages if not o.is_filter and set(o.operations) != {BAN}]
    filters = [Slot("filter", o.name) for o in stages if o.is_filter and o.has_steps]
    if params.temperature == 0 and semantics.is_greedy_first:
        # The largest edited logit is taken at once, wherever the temperature stage stands, if at all (S-P3).
        filters = [Slot("filter", "temperature"), *(slot for slot in filters if slot.name != "temperature")]
    return [INPUT, *masks, *edits, *_with_watermark(filters, params)]
