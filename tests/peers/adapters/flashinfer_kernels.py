"""The laws of FlashInfer's sampling kernels, which need a GPU: written down from its sources, in binary64.

Source: flashinfer-python 0.6.18, include/flashinfer/sampling.cuh (TopKSamplingFromProbKernel,
TopPSamplingFromProbKernel, MinPSamplingFromProbKernel, TopKTopPSamplingFromProbKernel, TopKRenormProbKernel,
TopPRenormProbKernel) and flashinfer/sampling.py (`top_k_top_p_sampling_from_logits`, filter_apply_order). A token is
accepted by what is strictly more likely than it, so that equal tokens share their fate.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def softmax(x: Floats) -> Floats:
    """Probabilities [V]; -inf has none."""
    e = np.exp(x - x.max())
    return e / e.sum()


def normalised(p: Floats) -> Floats:
    """Divided by its sum."""
    return p / p.sum()


def top_k_kept(p: Floats, k: int) -> Floats:
    """The k largest and all that equal the last of them; not normalised. 0 and k of the size or more are off."""
    if not 0 < k < p.size:
        return p
    return np.where(p >= np.sort(p)[-k], p, 0.0)


def larger_mass(p: Floats, limit: float) -> Floats:
    """The tokens of which all larger ones together have less than the limit."""
    return np.where(np.array([p[p > each].sum() < limit for each in p]) & (p > 0), p, 0.0)


def above_min_p(p: Floats, min_p: float) -> Floats:
    """What is at least min_p of the largest; not normalised again."""
    return np.where(p >= p.max() * min_p, p, 0.0)


def top_k_first(p: Floats, k: int, limit: float) -> Floats:
    """`filter_apply_order="top_k_first"`: top-p of what top-k has left."""
    return normalised(larger_mass(normalised(top_k_kept(p, k)), limit))


def joint(p: Floats, k: int, limit: float) -> Floats:
    """`filter_apply_order="joint"`: a token must pass both, each on the mass of all tokens."""
    return normalised(np.where(larger_mass(p, limit) > 0, top_k_kept(p, k), 0.0))
