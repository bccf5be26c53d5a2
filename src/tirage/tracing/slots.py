"""The stages there are for one request, in order: which parameters govern each, and which rule describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tirage.params import FIELDS, SamplingParams
from tirage.semantics import EDITS, Semantics
from tirage.stages import FIRST_FILTER, Op, Step
from tirage.tracing.explanation import Kind

MASKS = ("mask", "allowed_token_ids", "logit_bias", "bad_words", "no_repeat_ngram", "min_tokens")
"""Hard masks in the order in which the pipeline applies them; whatever they forbid stays forbidden."""

_FIELDS: dict[str, tuple[str, ...]] = {
    "mask": (),
    "allowed_token_ids": ("allowed_token_ids",),
    "logit_bias": ("logit_bias",),
    "bad_words": ("bad_words_token_ids",),
    "min_tokens": ("min_tokens", "stop_token_ids", "eos_token_ids"),
    "repetition": ("repetition_penalty",),
    "frequency": ("frequency_penalty",),
    "presence": ("presence_penalty",),
    "dry": ("dry_multiplier", "dry_base", "dry_allowed_length", "dry_last_n", "dry_breaker_token_ids"),
    "no_repeat_ngram": ("no_repeat_ngram_size",),
    "processors": ("logits_processors", "extra_args"),
    "scale": ("temperature",),
    "temperature": ("temperature", "dynatemp_range", "dynatemp_exponent"),
    "top_n_sigma": ("top_n_sigma",),
    "top_k": ("top_k",),
    "top_p": ("top_p",),
    "min_p": ("min_p",),
    "typical": ("typical_p",),
    "epsilon": ("epsilon_cutoff",),
    "eta": ("eta_cutoff",),
    "top_h": ("top_h",),
    "xtc": ("xtc_probability", "xtc_threshold", "xtc_protected_ids"),
}
"""Parameters of each stage; the first decides whether the stage is on."""

_OPTIONS: dict[str, tuple[str, ...]] = {
    "mask": ("mask_mode",),
    "bad_words": ("bad_words_history",),
    "repetition": ("repetition_history", "penalty_window"),
    "frequency": ("frequency_history", "frequency_divisor", "penalty_window"),
    "presence": ("presence_history", "penalty_window"),
    "top_k": ("top_k_ties",),
    "top_p": ("top_p_rule", "top_p_scope", "top_p_ties"),
    "min_p": ("min_p_rule",),
    "typical": ("typical_rule",),
    "xtc": ("xtc_rule",),
}

_RULES = {
    "input": "S-N4",
    "mask": "S-P2",
    "allowed_token_ids": "S-P2",
    "min_tokens": "S-P2",
    "bad_words": "S-H3",
    "no_repeat_ngram": "S-H4",
    "dry": "S-H5",
    "processors": "S-P4",
    "temperature": "S-W1",
    "top_k": "S-O1",
    "top_p": "S-O2",
    "min_p": "S-O3",
    "typical": "S-O4",
    "epsilon": "S-O5",
    "eta": "S-O5",
    "top_n_sigma": "S-O6",
    "top_h": "S-O7",
    "xtc": "S-O8",
}
_EDIT_RULE = "S-N7"


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in the order where a stage may act."""

    kind: Kind
    name: str

    def holds(self, step: Step) -> bool:
        """Whether `step` is what this stage was lowered to."""
        kind = "mask" if step.op == Op.BAN else "filter" if step.op >= FIRST_FILTER else "edit"
        return (kind, step.stage) == (self.kind, self.name)

    def rule(self, params: SamplingParams) -> str:
        """The rule of SPEC.md that says what the stage does."""
        if self.name == "temperature" and params.temperature == 0:
            return "S-P3"
        if self.name == "temperature" and params.dynatemp_range:
            return "S-O9"
        if self.name == "logit_bias" and self.kind == "mask":
            return "S-P2"
        return _RULES.get(self.name, _EDIT_RULE)

    def params(self, params: SamplingParams) -> dict[str, Any]:
        """The parameters that govern the stage; secondary ones only where they differ from their default."""
        names = _FIELDS.get(self.name, ())
        chosen = {n: getattr(params, n) for n in names if n == names[0] or getattr(params, n) != FIELDS[n].default}
        if self.name == "logit_bias":
            chosen["logit_bias"] = self._biases(params)
        return chosen

    def _biases(self, params: SamplingParams) -> dict[int, float]:
        biases = params.logit_bias or {}
        return {t: float(v) for t, v in biases.items() if (v == -np.inf) == (self.kind == "mask")}

    def options(self, semantics: Semantics) -> Mapping[str, Any]:
        """What the semantics says about the stage; a penalty window only where there is one."""
        chosen = {name: getattr(semantics, name) for name in _OPTIONS.get(self.name, ())}
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
        first = _FIELDS[self.name][0]
        return FIELDS[first].is_off(getattr(params, first))


INPUT = Slot("input", "input")


def slots(params: SamplingParams, semantics: Semantics) -> list[Slot]:
    """Every place where something can happen to a row under this semantics, in order."""
    masks = [Slot("mask", name) for name in MASKS if name not in EDITS or name in semantics.stages]
    edits = [Slot("edit", name) for name in semantics.stages if name in EDITS and name != "no_repeat_ngram"]
    filters = [Slot("filter", name) for name in semantics.stages if name not in EDITS]
    if params.temperature == 0 and "temperature" not in semantics.stages:
        # Greedy needs no temperature stage: the largest edited logit is taken at once (S-P3).
        filters.insert(0, Slot("filter", "temperature"))
    return [INPUT, *masks, *edits, *filters]
