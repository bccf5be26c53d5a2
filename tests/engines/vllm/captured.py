"""An engine of vLLM in this process whose processor keeps every row of logits that it draws from.

In this process, so that the rows can be read; and one only, as vLLM's worker does not start once llvmlite is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="WARNING", VLLM_CPU_KVCACHE_SPACE="1")

from captured_rows import Redraws
from llama_folder import write_folder
from vllm import LLM

from tirage.integrations.vllm import TirageLogitsProcessor
from tirage.integrations.vllm.requests import Request


@dataclass(frozen=True, eq=False)
class Row:
    """One draw inside the engine: the row [V] as it came, whose it was, what had been put out, and what was drawn."""

    logits: Any
    request: Request
    prompt: list[int]
    output: list[int]
    token: int
    left: Any

    def drawn_alone(self, alone: Redraws) -> int:
        """What `tirage.sample` draws from the same row; -1 where it cannot."""
        return alone.token(self.logits, self.request.params, self.prompt, self.output, self.request.sample_index)


class CapturingProcessor(TirageLogitsProcessor):
    """The adapter, with every row that it draws from in `rows`."""

    rows: ClassVar[list[Row]] = []
    prompts: ClassVar[dict[Request, list[int]]] = {}

    def _take_in(self, request: Request, prompt: Any) -> None:
        self.prompts[request] = list(prompt)
        super()._take_in(request, prompt)

    def apply(self, logits: Any, context: Any = None) -> Any:
        before = logits.clone()
        outputs = {at: list(request.history()) for at, request in self._requests.items()}
        result = super().apply(logits, context)
        for at, output in outputs.items():
            request = self._requests[at]
            token = int(result[at].argmax())
            self.rows.append(Row(before[at], request, self.prompts[request], output, token, result[at].clone()))
        return result


def engine(folder: Path, **options: Any) -> LLM:
    """vLLM on a small Llama written into `folder`, with a small KV cache and prompts read in chunks of 64 tokens."""
    given = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 16, "max_num_batched_tokens": 64, **options}
    return LLM(
        str(write_folder(folder, dtype=given["dtype"])),
        enforce_eager=True,
        logits_processors=[CapturingProcessor],
        disable_log_stats=False,
        **given,
    )


def captured(run: Any) -> Iterator[Row]:
    """The rows that are drawn from while `run()` runs."""
    CapturingProcessor.rows.clear()
    run()
    yield from CapturingProcessor.rows


def differing(rows: Sequence[Row]) -> list[str]:
    """What `tirage.sample` draws otherwise from the same rows; a row that failed must fail there as well."""
    found, redraws = [], Redraws()
    for row in rows:
        alone = row.drawn_alone(redraws)
        if alone != (-1 if row.request.failed else row.token):
            found.append(f"{row.request.params} at {len(row.output)}: {row.token}, alone {alone}")
    return found


def preemptions(llm: LLM) -> int:
    """How many requests the engine has preempted so far."""
    return sum(int(metric.value) for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions")
