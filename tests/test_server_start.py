"""The first start on a machine, which compiles the kernels, with and without a place to keep them."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from servers import SOURCES, START_S, Server

KERNELS = Path("tirage", "backends", "numpy", "kernels", "__pycache__")


@pytest.fixture
def unkept(tmp_path: Path) -> dict[str, str]:
    """An environment in which no folder can hold compiled kernels: files lie where the folders would."""
    shutil.copytree(SOURCES, tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    blocked = tmp_path / "file"
    for file in (blocked, tmp_path / "src" / KERNELS):
        file.touch()
    places = ("NUMBA_CACHE_DIR", "HOME", "XDG_CACHE_HOME", "IPYTHONDIR")
    return {"PYTHONPATH": str(tmp_path / "src"), **dict.fromkeys(places, str(blocked / "none"))}


@pytest.mark.exhaustive  # all kernels are compiled anew
def test_a_first_start_says_that_it_compiles_and_what_would_spare_the_next_one(unkept: dict[str, str]) -> None:
    with Server("tiny", environ=unkept, wait=False) as server:
        seen = set[str]()
        deadline = time.monotonic() + START_S
        while (answer := server.get("/health")).status_code == 503:
            seen.add(answer.json()["status"])
            assert server.get("/ready").status_code in {200, 503}
            assert time.monotonic() < deadline, server.log
            time.sleep(0.1)
        assert "compiling" in seen
        assert seen <= {"loading", "compiling", "probing"}
        steps = ("listening", "loading", "compiling", "probing", "ready:")
        words = [line.split(" ")[1] for line in server.log.splitlines()]
        assert list(dict.fromkeys(word for word in words if word in steps)) == list(steps)
        assert server.log.count("warning: the kernels cannot be cached") == 1
        assert "NUMBA_CACHE_DIR" in server.log
        assert server.post("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 2}}).status_code == 200
