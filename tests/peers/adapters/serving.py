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


def _answer(row: Mapping[str, Any], law: Law) -> dict[str, Any]:
    try:
        return {"law": [float(p) for p in law(row)]}
    except (ValueError, AssertionError, NotImplementedError) as error:
        return {"refused": f"{type(error).__name__}: {error}"[:200]}
