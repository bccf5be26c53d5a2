"""Golden vectors: one case per line of tirage/conformance/vectors/*.jsonl, floats as hex strings, as Cases."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from paths import Answer, bits
from strategies import Case

from tirage import SamplingParams, conformance

FOLDER = Path(conformance.__file__).parent / "vectors"


@dataclass(frozen=True, slots=True)
class Vector:
    """One line of a vector file: a case and what is known about it, under the names of the file."""

    topic: str
    case: Case
    known: dict[str, Any]

    @property
    def id(self) -> str:
        return self.known["id"]

    @property
    def answer(self) -> Answer:
        """The Answer that every path must give."""
        k = self.known
        return Answer(
            k["token"],
            k["status"],
            len(k["support"]),
            bits(float.fromhex(k["sampled_logprob"])),
            bits(float.fromhex(k["logprob"])),
            k["rank"],
            tuple((t, bits(float.fromhex(v))) for t, v in k["top"]),
            tuple(bits(float.fromhex(v)) for v in k["given"]),
        )

    @property
    def weights(self) -> dict[int, int]:
        """Weights of the branch that the token was drawn from."""
        return {int(t): w for t, w in self.known["weights"].items()}


def case_of(data: dict[str, Any]) -> Case:
    """The Case of one line."""
    logits = np.array([float.fromhex(text) for text in data["logits"]], np.float32)
    if "bits" in data:
        logits = np.array([int(text, 16) for text in data["bits"]], np.uint32).view(np.float32)
    return Case(
        logits=logits,
        params=SamplingParams.from_dict(data["params"]),
        prompt=tuple(data.get("prompt", ())),
        output=tuple(data.get("output", ())),
        seed=data.get("seed", 0),
        step=data.get("step"),
        sample_index=data.get("sample_index", 0),
        mask=tuple(map(bool, data["mask"])) if "mask" in data else None,
        state=data.get("state"),
    )


def read(topic: str) -> list[Vector]:
    """The vectors of one file, in its order."""
    lines = (FOLDER / f"{topic}.jsonl").read_text().splitlines()
    return [Vector(topic, case_of(data), data) for data in map(json.loads, lines)]


def topics() -> list[str]:
    """The names of the generated files; `by_hand` is not one of them."""
    return sorted(path.stem for path in FOLDER.glob("*.jsonl") if path.stem != "by_hand")
