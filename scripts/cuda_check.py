"""Checks the torch paths on this machine's GPU, then times them; writes benchmarks/results/cuda-<gpu>.json.

Conformance first: random programs over logits of every awkward shape (paths "triton", "shards" and "eager") and every
parameter of every preset (path "presets"), every field of every draw against the NumPy backend, which the tests hold to
the executable specification. Then a batch whose rows lie on the device (`cuda_batch.py`): random lives, a compiled
step, a CUDA graph, steps that wait for nothing. Then microseconds per call against one read of the logits, a sort-based
sampler in torch, and FlashInfer where it is installed. Ends with status 1 if one bit differs.

    python scripts/cuda_check.py                                    # a CUDA device, 1,000,000 draws of each path
    python scripts/cuda_check.py --device cpu --interpret --draws 8 --sizes 5 --no-speed --out check.json
    python scripts/cuda_check.py --dry                              # the same in short, on the CPU, nothing written
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

from benchmarks import harness  # noqa: E402
from scripts import cuda_batch  # noqa: E402
from tirage.operators.row import Process  # noqa: E402
from tirage.sampling_metadata import Drawn, SamplingMetadata  # noqa: E402

PATHS = ("triton", "shards", "eager", "presets", "batch")
SIZES = (1, 33, 1000, 5000, 32000)
SHAPES = ((1, 32000), (1, 128256), (64, 128256), (256, 128256))
CONFIGS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.8},
    "top_p": {"top_p": 0.95},
    "top_k": {"top_k": 50},
    "top_k and top_p": {"top_k": 50, "top_p": 0.95},
    "min_p": {"min_p": 0.05},
    "greedy": {"temperature": 0.0},
}


def main() -> int:
    """0 when every bit agreed."""
    options = _options()
    if options.interpret:
        os.environ["TRITON_INTERPRET"] = "1"
    if options.dry:
        options.device, options.draws, options.sizes, options.speed, options.lives = "cpu", 8, [5], False, 3
        os.environ["TRITON_INTERPRET"], options.interpret = "1", True
    device = torch.device(options.device)
    results: dict[str, Any] = {"device": _name(device), "torch": torch.__version__}
    results["conformance"] = [_conformance(path, device, options) for path in options.paths if path != "batch"]
    results["batch"] = cuda_batch.checks(device, options.lives) if "batch" in options.paths else []
    if options.speed:
        results["speed"] = _speed(device, [tuple(shape) for shape in options.shapes], options.rounds)
    results["not measured"] = _not_measured(device, options)
    print(json.dumps(results["conformance"] + results["batch"]))
    if not options.dry:
        _write(options.out or harness.RESULTS / f"cuda-{_name(device).replace(' ', '-')}.json", results)
    return int(any(part["differences"] for part in results["conformance"] + results["batch"]))


def _write(out: Path, results: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--interpret", action="store_true", help="run the Triton kernels under its interpreter")
    parser.add_argument("--paths", nargs="+", choices=PATHS, default=list(PATHS), help="what to compare with NumPy")
    parser.add_argument("--draws", type=int, default=1_000_000, help="draws to compare, for each path")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="vocabulary sizes to draw from")
    parser.add_argument("--no-speed", dest="speed", action="store_false")
    parser.add_argument("--shapes", type=_shape, nargs="+", default=list(SHAPES), help="BxV to time, as 64x128256")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--lives", type=int, default=100, help="random lives of a batch on the device")
    parser.add_argument("--dry", action="store_true", help="all that a CPU can do of this, in a minute")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def _shape(text: str) -> tuple[int, int]:
    batch, _, vocab = text.partition("x")
    return int(batch), int(vocab)


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _not_measured(device: torch.device, options: argparse.Namespace) -> list[str]:
    missing = [] if options.speed and device.type == "cuda" else ["speed on a GPU"]
    missing += [] if find_spec("flashinfer") and device.type == "cuda" else ["FlashInfer"]
    return missing + [f"conformance of {path}" for path in PATHS if path not in options.paths]


# --- conformance --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Rows to draw on the device and on the host."""

    logits: NDArray[np.float32]
    rows: SamplingMetadata
    processes: tuple[Process | None, ...] | None = None

    def repeated(self, times: int) -> Job:
        """Each row `times` times; the copies differ by their seeds once they are `reseeded`."""
        from tirage.backends.groups import taken

        which = np.tile(np.arange(self.rows.count), times)
        processes = None if self.processes is None else tuple(self.processes[r] for r in which)
        return Job(logits=self.logits[which], rows=taken(self.rows, which), processes=processes)

    def reseeded(self, seed: int) -> Job:
        """The same rows with other uniforms."""
        random = np.random.default_rng(seed)
        return replace(self, rows=replace(self.rows, seeds=random.integers(-(2**63), 2**63 - 1, self.rows.count)))


def _conformance(path: str, device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    """How many draws of one path were compared, and how many entries of their fields differed."""
    # Under the interpreter a row takes a tenth of a second; on a device many rows cost as much as one.
    few = min(12, options.draws) if options.interpret else None
    jobs = _preset_jobs(options.sizes, few) if path == "presets" else _random_jobs(path, options.sizes, few or 8)
    drawn = differences = seed = 0
    while drawn < options.draws:
        job = next(jobs)
        for _ in range(1 if few else 8):
            seed += 1
            many = job if few else job.repeated(max(1, 2048 // job.rows.count)).reseeded(seed)
            differences += _differences(path, many, device)
            drawn += many.rows.count
    return {"path": path, "draws": drawn, "differences": differences, "sizes": options.sizes}


def _random_jobs(path: str, sizes: list[int], batch: int) -> Iterator[Job]:
    from random_rows import FILTERS, random_case

    from tirage.backends.groups import taken
    from tirage.backends.torch import filters, kernels, triton, triton_shards

    runs = {"triton": triton.supports, "shards": triton_shards.supports}
    ops = [op for op in FILTERS if op in (filters.STEPS if path == "eager" else kernels.FILTERS)]
    seed = 0
    while True:
        for size in sizes:
            logits, rows = random_case(seed, size, batch, ops=ops, reports=path == "eager")
            # Not everything that the kernels run they run together.
            able = np.flatnonzero(runs[path](rows)) if path in runs else np.arange(rows.count)
            if able.size:
                yield Job(logits=logits[able], rows=taken(rows, able))
            seed += 1


def _preset_jobs(sizes: list[int], batch: int | None) -> Iterator[Job]:
    """Rows of every request of every preset, or of `batch` of them at a time."""
    from preset_rows import every_request, states
    from random_rows import logits_rows

    from tirage.sampling_batch import SamplingBatch

    requests, random = every_request(), np.random.default_rng(0)
    while True:
        for size in (max(size, 33) for size in sizes):
            some = random.permutation(len(requests))[:batch]
            frame = SamplingBatch.of(states([requests[at] for at in some], size), size)
            yield Job(logits=logits_rows(random, some.size, size), rows=frame.metadata(None), processes=frame.processes)


def _differences(path: str, job: Job, device: torch.device) -> int:
    from tirage.backends.numpy.dispatch import draw_rows

    # The interpreter computes with NumPy, which would warn of the overflows that the rule saturates.
    with np.errstate(all="ignore"):
        expected = draw_rows(job.logits, job.rows, job.processes)
        drawn = _draw(path, job, torch.from_numpy(job.logits).to(device))
    host = drawn.moved(lambda tensor: tensor.cpu().numpy())  # pyright: ignore[reportAttributeAccessIssue]
    return sum(_different(getattr(expected, f.name), getattr(host, f.name)) for f in fields(Drawn))


def _draw(path: str, job: Job, x: torch.Tensor) -> Drawn:
    from tirage.backends.torch import dispatch, eager, results, triton

    if path == "presets":
        return dispatch.draw_on_device(x, job.rows, job.processes, kernels=triton)
    if path == "shards":
        return _in_shards(job, x, 1 if x.is_cpu else 2)
    out, which = results.blank(job.rows, x), np.arange(job.rows.count)
    if path == "eager":
        eager.draw_into(out, x, job.rows, which)
    elif x.shape[1] <= 1000:
        triton.draw_into(out, x, job.rows, which, block=64, tile=256)
    else:
        triton.draw_into(out, x, job.rows, which)
    return out


def _in_shards(job: Job, x: torch.Tensor, number: int) -> Drawn:
    """What shards on one device draw, each in a thread; under the interpreter, which has only one, one shard."""
    from tirage.backends.sharded.communicators import ThreadGroup
    from tirage.backends.sharded.local_ids import localised
    from tirage.backends.torch import results, triton_shards

    group, which = ThreadGroup(number), np.arange(job.rows.count)
    ends = [x.shape[1] * at // number for at in range(number + 1)]
    bounds = list(pairwise(ends))

    def draw(comm: Any, start: int, stop: int) -> Drawn:
        part = x[:, start:stop].contiguous()
        out = results.blank(job.rows, part)
        own = localised(job.rows, start, stop)
        triton_shards.draw_into(out, part, job.rows, own, which, comm=comm, bounds=bounds)
        return out

    work = [partial(draw, comm, *span) for comm, span in zip(group.communicators(), bounds, strict=True)]
    return group.run(work)[0]


def _different(expected: NDArray, actual: NDArray) -> int:
    """How many entries differ in a bit; all NaN are one."""
    same = (expected == actual) & (np.signbit(expected) == np.signbit(actual))
    return int((~(same | (np.isnan(expected) & np.isnan(actual)))).sum())


# --- speed --------------------------------------------------------------------------------------------------------


def _speed(device: torch.device, shapes: list[tuple[int, int]], rounds: int) -> list[dict[str, Any]]:
    """Median microseconds of one call, rounds of all candidates interleaved, for each shape and configuration."""
    rows = []
    for batch, vocab in shapes:
        for shape in ("peaked", "medium", "flat"):
            x = torch.from_numpy(harness.logits(shape, batch, vocab)).to(device)
            for name, options in CONFIGS.items():
                jobs = {key: _waiting(job, device) for key, job in _candidates(x, options).items()}
                seconds = harness.interleaved(jobs, rounds=rounds, clock=time.perf_counter)
                times = {f"us_{key}": round(value * 1e6, 1) for key, value in seconds.items()}
                rows.append({"config": name, "shape": shape, "B": batch, "V": vocab, **times})
    return rows


def _candidates(x: torch.Tensor, options: dict[str, Any]) -> dict[str, Callable[[], object]]:
    import tirage

    batch = tirage.Batch(x.shape[1], x.shape[0], like=x)
    for row in range(x.shape[0]):
        batch.add(tirage.SamplingParams(**options, seed=row))
    jobs: dict[str, Callable[[], object]] = {
        "one_read": x.sum,
        "tirage": lambda: batch.sample(x),
        "step": lambda: batch.advance(batch.sample(x)),
        "torch_sort": lambda: _by_sorting(x, options),
    }
    if x.device.type == "cuda":
        jobs["graph"] = cuda_batch.captured(x, options)
    if find_spec("flashinfer") and x.device.type == "cuda" and options.get("temperature") != 0.0:
        jobs["flashinfer"] = lambda: _by_flashinfer(x, options)
    return jobs


def _by_sorting(x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    """The usual torch sampler: sort, cumulative softmax, multinomial."""
    temperature = options.get("temperature", 1.0)
    if temperature == 0.0:
        return x.argmax(-1)
    values, ids = torch.sort(x / temperature, dim=-1, descending=True)
    p = values.softmax(-1)
    rank = torch.arange(x.shape[1], device=x.device)
    out = (p.cumsum(-1) - p > options.get("top_p", 1.0)) | (rank >= options.get("top_k", x.shape[1]))
    out |= p < p[:, :1] * options.get("min_p", 0.0)
    return ids.gather(-1, torch.multinomial(p.masked_fill(out, 0.0), 1))


def _by_flashinfer(x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    """FlashInfer's own order of calls: softmax with the temperature, then its sampler for these filters."""
    peer: Any = import_module("flashinfer.sampling")
    p = (x / options.get("temperature", 1.0)).softmax(-1)
    if "min_p" in options:
        return peer.min_p_sampling_from_probs(p, options["min_p"])
    if "top_k" in options and "top_p" in options:
        return peer.top_k_top_p_sampling_from_probs(p, options["top_k"], options["top_p"])
    if "top_k" in options:
        return peer.top_k_sampling_from_probs(p, options["top_k"])
    return peer.top_p_sampling_from_probs(p, options["top_p"]) if "top_p" in options else peer.sampling_from_probs(p)


def _waiting(job: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """`job`, done when the device is."""

    def run() -> None:
        job()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run


if __name__ == "__main__":
    sys.exit(main())
