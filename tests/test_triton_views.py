"""Logprobs of hostile rows in the views that follow from a draw: those of the plain path; mistakes there are seen."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from platforms import needs_newest_triton, needs_triton

PROCESS = Path(__file__).parent / "triton_views.py"
pytestmark = [needs_triton, needs_newest_triton]

ROWS, JOBS = 700, 8
"""Rows of a job, each with an order of filters of its own, and jobs of a process."""
SMALL_JOBS = (1000, 7010, 100_002, 100_003, 100_010, 1006, 100_028, 100_052, 100_039)
"""Jobs that reach each kind of law: drawn by passes and, from 100,000 on, as sets."""
MISTAKES = {
    "a set has no beginning": (
        "(is_before(key, ids, first_key, first_id) == 0)",
        "(is_before(key, ids, 0x7F800000, 0) == 0)",
    ),
    "marks are not looked at": ("if word(law_ptr, IS_LISTED) != 0:", "if word(law_ptr, IS_LISTED) < 0:"),
    "both sets have the marks of the first": ("& bit) != 0)", "& 1) != 0)"),
    "marks of another draw stay": ("tl.store(kept_ptr + at, marked.to(tl.uint8), mask=at < keeps)", "pass"),
    "what is drawn without XTC is not marked": ("at < tl.where(is_mixed, keeps, 0))", "at < 0)"),
    "what XTC leaves is not marked": ("tl.store(kept_ptr + ids, (before | by)", "tl.store(kept_ptr + ids, before"),
    "weights count from the largest logit that is left": (
        "m, total = largest_of(sums_ptr), mass_of(sums_ptr)",
        "total = mass_of(sums_ptr)",
    ),
    "a cut weight is whole": ("(trimmed >= 0) & (ids == trimmed)", "(trimmed < -1) & (ids == trimmed)"),
    "XTC is as often off as on": (
        "point = high + (point >> 32) * on_share",
        "point = high + (point >> 32) * off_share",
    ),
    "what XTC always removes can be drawn": ("(point > 0) & (off_share > 0)", "(point > 0)"),
    "new weights are those before": (
        "| (word(sums_ptr + LAWS, TARGET) >= 0)",
        "| (word(sums_ptr + LAWS, TARGET) < -1)",
    ),
}
"""A piece of the kernels, and a wrong one in its place."""


def started(jobs: Iterable[int], rows: int, given: Any) -> subprocess.CompletedProcess[str]:
    """`triton_views.py` after jobs with so many rows each."""
    command = [sys.executable, str(PROCESS), str(rows), *map(str, jobs)]
    return subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=False)


def counted(jobs: Iterable[int], rows: int) -> Counter[str]:
    """What jobs compared, all together."""
    done = started(jobs, rows, [])
    assert done.returncode == 0, done.stderr
    return sum(map(Counter[str], json.loads(done.stdout)), Counter[str]())


@pytest.mark.slow
def test_logprobs_of_hostile_rows_are_those_of_the_plain_path() -> None:
    found = counted(SMALL_JOBS, 40)
    assert found["differences"] == 0
    assert min(found[kind] for kind in ("mixed", "listed", "cut", "by adaptive-p", "marked")) > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", [0, 1000, 7000, 100_000, 100_008, 100_016, 100_024, 106_000])
def test_logprobs_of_thousands_of_hostile_rows_are_those_of_the_plain_path(first: int) -> None:
    found = counted(range(first, first + JOBS), ROWS)
    assert found["differences"] == 0
    assert found["rows"] > JOBS * ROWS // 2


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.exhaustive if at else pytest.mark.slow) for at, name in enumerate(MISTAKES)],
)
def test_a_mistake_in_what_is_told_of_laws_is_seen(name: str) -> None:
    done = started(SMALL_JOBS, 40, [MISTAKES[name]])
    if done.returncode != -signal.SIGSEGV:
        assert done.returncode == 0, done.stderr
        assert sum(job["differences"] for job in json.loads(done.stdout)) > 0
