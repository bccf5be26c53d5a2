"""What MindIE's interface refuses in tirage, each by name."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from every_stage import hashed_logits
from numpy.typing import NDArray

from tirage import ParamsError, SamplingParams
from tirage.compat.mindie import Sampler, SamplingData, SamplingParam, sample

B, V = 6, 40
DATA: Any = SamplingData.from_numpy
PARAM: Any = SamplingParam.from_numpy
REALS = ["repetition_penalty", "frequency_penalty", "presence_penalty", "temperature", "top_p"]


def logits(rows: int = B) -> NDArray[np.float32]:
    return hashed_logits("mindie inputs", size=rows * V).reshape(rows, V)


@pytest.mark.parametrize("name", REALS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_parameter_that_is_not_finite_is_refused_with_its_request(name: str, value: float) -> None:
    values = np.array([1.0, value, 1.0])
    with pytest.raises(ParamsError, match=f"{name} must be .*, got {value} for request 1; "):
        PARAM(**{name: values}, do_sample=np.zeros(3, bool))


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("repetition_penalty", 0.0, r"a number in \[1e-30, 1e30\]"),
        ("repetition_penalty", -1.0, r"a number in \[1e-30, 1e30\]"),
        ("temperature", -0.5, r"0 or a number in \[1e-20, 1e20\]"),
        ("temperature", 1e-30, r"0 or a number in \[1e-20, 1e20\]"),
        ("top_k", -1, "an integer >= 0"),
        ("top_p", 1.5, r"a number in \[0, 1\]"),
        ("top_p", -0.1, r"a number in \[0, 1\]"),
        ("seed", -1, r"an integer in \[0, 2\^63\)"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: float, rule: str) -> None:
    with pytest.raises(ParamsError, match=f"{name} must be {rule}, got {value} for request 0; "):
        PARAM(**{name: np.array([value])})


@pytest.mark.parametrize(
    ("name", "value", "got"),
    [
        ("temperature", np.ones((2, 1)), "float64 of shape [2, 1]"),
        ("temperature", 0.7, "float64 of shape []"),
        ("temperature", np.array([True]), "bool of shape [1]"),
        ("temperature", np.array(["hot"]), "<U3 of shape [1]"),
        ("temperature", [None], "object of shape [1]"),
        ("temperature", np.ma.ones(2), "numpy.ma.MaskedArray"),
        ("top_p", "0.9", "str"),
        ("top_p", [[0.9], [0.8, 0.7]], "list"),
        ("top_k", np.array([1.0]), "float64 of shape [1]"),
        ("seed", np.array([1.0]), "float64 of shape [1]"),
        ("seed", [2**64], "object of shape [1]"),
        ("do_sample", np.array([1, 0]), "int64 of shape [2]"),
    ],
)
def test_an_array_of_another_kind_is_refused_by_name(name: str, value: Any, got: str) -> None:
    with pytest.raises(ParamsError) as error:
        PARAM(**{name: value})
    assert str(error.value).startswith(f"{name} must be a one-dimensional ")
    assert f", got {got}" in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"all_input_ids": np.arange(3)}, "all_input_ids must be a two-dimensional integer array"),
        ({"output_ids": np.zeros((2, 2, 2), int)}, "output_ids must be a two-dimensional integer array"),
        ({"output_ids": np.zeros((2, 2))}, "output_ids must be a two-dimensional integer array"),
        ({"output_ids": np.zeros((2, 2), bool)}, "output_ids must be a two-dimensional integer array"),
        ({"output_ids": "12"}, "output_ids must be a two-dimensional integer array"),
        ({"output_ids": [[1], [2.5]]}, r"output_ids\[1\] must be a list of token ids, got float64"),
        ({"output_ids": [1, 2]}, r"output_ids\[0\] must be a list of token ids, got int64 of shape \[\]"),
        ({"output_ids": [None]}, r"output_ids\[0\] must be a list of token ids, got object"),
        ({"all_input_ids": [[1]], "output_ids": [[1], [2]]}, "output_ids must hold as many requests as all_input_ids"),
        ({"request_ids": [1, 2], "output_ids": [[1]]}, "request_ids must hold as many requests as output_ids"),
        ({"request_ids": [3, 3]}, "request_ids must be distinct, got 3 more than once"),
        ({"request_ids": np.ones(2)}, "request_ids must be a one-dimensional integer array"),
        ({"is_prefill": 1}, "is_prefill must be a bool, got int"),
        ({"to_tensor": "numpy"}, "to_tensor must be a function of a NumPy array or None, got str"),
        ({"output_id": [[1]]}, "SamplingData option must be one of .*, got 'output_id'; did you mean 'output_ids'"),
    ],
)
def test_data_that_cannot_be_meant_are_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        DATA(**arguments)


@pytest.mark.parametrize(
    ("data", "param", "message"),
    [
        ([[1]], {}, "output_ids must hold one entry per row of the logits, which have 2, got 1"),
        (
            [[1], [V + 1]],
            {},
            r"output_ids of row 1 must hold ids in \[0, 40\), got 41; pad with -1, 40 or pad_token_id",
        ),
        ([[1], [-2]], {}, r"output_ids of row 1 must hold ids in \[0, 40\), got -2"),
        (np.full((2, 1), 2**64 - 1, np.uint64), {}, r"output_ids of row 0 must hold ids in \[0, 40\)"),
        ([[], []], {"top_k": [2, 2, 2]}, "top_k must hold one entry per row of the logits, which have 2, got 3"),
    ],
)
def test_arguments_that_do_not_fit_the_logits_are_refused_by_name(data: Any, param: Any, message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        sample(logits(rows=2), DATA(output_ids=data), PARAM(**param))


def test_request_ids_that_do_not_fit_the_logits_are_refused() -> None:
    with pytest.raises(ParamsError, match="request_ids must hold one entry per row of the logits, which have 6, got 2"):
        sample(logits(), DATA(request_ids=np.arange(2)))


def test_arrays_of_different_lengths_are_refused_by_name() -> None:
    with pytest.raises(ParamsError, match="top_p must hold as many requests as temperature, which is 2, got 3"):
        PARAM(temperature=np.ones(2), top_p=np.ones(3))


@pytest.mark.parametrize(
    "name", ["top_logprobs", "best_of", "guided_bitmask", "use_beam_search", "num_samples", "temprature"]
)
def test_what_the_documentation_does_not_list_is_refused_by_name(name: str) -> None:
    with pytest.raises(ParamsError, match=f"SamplingParam option must be one of .*, got '{name}'"):
        PARAM(**{name: np.ones(1)})


@pytest.mark.parametrize("pad", [-2, True, 1.0, "0", V + 1])
def test_a_pad_outside_the_range_is_refused(pad: Any) -> None:
    with pytest.raises(ParamsError, match="pad_token_id must be "):
        Sampler(pad)(logits())


def test_an_unknown_law_of_logprobs_is_refused() -> None:
    mode: Any = "truncated"
    with pytest.raises(ParamsError, match="logprobs_mode must be one of"):
        Sampler(logprobs_mode=mode)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1.0, 2.0]],), "logits must be an array"),
        ((np.zeros((1, 2, 3), np.float32),), "logits must have shape"),
        ((np.zeros((1, 3), np.int64),), "logits must be float16"),
        ((logits(), {"output_ids": []}), "sampling_data must be a SamplingData or None, got dict"),
        ((logits(), None, SamplingParams()), "sampling_param must be a SamplingParam or None, got tirage"),
    ],
)
def test_arguments_of_another_type_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        sample(*arguments)


@pytest.mark.parametrize("name", ["seed", "frequency_penalty", "presence_penalty", "repetition_penalty"])
def test_what_depends_on_the_output_is_refused_past_prefill_without_it(name: str) -> None:
    x, written = np.zeros((2, V), np.float32), [[3], [5, 5]]
    values = np.array([1, 2]) if name == "repetition_penalty" else np.array([0, 2])
    param = PARAM(**{name: values}, temperature=np.array([0.0, 1.0]))
    with pytest.raises(ParamsError) as error:
        sample(x, DATA(is_prefill=False), param)
    assert str(error.value).startswith(f"output_ids must be given for {name} when is_prefill is False, got None for ")
    assert "for request 1; pass what each request has written" in str(error.value)
    for data in (DATA(is_prefill=True), DATA(output_ids=written, is_prefill=False)):
        assert [0 <= token < V for token in sample(x, data, param).tolist()] == [True, True]


def test_past_prefill_all_ids_are_enough_for_the_repetition_penalty_alone() -> None:
    x, param = np.zeros((2, V), np.float32), PARAM(repetition_penalty=np.array([2.0, 2.0]))
    assert sample(x, DATA(all_input_ids=[[3], [5, 5]], is_prefill=False), param).tolist() == [0, 0]


def test_a_seed_that_decides_nothing_needs_no_output() -> None:
    x = np.zeros((2, V), np.float32)
    for param in (PARAM(seed=np.array([1, 2])), PARAM(temperature=np.array([0.7, 0.7]))):
        assert sample(x, DATA(is_prefill=False), param).shape == (2,)
