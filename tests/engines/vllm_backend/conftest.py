"""One vLLM engine for all tests, with little room, so that prompts are read in chunks and requests are preempted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llama_folder import write_folder

from tirage import LLM

# 36 blocks of 32 tokens: room for hardly more than one request of full length.
ENGINE_ARGS: dict[str, Any] = {
    "enforce_eager": True,
    "kv_cache_memory_bytes": 36 << 16,
    "block_size": 32,
    "max_num_batched_tokens": 64,
}


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
