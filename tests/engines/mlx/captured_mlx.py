"""A small Llama in mlx-lm, and the adapters with every row that they draw from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from captured_rows import CapturedRow
from llama_folder import write_folder
from mlx_lm import load

from tirage.integrations import mlx


def loaded(folder: Path, **options: Any) -> tuple[Any, Any]:
    """The model and the tokenizer of a folder that is written here."""
    model, tokenizer, *_ = load(str(write_folder(folder, **options)))
    return model, tokenizer


def processors(fields: dict[str, Any], prompt: list[int], rows: list[CapturedRow], **given: Any) -> list[Any]:
    """`logits_processors` of one generation that add each of their draws to `rows`."""
    (inner,) = mlx.logits_processors(fields, **given)
    shown: list[int] = []

    def keep(tokens: Any, logits: Any) -> Any:
        ids = np.asarray(tokens).tolist()
        shown.append(len(ids))
        left = inner(tokens, logits)
        token = int(mx.argmax(left[0]).item())
        rows.append(CapturedRow(_row(logits), fields, prompt, ids[shown[0] :], token))
        return left

    return [keep]


def sampler(fields: dict[str, Any], rows: list[CapturedRow]) -> Any:
    """The `sampler` of one generation that adds each of its draws to `rows`."""
    inner, steps = mlx.sampler(fields), []

    def keep(logprobs: Any) -> Any:
        token = inner(logprobs)
        rows.append(CapturedRow(_row(logprobs), fields, (), [0] * len(steps), int(token.item())))
        steps.append(1)
        return token

    return keep


def _row(values: Any) -> np.ndarray:
    return np.array(values.astype(mx.float32)).reshape(-1)
