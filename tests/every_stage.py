"""For each semantics, parameters that switch on every stage it has; and logits to try them on."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage import SamplingParams, Semantics
from tirage.operators import OPERATORS
from tirage.semantics import EDITS, FILTERS, resolve

OPTIONS = {name: OPERATORS[name].gentle for name in (*EDITS, *FILTERS)}
"""What switches each stage on, gently enough that several tokens survive all of them together."""


def full_params(semantics: str | Semantics, **changes: Any) -> SamplingParams:
    """SamplingParams under `semantics` with its stages at work, but processors and those that carry a state."""
    merged: dict[str, Any] = {}
    for stage in resolve(semantics).stages:
        if stage not in CARRIED:
            merged |= OPTIONS[stage]
    return SamplingParams(**{**merged, "semantics": semantics, **changes})


CARRIED = {"mirostat", "adaptive_p"}
"""Stages whose rows carry a state from token to token: without it a row in the middle of a text is refused."""


def hashed_logits(*key: int | str, size: int, scale: float = 2.0) -> NDArray[np.float32]:
    """Normal float32 logits [size] that depend on `key` alone."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    rng = np.random.default_rng(int.from_bytes(digest, "little"))
    return (rng.standard_normal(size) * scale).astype(np.float32)


def octaves(*steps: float) -> NDArray[np.float32]:
    """Logits whose probabilities stand in the ratio 2^-step."""
    return (-np.array(steps) * np.log(2.0)).astype(np.float32)


def bitmask(*rows: list[int], size: int) -> NDArray[np.int32]:
    """The int32 bitmask [B, ceil(size / 32)] that allows the listed ids of each row."""
    words = np.zeros((len(rows), -(-size // 32)), np.uint32)
    for row, allowed in enumerate(rows):
        for token in allowed:
            words[row, token // 32] |= np.uint32(1 << token % 32)
    return words.view(np.int32)
