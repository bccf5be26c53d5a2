"""tirage's law of a row, and of the rows beside it that the noise of binary32 makes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tirage
from scripts.peers.rows import Row
from tirage import SamplingParams

Law = NDArray[np.float64]
TOLERANCE = 1e-5
NOISE = 4e-6
"""Relative move of a threshold: some 32 units in the last place of binary32, as sums of a row have."""

JITTER = 2e-6
_LOW = 0.05
"""Below this temperature the tolerance grows: an engine divides binary32 logits, whose own rounding is then seen."""

THRESHOLDS = ("top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "top_h", "top_n_sigma", "xtc_threshold")
"""Parameters that something computed in binary32 is compared with."""

_EDITS = ("repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias")
_EDITS += ("dry_multiplier", "dry_allowed_length", "dry_base", "no_repeat_ngram_size")


def our_law(row: Row, **changes: Any) -> Law:
    """tirage's law of a row, with some of its parameters changed; float64 [V]."""
    asked = SamplingParams(**(row.params | changes), semantics=row.preset)
    logits = np.array(row.logits, np.float32)
    return tirage.law(logits, asked, history=[(tuple(row.prompt), tuple(row.output))])[0]


def with_params(row: Row, **changes: Any) -> Row:
    """A row with some of its parameters changed."""
    return replace(row, params=row.params | changes)


def without(row: Row, *names: str) -> Row:
    """A row without some of its parameters, which are then off."""
    return replace(row, params={name: value for name, value in row.params.items() if name not in names})


def only(row: Row, kept: NDArray[np.bool_]) -> Row:
    """A row whose other tokens are at -inf."""
    return replace(row, logits=[x if stays else -np.inf for x, stays in zip(row.logits, kept, strict=True)])


def edited(row: Row) -> Law:
    """The law of a row after its edits alone, without a filter and at temperature 1."""
    return our_law(replace(row, params=edits_of(row.params)))


def edits_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that change logits."""
    return {name: value for name, value in params.items() if name in _EDITS}


def agree(a: Law, b: Law, row: Row) -> bool:
    """Whether two laws of a row are one, in what they keep and within the noise of binary32."""
    within = TOLERANCE * max(1.0, _LOW / (row.params.get("temperature") or 1.0))
    # NaN, of an engine that gives none, agrees with nothing.
    same_support = ((a > 0) == (b > 0)) | (np.maximum(a, b) < within)
    return bool((np.abs(a - b) <= within).all() and same_support.all())


def sorted_ties(row: Row, law: Law) -> Law:
    """A law with the probabilities of equal tokens in descending order: which of them stayed does not matter.

    Tokens are equal where the edits leave them equal logits.
    """
    groups: dict[float, list[int]] = {}
    for token, value in enumerate(edited(row).tolist()):
        groups.setdefault(value, []).append(token)
    out = law.copy()
    for tokens in groups.values():
        out[tokens] = np.sort(law[tokens])[::-1]
    return out


def nearby(row: Row) -> Iterator[Row]:
    """A row with its thresholds, and then its logits, moved by the noise of binary32."""
    present = [name for name in THRESHOLDS if name in row.params]
    for signs in product((-1, 0, 1), repeat=len(present)):
        if any(signs):
            yield with_params(row, **_nudged(row.params, present, signs))
    for seed in range(12):
        yield replace(row, logits=_jittered(row, seed))


def _nudged(params: Mapping[str, Any], names: Sequence[str], signs: Sequence[int]) -> dict[str, float]:
    moved = {name: params[name] * (1 + sign * NOISE) for name, sign in zip(names, signs, strict=True)}
    return {name: min(value, 1.0) if params[name] <= 1.0 else value for name, value in moved.items()}


def _jittered(row: Row, seed: int) -> list[float]:
    """The logits with noise, the same for equal ones."""
    x = np.array(row.logits, np.float32)
    values, which = np.unique(x, return_inverse=True)
    size = np.where(np.isneginf(values), 0.0, np.maximum(1.0, np.abs(values)))
    noise = np.random.default_rng(seed).standard_normal(values.size) * JITTER * size
    return [float(v) for v in (x + noise[which]).astype(np.float32)]
