"""The size that a configuration declares, compared with that of its weights before any memory is taken for it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from tirage.errors import ModelError
from tirage.models.weights import stored_shapes, weight_files

FACTOR, SLACK = 4, 1 << 24
"""A model may have so many times the numbers that its files hold, tied and derived ones too, and so many more."""


def check_declared_size(kind: Any, config: Any, folder: Path) -> None:
    """Raises ModelError for a configuration of class `kind` that declares far more numbers than the folder's weights.

    transformers allocates what a configuration declares before it compares it with the weights.
    """
    most = (
        FACTOR * stored_numbers(folder, is_quantised=getattr(config, "quantization_config", None) is not None) + SLACK
    )
    found = declared_numbers(kind, config)
    if found > most:
        raise ModelError(
            f"{folder / 'config.json'} must declare at most {most:,} numbers, {FACTOR} times those of the weights and "
            f"{SLACK:,}, got {found:,}; take the config.json that belongs to these weights"
        )


def declared_numbers(kind: Any, config: Any) -> int:
    """The numbers in the parameters and buffers of a model, which is built without memory for them."""
    with torch.device("meta"):
        module = kind(config)
    return sum(each.numel() for part in (module.parameters(), module.buffers()) for each in part)


def stored_numbers(folder: Path, *, is_quantised: bool) -> int:
    """The numbers that the weight files hold; of a quantised model one for each byte, as several are in one word."""
    paths = weight_files(folder)
    if is_quantised:
        return sum(path.stat().st_size for path in paths)
    return sum(math.prod(shape) for path in paths for shape in stored_shapes(path).values())
