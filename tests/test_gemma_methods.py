"""How Gemma's door draws: seeds and keys of every kind, the four methods, and users' own."""

from __future__ import annotations

import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from small_transformers import HELLO, LetterTokenizer, SmallTransformer, V, reply, slow_greedy, small

from tirage import ParamsError, law
from tirage.compat.gemma import Greedy, RandomSampling, Sampler, SamplingMethod, TopkSampling, TopPSampling

# rng.


def test_every_kind_of_rng_is_a_seed_and_a_key_is_the_int_it_came_from() -> None:
    sampler = small()
    kinds = [7, np.int64(7), np.array([0, 7], np.uint32), jax.random.key(7), jax.random.PRNGKey(7), jax.numpy.uint32(7)]
    expected = reply(sampler, sampling=RandomSampling(), rng=7)
    assert [reply(sampler, sampling=RandomSampling(), rng=kind) for kind in kinds] == [expected] * len(kinds)
    two = [
        [7, 7],
        np.array([7, 7]),
        [jax.random.key(7), 7],
        jax.random.wrap_key_data(jnp.array([[0, 7], [0, 7]], jnp.uint32)),
    ]
    for kind in two:
        assert reply(sampler, ["hello", "hello"], sampling=RandomSampling(), rng=kind) == [expected, expected]
    others = [reply(sampler, sampling=RandomSampling(), rng=seed) for seed in (-1, 2**63 - 1, 8, 2**32 + 7)]
    assert all(other != expected for other in others)


def test_a_key_of_another_kind_is_refused_and_not_taken_for_seeds() -> None:
    key = jax.random.key(7, impl="rbg")
    for prompts in ("a", ["a", "b", "c", "d"]):
        with pytest.raises(ParamsError, match=r"rng must be .* got a key of .*rbg; use threefry2x32"):
            small().sample(prompts, rng=key)


def test_one_seed_gives_each_prompt_its_own_stream_and_the_first_is_a_lone_prompts() -> None:
    sampler = small()
    first, second, third = reply(sampler, ["hello"] * 3, sampling=RandomSampling(), rng=5)
    assert first == reply(sampler, sampling=RandomSampling(), rng=5)
    assert len({tuple(first), tuple(second), tuple(third)}) == 3


def test_without_rng_pythons_own_random_gives_the_seed() -> None:
    def drawn(seed: int) -> Any:
        random.seed(seed)
        return reply(small(), sampling=RandomSampling())

    assert drawn(1) == drawn(1) != drawn(2)


@pytest.mark.parametrize(
    "rng", [1.5, "7", True, 2**63, [1], [1, 2, 3], np.array([1.5, 2.5]), [1, None], {}, np.zeros((2, 3))]
)
def test_other_kinds_of_rng_are_refused(rng: Any) -> None:
    with pytest.raises(ParamsError, match="rng must"):
        small().sample(["a", "b"], sampling=RandomSampling(), rng=rng)


# Methods.


def test_the_methods_have_the_documented_defaults() -> None:
    assert RandomSampling().temperature == 1.0
    assert (TopkSampling().temperature, TopkSampling().k) == (1.0, 1)
    assert (TopPSampling().temperature, TopPSampling().p) == (1.0, 0.9)
    assert Sampler.__dataclass_fields__["cache_length"].default == 4096
    assert Sampler.__dataclass_fields__["max_out_length"].default == 2048
    assert Sampler.__dataclass_fields__["pad_length"].default == (256, 512, 1024)


def peer_law(method: Any, x: np.ndarray) -> np.ndarray:
    """What the original's formulas give in float64."""
    x = x.astype(np.float64)
    if isinstance(method, TopkSampling):
        kept = np.argsort(-x, kind="stable")[: method.k]
        x = np.where(np.isin(np.arange(x.size), kept), x / method.temperature, -np.inf)
    elif isinstance(method, TopPSampling):
        x = x / method.temperature
        ordered = -np.sort(-x)
        mass = np.cumsum(np.exp(ordered - ordered[0])) / np.exp(ordered - ordered[0]).sum()
        if method.p < 1:
            x = np.where(x < ordered[np.sum(mass < method.p)], -np.inf, x)
    else:
        x = x / method.temperature
    w = np.exp(x - x.max())
    return w / w.sum()


@pytest.mark.parametrize(
    "method",
    [
        RandomSampling(temperature=0.7),
        TopkSampling(k=5, temperature=1.4),
        TopPSampling(p=0.64),
        TopPSampling(p=0.3, temperature=2.0),
        TopPSampling(p=1.5),
    ],
)
def test_a_methods_law_is_the_originals(method: Any) -> None:
    for seed in range(20):
        x = np.random.default_rng(seed).normal(0, 2, 60).astype(np.float32)
        assert np.abs(law(x, method.params)[0] - peer_law(method, x)).sum() < 1e-6
    ties = np.array([1.0, 1.0, 0.0, 1.0], np.float32)
    assert (law(ties, TopkSampling(k=2).params)[0] > 0).tolist() == [True, True, False, False]
    assert (law(ties, TopPSampling(p=0.1).params)[0] > 0).tolist() == [True, True, False, True]


@pytest.mark.parametrize(
    "method",
    [
        Greedy(),
        TopkSampling(),
        RandomSampling(temperature=0),
        TopPSampling(p=0),
        TopPSampling(p=-1),
        TopkSampling(k=9, temperature=0),
    ],
)
def test_the_ways_to_be_greedy(method: Any) -> None:
    expected = slow_greedy(SmallTransformer(), HELLO, 6)
    assert expected == reply(small(), sampling=method, rng=3, max_new_tokens=6)
    assert expected == reply(small(sampling=method), max_new_tokens=6)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_sampling_is_in_float32_whatever_the_model_computes_in(dtype: str) -> None:
    flat = jnp.zeros((2000,), dtype)
    tokens = [int(RandomSampling().get_next_tokens(flat, seed)) for seed in range(300)]
    assert 900 < np.mean(tokens) < 1100
    assert len(set(tokens)) > 250
    model = SmallTransformer("jax")
    sampler = Sampler(model=model, params=model.params(0, dtype), tokenizer=LetterTokenizer(), cache_length=64)
    assert len(reply(sampler, max_new_tokens=4)) == 4


def test_a_method_alone_draws_rows_of_any_shape_apart() -> None:
    tokens = RandomSampling().get_next_tokens(np.zeros((3, 4, 50), np.float32), 1)
    assert (tokens.shape, len(set(tokens.ravel().tolist()))) > ((3, 4), 8)
    drawn = RandomSampling().get_next_tokens(jnp.zeros((4, 50)), 1)
    assert isinstance(drawn, jnp.ndarray)
    assert drawn.tolist() == RandomSampling().get_next_tokens(np.zeros((4, 50), np.float32), 1).tolist()
    assert Greedy().get_next_tokens(np.array([0.0, 2.0, 2.0]), None) == 1


# Methods inside jit, vmap and scan.

METHODS = [
    Greedy(),
    RandomSampling(temperature=0.7),
    TopkSampling(k=5, temperature=1.4),
    TopPSampling(p=0.64, temperature=1.3),
]


def hard_logits(*shape: int) -> NDArray[np.float32]:
    """Logits some of which are equal, far apart or -inf, and a first row without a legal token."""
    x = np.random.default_rng(len(shape)).normal(0, 3, shape).astype(np.float32)
    x[..., ::3] = np.round(x[..., ::3])
    x[..., 5], x[..., 6] = -np.inf, np.finfo(np.float32).min
    x.reshape(-1, shape[-1])[0] = -np.inf
    return x


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_a_method_inside_jit_draws_the_tokens_that_it_draws_outside(method: Any) -> None:
    compiled = jax.jit(method.get_next_tokens)
    for shape, dtype in (((50,), "float32"), ((4, 50), "float32"), ((2, 3, 50), "bfloat16")):
        logits = jnp.asarray(hard_logits(*shape)).astype(dtype)
        first = jax.random.PRNGKey(12345678901)
        for key in (jax.random.PRNGKey(0), first, jax.random.fold_in(first, 3), jax.random.key(2**31)):
            outside, inside = method.get_next_tokens(logits, key), compiled(logits, key)
            assert inside.dtype == outside.dtype
            assert inside.tolist() == outside.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_a_method_under_vmap_draws_each_row_with_its_key(method: Any) -> None:
    logits, keys = jnp.asarray(hard_logits(6, 50)), jax.random.split(jax.random.key(5), 6)
    outside = [int(method.get_next_tokens(row, key)) for row, key in zip(logits, keys, strict=True)]
    assert jax.jit(jax.vmap(method.get_next_tokens))(logits, keys).tolist() == outside
    alike = [int(method.get_next_tokens(row, keys[0])) for row in logits]
    assert jax.jit(jax.vmap(lambda row: method.get_next_tokens(row, keys[0])))(logits).tolist() == alike


@pytest.mark.slow
def test_a_scan_draws_with_a_new_key_for_each_step() -> None:
    method, logits = RandomSampling(), jnp.asarray(hard_logits(3, 50))

    def step(key: Any, _: Any) -> tuple[Any, Any]:
        key, now = jax.random.split(key)
        return key, method.get_next_tokens(logits, now)

    key, expected = jax.random.key(3), []
    _, tokens = jax.lax.scan(step, key, length=5)
    for _ in range(5):
        key, drawn = step(key, None)
        expected.append(drawn.tolist())
    assert tokens.tolist() == expected


@pytest.mark.slow
def test_every_kind_of_seed_is_the_same_inside_jit() -> None:
    method, logits = RandomSampling(), jnp.zeros((4, 500))
    compiled = jax.jit(method.get_next_tokens)
    words, key = jnp.array([[7, 2**32 - 1]], jnp.uint32), jax.random.key(9)
    numbers = [jnp.int32(-5), jnp.uint32(2**32 - 1), jnp.int8(-3), jnp.array([3]), 7]
    for seed in (*numbers, words, [key], (words[0],), jax.random.split(key, 1)):
        assert compiled(logits, seed).tolist() == method.get_next_tokens(logits, seed).tolist()
    for known in (7, key, [words[0]]):
        inside = jax.jit(lambda x, known=known: method.get_next_tokens(x, known))(logits)
        assert inside.tolist() == method.get_next_tokens(logits, known).tolist()
    with jax.enable_x64(True):
        for number in (-1, 2**63 - 1, -(2**40) - 7):
            seed = jnp.asarray(number, jnp.int64)
            assert compiled(logits, seed).tolist() == method.get_next_tokens(logits, number).tolist()


@pytest.mark.parametrize(
    ("rng", "message"),
    [
        (None, "rng must be given inside jax.jit, got None, whose fresh seed would be frozen into the program"),
        (np.zeros(3), "rng must hold one seed per prompt, which is 1, got 3"),
        (np.zeros((2, 2), np.uint32), "rng must hold one seed per prompt, which is 1, got 2"),
        (np.float32(1.5), r"rng must be an int64, a JAX key, .* or None, got float32 of shape \[\]; pass a key"),
        (True, r"rng must be an int64, a JAX key, .* or None, got bool of shape \[\]; pass a key"),
    ],
)
def test_what_is_no_seed_is_refused_inside_jit(rng: Any, message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        jax.jit(RandomSampling().get_next_tokens)(jnp.zeros((1, 4)), rng)
    if rng is None:
        assert jax.jit(Greedy().get_next_tokens)(jnp.zeros((1, 4)), rng).tolist() == [0]


# Users' own methods.


class Second(SamplingMethod):
    """A user's own: the second best token; keeps what it was given."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, Any]] = []

    def get_next_tokens(self, logits: Any, rng: Any) -> Any:
        self.seen.append((logits, rng))
        return np.argsort(np.asarray(logits), axis=-1)[..., -2]


@pytest.mark.slow
@pytest.mark.parametrize("library", ["numpy", "jax"])
def test_a_users_own_method_works_in_the_models_library(library: str) -> None:
    method = Second()
    sampler = small(model=SmallTransformer(library))
    tokens = reply(sampler, ["hello", "a"], sampling=method, rng=7, max_new_tokens=3)
    assert tokens == [reply(sampler, prompt, sampling=Second(), max_new_tokens=3) for prompt in ("hello", "a")]
    assert {logits.shape for logits, _ in method.seen} == {(1, V)}
    assert {str(logits.dtype) for logits, _ in method.seen} == {"float32"}
    assert isinstance(method.seen[0][0], jax.Array) is (library == "jax")
    keys = {tuple(jax.random.key_data(rng).tolist()) for _, rng in method.seen}
    assert len(keys) == 6
    jax.random.categorical(method.seen[0][1], jax.numpy.zeros(3))
