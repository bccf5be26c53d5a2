"""Every field of every parameter class, from its own declaration: bad values, good values, round trips."""

from __future__ import annotations

import enum
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import VALUES
from tries import tries

from tirage.errors import ParamsError
from tirage.fields import rules
from tirage.operators import OPERATORS
from tirage.params import (
    FIELDS,
    BeamSearchParams,
    FieldSpec,
    GuidedDecodingParams,
    RequestOutputKind,
    SamplingParams,
    reference,
    specs,
)
from tirage.params.guided import MODES
from tirage.processors import register_processor, unregister_processor
from tirage.semantics import PRESETS, Semantics
from tirage.watermarks import Watermark

REQUIRED: dict[type, dict[str, Any]] = {
    SamplingParams: {},
    GuidedDecodingParams: {},
    BeamSearchParams: {"beam_width": 2, "max_tokens": 8},
}
EVERY_FIELD = [(kind, spec) for kind in REQUIRED for spec in specs(kind).values()]
EVERY_FIELD_IDS = [f"{kind.__name__}.{spec.name}" for kind, spec in EVERY_FIELD]


class Strange:
    """A type that no parameter takes; its default repr would show a memory address."""


def build(kind: type, name: str, value: Any) -> Any:
    options = REQUIRED[kind] | {name: value}
    if kind is GuidedDecodingParams and name not in MODES:
        options["json"] = {}
    return kind(**options)


def bad_int(rule: rules.Int) -> list[Any]:
    bad = [True, np.bool_(True), "1", b"1", 1.5, 2.0, math.nan, math.inf, [1], Strange(), rule.high + 1, 10**5000]
    below = rule.low - 2 if rule.alias == rule.low - 1 else rule.low - 1
    return [*bad, below] + ([] if rule.optional else [None])


def bad_float(rule: rules.Float) -> list[Any]:
    bad = [True, np.bool_(False), "0.5", b"1", [0.5], 1j, Strange()]
    bad += [math.nan, math.inf, -math.inf, np.float32("nan"), 10**400, -(10**400)]
    bad += [math.nextafter(rule.high, math.inf), math.nextafter(rule.low, -math.inf)]
    bad += [rule.low] if rule.open_low and not (rule.zero and rule.low == 0) else []
    bad += [rule.high] if rule.open_high else []
    return bad + ([] if rule.none is not None else [None])


def bad_list(optional: bool) -> list[Any]:
    return [5, 1.5, True, b"ab", {"a": 1}, Strange(), {1: 2}, np.zeros((2, 2), np.int64)] + ([] if optional else [None])


def bad_values(rule: Any) -> list[Any]:
    """Values that break `rule`. A new kind of rule must be added here: there is no default."""
    ids = [[-1], [1 << 20], [True], [1.0], ["1"], [None], [2**70], [math.nan]]
    texts = [[""], ["a", ""], [1], [None], ["\ud800"], [b"x"]]
    pairs = [[("p",)], ["p"], [(1, {})], [("p", None)], [("", {})], [("p", {"a": math.inf})]]
    match rule:
        case rules.Int():
            return bad_int(rule)
        case rules.Float():
            return bad_float(rule)
        case rules.Bool():
            return [0, 1, "True", None, 1.0, [True], Strange()]
        case rules.Text():
            return ["", 1, b"a", ["a"], True, "\ud800", "x" * (rule.max_bytes + 1)] + ([] if rule.nul else ["a\0b"])
        case rules.PatternRule():
            return ["", "(", "a" * 16385, "*", 1, b"a", ["a"], "(" * 500 + ")" * 500 + "\ud800"]
        case rules.Texts():
            few = [""] if rule.single else ["abc"]
            return bad_list(rule.optional) + texts + few + ([] if rule.empty else [[]])
        case rules.Ids():
            return bad_list(rule.optional) + ids + ["1"] + ([] if rule.empty else [[]])
        case rules.IdWords():
            return bad_list(False) + ids + [[[]], [[-1]], [[True]], [["a"]], [[[1]]], "1"]
        case rules.Bias():
            keys = [{-1: 1.0}, {1 << 20: 1.0}, {"5": 1.0}, {True: 1.0}, {1.0: 1.0}, {None: 1.0}]
            return [*keys, {1: math.nan}, {1: math.inf}, {1: "1"}, {1: None}, {1: True}, {1: 1e31}, [(1, 2.0)], "a", 5]
        case rules.SequenceBias():
            keys = [
                {(-1,): 1.0},
                {(1 << 20,): 1.0},
                {1: 1.0},
                {(): 1.0},
                {("a",): 1.0},
                [[[1], 1.0], [[1], 2.0]],
                [[1, 2.0]],
            ]
            return [*keys, [[[1], math.nan]], [[[1], "1"]], [[[1]]], [[[1], 1e31]], [1], "a", 5]
        case rules.Json():
            values = [
                {1: 2},
                {"a": math.nan},
                {"a": {1}},
                {"a": Strange()},
                {"a": "\ud800"},
                {"a": 1 << 2000},
                nested(65),
            ]
            return [*values, 5, ["a"], True, {"a": "x" * rule.max_bytes}] + ([] if rule.as_text else ["a"])
        case rules.Processors():
            return bad_list(False) + pairs + ["p"]
        case rules.OneOf():
            return ["Raw", 0, 1, 2, b"raw", ["raw"], Strange(), 1.0]
        case rules.EnumMember():
            return ["delta", 0, 1, None, 3, ["DELTA"], Strange()]
        case rules.Custom():
            return [5, ["a"], True, {"a": 1}, Strange(), b"hf"]
    raise AssertionError(f"no bad values are listed for {type(rule).__name__}")


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize(("kind", "spec"), EVERY_FIELD, ids=EVERY_FIELD_IDS)
def test_a_bad_value_is_refused_with_name_rule_value_and_remedy(kind: type, spec: FieldSpec) -> None:
    for value in bad_values(spec.rule):
        with pytest.raises(ParamsError) as caught:
            build(kind, spec.name, value)
        message = str(caught.value)
        assert message.startswith(spec.name), message
        assert " must be " in message
        assert ", got " in message
        assert "; " in message.split(", got ", 1)[1]
        assert " at 0x" not in message
        assert len(message) < 500


@pytest.mark.parametrize(("kind", "spec"), EVERY_FIELD, ids=EVERY_FIELD_IDS)
def test_every_default_obeys_its_own_rule_and_stays_what_it_is(kind: type, spec: FieldSpec) -> None:
    if spec.name in REQUIRED[kind]:
        assert spec.check(REQUIRED[kind][spec.name]) == REQUIRED[kind][spec.name]
    else:
        assert spec.check(spec.default) == spec.default


@pytest.mark.parametrize(("kind", "spec"), EVERY_FIELD, ids=EVERY_FIELD_IDS)
def test_every_field_says_what_it_means_and_where_it_comes_from(kind: type, spec: FieldSpec) -> None:
    assert len(spec.meaning.split()) >= 3
    assert spec.source
    assert spec.rule.text
    assert not spec.has_off or spec.is_off(spec.off)


INT_FIELDS = [(k, s) for k, s in EVERY_FIELD if isinstance(s.rule, rules.Int)]
FLOAT_FIELDS = [(k, s) for k, s in EVERY_FIELD if isinstance(s.rule, rules.Float)]


@pytest.mark.parametrize(("kind", "spec"), INT_FIELDS, ids=lambda x: getattr(x, "name", None))
def test_an_integer_field_takes_numpy_integers_as_python_integers(kind: type, spec: FieldSpec) -> None:
    rule = spec.rule
    assert isinstance(rule, rules.Int)
    value = max(rule.low, 3 if rule.high is None else min(3, rule.high))
    stored = spec.check(np.int64(value))
    assert (type(stored), stored) == (int, value)
    assert spec.check(rule.low) == rule.low
    assert spec.check(rule.high) == rule.high


@pytest.mark.parametrize(("kind", "spec"), FLOAT_FIELDS, ids=lambda x: getattr(x, "name", None))
def test_a_float_field_takes_its_bounds_integers_and_numpy_floats(kind: type, spec: FieldSpec) -> None:
    rule = spec.rule
    assert isinstance(rule, rules.Float)
    inside = [rule.high] * (not rule.open_high) + [rule.low] * (not rule.open_low) + [0.0] * rule.zero
    for value in inside:
        assert spec.check(value) == value
    if rule.low <= 1 < rule.high or (rule.high == 1 and not rule.open_high):
        for one in (1, np.float32(1), np.float64(1), np.int32(1)):
            stored = spec.check(one)
            assert (type(stored), stored) == (float, 1.0)


def test_minus_zero_is_stored_as_zero() -> None:
    assert math.copysign(1.0, SamplingParams(presence_penalty=-0.0).presence_penalty) == 1.0


def test_a_value_that_only_binary32_pushes_over_an_open_bound_is_refused() -> None:
    for name, value in [("top_p", 1e-60), ("epsilon_cutoff", 1 - 1e-12), ("top_n_sigma", 1e-60), ("top_h", 1e-60)]:
        with pytest.raises(ParamsError, match=name):
            build(SamplingParams, name, value)


STAGED: dict[str, Any] = {
    "logit_bias": {3: 1.0},
    "sequence_bias": {(3, 4): 1.0},
    "logits_processors": [("keep", {})],
    **{name: values[1] for name, values in VALUES.items()},
    "temperature": 0.7,
}
"""For each parameter that switches a stage on, a value that does."""


@pytest.fixture
def keep_processor() -> Any:
    register_processor("keep", lambda logits, args: logits, arg_names=("strength",))
    yield
    unregister_processor("keep")


def test_each_staged_parameter_is_declared_by_the_operator_of_its_stage() -> None:
    staged = {name: spec.stage for name, spec in FIELDS.items() if spec.stage}
    assert staged.keys() == STAGED.keys()
    assert all(name in OPERATORS[stage].fields for name, stage in staged.items())


@pytest.mark.parametrize("name", STAGED)
@pytest.mark.usefixtures("keep_processor")
def test_a_parameter_is_refused_exactly_when_its_stage_is_absent(name: str) -> None:
    stage, value = FIELDS[name].stage, STAGED[name]
    everything = PRESETS["canonical"]
    without = everything.replace(name="less", stages=tuple(s for s in everything.stages if s != stage))
    assert not FIELDS[name].is_off(getattr(SamplingParams(**{name: value}), name))
    with pytest.raises(ParamsError, match=rf"^{name} must be off under semantics 'less'.*has no {stage} stage"):
        SamplingParams(**{name: value}, semantics=without)


@pytest.mark.parametrize("preset", PRESETS)
def test_all_off_is_legal_under_every_preset(preset: str) -> None:
    off = {name: spec.off for name, spec in FIELDS.items() if spec.has_off}
    assert SamplingParams(**off, semantics=preset).semantics == preset


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
TOKEN = st.integers(0, (1 << 20) - 1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=3)
GUIDED = st.one_of(
    st.builds(lambda schema: GuidedDecodingParams(json=schema), OBJECT),
    st.builds(lambda words: GuidedDecodingParams(choice=words), st.lists(TEXT, min_size=1, max_size=4)),
    st.builds(lambda flag: GuidedDecodingParams(json_object=True, disable_any_whitespace=flag), st.booleans()),
    st.builds(lambda: GuidedDecodingParams(regex="[a-z]+", backend="llguidance")),
)
OVERRIDES: dict[str, st.SearchStrategy[Any]] = {
    # Fields whose legal values depend on other fields get values that suit every combination.
    "n": st.integers(1, 4),
    "best_of": st.none() | st.integers(4, 9),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "max_tokens": st.none() | st.integers(16, 10**6),
    "min_tokens": st.integers(0, 16),
    "detokenize": st.just(True),
    "temperature": st.just(0.0) | st.floats(1e-6, 1e6),
    "stop_pattern": st.none() | st.sampled_from(["a+", r"\n\n", "(?i)end"]),
    "guided_decoding": st.none() | GUIDED,
    # The one scheme that greedy decoding takes too.
    "watermark": st.none()
    | st.builds(
        lambda key, bias: Watermark(scheme="kgw", key=key, bias=bias), st.integers(1, 2**63 - 1), st.floats(1, 9)
    ),
    "semantics": st.sampled_from(["canonical", "openai", "canonical@1"])
    | st.just(Semantics(name="mine", penalty_limit=3.0)),
    "extra_args": st.none() | st.just({}),
    "logits_processors": st.lists(st.tuples(st.just("keep"), st.fixed_dictionaries({}, optional={"strength": JSON}))),
}


def strategy(spec: FieldSpec) -> st.SearchStrategy[Any]:
    rule = spec.rule
    if spec.name in OVERRIDES:
        return OVERRIDES[spec.name]
    match rule:
        case rules.Int():
            numbers = st.integers(rule.low, rule.high)
            return st.none() | numbers if rule.optional else numbers
        case rules.Float():
            low, high = max(rule.low, -1e20), min(rule.high, 1e19)
            low = max(low, 1e-6) if rule.open_low else low
            return st.floats(low, 1 - 1e-6 if rule.open_high else high)
        case rules.Bool():
            return st.booleans()
        case rules.Texts():
            return st.lists(TEXT, max_size=4)
        case rules.Ids():
            some = st.lists(TOKEN, min_size=0 if rule.empty else 1, max_size=5)
            return st.none() | some if rule.optional else some
        case rules.IdWords():
            return st.lists(TOKEN | st.lists(TOKEN, min_size=1, max_size=3), max_size=4)
        case rules.Bias():
            return st.none() | st.dictionaries(TOKEN, st.floats(-1e30, 1e30) | st.just(-math.inf), max_size=4)
        case rules.SequenceBias():
            words = st.lists(TOKEN, min_size=1, max_size=3).map(tuple)
            return st.none() | st.dictionaries(words, st.floats(-1e30, 1e30) | st.just(-math.inf), max_size=4)
        case rules.OneOf():
            return st.sampled_from(rule.values)
        case rules.EnumMember():
            return st.sampled_from(list(rule.kind))
    raise AssertionError(f"no strategy for {spec.name}")


OPTIONS = st.fixed_dictionaries({}, optional={name: strategy(spec) for name, spec in FIELDS.items()}).filter(
    lambda options: (
        not (options.get("forcing") and options.get("logits_processors"))
        and not (options.get("mirostat") and options.get("adaptive_target", -1.0) >= 0)
    )
)


@pytest.mark.usefixtures("keep_processor")
class TestRandomParameters:
    @pytest.mark.slow
    @tries(150)
    @given(options=OPTIONS)
    def test_json_gives_back_the_same_parameters(self, options: dict[str, Any]) -> None:
        params = SamplingParams(**options)
        back = SamplingParams.from_json(params.to_json())
        assert back == params
        assert hash(back) == hash(params)
        assert back.to_json() == params.to_json()
        assert SamplingParams.from_dict(params.to_dict()) == params

    @pytest.mark.slow
    @tries(60)
    @given(options=OPTIONS)
    def test_the_json_is_strict_and_made_of_plain_values(self, options: dict[str, Any]) -> None:
        plain = SamplingParams(**options).to_dict()
        assert json.loads(json.dumps(plain, allow_nan=False)) == plain
        assert plain_types(plain)

    @pytest.mark.slow
    @tries(60)
    @given(options=OPTIONS)
    def test_a_copy_is_equal_and_a_changed_seed_is_not(self, options: dict[str, Any]) -> None:
        params = SamplingParams(**options)
        assert params.replace() == params == params.clone()
        other = params.replace(seed=1 if params.seed == 0 else 0)
        assert other != params
        assert other.replace(seed=params.seed) == params


def plain_types(value: Any) -> bool:
    if isinstance(value, dict):
        return type(value) is dict and all(type(k) is str and plain_types(v) for k, v in value.items())
    if isinstance(value, list):
        return type(value) is list and all(plain_types(v) for v in value)
    return value is None or type(value) in {bool, int, float, str}


@tries(60)
@given(guided=GUIDED)
def test_guided_parameters_survive_json(guided: GuidedDecodingParams) -> None:
    back = GuidedDecodingParams.from_json(guided.to_json())
    assert (back, hash(back)) == (guided, hash(guided))


@tries(60)
@given(
    width=st.integers(1, 99),
    tokens=st.integers(0, 99),
    penalty=st.floats(-30, 30),
    stopping=st.sampled_from([True, False, "never"]),
)
def test_beam_parameters_survive_json(width: int, tokens: int, penalty: float, stopping: bool | str) -> None:
    beam = BeamSearchParams(beam_width=width, max_tokens=tokens, length_penalty=penalty, early_stopping=stopping)
    back = BeamSearchParams.from_json(beam.to_json())
    assert (back, hash(back)) == (beam, hash(beam))
    assert type(back.early_stopping) is type(stopping)


def test_enum_members_are_written_by_name() -> None:
    assert SamplingParams(output_kind=RequestOutputKind.DELTA).to_dict()["output_kind"] == "DELTA"
    assert isinstance(SamplingParams(output_kind="DELTA").output_kind, enum.Enum)  # pyright: ignore


def test_the_reference_page_is_current() -> None:
    page = Path(__file__).parents[1] / "docs" / "parameters.md"
    assert page.read_text(encoding="utf-8") == reference.page(), (
        "run python -m tirage.params.reference docs/parameters.md"
    )


def test_the_reference_page_has_one_entry_per_field() -> None:
    entries = re.findall(r"^#### (\w+)$", reference.page(), re.MULTILINE)
    assert sorted(entries) == sorted(
        name for kind in (SamplingParams, GuidedDecodingParams, BeamSearchParams) for name in specs(kind)
    )
