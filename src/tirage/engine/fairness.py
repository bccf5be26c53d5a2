"""Shares of the engine among tenants and requests, and how many rows a step may have while several want their turn."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
TURN_STEPS = 8
"""Steps for which a row keeps its turn: models move the caches of rows whose company changes."""
STEP_S = 0.05
"""Seconds that a step with several requests shall not exceed."""
# How much of the mean of rows and seconds remains after one more step.
_MEMORY = 0.95
# More rows than any step has.
_ANY = 1 << 30


class FairnessKey(NamedTuple):
    """Who a row belongs to: a tenant, and one of its requests, whose prompts were submitted together."""

    tenant: str
    request: int


def max_min(demands: Mapping[K, int], capacity: int) -> dict[K, int]:
    """How many of `capacity` each gets: at most its demand, and no more than any other whose demand is not met.

    What cannot be divided goes to the first.
    """
    given, left = dict.fromkeys(demands, 0), capacity
    hungry = [key for key, wanted in demands.items() if wanted > 0]
    while left > 0 and hungry:
        each = max(left // len(hungry), 1)
        for key in hungry:
            added = min(each, demands[key] - given[key], left)
            given[key] += added
            left -= added
        hungry = [key for key in hungry if given[key] < demands[key]]
    return given


def shares(demands: Mapping[FairnessKey, int], capacity: int) -> dict[FairnessKey, int]:
    """How many of `capacity` each request gets: equal parts for tenants, and within a tenant for its requests."""
    tenants = defaultdict[str, dict[FairnessKey, int]](dict)
    for key, wanted in demands.items():
        tenants[key.tenant][key] = wanted
    parts = max_min({tenant: sum(wanted.values()) for tenant, wanted in tenants.items()}, capacity)
    given: dict[FairnessKey, int] = {}
    for tenant, wanted in tenants.items():
        given |= max_min(wanted, parts[tenant])
    return given


def has_room(rows: Mapping[FairnessKey, int], key: FairnessKey, need: int, *, capacity: int) -> bool:
    """Whether a request may open `need` more rows beside the open `rows` of all requests.

    Up to `capacity` rows anyone may. Beyond it, up to twice as many are open, of which only `capacity` take part in a
    step: then a request may have its share. The last quarter of these is kept for the first row of a request.
    """
    total, own = sum(rows.values()), rows.get(key, 0)
    if total + need <= capacity:
        return True
    most = 2 * capacity - (0 if need == 1 and not own else max(capacity // 4, 1))
    if total + need > most:
        return False
    if need > 1:
        # The beams of a search are opened together; it has its turn beam by beam.
        return not own
    return shares({**rows, key: own + 1}, capacity)[key] > own


class Turns:
    """Whose turn it is: those that had the fewest come first, and keep their turn for `length` steps."""

    def __init__(self, length: int = 1) -> None:
        self._length = length
        self._had: dict[Any, int] = {}

    def order(self, keys: Iterable[K]) -> list[K]:
        """The keys, the next ones first, else in their own order; those left out are forgotten, new ones begin last."""
        keys = list(keys)
        least = min((self._had[key] for key in keys if key in self._had), default=0)
        self._had = {key: self._had.get(key, least) for key in keys}
        return sorted(keys, key=lambda key: self._had[key] // self._length)

    def forget(self, key: Hashable) -> None:
        """Drops a key that will not come again."""
        self._had.pop(key, None)

    def take(self, keys: Iterable[Hashable]) -> None:
        """Counts a turn of each of the keys that were put in order."""
        for key in keys:
            if key in self._had:
                self._had[key] += 1


def interleaved(items: Sequence[T], key_of: Callable[[T], FairnessKey], turns: Turns) -> list[T]:
    """The items with those of each tenant and request in turn, those first that have had the fewest turns."""
    requests = defaultdict[FairnessKey, list[T]](list)
    for item in items:
        requests[key_of(item)].append(item)
    if len(requests) == 1:
        return [*items]
    tenants = defaultdict[str, list[list[T]]](list)
    for key in turns.order(requests):
        tenants[key.tenant].append(requests[key])
    return alternated([alternated(lists) for lists in tenants.values()])


def alternated(lists: Sequence[Sequence[T]]) -> list[T]:
    """The first items of all lists, then the second ones, and so on."""
    nothing = object()
    rounds = itertools.zip_longest(*lists, fillvalue=nothing)
    return [item for each in rounds for item in each if item is not nothing]  # type: ignore[misc]


class StepPace:
    """How long steps take, as a part that each has and one for every row, by the steps of the recent past.

    The parts can only be told apart when steps differ in size; until then all of the time is that of the rows.
    """

    def __init__(self, step_s: float = STEP_S) -> None:
        self._step_s, self._base_s = step_s, 0.0
        self._weight = self._rows = self._seconds = self._rows_squared = self._product = 0.0

    def record(self, rows: int, seconds: float) -> None:
        """Notes a step of so many rows, at least 1."""
        self._weight = self._weight * _MEMORY + 1
        self._rows = self._rows * _MEMORY + rows
        self._seconds = self._seconds * _MEMORY + seconds
        self._rows_squared = self._rows_squared * _MEMORY + rows * rows
        self._product = self._product * _MEMORY + rows * seconds
        rows_mean, mean_s = self._rows / self._weight, self._seconds / self._weight
        spread = self._rows_squared / self._weight - rows_mean**2
        if spread > (rows_mean / 8) ** 2:
            slope = (self._product / self._weight - rows_mean * mean_s) / spread
            self._base_s = max(mean_s - max(slope, 0.0) * rows_mean, 0.0)
        self._base_s = min(self._base_s, mean_s)

    @property
    def most_rows(self) -> int:
        """The rows of a step that lasts `step_s` seconds, or twice the part that each step has, if that is longer."""
        per_row_s = (self._seconds / self._weight - self._base_s) / (self._rows / self._weight) if self._weight else 0.0
        if per_row_s <= 0:
            return _ANY
        rows = (max(self._step_s, 2 * self._base_s) - self._base_s) / per_row_s
        return int(min(rows, _ANY))
