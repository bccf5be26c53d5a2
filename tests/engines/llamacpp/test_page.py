"""The code of docs/engines/llamacpp.md, run as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from gguf_models import random_folder

PAGE = (Path(__file__).parents[3] / "docs" / "engines" / "llamacpp.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SHELL = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.gguf").symlink_to(random_folder().with_name("q8.gguf"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("code", PYTHON)
def test_python_of_the_page_runs(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code, "llamacpp.md", "exec"), {})
    assert len(capsys.readouterr().out) > 20


@pytest.mark.parametrize("line", SHELL)
def test_commands_of_the_page_run(line: str) -> None:
    arguments = re.findall(r'"[^"]*"|\S+', line)
    command = [sys.executable, "-m", *(each.strip('"') for each in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
