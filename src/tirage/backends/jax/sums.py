"""Shares of a mass and means over it that several filters need."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from tirage.backends.jax import wide
from tirage.backends.jax.program import Columns
from tirage.backends.jax.rule import Mass
from tirage.backends.jax.wide import Wide


class Share(NamedTuple):
    """A threshold on weights, two limbs [B]."""

    least: Wide

    def at_least(self, mass: Mass) -> Array:
        """Where weights [B, N] reach the threshold."""
        return ~wide.less(mass.wide(), tuple(limb[:, None] for limb in self.least))


def share(given: Columns, mass: Wide, *, strict: bool = False) -> Share:
    """E / 2^s of a total mass [B], rounded up, at least 1; strict: the next integer above it."""
    total = wide.resized(wide.mul(mass, (jnp.asarray(given["e"]),)), 4)
    one = wide.constant(1, total[0], 4)
    # ceil(n / 2^s) is floor((n - 1) / 2^s) + 1, and n = 0 counts as 1.
    below = total if strict else wide.sub(total, wide.select(wide.is_zero(total), total, one))
    least = wide.add(wide.right_by(below, jnp.asarray(given["s"])), one)
    huge = ~wide.is_zero(least[2:])
    return Share(wide.select(huge, wide.constant(-1, total[0], 2), least[:2]))


def target(p: Array, total: Wide, *, above: Any) -> Wide:
    """max(1, ceil(P * W / 2^32)) of each row [B], or floor(P * W / 2^32) + 1 where mass must lie above (S-W4):
    `above` is one bool for all."""
    scaled = wide.mul(total, (jnp.asarray(p),))
    floor, rest = scaled[1:], scaled[0]
    more = ((rest != 0) | above).astype(jnp.uint32)
    goal = wide.add(floor, wide.wide(more, 2))
    return wide.select(wide.is_zero(goal), wide.constant(1, rest, 2), goal)
