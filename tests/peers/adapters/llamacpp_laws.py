"""Laws of llama.cpp: its sampler chain in the order of common/sampling.cpp, through llama-cpp-python's C interface."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

import llama_cpp
import numpy as np
from serving import over_the_coin, serve

_LAST_N = 64


def law(row: Mapping[str, Any], xtc: float) -> np.ndarray:
    """The probabilities of one row, with XTC's coin decided by `xtc`."""
    size = len(row["logits"])
    data = (llama_cpp.llama_token_data * size)()
    for token, logit in enumerate(row["logits"]):
        data[token].id, data[token].logit, data[token].p = token, logit, 0.0
    array = llama_cpp.llama_token_data_array(data=data, size=size, selected=-1, sorted=False)
    for sampler in _chain(row, xtc):
        llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))
        llama_cpp.llama_sampler_free(sampler)
    kept = [(array.data[i].id, array.data[i].logit) for i in range(array.size)]
    x = np.array([logit for _, logit in kept], np.float64)
    e = np.exp(x - x.max())
    out = np.zeros(size)
    out[[token for token, _ in kept]] = e / e.sum()
    return out


def _chain(row: Mapping[str, Any], xtc: float) -> Iterator[Any]:
    """Bias and penalties, then top-n-sigma, top-k, typical, top-p, min-p, XTC, temperature; off ones are not there."""
    params = row["params"]
    if params["logit_bias"]:
        yield _bias(params["logit_bias"], len(row["logits"]))
    yield _penalties(row)
    if "top_n_sigma" in params:
        yield llama_cpp.llama_sampler_init_top_n_sigma(params["top_n_sigma"])
    if "top_k" in params:
        yield llama_cpp.llama_sampler_init_top_k(params["top_k"])
    if "typical_p" in params:
        yield llama_cpp.llama_sampler_init_typical(params["typical_p"], 1)
    if "top_p" in params:
        yield llama_cpp.llama_sampler_init_top_p(params["top_p"], 1)
    if "min_p" in params:
        yield llama_cpp.llama_sampler_init_min_p(params["min_p"], 1)
    if xtc:
        yield llama_cpp.llama_sampler_init_xtc(xtc, params["xtc_threshold"], 1, 0)
    temperature = params.get("temperature", 1.0)
    spread, exponent = params.get("dynatemp_range", 0.0), params.get("dynatemp_exponent", 1.0)
    yield llama_cpp.llama_sampler_init_temp_ext(temperature, spread, exponent)


def _bias(biases: Mapping[int, float], size: int) -> Any:
    listed = (llama_cpp.llama_logit_bias * len(biases))()
    for entry, (token, bias) in zip(listed, biases.items(), strict=True):
        entry.token, entry.bias = token, bias
    return llama_cpp.llama_sampler_init_logit_bias(size, len(biases), listed)


def _penalties(row: Mapping[str, Any]) -> Any:
    params = row["params"]
    sampler = llama_cpp.llama_sampler_init_penalties(
        len(row["logits"]),
        _LAST_N,
        params.get("repetition_penalty", 1.0),
        params.get("frequency_penalty", 0.0),
        params.get("presence_penalty", 0.0),
    )
    for token in row["prompt"] + row["output"]:
        llama_cpp.llama_sampler_accept(sampler, token)
    return sampler


if __name__ == "__main__":
    serve("llama-cpp-python", version("llama-cpp-python"), {"llamacpp": over_the_coin(law)})
