"""Torch tensors in, torch tensors out: dtypes, layouts, devices, refusals, and batches of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from every_stage import bitmask, full_params, hashed_logits

import tirage
from tirage import Batch, ParamsError, SamplingParams
from tirage.backends.numpy import distribution
from tirage.backends.torch import eager
from tirage.backends.torch.arrays import as_logits
from tirage.backends.torch.dispatch import draw_on_device, kernels_for
from tirage.history import History
from tirage.sampling_batch import SamplingBatch, SamplingRow

V = 40
SEEDED = SamplingParams(seed=1)
FIELDS = ("token_ids", "sampled_logprobs", "support_sizes", "status", "seeds")
REPORTS = ("logprobs", "ranks", "top_token_ids", "top_logprobs")


def matrix(rows: int = 3, size: int = V) -> torch.Tensor:
    return torch.from_numpy(hashed_logits("torch", rows, size=rows * size).reshape(rows, size))


def as_bytes(drawn: tirage.Draw) -> list[Any]:
    """Every array of a Draw of either library, as its dtype, shape and bytes."""
    arrays = [getattr(drawn, name) for name in FIELDS + REPORTS]
    host = [a if a is None else np.asarray(a) for a in arrays]
    return [None if a is None else (a.dtype, a.shape, a.tobytes()) for a in host]


# --- what comes back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_float_type_draws_what_its_float32_values_draw_in_numpy(dtype: torch.dtype) -> None:
    x = matrix().to(dtype)
    params = full_params("canonical", seed=3, logprobs=2)
    history = [((1, 2), (3,))] * 3
    expected = tirage.sample(x.to(torch.float32).numpy(), params, history=history)
    assert as_bytes(expected) == as_bytes(tirage.sample(x, params, history=history))
    expected = tirage.law(x.to(torch.float32).numpy(), params, history=history)
    np.testing.assert_array_equal(expected, tirage.law(x, params, history=history))


def test_results_are_tensors_on_the_device_of_the_logits() -> None:
    drawn = tirage.sample(matrix(), SamplingParams(seed=1, logprobs=2, logprob_token_ids=(5,)))
    arrays = {name: getattr(drawn, name) for name in FIELDS + REPORTS}
    assert dict.fromkeys(arrays, "cpu") == {name: a.device.type for name, a in arrays.items()}
    assert {
        "token_ids": torch.int64, "sampled_logprobs": torch.float32, "support_sizes": torch.int64,
        "status": torch.int8, "seeds": torch.int64, "logprobs": torch.float32, "ranks": torch.int64,
        "top_token_ids": torch.int64, "top_logprobs": torch.float32,
    } == {name: a.dtype for name, a in arrays.items()}  # fmt: skip
    assert [len(row) for row in drawn.given_logprobs or ()] == [1, 1, 1]


def test_a_vector_is_a_batch_of_one() -> None:
    x = matrix()
    assert as_bytes(tirage.sample(x[:1], SEEDED)) == as_bytes(tirage.sample(x[0], SEEDED))


@pytest.mark.parametrize("view", [lambda x: x.T.contiguous().T, lambda x: torch.stack([x, x], 2)[:, :, 0]])
def test_tensors_that_are_not_contiguous_mean_their_values(view: Any) -> None:
    assert not view(matrix()).is_contiguous()
    assert as_bytes(tirage.sample(matrix(), SEEDED)) == as_bytes(tirage.sample(view(matrix()), SEEDED))


def test_lazily_negated_values_are_their_values() -> None:
    negated = torch.view_as_complex(torch.stack([matrix(), -matrix()], 2)).conj().imag
    assert negated.is_neg()
    assert as_bytes(tirage.sample(matrix(), SEEDED)) == as_bytes(tirage.sample(negated, SEEDED))


def test_gradients_and_inference_mode_do_not_matter() -> None:
    expected = as_bytes(tirage.sample(matrix(), SEEDED))
    assert expected == as_bytes(tirage.sample(matrix().requires_grad_(), SEEDED))
    assert expected == as_bytes(tirage.sample(torch.nn.Parameter(matrix()), SEEDED))
    with torch.inference_mode():
        assert expected == as_bytes(tirage.sample(matrix() + 0, SEEDED))


def test_float32_on_the_cpu_is_not_copied() -> None:
    x = matrix()
    assert x.data_ptr() == as_logits(x).data_ptr()


def test_logits_are_left_as_they_were() -> None:
    x, params = matrix(), full_params("canonical", seed=3)
    before = x.clone()
    tirage.sample(x, params, history=[((1,), (2,))] * 3)
    frame = SamplingBatch.of([SamplingRow.of(params, History.of((1,), (2,), vocab_size=V))] * 3, V)
    draw_on_device(x, frame.metadata(None))
    assert torch.equal(before, x)


def test_no_rows_give_an_empty_draw() -> None:
    drawn = tirage.sample(torch.empty(0, V), SEEDED)
    assert tuple(drawn.token_ids.shape) == (0,)
    assert draw_on_device(torch.empty(0, V), SamplingBatch.of([], V).metadata(None)).token_ids.tolist() == []


def test_a_bitmask_is_an_int32_tensor() -> None:
    words = bitmask([3], [7], [9, 11], size=V)
    expected = tirage.sample(matrix().numpy(), SEEDED, mask=words)
    assert as_bytes(expected) == as_bytes(tirage.sample(matrix(), SEEDED, mask=torch.from_numpy(words)))
    unsigned = torch.from_numpy(words.view(np.uint32))
    assert as_bytes(expected) == as_bytes(tirage.sample(matrix(), SEEDED, mask=unsigned))


def test_a_history_may_be_tensors() -> None:
    params = full_params("canonical", seed=3)
    lists, tensors = ([1, 2, 2], [3]), (torch.tensor([1, 2, 2]), torch.tensor([3], dtype=torch.int32))
    expected = as_bytes(tirage.sample(matrix(1), params, history=[lists]))
    assert expected == as_bytes(tirage.sample(matrix(1), params, history=[tensors]))
    batch = Batch(V, 1, like=matrix(1))
    batch.add(params, tensors[0], output_ids=tensors[1])
    assert batch.history(0) == lists
    assert expected == as_bytes(batch.sample(matrix(1)))


def test_explain_and_law_read_tensors() -> None:
    assert tirage.explain(matrix()[0].numpy(), SEEDED).to_dict() == tirage.explain(matrix()[0], SEEDED).to_dict()


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (torch.zeros(2, V, dtype=torch.int64), r"logits must be float16, .* got torch\.int64; cast them"),
        (torch.zeros(2, V, dtype=torch.complex64), r"logits must be float16, .* got torch\.complex64; cast them"),
        (torch.zeros(2, V, dtype=torch.bool), r"logits must be float16, .* got torch\.bool; cast them"),
        (torch.zeros(2, V).to(torch.float8_e5m2), r"logits must be float16, .* got torch\.float8_e5m2; cast them"),
        (torch.zeros(2, 2, V), r"logits must have shape \[V\] or \[B, V\], got \(2, 2, 40\); reshape them"),
        (torch.tensor(1.0), r"logits must have shape \[V\] or \[B, V\], got \(\); reshape them"),
        (torch.zeros(2, 0), r"logits must have 1 to 1048576 columns, got 0"),
        (torch.eye(3).to_sparse(), r"logits must be a dense .*, got a torch\.sparse_coo tensor on cpu"),
        (torch.zeros(2, V, device="meta"), r"logits must be a dense .*, got a torch\.strided tensor on meta"),
    ],
)  # fmt: skip
def test_tensors_that_hold_no_logits_are_refused(logits: torch.Tensor, message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        tirage.sample(logits, SEEDED)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_tensors_of_other_layouts_are_refused() -> None:
    rows = [torch.zeros(V), torch.zeros(V)]
    ragged = torch.nested.nested_tensor(rows)
    with pytest.raises(
        ParamsError, match=r"logits must be a dense torch\.Tensor with data, got a nested tensor on cpu"
    ):
        tirage.sample(ragged, SEEDED)
    for logits, kind in ((torch.eye(V).to_sparse_csr(), "sparse_csr"), (torch.eye(V).to_sparse_csc(), "sparse_csc")):
        with pytest.raises(ParamsError, match=rf"logits must be a dense .*, got a torch\.{kind} tensor on cpu"):
            tirage.sample(logits, SEEDED)


@pytest.mark.parametrize("transform", [torch.vmap, torch.func.grad], ids=["vmap", "grad"])
def test_tensors_inside_a_transform_are_refused(transform: Callable[..., Any]) -> None:
    drawn = transform(lambda x: tirage.sample(x, SEEDED).sampled_logprobs.sum())
    with pytest.raises(ParamsError, match=r"got one inside a transform of torch\.func; call sample outside"):
        drawn(matrix())


@pytest.mark.parametrize(
    ("logits", "mask", "message"),
    [
        (matrix(), [[-1, -1]] * 3, r"mask must be a torch.Tensor or NumPy array, got (builtins\.)?list"),
        (matrix(), np.full((3, 3), -1, np.int32), r"mask must have shape \[3, 2\] .* got \[3, 3\]"),
        (matrix().numpy(), torch.full((3, 2), -1, dtype=torch.int32), r"mask must be .* got torch\.Tensor"),
        (matrix(), torch.ones(3, V, dtype=torch.bool), r"mask must be an int32 tensor of bits, got torch\.bool"),
        (matrix(), torch.ones(3, 2, dtype=torch.int64), r"mask must be an int32 tensor of bits, got torch\.int64"),
        (matrix(), [[-1, -1]] * 3, r"mask must be a torch.Tensor or NumPy array, got list; use torch.from_numpy"),
        (
            matrix(),
            torch.ones(3, 2, dtype=torch.int32).to_sparse(),
            r"mask must be a dense .* torch\.sparse_coo tensor",
        ),
        (matrix(), torch.ones(3, 3, dtype=torch.int32), r"mask must have shape \[3, 2\] .* got \[3, 3\]"),
        (matrix(), torch.ones(3, 2, dtype=torch.int32, device="meta"), r"mask must be on the device .*cpu, got meta"),
    ],
)
def test_masks_of_another_library_device_type_or_shape_are_refused(logits: Any, mask: Any, message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        tirage.sample(logits, SEEDED, mask=mask)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (torch.tensor([1, V]), r"history prompt ids must lie in \[0, 40\), got 40; drop padding"),
        (torch.tensor([-1, 2]), r"history prompt ids must lie in \[0, 40\), got -1; drop padding"),
        (torch.tensor([1.0]), r"history prompt ids must be a flat sequence of integers, got float32 of shape \(1,\)"),
        (torch.tensor([[1]]), r"history prompt ids must be a flat sequence of integers, got int64 of shape \(1, 1\)"),
        (torch.tensor([True]), r"history prompt ids must be a flat sequence of integers, got bool of shape \(1,\)"),
        (torch.tensor([1], device="meta"), r"history prompt ids must be .* on the host, got Tensor; pass a list"),
        (torch.zeros((1 << 20) + 1, dtype=torch.int64), r"history must hold at most 1048576 tokens, got 1048577"),
    ],
)
def test_tensors_that_hold_no_history_are_refused(prompt: torch.Tensor, message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        tirage.sample(matrix(1), SEEDED, history=[(prompt, ())])
    with pytest.raises(ParamsError, match=message):
        Batch(V, 1, like=matrix(1)).add(SEEDED, prompt)


@pytest.mark.parametrize(
    "params",
    [{"logit_bias": {V: 1.0}}, {"allowed_token_ids": [V]}, {"logprob_token_ids": [V]}, {"stop_token_ids": [V]}],
)
def test_parameters_that_name_a_token_past_the_last_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ParamsError, match=rf"{next(iter(params))} must lie in \[0, 40\), got 40"):
        tirage.sample(matrix(), SEEDED.replace(**params))


@pytest.mark.parametrize("tokens", [[1.5], [[1]], [True], [V], [-2]])
def test_tensors_that_hold_no_tokens_do_not_advance_a_batch(tokens: Any) -> None:
    batch = Batch(V, 1, like=matrix(1))
    batch.add(SEEDED)
    with pytest.raises(ParamsError, match=r"token must be an integer in \[-1, 39\], got "):
        batch.advance(torch.tensor(tokens))
    assert batch.history(0) == ([], [])


def test_tokens_without_data_do_not_advance_a_batch() -> None:
    batch = Batch(V, 1)
    batch.add(SEEDED)
    for tokens in (torch.tensor([1], device="meta"), torch.tensor([1], dtype=torch.bfloat16)):
        with pytest.raises(ParamsError, match=r"tokens must be a Draw or a sequence of ids, got torch\.Tensor"):
            batch.advance(tokens)


# --- which path -----------------------------------------------------------------------------------------------------


def test_kernels_are_for_cuda_alone() -> None:
    assert kernels_for(matrix()) is None


def test_rows_that_need_python_are_drawn_on_the_host() -> None:
    def cold(x: Any, args: list[dict]) -> Any:
        return -x

    tirage.register_processor("test_torch_cold", cold)
    plain, other = SamplingParams(seed=4, top_k=9), SamplingParams(seed=5, logits_processors=(("test_torch_cold", {}),))
    mixture = SamplingParams(seed=6, xtc_probability=0.5, logprobs=3, logprobs_mode="sampled", logprob_token_ids=(1,))
    states = [SamplingRow.of(p, History.of((), (), vocab_size=V)) for p in (plain, other, mixture, plain)]
    frame = SamplingBatch.of(states, V)
    rows, x = frame.metadata(None), matrix(4)
    x[1, 2] = float("nan")
    assert eager.supports(rows).tolist() == [True, False, True, True]
    expected = distribution.draw(x.numpy(), rows, tirage.backends.Drawn.empty(rows), processes=frame.processes)
    actual = draw_on_device(x, rows, frame.processes)
    for name in expected.__slots__:
        np.testing.assert_array_equal(getattr(expected, name), np.asarray(getattr(actual, name)), name)


def test_flush_to_zero_changes_no_token() -> None:
    x = torch.tensor([[-1e-40, 1e-40, 2e-40, 1e-39], [0.0, 1e-41, -0.0, 1e-45]])
    params = SamplingParams(seed=2, top_k=2, logit_bias={0: 1e-39}, repetition_penalty=1.5)
    frame = SamplingBatch.of([SamplingRow.of(params, History.of((1,), (2,), vocab_size=4))] * 2, 4)
    before = draw_on_device(x, frame.metadata(None))
    assert torch.set_flush_denormal(True)
    try:
        after = draw_on_device(x, frame.metadata(None))
    finally:
        torch.set_flush_denormal(False)
    assert before.token_ids.tolist() == after.token_ids.tolist()
    assert before.sampled_logprobs.tolist() == after.sampled_logprobs.tolist()


# --- batches --------------------------------------------------------------------------------------------------------


def test_a_batch_of_tensors_draws_what_a_batch_of_arrays_draws() -> None:
    def run(convert: Any) -> list[list[int]]:
        batch = Batch(V, 4, like=convert(matrix(1)))
        for seed in range(3):
            batch.add(SamplingParams(seed=seed, top_p=0.9, presence_penalty=0.5), [seed])
        batch.remove(1)
        tokens = []
        for step in range(4):
            x = convert(matrix(4, V) * (step + 1))
            drawn = batch.sample(x if step % 2 else x[:2])
            assert type(drawn.token_ids) is type(x)
            batch.advance(drawn)
            tokens.append(drawn.token_ids.tolist())
        return [*tokens, batch.history(0)[1], batch.history(2)[1]]

    assert run(lambda x: x.numpy()) == run(lambda x: x)


def test_a_batch_keeps_to_the_library_it_was_made_like() -> None:
    batch = Batch(V, 1, like=matrix(1))
    batch.add(SEEDED)
    with pytest.raises(ParamsError, match=r"logits must come from the library .*`like`, got numpy\.ndarray"):
        batch.sample(matrix(1).numpy())


def test_tokens_given_as_a_tensor_advance_a_batch() -> None:
    batch = Batch(V, 1)
    batch.add(SEEDED, [3])
    batch.advance(torch.tensor([7]))
    assert batch.history(0) == ([3], [7])
