"""One process of a group that runs a Hugging Face folder together: `python tp_process.py RANK SIZE FOLDER MODEL`.

It writes what it generated to FOLDER/RANK.json.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tirage import LLM, GuidedDecodingParams, SamplingParams
from tirage.errors import TirageError

PROMPTS = ("Once upon a time", "One day, a girl named Lucy")
ASKED = (
    {"temperature": 0.0},
    {"seed": 1, "top_p": 0.9, "n": 2},
    {"seed": 2, "temperature": 1.3, "top_k": 40, "repetition_penalty": 1.2, "logprobs": 2},
    {"seed": 3, "min_p": 0.05, "dry_multiplier": 0.8, "stop": ["."]},
    {"seed": 4, "guided_decoding": GuidedDecodingParams(regex="[a-z ]{5,30}")},
    {"seed": 5, "typical_p": 0.9, "semantics": "hf", "max_tokens": 30},
)


def told(completion: Any) -> Any:
    return [
        [each.text, list(each.token_ids), each.finish_reason, None if each.stop is None else each.stop.kind]
        for each in completion.samples
    ]


def generated(llm: LLM) -> list[Any]:
    found = []
    for asked in ASKED:
        params = SamplingParams(**{"max_tokens": 12, **asked})  # type: ignore[arg-type]
        found += map(told, llm.generate(list(PROMPTS), params))
    return found


def refused(call: Any) -> str:
    try:
        call()
    except TirageError as error:
        return str(error)
    return "nothing was refused"


def in_parts(rank: int, llm: LLM) -> dict[str, Any]:
    """What every process of a group says besides: fresh seeds, a bad row, differing requests, refusals."""
    fresh = [llm.generate("Once", SamplingParams(temperature=2.0, max_tokens=8))[0] for _ in range(2)]
    good = SamplingParams(seed=1, max_tokens=8)
    # Rank 1 alone computes NaN, for one of three prompts.
    inner: Any = llm.model.model
    whole = inner.prefill

    def broken(ids: Any) -> Any:
        logits, cache = whole(ids)
        return (logits * float("nan") if rank == 1 and len(ids) == 2 else logits), cache

    inner.prefill = broken
    beside = [told(each) for each in llm.generate(["Once upon a time", [1, 7], "One day"], good)]
    inner.prefill = whole
    apart = llm.generate("Once" if rank == 0 else "One day", good)[0]
    return {
        "fresh": [[each.seed, list(each.token_ids)] for each in fresh],
        "beside": beside,
        "apart": told(apart),
        "again": told(llm.generate("Once upon a time", good)[0]),
        "explain": refused(lambda: llm.explain("Once", good)),
        "scores": refused(lambda: llm.generate("Once", good.replace(prompt_logprobs=1))),
    }


def main(rank: int, size: int, folder: Path, model: str) -> None:
    torch.set_num_threads(1)
    # They meet over a file: a port that was free a moment ago may be another program's by now.
    where = (folder / "meeting").as_uri()
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=size, timeout=timedelta(seconds=300))
    with LLM(model, backend="torch", tp_plan="auto") as llm:
        found = {"texts": generated(llm), **in_parts(rank, llm)}
    dist.destroy_process_group()
    (folder / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
