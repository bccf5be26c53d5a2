"""What docs/engines/vllm.md shows, run as it stands, on a small model under the name that the page has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pages
import pytest
from llama_folder import write_folder
from served import Server

BLOCKS = re.findall(
    r"^```python\n(.*?)^```", (Path(__file__).parents[3] / "docs/engines/vllm.md").read_text(), re.DOTALL | re.MULTILINE
)
MODEL = "path/to/model"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("page")
    write_folder(made / MODEL)
    return made


def printed(code: str, place: Path) -> list[str]:
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=place, env=environment, capture_output=True, text=True, errors="replace"
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_the_offline_block_prints_a_text_for_each_prompt(place: Path) -> None:
    """Without compilation, which takes a minute and no part in what the page says."""
    code = BLOCKS[0].replace(f'model="{MODEL}"', f'model="{MODEL}", enforce_eager=True, max_model_len=256')
    assert code != BLOCKS[0]
    assert len("".join(printed(code, place))) > 60


def test_the_block_for_its_users_prints_a_text(place: Path) -> None:
    (block,) = pages.blocks_of("coming_from/vllm", "py")
    code = block.replace('LLM("path/to/model")', 'LLM("path/to/model", enforce_eager=True, max_model_len=256)')
    assert code != block
    assert "".join(printed(code, place))


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[Server]:
    made = Server(place / "served", name=MODEL)
    try:
        made.wait()
        yield made
    finally:
        made.stop()


def test_the_http_block_prints_what_its_seed_says(place: Path, server: Server) -> None:
    code = BLOCKS[1].replace("localhost:8000", f"127.0.0.1:{server.port}")
    assert code != BLOCKS[1]
    first = printed(code, place)
    assert "".join(first)
    assert first == printed(code, place)


def test_there_are_no_other_blocks() -> None:
    assert len(BLOCKS) == 2
