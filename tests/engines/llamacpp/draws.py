"""Seeded tokens as llama.cpp's own sampler chain draws them, through llama-cpp-python.

Prints lines of `tests/data/engine_draws.jsonl`.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

import llama_cpp
import numpy as np
from engine_draws import SeededRequest, print_draws


def drawn(request: SeededRequest) -> list[int]:
    """The tokens of all steps from one chain, in the order of llama.cpp's stages; its `dist` keeps the generator."""
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    params = request.params
    for sampler in (
        llama_cpp.llama_sampler_init_top_k(params.get("top_k", 0)),
        llama_cpp.llama_sampler_init_top_p(params.get("top_p", 1.0), 0),
        llama_cpp.llama_sampler_init_temp(params.get("temperature", 1.0)),
        llama_cpp.llama_sampler_init_dist(request.seed),
    ):
        llama_cpp.llama_sampler_chain_add(chain, sampler)
    found = [one(chain, row) for row in request.logits()]
    llama_cpp.llama_sampler_free(chain)
    return found


def one(chain: Any, row: np.ndarray) -> int:
    """The token of one row."""
    entries = (llama_cpp.llama_token_data * row.size)()
    for token, logit in enumerate(row.tolist()):
        entries[token] = llama_cpp.llama_token_data(id=token, logit=logit, p=0.0)
    listed = llama_cpp.llama_token_data_array(data=entries, size=row.size, selected=-1, sorted=False)
    llama_cpp.llama_sampler_apply(chain, ctypes.byref(listed))
    return int(listed.data[listed.selected].id)


if __name__ == "__main__":
    print_draws("llamacpp", drawn, seeds=(0, 42, 2**31 + 11, 2**32 - 9))
