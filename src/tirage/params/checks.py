"""What parameters must satisfy together: order between them, the semantics' stages, processors."""

from __future__ import annotations

from functools import cache

from tirage.errors import ParamsError
from tirage.fields.record import FieldSpec, specs
from tirage.fields.rules import shown
from tirage.params.sampling_fields import SamplingFields
from tirage.processors import find_processor
from tirage.semantics import Semantics, resolve


def check_together(params: SamplingFields) -> None:
    """Raises ParamsError for the first pair of fields, or field and semantics, that contradict."""
    _check_order(params)
    _check_stops(params)
    _check_reasoning(params)
    _check_forcing(params)
    _check_states(params)
    _check_watermark(params)
    semantics = resolve(params.semantics)
    _check_limits(params, semantics)
    _check_stages(params, semantics)
    if params.logits_processors or params.extra_args:
        _check_processors(params)


def _check_order(params: SamplingFields) -> None:
    if params.best_of is not None and params.best_of < params.n:
        raise ParamsError(f"best_of must be >= n, which is {params.n}, got {params.best_of}; use None to turn it off")
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise ParamsError(
            f"min_tokens must be <= max_tokens, which is {params.max_tokens}, got {params.min_tokens}; "
            "raise max_tokens or lower min_tokens"
        )
    if params.dynatemp_range and params.temperature + params.dynatemp_range > 1e20:
        raise ParamsError(
            f"dynatemp_range must keep temperature + dynatemp_range <= 1e20, got {params.dynatemp_range!r}; "
            "use 0.0 to turn it off"
        )


def _check_stops(params: SamplingFields) -> None:
    if params.detokenize or not (params.stop or params.stop_pattern):
        return
    name = "stop" if params.stop else "stop_pattern"
    raise ParamsError(
        f"detokenize must be True with {name}, got False; "
        "stop strings require detokenize=True: drop them or use stop_token_ids"
    )


def _check_reasoning(params: SamplingFields) -> None:
    guided = params.guided_decoding
    if params.thinking_budget is not None and guided is not None and guided.enable_in_reasoning:
        raise ParamsError(
            "thinking_budget must be None where the constraint has enable_in_reasoning=True, got "
            f"{params.thinking_budget}; leave one of them out"
        )


def _check_forcing(params: SamplingFields) -> None:
    if params.forcing is not None and params.logits_processors:
        name = params.logits_processors[0][0]
        raise ParamsError(f"forcing must be None with logits_processors, got 'canonical' and {name!r}; leave one out")


def _check_states(params: SamplingFields) -> None:
    if params.mirostat and params.adaptive_target >= 0:
        raise ParamsError(
            f"adaptive_target must be below 0 with mirostat, got {params.adaptive_target!r}; a row carries one state: "
            "leave one of them out"
        )


def _check_watermark(params: SamplingFields) -> None:
    mark = params.watermark
    if mark is not None and mark.scheme != "kgw" and params.temperature == 0:
        raise ParamsError(
            f"watermark of scheme {mark.scheme!r} must come with a temperature above 0, got 0.0; it marks draws, and "
            "greedy decoding makes none: raise the temperature or use scheme 'kgw'"
        )


def _check_limits(params: SamplingFields, semantics: Semantics) -> None:
    for name in ("presence_penalty", "frequency_penalty"):
        value, limit = getattr(params, name), semantics.penalty_limit
        if abs(value) > limit:
            raise ParamsError(
                f"{name} must be in [-{limit:g}, {limit:g}] under semantics {semantics.name!r}, "
                f"got {value!r}; use 0.0 to turn it off"
            )
    if semantics.top_k_limit is not None and params.top_k > semantics.top_k_limit:
        raise ParamsError(
            f"top_k must be at most {semantics.top_k_limit} under semantics {semantics.name!r}, got {params.top_k}; "
            "use 0 to turn it off"
        )
    if params.temperature == 0.0 and semantics.greedy == "refused":
        raise ParamsError(
            f"temperature must be above 0 under semantics {semantics.name!r}, got 0.0; use top_k=1 or a "
            "semantics that has greedy decoding"
        )


def _check_stages(params: SamplingFields, semantics: Semantics) -> None:
    for name, stage, spec in _staged(type(params)):
        if stage in semantics.stages:
            continue
        value = getattr(params, name)
        if not spec.is_off(value) and not _satisfied_otherwise(name, value, semantics):
            off = f"use {spec.off!r}" if spec.has_off else "leave it out"
            raise ParamsError(
                f"{name} must be off under semantics {semantics.name!r}, which has no {stage} stage, "
                f"got {shown(value)}; {off} or choose another semantics"
            )


@cache
def _staged(kind: type[SamplingFields]) -> tuple[tuple[str, str, FieldSpec], ...]:
    return tuple((name, spec.stage, spec) for name, spec in specs(kind).items() if spec.stage is not None)


def _satisfied_otherwise(name: str, value: object, semantics: Semantics) -> bool:
    """Greedy needs no temperature stage, and a "scale" stage divides by the temperature too."""
    return name == "temperature" and (value == 0.0 or "scale" in semantics.stages)


def _check_processors(params: SamplingFields) -> None:
    named = [(find_processor(name), args) for name, args in params.logits_processors]
    extra = params.extra_args or {}
    for processor, args in named:
        for key in args:
            if not processor.takes(key):
                raise ParamsError(
                    f"logits_processors argument must be one that {processor.name!r} declares, got {key!r}; "
                    f"it declares {', '.join(processor.arg_names or ()) or 'none'}"
                )
            if key in extra:
                raise ParamsError(
                    f"extra_args must not repeat an argument of processor {processor.name!r}, got {key!r}; "
                    "give it in one place"
                )
        if processor.check is not None:
            processor.check(processor.merge(args, extra))
    for key in extra:
        if not any(processor.takes(key) for processor, _ in named):
            raise ParamsError(
                f"extra_args key must be declared by one of the named logits_processors, got {key!r}; "
                "name the processor that takes it or leave it out"
            )
