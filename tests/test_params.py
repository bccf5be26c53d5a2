"""SamplingParams and its companions: documented examples, rules between fields, JSON, updates."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest

from tirage.errors import ParamsError
from tirage.params import (
    BeamSearchParams,
    GuidedDecodingParams,
    RequestOutputKind,
    SamplingParams,
    SamplingType,
    specs,
)
from tirage.processors import register_processor, unregister_processor
from tirage.semantics import PRESETS, Semantics


def refusal(**options: Any) -> str:
    with pytest.raises(ParamsError) as caught:
        SamplingParams(**options)
    return str(caught.value)


# --- what EasyDeL's page documents


def test_the_documented_example_builds() -> None:
    params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=100, stop=["\n", "END"])
    assert (params.temperature, params.top_p, params.max_tokens) == (0.8, 0.95, 100)
    assert params.stop == ("\n", "END")


def test_defaults_are_the_documented_ones() -> None:
    documented = {
        "n": 1,
        "best_of": None,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "temperature": 1.0,
        "top_p": 1.0,
        "min_p": 0.0,
        "top_k": 0,
        "seed": None,
        "stop": (),
        "stop_token_ids": (),
        "stop_pattern": None,
        "bad_words": (),
        "ignore_eos": False,
        "max_tokens": 16,
        "min_tokens": 0,
        "logprobs": None,
        "prompt_logprobs": None,
        "detokenize": True,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True,
        "include_stop_str_in_output": False,
        "output_kind": RequestOutputKind.CUMULATIVE,
        "truncate_prompt_tokens": None,
        "guided_decoding": None,
        "logit_bias": None,
        "allowed_token_ids": None,
        "extra_args": None,
    }
    params = SamplingParams()
    assert {name: getattr(params, name) for name in documented} == documented
    assert list(specs(SamplingParams))[: len(documented)] == list(documented)


def test_the_enums_have_the_documented_values() -> None:
    assert {kind.name: kind.value for kind in SamplingType} == {"GREEDY": 0, "RANDOM": 1}
    assert {kind.name: kind.value for kind in RequestOutputKind} == {"CUMULATIVE": 0, "DELTA": 1, "FINAL_ONLY": 2}


def test_make_jitable_wants_bad_words_tokenised() -> None:
    with pytest.raises(ParamsError, match=r"bad_words must be tokenised first.*update_with_tokenizer"):
        SamplingParams(bad_words=["x"]).make_jitable()


# --- single fields


def test_the_message_has_name_rule_value_and_remedy() -> None:
    assert refusal(top_p=0.0) == "top_p must be in (0, 1], got 0.0; use 1.0 to turn it off"
    assert refusal(top_k="5") == "top_k must be an integer >= 0 or -1 or None, got '5'; use 0 to turn it off"
    assert refusal(n=0) == "n must be an integer >= 1, got 0; leave it out for the default, 1"


def test_an_element_that_breaks_a_rule_is_named_by_its_place() -> None:
    assert "stop_token_ids[1] must be a token id in [0, 1048576), got -1" in refusal(stop_token_ids=[3, -1])
    assert "bad_words_token_ids[1][0] must be a token id" in refusal(bad_words_token_ids=[1, [-2]])
    assert "logit_bias[5] must be" in refusal(logit_bias={5: math.nan})


def test_a_huge_value_makes_a_short_message() -> None:
    assert len(refusal(stop=["x" * 10**6, 3])) < 300
    assert "an integer of 16610 bits" in refusal(max_tokens=10**5000)


def test_temperature_none_means_one_and_zero_means_greedy() -> None:
    assert SamplingParams(temperature=None).temperature == 1.0  # pyright: ignore[reportArgumentType]
    assert SamplingParams(temperature=0).sampling_type is SamplingType.GREEDY
    assert SamplingParams(temperature=1e-6).sampling_type is SamplingType.RANDOM


@pytest.mark.parametrize("value", [1e-21, 1e21, 1e-300, 5e-324, -1e-20])
def test_a_temperature_outside_its_range_is_refused_and_not_clamped(value: float) -> None:
    assert refusal(temperature=value).startswith("temperature must be 0 or in [1e-20, 1e+20]")


def test_a_small_legal_temperature_is_kept() -> None:
    assert SamplingParams(temperature=0.001).temperature == 0.001
    assert SamplingParams(temperature=1e-20).temperature == 1e-20


def test_greedy_leaves_the_other_fields_alone() -> None:
    params = SamplingParams(temperature=0, top_p=0.5, top_k=7, min_p=0.2, n=3)
    assert (params.top_p, params.top_k, params.min_p, params.n) == (0.5, 7, 0.2, 3)


@pytest.mark.parametrize("off", [0, -1, None])
def test_top_k_has_three_spellings_of_off(off: Any) -> None:
    assert SamplingParams(top_k=off).top_k == 0


@pytest.mark.parametrize("seed", [-(2**63), -1, 0, 2**63 - 1])
def test_every_int64_is_a_seed(seed: int) -> None:
    assert SamplingParams(seed=seed).seed == seed


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 2**64])
def test_a_seed_beyond_int64_is_refused(seed: int) -> None:
    assert refusal(seed=seed).startswith("seed must be")


def test_one_stop_string_stands_for_itself_and_duplicates_go() -> None:
    assert SamplingParams(stop="END").stop == ("END",)
    assert SamplingParams(stop=["b", "a", "b"]).stop == ("b", "a")


def test_one_bad_word_is_not_taken_apart() -> None:
    assert SamplingParams(bad_words="darn").bad_words == ("darn",)


def test_a_stop_pattern_that_does_not_compile_is_refused() -> None:
    for pattern in ("(", "*a", "[z-a]", "(?P<1>a)", "a{2,1}"):
        assert "must be a regular expression that compiles" in refusal(stop_pattern=pattern)


def test_a_stop_pattern_is_bounded_in_length() -> None:
    assert refusal(stop_pattern="a" * 16385).startswith("stop_pattern must be at most 16384 characters")


def test_max_tokens_may_be_zero_or_none() -> None:
    assert SamplingParams(max_tokens=0).max_tokens == 0
    assert SamplingParams(max_tokens=None).max_tokens is None


def test_no_allowed_token_is_an_error_and_not_no_restriction() -> None:
    assert "at least one token id" in refusal(allowed_token_ids=[])


def test_id_lists_may_be_numpy_arrays_ranges_and_sets() -> None:
    assert SamplingParams(allowed_token_ids=np.array([4, 2, 4])).allowed_token_ids == (4, 2)  # pyright: ignore
    assert SamplingParams(stop_token_ids=range(3)).stop_token_ids == (0, 1, 2)
    assert SamplingParams(logprob_token_ids={9, 5}).logprob_token_ids == (5, 9)  # pyright: ignore


def test_a_bare_id_is_a_bad_word_of_one_token() -> None:
    assert SamplingParams(bad_words_token_ids=[7, [1, 2], (7,)]).bad_words_token_ids == ((7,), (1, 2))


def test_logit_bias_reads_like_the_mapping_that_was_given() -> None:
    params = SamplingParams(logit_bias={9: -math.inf, 2: 1})
    assert params.logit_bias == {2: 1.0, 9: -math.inf}
    assert list(params.logit_bias or ()) == [2, 9]
    assert hash(params) == hash(SamplingParams(logit_bias={2: 1.0, 9: -math.inf}))


# --- immutability


def test_a_field_cannot_be_assigned() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().top_p = 0.5  # pyright: ignore[reportAttributeAccessIssue]


def test_mappings_inside_cannot_be_changed() -> None:
    guided = GuidedDecodingParams(json={"required": ["a"]})
    bias: Any = SamplingParams(logit_bias={1: 2.0}).logit_bias
    schema: Any = guided.json
    for change in (
        lambda: bias.update({3: 1.0}),
        lambda: bias.__setitem__(3, 1.0),
        lambda: bias.pop(1),
        lambda: schema["required"].append("b"),
        lambda: schema.__ior__({"x": 1}),
    ):
        with pytest.raises(TypeError, match="cannot be changed"):
            change()
    assert (bias, schema) == ({1: 2.0}, {"required": ["a"]})


def test_the_caller_may_change_what_he_gave_without_effect() -> None:
    schema, ids = {"enum": [1, 2]}, [4]
    guided, params = GuidedDecodingParams(json=schema), SamplingParams(stop_token_ids=ids)
    schema["enum"].append(3)
    ids.append(5)
    assert (guided.json, params.stop_token_ids) == ({"enum": [1, 2]}, (4,))


def test_copies_are_equal() -> None:
    params = SamplingParams(logit_bias={1: 2.0}, guided_decoding=GuidedDecodingParams(json={"a": [1]}), seed=3)
    assert copy.copy(params) == copy.deepcopy(params) == params.clone() == params
    assert hash(copy.deepcopy(params)) == hash(params)


def test_dataclass_tools_work_on_parameters() -> None:
    params = SamplingParams(logit_bias={1: 2.0}, guided_decoding=GuidedDecodingParams(json={"a": [1]}))
    assert dataclasses.replace(params, seed=3) == params.replace(seed=3)
    fields = dataclasses.asdict(params)
    assert (fields["logit_bias"], fields["guided_decoding"]["json"]) == ({1: 2.0}, {"a": [1]})


def test_json_values_of_another_type_make_other_parameters() -> None:
    assert GuidedDecodingParams(json={"const": 1}) != GuidedDecodingParams(json={"const": True})
    assert GuidedDecodingParams(json={"const": 1}) != GuidedDecodingParams(json={"const": 1.0})


def test_the_order_of_a_schema_is_kept_and_counts() -> None:
    first, second = {"b": 1, "a": 2}, {"a": 2, "b": 1}
    assert GuidedDecodingParams(json=first).to_dict()["json"] == first
    assert list(GuidedDecodingParams(json=first).to_dict()["json"]) == ["b", "a"]
    assert GuidedDecodingParams(json=first) != GuidedDecodingParams(json=second)


def test_the_repr_shows_what_was_given_and_builds_it_again() -> None:
    params = SamplingParams(temperature=0.5, stop=["a"])
    assert repr(params) == "SamplingParams(temperature=0.5, stop=('a',))"


# --- names


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    assert refusal(temprature=1.0).endswith("got 'temprature'; did you mean 'temperature'?")
    with pytest.raises(ParamsError, match="did you mean 'choice'"):
        GuidedDecodingParams(choise=["a"])  # pyright: ignore[reportCallIssue]
    with pytest.raises(ParamsError, match="did you mean 'top_k'"):
        SamplingParams().replace(topk=3)


def test_options_are_given_by_name() -> None:
    with pytest.raises(ParamsError, match="must be given options by name, got 4"):
        BeamSearchParams(4, 64)  # pyright: ignore[reportCallIssue]


def test_a_beam_search_needs_width_and_length() -> None:
    with pytest.raises(ParamsError, match="BeamSearchParams must be given beam_width"):
        BeamSearchParams()  # pyright: ignore[reportCallIssue]
    with pytest.raises(ParamsError, match="BeamSearchParams must be given max_tokens"):
        BeamSearchParams(beam_width=2)  # pyright: ignore[reportCallIssue]


# --- fields together


def test_best_of_must_reach_n_and_does_not_replace_it() -> None:
    assert refusal(n=3, best_of=2).startswith("best_of must be >= n, which is 3, got 2;")
    params = SamplingParams(n=2, best_of=5)
    assert (params.n, params.best_of) == (2, 5)
    assert (params.replace(seed=1).n, params.replace(seed=1).best_of) == (2, 5)


def test_min_tokens_may_not_pass_max_tokens() -> None:
    assert refusal(min_tokens=17).startswith("min_tokens must be <= max_tokens, which is 16, got 17;")
    assert SamplingParams(min_tokens=17, max_tokens=None).min_tokens == 17


@pytest.mark.parametrize("option", [{"stop": ["a"]}, {"stop_pattern": "a"}])
def test_stop_strings_need_text(option: dict[str, Any]) -> None:
    assert "stop strings require detokenize=True" in refusal(detokenize=False, **option)


def test_replace_checks_the_whole_again() -> None:
    with pytest.raises(ParamsError, match=r"^min_tokens must be <= max_tokens"):
        SamplingParams(min_tokens=10).replace(max_tokens=5)
    with pytest.raises(ParamsError, match=r"^top_p must be in"):
        SamplingParams().replace(top_p=2)


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_penalties_keep_the_limit_of_the_semantics(name: str) -> None:
    assert refusal(**{name: 2.5}).startswith(f"{name} must be in [-2, 2] under semantics 'canonical', got 2.5;")
    assert refusal(**{name: -99.0}).startswith(f"{name} must be in [-2, 2]")
    options: dict[str, Any] = {name: -99.0, "semantics": "llamacpp"}
    kept = SamplingParams(**options)
    assert getattr(kept, name) == -99.0


def test_greedy_is_refused_where_the_semantics_has_none() -> None:
    assert "must be above 0 under semantics 'nanovllm'" in refusal(temperature=0, semantics="nanovllm")
    assert SamplingParams(temperature=0, semantics="gemma-topk").sampling_type is SamplingType.GREEDY


def test_greedy_needs_no_temperature_stage_and_scale_counts_as_one() -> None:
    bare = Semantics(name="bare", stages=("top_k",))
    scaled = Semantics(name="scaled", stages=("scale", "top_k"))
    assert SamplingParams(temperature=0, semantics=bare).temperature == 0.0
    assert SamplingParams(temperature=0.5, semantics=scaled).temperature == 0.5
    assert "has no temperature stage" in refusal(temperature=0.5, semantics=bare)
    assert "has no temperature stage" in refusal(dynatemp_range=0.5, semantics=scaled)


def test_a_preset_never_changes_a_field() -> None:
    for preset in PRESETS:
        changed = SamplingParams(semantics=preset)
        assert changed.replace(semantics="canonical") == SamplingParams()


def test_an_unknown_semantics_is_refused_with_the_nearest_name() -> None:
    assert "did you mean 'vllm'" in refusal(semantics="vlm")
    assert "got '0.1'" in refusal(semantics="vllm@0.1")


def test_masks_exist_under_every_semantics() -> None:
    for preset in PRESETS:
        params = SamplingParams(
            allowed_token_ids=[1], bad_words=["a"], bad_words_token_ids=[2], min_tokens=3, semantics=preset
        )
        assert params.min_tokens == 3


def test_a_dynamic_temperature_stays_in_the_range_of_temperatures() -> None:
    assert "temperature + dynatemp_range <= 1e20" in refusal(temperature=1e20, dynatemp_range=1e20)


# --- processors


@pytest.fixture
def two_processors() -> Any:
    register_processor("scale_by", lambda logits, args: logits, arg_names=("factor",))
    register_processor("anything", lambda logits, args: logits)
    yield
    unregister_processor("scale_by")
    unregister_processor("anything")


@pytest.mark.usefixtures("two_processors")
class TestProcessors:
    def test_a_named_processor_with_declared_arguments_is_accepted(self) -> None:
        params = SamplingParams(logits_processors=[("scale_by", {"factor": 2})])
        assert params.logits_processors == (("scale_by", {"factor": 2}),)
        assert isinstance(hash(params), int)

    def test_an_unregistered_name_is_refused_with_the_nearest(self) -> None:
        assert "did you mean 'scale_by'" in refusal(logits_processors=[("scale_bye", {})])

    def test_an_undeclared_argument_is_refused(self) -> None:
        message = refusal(logits_processors=[("scale_by", {"facter": 2})])
        assert "must be one that 'scale_by' declares, got 'facter'" in message

    def test_an_extra_argument_must_reach_some_processor(self) -> None:
        assert "extra_args key must be declared" in refusal(extra_args={"factor": 1})
        assert "got 'other'" in refusal(extra_args={"other": 1}, logits_processors=[("scale_by", {})])
        kept = SamplingParams(extra_args={"factor": 1}, logits_processors=[("scale_by", {})])
        assert kept.extra_args == {"factor": 1}

    def test_a_processor_without_declaration_takes_any_argument(self) -> None:
        params = SamplingParams(extra_args={"x": [1]}, logits_processors=[("anything", {"y": None})])
        assert (params.extra_args, params.logits_processors[0][1]) == ({"x": [1]}, {"y": None})

    def test_an_argument_given_twice_is_refused(self) -> None:
        message = refusal(extra_args={"factor": 1}, logits_processors=[("scale_by", {"factor": 2})])
        assert "must not repeat an argument of processor 'scale_by'" in message

    def test_the_order_of_extra_arguments_means_nothing(self) -> None:
        named: Any = {"logits_processors": [("anything", {})]}
        first = SamplingParams(extra_args={"a": 1, "b": {"d": 1, "c": 2}}, **named)
        second = SamplingParams(extra_args={"b": {"c": 2, "d": 1}, "a": 1}, **named)
        assert (first, hash(first)) == (second, hash(second))


# --- JSON


def test_to_dict_keeps_what_the_user_gave() -> None:
    plain = SamplingParams(temperature=0.1, stop=["a"], logit_bias={3: -math.inf, 4: 0.3}, seed=-1).to_dict()
    assert plain["schema"] == 1
    assert (plain["temperature"], plain["stop"], plain["seed"]) == (0.1, ["a"], -1)
    assert plain["logit_bias"] == {"3": "-inf", "4": 0.3}
    assert list(plain)[1:] == list(specs(SamplingParams))


def test_what_to_dict_returns_may_be_changed_without_effect() -> None:
    guided = GuidedDecodingParams(json={"enum": [1]})
    guided.to_dict()["json"]["enum"].append(2)
    assert guided.json == {"enum": [1]}


def test_a_partial_dictionary_takes_defaults() -> None:
    assert SamplingParams.from_dict({"top_k": 4}) == SamplingParams(top_k=4)


def test_unknown_keys_and_versions_are_refused() -> None:
    with pytest.raises(ParamsError, match="did you mean 'top_p'"):
        SamplingParams.from_dict({"top_pp": 1})
    for version in (2, 0, "1", True, None, 1.0):
        with pytest.raises(ParamsError, match="schema must be 1"):
            SamplingParams.from_dict({"schema": version})


def test_from_dict_wants_a_mapping() -> None:
    with pytest.raises(ParamsError, match="must be read from a mapping, got 5"):
        SamplingParams.from_dict(5)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "text",
    [
        '{"temperature": NaN}',
        '{"temperature": Infinity}',
        '{"n": 1, "n": 2}',
        '{"n": ',
        "",
        '{"n": ' + "1" * 5000 + "}",
        "[" * 100_000,
        b"\xff\xfe\xff",
        b'{"n": "\xff"}',
    ],
    ids=["nan", "infinity", "twice", "cut", "empty", "digits", "deep", "utf16", "utf8"],
)
def test_text_that_is_not_strict_json_is_refused(text: Any) -> None:
    with pytest.raises(ParamsError, match="must be read from"):
        SamplingParams.from_json(text)


def test_a_json_value_breaks_the_same_rules() -> None:
    with pytest.raises(ParamsError, match=r"^n must be an integer >= 1, got True"):
        SamplingParams.from_json('{"n": true}')
    with pytest.raises(ParamsError, match=r"^output_kind must be"):
        SamplingParams.from_json('{"output_kind": 2}')


@pytest.mark.parametrize("key", ["05", "-1", "1.0", "x", "", "٣", "10000000"])
def test_a_bias_key_in_json_is_a_canonical_id(key: str) -> None:
    with pytest.raises(ParamsError, match=r"^logit_bias key"):
        SamplingParams.from_dict({"logit_bias": {key: 1.0}})


def test_a_bias_for_the_same_id_twice_is_refused() -> None:
    with pytest.raises(ParamsError, match=r"^logit_bias must be a mapping with each token id once"):
        SamplingParams.from_dict({"logit_bias": {"5": 1.0, 5: 2.0}})


def test_nested_parameters_are_read_with_their_own_rules() -> None:
    guided = {"guided_decoding": {"choice": ["a"]}}
    assert SamplingParams.from_dict(guided).guided_decoding == GuidedDecodingParams(choice=["a"])
    with pytest.raises(ParamsError, match="exactly one of"):
        SamplingParams.from_dict({"guided_decoding": {}})


def test_a_custom_semantics_survives_json() -> None:
    mine = Semantics(name="mine", stages=("temperature", "min_p"), penalty_limit=math.inf)
    params = SamplingParams(semantics=mine, min_p=0.1)
    assert SamplingParams.from_json(params.to_json()).semantics == mine
    with pytest.raises(ParamsError, match="semantics option"):
        SamplingParams.from_dict({"semantics": {"stage": []}})


def test_to_json_passes_layout_options_on() -> None:
    text = SamplingParams().to_json(indent=2, sort_keys=True)
    assert list(json.loads(text)) == sorted(SamplingParams().to_dict())


# --- guided decoding and beams


def test_exactly_one_mode_is_given() -> None:
    with pytest.raises(ParamsError, match=r"exactly one of .*, got none"):
        GuidedDecodingParams()
    with pytest.raises(ParamsError, match="got json and structural_tag"):
        GuidedDecodingParams(json={}, structural_tag="{}")
    assert GuidedDecodingParams(json={}).mode == "json"


def test_json_object_false_is_refused_by_name() -> None:
    with pytest.raises(ParamsError, match=r"^json_object must be one of True, None, got False"):
        GuidedDecodingParams(json_object=False)


def test_an_empty_choice_is_refused() -> None:
    with pytest.raises(ParamsError, match=r"^choice must be"):
        GuidedDecodingParams(choice=[])


def test_the_number_and_size_of_choices_are_bounded() -> None:
    with pytest.raises(ParamsError, match="at most 4096 strings, got 4097"):
        GuidedDecodingParams(choice=[str(i) for i in range(4097)])
    with pytest.raises(ParamsError, match="at most 262144 bytes in all"):
        GuidedDecodingParams(choice=["a" * 200_000, "b" * 100_000])


@pytest.mark.parametrize("backend", ["outlines", "lm-format-enforcer", "LLGuidance", ""])
def test_an_unknown_backend_is_refused(backend: str) -> None:
    with pytest.raises(ParamsError, match=r"^backend must be one of None, 'auto', 'llguidance', 'xgrammar'"):
        GuidedDecodingParams(json={}, backend=backend)


def test_backend_was_auto_reports_who_chose() -> None:
    auto = GuidedDecodingParams(json={})
    assert (auto.backend_was_auto, GuidedDecodingParams(json={}, backend="auto").backend_was_auto) == (True, True)
    assert auto.replace(backend="xgrammar").backend_was_auto is False


@pytest.mark.parametrize(
    ("option", "mode"),
    [
        ({"disable_any_whitespace": True}, {"regex": "a"}),
        ({"whitespace_pattern": " "}, {"choice": ["a"]}),
        ({"disable_additional_properties": True}, {"json_object": True}),
        ({"disable_any_whitespace": True, "whitespace_pattern": " "}, {"json": {}}),
    ],
)
def test_an_option_the_mode_cannot_use_is_refused(option: dict[str, Any], mode: dict[str, Any]) -> None:
    with pytest.raises(ParamsError, match=next(reversed(option))):
        GuidedDecodingParams(**mode, **option)


def test_patterns_and_schemas_are_bounded() -> None:
    for name, size in [("regex", 16384), ("grammar", 16384), ("structural_tag", 262144), ("json", 262144)]:
        with pytest.raises(ParamsError, match=f"{name} must be at most {size} bytes"):
            GuidedDecodingParams.from_dict({name: "é" * (size // 2) + "a"})
    with pytest.raises(ParamsError, match="json must be at most 262144 bytes as JSON"):
        GuidedDecodingParams(json={"enum": ["a" * 262144]})


def test_a_schema_nested_too_deep_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100_000):
        schema = {"not": schema}
    with pytest.raises(ParamsError, match="nested at most 64 deep"):
        GuidedDecodingParams(json=schema)


def test_beam_early_stopping_tells_one_from_true() -> None:
    assert BeamSearchParams(beam_width=2, max_tokens=3, early_stopping="never").early_stopping == "never"
    with pytest.raises(ParamsError, match="early_stopping must be one of False, True, 'never', got 1"):
        BeamSearchParams(beam_width=2, max_tokens=3, early_stopping=1)  # pyright: ignore[reportArgumentType]
