"""The responses that the server keeps in memory, for clients that go on from one without sending it again."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tirage.engine import Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """A response, in parts, and the items of its input, as JSON; `before` are those that it went on from.

    The earliest is first.
    """

    id: str
    response: Sequence[bytes]
    items: bytes
    before: Sequence[StoredResponse] = ()

    @property
    def size(self) -> int:
        """Bytes, those that it went on from included: they stay as long as it does."""
        return sum(sum(map(len, each.response)) + len(each.items) for each in (*self.before, self))

    def input(self) -> list[Any]:
        """The items of its own input."""
        return json.loads(self.items)

    def output(self) -> list[Any]:
        """The items of its output."""
        return json.loads(b"".join(self.response))["output"]

    def conversation(self) -> list[Any]:
        """The items of all inputs and outputs up to and with this response."""
        return [item for each in (*self.before, self) for item in (*each.input(), *each.output())]


class ResponseStore:
    """The responses of every tenant, of `max_bytes` together; a tenant sees its own only.

    When there is no room, the tenant that holds the most loses its oldest: nobody's requests push out what is in
    another's equal share. One that does not fit at all is not kept. May be used by several threads.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._tenants: dict[str, OrderedDict[str, StoredResponse]] = {}
        self._sizes: dict[str, int] = {}
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Bytes of all that is kept."""
        return sum(self._sizes.values())

    def keep(self, stored: StoredResponse, *, tenant: Tenant) -> None:
        """Keeps a response, and lets go of older ones to make room."""
        if stored.size > self.max_bytes:
            return
        with self._lock:
            self._tenants.setdefault(tenant.name, OrderedDict())[stored.id] = stored
            self._sizes[tenant.name] = self._sizes.get(tenant.name, 0) + stored.size
            while self.size > self.max_bytes:
                most = max(self._sizes, key=self._sizes.__getitem__)
                self._drop(most, next(iter(self._tenants[most])))

    def find(self, response_id: str, *, tenant: Tenant) -> StoredResponse | None:
        """A response that is kept."""
        return self._tenants.get(tenant.name, {}).get(response_id)

    def delete(self, response_id: str, *, tenant: Tenant) -> bool:
        """Whether the response was kept; it is no longer."""
        with self._lock:
            if self.find(response_id, tenant=tenant) is None:
                return False
            self._drop(tenant.name, response_id)
            return True

    def _drop(self, name: str, response_id: str) -> None:
        self._sizes[name] -= self._tenants[name].pop(response_id).size
        if not self._tenants[name]:
            del self._tenants[name], self._sizes[name]
