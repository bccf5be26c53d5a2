"""Tokens per second of GGUF models through `tirage.LLM` beside llama.cpp's own ways, in one process, on one thread.

    python -m benchmarks.gguf --make big.gguf      a random Llama of 134 million parameters in Q8_0; needs `gguf`
    python -m benchmarks.gguf FILE.gguf ... [--streams 1 8] [--rounds 7]

B = 1: llama.cpp's loop (decode, then its sampler chain, called from Python) and `Llama.generate`. Eight streams: the
same loop with eight sequences in a batch and a sampler chain for each. Every way begins with the same prompts and draws
the same number of tokens with the same parameters; tirage also writes the text. The sides take turns; the figures are
medians of the rounds. Needs llama-cpp-python. Results: `results/gguf.json`.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import save
from tirage import LLM, SamplingParams

PARAMETERS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "top-p": {"temperature": 0.8, "top_p": 0.95},
    "top-k and top-p": {"temperature": 0.8, "top_k": 40, "top_p": 0.95},
}
NEW = 64
WRITER = Path(__file__).parents[1] / "tests" / "engines" / "llamacpp"


def llama_config(hidden: int, layers: int) -> dict[str, Any]:
    """The config of a Llama with 32,000 tokens and heads of 64."""
    return {
        "vocab_size": 32000, "hidden_size": hidden, "intermediate_size": hidden * 8 // 3, "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64, "num_key_value_heads": hidden // 64, "max_position_embeddings": 2048,
        "rope_theta": 10000.0, "rms_norm_eps": 1e-5,
    }  # fmt: skip


class OwnLoop:
    """llama.cpp's loop over some sequences: one batch for all, and a sampler chain for each."""

    def __init__(self, path: Path, streams: int) -> None:
        from llama_cpp import llama_cpp as library  # pyright: ignore[reportMissingImports]

        self._library, self._streams = library, streams
        self._model = library.llama_model_load_from_file(str(path).encode(), library.llama_model_default_params())
        params = library.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified = 4096, max(streams, 1), True
        params.n_threads = params.n_threads_batch = 1
        params.no_perf = True
        self._context = library.llama_init_from_model(self._model, params)
        self._batch = library.llama_batch_init(512, 0, 1)
        self._cleared = library.llama_get_memory(self._context)

    def run(self, prompts: list[list[int]], fields: dict[str, Any]) -> list[list[int]]:
        """The ids of NEW tokens for each prompt."""
        library, context, batch = self._library, self._context, self._batch
        # Only what is known of the cells; their content is written anew.
        library.llama_memory_clear(self._cleared, False)
        samplers = [self._sampler(fields, seed) for seed in range(self._streams)]
        rows = []
        for sequence, prompt in enumerate(prompts):
            for at, token in enumerate(prompt):
                self._put(at, token, at, sequence, last=at == len(prompt) - 1)
            batch.n_tokens = len(prompt)
            library.llama_decode(context, batch)
            rows.append([library.llama_sampler_sample(samplers[sequence], context, -1)])
        for step in range(NEW - 1):
            for sequence, row in enumerate(rows):
                self._put(sequence, row[-1], len(prompts[sequence]) + step, sequence, last=True)
            batch.n_tokens = self._streams
            library.llama_decode(context, batch)
            for sequence, row in enumerate(rows):
                row.append(library.llama_sampler_sample(samplers[sequence], context, sequence))
        for sampler in samplers:
            library.llama_sampler_free(sampler)
        return rows

    def _put(self, at: int, token: int, position: int, sequence: int, *, last: bool) -> None:
        batch = self._batch
        batch.token[at], batch.pos[at], batch.logits[at] = token, position, last
        batch.n_seq_id[at], batch.seq_id[at][0] = 1, sequence

    def _sampler(self, fields: dict[str, Any], seed: int) -> Any:
        library = self._library
        chain = library.llama_sampler_chain_init(library.llama_sampler_chain_default_params())
        if fields["temperature"] == 0:
            stages = [library.llama_sampler_init_greedy()]
        else:
            stages = [library.llama_sampler_init_top_k(int(fields["top_k"]))] if "top_k" in fields else []
            stages += [library.llama_sampler_init_top_p(fields["top_p"], 1)]
            stages += [library.llama_sampler_init_temp(fields["temperature"]), library.llama_sampler_init_dist(seed)]
        for stage in stages:
            library.llama_sampler_chain_add(chain, stage)
        return chain


def llama_generate(path: Path) -> Callable[[list[int], dict[str, Any]], list[int]]:
    """`Llama.generate` of one prompt."""
    from llama_cpp import Llama  # pyright: ignore[reportMissingImports]

    llama = Llama(str(path), n_ctx=4096, n_threads=1, n_threads_batch=1, verbose=False)

    def run(prompt: list[int], fields: dict[str, Any]) -> list[int]:
        llama.reset()
        own = {"temp": fields["temperature"], "top_k": int(fields.get("top_k", 0)), "top_p": fields.get("top_p", 1.0)}
        tokens = llama.generate(prompt, min_p=0.0, **own)
        return [token for token, _ in zip(tokens, range(NEW), strict=False)]

    return run


def tirage_llm(llm: LLM, prompts: list[list[int]], fields: dict[str, Any]) -> None:
    """The same through `tirage.LLM`, with nothing kept from the round before."""
    llm.engine.call(llm.engine.model.forget)
    params = [SamplingParams(**fields, seed=at, max_tokens=NEW, ignore_eos=True) for at in range(len(prompts))]
    assert all(len(done.token_ids) == NEW for done in llm.generate(prompts, params))


def in_turns(jobs: dict[str, Callable[[], object]], *, rounds: int) -> dict[str, tuple[float, float, float]]:
    """Seconds of each job: the median and the least by the wall clock, and the median of this process's CPU time.

    Each round runs each job once; the first is not counted.
    """
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
    for at in range(rounds + 1):
        for name, job in jobs.items():
            wall, cpu = time.perf_counter(), time.process_time()
            job()
            if at:
                times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    median = statistics.median
    return {
        name: (median(wall for wall, _ in found), min(wall for wall, _ in found), median(cpu for _, cpu in found))
        for name, found in times.items()
    }


def row_of(found: dict[str, tuple[float, float, float]], streams: int) -> dict[str, Any]:
    """Tokens per second of each job, and how many times as fast tirage is as each other one, by each measure."""
    own = found["tirage"]
    ratios = {
        measure: {job: round(each[at] / own[at], 3) for job, each in found.items() if job != "tirage"}
        for at, measure in enumerate(("tirage_to", "by_fastest_round", "by_cpu_time"))
    }
    return {"tokens_per_s": {job: round(streams * NEW / each[0], 1) for job, each in found.items()}, **ratios}


def measure(path: Path, *, rounds: int, all_streams: list[int]) -> list[dict[str, Any]]:
    """A row for each number of streams and each set of parameters."""
    rows = []
    with LLM(path) as llm:
        width = llm.model.vocab_size
        random = np.random.default_rng(1)
        prompts = [random.integers(3, width, 16).tolist() for _ in range(8)]
        generate = llama_generate(path)
        for streams in all_streams:
            own = OwnLoop(path, streams)
            given = prompts[:streams]
            for name, fields in PARAMETERS.items():
                jobs: dict[str, Callable[[], object]] = {
                    "tirage": lambda g=given, f=fields: tirage_llm(llm, g, f),
                    "own loop": lambda g=given, f=fields, o=own: o.run(g, f),
                    "Llama.generate": lambda g=given, f=fields: [generate(prompt, f) for prompt in g],
                }
                found = in_turns(jobs, rounds=rounds)
                about = {"model": path.name, "V": width, "streams": streams, "parameters": name, "rounds": rounds}
                rows.append({**about, **row_of(found, streams)})
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measures every file that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--make", type=Path)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    asked = parser.parse_args()
    if asked.make is not None:
        sys.path.insert(0, str(WRITER))
        importlib.import_module("gguf_llama").random_llama(
            asked.make, llama_config(asked.hidden, asked.layers), kind="Q8_0"
        )
    if not asked.files:
        return
    rows = [row for path in asked.files for row in measure(path, rounds=asked.rounds, all_streams=asked.streams)]
    notes = (
        f"llama-cpp-python {version('llama-cpp-python')}, one thread, {NEW} new tokens after prompts of 16, prefill "
        f"included, sides interleaved, medians of the rounds on a busy machine; tirage also detokenises. "
        "Llama.generate runs eight prompts one after the other, as llama_cpp.server does."
    )
    save("gguf", rows, notes=notes)


if __name__ == "__main__":
    main()
