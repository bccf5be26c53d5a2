"""How does the traced JAX path compare with samplers that sort, inside one jit each? V = 128k, B = 1, 4 and 32.

python -m benchmarks.jax_cpu [--rounds 7] [--batches 1 4 32] [--cases "top_p 0.95"] [--threads 1]

The sorting samplers are written here in the style of common JAX samplers: temperature, a descending sort, the
cumulative softmax, a cut, `jax.random.categorical`. Their tokens differ from ours, whose equal those of NumPy.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.setdefault("TIRAGE_THREADS", "1")

import jax
import jax.numpy as jnp
import numpy as np

import tirage
from benchmarks.harness import interleaved, logits, save

VOCAB = 128256
BETWEEN_S = 0.02
"""Least time between two looks at the clock of the process, which lags behind for threads on other processors."""
TEMPERATURE = 0.8

CASES: dict[str, dict[str, Any]] = {
    "temperature": {},
    "top_k 50": {"top_k": 50},
    "top_p 0.95": {"top_p": 0.95},
    "top_k 50, top_p 0.95": {"top_k": 50, "top_p": 0.95},
    "min_p 0.05": {"min_p": 0.05},
}


def plain(x: jax.Array, key: jax.Array) -> jax.Array:
    """Temperature alone."""
    return jax.random.categorical(key, x / TEMPERATURE, -1)


def by_top_k(x: jax.Array, key: jax.Array) -> jax.Array:
    """`lax.top_k`, then a draw among the candidates."""
    best, ids = jax.lax.top_k(x, 50)
    chosen = jax.random.categorical(key, best / TEMPERATURE, -1)
    return jnp.take_along_axis(ids, chosen[:, None], 1)[:, 0]


def by_sorting(x: jax.Array, key: jax.Array) -> jax.Array:
    """top-p over the sorted vocabulary."""
    x = x / TEMPERATURE
    ordered = -jnp.sort(-x, axis=-1)
    reached = jnp.cumsum(jax.nn.softmax(ordered, -1), -1)
    cut = jnp.take_along_axis(ordered, jnp.sum(reached < 0.95, -1, keepdims=True), -1)
    return jax.random.categorical(key, jnp.where(x < cut, -jnp.inf, x), -1)


def by_top_k_then_sorting(x: jax.Array, key: jax.Array) -> jax.Array:
    """top-k by masking the vocabulary, then top-p over the sorted vocabulary."""
    smallest = jax.lax.top_k(x, 50)[0][:, -1:]
    return by_sorting(jnp.where(x < smallest, -jnp.inf, x), key)


def by_ratio(x: jax.Array, key: jax.Array) -> jax.Array:
    """min-p by probabilities."""
    p = jax.nn.softmax(x / TEMPERATURE, -1)
    return jax.random.categorical(key, jnp.where(p < 0.05 * p.max(-1, keepdims=True), -jnp.inf, x / TEMPERATURE), -1)


PEERS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "temperature": plain,
    "top_k 50": by_top_k,
    "top_p 0.95": by_sorting,
    "top_k 50, top_p 0.95": by_top_k_then_sorting,
    "min_p 0.05": by_ratio,
}


def main() -> None:
    """Time every case on every shape, and check that our tokens are NumPy's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 32])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--threads", type=int, choices=(1, 2), default=1, help="XLA's; 2 leaves them to XLA")
    given = parser.parse_args()
    if given.threads == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    found = [
        measured(shape, name, rows, given.rounds)
        for rows in given.batches
        for name in given.cases
        for shape in ("peaked", "medium", "flat")
    ]
    threads = "one XLA thread" if given.threads == 1 else "XLA's own threads"
    notes = f"process CPU time per row, {threads}, medians of interleaved rounds; load average {os.getloadavg()[0]:.0f}"
    save("jax_cpu" if given.threads == 1 else "jax_cpu_threads", found, notes=notes)


def measured(shape: str, name: str, rows: int, rounds: int) -> dict[str, Any]:
    """One row of the results."""
    host = logits(shape, rows, VOCAB)
    x, key = jnp.asarray(host), jax.random.key(0)
    params = tirage.SamplingParams(temperature=TEMPERATURE, seed=7, **CASES[name])
    ours = jax.jit(lambda x: tirage.sample(x, params).token_ids)
    peer = jax.jit(PEERS[name])
    same = np.array_equal(np.asarray(ours(x)), tirage.sample(host, params).token_ids)
    floor = jax.jit(lambda x: x.max(-1))
    jobs = {
        "ours": lambda: ours(x).block_until_ready(),
        "peer": lambda: peer(x, key).block_until_ready(),
        "maximum": lambda: floor(x).block_until_ready(),
    }
    calls = {name: enough_calls(job) for name, job in jobs.items()}
    many = {name: partial(called, job, calls[name]) for name, job in jobs.items()}
    found = interleaved(many, rounds=rounds, clock=time.process_time)
    times = {name: seconds / calls[name] for name, seconds in found.items()}
    us = {f"{job}_us_per_row": round(1e6 * seconds / rows, 1) for job, seconds in times.items()}
    ratio = round(times["peer"] / times["ours"], 2)
    return {"case": name, "shape": shape, "B": rows, **us, "ratio": ratio, "same_tokens_as_numpy": same}


def enough_calls(job: Callable[[], object]) -> int:
    """How many calls take `BETWEEN_S`."""
    job()
    start = time.perf_counter()
    job()
    return 1 + int(BETWEEN_S / (time.perf_counter() - start))


def called(job: Callable[[], object], times: int) -> None:
    """Calls a job so many times."""
    for _ in range(times):
        job()


if __name__ == "__main__":
    main()
