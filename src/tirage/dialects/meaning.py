"""What the same parameters mean differently under two semantics, told of the stages that are on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tirage.dialects.option_words import OPTIONS, cell
from tirage.operators import OPERATORS
from tirage.params import FIELDS, SamplingParams
from tirage.semantics import Semantics, resolve


@dataclass(frozen=True, slots=True)
class MeaningChange:
    """One thing that is done in another way: what it is, and how it is done before and after."""

    what: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.what}: {self.before} -> {self.after}"


def meaning_changes(before: SamplingParams, after: SamplingParams) -> tuple[MeaningChange, ...]:
    """What parameters that are on in both mean differently under the semantics of each, orders first."""
    presets = resolve(before.semantics), resolve(after.semantics)
    stages = [stage for stage in presets[0].stages if stage in active_stages(before) & active_stages(after)]
    found = [*_orders(stages, *presets), *_options(before, set(stages), *presets)]
    return tuple(change for change in found if change.before != change.after)


def active_stages(params: SamplingParams) -> set[str]:
    """The stages of its semantics that some parameter has turned on."""
    semantics = resolve(params.semantics)
    on = {spec.stage for name, spec in FIELDS.items() if spec.stage and not spec.is_off(getattr(params, name))}
    on -= {"temperature", "scale"}
    if params.temperature != 1.0 or params.dynatemp_range:
        on |= {"temperature", "scale"}
    stages = {stage for stage in semantics.stages if stage in on}
    if params.temperature == 0.0:
        # A greedy row has no filters after its temperature, and without that stage none at all (S-P3).
        place = semantics.stages.index("temperature") if "temperature" in semantics.stages else 0
        idle = [stage for stage in semantics.stages[place:] if OPERATORS[stage].is_filter]
        stages -= set(idle) - {"temperature"}
    return stages


def _orders(stages: list[str], first: Semantics, second: Semantics) -> list[MeaningChange]:
    found = []
    for what, is_filter in (("order of what changes logits", False), ("order of the filters", True)):
        named = [stage for stage in stages if OPERATORS[stage].is_filter == is_filter]
        orders = [", ".join(stage for stage in each.stages if stage in named) for each in (first, second)]
        found.append(MeaningChange(what, *orders))
    return found


_WHEN: Mapping[str, Callable[[SamplingParams, set[str]], bool]] = {
    "bad_words_history": lambda params, stages: bool(params.bad_words or params.bad_words_token_ids),
    "greedy": lambda params, stages: params.temperature == 0.0,
    "mask_mode": lambda params, stages: params.guided_decoding is not None,
    # A nucleus of all tokens is that of what is left where nothing was cut before.
    "top_p_scope": lambda params, stages: len([s for s in stages if OPERATORS[s].is_filter and s != "temperature"]) > 1,
    # Limits refuse; they change no meaning.
    "top_k_limit": lambda params, stages: False,
    "penalty_limit": lambda params, stages: False,
}
"""When an option without stages of its own matters, or one with them does not."""


def _options(params: SamplingParams, stages: set[str], first: Semantics, second: Semantics) -> list[MeaningChange]:
    return [
        MeaningChange(option.title, _words(first, name), _words(second, name))
        for name, option in OPTIONS.items()
        if (not option.stages or stages.intersection(option.stages))
        and _WHEN.get(name, lambda params, stages: True)(params, stages)
        and getattr(first, name) != getattr(second, name)
    ]


def _words(semantics: Semantics, name: str) -> str:
    value = getattr(semantics, name)
    if isinstance(value, float) and math.isinf(value):
        return "any"
    return cell(semantics, name, OPTIONS[name])
