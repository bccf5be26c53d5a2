"""Seeded requests whose tokens engines drew: what they ask, their logits, and the tokens recorded from the engines.

`tests/engines/*/draws.py` draws them with an engine's own code, in its environment, and prints the lines of
`tests/data/engine_draws.jsonl`. NumPy alone is needed there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECORDED = Path(__file__).parent / "data" / "engine_draws.jsonl"
STEPS = 6
PROMPT = (3, 1, 4, 1, 5)


@dataclass(frozen=True, kw_only=True)
class SeededRequest:
    """A request for STEPS tokens after PROMPT; `spread` is the standard deviation of its logits, `grid` their unit."""

    name: str
    seed: int
    vocab_size: int
    spread: float = 3.0
    grid: float = 2.0**-12
    params: Mapping[str, Any] = field(default_factory=dict)

    def logits(self) -> NDArray[np.float32]:
        """The logits float32 [STEPS, vocab_size]: sums of twelve uniform integers, the same on every machine."""
        random = np.random.RandomState(self.seed % 2**32)
        total = random.randint(0, 1 << 16, size=(12, STEPS, self.vocab_size)).sum(0) - 6 * (1 << 16)
        return (np.round(total / (1 << 16) * self.spread / self.grid) * self.grid).astype(np.float32)


_PARAMS: Sequence[Mapping[str, Any]] = (
    {},
    {"temperature": 0.5},
    {"top_k": 20},
    {"top_p": 0.9},
    {"temperature": 1.5, "top_k": 50, "top_p": 0.8},
)
_SIZES: Sequence[tuple[int, float, float]] = ((50, 2.0, 2.0**-12), (1000, 3.0, 2.0**-12), (3000, 3.0, 2.0**-3))
"""Vocabulary, spread and grid: the last has many equal logits."""
_SEEDS = (0, 42, 2**31 + 11, 2**40 + 5)


def requests(seeds: Sequence[int] = _SEEDS) -> Iterator[SeededRequest]:
    """Every request that an engine is asked."""
    for number, (size, spread, grid) in enumerate(_SIZES):
        for which, params in enumerate(_PARAMS):
            seed = seeds[(number + which) % len(seeds)] + which
            yield SeededRequest(
                name=f"{size}/{which}", seed=seed, vocab_size=size, spread=spread, grid=grid, params=params
            )


def print_draws(engine: str, draw: Callable[[SeededRequest], Sequence[int]], seeds: Sequence[int] = _SEEDS) -> None:
    """Prints a line of RECORDED for each request."""
    for request in requests(seeds):
        line = {"engine": engine, "name": request.name, "seed": request.seed, "token_ids": list(draw(request))}
        print(json.dumps(line), flush=True)


def recorded() -> dict[tuple[str, str], tuple[SeededRequest, list[int]]]:
    """The recorded tokens with their requests, by engine and name."""
    lines = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    shapes = {each.name: each for each in requests()}
    found = {}
    for line in lines:
        shape = shapes[line["name"]]
        request = SeededRequest(**{**vars(shape), "seed": line["seed"]})
        found[line["engine"], line["name"]] = (request, line["token_ids"])
    return found
