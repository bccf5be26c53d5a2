"""What `docs/engines/vllm_backend.md` shows runs, and a folder that vLLM cannot load is an error that says so."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from recorded import ENGINE_ARGS

PAGE = Path(__file__).parents[3] / "docs" / "engines" / "vllm_backend.md"


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_the_program_of_the_page_runs(folder: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 1
    done = run(blocks[0].replace("path/to/folder", str(folder)))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "INFO" not in done.stdout


def test_the_commands_of_the_page_are_options() -> None:
    commands = re.findall(r"^tirage (\w+) (.*)$", PAGE.read_text(), re.MULTILINE)
    assert commands
    for command, rest in commands:
        done = subprocess.run(
            [sys.executable, "-m", "tirage", command, "--help-all"], capture_output=True, text=True, check=True
        )
        assert set(re.findall(r"--[a-z-]+", rest)) <= set(re.findall(r"--[a-z-]+", done.stdout))


def test_a_folder_that_vllm_cannot_load_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "architectures": ["NoSuchModel"]}')
    arguments = json.dumps(ENGINE_ARGS).replace("true", "True")
    done = run(f"import tirage; tirage.LLM({str(tmp_path)!r}, backend='vllm', engine_args={arguments})")
    assert done.returncode == 1
    assert f"ModelError: {tmp_path.name} cannot be opened with vLLM 0" in done.stderr
