"""mlx-lm's logits as they reach tirage, drawn again by `tirage.sample` alone: the same tokens, for every parameter.

    python tests/engines/mlx/proof.py

Results: benchmarks/results/engines/mlx.json.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import mlx.core as mx
from captured_mlx import loaded, processors, sampler
from captured_rows import CapturedRow, compared, flat, same_texts, save
from every_parameter import requests
from llama_folder import PROMPTS
from mlx_lm.generate import BatchGenerator, generate_step, speculative_generate_step

from tirage import ParamsError
from tirage.integrations import mlx

NEW = 12


def main() -> None:
    fields = requests()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for dtype in ("float32", "bfloat16"):
            model, tokenizer = loaded(Path(folder, dtype), dtype=dtype)
            prompts = [tokenizer.encode(PROMPTS[at % len(PROMPTS)]) for at in range(len(fields))]
            found |= {f"{dtype}: {name}": value for name, value in prove(model, prompts, fields).items()}
    save("mlx", ("mlx", "mlx-lm"), fields, found)


def prove(model: Any, prompts: list[list[int]], fields: list[dict[str, Any]]) -> dict[str, Any]:
    """What each way of generating drew, compared with `tirage.sample`, and with the texts of the first way."""
    asked = list(zip(prompts, fields, strict=True))
    alone = [generated(model, prompt, each) for prompt, each in asked]
    drafted = [generated(model, prompt, each, draft=True) for prompt, each in asked]
    together = [rows for at in range(0, len(asked), 16) for rows in batch(model, asked[at : at + 16])]
    sampled = [rows for prompt, each in asked if (rows := through_sampler(model, prompt, each))]
    return {
        "logits_processors": compared(flat(alone)),
        "logits_processors with a draft model": compared(flat(drafted)) | same_texts(alone, drafted),
        "logits_processors in a batch of 16": compared(flat(together)) | same_texts(alone, together),
        "sampler": {"requests": len(sampled), **compared(flat(sampled))},
    }


def generated(model: Any, prompt: list[int], fields: dict[str, Any], *, draft: bool = False) -> list[CapturedRow]:
    """The rows of one generation; with a draft model, which is the model itself, those of the text only."""
    rows: list[CapturedRow] = []
    given = processors(fields, prompt, rows, prompt_ids=prompt)
    if not draft:
        list(generate_step(mx.array(prompt), model, max_tokens=NEW, logits_processors=given))
        return rows[:NEW]
    steps = speculative_generate_step(
        mx.array(prompt), model, model, max_tokens=NEW, num_draft_tokens=3, logits_processors=given
    )
    text = [int(token) for token, *_ in steps]
    last = {(len(row.output), tuple(row.output)): row for row in rows}
    return [last[at, tuple(text[:at])] for at in range(NEW)]


def batch(model: Any, asked: list[tuple[list[int], dict[str, Any]]]) -> list[list[CapturedRow]]:
    """The rows of each of several prompts that are generated together."""
    rows: list[list[CapturedRow]] = [[] for _ in asked]
    given = [processors(fields, prompt, kept) for (prompt, fields), kept in zip(asked, rows, strict=True)]
    generator = BatchGenerator(model, max_tokens=NEW)
    generator.insert([prompt for prompt, _ in asked], logits_processors=given)
    while generator.next_generated():
        pass
    generator.close()
    return [kept[:NEW] for kept in rows]


def through_sampler(model: Any, prompt: list[int], fields: dict[str, Any]) -> list[CapturedRow]:
    """The rows of one generation with `sampler=`; none for parameters that it refuses."""
    rows: list[CapturedRow] = []
    try:
        mlx.sampler(fields)
    except ParamsError:
        return rows
    list(generate_step(mx.array(prompt), model, max_tokens=NEW, sampler=sampler(fields, rows)))
    return rows[:NEW]


if __name__ == "__main__":
    main()
