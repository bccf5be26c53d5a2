"""What `cuda_check.py` asks of a batch whose rows lie on a device: the same tokens as a batch on the host, in random
lives, compiled, and replayed from a CUDA graph. Steady steps wait for nothing, a batch size compiles nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tirage import Batch, Draw, SamplingParams
from tirage.backends.torch.device.mixed import as_tensors

V, CAPACITY, STEPS = 1000, 6, 40
COMPARED = ("token_ids", "sampled_logprobs", "support_sizes", "status", "seeds")
REPORTED = ("logprobs", "ranks", "top_token_ids", "top_logprobs", "given_logprobs")
EVERYTHING = SamplingParams(
    temperature=0.8,
    top_k=50,
    top_p=0.9,
    min_p=0.01,
    repetition_penalty=1.2,
    presence_penalty=0.3,
    logit_bias={3: 2.0, 4: -np.inf},
    min_tokens=3,
    stop_token_ids=[5],
    bad_words_token_ids=[(1, 2), (3,), (2, 1, 4)],
    no_repeat_ngram_size=4,
    dry_multiplier=0.5,
    dry_sequence_breakers=(),
    logprobs=2,
    logprob_token_ids=[3, V - 1, 7],
)


def checks(device: torch.device, lives: int) -> list[dict[str, Any]]:
    """What each check compared, and how many differences it found; `not run` says why one was left out."""
    found: list[dict[str, Any]] = [_lives(device, lives), _compiled(device)]
    if device.type != "cuda":
        missing = ("steady steps", "a CUDA graph", "batch sizes")
        return found + [{"check": name, "not run": f"on {device.type}", "differences": 0} for name in missing]
    return [*found, _steady(device), _graph(device), _sizes(device)]


def batch_on(device: torch.device, capacity: int = CAPACITY, vocab_size: int = V, **options: Any) -> Any:
    """An empty batch whose rows lie on `device`, whatever it is."""
    from tirage.batch.torch import TorchBatch

    return TorchBatch(vocab_size, capacity, like=torch.zeros(1, vocab_size, device=device), **options)


def _logits(seed: int, rows: int = CAPACITY, vocab_size: int = V) -> Tensor:
    x = np.random.default_rng(seed).standard_normal((rows, vocab_size)).astype(np.float32) * 3
    if seed % 13 == 12:
        x[:, 3] = np.nan
    return torch.from_numpy(np.round(x * 8) / 8)


def _different(there: Draw, here: Draw) -> int:
    """How many entries of two draws differ; all NaN are one."""
    total, here = 0, as_tensors(here, torch.device("cpu"))
    for name in (*COMPARED, *(REPORTED if here.logprobs is not None else ())):
        a, b = getattr(there, name).cpu().numpy(), getattr(here, name).cpu().numpy()
        total += int((~((a == b) | ((a != a) & (b != b)))).sum())
    return total


def _changed(r: np.random.Generator, batches: tuple[Batch, Batch]) -> None:
    """One change of requests, the same in both batches."""
    from torch_worlds import features

    params = features()[int(r.integers(len(features())))].replace(seed=int(r.integers(1 << 40)))
    prompt, slot = r.integers(24, size=int(r.integers(8))).tolist(), int(r.integers(CAPACITY))
    order = r.permutation([-1, *batches[0].slots])[:CAPACITY].tolist()
    kind = int(r.integers(4))
    for batch in batches:
        if kind == 0 and batch.slots:
            batch.remove(batch.slots[0])
        elif kind == 1 and batch.slots:
            batch.reorder(order)
        else:
            batch.insert(params, prompt, slot=slot)


def _lives(device: torch.device, lives: int) -> dict[str, Any]:
    """Batches on the device and on the host that live through the same changes."""
    differences = draws = 0
    for seed in range(lives):
        r = np.random.default_rng(seed)
        there, here = batch_on(device), Batch(V, CAPACITY, like=torch.zeros(1, V))
        for step in range(STEPS):
            _changed(r, (there, here))
            x = _logits(seed * STEPS + step)
            drawn, expected = there.sample(x.to(device)), here.sample(x)
            differences, draws = differences + _different(drawn, expected), draws + CAPACITY
            there.advance(drawn)
            here.advance(expected)
        differences += sum(there.history(slot) != here.history(slot) for slot in here.slots)
    return {"check": "lives of a batch", "draws": draws, "differences": differences}


def _pair(device: torch.device) -> tuple[Any, Batch]:
    """A batch on the device with rows of fixed size, and one on the host, with the same requests."""
    there, here = batch_on(device, history_capacity=512), Batch(V, CAPACITY, like=torch.zeros(1, V))
    for seed in range(CAPACITY - 1):
        for batch in (there, here):
            batch.add((EVERYTHING if seed % 2 else SamplingParams(top_p=0.9)).replace(seed=seed), [1, 2, seed])
    return there, here


def _stepped(step: Callable[[Tensor], Tensor], here: Batch, steps: range) -> int:
    """How many tokens of `step` are not those of the batch on the host."""
    differences = 0
    for number in steps:
        x = _logits(number)
        expected = here.sample(x)
        here.advance(expected)
        differences += int((step(x).cpu() != expected.token_ids).sum())
    return differences


def _compiled(device: torch.device) -> dict[str, Any]:
    there, here = _pair(device)
    backend = "inductor" if device.type == "cuda" else "aot_eager"
    step = torch.compile(there.device_rows().step, fullgraph=True, backend=backend)
    differences = _stepped(lambda x: step(x.to(device))[0], here, range(STEPS))
    return {"check": f"a step compiled whole by {backend}", "draws": STEPS * CAPACITY, "differences": differences}


def _graph(device: torch.device) -> dict[str, Any]:
    """A step captured once and replayed, while a request goes and another comes."""
    there, here = _pair(device)
    rows, x = there.device_rows(), _logits(0).to(device)
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):  # kernels are compiled before the capture
        differences = _stepped(lambda given: rows.step(x.copy_(given))[0], here, range(2))
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        token, *_ = rows.step(x)

    def replayed(given: Tensor) -> Tensor:
        x.copy_(given)
        graph.replay()
        return token

    differences += _stepped(replayed, here, range(2, STEPS))
    for batch in (there, here):
        batch.remove(1)
        batch.add(EVERYTHING.replace(seed=99), [7])
    there.device_rows()
    differences += _stepped(replayed, here, range(STEPS, 2 * STEPS))
    return {"check": "a step in a CUDA graph", "draws": 2 * STEPS * CAPACITY, "differences": differences}


def captured(x: Tensor, options: dict[str, Any]) -> Callable[[], object]:
    """A replay of one step over logits [B, V] on CUDA, for rows that all ask for the same."""
    batch = batch_on(x.device, *x.shape, history_capacity=4096)
    for seed in range(x.shape[0]):
        batch.add(SamplingParams(**options, seed=seed))
    rows = batch.device_rows()
    side = torch.cuda.Stream(x.device)
    side.wait_stream(torch.cuda.current_stream(x.device))
    with torch.cuda.stream(side):
        rows.step(x)
    torch.cuda.current_stream(x.device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows.step(x)
    # The graph knows addresses alone: rows have to outlive it.
    return lambda: (graph.replay(), rows)


def _steady(device: torch.device) -> dict[str, Any]:
    """Steps under a mode of PyTorch's that makes each wait for the device an error."""
    batch, x = batch_on(device, 128, 128_256), torch.randn(128, 128_256, device=device)
    for seed in range(128):
        batch.add(EVERYTHING.replace(seed=seed), [1, 2, 3])
    for _ in range(3):
        batch.advance(batch.sample(x))
    torch.cuda.synchronize(device)
    before, seconds = torch.cuda.memory_allocated(device), 0.0
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            begun = time.perf_counter()
            batch.advance(batch.sample(x))
            seconds += time.perf_counter() - begun
    finally:
        torch.cuda.set_sync_debug_mode("default")
    grown = torch.cuda.memory_allocated(device) - before
    return {
        "check": "steady steps",
        "host us": round(seconds / 20 * 1e6, 1),
        "bytes": grown,
        "differences": int(grown > 0),
    }


def _sizes(device: torch.device) -> dict[str, Any]:
    """How many kernels other batch sizes compile once one was drawn."""
    from tirage.backends.torch import triton
    from tirage.backends.torch.device import launches

    kernels = [getattr(triton, f"_{name}") for name in ("MEASURE", "WEIGH", "BOUND", "SPLIT", "RESOLVE", "GENERAL")]
    kernels += [getattr(launches, f"_{name}") for name in ("MEASURE_SLOTS", "EDIT", "APPEND")]

    def drawn(rows: int) -> int:
        batch = batch_on(device, rows)
        for seed in range(rows):
            batch.add(SamplingParams(top_p=0.9, seed=seed))
        batch.sample(_logits(0, rows).to(device))
        return sum(len(cache[0]) for kernel in kernels for cache in kernel.device_caches.values())

    first = drawn(5)
    return {"check": "batch sizes", "differences": max(drawn(rows) for rows in (1, 2, 16, 17, 128)) - first}
