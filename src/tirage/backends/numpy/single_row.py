"""One row drawn step after step, with all that its steps have in common prepared once.

After a forward pass the processor's caches hold weights: whatever a draw touches comes from memory, be it an object or
a line of code. So this path touches little. It gives the tokens that `dispatch.draw` gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tirage.backends.numpy import kernels
from tirage.backends.numpy.kernels import SingleRecord
from tirage.operators.temperature import GREEDY
from tirage.sampling_batch import SamplingBatch

TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, slots=True)
class SingleDraw:
    """`draw` gives for logits float32 [1, V] and the Philox step the token, -1 for a row without one, and its logprob.

    `record` gives what is recorded beside the token just drawn, where that is asked for.
    """

    draw: Callable[[NDArray[np.float32], int], tuple[int, float]]
    record: Callable[[], SingleRecord] | None = None


def single_draw(batch: SamplingBatch) -> SingleDraw | None:
    """What draws the only row of a batch; None where its draws need more than logits and a step, or kernels not ready.

    That is so for several rows, for steps and counts that follow the history, and for masks, logprobs and processors.
    """
    plain = batch.fixed and not (batch.counted or batch.processes or batch.wants_logprobs or batch.guided)
    if not plain or len(batch.states) != 1 or batch.base.masks.size:
        return None
    recorded = batch.base.records is not None
    if batch.base.programs[0, 0, 0] == GREEDY and not recorded:
        return SingleDraw(_greedy)
    if not kernels.single_ready() or not kernels.supports(batch.base)[0]:
        return None
    draw, room = kernels.single_draw(batch.base, batch.vocab_size)
    return SingleDraw(draw, (lambda: room.single) if recorded else None)


def _greedy(logits: NDArray[np.float32], step: int) -> tuple[int, float]:
    """The first of the largest logits, as by their keys.

    NumPy finds a NaN first. Comparisons of numbers near zero depend on the modes of the processor, keys do not.
    """
    token = int(logits.argmax())
    return token if TINY <= abs(float(logits[0, token])) < math.inf else -1, 0.0
