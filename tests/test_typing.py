"""A type checker accepts what the pages allow, and still sees a wrong type."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WRONG = """
from tirage import SamplingParams
SamplingParams(temperature="hot")
SamplingParams(top_k=1.5)
SamplingParams(no_such_field=1)
SamplingParams().top_p = 0.5
text: str = SamplingParams().temperature
"""


def complaints(path: Path) -> list[tuple[int, str]]:
    """(line, rule) of each error that pyright finds."""
    pytest.importorskip("pyright", reason="the oldest releases are installed without the development tools")
    command = [sys.executable, "-m", "pyright", "--outputjson", str(path)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parent, check=False)
    found = json.loads(run.stdout)["generalDiagnostics"]
    return [(one["range"]["start"]["line"], one.get("rule", one["message"])) for one in found]


def test_the_allowed_calls_run() -> None:
    names = runpy.run_path(str(HERE / "allowed_calls.py"))
    assert (names["number"], names["count"]) == (1.2, 0)


@pytest.mark.slow
def test_a_type_checker_accepts_the_allowed_calls_and_refuses_others(tmp_path: Path) -> None:
    assert complaints(HERE / "allowed_calls.py") == []
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    kinds = ["reportArgumentType", "reportArgumentType", "reportCallIssue", "reportAttributeAccessIssue"]
    assert complaints(wrong) == [(line, kind) for line, kind in enumerate([*kinds, "reportAssignmentType"], start=2)]
