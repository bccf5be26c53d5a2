"""How fast is the engine beside transformers' own ways to serve: a mixed load, the sampler's share, a second turn.

Random Llamas of 12 M and 100 M parameters in float32 on one thread, greedy unless said; all ways give the same
tokens. `python -m benchmarks.engine [small|large]` runs one size alone.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers.models.llama import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging as transformers_logging

import tirage
from benchmarks.harness import save
from tirage.models.huggingface import wrap_module

SIZES: dict[str, dict[str, Any]] = {
    "small": {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 8},
    "large": {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12},
}
REQUESTS = {"small": 64, "large": 32}
ROWS = 16
WIDE = 128_000


class Numbers:
    """A tokenizer of ids written as numbers, for models without one."""

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: Any) -> str:
        return "".join(f"{i} " for i in ids)


def llama(size: str, vocab: int = 32_000) -> Any:
    """A random Llama; the same for every caller."""
    torch.manual_seed(0)
    config = LlamaConfig(
        **SIZES[size],
        num_key_value_heads=SIZES[size]["num_attention_heads"],
        vocab_size=vocab,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def load(count: int) -> list[tuple[list[int], int]]:
    """(prompt, number of tokens to write) of `count` requests: prompts of 16 to 256 tokens, 8 to 79 new ones."""
    rng = np.random.default_rng(0)
    lengths, news = rng.integers(16, 257, count), rng.integers(8, 80, count)
    return [(rng.integers(10, 31_000, n).tolist(), int(m)) for n, m in zip(lengths, news, strict=True)]


def open_llm(module: Any, **options: Any) -> tirage.LLM:
    return tirage.LLM(wrap_module(module, **options), tokenizer=Numbers(), max_running=ROWS)


def by_engine(llm: tirage.LLM, work: list[tuple[list[int], int]]) -> list[list[int]]:
    params = [tirage.SamplingParams(temperature=0, max_tokens=new, detokenize=False) for _, new in work]
    return [list(done.token_ids) for done in llm.generate([prompt for prompt, _ in work], params)]


def one_by_one(module: Any, work: list[tuple[list[int], int]]) -> list[list[int]]:
    found = []
    for prompt, new in work:
        ids = torch.tensor([prompt])
        out = module.generate(ids, max_new_tokens=new, do_sample=False, eos_token_id=None, pad_token_id=0)
        found.append(out[0, len(prompt) :].tolist())
    return found


def by_transformers(module: Any, work: list[tuple[list[int], int]]) -> list[list[int]]:
    """transformers' ContinuousBatchingManager, with room for as many rows."""
    from transformers.generation.configuration_utils import ContinuousBatchingConfig, GenerationConfig

    config = GenerationConfig(max_new_tokens=80, do_sample=False, eos_token_id=-1, pad_token_id=0, use_cache=True)
    batching = ContinuousBatchingConfig(num_blocks=512, max_batch_tokens=512)
    manager = module.init_continuous_batching(generation_config=config, continuous_batching_config=batching)
    manager.start()
    try:
        names = [manager.add_request(prompt, max_new_tokens=new) for prompt, new in work]
        found: dict[str, list[int]] = {}
        while len(found) < len(names):
            result = manager.get_result(timeout=60)
            if result is not None and result.is_finished():
                found[result.request_id] = list(result.generated_tokens)
        return [found[name] for name in names]
    finally:
        manager.stop(block=True)


def timed(job: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = job()
    return time.perf_counter() - start, result


def mixed_load(size: str) -> list[dict[str, Any]]:
    """Tokens per second of each way on the mixed load, best of two rounds, and whether the tokens agree."""
    work, module = load(REQUESTS[size]), llama(size)
    # Packed as the model of a folder would be; the others have modules of their own, as transformers makes them.
    llm = open_llm(llama(size), prefix_bytes=0, packed=True)
    other = llama(size)
    ways: dict[str, Callable[[], list[list[int]]]] = {
        "tirage": lambda: by_engine(llm, work),
        "transformers continuous batching": lambda: by_transformers(other, work),
        "transformers one by one": lambda: one_by_one(module, work),
    }
    times: dict[str, float] = {}
    tokens: dict[str, list[list[int]]] = {}
    for _ in range(2):
        for name, way in ways.items():
            seconds, tokens[name] = timed(way)
            times[name] = min(seconds, times.get(name, seconds))
    total = sum(new for _, new in work)
    return [
        {
            "question": "mixed load",
            "model": size,
            "way": name,
            "tokens_per_s": round(total / times[name], 1),
            "tirage_times_faster": round(times[name] / times["tirage"], 2),
            "same_tokens": tokens[name] == tokens["transformers one by one"],
        }
        for name in ways
    ]


def sampling_share(size: str, sharpness: float) -> dict[str, Any]:
    """The sampler's part of a step at V = 128 k, 32 rows, temperature 0.8 and top_p 0.95.

    The logits of a random model have a standard deviation of 0.3, so that top_p keeps most of the vocabulary;
    `sharpness` 10 makes it 3, as peaked as a trained model's. The least that any sampler can take stands beside it.
    """
    module = llama(size, WIDE)
    module.model.norm.weight.data *= sharpness
    llm = tirage.LLM(wrap_module(module, prefix_bytes=0, packed=True), tokenizer=Numbers(), max_running=32)
    params = [
        tirage.SamplingParams(temperature=0.8, top_p=0.95, seed=i, max_tokens=24, detokenize=False) for i in range(32)
    ]
    tirage.warmup()
    prompts = [prompt[:32] for prompt, _ in load(32)]
    llm.generate(prompts, params)
    before = llm.engine.progress()
    llm.generate(prompts, params)
    after = llm.engine.progress()
    spent = {part: getattr(after, part) - getattr(before, part) for part in ("sample_s", "text_s", "decode_s")}
    step_s = sum(spent.values()) / (after.steps - before.steps)
    shape = {"V": WIDE, "B": 32, "logits_std": round(0.32 * sharpness, 1)}
    shares = {"share": spent["sample_s"] / sum(spent.values()), "one_pass_share": one_pass_s() / step_s}
    return {"question": "sampling share", "model": size, **shape, **{k: round(v, 4) for k, v in shares.items()}}


def one_pass_s() -> float:
    """Seconds that `np.max` takes over the logits of a step: what it costs to look at them at all."""
    logits = np.random.default_rng(0).standard_normal((32, WIDE), dtype=np.float32)
    elsewhere = np.ones(16 << 20, np.float32)
    times = []
    for _ in range(20):
        # A step computes its logits long before they are drawn from: by then they have left the caches.
        elsewhere += 1
        start = time.perf_counter()
        logits.max(axis=1)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def second_turn(size: str) -> dict[str, Any]:
    """Seconds to the first token of a turn of 40 tokens after a history of 900, with and without reuse."""
    rng = np.random.default_rng(1)
    history = rng.integers(10, 31_000, 900).tolist()
    turns = [history + rng.integers(10, 31_000, 40).tolist() for _ in range(3)]
    found: dict[str, float] = {}
    for name, budget in (("without", 0), ("with", 256 << 20)):
        llm = open_llm(llama(size), prefix_bytes=budget, packed=True)
        params = tirage.SamplingParams(temperature=0, max_tokens=1)
        llm.generate(history, params)
        firsts = [llm.generate(turn, params)[0].timings.first_token_s or 0.0 for turn in turns]
        found[name] = min(firsts)
    faster = round(found["without"] / found["with"], 1)
    return {
        "question": "second turn",
        "model": size,
        **{f"{k}_s": round(v, 4) for k, v in found.items()},
        "times_faster": faster,
    }


def main() -> None:
    transformers_logging.set_verbosity_error()
    torch.set_num_threads(1)
    sizes = sys.argv[1:] or list(SIZES)
    rows: list[dict[str, Any]] = []
    for size in sizes:
        rows += [*mixed_load(size), sampling_share(size, 1), sampling_share(size, 10), second_turn(size)]
    save("engine", rows, notes="one thread, float32; best of two rounds; ratios within one run")


if __name__ == "__main__":
    main()
