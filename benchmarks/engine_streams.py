"""How fast is the engine at 32 streams of 16 + 48 tokens, before and after a change, and beside vLLM on a CPU.

A random Llama of 63 M parameters (V = 128,256), in bfloat16 and float32, one thread. Each way is a process of its own
that waits while another runs; they take turns. Seconds are of processor time, because wall time says more of whoever
else uses the machine. vLLM runs inside its process (`VLLM_ENABLE_V1_MULTIPROCESSING=0`), so that all of it is counted.

`python -m benchmarks.engine_streams [--before SRC] [--vllm PYTHON] [--rounds N] [--top-p N]`: SRC is the `src` folder
of an older checkout, PYTHON the interpreter of an environment with vLLM, and N are the rounds of greedy and top-p.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

STREAMS, PROMPT, NEW = 32, 16, 48
VOCAB = 128_256
DTYPES = ("bfloat16", "float32")
JOBS: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0.0}, "top-p": {"temperature": 1.0, "top_p": 0.95}}
_VLLM = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
# The operators of PyTorch by what they are for; all others are "other operators".
_KINDS = {
    "mkldnn::_linear_pointwise": "linear layers",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "attention",
}


def prompts() -> list[list[int]]:
    import random

    rng = random.Random(0)
    return [[rng.randrange(10, VOCAB - 10) for _ in range(PROMPT)] for _ in range(STREAMS)]


# --- the ways, each in a process of its own ----------------------------------------------------------------------


def open_tirage(folder: str, dtype: str) -> tuple[Callable[[str], Any], Any]:
    import tirage

    class Numbers:
        """A tokenizer of ids written as numbers."""

        def encode(self, text: str) -> list[int]:
            return [int(word) for word in text.split()]

        def decode(self, ids: Any) -> str:
            return "".join(f"{i} " for i in ids)

    tirage.warmup()
    llm = tirage.LLM(folder, tokenizer=Numbers(), dtype=dtype, max_running=STREAMS, prefix_bytes=0)

    def run(job: str) -> Any:
        params = [
            tirage.SamplingParams(**JOBS[job], seed=seed, max_tokens=NEW, ignore_eos=True, detokenize=False)
            for seed in range(STREAMS)
        ]
        return [done.token_ids for done in llm.generate(prompts(), params)]

    return run, llm


def open_vllm(folder: str, dtype: str) -> tuple[Callable[[str], Any], Any]:
    from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]

    llm = LLM(
        folder,
        skip_tokenizer_init=True,
        dtype=dtype,
        max_model_len=256,
        max_num_seqs=STREAMS,
        enable_prefix_caching=False,
    )

    def run(job: str) -> Any:
        params = SamplingParams(**JOBS[job], max_tokens=NEW, ignore_eos=True, detokenize=False)
        done = llm.generate([{"prompt_token_ids": ids} for ids in prompts()], params, use_tqdm=False)
        return [one.outputs[0].token_ids for one in done]

    return run, llm


def worker(way: str, folder: str, dtype: str) -> None:
    """Answers each line of stdin, the name of a job or "profile", with a line of JSON."""
    out = os.fdopen(os.dup(1), "w")
    # Whatever else is printed must not be read as an answer.
    os.dup2(2, 1)
    import torch

    torch.set_num_threads(1)
    run, llm = (open_vllm if way == "vllm" else open_tirage)(folder, dtype)
    for line in sys.stdin:
        job = line.strip()
        answer = profile(run, llm) if job == "profile" else timed(run, job)
        print(json.dumps(answer), file=out, flush=True)


def timed(run: Callable[[str], Any], job: str) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    tokens = sum(len(ids) for ids in run(job))
    return {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall, "tokens": tokens}


def profile(run: Callable[[str], Any], llm: Any) -> dict[str, Any]:
    """Shares of the engine's phases in a greedy job, and of kinds of operators in its prefill and decode passes."""
    before = llm.engine.progress()
    run("greedy")
    after = llm.engine.progress()
    phases = {
        name: getattr(after, name) - getattr(before, name) for name in ("read_s", "sample_s", "text_s", "decode_s")
    }
    return {"phases": shares(phases), "passes": shares(llm.engine.call(lambda: operators_of(llm.model)))}


def operators_of(model: Any) -> dict[str, float]:
    """Microseconds by kind of operator in a prefill of all streams and ten steps, and of what is no operator."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    from tirage.models import Inputs

    rows = [model.open(Inputs(token_ids=tuple(ids))) for ids in prompts()]
    with torch_profile(activities=[ProfilerActivity.CPU]) as found:
        began = time.perf_counter()
        for start in range(0, STREAMS, 16):
            model.prefill_batch(rows[start : start + 16])
        for _ in range(10):
            model.decode([5] * STREAMS, rows)
        total = (time.perf_counter() - began) * 1e6
    spent: dict[str, float] = {}
    for event in found.key_averages():
        kind = _KINDS.get(event.key, "matrix products of attention" if "bmm" in event.key else "other operators")
        spent[kind] = spent.get(kind, 0.0) + event.self_cpu_time_total
    for row in rows:
        model.close(row)
    return spent | {"outside of operators": max(0.0, total - sum(spent.values()))}


def shares(spent: Mapping[str, float]) -> dict[str, float]:
    total = sum(spent.values())
    return {name: round(value / total, 3) for name, value in spent.items()}


# --- the comparison ----------------------------------------------------------------------------------------------


class Way:
    """A process that runs jobs when it is asked to."""

    def __init__(self, name: str, python: str, folder: str, dtype: str, source: str | None = None) -> None:
        self.name = name
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **(_VLLM if name == "vllm" else {})}
        if source is not None:
            environment["PYTHONPATH"] = source
        command = [python, "-P", str(Path(__file__).resolve()), "--worker", name.split()[0], folder, dtype]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    def ask(self, job: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(job, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def make_folder(folder: str, dtype: str) -> None:
    import torch
    from transformers.models.llama import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=384, intermediate_size=1024, num_hidden_layers=8, num_attention_heads=6, num_key_value_heads=6,
        vocab_size=VOCAB, max_position_embeddings=2048, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(folder)


def compare(ways: list[Way], dtype: str, rounds: Mapping[str, int]) -> list[dict[str, Any]]:
    """A row for each job and way: median tokens per second of processor time, and the ratio of tirage to each."""
    found: list[dict[str, Any]] = []
    for job in (job for job in JOBS if rounds[job]):
        for way in ways:
            way.ask(job)
        answers: dict[str, list[dict[str, Any]]] = {way.name: [] for way in ways}
        for _ in range(rounds[job]):
            for way in ways:
                answers[way.name].append(way.ask(job))
                print(job, dtype, way.name, answers[way.name][-1], file=sys.stderr, flush=True)
        ours = [answer["cpu_s"] for answer in answers[ways[0].name]]
        for way in ways:
            theirs = answers[way.name]
            ratios = [answer["cpu_s"] / own for answer, own in zip(theirs, ours, strict=True)]
            found.append({
                "job": job, "dtype": dtype, "V": VOCAB, "streams": STREAMS, "way": way.name, "rounds": rounds[job],
                "tokens_per_cpu_s": round(statistics.median(a["tokens"] / a["cpu_s"] for a in theirs), 1),
                "tokens_per_wall_s": round(statistics.median(a["tokens"] / a["wall_s"] for a in theirs), 1),
                "tirage_times_faster": round(statistics.median(ratios), 2),
                "of_each_round": [round(ratio, 2) for ratio in ratios],
            })  # fmt: skip
    return found


def measure(dtype: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        make_folder(folder, dtype)
        ways = [Way("tirage", sys.executable, folder, dtype)]
        if options.before:
            ways.append(Way("tirage before", sys.executable, folder, dtype, source=options.before))
        if options.vllm:
            ways.append(Way("vllm", options.vllm, folder, dtype))
        try:
            rows = compare(ways, dtype, {"greedy": options.rounds, "top-p": options.top_p})
            return [*rows, {"job": "profile", "dtype": dtype, "V": VOCAB, "way": "tirage", **ways[0].ask("profile")}]
        finally:
            for way in ways:
                way.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--before")
    parser.add_argument("--vllm")
    parser.add_argument("--rounds", type=int, default=7)
    # vLLM sorts the vocabulary for top-p, which takes half a minute for a job.
    parser.add_argument("--top-p", type=int, default=1)
    parser.add_argument("--worker", nargs=3)
    options = parser.parse_args()
    if options.worker:
        worker(*options.worker)
        return
    from benchmarks.harness import save

    rows = [row for dtype in DTYPES for row in measure(dtype, options)]
    notes = "one thread; ways in turns, medians; seconds of processor time, on a machine that others used"
    save("engine_streams", rows, notes=notes)


if __name__ == "__main__":
    main()
