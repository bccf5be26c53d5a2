"""Rows of logits as they pass SGLang's own classes to tirage, drawn again by `tirage.sample` alone: the same tokens.

    python tests/engines/sglang/proof.py

SGLang's server needs a GPU. Here its requests, its call of custom logit processors and its bookkeeping are those of the
published wheel; the model is a function of the text. Results: benchmarks/results/engines/sglang.json.
"""

from __future__ import annotations

from typing import Any

import torch
from captured_rows import CapturedRow, compared, flat, save
from every_parameter import company, operators_own, requests
from scheduled import request, step

PROMPTS = [[5, 9, 14, 9, 5, 9, 14], [7, 7, 21], [100]]
NEW = 12


def main() -> None:
    fields = [*requests(), *operators_own(), *company()]
    found: dict[str, Any] = {"classes of the published wheel, no server": True}
    for dtype in (torch.float32, torch.bfloat16):
        alone = [drawn([each], at, dtype=dtype)[0] for at, each in enumerate(fields)]
        ways = {
            "in a batch of 16": batches(fields, dtype=dtype),
            "in a batch of 16, overlapped": batches(fields, dtype=dtype, lag=1),
            "in a batch of 16, prompts read again on the way": batches(fields, dtype=dtype, again=True),
        }
        named = str(dtype).removeprefix("torch.")
        found[f"{named}, alone"] = compared(flat(alone))
        for name, way in ways.items():
            same = sum([r.token for r in a] == [r.token for r in b] for a, b in zip(alone, way, strict=True))
            found[f"{named}, {name}"] = compared(flat(way)) | {"texts equal to those alone": f"{same} of {len(alone)}"}
    save("sglang", ("sglang", "torch", "transformers"), fields, found)
    texts = [part["texts equal to those alone"] for part in found.values() if isinstance(part, dict) and len(part) > 2]
    if set(texts) != {f"{len(fields)} of {len(fields)}"}:
        raise SystemExit(f"a text depends on its company: {texts}")


def batches(fields: list[dict[str, Any]], **how: Any) -> list[list[CapturedRow]]:
    return [rows for at in range(0, len(fields), 16) for rows in drawn(fields[at : at + 16], at, **how)]


def drawn(
    fields: list[dict[str, Any]], first: int, *, dtype: torch.dtype, lag: int = 0, again: bool = False
) -> list[list[CapturedRow]]:
    """The rows of each request; the scheduler learns of a token `lag` steps late; `again`: each is retracted once."""
    held = [request(f"r{first + at}", PROMPTS[(first + at) % 3], each) for at, each in enumerate(fields)]
    told: list[list[int]] = [[] for _ in held]
    rows: list[list[CapturedRow]] = [[] for _ in held]
    for count in range(NEW):
        if again and count == NEW // 2:
            step(held, told, chunks=dict.fromkeys(range(len(held)), 0), dtype=dtype)
        for at, row in enumerate(step(held, told, dtype=dtype)):
            rows[at].append(row)
        for each, output in zip(held, told, strict=True):
            each.output_ids[:] = type(each.output_ids)("q", output[: len(output) - lag])
    return rows


if __name__ == "__main__":
    main()
