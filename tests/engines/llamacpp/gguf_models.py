"""The models of the tests: a Llama of 260,000 parameters that tells stories, and one with random weights."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from gguf_llama import convert
from llama_folder import write_folder

import tirage
from tirage import SamplingParams

STORIES = Path(
    os.environ.get("TIRAGE_TEST_MODELS", Path(__file__).resolve().parents[4] / "shared" / "models"), "stories260K"
)
STARTS = (
    "Once upon a time",
    "One day, a girl named Lucy",
    "Tom and his dog were",
    "The big red ball",
    "It was a sunny day and",
    "Lily wanted to",
    "There was a little bird",
    "Mom said",
)
TEMPLATE = "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }}\n{% endfor %}<assistant>"


def stories() -> Path:
    """The GGUF file of the stories, with the folder of the same model beside it."""
    return STORIES.with_name(f"{STORIES.name}.gguf")


@cache
def random_folder() -> Path:
    """A folder of a Llama with random weights, and beside it `random.gguf` and, quantised, `q8.gguf`."""
    folder = write_folder(Path(mkdtemp()) / "random", layers=2)
    convert(folder, folder.with_name("random.gguf"), tokenizer__chat_template=TEMPLATE)
    convert(folder, folder.with_name("q8.gguf"), kind="Q8_0", tokenizer__chat_template=TEMPLATE)
    return folder


def greedy(count: int, **fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": count, "ignore_eos": True, **fields})


def ids_of(llm: tirage.LLM, prompts: Sequence[Any], params: Any) -> list[tuple[int, ...]]:
    return [tuple(done.token_ids) for done in llm.generate(list(prompts), params)]
