"""`log_law`: the bits of the draw, the law, and slopes that finite differences confirm, for every operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from strategies import logits_of as sharp_logits
from test_records import STATE, V, cases, histories

import tirage
from tirage import ParamsError, SamplingParams, Watermark
from tirage.backends.numpy import kernels
from tirage.draw import Draw, Status
from tirage.jax import log_law as jax_log_law
from tirage.laws.edit_slopes import SLOPES
from tirage.laws.held_rows import HeldRows
from tirage.operators import OPERATIONS
from tirage.operators.processors import PROCESS
from tirage.semantics import PRESETS
from tirage.torch import log_law

_SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.7},
    {"temperature": 1.3, "top_p": 0.6},
    {"temperature": 0.9, "top_k": 9, "top_p": 0.8},
    {"temperature": 0.8, "min_p": 0.1, "top_p": 0.9},
    {"temperature": 0.8, "dynatemp_range": 0.4, "min_p": 0.1},
    {"temperature": 0.9, "xtc_probability": 0.5, "xtc_threshold": 0.02},
    {"temperature": 0.7, "typical_p": 0.5, "min_keep": 8},
]


def logits_of(count: int, size: int = V, seed: int = 3) -> NDArray[np.float32]:
    """No two logits of a row are nearly equal, so that a small step changes no kept set."""
    rng = np.random.default_rng(seed)
    ladder = np.linspace(-6, 6, size) + rng.uniform(-0.02, 0.02, (count, size))
    return rng.permuted(ladder, axis=1).astype(np.float32)


def weighed_anew() -> list[SamplingParams]:
    """Parameters after whose filters the tokens get new weights: watermarks, adaptive-p, and both of them."""
    kgw, synthid = Watermark(scheme="kgw", key=9, bias=1.5), Watermark(scheme="synthid", key=[5, 7, 11, 13])
    own = Watermark(scheme="kgw", key=9, seeding_scheme="selfhash", context_width=3)
    settings: list[dict[str, Any]] = [
        {"watermark": kgw},
        {"watermark": kgw, "temperature": 0.7, "top_p": 0.8, "repetition_penalty": 1.3},
        {"watermark": kgw, "temperature": 0.0},
        {"watermark": own, "top_k": 30},
        {"watermark": synthid},
        {"watermark": synthid, "temperature": 1.4, "top_k": 20},
        {"watermark": synthid.replace(key=list(range(3, 33))), "min_p": 0.02},
        {"watermark": synthid, "xtc_probability": 0.5, "xtc_threshold": 0.05},
        {"watermark": kgw, "temperature": 0.8, "dynatemp_range": 0.4},
        {"watermark": kgw, "top_p": 0.85, "semantics": "fastdeploy-air"},
        {"watermark": synthid, "top_p": 0.85, "semantics": "fastdeploy-air"},
        {"adaptive_target": 0.2, "temperature": 0.7},
        {"adaptive_target": 0.05, "top_k": 40, "temperature": 1.6},
        {"adaptive_target": 0.3, "min_p": 0.01, "watermark": synthid},
        {"adaptive_target": 0.3, "xtc_probability": 0.5, "xtc_threshold": 0.05},
        {"watermark": Watermark(scheme="gumbel", key=5), "top_p": 0.9},
    ]
    return [SamplingParams(seed=row, return_kept=True, **each) for row, each in enumerate(settings)]


def drawable() -> tuple[NDArray[np.float32], list[SamplingParams], Draw]:
    """Logits, the parameters of every operator and of some of them together, and what is drawn."""
    params = [p for p in cases() if p.max_kept_ids > 2] + weighed_anew()
    x = logits_of(len(params))
    drawn = tirage.sample(x, params, history=histories(len(x)), state=STATE)
    assert (drawn.status == Status.ok).all()
    return x, params, drawn


def record_of(drawn: Draw, row: int) -> tuple[NDArray[Any], NDArray[Any]]:
    start, stop = drawn.kept_offsets[row : row + 2]
    return drawn.kept_ids[start:stop], np.array([0, stop - start])


def preset_rows(name: str) -> list[SamplingParams]:
    rows = []
    for seed, setting in enumerate(_SETTINGS):
        try:
            rows.append(SamplingParams(semantics=name, seed=seed, return_kept=True, **setting))
        except ParamsError:  # a stage that the preset does not have
            continue
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("recorded", [False, True])
def test_the_value_is_the_draws_own_and_the_ratio_exactly_one(recorded: bool) -> None:
    x, params, drawn = drawable()
    kept = drawn if recorded else None
    value = log_law(torch.from_numpy(x), params, drawn.token_ids, history=histories(len(x)), state=STATE, kept=kept)
    np.testing.assert_array_equal(value.numpy(), drawn.sampled_logprobs)
    assert (torch.exp(value - torch.from_numpy(drawn.sampled_logprobs)) == 1.0).all()
    in_jax = jax_log_law(jnp.asarray(x), params, drawn.token_ids, history=histories(len(x)), state=STATE, kept=kept)
    np.testing.assert_array_equal(np.asarray(in_jax), drawn.sampled_logprobs)


@pytest.mark.slow
def test_every_token_has_the_probability_of_the_law() -> None:
    x, params, _ = drawable()
    laws = tirage.law(x, params, history=histories(len(x)), state=STATE)
    # Each layer of a tournament may double the difference between integer weights and real ones (S-R5).
    layers = [0 if p.watermark is None or p.watermark.scheme != "synthid" else len(p.watermark.keys) for p in params]
    real = np.where(np.array(layers) < 20, 1e-6, 1e-5)
    for token in range(0, V, 5):
        ids = np.full(len(x), token)
        for logits, most in ((torch.from_numpy(x), 1e-6), (torch.from_numpy(x.astype(np.float64)), real)):
            found = torch.exp(log_law(logits, params, ids, history=histories(len(x)), state=STATE))
            assert (np.abs(found.double().numpy() - laws[:, token]) <= most + 1e-7 * laws[:, token]).all()


@pytest.mark.slow
@pytest.mark.parametrize("recorded", [False, True])
def test_slopes_are_those_of_finite_differences_for_every_operator(recorded: bool) -> None:
    x, params, drawn = drawable()
    for row, each in enumerate(params):
        check_slopes(x[row], each, drawn, row, recorded=recorded, history=histories(1))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PRESETS))
def test_slopes_are_those_of_finite_differences_in_every_preset(name: str) -> None:
    params = preset_rows(name)
    x = logits_of(len(params), seed=5)
    drawn = tirage.sample(x, params)
    value = log_law(torch.from_numpy(x), params, drawn.token_ids)
    np.testing.assert_array_equal(value.numpy(), drawn.sampled_logprobs)
    for row, each in enumerate(params):
        check_slopes(x[row], each, drawn, row, recorded=row % 2 == 1)


def check_slopes(
    x: NDArray[np.float32], params: SamplingParams, drawn: Draw, row: int, *, recorded: bool, history: Any = None
) -> None:
    kept = record_of(drawn, row) if recorded else None
    tokens = [int(drawn.token_ids[row])]

    def run(logits: torch.Tensor) -> torch.Tensor:
        return log_law(logits, params, tokens, history=history, kept=kept, state=STATE)

    logits = torch.from_numpy(x[None].astype(np.float64)).requires_grad_()
    assert torch.autograd.gradcheck(run, (logits,), eps=1e-5, atol=1e-5, rtol=1e-4, fast_mode=True), params


def test_a_mask_that_counts_after_the_draw_has_slopes() -> None:
    x = logits_of(1, 40)
    params = SamplingParams(semantics="llamacpp", temperature=0.8, top_k=12, seed=1, return_kept=True)
    order = np.argsort(-x[0])
    allowed = np.ones(64, np.uint8)
    allowed[order[[0, 2, 3]]] = 0
    mask = np.packbits(allowed, bitorder="little").view(np.int32)[None]
    drawn, law = tirage.sample(x, params, mask=mask), tirage.law(x, params, mask=mask)[0]
    for token in np.flatnonzero(law > 0).tolist():
        for kept in (None, drawn):
            run = lambda y, t=token, k=kept: log_law(y, params, [t], mask=mask, kept=k)  # noqa: E731
            logits = torch.from_numpy(x.astype(np.float64)).requires_grad_()
            np.testing.assert_allclose(torch.exp(run(logits)).detach().numpy(), law[token], atol=1e-6)
            assert torch.autograd.gradcheck(run, (logits,), eps=1e-5, atol=1e-5, rtol=1e-4, fast_mode=True)


@pytest.mark.slow
@pytest.mark.parametrize("recorded", [False, True])
def test_jax_gives_torchs_slopes_inside_transformations_too(recorded: bool) -> None:
    x, params, drawn = drawable()
    kept = drawn if recorded else None
    logits, scale = torch.from_numpy(x).requires_grad_(), np.linspace(-1, 2, len(x)).astype(np.float32)
    value = log_law(logits, params, drawn.token_ids, history=histories(len(x)), state=STATE, kept=kept)
    (value * torch.from_numpy(scale)).sum().backward()

    def loss(y: Any) -> Any:
        return (
            jax_log_law(y, params, drawn.token_ids, history=histories(len(x)), state=STATE, kept=kept) * scale
        ).sum()

    for slopes in (jax.grad(loss)(jnp.asarray(x)), jax.jit(jax.grad(loss))(jnp.asarray(x))):
        assert logits.grad is not None
        np.testing.assert_allclose(np.asarray(slopes), logits.grad.numpy(), atol=1e-6)


def test_recorded_ids_hold_where_the_logits_would_keep_others() -> None:
    x, params, drawn = drawable()
    moved = x + np.random.default_rng(9).normal(scale=0.5, size=x.shape).astype(np.float32)
    value = log_law(
        torch.from_numpy(moved), params, drawn.token_ids, history=histories(len(x)), state=STATE, kept=drawn
    )
    assert torch.isfinite(value).all()
    plain = SamplingParams(temperature=0.8, top_p=0.5, seed=1, return_kept=True)
    drawn = tirage.sample(x[0], plain)
    kept = np.asarray(drawn.kept_ids)
    z = torch.from_numpy(moved[0, kept]).double() / 0.8
    expected = torch.log_softmax(z, 0)[int(np.searchsorted(kept, drawn.token_ids[0]))]
    found = log_law(torch.from_numpy(moved[0]), plain, drawn.token_ids, kept=drawn)
    np.testing.assert_allclose(found.numpy(), [float(expected)], atol=1e-6)


def test_a_row_alone_and_a_permuted_vocabulary_and_a_shift_change_nothing() -> None:
    x, params, drawn = drawable()
    alike = [row for row, p in enumerate(params) if not p.logit_bias and p.allowed_token_ids is None]
    whole = log_law(torch.from_numpy(x), params, drawn.token_ids, history=histories(len(x)), state=STATE)
    for row in alike:
        alone = log_law(
            torch.from_numpy(x[row]), params[row], [drawn.token_ids[row]], history=histories(1), state=STATE
        )
        assert alone[0] == whole[row]
    p = SamplingParams(temperature=0.7, top_p=0.8)
    order = np.random.default_rng(0).permutation(V)
    base = log_law(torch.from_numpy(x[0].astype(np.float64)), p, [int(order[5])])
    moved = log_law(torch.from_numpy(x[0].astype(np.float64)[order] + 2.0), p, [5])
    torch.testing.assert_close(base, moved, atol=1e-6, rtol=0)


@pytest.mark.parametrize("semantics", ["trtllm-legacy", "fastdeploy-base", "fastdeploy-air"])
@pytest.mark.parametrize("top_p", [1e-10, 1e-12, 0.1])
def test_the_only_token_of_a_truncated_top_p_has_all_of_the_law(top_p: float, semantics: str) -> None:
    params = SamplingParams(top_p=top_p, semantics=semantics)
    for dtype in (torch.float32, torch.float64):
        x = torch.tensor([[2.0, 1.0, 0.0], [0.0, 2.0, 2.0]], dtype=dtype).requires_grad_()
        values = log_law(x, params, [0, 1])
        assert values.tolist() == [0.0, 0.0]
        values.sum().backward()
        assert x.grad is not None
        assert (x.grad == 0).all()
        assert log_law(x, params, [1, 2]).tolist() == [-np.inf, -np.inf]
    with jax.enable_x64(True):
        in_jax = jnp.array([[2.0, 1.0, 0.0]], jnp.float64)
        assert jax_log_law(in_jax, params, [0]).tolist() == [0.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_values_and_slopes_have_their_dtypes(dtype: torch.dtype) -> None:
    logits = torch.from_numpy(logits_of(2)).to(dtype).requires_grad_()
    value = log_law(logits, SamplingParams(top_k=5), logits.argmax(1))
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    value.sum().backward()
    assert logits.grad is not None
    assert logits.grad.dtype == dtype
    assert logits.grad.shape == logits.shape


def test_a_token_outside_the_law_has_no_slope_and_a_bad_row_is_nan() -> None:
    x = torch.tensor([[0.0, -torch.inf, 1.0, 2.0], [torch.nan, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0]]).requires_grad_()
    value = log_law(x, [SamplingParams(), SamplingParams(), SamplingParams(top_k=1)], [1, 2, 0])
    assert value[0] == value[2] == -torch.inf
    assert torch.isnan(value[1])
    value[[0, 2]].sum().backward()
    assert x.grad is not None
    assert (x.grad[[0, 2]] == 0).all()


def test_every_edit_has_its_slope_or_is_refused() -> None:
    edits = {op for op in OPERATIONS.values() if not op.is_filter}
    assert edits - {PROCESS} == set(SLOPES)
    tirage.register_processor("doubled_for_slopes", lambda logits, args: logits * 2)
    with pytest.raises(ParamsError, match="logits_processors must be empty in log_law, got some"):
        log_law(torch.zeros(5), SamplingParams(logits_processors=(("doubled_for_slopes", {}),)), [1])


@pytest.mark.parametrize(
    ("tokens", "kept", "message"),
    [
        ([1, 2], None, r"token_ids must be 1 integers, one for each row of logits, got int64 of shape \[2\]"),
        ([1.5], None, r"token_ids must be 1 integers, one for each row of logits, got float64 of shape \[1\]"),
        ([5], None, r"token_ids must lie in \[0, 5\), got 5 in row 0; leave rows without a token out"),
        ([-1], None, r"token_ids must lie in \[0, 5\), got -1 in row 0"),
        ([1], ([2, 3], [0, 2]), "kept_ids must hold the token of their row, got none of 1 in row 0"),
        ([1], ([1, 9], [0, 2]), r"kept_ids must ascend within \[0, 5\) in each row, got others in row 0"),
        ([1], ([2, 1], [0, 2]), r"kept_ids must ascend within \[0, 5\) in each row, got others in row 0"),
        ([1], ([1], [0, 2]), "kept_offsets must ascend from 0 to the number of kept_ids, 1"),
        ([1], ([1], [0, 1, 1]), r"kept must have integers kept_ids \[N\] and kept_offsets \[2\], got \[1\] and \[3\]"),
        ([1], 7, "kept must be a Draw of rows with return_kept, or its"),
    ],
)
def test_what_does_not_fit_is_named(tokens: Any, kept: Any, message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        log_law(torch.zeros(5), SamplingParams(), tokens, kept=kept)
    with pytest.raises(ParamsError, match=message):
        jax_log_law(jnp.zeros(5), SamplingParams(), tokens, kept=kept)


def test_a_draw_without_a_record_is_named() -> None:
    drawn = tirage.sample(np.zeros(5, np.float32), SamplingParams(seed=1))
    with pytest.raises(ParamsError, match="got Draw without a record"):
        log_law(torch.zeros(5), SamplingParams(), drawn.token_ids, kept=drawn)


@pytest.mark.parametrize("given", [{}, {"top_p": 0.9, "temperature": 0.7}, {"repetition_penalty": 1.2}])
@pytest.mark.parametrize("tokens", [[], (), np.zeros(0, np.int64), np.zeros(0)])
def test_no_rows_have_no_values_and_no_slopes(given: dict[str, Any], tokens: Any) -> None:
    params = SamplingParams(seed=1, return_kept=True, **given)
    for kept in (None, tirage.sample(np.zeros((0, 5), np.float32), params, history=[]), ([], [0])):
        x = torch.zeros(0, 5, requires_grad=True)
        values = log_law(x, params, tokens, kept=kept, history=[])
        assert values.shape == (0,)
        values.sum().backward()
        assert x.grad is not None
        assert x.grad.shape == (0, 5)
        run = lambda y, k=kept: jax_log_law(y, params, tokens, kept=k, history=[]).sum()  # noqa: E731
        for transformed in (jax.value_and_grad(run), jax.jit(jax.value_and_grad(run))):
            value, slopes = transformed(jnp.zeros((0, 5)))
            assert (value, slopes.shape) == (0.0, (0, 5))


# --- compilations under JAX ------------------------------------------------------------------------------------------


def compilations(caplog: pytest.LogCaptureFixture) -> int:
    """How many programs XLA has made, by JAX's log of them."""
    return sum(record.message.startswith("Finished XLA compilation") for record in caplog.records)


@pytest.mark.slow
def test_in_jax_the_law_of_an_equal_request_compiles_nothing_again(caplog: pytest.LogCaptureFixture) -> None:
    x, tokens = jnp.asarray(logits_of(3)), jnp.array([1, 2, 3])

    def law_of(y: Any, seed: int = 1) -> Any:
        params = [SamplingParams(top_p=0.9, seed=seed + row, repetition_penalty=1.2) for row in range(len(y))]
        return jax_log_law(y, params, tokens[: len(y)], history=histories(len(y)))

    each = lambda y: law_of(y[None])  # noqa: E731
    ways = [
        law_of,
        jax.grad(lambda y: law_of(y).sum()),
        jax.vmap(each),
        jax.grad(lambda y: jax.vmap(each)(y).sum()),
        jax.vmap(jax.grad(lambda y: each(y).sum())),
    ]
    with jax.log_compiles():
        before = [way(x) for way in ways]
        made = compilations(caplog)
        assert made > 0
        for way, first in zip(ways, before, strict=True):
            np.testing.assert_array_equal(way(x), first)
        # Where nothing is traced, and under `grad`, other parameters compile nothing either.
        law_of(x, seed=5)
        jax.grad(lambda y: law_of(y, seed=9).sum())(x)
    assert compilations(caplog) == made


@pytest.mark.slow
def test_vmap_of_the_law_has_its_values_and_slopes_for_any_number_of_axes() -> None:
    x, params = jnp.asarray(logits_of(6)).reshape(2, 3, 1, V), SamplingParams(temperature=0.7, top_p=0.8)
    tokens = jnp.argmax(x, axis=-1)
    one = lambda y, token: jax_log_law(y, params, token).sum()  # noqa: E731
    found = jax.vmap(jax.vmap(jax.value_and_grad(one)))(x, tokens)
    expected = [jax.value_and_grad(one)(x[i, j], tokens[i, j]) for i in range(2) for j in range(3)]
    for got, *wanted in zip(found, *expected, strict=True):
        np.testing.assert_array_equal(got.reshape(6, *got.shape[2:]), np.stack(wanted))
    assert jax.vmap(one)(x[0, :0], tokens[0, :0]).shape == (0,)


# --- tokens far below the others -------------------------------------------------------------------------------------

_GAPS = [1e3, 1e5, 1e6, 1e8]


def far_rows(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """[n, 1000] logits whose token 4 is far below the first four, and whose last half is at the bottom."""
    lowest = float(torch.finfo(torch.bfloat16 if dtype == torch.bfloat16 else torch.float32).min)
    rows = torch.linspace(-3, 1, 1000).repeat(len(_GAPS) + 1, 1)
    rows[:, :4] = torch.tensor([30.0, 30.5, 31.0, 29.0])
    rows[:, 4] = torch.tensor([*(30.0 - gap for gap in _GAPS), lowest])
    rows[:, 500:] = lowest
    return rows.to(dtype)


def softmax_slopes(x: torch.Tensor, temperature: float, kept: int) -> torch.Tensor:
    """The slopes in float64 of the logprob of token 4 among the first `kept`."""
    z = x.double().requires_grad_()
    torch.log_softmax(z[:, :kept] / temperature, 1)[:, 4].sum().backward()
    assert z.grad is not None
    return z.grad


def torch_slopes(x: torch.Tensor, params: SamplingParams, kept: Any = None) -> torch.Tensor:
    logits = x.clone().requires_grad_()
    log_law(logits, params, [4] * len(x), kept=kept).sum().backward()
    assert logits.grad is not None
    return logits.grad


def first_ids(count: int, rows: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """A record of `rows` rows that kept their `count` first ids."""
    return np.tile(np.arange(count, dtype=np.int32), rows), np.arange(rows + 1) * count


@pytest.mark.parametrize("temperature", [1.0, 0.8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_a_token_far_below_the_others_has_the_slopes_of_the_softmax(dtype: torch.dtype, temperature: float) -> None:
    x = far_rows(dtype)
    found = torch_slopes(x, SamplingParams(temperature=temperature))
    expected = softmax_slopes(x.float(), temperature, 1000).to(dtype)
    rough = dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=2.0**-8 if rough else 0)


@pytest.mark.parametrize("filters", [{"top_k": 5}, {"top_p": 0.9, "temperature": 0.8}])
def test_a_recorded_token_far_below_the_others_has_them_too(
    filters: dict[str, Any], all_wide: Callable[[], None]
) -> None:
    params, kept = SamplingParams(**filters), first_ids(5, len(_GAPS) + 1)
    dtypes = (torch.bfloat16, torch.float32, torch.float64)
    narrows = [torch_slopes(far_rows(dtype), params, kept) for dtype in dtypes]
    all_wide()
    for dtype, narrow in zip(dtypes, narrows, strict=True):
        x = far_rows(dtype)
        expected = softmax_slopes(x.float(), params.temperature, 5).to(dtype)
        for found in (narrow, torch_slopes(x, params, kept)):
            torch.testing.assert_close(found, expected, atol=2e-6, rtol=2.0**-7 if dtype == torch.bfloat16 else 0)


@pytest.mark.parametrize("kept", [None, first_ids(5, len(_GAPS) + 1)], ids=["dense", "recorded"])
def test_jax_has_the_slopes_of_torch_for_tokens_far_below_the_others(kept: Any) -> None:
    x, params = far_rows(), SamplingParams(temperature=0.8)
    in_jax = jax.grad(lambda y: jax_log_law(y, params, [4] * len(x), kept=kept).sum())(jnp.asarray(x.numpy()))
    np.testing.assert_allclose(torch_slopes(x, params, kept).numpy(), np.asarray(in_jax), atol=1e-6)


def test_large_logits_that_differ_little_have_the_slopes_of_their_differences() -> None:
    x = torch.tensor([[1e6, 1e6 + 0.5, 1e6 + 1.0, 1e6, 1e6 - 1.0]])
    for dtype in (torch.float32, torch.float64):
        found = torch_slopes(x.to(dtype), SamplingParams(temperature=0.7))
        torch.testing.assert_close(found.double(), softmax_slopes(x, 0.7, 5), atol=1e-6, rtol=0)


@pytest.mark.parametrize("largest", [1e17, 1e30, float(np.finfo(np.float32).max)])
@pytest.mark.parametrize(
    "setting",
    [
        {},
        {"top_k": 3},
        {"top_p": 0.9, "temperature": 0.7},
        {"dynatemp_range": 0.3},
        {"xtc_probability": 0.5, "xtc_threshold": 0.1},
        {"top_p": 0.8, "semantics": "fastdeploy-air"},
        {"temperature": 0.01, "semantics": "trtllm-legacy"},
        {"repetition_penalty": 0.5},
    ],
    ids=str,
)
def test_equally_large_logits_have_equal_shares_in_float64_too(setting: dict[str, Any], largest: float) -> None:
    params = SamplingParams(seed=1, **setting)
    x, history = np.full((1, 5), largest, np.float32), [((0, 1, 2, 3, 4), ())]
    laws = tirage.law(x, params, history=history)[0]
    for token in np.flatnonzero(laws):
        logits = torch.from_numpy(x).double()
        assert float(log_law(logits, params, [token], history=history).exp()) == pytest.approx(laws[token], abs=1e-6)


def test_a_logit_that_an_edit_holds_at_the_largest_number_has_no_slope() -> None:
    x = torch.tensor([[3e38, 3e38, 2e38]], dtype=torch.float64, requires_grad=True)
    value = log_law(x, SamplingParams(seed=1, repetition_penalty=0.5), [0], history=[((0, 1, 2), ())])
    assert float(value.detach().exp()) == pytest.approx(1 / 3)
    value.sum().backward()
    assert x.grad is not None
    assert not x.grad.any()


# --- rows that keep many ids, whose slopes are made in the backward pass ---------------------------------------------


@pytest.fixture(params=["tensors", "kernels"])
def all_wide(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Has every row count as one with many ids, whose laws are made of tensors or by the kernels."""

    def switch() -> None:
        monkeypatch.setattr("tirage.torch._WIDE", 1)
        monkeypatch.setattr("tirage.torch._AT_ONCE", 3)
        if request.param == "tensors":
            monkeypatch.setattr(HeldRows, "of", lambda _: None)
        else:
            assert kernels.wait()
            assert kernels.held_ready()

    return switch


def slopes_of(x: NDArray[np.float32], params: Any, drawn: Draw, kept: Any, **options: Any) -> tuple[Any, Any]:
    given = torch.from_numpy(x).requires_grad_()
    values = log_law(given, params, drawn.token_ids, kept=kept, **options)
    values.backward(torch.linspace(-1, 2, len(x)))
    assert given.grad is not None
    return values.detach().numpy(), given.grad.numpy()


@pytest.mark.parametrize("recorded", [False, True])
def test_wide_rows_have_the_values_and_slopes_of_narrow_ones(recorded: bool, all_wide: Callable[[], None]) -> None:
    x, params, drawn = drawable()
    kept = drawn if recorded else None
    narrow = slopes_of(x, params, drawn, kept, history=histories(len(x)), state=STATE)
    all_wide()
    wide = slopes_of(x, params, drawn, kept, history=histories(len(x)), state=STATE)
    np.testing.assert_array_equal(wide[0], drawn.sampled_logprobs)
    np.testing.assert_array_equal(narrow[0], wide[0])
    np.testing.assert_allclose(wide[1], narrow[1], atol=1e-6)


def test_a_wide_row_has_no_slope_for_a_kept_token_without_weight_as_a_narrow_one(all_wide: Callable[[], None]) -> None:
    x, params = torch.tensor([[3.0, 2.0, 1.0, 0.0, -100.0, -200.0]]), SamplingParams(top_k=5)
    assert log_law(x, params, [4]) == log_law(x.double(), params, [4]) == -torch.inf
    assert jax_log_law(jnp.asarray(x.numpy()), params, [4]) == -jnp.inf
    all_wide()
    assert log_law(x, params, [4]) == -torch.inf
    assert (torch_slopes(x, params) == 0).all()


@pytest.mark.parametrize("spoiled", [np.nan, np.inf, -np.inf])
def test_a_wide_record_with_a_logit_that_is_not_finite_is_nan(all_wide: Callable[[], None], spoiled: float) -> None:
    all_wide()
    x = logits_of(3)
    params = SamplingParams(top_p=0.9, seed=3, return_kept=True)
    drawn = tirage.sample(x, params)
    kept, _ = record_of(drawn, 1)
    x[1, kept[0] if kept[0] != drawn.token_ids[1] else kept[1]] = spoiled
    values, slopes = slopes_of(x, params, drawn, drawn)
    assert np.isnan(values).tolist() == [False, True, False]
    assert (slopes[1] == 0).all()
    assert (slopes[[0, 2]] != 0).any(axis=1).all()


def test_a_wide_record_without_the_largest_logit_counts_from_it_all_the_same(all_wide: Callable[[], None]) -> None:
    x = logits_of(3)
    params = SamplingParams(top_p=0.9, temperature=0.7, seed=3, return_kept=True)
    drawn = tirage.sample(x, params)
    x[0, next(i for i in range(V) if i not in record_of(drawn, 0)[0])] = 30.0
    narrow = slopes_of(x, params, drawn, drawn)
    all_wide()
    wide = slopes_of(x, params, drawn, drawn)
    np.testing.assert_array_equal(narrow[0], wide[0])
    np.testing.assert_allclose(wide[1], narrow[1], atol=1e-6)


@pytest.mark.parametrize("many", [1, 3], ids=["alone", "among all"])
@pytest.mark.parametrize("shape", ["medium", "flat"])
@pytest.mark.parametrize("temperature", [0.7, 1.0, 3.0])
def test_the_kernels_slopes_of_a_wide_row_are_the_law_of_its_kept_ids(
    shape: str, temperature: float, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kernels.wait()
    assert kernels.held_ready()
    monkeypatch.setattr("tirage.laws.held_rows._MANY", many)
    size = 3000
    x = np.stack([sharp_logits(shape, size, seed) for seed in range(3)])
    params = SamplingParams(temperature=temperature, top_p=0.97, seed=4, return_kept=True, max_kept_ids=size)
    drawn, law = tirage.sample(x, params), tirage.law(x, params)
    scale = np.linspace(-1, 2, 3)[:, None]
    expected = scale / temperature * (np.eye(size)[drawn.token_ids] - law)
    for kept in (None, drawn):
        values, slopes = slopes_of(x, params, drawn, kept)
        np.testing.assert_array_equal(values, drawn.sampled_logprobs)
        np.testing.assert_allclose(slopes, expected, atol=1e-6)
        assert (slopes[law == 0] == 0).all()


def test_logits_that_were_written_to_before_the_backward_pass_are_refused() -> None:
    given = torch.from_numpy(logits_of(2)).requires_grad_()
    logits = given * 1.0
    values = log_law(logits, SamplingParams(temperature=0.7), [1, 2])
    with torch.no_grad():
        logits.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        values.sum().backward()


@pytest.mark.parametrize("exponent", [1000.0, 1e20])
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_a_dynamic_temperature_near_zero_has_the_law_of_the_smallest_one(temperature: float, exponent: float) -> None:
    x = np.array([[1.0, 1.0 + 2**-23, 0.5, -1.0]], np.float32)
    params = SamplingParams(temperature=temperature, dynatemp_range=1.0, dynatemp_exponent=exponent, seed=1)
    laws = tirage.law(x, params)[0]
    for token in range(4):
        for dtype in (torch.float32, torch.float64):
            logits = torch.from_numpy(x).to(dtype).requires_grad_()
            value = log_law(logits, params, [token])
            assert abs(float(value.detach().exp()) - laws[token]) < 1e-6
            value.sum().backward()
            assert logits.grad is not None
            assert torch.isfinite(logits.grad).all()
