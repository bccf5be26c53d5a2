"""Which rows the kernels can draw; the others are left to the plain path."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tirage.backends import SamplingMetadata, View
from tirage.stages import Op

SUPPORTED_OPS = frozenset(op for op in Op if op not in {Op.END, Op.PROCESS})
"""Every operation but custom processors, which are Python."""


def supports(rows: SamplingMetadata) -> NDArray[np.bool_]:
    """bool [B]: rows that `draw` may be given.

    Left out are custom processors, masks that count only after a draw (`resample`), ids protected from XTC,
    and the sampled view of XTC's mixture.
    """
    ops = rows.programs[:, :, 0]
    good = ~(ops == int(Op.PROCESS)).any(axis=1)
    good &= ~rows.resample
    xtc = (ops == int(Op.XTC)).any(axis=1)
    if xtc.any():
        good &= ~(xtc & ((np.diff(rows.protected_start) > 0) | (rows.views == View.SAMPLED)))
    return good
