"""Semantics: names and versions, what may be said, and that every option changes what is drawn."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
from every_stage import bitmask
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tries import tries

import tirage
from tirage import ParamsError, SamplingParams, Semantics
from tirage.semantics import EDITS, FILTERS, PRESETS, resolve

BINARY = math.log2(math.e)
"""The temperature at which a logit one lower is exactly half as likely."""
EQUAL = np.zeros(4)
HALVES = np.array([2.0, 1.0, 0.0, 0.0])
"""At the temperature BINARY: probabilities 1/2, 1/4, 1/8, 1/8, exactly."""
NAMED = frozenset({
    *("canonical", "openai", "hf", "vllm", "vllm-v1", "sglang", "sglang-pytorch", "flashinfer", "nanovllm"),
    *("fastdeploy-base", "fastdeploy-base_non_truncated", "fastdeploy-air", "fastdeploy-rejection", "mindie"),
    *("gemma-topk", "gemma-topp", "easydel", "llamacpp", "mlx", "trtllm", "trtllm-legacy", "tgi"),
})


def softmax(*x: float) -> list[float]:
    weights = np.exp(np.array(x))
    return list(weights / weights.sum())


def law_under(semantics: Semantics, x: Any, options: dict[str, Any], **call: Any) -> NDArray[np.float64]:
    return tirage.law(np.asarray(x), SamplingParams(semantics=semantics, **options), **call)[0]


# --- names -------------------------------------------------------------------------------------------------------


def test_the_promised_presets_exist() -> None:
    assert NAMED - set(PRESETS) == set()


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_answers_to_its_name_and_to_its_pinned_name(name: str) -> None:
    preset = resolve(name)
    assert preset.name == name
    assert resolve(f"{name}@{preset.version}") == resolve(preset.label) == preset
    assert SamplingParams(temperature=0.5 if name != "hf-cb" else 1.0, semantics=preset.label).semantics == preset.label


@pytest.mark.parametrize("name", PRESETS)
def test_another_version_is_refused_and_the_known_one_named(name: str) -> None:
    version = PRESETS[name].version
    for other in (f"{version}.1", "0.0.0", ""):
        with pytest.raises(ParamsError) as error:
            resolve(f"{name}@{other}")
        expected = f"semantics {name!r} is known in version {version!r}, got {other!r}; use '{name}@{version}'"
        assert str(error.value) == expected


@pytest.mark.parametrize(("typo", "meant"), [("vlm", "vllm"), ("sg-lang", "sglang"), ("llama.cpp", "llamacpp")])
def test_an_unknown_name_is_refused_with_the_nearest_one(typo: str, meant: str) -> None:
    with pytest.raises(ParamsError) as error:
        resolve(typo)
    start = f"semantics must name a preset ({', '.join(PRESETS)}), got {typo!r}"
    assert str(error.value) == f"{start}; did you mean {meant!r}?"


def test_engines_with_several_methods_answer_to_their_own_name() -> None:
    assert [resolve("fastdeploy").name, resolve("gemma").name] == ["fastdeploy-base", "gemma-topk"]


@pytest.mark.parametrize("value", [None, 3, ["vllm"], {"name": "vllm"}, b"vllm"], ids=repr)
def test_something_that_names_no_semantics_is_refused(value: Any) -> None:
    with pytest.raises(ParamsError) as error:
        resolve(value)
    assert str(error.value) == f"semantics must be a preset name or a Semantics, got {type(value).__name__}"


def test_a_semantics_stands_for_itself() -> None:
    own = Semantics(name="own", top_k_ties="all")
    assert resolve(own) is own


# --- values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_a_semantics_survives_strict_json(name: str) -> None:
    text = json.dumps(PRESETS[name].to_dict(), allow_nan=False)
    assert Semantics.from_dict(json.loads(text)) == PRESETS[name]


def test_replace_makes_a_new_checked_semantics_with_a_name_of_its_own() -> None:
    changed = PRESETS["vllm"].replace(top_k_ties="all")
    assert (changed.name, changed.top_k_ties, PRESETS["vllm"].top_k_ties) == ("vllm-changed", "all", "index")
    assert PRESETS["vllm"].replace(top_k_ties="all", name="mine").label == "mine@0.33.0"
    with pytest.raises(ParamsError, match=r"^semantics\.top_k_ties must be one of index, all, got 'some'"):
        changed.replace(top_k_ties="some")


def test_a_semantics_cannot_be_changed_and_equal_ones_are_one_key() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        PRESETS["hf"].top_k_ties = "index"  # pyright: ignore[reportAttributeAccessIssue]
    assert {Semantics(): 1}[Semantics()] == 1
    assert Semantics() != Semantics(top_k_ties="all")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k_tie": "all"}, "semantics option must be a known name, got 'top_k_tie'; did you mean 'top_k_ties'?"),
        ({"top_p_rule": "<"}, "semantics.top_p_rule must be one of lt, le, truncated, got '<'"),
        ({"greedy": True}, "semantics.greedy must be one of argmax, first, refused, got True"),
        (
            {"repetition_history": ["both"]},
            "semantics.repetition_history must be one of both, output, prompt, got ['both']",
        ),
        ({"penalty_window": 0}, "semantics.penalty_window must be an integer >= 1 or None, got 0"),
        ({"top_k_limit": True}, "semantics.top_k_limit must be an integer >= 1 or None, got True"),
        ({"penalty_limit": 0}, "semantics.penalty_limit must be a number > 0, got 0"),
        ({"penalty_limit": math.nan}, "semantics.penalty_limit must be a number > 0, got nan"),
        ({"penalty_limit": True}, "semantics.penalty_limit must be a number > 0, got True"),
        ({"name": ""}, "semantics.name must be a non-empty string without '@', got ''"),
        ({"version": 1}, "semantics.version must be a non-empty string without '@', got 1"),
        ({"stages": "top_p"}, "semantics.stages must be a tuple of stage names, got str"),
        ({"stages": ("top_p", "topk")}, "semantics.stages must hold known stages, got 'topk'; did you mean 'top_k'?"),
        ({"stages": ("top_k", "top_k")}, "semantics.stages must name each stage once, got 'top_k' twice"),
        (
            {"stages": ("temperature", "frequency")},
            "semantics.stages must list edits before filters, got 'frequency' after a filter",
        ),
        (
            {"stages": ("scale", "temperature")},
            "semantics.stages must hold 'scale' or 'temperature', got both; remove one",
        ),
        (
            {"top_p_rule": "truncated", "stages": ("top_p", "top_k")},
            "semantics.top_p_rule 'truncated' must have top_p as the last stage, got 'top_k'; move it or choose 'lt'",
        ),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    for make in (lambda: Semantics(**options), lambda: Semantics.from_dict(options)):
        with pytest.raises(ParamsError) as error:
            make()
        assert str(error.value) == message


@pytest.mark.parametrize("data", [5, "canonical", ["stages"], None], ids=repr)
def test_from_dict_wants_a_mapping(data: Any) -> None:
    with pytest.raises(ParamsError, match=r"^semantics must be a mapping"):
        Semantics.from_dict(data)


# --- every option changes a law ----------------------------------------------------------------------------------


class Effect(NamedTuple):
    """One request, and its law under two values of one option."""

    option: str
    laws: dict[Any, list[float]]
    params: dict[str, Any]
    x: Any = EQUAL
    call: dict[str, Any] = {}  # noqa: RUF012 - never written
    also: dict[str, Any] = {}  # noqa: RUF012


NUCLEUS = {"stages": ("temperature", "top_k", "min_p", "top_p")}
SAID = {"history": [([0], [1])]}
TWO = [2.0, 2.0, 2.0]
FIFTY = np.log([0.5, 0.3, 0.15, 0.05])

EFFECTS = [
    Effect("mirostat_with", {"stages": [1, 0, 0, 0], "temperature": [0.25] * 4}, {"mirostat": 2, "top_k": 1}),
    Effect("top_k_ties", {"index": [0.5, 0.5, 0, 0], "all": [0.25] * 4}, {"top_k": 2}),
    Effect("top_p_ties", {"index": [0.5, 0.5, 0, 0], "all": [0.25] * 4}, {"top_p": 0.5}),
    Effect("top_p_rule", {"lt": [0.5, 0.5, 0, 0], "le": [1 / 3, 1 / 3, 1 / 3, 0]}, {"top_p": 0.5}, also=NUCLEUS),
    Effect("top_p_rule", {"lt": [0.5, 0.5, 0, 0], "truncated": [2 / 3, 1 / 3, 0, 0]}, {"top_p": 0.375}, also=NUCLEUS),
    Effect(
        "top_p_scope",
        {"sequential": [1, 0, 0, 0], "joint": [0.625, 0.375, 0, 0], "joint_unless_min_p": [0.625, 0.375, 0, 0]},
        {"top_k": 2, "top_p": 0.6},
        x=FIFTY,
    ),
    Effect(
        "top_p_scope",
        {"joint_unless_min_p": [1, 0, 0, 0], "joint": [0.625, 0.375, 0, 0]},
        {"top_k": 2, "top_p": 0.6, "min_p": 0.01},
        x=FIFTY,
    ),
    Effect(
        "top_p_scope",
        {"joint_unless_top_k": [1, 0, 0, 0], "joint": [0.625, 0.375, 0, 0]},
        {"top_k": 2, "top_p": 0.6},
        x=FIFTY,
    ),
    Effect("top_k_one", {"cut": [0.25] * 4, "argmax": [1, 0, 0, 0]}, {"top_k": 1}, also={"top_k_ties": "all"}),
    Effect("typical_ties", {"all": [0.25] * 4, "index": [0.5, 0.5, 0, 0]}, {"typical_p": 0.5}),
    Effect(
        "xtc_ties",
        {"index": [0, 0, 0, 1], "all": [0.25] * 4},
        {"xtc_probability": 1.0, "xtc_threshold": 0.1},
    ),
    Effect(
        "bad_words_eos",
        {"banned": [0.5, 0, 0.5], "dropped": softmax(2, 2, 2)},
        {"bad_words_token_ids": [(1,)], "eos_token_ids": [1]},
        TWO,
        {"history": [([], [])]},
    ),
    Effect(
        "min_p_rule", {"ge": [2 / 3, 1 / 3, 0, 0], "gt": [1, 0, 0, 0]}, {"min_p": 0.5, "temperature": BINARY}, HALVES
    ),
    Effect("min_p_rule", {"ge": softmax(4, 1, 0), "logit_ratio": [*softmax(4, 1), 0]}, {"min_p": 0.01}, [4.0, 1.0, 0]),
    Effect(
        "typical_rule",
        {"lt": [0, 1, 0, 0], "gt": [2 / 3, 1 / 3, 0, 0]},
        {"typical_p": 0.25, "temperature": BINARY},
        HALVES,
    ),
    Effect(
        "xtc_rule",
        {"ge": [0, 0.5, 0.25, 0.25], "gt": [0.5, 0.25, 0.125, 0.125]},
        {"xtc_probability": 1.0, "xtc_threshold": 0.25, "temperature": BINARY},
        HALVES,
    ),
    Effect(
        "repetition_history",
        {"both": softmax(1, 1, 2), "output": softmax(2, 1, 2), "prompt": softmax(1, 2, 2)},
        {"repetition_penalty": 2.0},
        TWO,
        SAID,
    ),
    Effect(
        "frequency_history",
        {"both": softmax(1, 1, 2), "output": softmax(2, 1, 2), "prompt": softmax(1, 2, 2)},
        {"frequency_penalty": 1.0},
        TWO,
        SAID,
    ),
    Effect(
        "presence_history",
        {"both": softmax(1, 1, 2), "output": softmax(2, 1, 2), "prompt": softmax(1, 2, 2)},
        {"presence_penalty": 1.0},
        TWO,
        SAID,
    ),
    Effect(
        "bad_words_history",
        {"output": softmax(2, 2, 2), "both": [0.5, 0, 0.5]},
        {"bad_words_token_ids": [(2, 1)]},
        TWO,
        {"history": [([2], [])]},
    ),
    Effect(
        "penalty_window",
        {None: softmax(2, 1, 2), 2: softmax(1, 1, 2), 3: softmax(1, 1, 1)},
        {"presence_penalty": 1.0},
        TWO,
        {"history": [([2, 0], [1])]},
    ),
    Effect(
        "frequency_divisor",
        {"none": softmax(2, 1, 2), "length": softmax(2, 1.5, 2)},
        {"frequency_penalty": 1.0},
        TWO,
        SAID,
    ),
    Effect(
        "mask_mode",
        {"first": [0, 2 / 3, 1 / 3, 0], "resample": [0, 7 / 9, 2 / 9, 0]},
        {"top_k": 2, "temperature": BINARY},
        HALVES,
        {"mask": bitmask([1, 2, 3], size=4)},
    ),
]
"""Worked out by hand from the meaning of each option, not from the code."""

# Not here: entropy_count and temperature_floor, which are in test_preset_options.
REFUSALS = {
    "top_k_limit": (
        {"top_k_limit": 5},
        {"top_k": 6},
        "top_k must be at most 5 under semantics 'own', got 6; use 0 to turn it off",
    ),
    "penalty_limit": (
        {"penalty_limit": 0.5},
        {"presence_penalty": 0.6},
        "presence_penalty must be in [-0.5, 0.5] under semantics 'own', got 0.6; use 0.0 to turn it off",
    ),
    "greedy": (
        {"greedy": "refused"},
        {"temperature": 0},
        "temperature must be above 0 under semantics 'own', got 0.0; use top_k=1 or a semantics that has greedy "
        "decoding",
    ),
    "stages": (
        {"stages": ("temperature",)},
        {"top_p": 0.9},
        "top_p must be off under semantics 'own', which has no top_p stage, got 0.9; use 1.0 or choose another "
        "semantics",
    ),
}
"""Options that decide what may be asked: options, parameters they refuse, the refusal."""


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda e: f"{e.option}-{'-'.join(map(str, e.laws))}")
def test_an_option_has_the_law_worked_out_by_hand(effect: Effect) -> None:
    for choice, expected in effect.laws.items():
        semantics = Semantics(**{"name": "own", **effect.also, effect.option: choice})
        law = law_under(semantics, effect.x, effect.params, **effect.call)
        np.testing.assert_allclose(law, expected, rtol=0, atol=2e-7, err_msg=f"{effect.option}={choice}")
    assert max(abs(a - b) for a, b in zip(*list(effect.laws.values())[:2], strict=True)) > 0.01


@pytest.mark.parametrize("option", REFUSALS)
def test_an_option_refuses_what_it_says(option: str) -> None:
    options, params, message = REFUSALS[option]
    with pytest.raises(ParamsError) as error:
        SamplingParams(semantics=Semantics(name="own", **options), **params)
    assert str(error.value) == message
    assert SamplingParams(semantics=Semantics(name="own"), **params).semantics == Semantics(name="own")


def test_every_option_and_every_choice_is_covered() -> None:
    options = {field.name for field in dataclasses.fields(Semantics) if field.compare} - {"name", "version"}
    assert options - {"entropy_count", "temperature_floor"} == {effect.option for effect in EFFECTS} | set(REFUSALS)
    for option in {effect.option for effect in EFFECTS} - {"penalty_window"}:
        with pytest.raises(ParamsError) as error:
            Semantics(**{option: cast("Any", "no such choice")})
        choices = str(error.value).split("one of ")[1].split(", got")[0].split(", ")
        assert set(choices) == {choice for effect in EFFECTS if effect.option == option for choice in effect.laws}


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        (("temperature", "top_p"), [2, 2**0.5, 0, 0]),
        (("top_p", "temperature"), [1, 0, 0, 0]),
    ],
)
def test_the_order_of_the_stages_is_the_order_of_the_law(stages: tuple[str, ...], expected: list[float]) -> None:
    # The weights are 2, 1.41, 1, 1 at T = 2 and 4, 2, 1, 1 at T = 1.
    law = law_under(Semantics(name="own", stages=stages), HALVES * math.log(2), {"temperature": 2, "top_p": 0.49})
    np.testing.assert_allclose(law, np.array(expected) / sum(expected), rtol=0, atol=2e-7)


def test_penalties_run_in_the_order_given() -> None:
    params = {"repetition_penalty": 2.0, "presence_penalty": 1.0}
    for stages, logit in ((("repetition", "presence"), 1.0), (("presence", "repetition"), 1.5)):
        law = law_under(Semantics(name="own", stages=stages), [4.0, 0.0], params, history=[([], [0])])
        np.testing.assert_allclose(law, softmax(logit, 0), rtol=0, atol=2e-7)


@pytest.mark.slow
@tries(40)
@given(edits=st.permutations(EDITS), filters=st.permutations(FILTERS), cut=st.integers(0, len(FILTERS)))
def test_any_order_of_edits_then_filters_is_a_semantics(edits: list[str], filters: list[str], cut: int) -> None:
    # adaptive-p gives the weights of the draw and must be last.
    some = sorted(filters[:cut], key=lambda stage: stage == "adaptive_p")
    chosen = (*(s for s in edits if s != "scale"), *some)
    semantics = Semantics(name="own", stages=chosen)
    assert Semantics.from_dict(semantics.to_dict()) == semantics
    assert abs(1 - law_under(semantics, HALVES, {}).sum()) < 1e-12
