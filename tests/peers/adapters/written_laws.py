"""Laws of engines that no processor runs: written down from their sources in binary64, one function for each sampler.

FastDeploy and Paddle: the sampling kernels behind `FD_SAMPLING_CLASS`. MindIE-LLM: its selectors. TensorRT-LLM:
`top_k_top_p_sampling_batch` of the PyTorch backend and the kernels of the older one. FlashInfer: the rejection kernels.
nano-vllm: its one line. They share no code with tirage. `SOURCES` of scripts/peers/engines.py names the file and the
commit that each was read from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import flashinfer_kernels
import numpy as np
from flashinfer_kernels import Floats, larger_mass, normalised, softmax
from numpy.typing import NDArray
from serving import serve

Row = Mapping[str, Any]


def one_hot(x: Floats) -> Floats:
    """All on the first of the largest."""
    return np.eye(x.size)[int(np.argmax(x))]


def penalised(row: Row, *, counted: str = "output", divide_first: bool = False) -> Floats:
    """Logits [V] after bias, repetition over prompt and output, frequency and presence over `counted` tokens."""
    x, params = np.array(row["logits"], np.float32).astype(np.float64), row["params"]
    for token, bias in params["logit_bias"].items():
        x[token] += bias
    if divide_first:
        x = x / params.get("temperature", 1.0)
    seen = np.bincount(row["prompt"] + row["output"], minlength=x.size)
    counts = np.bincount(row["output"], minlength=x.size) if counted == "output" else seen
    r = params.get("repetition_penalty", 1.0)
    x = np.where(seen > 0, np.where(x > 0, x / r, x * r), x)
    return x - params.get("frequency_penalty", 0.0) * counts - params.get("presence_penalty", 0.0) * (counts > 0)


def scaled(row: Row, **options: Any) -> Floats:
    """Probabilities [V] after penalties and the temperature."""
    return softmax(penalised(row, **options) / row["params"].get("temperature", 1.0))


def is_greedy(row: Row) -> bool:
    """Whether the temperature is 0."""
    return row["params"].get("temperature", 1.0) == 0


def above_min_p(row: Row, p: Floats) -> Floats:
    """What is at least min_p of the largest; not normalised again."""
    return flashinfer_kernels.above_min_p(p, row["params"].get("min_p", 0.0))


def order(p: Floats) -> NDArray[np.int64]:
    """Tokens by descending probability, of equal ones the lowest id first."""
    return np.argsort(-p, kind="stable")


def top_k_kept(p: Floats, k: int, *, ties: bool) -> Floats:
    """The k largest, with all that equal the last of them where `ties`; not normalised."""
    if ties or not 0 < k < p.size:
        return flashinfer_kernels.top_k_kept(p, k)
    return np.where(np.isin(np.arange(p.size), order(p)[:k]), p, 0.0)


def nucleus(p: Floats, limit: float, inside: Callable[[Floats, float], NDArray[np.bool_]]) -> Floats:
    """The tokens whose mass before them is `inside` the limit, the first always."""
    ranked = order(p)
    before = np.concatenate([[0.0], np.cumsum(p[ranked])[:-1]])
    kept = inside(before, limit)
    kept[0] = True
    out = np.zeros(p.size)
    out[ranked[kept]] = p[ranked[kept]]
    return out


def truncated(p: Floats, limit: float) -> Floats:
    """The first token at which the running sum reaches u, u uniform in (0, limit): the last has what is left."""
    ranked = order(p)
    reached = np.minimum(np.cumsum(p[ranked]), limit)
    out = np.zeros(p.size)
    out[ranked] = np.diff(np.concatenate([[0.0], reached]))
    return out


def fastdeploy_base(row: Row) -> Floats:
    """`base`: truncated on the mass that min_p left, not normalised; what is missing goes to the largest."""
    if is_greedy(row):
        return one_hot(penalised(row))
    p, limit = above_min_p(row, scaled(row)), row["params"].get("top_p", 1.0)
    out = truncated(p, limit)
    out[np.argmax(p)] += max(0.0, limit - out.sum())
    return normalised(out)


def fastdeploy_base_non_truncated(row: Row) -> Floats:
    """`base_non_truncated`: the shortest prefix whose mass reaches top_p, of what min_p left."""
    if is_greedy(row):
        return one_hot(penalised(row))
    p = above_min_p(row, scaled(row))
    return normalised(nucleus(p, row["params"].get("top_p", 1.0), lambda before, limit: before < limit))


def fastdeploy_air(row: Row) -> Floats:
    """`air`: as `base`, normalised after min_p."""
    if is_greedy(row):
        return one_hot(penalised(row))
    return normalised(truncated(normalised(above_min_p(row, scaled(row))), row["params"].get("top_p", 1.0)))


def fastdeploy_rejection(row: Row) -> Floats:
    """`rejection`: top_k with ties and normalised when it is on, then by the mass of larger tokens."""
    params = row["params"]
    if is_greedy(row):
        return one_hot(penalised(row))
    p, limit = above_min_p(row, scaled(row)), params.get("top_p", 1.0)
    if params.get("top_k", 0):
        p = normalised(top_k_kept(p, params["top_k"], ties=True))
    kept = larger_mass(p, limit)
    if not params.get("top_k", 0) and "min_p" in params:
        # u in (0, 1) beyond the mass that is left is no rejection: the highest id that is left takes it.
        kept[np.flatnonzero(p > 0)[-1]] += max(0.0, 1 - p.sum())
    return normalised(kept)


def mindie(row: Row) -> Floats:
    """The host's sampler: exactly k, normalised, mass before a token <= top_p."""
    params = row["params"]
    if is_greedy(row):
        return one_hot(penalised(row))
    p = normalised(top_k_kept(scaled(row), params.get("top_k", 0), ties=False))
    return normalised(nucleus(p, params.get("top_p", 1.0), lambda before, limit: before <= limit))


def mindie_npu(row: Row) -> Floats:
    """The device's: top_k with ties, top_p on the mass of all tokens, equal ones together."""
    params = row["params"]
    if is_greedy(row):
        return one_hot(penalised(row))
    p = scaled(row)
    kept = top_k_kept(p, params.get("top_k", 0), ties=True)
    return (
        normalised(np.where(larger_mass(p, params.get("top_p", 1.0)) > 0, kept, 0.0))
        if "top_p" in params
        else normalised(kept)
    )


def trtllm(row: Row) -> Floats:
    """The PyTorch backend of 1.2: greedy at temperature 0 or top_k 1, ties kept, mass before a token <= top_p."""
    params = row["params"]
    if is_greedy(row) or params.get("top_k") == 1:
        return one_hot(penalised(row))
    p = normalised(top_k_kept(scaled(row), params.get("top_k", 0), ties=True))
    return normalised(nucleus(p, params.get("top_p", 1.0), lambda before, limit: before <= limit))


def trtllm_legacy(row: Row) -> Floats:
    """The C++ kernels: bias, temperature, penalties over prompt and output, exactly k, u in (0, top_p)."""
    params = row["params"]
    if is_greedy(row):
        return one_hot(penalised(row, counted="both"))
    p = softmax(penalised(row, counted="both", divide_first=True))
    p = normalised(top_k_kept(p, params.get("top_k", 0), ties=False))
    return normalised(truncated(p, params.get("top_p", 1.0)))


def flashinfer(row: Row) -> Floats:
    """`top_k_first` of its samplers, then min_p, ties kept."""
    params = row["params"]
    if is_greedy(row):
        return one_hot(penalised(row))
    p = flashinfer_kernels.top_k_first(scaled(row), params.get("top_k", 0), params.get("top_p", 1.0))
    return normalised(above_min_p(row, p))


def nanovllm(row: Row) -> Floats:
    """softmax(logits / temperature), the exponential race."""
    return scaled(row)


LAWS = {
    "fastdeploy-base": fastdeploy_base,
    "fastdeploy-base_non_truncated": fastdeploy_base_non_truncated,
    "fastdeploy-air": fastdeploy_air,
    "fastdeploy-rejection": fastdeploy_rejection,
    "mindie": mindie,
    "mindie-npu": mindie_npu,
    "trtllm": trtllm,
    "trtllm-legacy": trtllm_legacy,
    "flashinfer": flashinfer,
    "nanovllm": nanovllm,
}

if __name__ == "__main__":
    serve("laws written down from sources", "(not run)", LAWS)
