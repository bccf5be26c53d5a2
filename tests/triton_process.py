"""Hostile rows drawn by the Triton kernels under its interpreter, each checked against the plain path.

Run as a program, as Triton reads TRITON_INTERPRET when it is imported; prints what each job compared as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import recorded_triton
import torch
from numpy.typing import NDArray
from preset_rows import requests, states
from random_rows import EDGES, SHAPES, Pile, logits_rows, random_filters, rows_of, varied

from tirage.backends.numpy import distribution
from tirage.backends.torch import as_logits, kernels, triton
from tirage.backends.torch.dispatch import draw_on_device
from tirage.operators.row import Process, RowState
from tirage.operators.top_p import TOP_P
from tirage.sampling_batch import SamplingBatch
from tirage.sampling_metadata import Drawn, SamplingMetadata
from tirage.semantics import PRESETS

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 50, 63, 64, 65, 97, 128, 200, 257, 300)
TILES = ((4, 8), (16, 32), (8, 4), (16, 64), (64, 128))
"""Pairs of BLOCK and TILE: several of both in most rows, and vocabularies on either side of their bounds."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Rows to draw: logits [B, V] of some dtype, and the sizes of the kernels' blocks and tiles."""

    logits: torch.Tensor
    rows: SamplingMetadata
    processes: tuple[Process | None, ...] | None = None
    tiles: tuple[int, int]


def program_job(number: int, rows: int) -> Job:
    """One random order of the kernels' filters, with other operands, edits and a mask in each row."""
    r = np.random.default_rng(number)
    size, program = SIZES[number % len(SIZES)], random_filters(r, kernels.FILTERS)
    pile, programs = Pile(size), []
    for _ in range(rows):
        pile.history(r)
        programs.append((pile.edits(r) if r.random() < 0.3 else []) + varied(program, r, options=True))
    masks = r.integers(-(2**31), 2**31, (rows, -(-size // 32))).astype(np.int32)
    masks[r.random(rows) < 0.7] = -1
    return Job(
        logits=_logits(r, rows, size, number),
        rows=rows_of(programs, r, pile, masks=masks),
        tiles=TILES[number % len(TILES)],
    )


def preset_job(number: int, times: int) -> Job:
    """Every parameter of a preset at each of its values, with and without logprobs, over so many logits."""
    r = np.random.default_rng(number)
    semantics = PRESETS[sorted(PRESETS)[number % len(PRESETS)]]
    params = [params for params in requests(semantics) for _ in range(times)]
    size = (33, 97)[number // len(PRESETS) % 2]
    batch = SamplingBatch.of(states(params, size), size)
    packed = batch.metadata(None)
    seeds = r.integers(-(2**63), 2**63 - 1, len(params))
    return Job(
        logits=_logits(r, len(params), size, number),
        rows=replace(packed, seeds=seeds),
        processes=batch.processes,
        tiles=TILES[number % len(TILES)],
    )


def bound_job(number: int, rows: int) -> Job:
    """The same as `program_job`, where the share of a top-p and the uniform stand at the bound of a token.

    The uniform, the row's seed here, is the least that draws a token, or the one below.
    """
    r, job = np.random.default_rng(number), program_job(number, rows)
    x, programs = as_logits(job.logits).numpy(), job.rows.programs.copy()
    seeds = np.zeros(rows, np.uint64)
    for row in range(rows):
        request = distribution.request_of(x, job.rows, row)
        steps = list(request.steps)
        for at, step in enumerate(steps):
            if step.op == TOP_P:
                before = replace(request, steps=steps[:at]).run(coin=False)
                programs[row, at, 1] = _share_at_bound(before, r) if before.status == 0 else step.a
                steps[at] = step._replace(a=int(programs[row, at, 1]))
        seeds[row] = _uniform_at_bound(replace(request, steps=steps).run(coin=False), r)
    return replace(job, rows=replace(job.rows, programs=programs, seeds=seeds.view(np.int64)))


def _share_at_bound(row: RowState, r: np.random.Generator) -> int:
    """A share of top-p, in units of 2^-32, whose part of the row's mass is a prefix's mass and less than 1 above it.

    Where there is none, one just above or below a prefix's mass.
    """
    reached = r.permutation(np.cumsum(row.w()[row.ranked()])).tolist()
    total = max(reached)
    for mass in reached:
        share = (((mass + 1) << 32) - 1) // total
        if share * total > mass << 32 and share < 1 << 32:
            return share
    return min(max(-(-(reached[0] << 32) // total) - int(r.integers(2)), 1), (1 << 32) - 1)


def _uniform_at_bound(row: RowState, r: np.random.Generator) -> int:
    if row.status:
        return 0
    reached = np.cumsum(row.w())
    least = -(-(int(r.choice(reached)) << 64) // int(reached[-1]))
    return min(max(least - int(r.integers(2)), 0), (1 << 64) - 1)


def _logits(r: np.random.Generator, rows: int, size: int, number: int) -> torch.Tensor:
    logits = torch.from_numpy(logits_rows(r, rows, size, SHAPES | EDGES))
    return logits.to(DTYPES[number % len(DTYPES)])


class Tiled:
    """The kernels with blocks and tiles of these sizes, as `draw_on_device` takes them; counts the rows they draw."""

    def __init__(self, tiles: tuple[int, int]) -> None:
        self.block, self.tile = tiles
        self.drawn = 0

    supports = staticmethod(triton.supports)

    def draw_into(self, out: Drawn, logits: torch.Tensor, rows: SamplingMetadata, which: NDArray[np.int64]) -> None:
        self.drawn += which.size
        triton.draw_into(out, logits, rows, which, block=self.block, tile=self.tile)


def compared(job: Job) -> dict[str, int]:
    """How many rows were drawn, how many of them by the kernels, and how many differ in a bit."""
    x, tiled = as_logits(job.logits), Tiled(job.tiles)
    stand_in: Any = tiled
    with np.errstate(all="ignore"):
        expected = distribution.draw(x.numpy(), job.rows, Drawn.empty(job.rows), processes=job.processes)
        drawn = draw_on_device(x, job.rows, job.processes, kernels=stand_in).moved(torch.Tensor.numpy)
    same = np.ones(job.rows.count, bool)
    for name in {field.name for field in fields(Drawn)} - {"asked_logprobs"}:
        same &= _same(getattr(expected, name), getattr(drawn, name)).reshape(same.size, -1).all(axis=1)
    asked = int((~_same(expected.asked_logprobs, drawn.asked_logprobs)).sum())
    return {"rows": same.size, "by kernels": tiled.drawn, "differences": int((~same).sum()) + asked}


def _same(expected: NDArray, actual: NDArray) -> NDArray[np.bool_]:
    """Where two arrays have the same bits; all NaN are one."""
    same = (expected == actual) & (np.signbit(expected) == np.signbit(actual))
    return same | ((expected != expected) & (actual != actual))


# --- changed kernels --------------------------------------------------------------------------------------------------

SEED_AS_UNIFORM = ("return (a.to(tl.uint64) << 32) | b.to(tl.uint64)", "return seed.to(tl.uint64)")


@contextmanager
def changed(pieces: Sequence[Sequence[str]], folder: Path) -> Iterator[None]:
    """The kernels with pieces of their source replaced."""
    path = folder / f"kernels_{len(list(folder.iterdir()))}.py"
    path.write_text(_replaced(Path(str(kernels.__file__)).read_text(), pieces))
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = module_from_spec(spec)
    spec.loader.exec_module(module)
    with ExitStack() as stack:
        for name, kernel in {"_MEASURE": module.measure, "_WEIGH": module.weigh, "_SELECT": module.select}.items():
            stack.enter_context(patch.object(triton, name, kernel))
        yield


def _replaced(source: str, pieces: Sequence[Sequence[str]]) -> str:
    for right, wrong in pieces:
        assert source.count(right) == 1, f"{right!r} stands {source.count(right)} times in the kernels"
        source = source.replace(right, wrong)
    return source


def at_programs(jobs: Sequence[int], rows: int, pieces: Sequence[Sequence[str]], folder: Path) -> list[dict[str, int]]:
    with changed(pieces, folder):
        return [compared(program_job(number, rows)) for number in jobs]


def at_bounds(jobs: Sequence[int], rows: int, pieces: Sequence[Sequence[str]], folder: Path) -> list[dict[str, int]]:
    """The same where both paths take a row's seed for its uniform."""
    seed = patch.object(distribution, "uniform64", lambda seed, *_: seed % (1 << 64))
    with changed([SEED_AS_UNIFORM, *pieces], folder), seed:
        return [compared(bound_job(number, rows)) for number in jobs]


def main() -> None:
    """Print what jobs of a kind compared, with so many rows each; a mistake comes from the standard input."""
    kind, rows, *jobs = sys.argv[1], *map(int, sys.argv[2:])
    recorded_triton.install()
    torch.set_num_threads(1)
    with TemporaryDirectory() as name:
        folder = Path(name)
        results: dict[str, Callable[[], list[dict[str, int]]]] = {
            "programs": lambda: at_programs(jobs, rows, [], folder),
            "bounds": lambda: at_bounds(jobs, rows, [], folder),
            "presets": lambda: [compared(preset_job(number, rows)) for number in jobs],
        }
        if kind == "mistake":
            mistake = [json.load(sys.stdin)]
            print(json.dumps(at_bounds(jobs, rows, mistake, folder) + at_programs(jobs, rows, mistake, folder)))
        else:
            print(json.dumps(results[kind]()))


if __name__ == "__main__":
    main()
