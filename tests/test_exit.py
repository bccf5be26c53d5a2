"""A program that ends in the middle of something ends well, with its own exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_torch import build

STREAMING = """
import sys, tirage
from test_exit import Numbers
llm = tirage.LLM(sys.argv[1], tokenizer=Numbers())
deltas = llm.stream([1, 2, 3], tirage.SamplingParams(max_tokens=100_000, ignore_eos=True, seed=1))
next(deltas)
print("one", flush=True)
"""
COMPILING = """
from tirage.backends.numpy import kernels
import time
kernels.start()
while not kernels.compiling():
    time.sleep(0.01)
print("one", flush=True)
"""


class Numbers:
    """Ids as words."""

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: list[int]) -> str:
        return "".join(f"{i} " for i in ids)


def run(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    here = str(Path(__file__).parent)
    settings = {**os.environ, "PYTHONPATH": here, **environment}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=300, env=settings
    )


@pytest.mark.slow
def test_a_program_that_ends_while_an_engine_runs_ends_well(tmp_path: Path) -> None:
    build(max_position_embeddings=200_000).save_pretrained(tmp_path)
    ended = run(STREAMING, str(tmp_path))
    assert (ended.returncode, ended.stdout) == (0, "one\n"), ended.stderr


@pytest.mark.slow
def test_a_program_that_ends_while_kernels_are_compiled_ends_well(tmp_path: Path) -> None:
    ended = run(COMPILING, NUMBA_CACHE_DIR=str(tmp_path))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "one\n", "")
