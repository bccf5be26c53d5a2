"""The requests that wait for the scheduler, by tenant and in the order of their arrival."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Container, Iterator, Mapping
from typing import Any

from tirage.engine.fairness import FairnessKey, Tenant
from tirage.engine.sequence import SequenceGroup


class RequestQueue:
    """Waiting requests. Those that were submitted together wait in one line, in their order."""

    def __init__(self) -> None:
        self._lines: dict[Tenant, dict[FairnessKey, deque[SequenceGroup]]] = {}
        self._counts = Counter[Tenant]()

    def __len__(self) -> int:
        return self._counts.total()

    def __iter__(self) -> Iterator[SequenceGroup]:
        return (group for lines in [*self._lines.values()] for line in [*lines.values()] for group in [*line])

    def __contains__(self, group: Any) -> bool:
        return group in self._lines.get(group.key.tenant, {}).get(group.key, ())

    @property
    def counts(self) -> dict[Tenant, int]:
        """The number of waiting requests of each tenant that has any; any thread may ask."""
        return {tenant: count for tenant, count in dict(self._counts).items() if count}

    def append(self, group: SequenceGroup) -> None:
        """Puts a request at the end of its line."""
        self._lines.setdefault(group.key.tenant, {}).setdefault(group.key, deque()).append(group)
        self._counts[group.key.tenant] += 1

    def remove(self, group: SequenceGroup) -> None:
        """Takes out a request that waits."""
        tenant = group.key.tenant
        lines = self._lines[tenant]
        lines[group.key].remove(group)
        self._counts[tenant] -= 1
        if not lines[group.key]:
            del lines[group.key]
        if not lines:
            del self._lines[tenant], self._counts[tenant]

    def next_of(self, rows: Mapping[FairnessKey, int], passed: Container[FairnessKey] = ()) -> SequenceGroup | None:
        """The next request, None without one: of the tenant that has the fewest `rows`, and there of such a line.

        Rows count for less the greater the weight of their tenant is. Among equals it is the one that came first. The
        lines in `passed` are left out.
        """
        tenants = Counter[Tenant]()
        if len(self._lines) > 1:
            for key, count in rows.items():
                tenants[key.tenant] += count
        for tenant in sorted(self._lines, key=lambda tenant: tenants[tenant] / tenant.weight):
            line = shortest(self._lines[tenant], rows, passed)
            if line is not None:
                return line[0]
        return None


def shortest(
    lines: Mapping[FairnessKey, deque[SequenceGroup]], rows: Mapping[FairnessKey, int], passed: Container[FairnessKey]
) -> deque[SequenceGroup] | None:
    """The first line of those whose requests have the fewest rows, but for the lines in `passed`."""
    found, least = None, 0
    for key, line in lines.items():
        count = rows.get(key, 0)
        if key not in passed and (found is None or count < least):
            found, least = line, count
        if found is not None and least == 0:
            break
    return found
