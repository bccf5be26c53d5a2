"""Rows in shards drawn by the Triton kernels, under its interpreter, are those of the plain path; mistakes are seen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from platforms import needs_newest_triton, needs_triton
from test_triton_hostile import TOO_EARLY

PROCESS = Path(__file__).parent / "triton_shards.py"
pytestmark = [needs_triton, needs_newest_triton]

JOBS = (17, *range(8), 2000, 3000, 4000, 4002, 4013, 5000, 5001, 8500, 8505)
"""Programs of every filter that keeps a prefix, with edits and masks, of all shapes of logits; see
`triton_jobs.program_job`."""
SECOND_JOBS = (10000, 10001, 10003, 10008, 10010, 10015, 20000, 20001)
"""Programs with a top-p behind a second temperature. With `TOO_EARLY` it mostly does not end where it is looked for:
then it is looked for again."""
DYNAMIC_JOBS = (1002, 6002, 1003, 1026, 6000, 6001, 6504, 20002)
"""Programs with a dynamic temperature, alone, before and behind other filters."""
XTC_JOBS = (30002, 30013, 1000, 1001, 1018, 1031, 7007, 7010, 8001, 8003, 8019, 8022)
"""Programs with XTC: alone, behind filters, before a temperature, and with tokens that it spares."""
KINDS = {"prefixes": JOBS, "two temperatures": SECOND_JOBS, "dynamic temperatures": DYNAMIC_JOBS, "XTC": XTC_JOBS}
VIEWED = 100000
"""From this number on most rows of a job report logprobs."""
REPORTS = tuple(VIEWED + job for job in (17, 4002, 10002, 10010, 1002, 1026, 30002, 30013, 7007, 8019, 8022))
MISTAKES = {
    ("prefixes", "the histogram is that of one shard"): ("bins.sum(0, dtype=torch.int32)", "bins[0].clone()"),
    ("prefixes", "blocks lie in the order of ranks"): ("key=self.firsts.__getitem__", "key=int"),
    ("prefixes", "what other shards add to the sums is left out"): (
        " - sums[:, :LAWS]).sum(0)",
        " - sums[:, :LAWS])[0]",
    ),
    ("prefixes", "a mass in doubt stays so"): ("rows.row[:, _WHOLE] |= weighed.to(torch.int32)", "pass"),
    ("prefixes", "the listed logits of others are not there"): (
        "        x.view(torch.int32).scatter_(1, at, each)\n",
        "",
    ),
    ("prefixes", "the least key of the range is one shard's"): ("each[:, :, 1].amin(0)", "each[0, :, 1]"),
    ("prefixes", "a row that is bad elsewhere is drawn"): ("spoiled.amax(0)", "spoiled[0]"),
    ("prefixes", "the sample is one shard's"): ("self.comm.max(own.to(torch.int64))", "own.to(torch.int64)"),
    ("two temperatures", "a cut that is not where it likely is is taken for it"): (
        "count[:, 0, _WEIGHTY] < 0)",
        "count[:, 0, _WEIGHTY] < -1)",
    ),
    ("two temperatures", "nothing tells that a cut is not where it likely is"): (
        "    tl.store(count_ptr + WEIGHTY, tl.full((), -1, tl.int32))\n",
        "",
    ),
    ("two temperatures", "a second look is no surer"): ("is_certain=True", "is_certain=False"),
    ("dynamic temperatures", "sums are half of what they are"): (
        "rows.added[:, :_TERMS] += total[:, :_TERMS]",
        "rows.added[:, :_TERMS] += total[:, :_TERMS] // 2",
    ),
    ("dynamic temperatures", "the mass of a row that is summed is half of what it is"): (
        "_ALL_FIRST] = total[:, _TERMS]",
        "_ALL_FIRST] = total[:, _TERMS] // 2",
    ),
    ("dynamic temperatures", "places of no token are listed"): (
        "np.minimum(plan.meta[:, _LISTED], size)",
        "plan.meta[:, _LISTED]",
    ),
    ("XTC", "the head of what ties is that of all ties"): ("last_id = tl.maximum(last_id, 1)", "pass"),
    ("XTC", "tokens that XTC spares stand at their ids"): ("+= first * self.size - start", "+= 0"),
    ("XTC", "what XTC leaves is weighed without what it spares"): (
        "spared = is_spared(ids, kept,",
        "spared = is_spared(ids, ids < 0,",
    ),
    ("XTC", "tokens are not drawn with XTC off"): ("is_drawable = (left > 0) |", "is_drawable = (left > 0) &"),
    ("XTC", "what XTC leaves is that of one shard"): ("    if self.leaves:\n", "    if False:\n"),
    ("reports", "a token whose weight was cut is not told"): (
        "self.shard.comm.max(torch.where(mine, own, ABSENT))",
        "torch.where(mine, own, ABSENT)",
    ),
    ("reports", "the last token of a set is not in it"): ("+ int(is_last)", "+ 0"),
    ("reports", "a set with XTC counts from the set without"): (
        "        left.m = logit_of(self.word(told.BASIS, at=1))\n",
        "",
    ),
    ("reports", "what XTC spares is not reported"): ("(~gone if spared is None else ~gone | spared)", "~gone"),
}
"""Pieces of what draws, by the jobs one of which has to see what stands there instead."""
FIRST = [next(each for each in MISTAKES if each[0] == kind) for kind in (*KINDS, "reports")]
"""The mistakes that every run tries, one for each kind of job."""


def run(rows: int, jobs: tuple[int, ...], *pieces: tuple[str, str]) -> Any:
    command = [sys.executable, str(PROCESS), str(rows), json.dumps(jobs), json.dumps(pieces)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROCESS.parent, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def bytes_of(found: dict[str, int]) -> int:
    """What docs/sharding.md says that a shard contributes per row whose lists are empty."""
    blocks = found["blocks"]
    sums, left, rounds = 48 * found["sums"], (8 * blocks + 8) * found["leaves"], rounds_of(found)
    histogram, sample = (512, 512) if rounds > 3 else (0, 0)
    ends, tables, token = 3 * blocks + 1, 48 * blocks + 104, 8
    return sample + 8 * -(-(ends + histogram) // 2) + (tables if rounds > 2 else 0) + sums + left + token


def rounds_of(found: dict[str, int]) -> int:
    """The rounds of rows whose lists are empty: where sums or masses have to be added, there are filters."""
    further = found["sums"] + found["leaves"]
    return min(found["rounds"] - further, 4) + further


@pytest.mark.parametrize(("kind", "pieces"), [*((kind, ()) for kind in KINDS), ("two temperatures", (TOO_EARLY,))])
@pytest.mark.parametrize(
    ("rows", "every"), [pytest.param(50, 2, marks=pytest.mark.slow), pytest.param(200, 1, marks=pytest.mark.exhaustive)]
)
def test_hostile_rows_in_shards_are_drawn_as_whole_ones(
    kind: str, pieces: tuple[tuple[str, str], ...], rows: int, every: int
) -> None:
    jobs = KINDS[kind][::every]
    found = run(rows, jobs, *pieces)
    assert sum(each["differences"] for each in found) == 0, found
    assert sum(each["rows"] for each in found) >= rows * len(jobs) * 0.9
    assert {each["shards"] for each in found} >= ({1, 2, 3, 4} if every == 1 else {1, 3})
    for each in (each for each in found if each["rows"] and each["passes"] < 2):
        listed = each["rounds"] - rounds_of(each)
        assert listed in (0, 1), each
        assert (each["bytes"] > bytes_of(each)) == bool(listed), each
        assert listed or each["bytes"] == bytes_of(each), each


@pytest.mark.slow
def test_what_shards_weigh_beside_is_what_their_rows_need() -> None:
    prefixes, dynamic, xtc = (run(20, jobs) for jobs in (JOBS[:3], (1002, 6000), (30002, 30013)))
    second = run(20, SECOND_JOBS[:4], TOO_EARLY)
    assert all(each["sums"] == each["leaves"] == 0 and each["passes"] < 2 for each in prefixes)
    assert max(each["passes"] for each in second) == 2
    assert [each["sums"] for each in dynamic] == [1, 0]
    assert [each["leaves"] for each in xtc] == [0, 1]


@pytest.mark.parametrize(
    ("rows", "every"), [pytest.param(50, 2, marks=pytest.mark.slow), pytest.param(100, 1, marks=pytest.mark.exhaustive)]
)
def test_shards_report_what_whole_rows_do(rows: int, every: int) -> None:
    found = run(rows, REPORTS[::every])
    assert sum(each["differences"] for each in found) == 0, found
    assert sum(each["rows"] for each in found) >= rows * len(REPORTS[::every]) * 0.9


@pytest.mark.slow
def test_shards_where_kernels_run_are_sampled_as_whole_rows() -> None:
    # Five kernels on each of three shards, one of which has no tokens.
    assert run(1, ()) == [{"rows": 7, "differences": 0, "launches": 15}]


@pytest.mark.parametrize(
    ("kind", "mistake"),
    [pytest.param(*each, marks=pytest.mark.slow if each in FIRST else pytest.mark.exhaustive) for each in MISTAKES],
)
def test_mistakes_in_what_shards_exchange_are_seen(kind: str, mistake: str) -> None:
    beside = (TOO_EARLY,) if kind == "two temperatures" else ()
    found = run(100, (KINDS | {"reports": REPORTS})[kind], *beside, MISTAKES[kind, mistake])
    assert found[-1]["differences"] > 0
