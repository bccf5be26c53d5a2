"""MindIE's `sample(logits, sampling_data, sampling_param)`: what its documentation promises, without its defects."""

from __future__ import annotations

import doctest
import importlib
import inspect
import itertools
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from every_stage import hashed_logits, octaves
from numpy.typing import NDArray

import tirage
from tirage import ParamsError, SamplingParams, backends
from tirage.compat import mindie
from tirage.compat.mindie import Sampler, SamplingData, SamplingParam, sample

B, V = 6, 40
DATA: Any = SamplingData.from_numpy
PARAM: Any = SamplingParam.from_numpy
PROMPTS = [[1, 2, 3], [4, 4], [39, 0], [7], [8, 9, 10, 11], [12]]
OUTPUTS = [[5, 5, 6], [0], [38, 38, 38, 38], [], [8], [13, 12]]
HISTORY = list(zip(PROMPTS, OUTPUTS, strict=True))
ALL = [prompt + output for prompt, output in HISTORY]
ARRAYS: dict[str, Any] = {
    "repetition_penalty": np.array([1.0, 1.3, 0.8, 1.5, 1.0, 2.0], np.float32),
    "frequency_penalty": np.array([0.5, -2.5, 0.0, 1.0, 4.0, 0.25], np.float32),
    "presence_penalty": np.array([-3.0, 0.5, 0.0, 0.75, 0.0, 2.0], np.float32),
    "temperature": np.array([1.0, 0.7, 0.0, 2.5, 0.3, 1.0], np.float32),
    "top_k": np.array([0, 5, 50, 1, 7, 2]),
    "top_p": np.array([1.0, 0.9, 0.5, 0.0, 0.3, 0.95], np.float32),
    "seed": np.array([0, 7, 2**63 - 1, 2**32 + 7, 123456789, 2**31]),
    "do_sample": np.array([True, True, True, True, False, True]),
}


def logits(name: str = "mindie", rows: int = B) -> NDArray[np.float32]:
    return hashed_logits(name, size=rows * V).reshape(rows, V)


def padded(rows: Sequence[Sequence[int]], pad: int) -> NDArray[np.int64]:
    width = max((len(row) for row in rows), default=0)
    return np.array([[*row, *[pad] * (width - len(row))] for row in rows]).reshape(len(rows), width)


def histories(pad: int = V) -> SamplingData:
    return DATA(padded(ALL, pad), padded(OUTPUTS, pad))


def request(given: dict[str, Any], row: int) -> SamplingParams:
    """What one row of the arrays asks for, in tirage's words."""
    values: dict[str, Any] = {name: array[row].item() for name, array in given.items()}
    drawn = values.pop("do_sample", any(name in given for name in ("temperature", "top_k", "top_p")))
    if values.get("top_p") == 0.0:
        values |= {"top_p": 1.0, "top_k": 1}
    values["temperature"] = values.get("temperature", 1.0) if drawn else 0.0
    return SamplingParams(**values, semantics="mindie")


def expected(x: Any, given: dict[str, Any]) -> list[int]:
    requests = [request(given, row) for row in range(len(x))]
    return tirage.sample(x, requests, history=HISTORY).token_ids.tolist()


def drawn_tokens(x: NDArray, *, count: int = 256, **given: Any) -> list[int]:
    """Tokens that `count` requests with these parameters and the seeds 0, 1, ... draw from the same logits."""
    arrays = {name: np.full(count, value) for name, value in given.items()}
    rows = np.broadcast_to(x, (count, x.size)).astype(np.float32)
    return sample(rows, None, PARAM(**arrays, seed=np.arange(count))).tolist()


# --- the call ----------------------------------------------------------------------------------------------------


class Generator:
    """The body that MindIE's documentation prints."""

    def __init__(self) -> None:
        self.sampler = Sampler()

    def sample(self, logits: Any, sampling_data: Any, sampling_param: Any) -> Any:
        _, next_tokens = self.sampler(logits, sampling_data, sampling_param)
        return next_tokens


def test_the_documented_body_returns_tokens() -> None:
    x = logits()
    assert expected(x, ARRAYS) == Generator().sample(x, histories(), PARAM(**ARRAYS)).tolist()


def test_the_page_of_the_documentation_runs() -> None:
    page = Path(__file__).parents[1] / "docs" / "mindie.md"
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert (failed, tried > 5) == (0, True)


def test_sample_returns_the_tokens_alone() -> None:
    x = logits()
    tokens = sample(x, histories(), PARAM(**ARRAYS))
    assert (str(tokens.dtype), tokens.shape) == ("int64", (B,))
    assert expected(x, ARRAYS) == tokens.tolist()


def test_logits_alone_give_the_largest() -> None:
    x = logits()
    assert x.argmax(1).tolist() == sample(x).tolist()
    assert x.argmax(1).tolist() == sample(x, histories(), PARAM()).tolist()
    assert x[2].argmax() == sample(x[2]).item()


def test_the_arguments_have_the_documented_names_order_and_defaults() -> None:
    assert list(inspect.signature(sample).parameters)[:3] == ["logits", "sampling_data", "sampling_param"]
    documented = ["all_input_ids", "output_ids", "to_tensor", "is_prefill", "request_ids"]
    assert documented == list(inspect.signature(DATA).parameters)[:-1]
    assert [*ARRAYS, "to_tensor"] == list(inspect.signature(PARAM).parameters)[:-1]
    defaults = [p.default for f in (DATA, PARAM) for p in inspect.signature(f).parameters.values()][:-1]
    assert [None, None, None, True, None, inspect.Parameter.empty] + [None] * 9 == defaults
    assert sorted(mindie.__all__) == ["Sampler", "SamplingData", "SamplingParam", "sample"]


@pytest.mark.parametrize("names", [s for n in range(9) for s in itertools.combinations(ARRAYS, n)], ids="-".join)
def test_every_subset_of_parameters_has_its_meaning(names: tuple[str, ...]) -> None:
    given = {name: ARRAYS[name] for name in names}
    drawn = given if "seed" in given else given | {"do_sample": np.zeros(B, bool)}
    x = logits("subsets")
    assert expected(x, drawn) == sample(x, histories(), PARAM(**drawn)).tolist()
    assert [0 <= token < V for token in sample(x, histories(), PARAM(**given)).tolist()] == [True] * B


def test_every_subset_of_histories_has_its_meaning() -> None:
    x, param = np.zeros((1, 4), np.float32), PARAM(np.array([2.0]), np.array([1.0]), np.array([1.0]))
    x[0] = [4.0, 3.5, 3.25, 1.0]
    chosen = {
        (all_ids, out): sample(x, DATA([[0, 1]] if all_ids else None, [[1]] if out else None), param).item()
        for all_ids in (True, False)
        for out in (True, False)
    }
    # Repetition halves 4.0 and 3.5 with all ids; outputs alone take 3.5 to 1.75 and lower it by 2.
    assert chosen == {(True, True): 2, (True, False): 2, (False, True): 0, (False, False): 0}


def test_all_neutral_parameters_change_nothing() -> None:
    x = logits()
    neutral = PARAM(np.ones(B), np.zeros(B), np.zeros(B), np.ones(B), np.zeros(B, int), np.ones(B), ARRAYS["seed"])
    seeded = [SamplingParams(seed=int(seed)) for seed in ARRAYS["seed"]]
    tokens = tirage.sample(x, seeded, history=HISTORY).token_ids
    assert tokens.tolist() == sample(x, histories(), neutral).tolist()


def test_nothing_that_came_in_is_changed_or_kept() -> None:
    x, data = logits(), {"all_input_ids": padded(PROMPTS, V), "output_ids": padded(OUTPUTS, V)}
    arrays = {name: array.copy() for name, array in ARRAYS.items()}
    before = [a.tobytes() for a in (x, *data.values(), *arrays.values())]
    kept = DATA(**data), PARAM(**arrays)
    tokens = sample(x, *kept)
    assert before == [a.tobytes() for a in (x, *data.values(), *arrays.values())]
    for array in (*data.values(), *arrays.values()):
        array[...] = 1
    assert tokens.tolist() == sample(x, *kept).tolist()


# --- libraries ---------------------------------------------------------------------------------------------------


class Foreign:
    """A tensor of a library that tirage does not draw from, as mindspore's looks from outside."""

    def __init__(self, array: NDArray, dtype: str = "Float32") -> None:
        self.array, self.dtype = array, dtype

    def asnumpy(self) -> NDArray:
        if self.dtype == "BFloat16":
            raise TypeError("this NumPy has no bfloat16")
        return self.array

    def astype(self, dtype: str) -> Foreign:
        assert dtype == "float32"
        return Foreign(self.array.astype(dtype))


def makers() -> dict[str, Callable[[NDArray], Any]]:
    """What makes an array of each library that has a backend."""
    found: dict[str, Callable[[NDArray], Any]] = {"numpy": np.asarray}
    for library, module, name in (("torch", "torch", "from_numpy"), ("jax", "jax.numpy", "asarray")):
        if library in backends._BACKENDS:
            found[library] = getattr(importlib.import_module(module), name)
    return found


MAKERS = makers()


@pytest.mark.parametrize("library", MAKERS)
@pytest.mark.parametrize("given", [False, True], ids=["inferred", "to_tensor"])
def test_every_library_draws_the_same_tokens_and_keeps_its_type(library: str, given: bool) -> None:
    make, x = MAKERS[library], logits()
    to_tensor = make if given else None
    data = DATA(padded(ALL, V), padded(OUTPUTS, V), to_tensor=to_tensor)
    logprobs, tokens = Sampler()(make(x), data, PARAM(**ARRAYS, to_tensor=to_tensor))
    assert [type(make(x))] * 2 == [type(logprobs), type(tokens)]
    wanted, _ = Sampler()(x, histories(), PARAM(**ARRAYS))
    assert (expected(x, ARRAYS), wanted.tobytes()) == (tokens.tolist(), np.asarray(logprobs).tobytes())


@pytest.mark.parametrize("library", MAKERS)
def test_tensors_are_taken_as_arrays_of_parameters_and_ids(library: str) -> None:
    make, x = MAKERS[library], logits()
    small = {name: array for name, array in ARRAYS.items() if name != "seed"} | {"seed": np.arange(B)}
    narrow = {name: a.astype(np.int32) if a.dtype == np.int64 else a for name, a in small.items()}
    data = DATA(*(make(padded(ids, V).astype(np.int32)) for ids in (ALL, OUTPUTS)))
    param = PARAM(**{name: make(array) for name, array in narrow.items()})
    assert expected(x, small) == sample(make(x), data, param).tolist()


def test_real_mindspore_tensors_go_in_and_come_out() -> None:
    mindspore = pytest.importorskip("mindspore", reason="800 MB; `pip install mindspore` runs this test")
    x, seeds = logits(), np.arange(B)
    expected = sample(x, None, PARAM(temperature=np.full(B, 0.8), seed=seeds))
    param = PARAM(temperature=mindspore.Tensor(np.full(B, 0.8)), seed=seeds, to_tensor=mindspore.Tensor)
    tokens = sample(mindspore.Tensor(x), None, param)
    assert isinstance(tokens, mindspore.Tensor)
    assert tokens.asnumpy().tolist() == expected.tolist()
    half = mindspore.Tensor(x, mindspore.bfloat16)
    widened = half.astype(mindspore.float32).asnumpy()
    assert sample(half, None, param).asnumpy().tolist() == sample(widened, None, param).asnumpy().tolist()
    with pytest.raises(ParamsError, match="to_tensor must be given with logits of type mindspore"):
        sample(mindspore.Tensor(x))


def test_the_function_to_tensor_makes_every_result() -> None:
    seen: list[tuple[str, tuple[int, ...]]] = []

    def to_tensor(array: NDArray) -> Foreign:
        seen.append((str(array.dtype), array.shape))
        return Foreign(array)

    x = logits()
    for data, param in ((DATA(to_tensor=to_tensor), PARAM()), (None, PARAM(to_tensor=to_tensor))):
        logprobs, tokens = Sampler()(x, data, param)
        assert x.argmax(1).tolist() == tokens.asnumpy().tolist()
        assert [Foreign, Foreign] == [type(logprobs), type(tokens)]
    assert seen == [("float32", (B,)), ("int64", (B,))] * 2


@pytest.mark.parametrize("dtype", ["Float32", "BFloat16"])
def test_a_foreign_tensor_goes_through_numpy_and_back(dtype: str) -> None:
    x = logits().astype(ml_dtypes.bfloat16).astype(np.float32)
    tokens = sample(Foreign(x, dtype), histories(), PARAM(**ARRAYS, to_tensor=Foreign))
    assert (Foreign, expected(x, ARRAYS)) == (type(tokens), tokens.asnumpy().tolist())


def test_a_foreign_tensor_without_a_way_back_is_refused() -> None:
    with pytest.raises(ParamsError, match=r"to_tensor must be given with logits of type test_mindie\.Foreign"):
        sample(Foreign(logits()), histories(), PARAM(**ARRAYS))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_every_float_dtype_and_stride_of_logits_is_drawn_as_float32(dtype: Any) -> None:
    x = logits().astype(dtype)
    wide = np.repeat(x, 2, axis=1)[:, ::2]
    tokens = expected(x.astype(np.float32), ARRAYS)
    assert [tokens, tokens] == [sample(a, histories(), PARAM(**ARRAYS)).tolist() for a in (x, wide)]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_the_dtype_of_a_parameter_does_not_matter(dtype: Any) -> None:
    x = logits()
    exact = {"temperature": np.full(B, 0.75), "top_p": np.full(B, 0.5), "seed": np.arange(B)}
    given = exact | {name: exact[name].astype(dtype) for name in ("temperature", "top_p")}
    assert expected(x, exact) == sample(x, histories(), PARAM(**given)).tolist()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64])
def test_the_dtype_of_ids_does_not_matter(dtype: Any) -> None:
    x = logits()
    ids = [padded(rows, V).astype(dtype) for rows in (ALL, OUTPUTS)]
    integers = ARRAYS | {"top_k": ARRAYS["top_k"].astype(dtype)}
    assert expected(x, ARRAYS) == sample(x, DATA(*ids), PARAM(**integers)).tolist()


# --- histories ---------------------------------------------------------------------------------------------------


def left(rows: list[list[int]]) -> NDArray:
    return padded([row[::-1] for row in rows], -1)[:, ::-1]


PADDINGS: dict[str, Callable[[list[list[int]]], Any]] = {
    "V": lambda rows: padded(rows, V),
    "-1": lambda rows: padded(rows, -1),
    "left": left,
    "lists": lambda rows: rows,
    "tuples of arrays": lambda rows: tuple(np.array(row, np.int32) for row in rows),
    "inside": lambda rows: [[-1, *itertools.chain.from_iterable((t, V) for t in row)] for row in rows],
    "object array": lambda rows: np.array([*rows, None], object)[:-1],
    "uint64": lambda rows: padded(rows, V).astype(np.uint64),
}


@pytest.mark.parametrize("pad", PADDINGS)
def test_padding_is_never_counted(pad: str) -> None:
    x = logits()
    data = DATA(PADDINGS[pad](ALL), PADDINGS[pad](OUTPUTS))
    assert expected(x, ARRAYS) == sample(x, data, PARAM(**ARRAYS)).tolist()


@pytest.mark.parametrize("pad", [-1, 0, 17, V])
def test_the_configured_pad_is_not_counted_either(pad: int) -> None:
    x = np.zeros((1, V), np.float32)
    x[0, 0], x[0, 17] = 3.0, 2.0
    param = PARAM(presence_penalty=np.array([5.0]))
    data = DATA(output_ids=np.array([[0, 17, pad, -1, V]]))
    assert {0: 0, 17: 17}.get(pad, 1) == sample(x, data, param, pad_token_id=pad).item()
    assert sample(x, data, param, pad_token_id=pad) == Sampler(pad)(x, data, param)[1]


def test_token_zero_is_penalised_only_where_it_occurs() -> None:
    x = np.array([[2.0, 1.9, 0.0]] * 2, np.float32)
    data, param = DATA(output_ids=[[0, 2], [2]]), PARAM(presence_penalty=np.ones(2))
    assert sample(x, data, param).tolist() == [1, 0]


def test_each_penalty_reads_its_own_array() -> None:
    x = np.array([[3.0, 2.9, 2.8, 0.0]], np.float32)
    data = DATA(all_input_ids=[[0]], output_ids=[[1]])
    greedy = {name: sample(x, data, PARAM(**{name: np.array([1.5])})).item() for name in list(ARRAYS)[:3]}
    assert greedy == {"repetition_penalty": 1, "frequency_penalty": 0, "presence_penalty": 0}
    swapped = DATA(all_input_ids=[[1]], output_ids=[[0]])
    greedy = {name: sample(x, swapped, PARAM(**{name: np.array([1.5])})).item() for name in list(ARRAYS)[:3]}
    assert greedy == {"repetition_penalty": 0, "frequency_penalty": 1, "presence_penalty": 1}


def test_prefill_and_request_ids_change_nothing() -> None:
    x, all_ids, outputs = logits(), padded(ALL, V), padded(OUTPUTS, V)
    sampler, param = Sampler(), PARAM(**ARRAYS)
    for ids in (None, np.arange(B), np.arange(B)[::-1] + 2**40):
        for prefill in (True, False):
            data = DATA(all_ids, outputs, is_prefill=prefill, request_ids=ids)
            assert expected(x, ARRAYS) == sampler(x, data, param)[1].tolist()


def test_a_request_keeps_its_token_when_rows_are_shuffled_dropped_and_added_again() -> None:
    x, sampler, ids = logits(), Sampler(), np.arange(B) + 100
    tokens = expected(x, ARRAYS)
    for rows in ([3, 1, 5], [0], [5, 4, 3, 2, 1, 0], [2, 0, 4]):
        data = DATA([ALL[r] for r in rows], [OUTPUTS[r] for r in rows], None, False, ids[rows])
        param = PARAM(**{name: array[rows] for name, array in ARRAYS.items()})
        assert [tokens[r] for r in rows] == sampler(x[rows], data, param)[1].tolist()


def test_new_parameters_count_at_once_for_a_known_request() -> None:
    x, sampler, ids = logits(), Sampler(), np.arange(B)
    sampler(x, DATA(is_prefill=True, request_ids=ids), PARAM(temperature=np.ones(B)))
    greedy = PARAM(do_sample=np.zeros(B, bool))
    assert x.argmax(1).tolist() == sampler(x, DATA(is_prefill=False, request_ids=ids), greedy)[1].tolist()


def test_the_step_of_the_seed_is_the_number_of_outputs_and_not_of_calls() -> None:
    x, sampler = np.zeros((1, 1000), np.float32), Sampler()
    param = PARAM(temperature=np.ones(1), seed=np.array([11]))
    steps = [sampler(x, DATA(output_ids=[[5] * n]), param)[1].item() for n in (0, 1, 2, 3, 1, 0)]
    wanted = [tirage.sample(x, SamplingParams(seed=11), step=n).token_ids.item() for n in (0, 1, 2, 3, 1, 0)]
    assert (wanted, 4) == (steps, len(set(steps)))


# --- parameters --------------------------------------------------------------------------------------------------


def test_repetition_divides_positive_and_multiplies_negative_logits_once() -> None:
    x = np.array([[4.0, -1.0, 1.9, -3.0], [-1.0, -3.0, -1.9, -1.5]], np.float32)
    data = DATA(all_input_ids=[[0, 0, 0], [0, 0]])
    assert sample(x, data, PARAM(np.array([2.0, 1.49]))).tolist() == [0, 0]
    assert sample(x, data, PARAM(np.array([2.2, 1.51]))).tolist() == [2, 3]


@pytest.mark.parametrize(("penalty", "token"), [(0.9, 0), (1.1, 1), (-5.0, 0)])
def test_frequency_counts_every_time(penalty: float, token: int) -> None:
    x = np.array([[5.0, 2.0, 0.0]], np.float32)
    assert token == sample(x, DATA(output_ids=[[0, 0, 0]]), PARAM(frequency_penalty=np.array([penalty]))).item()


@pytest.mark.parametrize(("penalty", "token"), [(2.9, 0), (3.1, 1), (-5.0, 0)])
def test_presence_counts_once(penalty: float, token: int) -> None:
    x = np.array([[5.0, 2.0, 0.0]], np.float32)
    assert token == sample(x, DATA(output_ids=[[0, 0, 0]]), PARAM(presence_penalty=np.array([penalty]))).item()


@pytest.mark.parametrize("penalty", [3.0, -3.0, 1e6, -1e6, 1e30, 3e38, -3e38, 1e300, -1e300])
def test_any_finite_penalty_punishes_or_rewards(penalty: float) -> None:
    x = np.array([[2.0, 1.0, 0.0]], np.float32)
    token = 1 if penalty > 0 else 2
    for name in ("frequency_penalty", "presence_penalty"):
        out = [[0]] if penalty > 0 else [[2]]
        assert token == sample(x, DATA(output_ids=out), PARAM(**{name: np.array([penalty])})).item()


def test_the_order_is_repetition_then_subtraction_then_temperature() -> None:
    # (4 / 2 - 1 - 0.5) / 2 against 0 / 2: the sampled law has odds e^0.25.
    x = np.array([[4.0, 0.0]], np.float32)
    given = {"repetition_penalty": 2.0, "frequency_penalty": 1.0, "presence_penalty": 0.5, "temperature": 2.0}
    param = PARAM(**{name: np.array([value]) for name, value in given.items()}, seed=np.array([3]))
    logprobs, tokens = Sampler(logprobs_mode="sampled")(x, DATA([[0]], [[0]]), param)
    first = 1 / (1 + math.exp(-0.25))
    assert (math.log(first) if tokens[0] == 0 else math.log(1 - first)) == pytest.approx(logprobs[0], abs=1e-6)


@pytest.mark.slow
def test_top_k_keeps_k_tokens_and_zero_keeps_all() -> None:
    x = np.array([0.0, 0.5, 0.25, 0.125], np.float32)
    kept = {k: set(drawn_tokens(x, top_k=k)) for k in (0, 1, 2, 3, 4, 2**40)}
    assert {0: {0, 1, 2, 3}, 1: {1}, 2: {1, 2}, 3: {1, 2, 3}, 4: {0, 1, 2, 3}, 2**40: {0, 1, 2, 3}} == kept


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(0.0, {0}), (1e-300, {0}), (0.25, {0}), (0.49, {0}), (0.5, {0, 1}), (0.75, {0, 1, 2}), (1.0, {0, 1, 2, 3})],
)
def test_top_p_stops_when_the_mass_exceeds_it(top_p: float, kept: set[int]) -> None:
    assert kept == set(drawn_tokens(octaves(0, 1, 2, 2), top_p=top_p))


def test_top_p_judges_what_top_k_left() -> None:
    # Of [.4, .3, .2, .1] top-k 2 leaves [4/7, 3/7]: 0.5 is exceeded by the first alone, 0.4 would be by any.
    x = np.log(np.array([0.4, 0.3, 0.2, 0.1]))
    assert [{0}, {0, 1}] == [set(drawn_tokens(x, top_k=k, top_p=0.5)) for k in (2, 0)]


@pytest.mark.parametrize("names", [("temperature",), ("top_k",), ("top_p",), ("top_k", "top_p")])
def test_without_do_sample_a_given_method_draws(names: tuple[str, ...]) -> None:
    method: dict[str, Any] = {"temperature": 1.0, "top_k": 3, "top_p": 0.99}
    assert {0, 1, 2} == set(drawn_tokens(octaves(0, 0, 0, 30), **{name: method[name] for name in names}))


@pytest.mark.parametrize("names", [(), ("repetition_penalty",), ("frequency_penalty", "presence_penalty")])
def test_without_do_sample_and_method_the_largest_is_taken(names: tuple[str, ...]) -> None:
    penalties: dict[str, Any] = dict.fromkeys(names, 1.5)
    assert {0} == set(drawn_tokens(octaves(0, 0, 0, 30), **penalties))


def test_do_sample_and_temperature_mix_within_a_batch() -> None:
    x = np.tile(octaves(0, 0, 0, 0), (400, 1))
    temperature, do_sample = np.tile([1.0, 0.0], 200), np.repeat([True, False], 200)
    tokens = sample(x, None, PARAM(temperature=temperature, seed=np.arange(400), do_sample=do_sample))
    alone = sample(x, None, PARAM(temperature=temperature, seed=np.arange(400)))
    parts = [slice(0, 200, 2), slice(1, 200, 2), slice(200, 400)]
    assert [{0, 1, 2, 3}, {0}, {0}] == [set(tokens[part].tolist()) for part in parts]
    assert [{0, 1, 2, 3}, {0}] == [set(alone[start::2].tolist()) for start in (0, 1)]


def test_temperature_zero_is_the_largest_logit() -> None:
    x = logits()
    for do_sample in (None, np.ones(B, bool)):
        logprobs, tokens = Sampler(logprobs_mode="sampled")(
            x, None, PARAM(temperature=np.zeros(B), do_sample=do_sample)
        )
        assert (x.argmax(1).tolist(), [0.0] * B) == (tokens.tolist(), logprobs.tolist())


def test_seeds_count_in_all_their_bits() -> None:
    x = np.zeros((4, 100_000), np.float32)
    seeds = np.array([7, 7 + 2**32, 7 + 2**62, 7])
    tokens = sample(x, None, PARAM(temperature=np.ones(4), seed=seeds)).tolist()
    assert (3, tokens[0]) == (len(set(tokens)), tokens[3])


def test_an_unsigned_seed_keeps_its_bits() -> None:
    x = np.zeros((3, 100_000), np.float32)
    given = PARAM(temperature=np.ones(3), seed=np.array([2**64 - 1, 2**63, 5], np.uint64))
    wanted = tirage.sample(x, [SamplingParams(seed=s) for s in (-1, -(2**63), 5)]).token_ids
    assert wanted.tolist() == sample(x, None, given).tolist()


def test_unseeded_requests_are_drawn_afresh_and_leave_global_generators_alone() -> None:
    x, param = np.zeros((2, 100_000), np.float32), PARAM(temperature=np.ones(2))
    states = random.getstate(), repr(np.random.get_state(legacy=False))
    draws = [tuple(sample(x, None, param).tolist()) for _ in range(3)]
    assert states == (random.getstate(), repr(np.random.get_state(legacy=False)))
    assert len({token for pair in draws for token in pair}) > 3


@pytest.mark.slow
def test_tokens_come_as_often_as_their_probability_says() -> None:
    probabilities, count = np.array([0.5, 0.25, 0.125, 0.125]), 2000
    counts = np.bincount(drawn_tokens(np.log(probabilities), count=count, temperature=1.0), minlength=4)
    squares = ((counts - count * probabilities) ** 2 / (count * probabilities)).sum()
    assert squares < 16.27  # chi-squared with 3 degrees of freedom exceeds it once in 1000 sets of seeds


# --- results -----------------------------------------------------------------------------------------------------


def test_logprobs_are_of_the_whole_vocabulary_whatever_the_batch_asks() -> None:
    x = logits()
    logprobs, tokens = Sampler()(x, histories(), PARAM(**ARRAYS))
    wide = x.astype(np.float64)
    wanted = (wide - np.log(np.exp(wide).sum(1, keepdims=True)))[np.arange(B), tokens]
    assert (str(logprobs.dtype), logprobs.shape) == ("float32", (B,))
    np.testing.assert_allclose(wanted, logprobs, rtol=0, atol=1e-5)
    for row in range(B):
        data = DATA([ALL[row]], [OUTPUTS[row]])
        alone, _ = Sampler()(x[row], data, PARAM(**{name: array[row : row + 1] for name, array in ARRAYS.items()}))
        assert logprobs[row] == alone[0]


@pytest.mark.parametrize("mode", ["raw", "processed", "sampled"])
def test_the_law_of_the_logprobs_can_be_chosen(mode: Any) -> None:
    x = logits()
    requests = [request(ARRAYS, row).replace(logprobs=0, logprobs_mode=mode) for row in range(B)]
    wanted = tirage.sample(x, requests, history=HISTORY).logprobs
    assert wanted.tolist() == Sampler(logprobs_mode=mode)(x, histories(), PARAM(**ARRAYS))[0].tolist()


def test_a_bad_row_has_no_token_and_no_logprob_and_harms_no_other() -> None:
    x = logits()
    bad = x.copy()
    bad[1, 3], bad[2, 0], bad[4] = np.nan, np.inf, -np.inf
    logprobs, tokens = Sampler()(bad, histories(), PARAM(**ARRAYS))
    wanted = [-1 if row in {1, 2, 4} else token for row, token in enumerate(expected(x, ARRAYS))]
    assert (wanted, [1, 2, 4]) == (tokens.tolist(), np.flatnonzero(np.isnan(logprobs)).tolist())


def test_a_new_object_at_an_old_place_in_memory_has_its_own_parameters() -> None:
    x = np.array([[1.0, 2.0, 3.0]], np.float32)
    for n in range(50):
        token = n % 3
        param = PARAM(presence_penalty=np.array([-10.0]))
        assert token == sample(x, DATA(output_ids=[[token]]), param).item()


def test_no_requests_and_no_tokens_are_an_ordinary_case() -> None:
    empty = {name: array[:0] for name, array in ARRAYS.items()}
    tokens = sample(np.zeros((0, V), np.float32), DATA(np.zeros((0, 3), int), np.zeros((0, 0), int)), PARAM(**empty))
    assert (str(tokens.dtype), tokens.shape) == ("int64", (0,))
    assert sample(np.zeros((0, V), np.float32), DATA([], []), PARAM(top_k=[])).tolist() == []
    x = logits()
    none_yet = DATA(np.zeros((B, 0), int), [[] for _ in range(B)])
    assert sample(x, None, PARAM(**ARRAYS)).tolist() == sample(x, none_yet, PARAM(**ARRAYS)).tolist()
