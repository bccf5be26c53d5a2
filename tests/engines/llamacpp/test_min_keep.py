"""min_keep against llama.cpp's own samplers: the tokens that each leaves of the same logits."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import llama_cpp  # pyright: ignore[reportMissingImports]
import numpy as np
import pytest
from numpy.typing import NDArray

import tirage
from tirage import SamplingParams

SAMPLERS: dict[str, tuple[dict[str, Any], Callable[[int], Any]]] = {
    "top_p": ({"top_p": 0.5}, lambda n: llama_cpp.llama_sampler_init_top_p(0.5, n)),
    "min_p": ({"min_p": 0.4}, lambda n: llama_cpp.llama_sampler_init_min_p(0.4, n)),
    "typical": ({"typical_p": 0.3}, lambda n: llama_cpp.llama_sampler_init_typical(0.3, n)),
    "xtc": (
        {"xtc_probability": 1.0, "xtc_threshold": 0.02},
        lambda n: llama_cpp.llama_sampler_init_xtc(1.0, 0.02, n, 1),
    ),
}


def left_by(sampler: Any, x: NDArray[np.float32]) -> list[int]:
    """The ids that a sampler of llama.cpp leaves, but those of no weight beside the largest of them."""
    data = (llama_cpp.llama_token_data * x.size)()
    for token, logit in enumerate(x.tolist()):
        data[token].id, data[token].logit = token, logit
    array = llama_cpp.llama_token_data_array(data=data, size=x.size, selected=-1, sorted=False)
    llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))
    llama_cpp.llama_sampler_free(sampler)
    ids = sorted(array.data[i].id for i in range(array.size))
    return [t for t in ids if float(x[ids].max() - x[t]) < 40 * np.log(2)]


@pytest.mark.parametrize("keep", [0, 1, 2, 3, 7, 40])
@pytest.mark.parametrize("name", SAMPLERS)
def test_each_sampler_leaves_the_same_tokens(name: str, keep: int) -> None:
    fields, make = SAMPLERS[name]
    rng = np.random.default_rng(keep)
    for size in (3, 10, 50, 300) * 10:
        x = (rng.standard_normal(size) * rng.choice([1, 3, 8])).astype(np.float32)
        law = tirage.law(x, SamplingParams(semantics="llamacpp", min_keep=keep, **fields))[0]
        assert np.flatnonzero(law > 0).tolist() == left_by(make(keep), x)
