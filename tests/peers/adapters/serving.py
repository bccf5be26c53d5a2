"""What every adapter does: read rows as JSON lines, write the engine's law of each, or why it has none."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

Law = Callable[[Mapping[str, Any]], Any]


def serve(engine: str, version: str, laws: Mapping[str, Law]) -> None:
    """Answers each row of stdin by the function of its preset: {"id", "law": [V floats]} or {"id", "refused": why}."""
    out, sys.stdout = sys.stdout, sys.stderr
    print(json.dumps({"engine": engine, "version": version, "presets": list(laws)}), file=out, flush=True)
    for line in sys.stdin:
        row = json.loads(line)
        row["params"]["logit_bias"] = {int(k): v for k, v in row["params"].get("logit_bias", {}).items()}
        print(json.dumps({"id": row["id"], **_answer(row, laws[row["preset"]])}), file=out)
    out.flush()


def over_the_coin(law: Callable[[Mapping[str, Any], float], Any]) -> Law:
    """The law of a row where `law(row, probability)` is one of XTC's coin decided: 0 never, 1 always falls on it.

    An engine that tosses the coin inside is asked both ways, and the answers are mixed.
    """

    def mixed(row: Mapping[str, Any]) -> Any:
        p = row["params"].get("xtc_probability", 0.0)
        if p in {0.0, 1.0}:
            return law(row, p)
        return (1 - p) * law(row, 0.0) + p * law(row, 1.0)

    return mixed


def _answer(row: Mapping[str, Any], law: Law) -> dict[str, Any]:
    try:
        return {"law": [float(p) for p in law(row)]}
    except (ValueError, AssertionError, NotImplementedError) as error:
        return {"refused": f"{type(error).__name__}: {error}"[:200]}


def serve_masks(
    engine: str, version: str, library: Callable[[list[bytes]], Callable[[str, Any, list[int]], Any]]
) -> None:
    """Answers each row of stdin with the tokens that `library(vocabulary)` allows: {"id", "allowed": [token ids]}.

    The first line is the vocabulary: {"vocabulary": [hexadecimal bytes]}.
    """
    out, sys.stdout = sys.stdout, sys.stderr
    print(json.dumps({"engine": engine, "version": version}), file=out, flush=True)
    allowed = library([bytes.fromhex(token) for token in json.loads(sys.stdin.readline())["vocabulary"]])
    for line in sys.stdin:
        row = json.loads(line)
        try:
            answer = {"allowed": [int(token) for token in allowed(row["mode"], row["wanted"], row["tokens"])]}
        except (ValueError, RuntimeError) as error:
            answer = {"refused": f"{type(error).__name__}: {error}"[:200]}
        print(json.dumps({"id": row["id"], **answer}), file=out)
    out.flush()
