"""Seeded requests to vLLM's engine, and whether `tirage.replay_engine` draws their tokens again: prints JSON.

A program, as vLLM's worker does not start in a process that has loaded llvmlite.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="WARNING", VLLM_CPU_KVCACHE_SPACE="1")

import numpy as np
from llama_folder import PROMPTS, write_folder
from vllm import LLM, SamplingParams
from vllm.v1.sample.sampler import Sampler

ASKED: list[dict[str, Any]] = [
    {"seed": 0},
    {"seed": 7, "temperature": 0.6, "top_p": 0.9},
    {"seed": 2**40 + 5, "temperature": 1.3, "top_k": 40, "min_p": 0.02},
    {"seed": 42, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2, "top_k": 12},
    {"seed": 9, "temperature": 0.9, "top_p": 0.95, "top_k": 50, "logit_bias": {5: 3.0, 17: -4.0}},
]
TAKEN: list[np.ndarray] = []
_forward = Sampler.forward


def taking(self: Sampler, logits: Any, *args: Any, **kwargs: Any) -> Any:
    """`Sampler.forward`, which keeps the logits of the first row."""
    TAKEN.append(logits[0].float().numpy().copy())
    return _forward(self, logits, *args, **kwargs)


def asked(llm: LLM, fields: dict[str, Any], prompt: str) -> tuple[np.ndarray, list[int], list[int]]:
    """The logits [T, V] of a request, its prompt's tokens and those drawn."""
    TAKEN.clear()
    params = SamplingParams(max_tokens=24, ignore_eos=True, **fields)
    [answer] = llm.generate([prompt], params, use_tqdm=False)
    return np.stack(TAKEN), list(answer.prompt_token_ids), list(answer.outputs[0].token_ids)


def main(folder: Path) -> None:
    """Asks the engine, then draws again."""
    llm = LLM(str(write_folder(folder)), enforce_eager=True, dtype="float32", max_model_len=256)
    Sampler.forward = taking
    answers = [asked(llm, fields, prompt) for fields, prompt in zip(ASKED, PROMPTS, strict=False)]
    llm.llm_engine.engine_core.shutdown()

    import tirage
    from tirage.dialects import from_vllm

    found = {"tokens": 0, "same": 0, "certain": 0}
    for fields, (logits, prompt, tokens) in zip(ASKED, answers, strict=True):
        again = tirage.replay_engine(
            logits, from_vllm(fields), engine="vllm-v1-cpu", prompt_ids=prompt, output_ids=tokens
        )
        found["tokens"] += len(tokens)
        found["same"] += int((again.token_ids == tokens).sum())
        found["certain"] += int(again.certain.sum())
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
