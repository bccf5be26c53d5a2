"""Documented differences between an engine and its preset, each as the law that the engine then has.

A row is excused only where the engine's law is that law, so that another mistake in the same place is still found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from scripts.peers.ours import Law, only, our_law, without
from scripts.peers.rows import Row


@dataclass(frozen=True, slots=True)
class Known:
    """A documented difference: the rule, as in the preset's `differences`, and the laws that it allows a row.

    `laws` gives none for a row where the difference does not show.
    """

    rule: str
    laws: Callable[[Row], Iterable[Law]]


# llama.cpp


def _typical_without_entropy(row: Row) -> Iterator[Law]:
    """The entropy of a list with a token at -inf is not a number: its sort takes all tokens for equal, and cuts."""
    if "typical_p" not in row.params:
        return
    before = our_law(without(row, "typical_p", "top_p", "min_p", "xtc_probability", "temperature", "dynatemp_range"))
    ranked = np.argsort(-before, kind="stable")[: row.params.get("top_k") or None]
    if before[ranked].all():
        return
    listed = ranked[_sorted_by_nothing(ranked.size)]
    last = int(np.searchsorted(np.cumsum(before[listed]), row.params["typical_p"], side="right"))
    kept = np.isin(np.arange(before.size), listed[: last + 1]) & (before > 0)
    yield our_law(only(without(row, "typical_p", "top_n_sigma", "top_k"), kept))


def _sorted_by_nothing(size: int) -> list[int]:
    """The places of a list after libstdc++'s `std::sort` where no element is less than another: up to 16 stay."""
    places = list(range(size))
    _part(places, 0, size)
    return places


def _part(places: list[int], first: int, last: int) -> None:
    """`__introsort_loop` there: the pivot is the middle, and both ends are swapped up to it."""
    while last - first > 16:
        middle = first + (last - first) // 2
        places[first], places[middle] = places[middle], places[first]
        low, high = first + 1, last - 1
        while low < high:
            places[low], places[high] = places[high], places[low]
            low, high = low + 1, high - 1
        _part(places, low, last)
        last = low


def _moving_temperature(row: Row) -> Iterator[Law]:
    """Temperature 0 with a range r moves between 0 and r: as r / 2 with a range of r / 2 does."""
    if row.params.get("temperature") == 0.0 and "dynatemp_range" in row.params:
        half = row.params["dynatemp_range"] / 2
        yield our_law(row, temperature=half, dynatemp_range=half)


# vLLM: top-k and top-p in Triton search for a pivot that lies strictly between two logits.


def _smallest_cut_by_top_k(row: Row) -> Iterator[Law]:
    """Where top-k cuts at the smallest logit, all tokens that equal it are dropped."""
    if "top_k" in row.params:
        yield from _smallest_dropped(row, "top_k")


def _lost_by_top_p(row: Row) -> Iterator[Law]:
    """Where top-p must keep all it drops the smallest; it may keep all ties at its cut; it keeps what underflows."""
    if "top_p" not in row.params:
        return
    yield from _smallest_dropped(row, "top_p")
    full, ours = our_law(without(row, "top_k", "top_p")), our_law(row)
    yield our_law(only(without(row, "top_k", "top_p"), full >= full[ours > 0].min()))
    if "top_k" not in row.params and _underflows(row):
        yield full


def _smallest_dropped(row: Row, name: str) -> Iterator[Law]:
    """The law without the smallest logits that reach a filter, where it must keep at least one of them."""
    entering = our_law(without(row, *(("top_k", "top_p") if name == "top_k" else ("top_p",))))
    smallest = entering == entering[entering > 0].min()
    leaving = our_law(without(row, "top_p")) if name == "top_k" else our_law(row)
    larger = (entering > 0) & ~smallest
    if larger.any() and leaving[smallest].any():
        yield our_law(only(without(row, name), larger))


def _underflows(row: Row) -> bool:
    """Whether every exp(x - mean - 10 standard deviations), as top-p's kernel takes it, is 0 in binary32."""
    plain = without(row, "top_k", "top_p", "min_p", "temperature")
    # The logits after the edits, but for a constant: at this temperature no token underflows here.
    x = np.log(our_law(plain, temperature=_HOT)) * _HOT / row.params.get("temperature", 1.0)
    x = x[our_law(without(row, "top_k", "top_p")) > 0] if row.params.get("min_p") else x[x > -np.inf]
    return bool(np.exp(np.float32(x.max() - x.mean() - 10 * x.std())) == 0)


_HOT = 1000.0

# EasyDeL


def _without_bias(row: Row) -> Iterator[Law]:
    """The law of the row without its bias."""
    if "logit_bias" in row.params:
        yield our_law(without(row, "logit_bias"))


def _min_p_of_logits(row: Row) -> Iterator[Law]:
    """Logits after the temperature below min_p times the largest are set to -1e10, like those cut before."""
    plain = without(row, "logit_bias", "min_p")
    if not row.params.get("min_p") or row.params.get("temperature") == 0.0:
        return
    x = np.where(our_law(plain) > 0, _penalised(row), -1e10) / row.params.get("temperature", 1.0)
    x = np.where(x >= row.params["min_p"] * x.max(), x, -1e10)
    e = np.exp(x - x.max())
    yield e / e.sum()


def _penalised(row: Row) -> Law:
    """The logits after presence, frequency, then repetition, over prompt and output; float64 [V]."""
    x, counts = np.array(row.logits, np.float64), np.bincount([*row.prompt, *row.output], minlength=len(row.logits))
    r = row.params.get("repetition_penalty", 1.0)
    x = x - row.params.get("presence_penalty", 0.0) * (counts > 0) - row.params.get("frequency_penalty", 0.0) * counts
    return np.where(counts > 0, np.where(x > 0, x / r, x * r), x)


# FastDeploy


def _left_by_min_p(row: Row) -> Law:
    """The masses that min_p leaves of 1; float64 [V]."""
    law = our_law(without(row, "min_p", "top_p", "top_k"))
    return np.where(law >= law.max() * row.params.get("min_p", 0.0), law, 0.0)


def _rest_to_the_largest(row: Row) -> Iterator[Law]:
    """Where less than top_p is left, all of it stays and what is missing goes to the most likely token."""
    left, p = _left_by_min_p(row), row.params.get("top_p", 1.0)
    if left.sum() < p and row.params.get("temperature") != 0.0:
        left[np.argmax(left)] += p - left.sum()
        yield left / left.sum()


def _rest_to_the_last(row: Row) -> Iterator[Law]:
    """Without top_k, what min_p took away goes to the highest id that it left, whether top_p keeps that or not."""
    left, p = _left_by_min_p(row), row.params.get("top_p", 1.0)
    if row.params.get("top_k") or row.params.get("temperature") == 0.0:
        return
    larger = np.array([left[left > mass].sum() for mass in left])
    law = np.where(larger < p, left, 0.0)
    law[np.flatnonzero(left)[-1]] += 1.0 - left.sum()
    yield law / law.sum()


KNOWN: Mapping[str, tuple[Known, ...]] = {
    "llamacpp": (Known("S-O4", _typical_without_entropy), Known("S-P3", _moving_temperature)),
    "vllm": (Known("S-O1", _smallest_cut_by_top_k), Known("S-O2", _lost_by_top_p)),
    "easydel": (Known("S-N7", _without_bias), Known("S-O3", _min_p_of_logits)),
    "easydel-strict": (Known("S-N7", _without_bias), Known("S-O3", _min_p_of_logits)),
    "fastdeploy-base": (Known("S-O2", _rest_to_the_largest),),
    "fastdeploy-rejection": (Known("S-O2", _rest_to_the_last),),
}
"""By preset. A line here needs one in `tirage.differences` with the same rule; `tests/test_peers.py` checks it."""
