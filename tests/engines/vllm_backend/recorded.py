"""The logits of vLLM's engine as they reach tirage, and a model that gives them again in tirage's own engine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage import LLM
from tirage.sampling import on_host

Logits = NDArray[np.float32]
# 36 blocks of 32 tokens: room for hardly more than one request of full length, so that some are preempted.
ENGINE_ARGS: dict[str, Any] = {
    "enforce_eager": True,
    "kv_cache_memory_bytes": 36 << 16,
    "block_size": 32,
    "max_num_batched_tokens": 64,
}


@dataclass
class RecordedModel:
    """A `tirage.models.Model` whose logits after some ids are those that vLLM had after the same ids.

    `changed` is how far a logit was from what it had been after the same ids in an earlier step, at most.
    """

    vocab_size: int
    max_length: int
    logits: dict[tuple[int, ...], Logits] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)
    changed: float = 0.0

    def add(self, ids: Sequence[int], logits: Logits) -> None:
        """Keeps the logits float32 [V] after some ids."""
        known = self.logits.setdefault(tuple(ids), logits)
        self.changed = max(self.changed, float(np.abs(known - logits).max()))

    def prefill(self, token_ids: Sequence[int]) -> tuple[Logits, list[int]]:
        return self.logits[tuple(token_ids)], list(token_ids)

    def decode(self, token_ids: Sequence[int], caches: Sequence[list[int]]) -> Logits:
        for token_id, cache in zip(token_ids, caches, strict=True):
            cache.append(token_id)
        return np.stack([self.logits[tuple(cache)] for cache in caches])

    def fork(self, cache: list[int]) -> list[int]:
        return [*cache]

    def score(self, token_ids: Sequence[int]) -> Logits:
        return np.stack([self.logits[tuple(token_ids[:end])] for end in range(1, len(token_ids) + 1)])


@contextlib.contextmanager
def recording(llm: LLM) -> Iterator[RecordedModel]:
    """A model of the logits that the LLM's engine draws from meanwhile."""
    scheduler: Any = llm.engine._scheduler
    found, draw = RecordedModel(llm.model.vocab_size, llm.model.max_length), scheduler._draw

    def record(keys: Sequence[int], logits: Any) -> Any:
        found.steps.append(len(keys))
        for key, row in zip(keys, on_host(logits), strict=True):
            sequence = scheduler._running[key]
            found.add([*sequence.group.request.prompt_ids, *sequence.sample.token_ids], row.copy())
        return draw(keys, logits)

    scheduler._draw = record
    try:
        yield found
    finally:
        del scheduler._draw


def own_engine(model: RecordedModel, llm: LLM) -> LLM:
    """tirage's own engine over recorded logits, with the tokenizer and defaults of the LLM that they come from."""
    options: dict[str, Any] = {"tokenizer": llm.tokenizer, "generation_config": llm.generation_config}
    return LLM(model, max_running=5, **options)  # type: ignore[arg-type]
