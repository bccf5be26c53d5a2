"""JAX draws, bit for bit, what the plain NumPy path draws: every preset, every operator, eager, jit, vmap and scan.

The tables of presets and stages are read, not copied: one that is added is tested here without a change.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from every_stage import CARRIED, OPTIONS, bitmask, full_params
from numpy.typing import NDArray
from random_rows import ON_JAX, OWN_SEMANTICS_ONLY, PLAIN_ONLY, TENSORS_ONLY
from strategies import SHAPES, logits_of

import tirage
from tirage import Draw, SamplingParams
from tirage.backends.jax import filters, traced
from tirage.backends.numpy import distribution, kernels
from tirage.compiled_params import compiled
from tirage.history import History
from tirage.operators import LAST, OPERATIONS, OPERATORS
from tirage.operators.processors import PROCESS
from tirage.operators.top_k import TOP_K
from tirage.sampling import row_states
from tirage.sampling_batch import SamplingBatch
from tirage.sampling_metadata import Drawn
from tirage.semantics import PRESETS, resolve

SIZE = 70
HISTORY = ([3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7, 9])
FIELDS = (
    "token_ids",
    "sampled_logprobs",
    "support_sizes",
    "status",
    "logprobs",
    "ranks",
    "top_token_ids",
    "top_logprobs",
)


def every_operator(preset: str) -> list[SamplingParams]:
    """Parameters of a preset: each stage alone, all together, none, and greedy where it is allowed."""
    semantics = resolve(preset)
    mode = {"logprobs": 3, "logprob_token_ids": (0, 7)}
    params = [SamplingParams(semantics=preset, **mode), full_params(preset, **mode)]
    off = {name: value for name, value in {"min_keep": 0, "tfs": 1.0}.items() if name in semantics.stages}
    # All that a trace knows, and each stage alone.
    params.append(full_params(preset, **off, **mode))
    for stage in semantics.stages:
        if stage not in CARRIED:
            params.append(SamplingParams(semantics=preset, **OPTIONS[stage], **mode))
    if semantics.greedy == "argmax":
        params.append(SamplingParams(semantics=preset, temperature=0.0, **mode))
    if "temperature" in semantics.stages:
        params.append(SamplingParams(semantics=preset, dynatemp_range=0.5, **mode))
    if "xtc" in semantics.stages:
        params.append(SamplingParams(semantics=preset, **OPTIONS["xtc"], top_k=20, **mode))
    views = ("raw", "processed", "sampled")
    modes = ["sampled" if p.xtc_probability else views[i % 3] for i, p in enumerate(params)]
    return [p.replace(seed=i - 3, logprobs_mode=view) for i, (p, view) in enumerate(zip(params, modes, strict=True))]


def rows_of(count: int, size: int = SIZE) -> NDArray[np.float32]:
    """Logits [count, size] of every awkward shape in turn, two rows of them not finite."""
    x = np.stack([logits_of(SHAPES[i % len(SHAPES)], size, i) for i in range(count)])
    return np.where(np.arange(count)[:, None] % 13 == 12, np.float32(np.nan), x)


def by_plain(logits: NDArray[np.float32], params: Any, **given: Any) -> dict[str, Any]:
    """What the plain NumPy path says, by the names of Draw."""
    states = row_states(logits.shape, params, given.get("history"), None, 0)
    rows = SamplingBatch.of(states, logits.shape[1]).metadata(given.get("mask"))
    with np.errstate(all="ignore"):
        out = distribution.draw(logits, rows, Drawn.empty(rows))
    named = {"support_sizes": out.support, "top_token_ids": out.top_ids, "given_logprobs": out.asked_logprobs}
    return {name: named.get(name, getattr(out, name, None)) for name in (*FIELDS, "given_logprobs")}


def assert_same(expected: dict[str, NDArray], drawn: Draw) -> None:
    """Every field equal in every bit (NaN equals NaN)."""
    for name in FIELDS:
        if getattr(drawn, name) is None:
            continue
        actual = np.asarray(getattr(drawn, name))
        if actual.dtype == np.float32:
            zeros = np.signbit(np.where(actual == 0, actual, 0))
            assert not zeros.any(), f"{name} holds -0.0"
        np.testing.assert_array_equal(actual.reshape(expected[name].shape), expected[name], name)
    given = np.array(drawn.given_logprobs if drawn.given_logprobs is not None else (), np.float32).ravel()
    np.testing.assert_array_equal(given, expected["given_logprobs"], "given_logprobs")


def test_every_operation_is_traced_and_tried() -> None:
    tried = {
        step.op
        for preset in PRESETS
        for params in every_operator(preset)
        for step in compiled(params).lower(History.of(*HISTORY, vocab_size=SIZE), 0).steps
    }

    others = {op for name in CARRIED for op in OPERATORS[name].operations} | {
        op for each in LAST for op in each.operations
    }
    # Those that carry a state and watermarks: test_mirostat.py, test_adaptive_p.py, test_watermark.py.
    assert set(OPERATIONS) - {PROCESS} - OWN_SEMANTICS_ONLY - others == tried
    assert set(OPERATIONS) - {PROCESS} - (PLAIN_ONLY - ON_JAX) - TENSORS_ONLY == traced.operations()


@pytest.mark.parametrize("preset", PRESETS)
def test_eager_arrays_draw_what_numpy_draws(preset: str):
    params = every_operator(preset)
    logits = rows_of(len(params))
    history = [HISTORY] * len(params)

    assert_same(by_plain(logits, params, history=history), tirage.sample(jnp.asarray(logits), params, history=history))


COMMON = SamplingParams(temperature=0.8, top_k=20, top_p=0.9, min_p=0.02, repetition_penalty=1.3, logprobs=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "each",
    [
        pytest.param([COMMON], id="common"),
        pytest.param(every_operator("canonical")[::4], id="every fourth"),
        pytest.param(every_operator("canonical"), id="all", marks=pytest.mark.exhaustive),
    ],
)
def test_jit_draws_what_plain_numpy_draws(each: list[SamplingParams]):
    """XLA takes half a second to compile an operator; the million draws below try each under every preset."""
    params = [each[i % len(each)].replace(seed=i - 3) for i in range(max(len(each), len(SHAPES)))]
    history = [HISTORY] * len(params)
    compiled = jax.jit(lambda x: tirage.sample(x, params, history=history))

    for logits in (rows_of(len(params)), rows_of(len(params) + 5)[5:]):
        assert_same(by_plain(logits, params, history=history), compiled(jnp.asarray(logits)))


DRAWS = 1_000_000
COPIES = 100
"""Draws over all presets, and rows of each operator in one call."""


def many_rows(count: int, turn: int) -> NDArray[np.float32]:
    """Logits [count, SIZE] of every shape, in float32 and as rounded to bfloat16 and float16, shuffled by the turn."""
    rng = np.random.default_rng(turn)
    x = np.stack([logits_of(SHAPES[i % len(SHAPES)], SIZE, turn * 1000 + i) for i in range(4 * len(SHAPES))])
    x = x[rng.integers(0, len(x), count)][:, rng.permutation(SIZE)]
    with np.errstate(over="ignore"):
        halves = jnp.asarray(x).astype(jnp.bfloat16), jnp.clip(jnp.asarray(x), -6e4, 6e4).astype(jnp.float16)
    rounded = [x, *(np.asarray(half.astype(jnp.float32)) for half in halves)]
    x = np.choose(rng.integers(0, 3, count)[:, None], rounded)
    return np.where(rng.random((count, 1)) < 0.01, np.float32(np.nan), x)


@pytest.mark.exhaustive
@pytest.mark.parametrize("preset", PRESETS)
def test_a_million_draws_in_jit_and_out_of_it_are_those_of_numpy(preset: str):
    kernels.start()
    kernels.wait()
    each = every_operator(preset)
    params = [p.replace(seed=7 * i - 5) for i, p in enumerate(each * COPIES)]
    rng = np.random.default_rng(len(params))
    lengths = rng.integers(0, 9, (len(params), 2)).tolist()
    history = [(rng.integers(0, 12, a).tolist(), rng.integers(0, 12, b).tolist()) for a, b in lengths]
    compiled = jax.jit(lambda x: tirage.sample(x, params, history=history))

    few = len(each)
    x = many_rows(len(params), DRAWS)
    plain = by_plain(x[:few], params[:few], history=history[:few])
    assert_same(plain, jax.tree.map(lambda leaf: leaf[:few], compiled(jnp.asarray(x))))
    for turn in range(-(-DRAWS // (len(PRESETS) * len(params)))):
        x = many_rows(len(params), turn)
        expected = by_name(tirage.sample(x, params, history=history))
        assert_same(expected, compiled(jnp.asarray(x)))
        assert_same(expected, tirage.sample(jnp.asarray(x), params, history=history))


def by_name(drawn: Draw) -> dict[str, Any]:
    """The fields of a Draw, as `by_plain` gives them."""
    given = np.array([value for row in drawn.given_logprobs or () for value in row], np.float32)
    return {**{name: getattr(drawn, name) for name in FIELDS}, "given_logprobs": given}


TOP_P_VARIANTS: list[dict[str, Any]] = [
    {"top_p_rule": rule, "top_p_ties": ties, "top_p_scope": scope}
    for rule in ("lt", "le")
    for ties in ("index", "all")
    for scope in ("sequential", "joint")
]

TIES: tuple[Any, ...] = ("index", "all")
CUTS: tuple[dict[str, Any], ...] = (
    {"top_p": 0.5, "top_k": 5},
    {"top_p": 0.75, "min_p": 0.5},
    {"top_p": 1e-12},
    {"top_p": 0.999, "temperature": 0.05},
    {"top_k": 1000, "top_p": 0.3},
)


@pytest.mark.slow
def test_every_reading_of_top_p_and_top_k_is_the_same_in_one_program():
    stages = ("temperature", "min_p", "top_k", "top_p")
    readings = [
        tirage.Semantics(stages=stages, top_k_ties=ties, **options) for options in TOP_P_VARIANTS for ties in TIES
    ]
    params = [
        SamplingParams(semantics=reading, seed=i, **values)
        for i, (reading, values) in enumerate((reading, values) for reading in readings for values in CUTS)
    ]
    logits = rows_of(len(params))
    compiled = jax.jit(lambda x: tirage.sample(x, params))

    for turn in range(4):
        x = np.roll(logits, turn, axis=0)
        assert_same(by_plain(x, params), compiled(jnp.asarray(x)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype", ["bfloat16", *(pytest.param(d, marks=pytest.mark.exhaustive) for d in ("float16", "float32"))]
)
def test_vmap_and_scan_draw_what_a_batch_draws(dtype: str):
    params = SamplingParams(temperature=0.8, top_k=20, top_p=0.9, min_p=0.02, repetition_penalty=1.3, seed=11)
    logits = jnp.asarray(rows_of(11)).astype(dtype)
    exact = np.asarray(logits.astype(jnp.float32))
    expected = by_plain(exact, params, history=[HISTORY] * 11)

    def one(row: Any) -> Draw:
        return tirage.sample(row, params, history=[HISTORY])

    mapped = jax.jit(jax.vmap(one))(logits)
    _, scanned = jax.lax.scan(lambda carry, row: (carry, one(row)), None, logits)

    for drawn in (mapped, scanned):
        assert_same(expected, drawn)
        assert drawn.seeds.tolist() == [11]


@pytest.mark.exhaustive  # hundreds of programs, one for each operation
def test_vmap_outside_of_jit_draws_what_a_batch_draws():
    params = SamplingParams(temperature=0.8, top_k=20, top_p=0.9, min_p=0.02, repetition_penalty=1.3, seed=11)
    logits = rows_of(11)

    mapped = jax.vmap(lambda row: tirage.sample(row, params, history=[HISTORY]))(jnp.asarray(logits))

    assert_same(by_plain(logits, params, history=[HISTORY] * 11), mapped)


@pytest.mark.slow
def test_a_traced_mask_and_allowed_ids_hold_together():
    size = 45
    params = [SamplingParams(seed=1, allowed_token_ids=(3, 4, 40)), SamplingParams(seed=2), SamplingParams(seed=3)]
    logits = rows_of(3, size)
    logits[:, 7] = np.nan
    mask = bitmask([4, 40, 41], [1, 2, 3], list(range(size)), size=size)
    compiled = jax.jit(lambda x, words: tirage.sample(x, params, mask=words))

    drawn = compiled(jnp.asarray(logits), jnp.asarray(mask))

    assert_same(by_plain(logits, params, mask=mask), drawn)
    assert np.asarray(drawn.status).tolist() == [0, 0, 1]


@pytest.mark.exhaustive
def test_wide_vocabularies_are_searched_in_blocks_to_the_same_tokens():
    names = ("peaked", "flat", "ties", "holes", "zeros")
    logits = np.stack([logits_of(name, 5000, 3) for name in names])
    params = [
        SamplingParams(top_p=0.9, seed=1),
        SamplingParams(top_k=40, top_p=0.5, seed=2),
        SamplingParams(top_k=3000, seed=3, min_p=1e-30),
    ]
    compiled = [jax.jit(lambda x, p=p: tirage.sample(x, p)) for p in params]

    for p, run in zip(params, compiled, strict=True):
        assert_same(by_plain(logits, p), run(jnp.asarray(logits)))
        assert_same(by_plain(logits[::2], p), run(jnp.asarray(logits[::2])))


tirage.register_processor("jax_conformance_halve", lambda x, args: x * np.float32(0.5))
ON_HOST = {
    "processor": (SamplingParams(seed=1, logits_processors=(("jax_conformance_halve", {}),)), [5, 6]),
    "checked mask": (SamplingParams(seed=2, semantics="llamacpp"), [5, 6, 7]),
    "xtc": (
        SamplingParams(seed=3, xtc_probability=0.5, xtc_threshold=0.02, logprobs=2, logprobs_mode="sampled"),
        list(range(SIZE)),
    ),
}


@pytest.mark.parametrize(
    "name", ["processor", *(pytest.param(n, marks=pytest.mark.slow) for n in ("checked mask", "xtc"))]
)
def test_rows_that_a_trace_cannot_do_are_drawn_on_the_host(name: str):
    params, allowed = ON_HOST[name]
    x, words = rows_of(3)[list(ON_HOST).index(name)], bitmask(allowed, size=SIZE)[0]

    drawn = jax.jit(lambda x, words: tirage.sample(x, params, mask=words))(jnp.asarray(x), jnp.asarray(words))
    same = tirage.sample(x, params, mask=words)

    assert same.token_ids.tolist() == np.asarray(drawn.token_ids).tolist()
    assert same.sampled_logprobs.tobytes() == np.asarray(drawn.sampled_logprobs).tobytes()


def test_an_operation_that_no_trace_knows_is_drawn_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(filters.FILTERS, TOP_K)
    params = [SamplingParams(top_k=5, seed=1, logprobs=2, logprobs_mode="sampled"), SamplingParams(seed=2)]
    x = rows_of(2)

    assert_same(by_plain(x, params), jax.jit(lambda x: tirage.sample(x, params))(jnp.asarray(x)))


CACHED = """
import sys, jax, jax.numpy as jnp, jax.monitoring, tirage
counts = {}
jax.monitoring.register_event_listener(lambda name, **_: counts.update({name: counts.get(name, 0) + 1}))
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
params = tirage.SamplingParams(top_k=5, top_p=0.9, repetition_penalty=1.2, seed=3, logprobs=1)
draw = jax.jit(lambda x: tirage.sample(x, params, history=[([1, 2], [3])]))
batch = tirage.Batch(40, 1, like=jnp.zeros(1), history_capacity=8)
batch.add(params, [1, 2], output_ids=[3])
step = jax.jit(lambda batch, x: batch.sample(x))
print(draw(jnp.arange(40.0)).token_ids.tolist(), step(batch, jnp.arange(40.0)[None]).token_ids.tolist())
print(counts.get("/jax/compilation_cache/cache_misses", 0), counts.get("/jax/compilation_cache/cache_hits", 0))
"""


@pytest.mark.slow
def test_a_second_process_compiles_nothing_that_jax_has_cached(tmp_path: Path):
    def run(hashing: str) -> list[str]:
        # What is found again is the question, not what it computes: XLA need not take pains.
        quick = {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
        environment = {**os.environ, "PYTHONHASHSEED": hashing, **quick}
        command = [sys.executable, "-c", CACHED, str(tmp_path)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
        return done.stdout.splitlines()

    (first, compiled), (second, again) = run("1"), run("2")

    assert first == second
    assert int(compiled.split()[0]) > 0
    assert again.split() == ["0", str(sum(map(int, compiled.split())))]
