"""How fast is tirage's draw inside vLLM beside vLLM's own sampler: top-p 0.95, V = 128,256, 1 and 32 streams.

A random Llama of 58 M parameters on one thread of one CPU; vLLM runs in this process. Each round runs every way once,
and a way counts the processor time of the process, so that other programs on the machine cost it little. Run it in
vLLM's environment, with `tests/engines` on the path:

    python scripts/engines.py --build vllm
    PYTHONPATH=.:tests/engines OMP_NUM_THREADS=1 .engines/vllm/bin/python -m benchmarks.vllm_step [float32]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="WARNING", VLLM_CPU_KVCACHE_SPACE="1")

from benchmarks.harness import save

VOCAB = 128_256
NEW = 32
ROUNDS = 9
TOP_P = 0.95


def ways() -> dict[str, Any]:
    """vLLM's parameters of the n-th stream, for each way."""
    from vllm import SamplingParams  # pyright: ignore[reportMissingImports]

    def own(**fields: Any) -> Any:
        return SamplingParams(max_tokens=NEW, ignore_eos=True, detokenize=False, **fields)

    def drawn(at: int) -> dict[str, Any]:
        return {"tirage": {"top_p": TOP_P, "seed": at}}

    return {
        "vLLM greedy": lambda at: own(temperature=0),
        "vLLM top-p": lambda at: own(top_p=TOP_P),
        "vLLM temperature alone": lambda at: own(),
        "tirage top-p": lambda at: own(temperature=0, extra_args=drawn(at)),
        "tirage top-p, temperature of vLLM left at 1": lambda at: own(extra_args=drawn(at)),
    }


def tokens_per_second(llm: Any, params: Any, streams: int) -> float:
    """New tokens for each second of processor time, prompts of 8 tokens included."""
    prompts = [{"prompt_token_ids": [(at * 31 + i * 7) % VOCAB for i in range(8)]} for at in range(streams)]
    given = [params(at) for at in range(streams)]
    start = time.process_time()
    outs = llm.generate(prompts, given, use_tqdm=False)
    spent = time.process_time() - start
    assert [len(out.outputs[0].token_ids) for out in outs] == [NEW] * streams
    return streams * NEW / spent


def measured(llm: Any, streams: int) -> list[dict[str, float]]:
    """The rate of each way in each round; a round before is not counted."""
    rounds = [
        {name: tokens_per_second(llm, params, streams) for name, params in ways().items()} for _ in range(ROUNDS + 1)
    ]
    return rounds[1:]


def row(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Median rates, and the medians of the ratios within each round."""

    def ratio(name: str) -> float:
        return round(median(each["tirage top-p"] / each[name] for each in rounds), 2)

    return {
        "tokens_per_second": {name: round(median(each[name] for each in rounds), 1) for name in rounds[0]},
        "ratio_to_own_top_p": ratio("vLLM top-p"),
        "ratio_to_own_greedy": ratio("vLLM greedy"),
    }


def main(dtype: str) -> None:
    from llama_folder import write_folder  # pyright: ignore[reportMissingImports]
    from vllm import LLM  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory() as scratch:
        folder = write_folder(Path(scratch), vocab_size=VOCAB, heads=3, layers=24, dtype=dtype)
        llm = LLM(
            str(folder),
            dtype=dtype,
            enforce_eager=True,
            max_model_len=128,
            max_num_seqs=32,
            enable_prefix_caching=False,
            logits_processors=["tirage.integrations.vllm:TirageLogitsProcessor"],
        )
        rows = [{"dtype": dtype, "streams": streams, **row(measured(llm, streams))} for streams in (1, 32)]
    notes = (
        f"vLLM {version('vllm-cpu')} on the CPU, in one process with one thread; {NEW} new tokens; medians of {ROUNDS} "
        "rounds that run every way in turn, of processor time, as the machine was busy with other work; ratios are "
        "taken within each round"
    )
    save(f"vllm_step_{dtype}", rows, notes=notes)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "bfloat16")
