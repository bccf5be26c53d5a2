"""What the difference between an engine's law and ours is: none, a tie, a threshold, one that is known, or an error.

The laws of a row are compared to 1e-5, their supports where a token has more than that. A mismatch is a *tie* when only
tokens of equal logits have changed places; at the *threshold* when our law is the engine's once a threshold, or the
logits, move by the noise of binary32; *documented* when the engine's law is the one that a documented difference gives
for this row; *wrong* otherwise. Noise moves equal logits together, so a wrong rule for ties is never taken for a
threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scripts.peers.known import KNOWN, Known
from scripts.peers.ours import Law, agree, nearby, our_law, sorted_ties
from scripts.peers.rows import Row

CLASSES = ("equal", "tie", "threshold", "documented", "wrong")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The class of one row, the rule of a documented difference, and the largest distance between the laws."""

    kind: str
    rule: str | None
    distance: float


def classify(row: Row, engine: Sequence[float], *, known: Mapping[str, tuple[Known, ...]] = KNOWN) -> Verdict:
    """The Verdict on an engine's law [V] of a row."""
    theirs, ours = np.array(engine, np.float64), our_law(row)
    kind, rule = _kind(row, theirs, ours, known.get(row.preset, ()))
    return Verdict(kind, rule, float(np.abs(theirs - ours).max()))


def _kind(row: Row, theirs: Law, ours: Law, known: Iterable[Known]) -> tuple[str, str | None]:
    if agree(theirs, ours, row):
        return "equal", None
    if _is_up_to_ties(row, theirs, [ours]):
        return "tie", None
    moved = list(nearby(row))
    if _is_up_to_ties(row, theirs, map(our_law, moved)):
        return "threshold", None
    for each in known:
        if _is_up_to_ties(row, theirs, _laws(each.laws, [row, *moved])):
            return "documented", each.rule
    return "wrong", None


def _laws(laws: Callable[[Row], Iterable[Law]], rows: Iterable[Row]) -> Iterable[Law]:
    return (law for row in rows for law in laws(row))


def _is_up_to_ties(row: Row, theirs: Law, laws: Iterable[Law]) -> bool:
    """Whether an engine's law is one of some, but for which of equal tokens stay."""
    wanted = sorted_ties(row, theirs)
    return any(agree(wanted, sorted_ties(row, law), row) for law in laws)
