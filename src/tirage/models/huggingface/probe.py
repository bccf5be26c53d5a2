"""Which path a model takes, found out when it is loaded: two short prompts, alone and in company."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tirage.errors import ModelError
from tirage.models.huggingface.model import CHUNK, HuggingFaceModel, Path, is_known
from tirage.models.protocol import Inputs

# Two lengths, so that one is padded; long enough for three pieces of the probe's own chunk.
_LENGTHS = (11, 6)
_CHUNK = 4
_STEPS = 3
# Differences a joined pass may make, relative to the largest logit. A wrong mask or a mixed-up state is far above.
_TOLERANCE = {torch.float32: 2e-4, torch.float64: 1e-6}
_LOW_PRECISION = 6e-2

_log = logging.getLogger("tirage")


def choose_path(model: HuggingFaceModel, name: str) -> None:
    """Sets the model's `path` and `chunk` to the quickest that give the logits of a plain forward pass.

    The log says which and why. Raises ModelError when not even reading everything again at each step works.
    """
    budget, model.prefixes.budget = model.prefixes.budget, 0
    try:
        _choose(model, name)
    finally:
        model.prefixes.budget = budget


def _choose(model: HuggingFaceModel, name: str) -> None:
    prompts = probe_prompts(model)
    model.path, model.chunk = "recomputed", None
    try:
        expected = run_rows(model, prompts, together=False)
    except Exception as error:
        raise ModelError(f"{name} cannot be run: {type(error).__name__}: {error}") from error
    reasons = []
    tries: tuple[tuple[Path, Callable[[HuggingFaceModel], str]], ...] = (("joined", not_joinable), ("alone", nothing))
    for path, refuses in tries:
        model.path = path
        reason = refuses(model) or differs(model, prompts, expected)
        if not reason:
            break
        reasons.append(f"not {path}: {reason}")
    else:
        model.path = "recomputed"
    if model.path != "recomputed":
        model.chunk = _CHUNK
        chunked = differs(model, prompts, expected)
        model.chunk = CHUNK if not chunked else None
        if chunked:
            reasons.append(f"prompts are read in one piece: {chunked}")
    words = "; ".join(reasons)
    _log.info("%s decodes rows %s%s", name, model.path, f" ({words})" if words else "")


def probe_prompts(model: HuggingFaceModel) -> list[list[int]]:
    rng = np.random.default_rng(0)
    high = min(model.vocab_size, getattr(model.config, "vocab_size", model.vocab_size))
    # Special and placeholder ids tend to lie at either end.
    low, high = (high // 8, high - high // 8) if high >= 16 else (0, high)
    return [rng.integers(low, high, length).tolist() for length in _LENGTHS]


def nothing(_: HuggingFaceModel) -> str:
    return ""


def not_joinable(model: HuggingFaceModel) -> str:
    """Why rows cannot even be put side by side, or an empty string."""
    if model.cache_name is None:
        return "the model takes no cache of transformers"
    row = model.open(Inputs(token_ids=tuple(probe_prompts(model)[1])))
    model.read(row)
    if not is_known(row.cache):
        kinds = sorted({type(layer).__name__ for layer in row.cache.layers})
        return f"cache layers {', '.join(kinds) or 'that the model keeps to itself'}"
    return ""


def differs(model: HuggingFaceModel, prompts: list[list[int]], expected: list[np.ndarray]) -> str:
    """Why the model's present path is not right, or an empty string."""
    try:
        got = run_rows(model, prompts, together=True)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"
    for want, have in zip(expected, got, strict=True):
        scale = float(np.abs(want).max()) or 1.0
        error = float(np.abs(want - have).max()) / scale
        if not error <= tolerance_of(model):
            return f"logits differ by {error:.1e} of the largest"
    return ""


def run_rows(model: HuggingFaceModel, prompts: list[list[int]], *, together: bool) -> list[np.ndarray]:
    """Logits [steps, V] of each prompt's fixed continuation; together, the second prompt joins after a step."""
    rows: list[Any] = []
    logits: list[list[np.ndarray]] = [[] for _ in prompts]
    for index, prompt in enumerate(prompts):
        row = model.open(Inputs(token_ids=tuple(prompt)))
        last = model.read(row)
        while row.left:
            last = model.read(row)
        rows.append(row)
        logits[index].append(last[-1])
        if not together:
            for step in range(_STEPS + 1 - index):
                logits[index].append(model.decode([prompt[step]], [row])[0])
        elif index == 0:
            logits[0].append(model.decode([prompt[0]], [row])[0])
    for step in range(_STEPS if together else 0):
        both = model.decode([prompts[0][step + 1], prompts[1][step]], rows)
        for index, row_logits in enumerate(both):
            logits[index].append(row_logits)
    for row in rows:
        model.close(row)
    return [np.stack(each) for each in logits]


def tolerance_of(model: HuggingFaceModel) -> float:
    """The relative difference that a joined pass in the model's precision may make."""
    return _LOW_PRECISION if model.quantized else _TOLERANCE.get(model.module.dtype, _LOW_PRECISION)
