"""Rows of logits as they reached an adapter, drawn again by `tirage.sample` alone, and a file of the results."""

from __future__ import annotations

import json
import platform
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from every_parameter import names
from numpy.typing import NDArray

import tirage
from tirage import SamplingParams

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "engines"


@dataclass(frozen=True, eq=False)
class CapturedRow:
    """One draw inside an engine: the row float32 [V] as it came, of which request and place, and what was drawn."""

    logits: NDArray[np.float32]
    fields: Mapping[str, Any]
    prompt: Sequence[int]
    output: Sequence[int]
    token: int
    sample_index: int = 0


class Redraws:
    """Draws by `tirage.sample` alone, one row at a time, and the states that they led to, by the text before them."""

    def __init__(self) -> None:
        self._states: dict[Hashable, Any] = {}

    def token(
        self, logits: Any, params: SamplingParams, prompt: Sequence[int], output: Sequence[int], sample_index: int = 0
    ) -> int:
        """What is drawn from logits [V] after these ids; -1 where nothing can be."""
        request, text = (params, sample_index, tuple(prompt)), tuple(output)
        draw = tirage.sample(
            logits,
            params,
            history=[(list(prompt), list(output))],
            sample_index=sample_index,
            state=self._states.get((request, text)),
        )
        token = int(draw.token_ids[0])
        if params.mirostat or params.adaptive_target >= 0:
            self._states[request, (*text, token)] = draw.states
        return token


def compared(rows: Sequence[CapturedRow]) -> dict[str, int]:
    """How many rows there are, and in how many of them `tirage.sample` alone draws another token.

    Rows of one text come in its order.
    """
    alone, different = Redraws(), 0
    for row in rows:
        params = SamplingParams.from_dict(row.fields)
        different += alone.token(row.logits, params, row.prompt, row.output, row.sample_index) != row.token
    return {"tokens": len(rows), "different": different}


def flat(parts: Sequence[Sequence[CapturedRow]]) -> list[CapturedRow]:
    """The rows of all requests, one after the other."""
    return [row for rows in parts for row in rows]


def same_texts(one: list[list[CapturedRow]], other: list[list[CapturedRow]]) -> dict[str, Any]:
    """How many texts are equal, and how far the logits of the first token, which follow the same prompt, are apart."""
    texts = [[[row.token for row in rows] for rows in way] for way in (one, other)]
    moved = max(float(np.abs(a[0].logits - b[0].logits).max()) for a, b in zip(one, other, strict=True))
    same = sum(a == b for a, b in zip(*texts, strict=True))
    return {"texts equal to those alone": f"{same} of {len(one)}", "logits moved by at most": moved}


def save(engine: str, packages: Sequence[str], fields: list[dict[str, Any]], found: dict[str, Any]) -> None:
    """Writes and prints the results of an engine. SystemExit where rows were drawn otherwise, or too few."""
    versions = {name: version(name) for name in packages} | {
        "tirage": tirage.__version__,
        "python": platform.python_version(),
    }
    body = {"versions": versions, "requests": len(fields), "parameters": names(fields), **found}
    RESULTS.mkdir(exist_ok=True, parents=True)
    (RESULTS / f"{engine}.json").write_text(json.dumps(body, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    parts = [part for part in found.values() if isinstance(part, dict) and "tokens" in part]
    if any(part["different"] for part in parts) or sum(part["tokens"] for part in parts) < 1000:
        raise SystemExit(f"{engine}: {found}")
