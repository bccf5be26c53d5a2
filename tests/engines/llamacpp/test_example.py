"""examples/gguf_model.py runs a file that it is given."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gguf_models import random_folder

EXAMPLE = Path(__file__).parents[3] / "examples" / "gguf_model.py"


def test_the_example_runs_a_gguf_file() -> None:
    command = [sys.executable, str(EXAMPLE), str(random_folder().with_name("q8.gguf"))]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    parameters, text = printed.split("\n", maxsplit=1)
    assert parameters == "0.8 40 0.95 0.05 llamacpp"
    assert len(text) > 16
