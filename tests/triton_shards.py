"""Hostile rows in shards drawn by the Triton kernels under its interpreter, each checked against the plain path.

Run as a program, as Triton reads TRITON_INTERPRET when it is imported:
python triton_shards.py ROWS '[job, ...]' '[[right, wrong], ...]'. Prints what was compared as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any
from unittest.mock import patch

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import recorded_triton
import torch
import triton_process
from triton_jobs import Job, headed_job, likely_job, program_job, second_job

import tirage
from tirage import SamplingParams
from tirage.backends.groups import asked_of
from tirage.backends.numpy import distribution
from tirage.backends.sharded import shards
from tirage.backends.sharded.communicators import Metered, ThreadGroup
from tirage.backends.sharded.local_ids import localised
from tirage.backends.torch import as_logits, shard_reports, triton, triton_shards
from tirage.backends.torch.results import blank
from tirage.sampling_metadata import Drawn

ASKED: tuple[dict[str, Any], ...] = (
    {"top_p": 0.9, "temperature": 0.7},
    {"temperature": 0.0},
    {"top_k": 40, "min_p": 0.01, "logit_bias": {699: 9.0, 700: 9.0}},
    {"typical_p": 0.5, "logprobs": 1},
    {"top_p": 0.1, "min_keep": 5},
    {"top_p": 0.9, "logprobs": 2},
    {"xtc_probability": 1.0, "xtc_threshold": 0.05},
)
"""Requests that the kernels draw, tensor operations, or the first shard alone."""
SECOND, LIKELY, HEADED = 10000, 20000, 30000
"""Jobs from these numbers on are those of `second_job`, `likely_job` and `headed_job`."""
VIEWED = 100000
"""From this number on they are those that lie so far below, and most rows report logprobs."""
LAUNCHED = {"_MEASURE": "measure_shard", "_SETTLE": "settle_shards"} | {
    f"_{name.upper()}": name for name in ("weigh", "bound", "split", "resolve", "weigh_left", "draw_left")
}
"""The kernels by the names that they have where they are launched."""


class InTurn:
    """A kernel whose launches wait for each other, as the interpreter runs one at a time."""

    lock, launches = threading.Lock(), 0

    def __init__(self, kernel: Any) -> None:
        self._kernel, self.own = kernel, 0

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **options: Any) -> None:
            with self.lock:
                InTurn.launches, self.own = InTurn.launches + 1, self.own + 1
                self._kernel[grid](*args, **options)

        return launch


def changed(pieces: Sequence[Sequence[str]], folder: Path) -> ModuleType:
    """The module that draws shards, with pieces of its source, its reports' or the kernels' replaced.

    Its kernels run in turn. Each piece stands in one place.
    """
    sources = {module: Path(str(module.__file__)).read_text() for module in (shard_reports, triton_shards)}
    left = []
    for right, wrong in pieces:
        found = [module for module, source in sources.items() if right in source]
        assert [sources[module].count(right) for module in found] in ([], [1]), f"{right!r} stands more than once"
        left += [] if found else [(right, wrong)]
        for module in found:
            sources[module] = sources[module].replace(right, wrong)
    reports, draws = (executed(Path(str(module.__file__)), source) for module, source in sources.items())
    vars(draws)["ToldRows"] = reports.ToldRows
    with triton_process.changed(left, folder):
        package = sys.modules["kernels_0"]
    for name, kernel in LAUNCHED.items():
        setattr(draws, name, InTurn(getattr(package, kernel)))
    return draws


def executed(path: Path, source: str) -> ModuleType:
    """The module of a file, with other source."""
    module = ModuleType(f"changed_{path.stem}")
    sys.modules[module.__name__] = module
    exec(compile(source, str(path), "exec"), vars(module))
    return module


def job_of(number: int, rows: int) -> Job:
    """A job of any kind by its number."""
    if number >= VIEWED:
        return viewed(job_of(number - VIEWED, rows), np.random.default_rng(number))
    for start, job in ((HEADED, headed_job), (LIKELY, likely_job), (SECOND, second_job)):
        if number >= start:
            return job(number, rows)
    return program_job(number, rows)


def viewed(job: Job, r: np.random.Generator) -> Job:
    """The same job, most of whose rows report a view, with a top list and ids of their own."""
    count, size = job.rows.count, job.logits.shape[1]
    views = r.integers(0, 4, count).astype(np.int8)
    start = np.concatenate([[0], np.cumsum(np.where(views > 0, r.integers(0, 4, count), 0))]).astype(np.int64)
    asked = {
        "views": views,
        "top_n": np.where(views > 0, r.integers(0, 8, count), 0).astype(np.int32),
        "asked_start": start,
        "asked_ids": r.integers(0, size, int(start[-1])).astype(np.int32),
    }
    return replace(job, rows=replace(job.rows, **asked, memo={}))


def bounds_of(size: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """One to four shards of so many tokens, some of them without any, in any order."""
    cuts = np.sort(rng.integers(0, size + 1, int(rng.integers(0, 4)))).tolist()
    spans = list(pairwise([0, *cuts, size]))
    return [spans[at] for at in rng.permutation(len(spans))]


def compared(job: Job, draws: ModuleType, bounds: Sequence[tuple[int, int]]) -> dict[str, int]:
    """How many rows of a job the kernels drew, on how many shards, and how many differ on some of them.

    Beside what was exchanged, and how often each of them weighed sums, passed over rows, and weighed what XTC leaves.
    """
    x, rows = as_logits(job.logits), job.rows
    which = np.flatnonzero(draws.supports(rows))
    if not which.size:
        return {"rows": 0, "shards": 0, "differences": 0}
    expected = distribution.draw(x.numpy(), rows, Drawn.empty(rows), processes=job.processes)
    group = ThreadGroup(len(bounds))

    def draw(comm: Metered, start: int, stop: int) -> Drawn:
        part = x[:, start:stop].contiguous() if start < stop else torch.full((x.shape[0], 1), -torch.inf)
        out, (block, tile) = blank(rows, part), job.tiles
        with np.errstate(all="ignore"):
            own = localised(rows, start, stop)
            draws.draw_into(out, part, rows, own, which, comm=comm, bounds=bounds, block=block, tile=tile)
        to_numpy: Any = torch.Tensor.numpy
        return out.moved(to_numpy)

    comms = [Metered(comm) for comm in group.communicators()]
    counted = [getattr(draws, name) for name in ("_WEIGH", "_SPLIT", "_WEIGH_LEFT")]
    before = [kernel.own for kernel in counted]
    drawn = group.run([partial(draw, comm, *span) for comm, span in zip(comms, bounds, strict=True)])
    same, asked = np.ones(which.size, bool), 0
    for each in drawn:
        for name in (field.name for field in fields(Drawn) if field.name != "asked_logprobs"):
            right, given = (getattr(drawn, name)[which].reshape(which.size, -1) for drawn in (expected, each))
            same &= same_bits(right, given).all(axis=1)
        at = asked_of(rows, which)
        asked += int((~same_bits(expected.asked_logprobs[at], each.asked_logprobs[at])).sum())
    sums, passes, leaves = [(kernel.own - old) // len(bounds) for kernel, old in zip(counted, before, strict=True)]
    return {
        "rows": which.size,
        "shards": len(bounds),
        "sums": sums,
        "passes": passes,
        "leaves": leaves,
        "differences": int((~same).sum()) + asked,
        "rounds": comms[0].rounds,
        "bytes": comms[0].sent // which.size,
        "blocks": draws.Blocks.of(bounds, job.tiles[0]).most,
    }


def through_the_door() -> dict[str, int]:
    """`tirage.sample` of shards where the kernels run, of rows of each path, beside that of whole rows."""
    for name in LAUNCHED:
        setattr(triton_shards, name, InTurn(getattr(triton_shards, name)))
    x = np.random.default_rng(1).normal(0, 3, (len(ASKED), 1200)).astype(np.float32)
    asked = [SamplingParams(seed=row, **each) for row, each in enumerate(ASKED)]
    parts = [x[:, :700], x[:, 700:700], x[:, 700:]]
    with patch.object(shards, "kernels_for", lambda _: triton), np.errstate(all="ignore"):
        found = tirage.sample(shards.Shards(parts), asked, step=3)
    expected = tirage.sample(x, asked, step=3)
    same = np.ones(len(asked), bool)
    for name in ("token_ids", "sampled_logprobs", "support_sizes", "logprobs"):
        same &= same_bits(getattr(expected, name), np.asarray(getattr(found, name)))
    return {"rows": len(asked), "differences": int((~same).sum()), "launches": InTurn.launches}


def same_bits(expected: np.ndarray, actual: np.ndarray) -> np.ndarray:
    """Where two arrays of any shape have the same bits; all NaN are one."""
    same = (expected == actual) & (np.signbit(expected) == np.signbit(actual))
    return same | ((expected != expected) & (actual != actual))


def main() -> None:
    """Print what jobs compared, with so many rows each, up to one that differs where pieces are changed."""
    recorded_triton.install()
    torch.set_num_threads(1)
    rows, jobs, pieces = int(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
    found = [] if jobs else [through_the_door()]
    with TemporaryDirectory() as name:
        draws = changed(pieces, Path(name))
        for number in jobs:
            job = job_of(number, rows)
            bounds = bounds_of(job.logits.shape[1], np.random.default_rng(number))
            found.append(compared(job, draws, bounds))
            if pieces and found[-1]["differences"]:
                break
    print(json.dumps(found))


if __name__ == "__main__":
    main()
