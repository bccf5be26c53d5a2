"""Which rows the kernels can draw; the others are left to the plain path."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from tirage.backends.groups import has, runs_only
from tirage.operators import Operation
from tirage.operators.xtc import XTC
from tirage.sampling_metadata import SamplingMetadata, View


@cache
def operations() -> frozenset[Operation]:
    """What the kernels run: every operation but custom processors, which are Python, and those without a kernel."""
    # Numba takes longer to import than the first draws, which do without it.
    from tirage.backends.numpy.kernels import edits, steps

    return frozenset({*edits.EDITS, *steps.STEPS})


def supports(rows: SamplingMetadata) -> NDArray[np.bool_]:
    """bool [B]: rows that `draw` may be given.

    Left out are operations without a kernel, masks that count only after a draw (`resample`), ids protected from XTC,
    and the sampled view and the record of XTC's mixture.
    """
    good = runs_only(rows, operations()) & ~rows.resample
    xtc = has(rows, XTC)
    if xtc.any():
        good &= ~(xtc & ((np.diff(rows.protected_start) > 0) | (rows.views == View.SAMPLED)))
        if rows.records is not None:
            good &= ~(xtc & (rows.records.limits > 0))
    return good
