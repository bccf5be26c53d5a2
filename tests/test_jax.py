"""The JAX backend's parts: integers in limbs, the hazards of XLA with the guard of each, arrays at the door."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

import tirage
from tirage import ParamsError, SamplingParams
from tirage.backends.jax import candidates, rule, steps, traced, wide
from tirage.exact import ilog2, numbers, uniform64
from tirage.exact import keys as host_keys
from tirage.exact.logs import ln_fixed
from tirage.exact.weights import exponents, weights

SEEDS = (0, 7, -1, 2**40 + 7, 2**63 - 1, -(2**63))


# --- integers in limbs ------------------------------------------------------------------------------------------


def limbs(values: list[int], size: int) -> tuple[Any, ...]:
    return tuple(jnp.asarray(np.array([v >> 32 * i & 0xFFFFFFFF for v in values], np.uint32)) for i in range(size))


def integers(number: tuple[Any, ...]) -> list[int]:
    return [sum(int(limb[i]) << 32 * at for at, limb in enumerate(number)) for i in range(number[0].shape[0])]


def some(bits: int, count: int = 40) -> list[int]:
    """Numbers below 2^bits: the extremes, powers of two and their neighbours, and random ones of every length."""
    rng = np.random.default_rng(bits)
    edges = [1, 2, 3, (1 << bits) - 1, 1 << (bits - 1), (1 << (bits - 1)) - 1, (1 << (bits // 2)) + 1]
    return edges + [
        max(1, int(rng.integers(1 << 62)) * int(rng.integers(1 << 62)) % (1 << n)) for n in _lengths(count, bits)
    ]


def _lengths(count: int, bits: int) -> list[int]:
    return [1 + i * (bits - 1) // (count - 1) for i in range(count)]


@pytest.mark.slow
def test_sums_products_and_quotients_in_limbs_are_those_of_python_integers():
    a, b = some(96), some(64)[::-1]
    compiled = jax.jit(
        lambda x, y: (wide.add(x, y), wide.sub(x, y), wide.mul(x, y), wide.divide(x, y), wide.less(x, y))
    )

    added, less_by, product, quotient, smaller = compiled(limbs(a, 3), limbs(b, 2))

    assert [(x + y) % (1 << 96) for x, y in zip(a, b, strict=True)] == integers(added)
    assert [(x - y) % (1 << 96) for x, y in zip(a, b, strict=True)] == integers(less_by)
    assert [x * y for x, y in zip(a, b, strict=True)] == integers(product)
    assert [x // y for x, y in zip(a, b, strict=True)] == integers(quotient)
    assert [x < y for x, y in zip(a, b, strict=True)] == smaller.tolist()


@pytest.mark.slow
def test_short_quotients_and_fractions_in_limbs_are_those_of_python_integers():
    b = some(60)
    a = [(n * 0x9E3779B97F4A7C15) % (n + 1) for n in b]
    products = [n * (0xFFFFFFFF - 7 * i) + m % n for i, (n, m) in enumerate(zip(b, a, strict=True))]
    compiled = jax.jit(lambda x, y, z: (wide.fraction(x, y, 63), wide.divide_short(z, y)))

    share, quotient = compiled(limbs(a, 2), limbs(b, 2), limbs(products, 3))

    assert [(x << 63) // y for x, y in zip(a, b, strict=True)] == integers(share)
    assert [x // y for x, y in zip(products, b, strict=True)] == quotient.tolist()


@pytest.mark.slow
def test_shifts_roots_and_logarithms_in_limbs_are_those_of_python_integers():
    a = some(64)
    n = np.array([i * 7 % 140 for i in range(len(a))], np.int32)
    compiled = jax.jit(lambda x, n: (wide.right_by(x, n), wide.left_by(x, n % 64), wide.isqrt(x), wide.ilog2(x)))

    down, left, root, log = compiled(limbs(a, 2), jnp.asarray(n))

    pairs = list(zip(a, n.tolist(), strict=True))
    assert [x >> s for x, s in pairs] == integers(down)
    assert [(x << s % 64) % (1 << 64) for x, s in pairs] == integers(left)
    assert [math.isqrt(x) for x in a] == root.tolist()
    assert [ilog2(x) for x in a] == log.tolist()


@pytest.mark.slow
def test_floats_made_from_integers_are_rounded_as_numpy_rounds_them():
    logs = [-(40 << 23), -1, 0, 1, 12345, -987654321, (63 << 23) + 5]
    numbers_54 = [*some(53), (1 << 53) - 1, (1 << 25) + 1, (3 << 24) + 2, (1 << 40) + (1 << 16)]

    assert [float(ln_fixed(n)) for n in logs] == jax.jit(wide.ln_fixed)(jnp.asarray(logs, jnp.int32)).tolist()
    assert [float(np.float32(n)) for n in numbers_54] == jax.jit(wide.to_float32)(limbs(numbers_54, 2)).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 1000, 1 << 15, 1 << 20])
def test_sums_of_whole_rows_do_not_overflow(size: int):
    row = np.full((1, size), (1 << 32) - 1, np.uint32)
    row[0, -1] = 1
    most = rule.Mass(jnp.full((1, size), 1 << 20, jnp.uint32), jnp.full((1, size), (1 << 20) - 1, jnp.uint32))

    exact = int(row.sum(dtype=np.uint64))
    found, total = jax.jit(lambda row, most: (wide.total_wide((row, row), 3), rule.Mass(*most).total()))(row, most)

    assert [exact + (exact << 32)] == integers(found)
    assert [size * ((1 << 40) + (1 << 20) - 1)] == integers(total)


@pytest.mark.slow
def test_the_token_is_the_first_whose_running_weight_exceeds_the_draw():
    rng = np.random.default_rng(0)
    compiled = jax.jit(lambda h, low, r: rule.locate(rule.Mass(h, low), r))
    for size in (96, 5120):
        w = rng.integers(0, 1 << 40, (6, size)) * (rng.random((6, size)) < 0.1)
        w[:, size // 3] = 1 << 40
        reached = np.cumsum(w, axis=1)
        picks = [0, 1, int(reached[2, -1]) - 1, int(reached[3, size // 2]) - 1, int(reached[4, size // 3]) - 1, 12345]
        parts = (w >> 20).astype(np.uint32), (w & 0xFFFFF).astype(np.uint32)

        found = compiled(*map(jnp.asarray, parts), limbs(picks, 2))

        assert [
            int(np.searchsorted(row, r, side="right")) for row, r in zip(reached, picks, strict=True)
        ] == found.tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_seeds_keep_all_their_64_bits_inside_jit(seed: int):
    words = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, 5, 2**32 - 1]

    drawn = jax.jit(lambda given: rule.random_words(given, [0, 1]).uniform(1))(jnp.array([words], jnp.uint32))

    assert [uniform64(seed, 5, 2**32 - 1, 1)] == integers(drawn)


# --- hazards ----------------------------------------------------------------------------------------------------


def all_exponents() -> NDArray[np.int32]:
    rng = np.random.default_rng(3)
    return rng.integers(0, (41 << 23) + 1, 1 << 16).astype(np.int32)


def device_weights(q: NDArray[np.int32]) -> NDArray[np.uint64]:
    high, low = jax.jit(lambda q: tuple(rule.weights(q).mass()))(jnp.asarray(q))
    return (np.asarray(high).astype(np.uint64) << np.uint64(20)) | np.asarray(low).astype(np.uint64)


def penalised(q_of: Callable[[Any, Any, Any], Any]) -> tuple[NDArray, NDArray]:
    """Exponents of logits after a repetition penalty: what NumPy says, and what a jitted chain says."""
    rng = np.random.default_rng(4)
    x = (rng.standard_normal((1, 1 << 14)) * 5).astype(np.float32)
    factor: Any = np.float32(1.0) / np.float32(1.3)
    m, c = np.float32(17.3), numbers.temperature_constant(1.7)
    expected = exponents(x[0] * factor, m, c)
    actual = jax.jit(lambda x: q_of(steps.product(x, factor), jnp.full(1, m), jnp.full(1, c)))(jnp.asarray(x))
    return expected, np.asarray(actual)[0]


def unguarded(a: Any, b: Any) -> Any:
    return a * b


@pytest.mark.slow
def test_weights_are_not_contracted_to_fused_operations():
    q = all_exponents()

    np.testing.assert_array_equal(device_weights(q), weights(q))


def test_without_the_guard_weights_would_be_wrong(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rule, "product", unguarded)
    q = all_exponents()

    assert (device_weights(q) != weights(q)).mean() > 0.05


def test_a_penalty_followed_by_the_distance_is_not_contracted():
    expected, actual = penalised(rule.exponents)

    np.testing.assert_array_equal(actual, expected)


def test_without_the_guard_a_penalty_followed_by_the_distance_would_be_wrong(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(steps, "product", unguarded)
    expected, actual = penalised(rule.exponents)

    assert (actual != expected).mean() > 0.01


@pytest.mark.slow
def test_both_zeros_have_the_key_zero_inside_jit():
    x = np.array([-0.0, 0.0, 1e-45, -1e-45, -np.inf, np.inf], np.float32)

    assert host_keys(x).tolist() == jax.jit(rule.keys)(x).tolist()
    bits_of_sum = jax.jit(lambda x: rule.bits_of(x + 0.0))(x)
    assert int(bits_of_sum[0]) != 0, "XLA no longer drops x + 0.0: the key's own rule is still the safe one"


@pytest.mark.slow
def test_subnormal_logits_are_told_apart_though_xla_flushes_them():
    x = jnp.asarray(np.array([-1e-40, 1e-40, 2e-40, 1e-40], np.float32))
    greedy = SamplingParams(temperature=0.0, seed=0)

    assert jax.jit(lambda x: tirage.sample(x, greedy))(x).token_ids.tolist() == [2]
    assert int(jax.jit(jnp.argmax)(x)) == 0, "XLA compares subnormals now: integer keys are still the safe rule"


@pytest.mark.slow
def test_no_temperature_is_divided_by_on_the_device():
    x = (np.random.default_rng(5).standard_normal(4096) * 4).astype(np.float32)
    m = x.max()
    device = jax.jit(rule.exponents)
    for hundredths in range(1, 201):
        c = numbers.temperature_constant(hundredths / 100)

        np.testing.assert_array_equal(device(x[None], jnp.full(1, m), jnp.full(1, c))[0], exponents(x, m, c))
    divided = jax.jit(lambda x: (m - x) / np.float32(0.7))(x)
    assert (np.asarray(divided) != (m - x) / np.float32(0.7)).any(), "XLA divides exactly now: still no reason to"


@pytest.mark.slow
def test_a_row_with_nan_of_either_sign_or_infinity_is_reported_inside_jit():
    x = np.zeros((6, 40), np.float32)
    x.view(np.uint32)[range(1, 6), 30] = [0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0x7F800000]

    drawn = jax.jit(lambda x: tirage.sample(x, SamplingParams(seed=1)))(jnp.asarray(x))

    assert drawn.status.tolist() == [0, 1, 1, 1, 1, 1]
    assert drawn.token_ids[1:].tolist() == [-1] * 5


@pytest.mark.slow
def test_no_weight_or_logprob_is_asked_of_a_maths_library():
    q = all_exponents()
    high, low = (
        np.asarray(part).astype(np.uint64) for part in jax.jit(lambda q: rule.weights(q).mass())(jnp.asarray(q))
    )
    logs = np.arange(-(1 << 29), 1 << 29, 12345, np.int32)

    assert weights(q).tolist() == ((high << np.uint64(20)) | low).tolist()
    np.testing.assert_array_equal(jax.jit(wide.ln_fixed)(jnp.asarray(logs)), [ln_fixed(int(n)) for n in logs])
    x = -q.astype(np.float32) * np.float32(2.0**-23 * np.log(2))
    assert (np.asarray(jax.jit(jnp.exp)(x)) != np.exp(x)).any(), "exp agrees now: integers are still the safe rule"


@pytest.mark.slow
def test_no_sum_depends_on_its_order():
    w = weights(all_exponents())
    parts = rule.Mass(*(jnp.asarray(part.astype(np.uint32)) for part in (w >> np.uint64(20), w & np.uint64(0xFFFFF))))
    one_by_one = np.cumsum(w.astype(np.float32), dtype=np.float32)[-1]

    for order in (slice(None), slice(None, None, -1)):
        moved = rule.Mass(*(part[None, order] for part in parts))
        assert [int(w.sum())] == integers(jax.jit(lambda m: rule.Mass(*m).total())(tuple(moved)))
    in_floats = jax.jit(jnp.sum)(jnp.asarray(w.astype(np.float32)))
    assert float(in_floats) != float(one_by_one), "float sums agree now: integers are still the safe rule"


@pytest.mark.slow
def test_top_k_ranks_both_zeros_alike():
    x = jnp.asarray(np.array([[-0.0, 0.0, -0.0, 0.0, -1.0]], np.float32))

    assert jax.jit(lambda x: candidates.highest(rule.keys(x), 4))(x)[1].tolist() == [[0, 1, 2, 3]]
    assert jax.lax.top_k(x, 4)[1].tolist() == [[1, 3, 0, 2]], "top_k on floats ranks zeros by sign: keys do not"


# --- arrays at the door -----------------------------------------------------------------------------------------


def test_eager_arrays_are_read_where_they_lie():
    logits = jnp.asarray(np.random.default_rng(0).standard_normal((2, 4096)).astype(np.float32))

    host = tirage.backends.find(logits).to_numpy(tirage.backends.find(logits).as_logits(logits))

    assert logits.unsafe_buffer_pointer() == host.ctypes.data


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_half_precision_logits_are_drawn_as_their_exact_values(dtype: str):
    logits = jnp.asarray(np.random.default_rng(1).standard_normal((3, 200))).astype(dtype) * 4
    exact = np.asarray(logits.astype(jnp.float32))
    drawn, expected = (tirage.sample(x, SamplingParams(top_p=0.9, seed=5)) for x in (logits, exact))

    assert expected.token_ids.tolist() == drawn.token_ids.tolist()
    assert expected.sampled_logprobs.tobytes() == np.asarray(drawn.sampled_logprobs).tobytes()
    as_traced = jax.jit(tirage.backends.find(logits).as_logits)(logits)
    assert exact.tobytes() == np.asarray(as_traced).tobytes()


@pytest.mark.slow
def test_float64_logits_are_rounded_to_float32_with_their_subnormals():
    x = np.array([1e-40, -1e-40, 1.1e-45, 7e-46, -2.0, 1 / 3, 1e300, -1e300, 2.0**-126 * (1 - 2.0**-30)])
    with jax.enable_x64(True), np.errstate(all="ignore"):
        traced = jax.jit(tirage.backends.find(jnp.asarray(x)).as_logits)(jnp.asarray(x))

        assert x.astype(np.float32).view(np.int32).tolist() == np.asarray(traced)[0].view(np.int32).tolist()


def test_results_are_jax_arrays_and_seeds_are_whole():
    drawn = tirage.sample(jnp.zeros((1, 8)), SamplingParams(seed=-(2**63), logprobs=2))

    assert drawn.seeds.tolist() == [-(2**63)]
    for name in ("token_ids", "ranks", "top_token_ids", "support_sizes"):
        assert isinstance(getattr(drawn, name), jax.Array)
        assert jnp.int32 == getattr(drawn, name).dtype


@pytest.mark.slow
def test_a_draw_leaves_jit_with_its_seeds():
    params = [SamplingParams(seed=2**62 + 1), SamplingParams(seed=-5)]

    drawn = jax.jit(lambda x: tirage.sample(x, params))(jnp.zeros((2, 8)))

    assert isinstance(drawn, tirage.Draw)
    assert drawn.seeds.tolist() == [2**62 + 1, -5]


def test_an_unseeded_row_is_refused_inside_jit():
    with pytest.raises(ParamsError, match=r"seed must be given inside jit, got None for rows \[1\]"):
        jax.jit(lambda x: tirage.sample(x, [SamplingParams(seed=1), SamplingParams()]))(jnp.zeros((2, 8)))


def test_law_of_traced_logits_is_refused_by_name():
    with pytest.raises(ParamsError, match="logits must be concrete here, got a traced array"):
        jax.jit(lambda x: tirage.law(x, SamplingParams(seed=1)))(jnp.zeros((2, 8)))


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (lambda: jnp.zeros((2, 3, 4)), r"shape \[V\] or \[B, V\], got \(2, 3, 4\)"),
        (lambda: jnp.zeros((2, 0)), "must have 1 to 1048576 columns, got 0"),
        (lambda: jnp.zeros((2, 4), jnp.int32), "must be float16, bfloat16, float32 or float64, got int32"),
        (lambda: jnp.zeros((2, 4), bool), "must be float16, bfloat16, float32 or float64, got bool"),
        (lambda: jnp.zeros((2, 4), jnp.float8_e5m2), "must be float16, .* got float8_e5m2; cast them"),
        (lambda: jax.random.split(jax.random.key(0)), "must be float16, .* got key<fry>; cast them"),
        (lambda: jax.ShapeDtypeStruct((2, 4), jnp.float32), r"a JAX array, got jax\S*ShapeDtypeStruct; convert"),
        (lambda: jnp.zeros(()), r"shape \[V\] or \[B, V\], got \(\)"),
    ],
)
def test_unusable_logits_are_refused_before_anything_runs(logits: Callable[[], Any], message: str):
    with pytest.raises(ParamsError, match=message):
        tirage.sample(logits(), SamplingParams(seed=1))


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (lambda: jnp.zeros((1, 2), jnp.int32), r"mask must have shape \[2, 1\] for logits \[2, 8\], got \[1, 2\]"),
        (lambda: jnp.zeros((2, 1), jnp.float32), "mask must be an int32 array of bits, got float32"),
        (lambda: [[1], [1]], "mask must be an int32 array of bits, got list"),
        (lambda: jnp.zeros((2, 1, 1), jnp.int32), r"mask must have shape \[2, 1\]"),
    ],
)
def test_unusable_masks_are_refused_before_anything_runs(mask: Callable[[], Any], message: str):
    with pytest.raises(ParamsError, match=message):
        tirage.sample(jnp.zeros((2, 8)), SamplingParams(seed=1), mask=mask())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"history": [([1, 8], [])]}, r"history prompt ids must lie in \[0, 8\), got 8"),
        ({"history": [([], [-1])]}, r"history output ids must lie in \[0, 8\), got -1"),
        ({"history": [([0] * (1 << 20), [0])]}, "history must hold at most 1048576 tokens, got 1048577; truncate it"),
        ({"history": [([], []), ([], [])]}, r"history must be a list of 1 \(prompt_ids, output_ids\) pairs, got 2"),
        ({"step": -1}, r"step must be an integer in \[0, 2\^32\), got -1"),
    ],
)
def test_ids_out_of_range_are_refused_in_jit_and_out_of_it(given: dict[str, Any], message: str):
    # JAX would clamp such an id to the last token.
    def drawn(x: Any) -> tirage.Draw:
        return tirage.sample(x, SamplingParams(seed=1, repetition_penalty=2.0), **given)

    for run in (drawn, jax.jit(drawn)):
        with pytest.raises(ParamsError, match=message):
            run(jnp.zeros((1, 8)))


def test_no_gradient_flows_through_a_draw():
    # Through integers JAX would see only a part of it, and give that for the whole.
    slope = jax.grad(lambda x: tirage.sample(x, SamplingParams(seed=1)).sampled_logprobs.sum())(jnp.ones((2, 8)))
    assert not np.asarray(slope).any()


def test_no_rows_give_an_empty_draw_inside_jit():
    drawn = jax.jit(lambda x: tirage.sample(x, []))(jnp.zeros((0, 8)))

    assert drawn.token_ids.shape == (0,)


@pytest.mark.slow
def test_a_last_turn_of_fewer_rows_is_drawn_like_the_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(traced, "AT_ONCE", 900)
    logits = np.random.default_rng(3).normal(0, 3, (7, 300)).astype(np.float32)
    params = [SamplingParams(seed=r, min_p=0.1) for r in range(7)]
    drawn = jax.jit(lambda x: tirage.sample(x, params))(jnp.asarray(logits))
    assert drawn.token_ids.tolist() == tirage.sample(logits, params).token_ids.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("rows", [pytest.param(6, marks=pytest.mark.exhaustive), 7])
def test_rows_worked_on_in_turns_are_drawn_as_all_at_once(rows: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(traced, "AT_ONCE", 900)
    logits = np.random.default_rng(3).normal(0, 3, (rows, 300)).astype(np.float32)
    params = [
        SamplingParams(seed=r, top_p=0.9, logprobs=2, logprobs_mode="sampled", logprob_token_ids=(5, r))
        if r % 2
        else SamplingParams(seed=r, top_k=4, repetition_penalty=1.5, logit_bias={7: 3.0}, logprobs=1)
        for r in range(rows)
    ]
    history = [([r, 7, 9], [7]) for r in range(rows)]
    expected = tirage.sample(logits, params, history=history)
    drawn = jax.jit(lambda x: tirage.sample(x, params, history=history))(jnp.asarray(logits))
    for name in ("token_ids", "sampled_logprobs", "support_sizes", "status", "logprobs", "ranks", "top_token_ids"):
        np.testing.assert_array_equal(np.asarray(getattr(drawn, name)), getattr(expected, name), name)
    np.testing.assert_array_equal(np.asarray(drawn.top_logprobs), expected.top_logprobs)
    for row, own in zip(np.asarray(drawn.given_logprobs), expected.given_logprobs or (), strict=True):
        np.testing.assert_array_equal(row[: len(own)], np.asarray(own, np.float32))
