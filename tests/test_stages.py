"""Lowering: from parameters to the list of steps that every path executes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from every_stage import CARRIED, full_params
from hypothesis import given
from hypothesis import strategies as st
from tries import tries

from tirage import ParamsError, SamplingParams, Semantics
from tirage.compiled_params import compiled
from tirage.history import History
from tirage.operators import OPERATORS, Operation, Step
from tirage.operators.frequency import FREQUENCY
from tirage.operators.masks import BAN
from tirage.operators.min_p import MIN_P, MIN_P_LOGIT
from tirage.operators.presence import PRESENCE
from tirage.operators.temperature import GREEDY
from tirage.operators.top_k import TOP_K
from tirage.operators.top_p import TOP_P
from tirage.params import FIELDS
from tirage.processors import register_processor, unregister_processor
from tirage.semantics import EDITS, FILTERS, PRESETS

SAID = History.of([1, 2, 3, 4], [2, 3, 4, 2, 3], vocab_size=50)
"""A history in which every rule that reads one finds something."""


def steps(params: SamplingParams, history: History = SAID) -> tuple[Step, ...]:
    return compiled(params).lower(history, history.step).steps


def stages(params: SamplingParams, history: History = SAID) -> list[str]:
    return [step.stage for step in steps(params, history)]


@pytest.mark.parametrize("stage", [*EDITS, *FILTERS])
def test_every_stage_has_an_operation_and_an_option_that_switches_it_on(stage: str) -> None:
    operator = OPERATORS[stage]
    assert operator.operations
    assert operator.gentle.keys() <= operator.fields.keys() or stage == "scale"
    assert bool(operator.gentle) == (stage != "processors")


def test_every_parameter_of_an_operator_is_one_of_the_request() -> None:
    declared = {name for operator in OPERATORS.values() for name in operator.fields}
    assert declared <= set(FIELDS)
    assert {name for name, spec in FIELDS.items() if spec.stage} <= declared


def test_what_is_off_makes_no_step() -> None:
    assert stages(SamplingParams()) == ["temperature"]
    for name, spec in FIELDS.items():
        if spec.has_off and spec.stage not in {None, "temperature"}:
            assert stages(SamplingParams(**{name: spec.off})) == ["temperature"], name


@pytest.mark.parametrize("top_p", [1.0, 1.0 - 2.0**-40])
def test_a_top_p_that_is_one_in_float32_makes_no_step(top_p: float) -> None:
    assert stages(SamplingParams(top_p=top_p)) == ["temperature"]


@pytest.mark.parametrize("preset", PRESETS)
def test_the_steps_are_the_stages_of_the_semantics_in_its_order(preset: str) -> None:
    semantics = PRESETS[preset]
    made = [step for step in steps(full_params(preset)) if step.op != BAN]
    others = {"processors", "no_repeat_ngram", "min_keep"} | CARRIED
    expected = [s for s in semantics.stages if s not in others]
    assert [step.stage for step in made] == expected
    assert all(step.op.base in OPERATORS[step.stage].operations for step in made)
    by_logit = [step.op.base for step in made if step.stage == "min_p" and semantics.min_p_rule == "logit_ratio"]
    assert set(by_logit) <= {MIN_P_LOGIT}


@tries(60)
@given(edits=st.permutations(EDITS), filters=st.permutations(FILTERS))
def test_any_order_is_kept(edits: list[str], filters: list[str]) -> None:
    order = (*(s for s in edits if s != "scale"), *(s for s in filters if s not in CARRIED))
    made = [s.stage for s in steps(full_params(Semantics(name="own", stages=order))) if s.op != BAN]
    assert made == [s for s in order if s not in {"processors", "no_repeat_ngram", "min_keep"}]


def test_bans_lead_whatever_the_order_of_the_stages() -> None:
    params = full_params("canonical", bad_words_token_ids=[5, (3, 9)], min_tokens=9, stop_token_ids=[40])
    made = steps(params)
    bans = [step for step in made if step.op == BAN]
    assert list(made[: len(bans)]) == bans
    lowered = compiled(params).lower(SAID, 5)
    banned = {step.stage: lowered.edit_ids[step.a : step.b].tolist() for step in bans}
    assert banned == {"logit_bias": [7], "bad_words": [5, 9], "no_repeat_ngram": [4], "min_tokens": [40]}


def test_processors_have_a_step_where_the_semantics_puts_them() -> None:
    register_processor("noop", lambda logits, args: logits)
    try:
        for preset, order in (("vllm", ["presence", "processors"]), ("vllm-v1", ["processors", "presence"])):
            params = SamplingParams(presence_penalty=1.0, logits_processors=[("noop", {})], semantics=preset)
            assert stages(params) == [*order, "temperature"]
    finally:
        unregister_processor("noop")


# --- greedy ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("canonical", [GREEDY]),
        ("gemma-topk", [TOP_K, GREEDY]),
        ("llamacpp", [TOP_K, TOP_P, MIN_P, GREEDY]),
        ("trtllm-legacy", [GREEDY]),
        ("mlx", [GREEDY]),
    ],
)
def test_greedy_ends_the_list_where_the_temperature_stands(preset: str, expected: list[Operation]) -> None:
    options = {"top_k": 5, "top_p": 0.5, "min_p": 0.1}
    known = {name: value for name, value in options.items() if name in PRESETS[preset].stages}
    assert [step.op for step in steps(SamplingParams(temperature=0, semantics=preset, **known))] == expected


# --- operands ----------------------------------------------------------------------------------------------------


def only(op: Operation, params: SamplingParams) -> Step:
    (step,) = [step for step in steps(params) if step.op == op]
    return step


def test_top_p_says_mass_rule_ties_and_scope() -> None:
    cases: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
        ("canonical", {}, (1 << 31, 0, 0, 0)),
        ("mindie", {}, (1 << 31, 1, 0, 0)),
        ("fastdeploy-base", {}, (1 << 31, 2, 0, 1)),
        ("fastdeploy-air", {}, (1 << 31, 2, 0, 0)),
        ("gemma-topp", {}, (1 << 31, 0, 1, 0)),
        ("sglang", {}, (1 << 31, 0, 1, 1)),
        ("sglang", {"min_p": 0.1}, (1 << 31, 0, 1, 0)),
    ]
    assert [tuple(only(TOP_P, SamplingParams(top_p=0.5, semantics=n, **o))[1:5]) for n, o, _ in cases] == [
        operands for *_, operands in cases
    ]


def test_top_k_says_how_many_and_whether_ties_stay() -> None:
    for preset, ties in (("vllm", 0), ("hf", 1)):
        assert only(TOP_K, SamplingParams(top_k=7, semantics=preset))[1:3] == (7, ties)


@pytest.mark.parametrize("min_p", [1.0, 0.5, 0.25, 2.0**-30])
def test_only_a_power_of_two_tells_gt_from_ge(min_p: float) -> None:
    octaves = -np.log2(min_p) * 2**23
    strict = Semantics(name="own", min_p_rule="gt")
    assert only(MIN_P, SamplingParams(min_p=min_p)).a == octaves
    assert only(MIN_P, SamplingParams(min_p=min_p, semantics=strict)).a == max(octaves - 1, 0)
    assert only(MIN_P, SamplingParams(min_p=min_p * 0.9)) == only(
        MIN_P, SamplingParams(min_p=min_p * 0.9, semantics=strict)
    )


def test_penalties_carry_their_scope() -> None:
    params: dict[str, Any] = {"repetition_penalty": 2.0, "frequency_penalty": 1.0, "presence_penalty": 1.0}
    scopes = {
        preset: [step.a for step in steps(SamplingParams(semantics=preset, **params))[:3]]
        for preset in ("canonical", "sglang", "easydel", "llamacpp")
    }
    assert scopes == {"canonical": [0, 1, 1], "sglang": [1, 1, 1], "easydel": [0, 0, 0], "llamacpp": [0, 0, 0]}


def test_a_parameter_below_the_smallest_normal_float_counts_as_zero() -> None:
    made = steps(SamplingParams(presence_penalty=1e-40, frequency_penalty=-1e-40))
    assert [(step.op, step.b) for step in made[:2]] == [(FREQUENCY, 0), (PRESENCE, 0)]


# --- plans -------------------------------------------------------------------------------------------------------


def test_equal_parameters_share_a_plan() -> None:
    assert compiled(SamplingParams(top_k=3, seed=1)) is compiled(SamplingParams(top_k=3, seed=1))
    assert compiled(SamplingParams(top_k=3)) is not compiled(SamplingParams(top_k=4))


@pytest.mark.parametrize(
    "options",
    [
        {"bad_words_token_ids": [(1, 2)]},
        {"min_tokens": 2},
        {"dry_multiplier": 1.0},
        {"no_repeat_ngram_size": 2},
        {"frequency_penalty": 1.0, "semantics": "tgi"},
    ],
)
def test_steps_that_the_history_changes_are_not_fixed(options: dict[str, Any]) -> None:
    assert compiled(SamplingParams(**options)).fixed is None


@pytest.mark.parametrize(
    "options", [{}, {"top_k": 5, "logit_bias": {1: -float("inf")}}, {"repetition_penalty": 2.0}, {"temperature": 0}]
)
def test_steps_that_only_the_parameters_decide_are_lowered_once(options: dict[str, Any]) -> None:
    made = compiled(SamplingParams(**options))
    assert made.fixed is not None
    assert made.lower(SAID, 5) is made.lower(History.of([], vocab_size=1), 0) is made.fixed


def test_counts_are_kept_only_for_penalties() -> None:
    assert compiled(SamplingParams(dry_multiplier=1.0, bad_words_token_ids=[1])).counts(SAID) is None
    counts = compiled(SamplingParams(presence_penalty=1.0, semantics="mlx")).counts(SAID)
    assert counts is not None
    assert counts.table.tolist() == [[1, 2, 3, 4], [1, 3, 3, 2], [0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("options", "name", "highest"),
    [
        ({"logit_bias": {50: 1.0}}, "logit_bias", 50),
        ({"logit_bias": {60: -float("inf")}}, "logit_bias", 60),
        ({"allowed_token_ids": [1, 50]}, "allowed_token_ids", 50),
        ({"bad_words_token_ids": [(50, 1)]}, "bad_words_token_ids", 50),
        ({"logprob_token_ids": [50]}, "logprob_token_ids", 50),
        ({"xtc_protected_ids": [50]}, "xtc_protected_ids", 50),
        ({"dry_breaker_token_ids": [50]}, "dry_breaker_token_ids", 50),
        ({"stop_token_ids": [50]}, "stop_token_ids", 50),
        ({"eos_token_ids": [50]}, "eos_token_ids", 50),
    ],
)
def test_an_id_beyond_the_vocabulary_is_refused_by_name(options: dict[str, Any], name: str, highest: int) -> None:
    made = compiled(SamplingParams(**options))
    made.check(highest + 1)
    with pytest.raises(ParamsError) as error:
        made.check(50)
    assert str(error.value) == f"{name} must lie in [0, 50), got {highest}; the logits have 50 columns"
