"""Top-k as data inside `jit`: a small one is drawn from candidates alone, a larger one from all; both as NumPy does."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

import tirage
from tirage import Batch, Draw, SamplingParams
from tirage.backends.jax import narrowing, reach, slots

V = 5000
"""Columns of a row that is worth narrowing."""
KINDS: dict[str, dict[str, Any]] = {
    "one": {"top_k": 1},
    "few": {"top_k": narrowing.FEW},
    "more": {"top_k": narrowing.FEW + 1, "min_p": 0.001},
    "most": {"top_k": narrowing.MOST},
    "nucleus": {"top_k": 40, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.3},
    "told": {"top_k": 50, "logprobs": 3, "logprobs_mode": "sampled", "logprob_token_ids": (2, 4999)},
    "processed": {"top_k": 5, "logprobs": 2, "logprobs_mode": "processed"},
    "greedy": {"temperature": 0.0},
    "too many": {"top_k": narrowing.MOST + 1},
    "half": {"top_k": V // 2},
    "all": {"top_k": V + 7},
    "off": {},
    "mass": {"top_p": 0.9},
    "xtc": {"top_k": 50, "xtc_probability": 0.5},
}
SMALL = ("one", "few", "more", "most", "nucleus", "told", "processed", "greedy")
REPORTED = ("sampled_logprobs", "support_sizes", "status", "logprobs", "ranks", "top_token_ids", "top_logprobs")
ROWS = 4


def params(kind: str, seed: int = 3) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.8, "seed": seed, **KINDS[kind]})


def rows(turn: int) -> NDArray[np.float32]:
    """Logits with many ties, with few candidates, of bfloat16's steps and of one value, and one with a NaN."""
    rng = np.random.default_rng(turn)
    x = rng.standard_normal((5, V)).astype(np.float32) * np.float32(3)
    x[0] = np.round(x[0])
    x[1, 30:] = -np.inf
    x[2] = np.asarray(jnp.asarray(x[2]).astype(jnp.bfloat16).astype(jnp.float32))
    x[3] = np.float32(-0.0)
    x[4, turn % V] = np.nan
    return np.roll(x, turn, 0)[:ROWS]


def filled(kinds: tuple[str, ...]) -> Any:
    """A batch that has held a request of every kind, and holds these now."""
    batch = Batch(V, ROWS, like=jnp.zeros((1, V)), history_capacity=8)
    for kind in KINDS:
        batch.insert(params(kind), [1], slot=0)
    batch.remove(0)
    for slot, kind in enumerate(kinds):
        batch.insert(params(kind, seed=slot), [2, 4], slot=slot)
    return batch


def same(alone: Draw, drawn: Draw, slot: int) -> None:
    assert int(alone.token_ids[0]) == int(drawn.token_ids[slot])
    asks = alone.logprobs is not None
    for name in REPORTED if asks else REPORTED[:3]:
        expected = np.atleast_1d(np.asarray(getattr(alone, name))[0])
        actual = np.atleast_1d(np.asarray(getattr(drawn, name))[slot])[: expected.size]
        np.testing.assert_array_equal(actual, expected, name)


def rounds() -> list[tuple[str, ...]]:
    """Every kind in some batch: the small ones among themselves, then with the others; the last leaves a slot empty."""
    small = [SMALL[i : i + ROWS] for i in range(0, len(SMALL), ROWS)]
    others = [kind for kind in KINDS if kind not in SMALL]
    return [
        *small,
        ("few", "one", "greedy", "told"),
        *((*others[i : i + 2], "nucleus", "greedy") for i in (0, 2, 4)),
        ("few",),
    ]


@pytest.mark.slow
def test_any_top_k_draws_what_numpy_draws_and_compiles_nothing_anew() -> None:
    run: Any = jax.jit(lambda batch, x: batch.sample(x))
    for turn, kinds in enumerate(rounds()):
        x = rows(turn)
        drawn = run(filled(kinds), jnp.asarray(x))
        for slot, kind in enumerate(kinds):
            same(tirage.sample(x[slot], params(kind, seed=slot), history=[([2, 4], [])]), drawn, slot)
    assert run._cache_size() == 1


@pytest.mark.parametrize("kinds", [*rounds(), ("few", "xtc"), ("few", "off"), ("greedy", "too many"), ("greedy",)])
def test_rows_are_narrowed_where_each_has_a_small_top_k_or_is_greedy(kinds: tuple[str, ...]) -> None:
    found = [narrowing.narrow(program, V) for program in slots.programs(filled(kinds)._arrays)]

    assert [set(kinds) <= set(SMALL)] * len(found) == [one is not None and bool(one.serves) for one in found]


def test_short_rows_and_rows_without_a_top_k_have_one_way() -> None:
    batch: Any = Batch(V, 1, like=jnp.zeros((1, V)))
    batch.add(params("mass"))
    (program,) = slots.programs(batch._arrays)
    (narrowed,) = slots.programs(filled(("few",))._arrays)

    assert narrowing.narrow(program, V) is None
    assert narrowing.narrow(narrowed, 4096) is None


@pytest.mark.slow
@pytest.mark.parametrize("size", [96, 2048])
@pytest.mark.parametrize("spread", [0, 3, 300, 0x7F7FFFFF])
def test_the_first_k_end_where_a_sort_says(spread: int, size: int) -> None:
    rng = np.random.default_rng(spread)
    key = rng.integers(-spread, spread, (8, size), endpoint=True).astype(np.int32)
    among = rng.random((8, size)) < rng.choice([0.02, 0.5, 1.0], 8)[:, None]
    among[:, 7] = True
    ks = [1, 2, 5, 40, size // 2, size - 1, size, 1 << 30]

    last, at = map(np.asarray, jax.jit(reach.kth)(jnp.asarray(key), jnp.asarray(among), jnp.asarray(ks, jnp.int32)))
    for r, k in enumerate(ks):
        ids = np.flatnonzero(among[r])
        first = ids[np.argsort(-key[r, ids], kind="stable")][:k]
        inside = (key[r, ids] > last[r]) | ((key[r, ids] == last[r]) & (ids <= at[r]))
        assert sorted(first.tolist()) == ids[inside].tolist()
        # Where all that equal the last one stay, the key alone decides.
        assert (key[r, ids] >= last[r]).tolist() == (key[r, ids] >= key[r, first].min()).tolist()
