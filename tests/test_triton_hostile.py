"""Hostile rows drawn by the Triton kernels under its interpreter are those of the plain path; mistakes there are seen.

The interpreter runs all programs of a launch at once here (`recorded_triton.py`); `test_torch_conformance.py` runs some
rows with one program after the other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from platforms import needs_triton

PROCESS = Path(__file__).parent / "triton_process.py"
pytestmark = [
    needs_triton,
    pytest.mark.skipif(
        "TIRAGE_OLDEST" in os.environ, reason="recorded_triton.py follows the interpreter of Triton 3.9"
    ),
]

ROWS, JOBS = 1000, 16
"""Rows of a job, each with an order of filters of its own, and jobs of a process."""
PRESET_JOBS = 25
"""One job for each preset."""

MISTAKES = {
    "the draw takes the token before": ("reached > r", "reached >= r"),
    "a joint top-p takes its share of what is left": ("tl.where(joint > 0, base, total)", "total"),
    "tokens of the second tile are listed as those of the first": (
        "tl.store(list_id + at, ids, mask=listed)",
        "tl.store(list_id + at, ids % TILE, mask=listed)",
    ),
    "top-p's target is rounded down": ("tl.where(part, floor + 1, floor)", "floor"),
    "min-p leaves out the token at its bound": ("m, c) <= limit", "m, c) < limit"),
    "min-p forgets which ties an earlier cut dropped": ("tl.where(lowest > cut_key, _NO_ID, cut_id)", "_NO_ID"),
    "minus zero is below zero": ("tl.where(bits >= 0, bits, -(bits", "tl.where(bits >= 0, bits, -1 - (bits"),
    "weights stay those of the first temperature": ("(c == first_c).to(tl.int32)", "(c == c).to(tl.int32)"),
    "a weight is one bit off": ("_B3 + tl.minimum(r * f, _LARGEST)", "_B3 + tl.minimum(r * f, 0.2401)"),
    "the halves of the uniform are swapped": ("(a.to(tl.uint64) << 32) | b", "(b.to(tl.uint64) << 32) | a"),
    "greedy takes the last block": ("tl.min(tl.where(maxima == high, at, _NO_ID), 0)", "blocks - 1"),
}
"""A piece of the kernels, and a wrong one in its place."""


def run(*arguments: Any, given: Any = None) -> list[Any]:
    """What `triton_process.py` prints."""
    command = [sys.executable, str(PROCESS), *map(str, arguments)]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["programs", "bounds"])
def test_hundreds_of_hostile_rows_in_triton_are_those_of_the_plain_path(kind: str) -> None:
    jobs = run(kind, 0, 15, 40)
    assert [job["differences"] for job in jobs] == [0] * 15
    assert sum(job["by kernels"] for job in jobs) == 15 * 40


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "part"), [*(("programs", n) for n in range(8)), *(("bounds", n) for n in range(4))])
def test_two_hundred_thousand_hostile_rows_in_triton_are_those_of_the_plain_path(kind: str, part: int) -> None:
    jobs = run(kind, part * JOBS, (part + 1) * JOBS, ROWS)
    assert [job["differences"] for job in jobs] == [0] * JOBS
    assert sum(job["by kernels"] for job in jobs) == JOBS * ROWS


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(3))
def test_every_parameter_of_every_preset_draws_the_same_with_triton(part: int) -> None:
    jobs = run("presets", part * PRESET_JOBS, (part + 1) * PRESET_JOBS, 12)
    assert [job["differences"] for job in jobs] == [0] * PRESET_JOBS
    assert sum(job["by kernels"] for job in jobs) > 2000


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(list(MISTAKES)[:3], marks=pytest.mark.slow, id="some"),
        pytest.param(list(MISTAKES)[3:], marks=pytest.mark.exhaustive, id="others"),
    ],
)
def test_a_mistake_in_the_kernels_is_seen(names: list[str]) -> None:
    found = run("mistakes", 0, 20, 50, given=[MISTAKES[name] for name in names])
    assert [name for name, differences in zip(names, found, strict=True) if not differences] == []
