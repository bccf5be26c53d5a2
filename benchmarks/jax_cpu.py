"""How does the traced JAX path compare with samplers that sort, inside one jit each? V = 128k, B = 1, 4 and 32.

python -m benchmarks.jax_cpu [--rounds 7] [--batches 1 4 32] [--cases "top_p 0.95"] [--threads 1] [--name FILE]

The sorting samplers are written here in the style of common JAX samplers: temperature, a descending sort, the
cumulative softmax, a cut, `jax.random.categorical`. Their tokens differ from ours, whose equal those of NumPy. Top-k is
timed a second time with a `Batch`, where k and all other parameters are arrays.
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
BETWEEN_S = 0.1
"""Least time between two looks at the clock of the process, which lags behind for threads on other processors: by up to
4 ms, the tick of Linux."""
PROBES = 7
"""Calls whose least time says how many fill `BETWEEN_S`: on a busy machine one call may take fifty times as long."""
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
    parser.add_argument("--name", help="of the file of results, where these are not all cases")
    given = parser.parse_args()
    if given.threads == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    found = [row for rows in given.batches for name in given.cases for row in measured(name, rows, given.rounds)]
    threads = "one XLA thread" if given.threads == 1 else "XLA's own threads"
    notes = f"process CPU time per row, {threads}, medians of interleaved rounds; load average {os.getloadavg()[0]:.0f}"
    save(given.name or ("jax_cpu" if given.threads == 1 else "jax_cpu_threads"), found, notes=notes)


def measured(name: str, rows: int, rounds: int) -> list[dict[str, Any]]:
    """The rows of the results for one case: one for each shape of logits."""
    params = tirage.SamplingParams(temperature=TEMPERATURE, seed=7, **CASES[name])
    ways: dict[str, Callable[[jax.Array], Any]] = {
        "ours": jax.jit(lambda x: tirage.sample(x, params).token_ids),
        "peer": partial(jax.jit(PEERS[name]), key=jax.random.key(0)),
        "maximum": jax.jit(lambda x: x.max(-1)),
    }
    if "top_k" in CASES[name]:
        # There k is an array, and takes another way through the program than a known one.
        ways["batch"] = partial(jax.jit(lambda batch, x: batch.sample(x).token_ids), batch_of(params, rows))
    return [timed(ways, name, shape, rows, rounds) for shape in ("peaked", "medium", "flat")]


def batch_of(params: tirage.SamplingParams, rows: int) -> Any:
    """A `Batch` with the same request in every slot, its arrays on the device."""
    batch = tirage.Batch(VOCAB, rows, like=jnp.zeros((1, VOCAB)))
    for _ in range(rows):
        batch.add(params, ())
    return jax.tree.map(jnp.asarray, batch)


def timed(ways: dict[str, Callable[[jax.Array], Any]], name: str, shape: str, rows: int, rounds: int) -> dict[str, Any]:
    """One row of the results; `ratio` and `batch_ratio` say how many times our time the peer takes."""
    host = logits(shape, rows, VOCAB)
    x = jnp.asarray(host)
    expected = tirage.sample(host, tirage.SamplingParams(temperature=TEMPERATURE, seed=7, **CASES[name])).token_ids
    same = all(np.array_equal(np.asarray(ways[way](x)), expected) for way in ("ours", "batch") if way in ways)
    jobs = {way: partial(finished, run, x) for way, run in ways.items()}
    calls = {way: enough_calls(job) for way, job in jobs.items()}
    many = {way: partial(called, job, calls[way]) for way, job in jobs.items()}
    found = interleaved(many, rounds=rounds, clock=time.process_time)
    times = {way: seconds / calls[way] for way, seconds in found.items()}
    us = {f"{way}_us_per_row": round(1e6 * seconds / rows, 1) for way, seconds in times.items()}
    ratios = {"ratio": round(times["peer"] / times["ours"], 2)}
    if "batch" in times:
        ratios["batch_ratio"] = round(times["peer"] / times["batch"], 2)
    return {"case": name, "shape": shape, "B": rows, **us, **ratios, "same_tokens_as_numpy": same}


def finished(run: Callable[[jax.Array], Any], x: jax.Array) -> None:
    """Calls `run` and waits for what it returns."""
    run(x).block_until_ready()


def enough_calls(job: Callable[[], object]) -> int:
    """How many calls take `BETWEEN_S`, by the fastest of a few; one where a call spends as much of the processors."""
    job()
    times = []
    for _ in range(PROBES):
        start, spent = time.perf_counter(), time.process_time()
        job()
        times.append(time.perf_counter() - start)
        if time.process_time() - spent > BETWEEN_S:
            return 1
    return 1 + int(BETWEEN_S / min(times))


def called(job: Callable[[], object], times: int) -> None:
    """Calls a job so many times."""
    for _ in range(times):
        job()


if __name__ == "__main__":
    main()
