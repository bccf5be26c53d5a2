"""Vocabularies spread over a JAX mesh: every check of `mesh_process.py`, run on 8 CPU devices."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("mesh_process.py")
CHECKS = re.findall(r"^    (\w+),$", PROGRAM.read_text(encoding="utf-8").partition("\nCHECKS = (")[2], re.MULTILINE)


QUICK = (
    "fewer_tokens_than_devices",
    "an_operator_that_no_backend_knows_is_drawn",
    "wrong_arguments_are_refused_by_name",
)
"""Checks of the fast suite; the others compile large programs."""


@cache
def said(*names: str) -> dict[str, str]:
    """What the checks of these names, or all, said in one process: starting JAX and compiling take most of the time."""
    command = [sys.executable, str(PROGRAM), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_mesh_of_eight_devices_passes_the_quick_checks() -> None:
    assert said(*QUICK) == dict.fromkeys(QUICK, "")


@pytest.mark.exhaustive
def test_every_check_is_known_here() -> None:
    assert len(CHECKS) == 13
    assert sorted(said()) == sorted(CHECKS)


@pytest.mark.exhaustive
@pytest.mark.parametrize("check", CHECKS)
def test_a_mesh_of_eight_devices(check: str) -> None:
    assert said()[check] == ""
