"""What `sample` and `law` take and what they refuse: arrays of every kind, ids, steps, masks."""

from __future__ import annotations

from typing import Any, cast

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from every_stage import bitmask, full_params, hashed_logits
from numpy.typing import NDArray

import tirage
from tirage import Draw, ParamsError, SamplingParams, Status

V = 40
GREEDY = SamplingParams(temperature=0)
SEEDED = SamplingParams(seed=1)
TWO = np.zeros((2, 4), np.float32)


def bits(drawn: Draw) -> list[Any]:
    """Everything a Draw holds, as bytes, so that NaN equals NaN and 0.0 differs from -0.0."""
    arrays = (
        drawn.token_ids,
        drawn.sampled_logprobs,
        drawn.support_sizes,
        drawn.status,
        drawn.seeds,
        drawn.logprobs,
        drawn.ranks,
        drawn.top_token_ids,
        drawn.top_logprobs,
    )
    return [None if a is None else (a.dtype, a.shape, a.tobytes()) for a in arrays]


# --- accepted ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f2", ">f4", ">f8", ml_dtypes.bfloat16])
def test_every_float_type_means_the_float32_of_the_same_value(dtype: Any) -> None:
    rounded = hashed_logits("dtype", size=3 * V).reshape(3, V).astype(dtype)
    params = full_params("canonical", seed=3)
    widened, history = rounded.astype(np.float32), [([1, 2], [3])] * 3
    expected = tirage.sample(widened, params, history=history)
    assert bits(expected) == bits(tirage.sample(rounded, params, history=history))
    expected = tirage.law(widened, params, history=history)
    np.testing.assert_array_equal(expected, tirage.law(rounded, params, history=history))


def test_float64_rounds_to_float32() -> None:
    x = np.array([1.0 + 2.0**-30, 1.0, 0.0])
    assert tirage.sample(x, GREEDY).token_ids.tolist() == [0]
    law = tirage.law(x, SamplingParams())
    assert law[0, 0] == law[0, 1]


@pytest.mark.parametrize(("value", "status"), [(1e300, Status.non_finite_logits), (-1e300, Status.ok)])
def test_a_float64_beyond_float32_becomes_infinite(value: float, status: Status) -> None:
    drawn = tirage.sample(np.array([value, 0.0]), SEEDED)
    assert [status] == drawn.status.tolist()
    assert [1 if status == Status.ok else -1] == drawn.token_ids.tolist()


def views(x: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """Arrays of other layouts that hold what `x` holds."""
    rows, columns = x.shape
    wide = np.full((rows * 2, columns * 3), np.nan, np.float32)
    wide[::2, 1::3] = x
    padded = np.full(4 * x.size + 8, 7, np.uint8)
    unaligned = padded[1 : 1 + 4 * x.size].view(np.float32).reshape(x.shape)
    unaligned[...] = x
    frozen = x.copy()
    frozen.setflags(write=False)
    return {
        "strided": wide[::2, 1::3],
        "reversed": x[::-1, ::-1].copy()[::-1, ::-1],
        "fortran": np.asfortranarray(x),
        "transposed": x.T.copy().T,
        "unaligned": unaligned,
        "read-only": frozen,
    }


@pytest.mark.parametrize("layout", ["strided", "reversed", "fortran", "transposed", "unaligned", "read-only"])
def test_the_memory_layout_does_not_matter(layout: str) -> None:
    x = hashed_logits("layout", size=5 * V).reshape(5, V)
    params = full_params("canonical", seed=5, logprobs=4)
    history = [([1, 2, 3], [row]) for row in range(5)]
    expected = bits(tirage.sample(x, params, history=history))
    assert expected == bits(tirage.sample(views(x)[layout], params, history=history))


def test_a_broadcast_row_is_as_many_rows() -> None:
    x = np.broadcast_to(hashed_logits("one", size=V), (4, V))
    drawn = tirage.sample(x, [SEEDED.replace(seed=seed) for seed in range(4)])
    alone = [int(tirage.sample(x[0], SEEDED.replace(seed=seed)).token_ids[0]) for seed in range(4)]
    assert alone == drawn.token_ids.tolist()


def test_the_callers_arrays_are_not_modified() -> None:
    x = hashed_logits("mine", size=2 * V).reshape(2, V)
    mask = bitmask(list(range(20)), list(range(1, V, 2)), size=V)
    history = [([1, 2, 3], [5, 6]), (np.array([9, 9]), np.array([4, 4], np.int64))]
    before = [x.tobytes(), mask.tobytes(), repr(history)]
    params = full_params("canonical", seed=2, allowed_token_ids=range(30), bad_words_token_ids=[3, (5, 6, 8)])
    for call in (tirage.sample, tirage.law):
        call(x, params, history=history, mask=mask)
    tirage.sample(x, GREEDY.replace(repetition_penalty=2.0), history=history, mask=mask)
    assert before == [x.tobytes(), mask.tobytes(), repr(history)]


@pytest.mark.parametrize("per_row", [{}, {"history": [], "step": [], "sample_index": []}])
def test_no_rows_give_an_empty_result(per_row: dict[str, Any]) -> None:
    x, mask = np.zeros((0, V), np.float32), np.zeros((0, 2), np.int32)
    drawn = tirage.sample(x, [] if per_row else SEEDED, mask=mask, **per_row)
    assert [a.tolist() for a in (drawn.token_ids, drawn.status, drawn.seeds, drawn.support_sizes)] == [[], [], [], []]
    assert tirage.law(x, [] if per_row else SEEDED, mask=mask).shape == (0, V)


def test_a_vocabulary_of_one_token_always_gives_it() -> None:
    params = full_params("canonical", logit_bias=None, sequence_bias=None, seed=1)
    drawn = tirage.sample(np.array([[-3.0], [88.0]]), params, history=[((), ()), ((), ())])
    assert drawn.token_ids.tolist() == [0, 0]
    assert np.array([0.0, 0.0], np.float32).tobytes() == drawn.sampled_logprobs.tobytes()


def test_the_largest_vocabulary_is_2_to_the_20() -> None:
    x = np.zeros(1 << 20, np.float32)
    x[-1] = 1
    assert tirage.sample(x, GREEDY).token_ids.tolist() == [(1 << 20) - 1]
    with pytest.raises(ParamsError) as error:
        tirage.sample(np.zeros((1 << 20) + 1, np.float32), GREEDY)
    assert str(error.value) == "logits must have 1 to 1048576 columns, got 1048577"


def test_the_callers_floating_point_state_changes_nothing() -> None:
    tiny = np.array([[1e-300, 0.0, -1e300, 3e38], [1e-40, 1e-38, -1e-40, 0.0]])
    snan = np.array([[0x7FF0000000000001, 0, 0]], np.uint64).view(np.float64)
    params = full_params(
        "canonical", logit_bias={0: 1e-40, 1: 1e30}, sequence_bias=None, seed=1, temperature=1e-20, logprobs=2
    )
    with np.errstate(all="ignore"):
        expected = [bits(tirage.sample(x, params, history=[([0, 1, 2], [1])] * len(x))) for x in (tiny, snan)]
    with np.errstate(all="raise"):
        actual = [bits(tirage.sample(x, params, history=[([0, 1, 2], [1])] * len(x))) for x in (tiny, snan)]
    assert expected == actual


def test_mask_bits_past_the_vocabulary_are_ignored() -> None:
    exact = bitmask([1, 5, 33], size=V)
    spilled = exact | np.array([[0, -1 << V % 32]], np.int32)
    x = hashed_logits("mask", size=V)
    np.testing.assert_array_equal(tirage.law(x, SEEDED, mask=exact), tirage.law(x, SEEDED, mask=spilled))
    assert np.flatnonzero(tirage.law(x, SEEDED, mask=spilled)).tolist() == [1, 5, 33]


@pytest.mark.parametrize("kind", [">i4", "<i4", ">u4"])
def test_a_mask_may_have_its_bytes_in_either_order(kind: str) -> None:
    x, params = np.stack([hashed_logits("mask", size=V)] * 2), SamplingParams(seed=3)
    mask = bitmask([2, 31, 32], [5, 33], size=V)
    ordered = (mask.view(np.uint32) if "u" in kind else mask).astype(kind)
    expected = tirage.sample(x, params, mask=mask)
    np.testing.assert_array_equal(tirage.law(x, params, mask=mask), tirage.law(x, params, mask=ordered))
    for logits in (x, torch.from_numpy(x), jnp.asarray(x)):
        drawn = tirage.sample(logits, params, mask=ordered)
        assert np.asarray(drawn.token_ids).tolist() == expected.token_ids.tolist()


def test_a_mask_may_be_unsigned_strided_or_one_row_alone() -> None:
    x = hashed_logits("mask", size=V)
    mask = bitmask([2, 31, 32], size=V)
    wide = np.repeat(mask, 2, axis=1)
    frozen = mask.copy()
    frozen.setflags(write=False)
    expected = tirage.law(x, SEEDED, mask=mask)
    for same in (mask.view(np.uint32), wide[:, ::2], mask[0], frozen):
        np.testing.assert_array_equal(expected, tirage.law(x, SEEDED, mask=same))


@pytest.mark.parametrize(
    "ids",
    [
        (3, 1, 3),
        np.array([3, 1, 3], np.uint8),
        np.array([9, 3, 9, 1, 9, 3], np.int64)[1::2],
        [np.int64(3), np.int32(1), np.uint16(3)],
        iter([3, 1, 3]),
        range(3, 4),
    ],
)
def test_history_ids_come_in_any_container(ids: Any) -> None:
    params = SamplingParams(frequency_penalty=1.0, semantics="mlx", seed=1)
    same = [int(i) for i in ids] if not hasattr(ids, "__next__") else [3, 1, 3]
    x = np.zeros(4, np.float32)
    np.testing.assert_array_equal(
        tirage.law(x, params, history=[(same, [])]), tirage.law(x, params, history=[(ids, ())])
    )


# --- refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (TWO.astype(np.int64), "logits must be float16, bfloat16, float32 or float64, got int64; cast them"),
        (TWO.astype(bool), "logits must be float16, bfloat16, float32 or float64, got bool; cast them"),
        (TWO.astype(object), "logits must be float16, bfloat16, float32 or float64, got object; cast them"),
        (TWO.astype(complex), "logits must be float16, bfloat16, float32 or float64, got complex128; cast them"),
        (TWO.astype("S4"), "logits must be float16, bfloat16, float32 or float64, got |S4; cast them"),
        (
            TWO.astype(ml_dtypes.float8_e4m3fn),
            "logits must be float16, bfloat16, float32 or float64, got float8_e4m3fn; cast them",
        ),
        (np.array(1.0), "logits must have shape [V] or [B, V], got (); reshape them"),
        (TWO[None], "logits must have shape [V] or [B, V], got (1, 2, 4); reshape them"),
        (TWO[:, :0], "logits must have 1 to 1048576 columns, got 0"),
        (np.zeros(0), "logits must have 1 to 1048576 columns, got 0"),
    ],
)
def test_logits_of_the_wrong_kind_are_refused(x: Any, message: str) -> None:
    for call in (tirage.sample, tirage.law):
        with pytest.raises(ParamsError) as error:
            call(x, SEEDED)
        assert message == str(error.value)


@pytest.mark.parametrize("x", [TWO.tolist(), None, np.float32(1), "logits", [0.0, 1.0]], ids=repr)
def test_logits_that_are_no_array_are_refused_by_their_type(x: Any) -> None:
    for call in (tirage.sample, tirage.law):
        with pytest.raises(ParamsError, match=rf"^logits must be an? .*array.*, got (numpy\.)?{type(x).__name__}; "):
            call(x, SEEDED)


@pytest.mark.parametrize("x", [TWO.astype(np.longdouble), np.ma.array(TWO, mask=True)], ids=["longdouble", "masked"])
def test_logits_whose_meaning_would_be_lost_are_refused(x: Any) -> None:
    with pytest.raises(ParamsError, match=r"^logits must be"):
        tirage.sample(x, SEEDED)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (None, "params must be a SamplingParams or a sequence of 2, got NoneType"),
        ("greedy", "params must be a SamplingParams or a sequence of 2, got str"),
        ({"temperature": 0}, "params must be a SamplingParams or a sequence of 2, got dict"),
        ([], "params must hold one entry per row (2), got 0"),
        ([SEEDED], "params must hold one entry per row (2), got 1"),
        ([SEEDED] * 3, "params must hold one entry per row (2), got 3"),
        ([SEEDED, None], "params must hold SamplingParams only, got NoneType"),
        ([SEEDED, {"seed": 1}], "params must hold SamplingParams only, got dict"),
    ],
)
def test_params_that_do_not_fit_the_rows_are_refused(params: Any, message: str) -> None:
    for call in (tirage.sample, tirage.law):
        with pytest.raises(ParamsError) as error:
            call(TWO, params)
        assert message == str(error.value)


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ("ab", "history must be a list of 2 (prompt_ids, output_ids) pairs, got 2"),
        ({0: 1}, "history must be a list of 2 (prompt_ids, output_ids) pairs, got dict"),
        ([([], [])], "history must be a list of 2 (prompt_ids, output_ids) pairs, got 1"),
        (
            [[1, 2, 3], [1]],
            "history must hold (prompt_ids, output_ids) pairs, got list; wrap one pair in a list",
        ),
        ([([4], []), ([], [])], "history prompt ids must lie in [0, 4), got 4; drop padding before the call"),
        ([([], []), ([], [-1])], "history output ids must lie in [0, 4), got -1; drop padding before the call"),
        ([([1.0], []), ([], [])], "history prompt ids must be a flat sequence of integers, got float64 of shape (1,)"),
        ([([True], []), ([], [])], "history prompt ids must be a flat sequence of integers, got bool of shape (1,)"),
        ([("12", []), ([], [])], "history prompt ids must be a flat sequence of integers, got <U1 of shape (2,)"),
        ([(["1"], []), ([], [])], "history prompt ids must be a flat sequence of integers, got <U1 of shape (1,)"),
        ([([[1]], []), ([], [])], "history prompt ids must be a flat sequence of integers, got int64 of shape (1, 1)"),
        ([([2**70], []), ([], [])], "history prompt ids must be a flat sequence of integers, got object of shape (1,)"),
    ],
)
def test_a_history_that_cannot_be_right_is_refused(history: Any, message: str) -> None:
    for call in (tirage.sample, tirage.law):
        with pytest.raises(ParamsError) as error:
            call(TWO, SEEDED, history=history)
        assert message == str(error.value)


@pytest.mark.parametrize(
    "history",
    [
        [([[1, 2], [3]], []), ([], [])],
        [(None, []), ([], [])],
        [(3, []), ([], [])],
        ([1, 2], [3, 1]),
        [([1, True], []), ([], [])],
        [([1, None], []), ([], [])],
        [(np.ma.array([1, 2], mask=[False, True]), []), ([], [])],
    ],
    ids=["ragged", "none", "number", "one bare pair for two rows", "bool among ids", "none among ids", "masked array"],
)
def test_a_history_of_other_things_is_refused_as_a_history(history: Any) -> None:
    with pytest.raises(ParamsError, match=r"^history"):
        tirage.sample(TWO, SEEDED, history=history)


def test_a_history_longer_than_the_limit_is_refused() -> None:
    long = np.zeros(1 << 20, np.int32)
    assert tirage.law(TWO, SEEDED, history=[(long, []), ([], [])]).shape[1] == 4
    with pytest.raises(ParamsError) as error:
        tirage.sample(TWO, SEEDED, history=[(long, [0]), ([], [])])
    assert str(error.value) == "history must hold at most 1048576 tokens, got 1048577; truncate it"


@pytest.mark.parametrize("name", ["step", "sample_index"])
@pytest.mark.parametrize(
    "value",
    [
        *(True, np.True_, -1, 1 << 32, 1.5, "3", {}, np.array(1), np.array([[1], [2]]), np.array([0.5, 1.5])),
        *([1], [1, 2, 3], [1, -1], [None, 1], [0.0, 1.0], [[1], [2, 3]]),
    ],
    ids=repr,
)
def test_a_counter_that_is_no_count_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ParamsError, match=f"^{name} must be an integer"):
        tirage.sample(TWO, SEEDED, **{name: value})


@pytest.mark.parametrize("value", [[1, True], np.array([True, False]), [[1], [2]]])
def test_a_counter_is_never_reinterpreted(value: Any) -> None:
    with pytest.raises(ParamsError, match=r"^step must be an integer"):
        tirage.sample(TWO, SEEDED, step=value)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (np.ones((2, 1), np.int64), "mask must be an int32 array of bits, got int64; pack 32 tokens to a word"),
        (np.ones((2, 4), bool), "mask must be an int32 array of bits, got bool; pack 32 tokens to a word"),
        (np.ones((2, 1), np.float32), "mask must be an int32 array of bits, got float32; pack 32 tokens to a word"),
        ([[1], [1]], "mask must be an int32 array of bits, got list; pack 32 tokens to a word"),
        (np.ones((1, 1), np.int32), "mask must have shape [2, 1] for logits [2, 4], got [1, 1]"),
        (np.ones((2, 2), np.int32), "mask must have shape [2, 1] for logits [2, 4], got [2, 2]"),
        (np.ones(1, np.int32), "mask must have shape [2, 1] for logits [2, 4], got [1]"),
        (np.ones((2, 1, 1), np.int32), "mask must have shape [2, 1] for logits [2, 4], got [2, 1, 1]"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(mask: Any, message: str) -> None:
    for call in (tirage.sample, tirage.law):
        with pytest.raises(ParamsError) as error:
            call(TWO, SEEDED, mask=mask)
        assert message == str(error.value)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"logit_bias": {4: 1.0}}, "logit_bias"),
        ({"allowed_token_ids": [0, 4]}, "allowed_token_ids"),
        ({"bad_words_token_ids": [(1, 4)]}, "bad_words_token_ids"),
        ({"logprob_token_ids": [4]}, "logprob_token_ids"),
        ({"xtc_protected_ids": [4]}, "xtc_protected_ids"),
        ({"stop_token_ids": [4], "min_tokens": 1}, "stop_token_ids"),
    ],
)
def test_a_parameter_that_names_a_missing_token_is_refused(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ParamsError) as error:
        tirage.sample(TWO, SamplingParams(**options))
    assert f"{name} must lie in [0, 4), got 4; the logits have 4 columns" == str(error.value)


def test_bad_words_without_ids_are_refused_and_not_dropped() -> None:
    with pytest.raises(ParamsError, match=r"^bad_words must be tokenised first"):
        tirage.sample(TWO, SamplingParams(bad_words=["no"]))


def test_a_grammar_without_a_mask_is_refused_and_not_dropped() -> None:
    guided = SamplingParams(guided_decoding=tirage.GuidedDecodingParams(regex="[ab]"))
    with pytest.raises(ParamsError, match="guided_decoding"):
        tirage.sample(TWO, guided)


@pytest.mark.parametrize("option", ["histroy", "top_p"])
def test_an_unknown_option_is_not_swallowed(option: str) -> None:
    for call in (tirage.sample, tirage.law):
        with pytest.raises(TypeError, match=option):
            call(TWO, SEEDED, **{option: cast("Any", None)})
