"""Shares of the engine among tenants and requests, and how many rows a step may have while several want their turn."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
TURN_STEPS = 8
"""Steps for which a row keeps its turn: when the rows of a step change, models may have to move their caches."""
STEP_S = 0.05
"""Seconds that a step with several requests shall not exceed."""
ALONE_S = 0.2
"""Seconds for which a step may read the prompts, or move on the rows, of a request that is alone: another may come."""
# How much of the mean of rows and seconds remains after one more step.
_MEMORY = 0.95
# By how much the shortest step of the recent past grows with each step.
_LONGER = 1.01
# Rows that a step may have whatever those before it had.
_FIRST_ROWS = 32


class Tenant(NamedTuple):
    """Who sends requests; `weight` is its share against that of others who wait, at least 1."""

    name: str = ""
    weight: int = 1


class FairnessKey(NamedTuple):
    """Who a row belongs to: a tenant, and one of its requests, whose prompts were submitted together."""

    tenant: Tenant
    request: int


def max_min(demands: Mapping[K, int], capacity: int, weights: Mapping[K, int] | None = None) -> dict[K, int]:
    """How many of `capacity` each gets: at most its demand, and no more than any other whose demand is not met.

    With `weights` more in proportion to them, 1 for a key that is not there. What cannot be divided goes to the first.
    """
    given, left = dict.fromkeys(demands, 0), capacity
    weight = {key: 1 if weights is None else weights.get(key, 1) for key in demands}
    hungry = [key for key, wanted in demands.items() if wanted > 0]
    while left > 0 and hungry:
        whole, total = left, sum(weight[key] for key in hungry)
        for key in hungry:
            added = min(max(whole * weight[key] // total, 1), demands[key] - given[key], left)
            given[key] += added
            left -= added
        hungry = [key for key in hungry if given[key] < demands[key]]
    return given


def shares(demands: Mapping[FairnessKey, int], capacity: int) -> dict[FairnessKey, int]:
    """How many of `capacity` each request gets: parts for tenants by weight, and within a tenant equal ones."""
    tenants = defaultdict[Tenant, dict[FairnessKey, int]](dict)
    for key, wanted in demands.items():
        tenants[key.tenant][key] = wanted
    weights = {tenant: tenant.weight for tenant in tenants}
    parts = max_min({tenant: sum(wanted.values()) for tenant, wanted in tenants.items()}, capacity, weights)
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
        """The keys, the next ones first, equal ones as given; new ones are next too, those left out are forgotten."""
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
    """The items of all tenants and requests in turn; those that have had the fewest turns come first."""
    requests = defaultdict[FairnessKey, list[T]](list)
    for item in items:
        requests[key_of(item)].append(item)
    if len(requests) == 1:
        return [*items]
    tenants = defaultdict[Tenant, list[list[T]]](list)
    for key in turns.order(requests):
        tenants[key.tenant].append(requests[key])
    return alternated([alternated(lists) for lists in tenants.values()], [tenant.weight for tenant in tenants])


def alternated(lists: Sequence[Sequence[T]], counts: Sequence[int] | None = None) -> list[T]:
    """The first items of all lists, then the next ones, and so on; at a time one of each, or as many as `counts`."""
    steps = [1] * len(lists) if counts is None else counts
    rounds = [
        [items[i : i + step] for i in range(0, len(items), step)] for items, step in zip(lists, steps, strict=True)
    ]
    return [item for each in itertools.zip_longest(*rounds, fillvalue=()) for part in each for item in part]


def share_of(tenant: Tenant, others: Iterable[Tenant], whole: int) -> int:
    """The part of `whole` that a tenant has by its weight, when the others have theirs; rounded down."""
    return whole * tenant.weight // sum(each.weight for each in {*others, tenant})


class StepPace:
    """How long steps take: a constant part, and a part for every row, estimated from recent steps.

    The parts can only be told apart when steps differ in size; until then all of the time counts as that of the rows.
    The constant part is no longer than the shortest step: rows are chosen so that steps are equally long, so on a
    machine that is busy at times their number alone tells little. After steps of few rows, the time of many is a guess.
    Rows of another kind may be far slower than those before them, so the last step alone counts where it was slower.
    """

    def __init__(self, step_s: float = STEP_S) -> None:
        self._step_s, self._base_s, self._largest, self._least_s = step_s, 0.0, 0.0, math.inf
        self._weight = self._rows = self._seconds = self._rows_squared = self._product = 0.0
        self._last_rows, self._last_s = 1, 0.0

    def record(self, rows: int, seconds: float) -> None:
        """Notes a step of so many rows, at least 1."""
        self._last_rows, self._last_s = rows, seconds
        self._largest = max(self._largest * _MEMORY, rows)
        self._least_s = min(self._least_s * _LONGER, seconds)
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
        self._base_s = min(self._base_s, mean_s, self._least_s)

    @property
    def most_rows(self) -> int:
        """The rows of a step that lasts `step_s` seconds, or twice the constant part of a step, if that is longer.

        They are at most four times those of the largest step of late, where it had more than a few.
        """
        return self._rows_within(max(self._step_s, 2 * self._base_s))

    @property
    def most_rows_alone(self) -> int:
        """The same for ALONE_S seconds, or four times the constant part."""
        return self._rows_within(max(ALONE_S, 4 * self._base_s))

    def _rows_within(self, seconds: float) -> int:
        known = int(max(_FIRST_ROWS, 4 * self._largest))
        mean_s = (self._seconds / self._weight - self._base_s) / (self._rows / self._weight) if self._weight else 0.0
        per_row_s = max(mean_s, (self._last_s - self._base_s) / self._last_rows)
        return min(int((seconds - self._base_s) / per_row_s), known) if per_row_s > 0 else known
