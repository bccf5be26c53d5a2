"""Laws on recorded ids by Numba kernels, in float32 on the host: the value of a token, and a row's slopes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tirage.backends.numpy import distribution, kernels
from tirage.laws.token_laws import LEAST_MASS, PlainLaw

Floats = NDArray[np.float32]
Held = NDArray[np.int32]

_ONE = 2.0**40
"""The weight of the largest of them."""
_MANY = 3
"""From a third of the vocabulary on, a pass over all logits is faster than one over those of the ids."""


@dataclass(frozen=True, slots=True)
class HeldRows:
    """Laws of rows of so many logits, one after the other, in memory that all of them share."""

    room: Floats
    marks: NDArray[np.uint8]

    @classmethod
    def of(cls, vocab_size: int) -> HeldRows | None:
        """Memory for rows of this size; None while the kernels are not there."""
        if not kernels.held_ready():
            return None
        return cls(np.empty(vocab_size, np.float32), np.empty(vocab_size, np.uint8))

    def value(self, law: PlainLaw, x: Floats, ids: Held, token: int) -> np.float32 | None:
        """What a draw would report for `token`, one of `ids` int32 [n], from the logits `x` float32 [V].

        None for logits that are not finite.
        """
        if self._many(x, ids):
            total, m, finite = kernels.marked_mass(
                x, ids, self.marks, law.c, from_largest=law.from_largest, least=LEAST_MASS
            )
        else:
            total, m, finite = self._gathered_mass(law, x, ids)
        if not finite or not np.isfinite(m):
            return None
        return distribution.logprobs(x[token : token + 1], m, law.inverse_t, total)[0]

    def _many(self, x: Floats, ids: Held) -> bool:
        return ids.size > x.size // _MANY

    def _gathered_mass(self, law: PlainLaw, x: Floats, ids: Held) -> tuple[int, np.float32, bool]:
        """The mass of the ids, m, and whether their logits are finite."""
        held, largest, finite = kernels.gather(x, ids, self.room)
        m = x.max() if law.from_largest else largest
        total = kernels.mass_of(held, m, law.c)
        if total < LEAST_MASS:
            m = largest
            total = kernels.mass_of(held, m, law.c)
        return total, m, finite

    def write_slopes(self, law: PlainLaw, x: Floats, ids: Held, out: Floats, *, token: int, scale: float) -> None:
        """Writes the slopes of the law of `token`, times `scale`, to `out` float32 [V]: 0 for other ids."""
        t = float(law.inverse_t)
        # The mass is counted anew: one from the logit of the token and its rounded value has no bits left where both
        # are large.
        if self._many(x, ids):
            total, m, _ = kernels.marked_mass(x, ids, self.marks, law.c, from_largest=False, least=0)
            kernels.write_marked(x, ids, self.marks, m, law.c, -scale * t * _ONE / total, out)
        else:
            out.fill(0)
            held, m, _ = kernels.gather(x, ids, self.room)
            total = kernels.mass_of(held, m, law.c)
            kernels.write_shares(held, ids, m, law.c, -scale * t * _ONE / total, out)
        out[token] += scale * t
