"""Logprobs of hostile rows by the Triton kernels under its interpreter, each checked against the plain path.

What was drawn is reported in the views that follow from the draw: that of the law, and the `processed` one. Run as a
program; prints what each job compared as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import recorded_triton
import torch
from numpy.typing import NDArray
from triton_jobs import Job, program_job, set_job
from triton_process import Compared, changed

from tirage.backends.numpy import distribution, plain
from tirage.backends.torch import as_logits, plan, told, triton
from tirage.backends.torch.device import launches
from tirage.backends.torch.device.row_form import _scale_of
from tirage.backends.torch.edits import edited
from tirage.backends.torch.plan import LAW, LAWS, DrawPlan, smooths_last
from tirage.sampling_metadata import Drawn, SamplingMetadata, View

MOST, ASKED = 5, 6
"""First candidates that a row lists at most, and tokens that it names."""
SETS_FROM = 100_000
"""Jobs from that number on are those of rows that are all drawn as sets, with any filters."""


def viewed(number: int, rows: int) -> Compared:
    """How many rows reported something, how many of them differ, and how many have laws of each kind."""
    sets = number >= SETS_FROM
    with patch.object(plan, "can_run", lambda programs: np.zeros(len(programs), bool)) if sets else patch.dict({}):
        job = set_job(number - SETS_FROM, rows) if sets else program_job(number, rows)
        asked = _asking(job, np.random.default_rng(number))
        with np.errstate(all="ignore"):
            expected = distribution.draw(as_logits(job.logits).numpy(), asked, Drawn.empty(asked))
            told_of, kept, found = _reported(job, asked)
    there = expected.status == 0
    differs = np.zeros(rows, bool)
    named = expected.asked_logprobs.reshape(rows, ASKED)
    wanted = (expected.logprobs, expected.ranks, expected.top_ids, expected.top_logprobs, named)
    for one, other in zip(wanted, found, strict=True):
        one, other = one.reshape(rows, -1), other.numpy().reshape(rows, -1)[:, : one.reshape(rows, -1).shape[1]]
        same = (one == other) & (np.signbit(one) == np.signbit(other)) | (one != one) & (other != other)
        differs |= ~same.all(axis=1)
    is_sampled = there & (asked.views == View.SAMPLED)
    law = told_of[:, LAWS : LAWS + LAW]
    return {
        "rows": int(there.sum()),
        "differences": int((differs & there).sum()),
        "sampled": int(is_sampled.sum()),
        "mixed": int((is_sampled & (told_of[:, told.SHARE] >= 0)).sum()),
        "listed": int((is_sampled & (law[:, told.IS_LISTED] != 0)).sum()),
        "cut": int((is_sampled & (law[:, told.TRIMMED] >= 0)).sum()),
        "by adaptive-p": int((is_sampled & (law[:, told.TARGET] >= 0)).sum()),
        "marked": int(kept[there].any(axis=1).sum()) if kept.size else 0,
    }


def _asking(job: Job, r: np.random.Generator) -> SamplingMetadata:
    """The job's rows, each of which reports something."""
    count, size = job.logits.shape
    return replace(
        job.rows,
        views=np.where(r.random(count) < 0.8, View.SAMPLED, View.PROCESSED).astype(np.int8),
        top_n=r.integers(0, MOST + 1, count).astype(np.int32),
        asked_start=np.arange(count + 1, dtype=np.int64) * ASKED,
        asked_ids=r.integers(0, size, count * ASKED).astype(np.int32),
    )


def _reported(job: Job, asked: SamplingMetadata) -> tuple[NDArray[np.int64], NDArray[np.uint8], tuple[Any, ...]]:
    """(what the kernels told of the laws, their marks, what they reported)."""
    x, rows = as_logits(job.logits), job.rows
    early = ~smooths_last(rows.programs)
    state, drawing = edited(x, rows, early), DrawPlan.of(asked).without_smoothing(early)
    filters = [[step for step in plain.steps_of(program) if step.op] for program in rows.programs]
    scale = np.stack([_scale_of(View(view), steps) for view, steps in zip(asked.views, filters, strict=True)])
    count, size = x.shape
    tables = (torch.from_numpy(asked.views.astype(np.int64)[:, None]), torch.from_numpy(scale),
              torch.from_numpy(asked.top_n.astype(np.int64)[:, None]),
              torch.from_numpy(asked.asked_ids.reshape(count, ASKED)))  # fmt: skip
    slots, kept = torch.arange(count), torch.empty(count, size, dtype=torch.uint8)
    beside = replace(triton._beside(rows, x, tells=bool(drawing.set_needs)), slots=slots, scale=tables[1], kept=kept)
    seen: list[Any] = []

    def drawn(x: torch.Tensor, meta: torch.Tensor, work: Any, beside: Any) -> Any:
        seen.extend((x, work.added))
        return right(x, meta, work, beside)

    right, (block, tile) = triton.drawn, job.tiles
    with patch.object(triton, "drawn", drawn):
        token, _, _, status = triton.launch(
            *(state.x, state.bad, torch.from_numpy(drawing.meta)), **drawing.needs, beside=beside, block=block,
            tile=tile,
        )  # fmt: skip
    wide = {"most": MOST, "asked": ASKED, "mixes": True, "block": block}
    return seen[1].numpy(), kept.numpy(), launches.report(
        x, seen[0], seen[1], kept, token, status, slots, tables, **wide
    )  # fmt: skip


def viewed_until_seen(
    jobs: Sequence[int], rows: int, pieces: Sequence[Sequence[str]], folder: Path
) -> Iterator[Compared]:
    """What jobs compared with pieces of the kernels replaced, where there are some up to the first that differs."""
    with changed(pieces, folder):
        for number in jobs:
            yield (found := viewed(number, rows))
            if pieces and found["differences"]:
                return


def main() -> None:
    """Print what jobs compared, with so many rows each; pieces of the kernels come from the standard input."""
    rows, *jobs = map(int, sys.argv[1:])
    recorded_triton.install()
    torch.set_num_threads(1)
    with TemporaryDirectory() as name:
        print(json.dumps([*viewed_until_seen(jobs, rows, json.load(sys.stdin), Path(name))]))


if __name__ == "__main__":
    main()
