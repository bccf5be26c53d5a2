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


@cache
def said() -> dict[str, str]:
    """What each check said, all from one process: starting JAX and compiling take most of the time."""
    done = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_every_check_is_known_here() -> None:
    assert len(CHECKS) == 9
    assert sorted(said()) == sorted(CHECKS)


@pytest.mark.parametrize("check", CHECKS)
def test_a_mesh_of_eight_devices(check: str) -> None:
    assert said()[check] == ""
