"""Generates with a Llama on a mesh of 8 CPU devices and with the same on one; prints what each said, as JSON.

XLA must be told of the devices before JAX starts, so `test_sharded_models.py` runs this in a process of its own.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import small_llama
from small_tokenizers import trained_byte_level
from tp_process import told

from tirage import LLM, GuidedDecodingParams, SamplingParams
from tirage.models.checkpoint import build_llama
from tirage.models.config import parse_config
from tirage.models.llama_jax import open_jax
from tirage.models.mesh import llama_on_mesh

ASKED: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"seed": 1, "top_p": 0.9, "n": 2},
    {"seed": 2, "top_k": 40, "repetition_penalty": 1.2},
    {"seed": 4, "guided_decoding": GuidedDecodingParams(regex="[a-z ]{3,20}")},
)
PROMPTS = ["Once upon a time", "One day"]


def texts(llm: LLM) -> list[Any]:
    """What a model generates."""
    return [told(each) for asked in ASKED for each in llm.generate(PROMPTS, SamplingParams(max_tokens=6, **asked))]


def beside(llm: LLM) -> list[Any]:
    """What becomes of three prompts of which one has a NaN among its logits."""
    inner: Any = llm.model.model  # type: ignore[union-attr]
    whole = inner.prefill

    def broken(ids: Any) -> Any:
        logits, cache = whole(ids)
        return (logits.at[7].set(jnp.nan) if len(ids) == 2 else logits), cache

    inner.prefill = broken
    prompts = ["Once upon a time", [1, 7], "One day"]
    return [told(each) for each in llm.generate(prompts, SamplingParams(seed=1, max_tokens=4))]


def main() -> None:
    assert len(jax.devices()) == 8
    tokenizer = trained_byte_level()
    # Not a multiple of 8, so that the output layer is padded.
    config = {**small_llama.CONFIG, "vocab_size": 425}
    tensors = small_llama.random_tensors(config)
    model = build_llama(parse_config(config, Path("config.json")), tensors, Path("llama"))
    mesh = jax.make_mesh((8,), ("vocab",), axis_types=(jax.sharding.AxisType.Auto,))
    spread, alone = llama_on_mesh(model, mesh=mesh, axis="vocab", max_length=64), open_jax(model)
    with LLM(spread, tokenizer=tokenizer) as llm:
        found, ends = texts(llm), [each[0][2] for each in beside(llm)]
    with LLM(alone, tokenizer=tokenizer) as llm:
        expected = texts(llm)
    print(json.dumps([found, expected, ends]))


if __name__ == "__main__":
    main()
