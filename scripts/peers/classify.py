"""What the difference between an engine's law and ours is: none, a tie, a threshold, one that is known, or an error.

The laws of a row are compared to 1e-5, their supports where a token has more than that. A mismatch is a *tie* when only
tokens of equal logits have changed places; at the *threshold* when our law is the engine's once a threshold, or the
logits, move by the noise of binary32; *documented* when the row is of a kind that the preset's `differences` name;
*wrong* otherwise. Noise moves equal logits together, so a wrong rule for ties is never taken for a threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
CLASSES = ("equal", "tie", "threshold", "documented", "wrong")

THRESHOLDS = ("top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "top_h", "top_n_sigma", "xtc_threshold")
"""Parameters that something computed in binary32 is compared with."""

_EDITS = ("repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias")
_EDITS += ("dry_multiplier", "dry_allowed_length", "dry_base", "no_repeat_ngram_size")


@dataclass(frozen=True, slots=True)
class Known:
    """A documented difference: the rule, as in the preset's `differences`, and the rows where it shows."""

    rule: str
    applies: Callable[[Row], bool]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The class of one row, the rule of a documented difference, and the largest distance between the laws."""

    kind: str
    rule: str | None
    distance: float


def _has_masked(row: Row) -> bool:
    return bool(np.isneginf(row.logits).any())


def _left_by_min_p(row: Row) -> float:
    """The mass that min_p leaves, of 1."""
    law = our_law(row, min_p=0.0, top_p=1.0, **({"top_k": 0} if "top_k" in row.params else {}))
    return float(law[law >= law.max() * row.params.get("min_p", 0.0)].sum())


def _misses_mass(row: Row) -> bool:
    return _left_by_min_p(row) < row.params.get("top_p", 1.0) + TOLERANCE


def _is_not_normalised(row: Row) -> bool:
    return not row.params.get("top_k") and _left_by_min_p(row) < 1 - TOLERANCE


KNOWN: Mapping[str, tuple[Known, ...]] = {
    "llamacpp": (
        Known("S-O4", lambda row: "typical_p" in row.params and (_has_masked(row) or "top_n_sigma" in row.params)),
        Known("S-P3", lambda row: "dynatemp_range" in row.params and row.params.get("temperature") == 0.0),
    ),
    "fastdeploy-base": (Known("S-O2", _misses_mass),),
    "fastdeploy-rejection": (Known("S-O2", _is_not_normalised),),
}
"""By preset. A line here needs one in `tirage.differences` with the same rule; `tests/test_peers.py` checks it."""


def our_law(row: Row, **changes: Any) -> Law:
    """tirage's law of a row, with some of its parameters changed; float64 [V]."""
    return _law(np.array(row.logits, np.float32), row, row.params | changes)


def _law(logits: NDArray[np.float32], row: Row, params: Mapping[str, Any]) -> Law:
    asked = SamplingParams(**params, semantics=row.preset)
    return tirage.law(logits, asked, history=[(tuple(row.prompt), tuple(row.output))])[0]


def classify(row: Row, engine: Sequence[float], *, known: Mapping[str, tuple[Known, ...]] = KNOWN) -> Verdict:
    """The Verdict on an engine's law [V] of a row."""
    theirs, ours = np.array(engine, np.float64), our_law(row)
    distance = float(np.abs(theirs - ours).max())
    within = TOLERANCE * max(1.0, _LOW / (row.params.get("temperature") or 1.0))
    if _agree(theirs, ours, within):
        return Verdict("equal", None, distance)
    if _agree(_sorted_ties(row, theirs), _sorted_ties(row, ours), within):
        return Verdict("tie", None, distance)
    if any(_agree(_sorted_ties(row, theirs), _sorted_ties(row, law), within) for law in _moved(row)):
        return Verdict("threshold", None, distance)
    for each in known.get(row.preset, ()):
        if each.applies(row):
            return Verdict("documented", each.rule, distance)
    return Verdict("wrong", None, distance)


def _agree(a: Law, b: Law, within: float) -> bool:
    # NaN, of an engine that gives none, agrees with nothing.
    same_support = ((a > 0) == (b > 0)) | (np.maximum(a, b) < within)
    return bool((np.abs(a - b) <= within).all() and same_support.all())


def _sorted_ties(row: Row, law: Law) -> Law:
    """A law with the probabilities of equal tokens in descending order: which of them stayed does not matter.

    Tokens are equal where the edits leave them equal logits.
    """
    edits = {name: value for name, value in row.params.items() if name in _EDITS}
    edited = _law(np.array(row.logits, np.float32), row, edits)
    groups: dict[float, list[int]] = {}
    for token, value in enumerate(edited.tolist()):
        groups.setdefault(value, []).append(token)
    out = law.copy()
    for tokens in groups.values():
        out[tokens] = np.sort(law[tokens])[::-1]
    return out


def _moved(row: Row) -> Iterator[Law]:
    """Our laws of a row with thresholds, and then logits, moved by the noise of binary32."""
    present = [name for name in THRESHOLDS if name in row.params]
    for signs in product((-1, 0, 1), repeat=len(present)):
        changes = {name: _nudged(row.params[name], sign) for name, sign in zip(present, signs, strict=True)}
        if any(signs):
            yield our_law(row, **changes)
    for seed in range(12):
        yield _law(_jittered(row, seed), row, row.params)


def _nudged(value: float, sign: int) -> float:
    return min(value * (1 + sign * NOISE), 1.0) if value <= 1.0 else value * (1 + sign * NOISE)


def _jittered(row: Row, seed: int) -> NDArray[np.float32]:
    """The logits [V] with noise, the same for equal ones."""
    x = np.array(row.logits, np.float32)
    values, which = np.unique(x, return_inverse=True)
    size = np.where(np.isneginf(values), 0.0, np.maximum(1.0, np.abs(values)))
    noise = np.random.default_rng(seed).standard_normal(values.size) * JITTER * size
    return (x + noise[which]).astype(np.float32)
