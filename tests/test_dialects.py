"""Other engines' request fields: each is read into something, refused by name, and written back."""

from __future__ import annotations

import csv
import importlib
import json
import pkgutil
from pathlib import Path
from typing import Any

import pytest
from dialect_cases import CASES, Case, case_of
from hypothesis import given, reject
from hypothesis import strategies as st
from tries import tries

from tirage import GuidedDecodingParams, ParamsError, SamplingParams, Watermark, dialects
from tirage.dialects import (
    DIALECTS,
    Dialect,
    DialectError,
    beams_from_sglang,
    from_anthropic,
    from_fastdeploy,
    from_llamacpp,
    from_openai,
    from_sglang,
    reference,
    to_anthropic,
    to_llamacpp,
    to_sglang,
)
from tirage.dialects.conversion import CARRIED
from tirage.dialects.fastdeploy import EXTRAS
from tirage.dialects.openai import OPENAI
from tirage.dialects.own import OWN
from tirage.dialects.table import join, lost_fields
from tirage.dialects.vllm import VLLM
from tirage.operators import OPERATORS
from tirage.params import FIELDS
from tirage.patterns import compile_pattern, search
from tirage.semantics import PRESETS

PAGE = Path(__file__).parents[1] / "docs" / "dialects.md"

EVERY = [(name, field) for name, case in CASES.items() for field in case.dialect.entries]

REFUSED_HERE = {("sglang", "custom_params")}
"""Fields whose values can be said, but not by themselves."""


@st.composite
def requests(draw: st.DrawFn, case: Case) -> dict[str, Any]:
    """A request of a dialect: some of its fields, with values that may not fit together."""
    names = draw(st.lists(st.sampled_from(sorted(case.values)), unique=True, max_size=6))
    found: dict[str, Any] = {}
    for name in names:
        found |= case.needs.get(name, {}) | {name: draw(st.sampled_from(case.values[name]))}
    return found


OURS: dict[str, list[Any]] = {
    **{name: list(tries[:1]) for operator in OPERATORS.values() for name, tries in operator.examples.items()},
    "temperature": [0, 0.5, 1.0],
    "sequence_bias": [[[[1, 2], 1.5]], {(3, 4, 5): -float("inf"), (6, 7): 0.5}],
    "top_p": [0.5],
    "top_k": [3],
    "min_p": [0.25],
    "typical_p": [0.5],
    "repetition_penalty": [3.0, 1.25],
    "frequency_penalty": [0.5],
    "no_repeat_ngram_size": [2],
    "stop": [["a"], ["a", "b", "c", "d", "e", "f"]],
    "stop_pattern": ["a+"],
    "max_tokens": [None, 5, 300],
    "min_tokens": [3],
    "logprobs": [0, 3, 30],
    "logprobs_mode": ["sampled", "processed"],
    "logit_bias": [{3: 1.0}, {3: -float("inf")}, {3: 1e6}],
    "bad_words_token_ids": [[(1, 2)], [(3,)]],
    "seed": [3, -1, -5],
    "n": [3, 200],
    "best_of": [300],
    "dry_multiplier": [0.5],
    "include_stop_str_in_output": [True],
    "ignore_eos": [True],
    "truncate_prompt_tokens": [4],
    "close_grammar": [True],
    "reasoning_parser": ["qwen3"],
    "forcing": ["canonical"],
    "thinking_budget": [0, 64],
    "allowed_token_ids": [[1]],
    "presence_penalty": [0.5],
    "stop_token_ids": [[3]],
    "bad_words": [["a"]],
    "bad_words_level": ["text"],
    "prompt_logprobs": [2],
    "logprob_token_ids": [[3]],
    "return_kept": [True],
    "max_kept_ids": [50],
    "detokenize": [False],
    "skip_special_tokens": [False],
    "spaces_between_special_tokens": [False],
    "guided_decoding": [
        GuidedDecodingParams(regex="a+"),
        GuidedDecodingParams(choice=["a"]),
        GuidedDecodingParams(grammar="root ::= 'a'"),
        GuidedDecodingParams(json_object=True),
    ],
    "logits_processors": [[("thinking_budget", {"thinking_budget": 3, "think_start_id": 1, "think_end_id": 2})]],
    "epsilon_cutoff": [0.01],
    "eta_cutoff": [0.01],
    "top_n_sigma": [1.5],
    "top_h": [0.5],
    "xtc_probability": [0.5],
    "xtc_threshold": [0.2],
    "xtc_protected_ids": [[3]],
    "watermark": [
        Watermark(scheme="gumbel", key=5),
        Watermark(scheme="kgw", key=7, bias=3.0, context_width=2),
        Watermark(scheme="synthid", key=[1, 2, 3], ngram_len=4),
    ],
    "dry_base": [2.0],
    "dry_allowed_length": [3],
    "dry_last_n": [5],
    "dry_sequence_breakers": [["a"]],
    "dry_breaker_token_ids": [[3]],
    "dynatemp_range": [0.2],
    "dynatemp_exponent": [2.0],
}
ELSEWHERE = {"extra_args", "output_kind", "semantics"}
"""Fields that go with a processor, with the way of delivery, and with whose meaning it is."""


@st.composite
def parameters(draw: st.DrawFn) -> SamplingParams:
    names = draw(st.lists(st.sampled_from(sorted(OURS)), unique=True, max_size=6))
    try:
        return SamplingParams(**{name: draw(st.sampled_from(OURS[name])) for name in names})
    except ParamsError:
        reject()


# --- the registry -------------------------------------------------------------------------------------------------


def test_the_package_exports_the_functions_of_every_registered_dialect() -> None:
    functions = {function for each in DIALECTS.values() for function in (each.reader, each.writer)}
    assert {getattr(dialects, function.__name__) for function in functions} == functions
    exported = {name for name in dialects.__all__ if name.startswith(("from_", "to_"))}
    assert exported == {function.__name__ for function in functions}


def test_every_table_of_fields_with_a_preset_of_an_engine_is_registered() -> None:
    parts = {id(EXTRAS), id(OWN)}
    modules = [
        importlib.import_module(f"tirage.dialects.{each.name}") for each in pkgutil.iter_modules(dialects.__path__)
    ]
    tables = {id(value): value for module in modules for value in vars(module).values() if isinstance(value, Dialect)}
    assert tables.keys() - parts == {id(each.dialect) for each in DIALECTS.values()}


def test_a_dialect_or_a_field_without_values_is_noticed() -> None:
    with pytest.raises(KeyError, match="new engine"):
        case_of("new engine", ["temperature"])
    with pytest.raises(KeyError, match="new_field"):
        case_of("vllm", ["temperature", "new_field"])


def test_the_page_lists_the_registered_dialects() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert reference.filled(text) == text
    assert all(each.request in text for each in DIALECTS.values())
    with pytest.raises(ValueError, match="no table of dialects"):
        reference.filled("# Dialects")


# --- fields ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "field"), EVERY)
def test_every_field_changes_something_or_is_refused(name: str, field: str) -> None:
    case = CASES[name]
    beside = case.needs.get(field, {})
    for value in case.values[field]:
        if (name, field) in REFUSED_HERE:
            with pytest.raises(DialectError, match=f"^{field} must"):
                case.read({**beside, field: value})
        else:
            assert case.read({**beside, field: value}) != case.read(beside)


@pytest.mark.parametrize(("name", "field"), EVERY)
def test_a_value_of_the_wrong_kind_is_refused_with_their_name(name: str, field: str) -> None:
    for wrong in (object(), [[[]]], {"": object()}):
        with pytest.raises(DialectError) as caught:
            CASES[name].read({**CASES[name].needs.get(field, {}), field: wrong})
        assert str(caught.value).startswith(field)
        assert str(caught.value.param).startswith(field)


@pytest.mark.parametrize(("name", "field"), EVERY)
def test_null_is_as_absent(name: str, field: str) -> None:
    case = CASES[name]
    entry = case.dialect.entries[field]
    if entry.null is ...:
        assert case.read({field: None}) == case.read({})
    else:
        assert case.read({field: None}).max_tokens is None


@pytest.mark.parametrize("name", CASES)
def test_an_unknown_field_is_refused_with_the_nearest_name(name: str) -> None:
    known = "temperature" if "temperature" in CASES[name].dialect.entries else "xtc_threshold"
    wrong = known.replace("e", "", 1)
    with pytest.raises(DialectError, match=rf"field must be a known name, got '{wrong}'; did you mean '{known}'\?"):
        CASES[name].read({wrong: 1})
    with pytest.raises(DialectError, match="must be a mapping of fields, got 3"):
        CASES[name].read(3)


@pytest.mark.parametrize("name", CASES)
def test_a_field_the_engine_has_and_we_do_not_take_says_why(name: str) -> None:
    case = CASES[name]
    for field, each in case.dialect.unsupported.items():
        assert all(case.read({field: value}) == case.read({}) for value in (None, *each.inert))
        with pytest.raises(DialectError, match=f"^{field} must be .*left out, got a value") as caught:
            case.read({field: object()})
        assert str(caught.value).endswith(f"; {each.reason}")
        assert caught.value.param == field


# --- both ways ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@tries(60)
@given(data=st.data())
def test_what_was_read_is_written_and_read_again(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    request = data.draw(requests(case))
    try:
        params = case.read(request)
    except DialectError:
        return
    plain, lost = case.write(params, lossy=True)
    again = case.read(json.loads(json.dumps(plain)))
    assert lost == []
    assert again.semantics == params.semantics
    assert lost_fields(params, again) == []
    assert case.write(again) == plain == case.write(params)


def test_every_field_of_ours_is_tried() -> None:
    assert set(OURS) | ELSEWHERE == {name for name, spec in FIELDS.items() if spec.public}


@pytest.mark.parametrize("name", CASES)
@tries(60)
@given(params=parameters())
def test_what_cannot_be_written_is_named_and_nothing_else_differs(name: str, params: SamplingParams) -> None:
    case = CASES[name]
    plain, lost = case.write(params, lossy=True)
    assert lost_fields(params, case.read(plain)) == lost
    if not lost:
        assert case.write(params) == plain
    else:
        with pytest.raises(ParamsError, match=f"^{lost[0]} must be a value that .* can express"):
            case.write(params)


@pytest.mark.parametrize("name", CASES)
def test_the_engines_own_defaults_are_written_as_nothing(name: str) -> None:
    assert CASES[name].write(CASES[name].read({})) == {}


def test_a_greedy_request_does_not_need_its_filters() -> None:
    params = SamplingParams(temperature=0, top_p=0.5, typical_p=0.5, max_tokens=20)
    assert CASES["hf"].write(params) == {}
    assert CASES["openai"].write(params) == {"temperature": 0.0, "top_p": 0.5, "max_completion_tokens": 20}


def test_a_schema_is_the_same_as_text_and_as_a_mapping() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    params = SamplingParams(guided_decoding=GuidedDecodingParams(json=schema, backend="xgrammar"))
    assert json.loads(to_sglang(params)["json_schema"]) == schema
    text = SamplingParams(guided_decoding=GuidedDecodingParams(json=json.dumps(schema)))
    assert CASES["openai"].write(text)["response_format"]["json_schema"]["schema"] == schema


def test_only_parameters_are_written() -> None:
    with pytest.raises(ParamsError, match="params must be a SamplingParams, got dict"):
        to_sglang({"temperature": 0})  # pyright: ignore[reportArgumentType]


# --- defaults and messages -----------------------------------------------------------------------------------------


def test_each_engine_brings_its_defaults() -> None:
    plain = {name: case.read({}) for name, case in CASES.items()}
    assert {name: params.max_tokens for name, params in plain.items()} == {
        "sglang": 128,
        "openai": None,
        "openai-completions": 16,
        "anthropic": None,
        "vllm": 16,
        "hf": 20,
        "fastdeploy": None,
        "llamacpp": None,
        "mlx": 256,
        "easydel": 16,
        "gemma": 2048,
        "mindie": None,
    }
    assert [plain[name].temperature for name in ("mlx", "gemma", "mindie", "easydel")] == [0, 0, 0, 1]
    assert (plain["fastdeploy"].top_p, plain["fastdeploy"].min_tokens) == (0.7, 1)
    assert from_fastdeploy({}, generation_config={"top_p": 0.9}).top_p == 0.9
    assert from_fastdeploy({"top_p": 1.0}, generation_config={"top_p": 0.9}).top_p == 1.0
    assert (plain["llamacpp"].temperature, plain["llamacpp"].top_k) == (0.8, 40)
    assert (plain["hf"].temperature, CASES["hf"].read({"do_sample": True}).top_k) == (0.0, 50)
    assert plain["sglang"].semantics == "sglang"


@pytest.mark.parametrize(
    ("request_", "message", "param"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens must be an integer >= 0 or None, got -1", "max_new_tokens"),
        ({"min_new_tokens": 200}, "min_new_tokens must be <= max_new_tokens, which is 128, got 200", "min_new_tokens"),
        ({"top_p": 0}, r"top_p must be in \(0, 1\], got 0", "top_p"),
        ({"top_k": -2}, "top_k must be an integer >= 0 or -1 or None, got -2", "top_k"),
        ({"repetition_penalty": 2.5}, r"repetition_penalty must be in \(0, 2\], got 2.5", "repetition_penalty"),
        ({"frequency_penalty": 2.5}, r"frequency_penalty must be in \[-2, 2\], got 2.5", "frequency_penalty"),
        ({"temperature": -1}, "temperature must be 0 or in", "temperature"),
        ({"temperature": float("nan")}, "temperature must be 0 or in .* got nan", "temperature"),
        ({"temperature": True}, "temperature must be .* got True", "temperature"),
        ({"max_new_tokens": 2.0}, "max_new_tokens must be an integer .* got 2.0", "max_new_tokens"),
        ({"n": 0}, "n must be an integer >= 1, got 0", "n"),
        ({"stop": [""]}, r"stop\[0\] must be a non-empty string", "stop[0]"),
        ({"stop": ["a"] * 3 + [str(i) for i in range(40)]}, "stop must be at most 32 strings", "stop"),
        ({"stop": "a" * 257}, r"stop\[0\] must be at most 256 characters", "stop[0]"),
        ({"stop_token_ids": [1, -1]}, r"stop_token_ids\[1\] must be a token id", "stop_token_ids[1]"),
        ({"stop_regex": "("}, "stop_regex must be a regular expression that compiles", "stop_regex"),
        ({"stop_regex": ["a", "(?=b)"]}, r"stop_regex\[1\] must be", "stop_regex[1]"),
        ({"stop_regex": "a" * 257}, "stop_regex must be at most 256 bytes", "stop_regex"),
        ({"sampling_seed": 2**63}, "sampling_seed must be", "sampling_seed"),
        ({"regex": "a", "ebnf": "b"}, "ebnf must not be given together with regex", "ebnf"),
        ({"json_schema": {"type": "object"}}, "json_schema must be a JSON schema as a string", "json_schema"),
        ({"logit_bias": {"a": 1}}, "logit_bias key 'a' must be a token id", "logit_bias"),
        ({"custom_params": {"a": 1}}, "custom_params must go with custom_logit_processor", "custom_params"),
    ],
)
def test_errors_speak_of_their_names(request_: dict[str, Any], message: str, param: str) -> None:
    with pytest.raises(DialectError, match=message) as caught:
        from_sglang(request_)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("request_", "message", "param"),
    [
        ({"temperature": 1.5}, r"temperature must be 0 or in \[1e-20, 1\], got 1.5", "temperature"),
        ({"thinking": {"type": "no"}}, "thinking must be an object of type", "thinking"),
        ({"thinking": {"type": "disabled", "budget_tokens": 5}}, "thinking must be an object of type", "thinking"),
        ({"thinking": {"type": []}}, "thinking must be an object of type", "thinking"),
        (
            {"thinking": {"type": "enabled"}},
            "thinking.budget_tokens must be an integer >= 1, got None",
            "thinking.budget_tokens",
        ),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 9}, "max_tokens": 9},
            "thinking.budget_tokens must be less than max_tokens, 9, got 9",
            "thinking.budget_tokens",
        ),
        ({"output_config": {"format": {"type": "json_object"}}}, "output_config must be an object", "output_config"),
        ({"output_config": {}}, "output_config must be an object", "output_config"),
        (
            {"output_config": {"effort": "high"}},
            "output_config.effort must be left out: it is a variable of the chat's template, got 'high'",
            "output_config.effort",
        ),
        ({"service_tier": "priority"}, "service_tier must be 'auto' or 'standard_only' or left out", "service_tier"),
    ],
)
def test_errors_speak_of_anthropics_names(request_: dict[str, Any], message: str, param: str) -> None:
    with pytest.raises(DialectError, match=f"^{message}") as caught:
        from_anthropic(request_)
    assert caught.value.param == param


def test_thinking_is_a_budget_both_ways() -> None:
    params = from_anthropic({"max_tokens": 200, "thinking": {"type": "enabled", "budget_tokens": 64}})
    assert params.thinking_budget == 64
    assert to_anthropic(params) == {"max_tokens": 200, "thinking": {"type": "enabled", "budget_tokens": 64}}
    for kind in ("adaptive", "disabled"):
        assert from_anthropic({"thinking": {"type": kind}}).thinking_budget is None
    for lost in (SamplingParams(thinking_budget=0), SamplingParams(thinking_budget=64, max_tokens=64)):
        assert to_anthropic(lost, lossy=True)[1] == ["thinking_budget"]


def test_every_field_of_anthropics_messages_is_a_parameter_or_set_aside_or_refused_with_a_reason() -> None:
    with (PAGE.parents[1] / "tests" / "peers" / "fields" / "anthropic.csv").open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    names = {row["field"] for row in rows if row["kind"] in {"messages.create", "beta.messages.create"}}
    dialect = DIALECTS["anthropic"].dialect
    assert {"max_tokens", "stop_sequences", "thinking", "output_config"} <= names
    assert names <= {*dialect.entries, *dialect.unsupported, *CARRIED}
    # Those that its package no longer has are vLLM's and SGLang's.
    assert set(dialect.entries) - names == {"temperature", "top_p", "top_k"}


def test_all_past_tokens_are_told_to_llamacpp_as_a_number() -> None:
    """Its newer releases answer -1 with 400, older ones take either."""
    every = PRESETS["llamacpp"].replace(name="llamacpp", penalty_window=None)
    fields = to_llamacpp(SamplingParams(semantics=every, repetition_penalty=1.3, dry_multiplier=0.8, dry_last_n=-1))
    assert (fields["repeat_last_n"], fields["dry_penalty_last_n"]) == (1 << 20, 1 << 20)
    for number in (-1, 1 << 20):
        read = from_llamacpp({"repeat_last_n": number, "dry_penalty_last_n": number})
        assert (read.semantics, read.dry_last_n) == (every, -1)
    # To older releases an absent number is all tokens, to newer ones 64.
    assert from_llamacpp({"dry_multiplier": 0.8}).dry_last_n == 64
    assert to_llamacpp(from_llamacpp({"dry_multiplier": 0.8})) == {"dry_multiplier": 0.8, "dry_penalty_last_n": 64}


def test_several_stop_patterns_are_one() -> None:
    assert from_sglang({"stop_regex": ["a+", "b|c"]}).stop_pattern == "(?:a+)|(?:b|c)"
    assert from_sglang({"stop_regex": []}).stop_pattern is None
    flags = from_sglang({"stop_regex": ["(?i)the", "(?x)a b # c", "(?i)(?s)x.y"]}).stop_pattern
    assert flags is not None
    found = [search(compile_pattern(flags), text) for text in ("one THE", "AB", "zab", "X\nY", "The")]
    assert found == [(4, 7), None, (1, 3), (0, 3), (0, 3)]


def test_the_patterns_of_a_request_share_one_bound() -> None:
    within = [f"[0-9]{{28}}{number:02}" for number in range(32)]
    assert from_sglang({"stop_regex": within}).stop_pattern is not None
    wide = ["[abcdefghijklmnop]" * 13 + f"{number:02}" for number in range(32)]
    assert sum(map(len, wide)) > 7000
    assert from_sglang({"stop_regex": wide}).stop_pattern is not None
    with pytest.raises(DialectError, match="stop_regex must be patterns of at most 2000 states together") as caught:
        from_sglang({"stop_regex": ["q" * 250 + f"{number:02}" for number in range(32)]})
    assert caught.value.param == "stop_regex"


def test_an_empty_constraint_is_none() -> None:
    for field in ("json_schema", "regex", "ebnf", "structural_tag"):
        assert from_sglang({field: ""}).guided_decoding is None
    with pytest.raises(DialectError, match="must not be given together"):
        from_sglang({"regex": "a", "json_schema": ""})


def test_a_beam_search_is_read_apart() -> None:
    beams, rest = beams_from_sglang({"beam_width": 3, "max_new_tokens": 7, "ignore_eos": True})
    assert beams is not None
    assert (beams.beam_width, beams.max_tokens, beams.ignore_eos) == (3, 7, True)
    assert rest == {"max_new_tokens": 7, "ignore_eos": True}
    assert beams_from_sglang({"temperature": 0}) == (None, {"temperature": 0})
    with pytest.raises(DialectError, match="beam_width must be an integer >= 1 or None, got 0"):
        beams_from_sglang({"beam_width": 0})
    with pytest.raises(DialectError, match="max_new_tokens must be a number with beam_width"):
        beams_from_sglang({"beam_width": 2, "max_new_tokens": None})


def test_openai_logprobs_come_in_two_fields() -> None:
    assert from_openai({"logprobs": False}).logprobs is None
    assert from_openai({"logprobs": True, "top_logprobs": 4}).logprobs == 4
    with pytest.raises(DialectError, match="top_logprobs must go with logprobs=true"):
        from_openai({"top_logprobs": 4})
    with pytest.raises(DialectError, match="route must be one of chat, completions"):
        from_openai({}, route="chats")  # pyright: ignore[reportArgumentType]


# --- one table of several ------------------------------------------------------------------------------------------


def test_joined_dialects_are_one() -> None:
    both = join("OpenAI", OPENAI.without("logprobs", "top_logprobs"), VLLM, EXTRAS, OWN)
    body = {"model": "x", "top_k": 4, "sampling_method": "rejection", "typical_p": 1.0}
    reading = both.read(body, defaults={"max_tokens": None, "top_p": 0.7}, lenient=True)
    assert reading.ignored == ("model",)
    assert reading.given == {"top_k": 4, "sampling_method": "rejection", "typical_p": 1.0}
    expected = SamplingParams(top_k=4, top_p=0.7, max_tokens=None, semantics="fastdeploy-rejection")
    assert reading.params == expected
    assert both.read({"top_p": 0.5}, defaults={"top_p": 0.7}).params.top_p == 0.5
    assert both.preset == "openai"
    with pytest.raises(DialectError, match="semantics must not be given together with sampling_method"):
        both.read({"sampling_method": "air", "semantics": "vllm"})
    with pytest.raises(DialectError, match="did you mean 'messages'"):
        both.read({"mesages": []}, known=("messages",))


def test_a_place_is_put_before_the_name() -> None:
    with pytest.raises(DialectError) as caught:
        CASES["sglang"].dialect.read({"top_p": 2}, where="sampling_params[1].")
    assert caught.value.param == "sampling_params[1].top_p"


@pytest.mark.parametrize("name", CASES)
def test_the_schema_names_every_field(name: str) -> None:
    schema = CASES[name].dialect.schema()
    assert set(schema["properties"]) == set(CASES[name].dialect.entries)
    assert json.loads(json.dumps(schema, allow_nan=False)) == schema
    assert all(one["description"] for one in schema["properties"].values())


def test_our_own_fields_are_all_there_but_those_that_routes_spell_themselves() -> None:
    public = {name for name, spec in FIELDS.items() if spec.public}
    assert set(OWN.entries) < public
    assert {"semantics", "typical_p", "close_grammar", "xtc_probability"} <= set(OWN.entries)
