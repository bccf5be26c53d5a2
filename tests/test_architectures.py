"""Every architecture of a table writes, in company, exactly what transformers' own `generate` writes alone."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_torch import ARCHITECTURES, RECOMPUTED, UNLIKE, VOCAB, Numbers, alone, build

from tirage import LLM, SamplingParams

STORIES = Path(
    os.environ.get("TIRAGE_TEST_MODELS", Path(__file__).resolve().parents[2] / "shared" / "models"), "stories260K"
)
LENGTHS, NEW = (9, 23, 40, 3, 17, 30), (12, 5, 20, 14, 1, 9)
FEW = ("gemma2", "llama", "mamba", "rwkv")
"""Sliding windows, full attention, recurrent states, and no cache at all."""


def prompts_of(vocab: int = VOCAB) -> list[list[int]]:
    rng = np.random.default_rng(1)
    return [rng.integers(4, vocab - 4, length).tolist() for length in LENGTHS]


def check(name: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    module = build(name)
    expected = [alone(module, prompt, new) for prompt, new in zip(prompts_of(), NEW, strict=True)]
    module.save_pretrained(folder)
    with caplog.at_level(logging.INFO, "tirage"):
        # Three places for six requests: rows join and leave while others are halfway.
        llm = LLM(folder, tokenizer=Numbers(), max_running=3)
    params = [SamplingParams(temperature=0, max_tokens=new, ignore_eos=True) for new in NEW]
    for _ in range(2):
        # The second time around the prompts' beginnings may come from what the first left behind.
        assert [list(done.token_ids) for done in llm.generate(prompts_of(), params)] == expected
    assert path_of(caplog) == ("recomputed" if name in RECOMPUTED else "joined")


def path_of(caplog: pytest.LogCaptureFixture) -> str:
    """The path that the log names."""
    line = next(record.getMessage() for record in caplog.records if "decodes rows" in record.getMessage())
    path, _, reason = line.partition("decodes rows ")[2].partition(" ")
    assert path == "joined" or reason.startswith("(not joined: ")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", FEW)
def test_requests_in_company_write_what_generate_writes_alone(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check(name, tmp_path, caplog)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        name if name in UNLIKE else pytest.param(name, marks=pytest.mark.exhaustive)
        for name in sorted(set(ARCHITECTURES) - set(FEW))
    ],
)
def test_every_architecture_in_company_writes_what_generate_writes_alone(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check(name, tmp_path, caplog)


@pytest.mark.slow
def test_the_bundled_model_on_torch_writes_what_generate_writes_alone() -> None:
    check_texts(LLM("tiny", backend="torch"), ["Once upon a time", "The fox", "One day, a girl named"])


@pytest.mark.slow
@pytest.mark.skipif(not STORIES.is_dir(), reason=f"needs the model folder {STORIES.name}; set TIRAGE_TEST_MODELS")
def test_a_trained_model_writes_what_generate_writes_alone() -> None:
    check_texts(LLM(STORIES), ["Once upon a time", "Lily and Tom went to the", "The"])


def check_texts(llm: LLM, texts: list[str]) -> None:
    params = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)
    module: Any = llm.model
    for done in llm.generate(texts, params):
        assert list(done.token_ids) == alone(module.module, done.prompt_token_ids, 50)


def test_the_table_is_long_enough() -> None:
    assert len(ARCHITECTURES) >= 30
