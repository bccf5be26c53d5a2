"""The search for where the mass of a row reaches a goal: its own answers, and the cuts of long rows made from it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

import tirage
from tirage import SamplingParams
from tirage.backends.jax import candidates, passes, reach, rule
from tirage.exact import weights

SIZE = 4 * reach.ROOM
GROUPED = 7 * 768


def parts(w: NDArray[np.int64]) -> Any:
    return jnp.asarray((w >> 20).astype(np.uint32)), jnp.asarray((w & 0xFFFFF).astype(np.uint32))


def limbs(numbers: list[int]) -> Any:
    return tuple(jnp.asarray(np.array([n >> s & 0xFFFFFFFF for n in numbers], np.uint32)) for s in (0, 32))


def python_reach(key: NDArray, among: NDArray, w: NDArray, goal: int) -> tuple[int, int, int]:
    """Id and key of the last token that the goal needs, in (key descending, id ascending) order; the mass before it."""
    order = np.flatnonzero(among)[np.argsort(-key[among], kind="stable")]
    totals = np.cumsum(w[order].astype(object))
    at = next((i for i, total in enumerate(totals) if total >= goal), len(order) - 1)
    return int(order[at]), int(key[order[at]]), int(totals[at] - w[order[at]])


@jax.jit
def first_reaching(coarse: Any, key: Any, among: Any, mass: Any, goals: Any) -> Any:
    return reach.first_reaching(lambda: coarse, lambda: key, among, rule.Mass(*mass), goals)


def reached(coarse: NDArray, key: NDArray, among: NDArray, w: NDArray, goals: list[int]) -> list[tuple[int, int, int]]:
    ids, last, before = first_reaching(coarse, key, among, parts(w), limbs(goals))
    totals = [int(low) | int(high) << 32 for low, high in zip(*before, strict=True)]
    return list(zip(ids.tolist(), last.tolist(), totals, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("size", [96, 2048, SIZE])
@pytest.mark.parametrize("spread", [1, 7, 300, 2**30])
def test_the_last_token_needed_is_the_first_whose_mass_meets_the_goal(spread: int, size: int):
    rng = np.random.default_rng(spread)
    key = rng.integers(-spread, spread, (6, size), endpoint=True).astype(np.int32)
    coarse = (~(key.view(np.uint32) ^ np.uint32(1 << 31))) >> np.uint32(spread % 5)
    among = rng.random((6, size)) < np.array([1, 0.5, 0.1, 0.5, 1, 0.2])[:, None]
    among[:, 7] = True
    w = np.where(among, rng.integers(0, 1 << 40, among.shape, endpoint=True), 0)
    totals = w.sum(1).tolist()
    goals = [1, totals[1], totals[2] + 1, totals[3] // 2, totals[4] - 1, totals[5] // 3 + 1]

    expected = [python_reach(*row) for row in zip(key, among, w, goals, strict=True)]
    assert expected == reached(coarse, key, among, w, goals)


@pytest.mark.slow
def test_a_row_without_tokens_does_not_keep_the_others_searching():
    among = np.zeros((2, SIZE), bool)
    among[1, 3:9] = True
    key = np.broadcast_to(-np.arange(SIZE, dtype=np.int32), (2, SIZE))

    assert reached(-key.astype(np.uint32), key, among, among * 1, [1, 3])[1] == (5, -5, 2)


@pytest.mark.slow
@pytest.mark.parametrize("size", [96, 5120, 1 << 15])
def test_the_largest_keys_come_in_order_of_key_and_then_of_id(size: int):
    rng = np.random.default_rng(size)
    few = rng.integers(0, 40, size).astype(np.int32)
    keys = np.stack([rng.integers(-(2**30), 2**30, size).astype(np.int32), few, np.zeros(size, np.int32)])
    keys[0, : size // 2] = rule.NO_KEY

    for rows in (keys, keys[:1], np.where(rng.random(keys.shape) < 1e-3, keys, rule.NO_KEY)):
        top, ids = jax.jit(lambda k: candidates.highest(k, 50))(rows)
        for row, key, at in zip(rows, np.asarray(top), np.asarray(ids), strict=True):
            order = np.argsort(-row.astype(np.int64), kind="stable")[:50]
            assert row[order].tolist() == key.tolist()
            held = key > rule.NO_KEY
            assert order[held].tolist() == at[held].tolist()


def odd_rows(size: int) -> NDArray[np.float32]:
    """Rows [12, size] with ties at every rank, few tokens, no token, and what makes a row invalid."""
    rng = np.random.default_rng(size)
    spread = rng.normal(0, 3, size)
    few = np.full(size, -np.inf)
    few[rng.integers(0, size, 7)] = [3, -0.0, 0.0, 1e-39, -1e-39, 2, -5]
    rows = [spread, np.round(spread), np.zeros(size), np.where(rng.random(size) < 0.5, 0.0, -0.0), few]
    rows += [np.full(size, -np.inf), np.where(np.arange(size) % 32 == 5, 2.0, spread)]
    for value in (np.nan, -np.nan, np.inf, 3.4e38, -3.4e38):
        rows.append(np.where(np.arange(size) == size - 2, value, spread))
    return np.stack(rows).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(("k", "size"), [pytest.param(1, 17001, marks=pytest.mark.exhaustive), (40, 17664)])
def test_a_top_k_of_long_rows_keeps_what_numpy_keeps(k: int, size: int):
    params, x = SamplingParams(top_k=k, seed=5), odd_rows(size)
    compiled = jax.jit(lambda x: tirage.sample(x, params))

    # The second rows have no ties, so that only their best blocks are looked at.
    for rows in (x, x[[0, 4, 5, 7, 8, 9, 11]]):
        drawn, expected = compiled(jnp.asarray(rows)), tirage.sample(rows, params)
        for name in ("status", "token_ids", "support_sizes", "sampled_logprobs"):
            assert np.array_equal(getattr(expected, name), np.asarray(getattr(drawn, name)), equal_nan=True), name


def test_the_maximum_of_a_block_with_a_nan_of_either_sign_is_that_of_infinity():
    x = np.random.default_rng(4).normal(0, 3, (5, 96)).astype(np.float32)
    x[1, 4], x[2, 5], x[3, 6], x[4] = np.nan, np.copysign(np.float32(np.nan), -1), np.inf, -np.inf
    x.view(np.int32)[2, 7] = -1

    maxima = np.asarray(jax.jit(candidates.block_maxima)(x))

    highest, lowest = (np.asarray(rule.keys(jnp.float32(v))) for v in (np.inf, -np.inf))
    plain = np.asarray(rule.keys(jnp.asarray(x))).reshape(5, 32, 3).max(1)
    assert plain[0].tolist() == maxima[0].tolist()
    assert [highest] * 4 == [maxima[1, 1], maxima[2, 2], maxima[2, 1], maxima[3, 0]]
    assert [lowest] * 3 == maxima[4].tolist()


@pytest.mark.parametrize("size", [1, 32, 1000, 1025, 1280, 32000, 50257, 128256, 151936, 262144, 1 << 20])
def test_rows_are_padded_to_a_length_of_whole_groups(size: int):
    length = passes.padded_size(size)
    group = passes.group_size(length)

    assert group is not None
    assert length % group == 0
    assert length % 32 == 0
    assert group <= 1024
    assert length // group <= 1024
    assert size <= length < size + 1024


def test_common_vocabularies_need_no_padding():
    assert [passes.padded_size(v) for v in (32000, 128256, 129280, 152064)] == [32000, 128256, 129280, 152064]


@pytest.mark.slow
@pytest.mark.parametrize("size", [SIZE, GROUPED])
def test_chosen_tokens_are_brought_together_in_id_order(size: int):
    rng = np.random.default_rng(1)
    chosen = rng.random((5, size)) < np.array([0, 1e-3, 0.2, 0.5, 1])[:, None]
    chosen[1, [0, 31, 32, size - 1]] = True

    few = jax.jit(reach.together)(chosen)

    for row, ids, there in zip(chosen, np.asarray(few.ids), np.asarray(few.there), strict=True):
        assert np.flatnonzero(row)[: reach.ROOM].tolist() == ids[there].tolist()
        assert 0 <= ids.min() <= ids.max() < size


@pytest.mark.slow
def test_extremes_sums_and_counts_of_whole_rows():
    v = np.random.default_rng(2).integers(-(2**31), 2**31, (3, SIZE)).astype(np.int32)
    u = v.view(np.uint32)

    found = jax.jit(lambda v, u: (passes.largest(v), passes.smallest(u), passes.count(v > 5), *passes.sums([u, ~u])))

    largest, smallest, count, total, other = map(np.asarray, found(v, u))
    assert v.max(1).tolist() == largest.tolist()
    assert u.min(1).tolist() == smallest.tolist()
    assert (v > 5).sum(1).tolist() == count.tolist()
    assert u.sum(1, dtype=np.uint32).tolist() == total.tolist()
    assert (~u).sum(1, dtype=np.uint32).tolist() == other.tolist()


def long_rows() -> NDArray[np.float32]:
    """Rows that are searched in every way: spread out, one value, many ties at the cut, few tokens, far tails."""
    rng = np.random.default_rng(3)
    spread = rng.normal(0, 3, GROUPED)
    ties = np.where(rng.random(GROUPED) < 0.4, 1.0, rng.normal(0, 1, GROUPED))
    steps = np.round(rng.normal(0, 2, GROUPED))
    few = np.where(rng.random(GROUPED) < 0.01, spread, -np.inf)
    far = np.where(rng.random(GROUPED) < 0.5, -1e4, rng.normal(0, 0.01, GROUPED))
    same_exponent = np.float32(1) + rng.integers(0, 3, GROUPED) * np.float32(2.0**-23)
    rows = [spread, np.zeros(GROUPED), ties, steps, few, far, same_exponent, 0.01 * spread]
    return np.stack(rows).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(top_p=0.6, seed=3),
        SamplingParams(top_k=3000, seed=5),
        *(
            pytest.param(params, marks=pytest.mark.exhaustive)
            for params in (
                SamplingParams(top_p=0.999, temperature=1.3, seed=4),
                SamplingParams(typical_p=0.7, seed=6),
                SamplingParams(top_p=1e-12, semantics="hf", seed=7),
                SamplingParams(top_k=50, top_p=0.5, seed=8),
            )
        ),
    ],
)
def test_long_rows_are_cut_where_numpy_cuts_them(params: SamplingParams):
    x = long_rows()
    compiled = jax.jit(lambda x: tirage.sample(x, params))

    for rows in (x, x[:1].repeat(8, 0)):
        drawn, expected = compiled(jnp.asarray(rows)), tirage.sample(rows, params)
        assert expected.support_sizes.tolist() == drawn.support_sizes.tolist()
        assert expected.token_ids.tolist() == drawn.token_ids.tolist()
        assert expected.sampled_logprobs.tobytes() == np.asarray(drawn.sampled_logprobs).tobytes()


@pytest.mark.slow
def test_weights_beyond_the_last_octave_are_nothing():
    q = np.array([[(41 << 23) - 1, 41 << 23, 40 << 23, (40 << 23) + 1]], np.int32)

    mass = jax.jit(lambda q: rule.weights(q).mass())(q)

    assert weights(q[0]).tolist() == [int(h) << 20 | int(low) for h, low in zip(mass.high[0], mass.low[0], strict=True)]
