"""Rows in shards drawn by the Triton kernels, under its interpreter, are those of the plain path; mistakes are seen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from platforms import needs_newest_triton, needs_triton

PROCESS = Path(__file__).parent / "triton_shards.py"
pytestmark = [needs_triton, needs_newest_triton]

JOBS = (*range(8), 1000, 2000, 3000, 4000, 4002, 4013, 5000, 5001, 8500, 8505)
"""Programs of every filter that keeps a prefix, at one temperature or more, with edits and masks, of all shapes of
logits; see `triton_jobs.program_job`."""
MISTAKES = {
    "the histogram is that of one shard": ("bins.sum(0, dtype=torch.int32)", "bins[0].clone()"),
    "blocks lie in the order of ranks": ("key=self.firsts.__getitem__", "key=int"),
    "what other shards add to the sums is left out": (" - sums[:, :LAWS]).sum(0)", " - sums[:, :LAWS])[0]"),
    "a mass in doubt stays so": ("rows.row[:, _WHOLE] |= weighed.to(torch.int32)", "pass"),
    "the listed logits of others are not there": ("        x.view(torch.int32).scatter_(1, at, each)\n", ""),
    "the least key of the range is one shard's": ("each[:, :, 1].amin(0)", "each[0, :, 1]"),
    "a row that is bad elsewhere is drawn": ("spoiled.amax(0)", "spoiled[0]"),
    "the sample is one shard's": ("self.comm.max(own.to(torch.int64))", "own.to(torch.int64)"),
}


def run(rows: int, jobs: tuple[int, ...], *pieces: tuple[str, str]) -> Any:
    command = [sys.executable, str(PROCESS), str(rows), json.dumps(jobs), json.dumps(pieces)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROCESS.parent, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def bytes_of(found: dict[str, int]) -> int:
    """What docs/sharding.md says that a shard contributes per row; lists come on top, in a fifth round."""
    blocks, rounds = found["blocks"], found["rounds"]
    ends, tables, token = 3 * blocks + 1, 48 * blocks + 104, 8
    histogram, sample = (512, 512) if rounds > 3 else (0, 0)
    listed = 0 if rounds < 5 else found["bytes"] - bytes_of({**found, "rounds": 4})
    assert rounds < 5 or listed > 0
    return sample + 8 * -(-(ends + histogram) // 2) + (tables if rounds > 2 else 0) + listed + token


@pytest.mark.slow
def test_hostile_rows_in_shards_are_drawn_as_whole_ones() -> None:
    found = run(200, JOBS)
    assert sum(each["differences"] for each in found) == 0, found
    assert sum(each["rows"] for each in found) >= 1500
    assert {each["shards"] for each in found} >= {1, 2, 3, 4}
    for each in found:
        assert each["differences"] or each["rows"] == 0 or each["bytes"] == bytes_of(each), each


@pytest.mark.slow
def test_shards_where_kernels_run_are_sampled_as_whole_rows() -> None:
    # Five kernels on each of three shards, one of which has no tokens.
    assert run(1, ()) == [{"rows": 7, "differences": 0, "launches": 15}]


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_what_shards_exchange_are_seen(mistake: str) -> None:
    found = run(100, JOBS, MISTAKES[mistake])
    assert found[-1]["differences"] > 0
