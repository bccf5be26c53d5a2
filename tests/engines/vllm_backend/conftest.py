"""One vLLM engine for all tests, with little room, so that prompts are read in chunks and requests are preempted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from llama_folder import write_folder
from recorded import ENGINE_ARGS

from tirage import LLM


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("llama") / "llama")


@pytest.fixture(scope="session")
def llm(folder: Path) -> Iterator[LLM]:
    """The model in vLLM."""
    with LLM(folder, backend="vllm", max_running=16, engine_args=ENGINE_ARGS) as found:
        yield found


@pytest.fixture(scope="session")
def own(folder: Path) -> Iterator[LLM]:
    """The same model in tirage's own engine."""
    with LLM(folder, backend="numpy", max_running=16) as found:
        yield found
