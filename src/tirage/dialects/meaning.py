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
    found = [*_orders(stages, *presets), *_options((before, after), set(stages), *presets)]
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
        place = 0 if semantics.is_greedy_first else semantics.stages.index("temperature")
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


_Pair = tuple[SamplingParams, SamplingParams]


def _filters_are_on(pair: _Pair) -> bool:
    on = active_stages(pair[0]) | active_stages(pair[1])
    return any(OPERATORS[stage].is_filter for stage in on - {"temperature"})


def _below_a_floor(pair: _Pair) -> bool:
    floors = [resolve(each.semantics).temperature_floor or 0.0 for each in pair]
    return 0.0 < pair[0].temperature < max(floors)


def _several_filters(pair: _Pair) -> bool:
    on = active_stages(pair[0]) & active_stages(pair[1])
    return sum(OPERATORS[stage].is_filter for stage in on - {"temperature"}) > 1


def _bad_words(pair: _Pair) -> bool:
    return bool(pair[0].bad_words or pair[0].bad_words_token_ids)


_WHEN: Mapping[str, Callable[[_Pair], bool]] = {
    "bad_words_history": _bad_words,
    "bad_words_eos": _bad_words,
    "greedy": lambda pair: pair[0].temperature == 0.0 and _filters_are_on(pair),
    "mask_mode": lambda pair: pair[0].guided_decoding is not None,
    "top_k_one": lambda pair: pair[0].top_k == 1,
    "entropy_count": lambda pair: pair[0].dynatemp_range > 0,
    "temperature_floor": _below_a_floor,
    # A nucleus of all tokens is that of what is left where nothing was cut before.
    "top_p_scope": _several_filters,
    # Limits refuse; they change no meaning.
    "top_k_limit": lambda pair: False,
    "penalty_limit": lambda pair: False,
}
"""When an option matters of which its stages do not say enough."""


def _options(pair: _Pair, stages: set[str], first: Semantics, second: Semantics) -> list[MeaningChange]:
    return [
        MeaningChange(option.title, _words(first, name), _words(second, name))
        for name, option in OPTIONS.items()
        if (not option.stages or stages.intersection(option.stages))
        and (name not in _WHEN or _WHEN[name](pair))
        and getattr(first, name) != getattr(second, name)
    ]


def _words(semantics: Semantics, name: str) -> str:
    value = getattr(semantics, name)
    if isinstance(value, float) and math.isinf(value):
        return "any"
    return cell(semantics, name, OPTIONS[name])
