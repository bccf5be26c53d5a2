"""How many bytes of request bodies the server holds, and whose they are."""

from __future__ import annotations

from collections import Counter

from tirage.engine import Tenant, share_of
from tirage.server.errors import Refusal


class PendingBodies:
    """The bytes of all bodies that are held at once, at most `limit`.

    The last quarter is kept for tenants that hold no more than their share of all, so that none keeps out the others.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._held = limit, Counter[Tenant]()

    def reserve(self, tenant: Tenant, count: int) -> None:
        """Counts further bytes of a tenant; raises Refusal 503 when there is no room for them."""
        total, own = self._held.total() + count, self._held[tenant] + count
        share = share_of(tenant, self._held, self._limit)
        # Where clients have no keys, all of them are the unnamed tenant.
        keeps_room = tenant.name and own > min(share, self._limit // 2)
        if total > (self._limit * 3 // 4 if keeps_room else self._limit):
            raise Refusal(503, "the server holds too many requests; try again later", headers={"retry-after": "1"})
        self._held[tenant] += count

    def release(self, tenant: Tenant, count: int) -> None:
        """Counts no longer so many bytes of a tenant."""
        self._held[tenant] -= count
        if not self._held[tenant]:
            del self._held[tenant]
