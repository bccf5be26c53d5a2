"""The engines that are asked: by which adapter, about which presets, in which Python, and what of their code runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OWN, AROUND, WRITTEN = "own code", "own code around written kernels", "written law"
"""What of an engine runs: its package; its package but for kernels that need a GPU; nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """An engine's adapter in tests/peers/adapters and the presets that it is asked about; none where it masks tokens.

    `python` is a command where the packages need another Python than tirage's.
    """

    adapter: str
    presets: tuple[str, ...]
    python: str | None = None


_FASTDEPLOY = ("fastdeploy-base", "fastdeploy-base_non_truncated", "fastdeploy-air", "fastdeploy-rejection")
_UNPUBLISHED = (*_FASTDEPLOY, "mindie", "mindie-npu", "trtllm", "trtllm-legacy", "nanovllm", "flashinfer")

ENGINES: Mapping[str, Peer] = {
    "mlx": Peer(adapter="mlx_lm_laws.py", presets=("mlx",)),
    "transformers": Peer(adapter="transformers_laws.py", presets=("hf", "hf-cb")),
    "vllm": Peer(adapter="vllm_laws.py", presets=("vllm-v1", "vllm", "vllm-flashinfer")),
    "sglang": Peer(adapter="sglang_laws.py", presets=("sglang-pytorch", "sglang")),
    "llamacpp": Peer(adapter="llamacpp_laws.py", presets=("llamacpp",)),
    "gemma": Peer(adapter="gemma_laws.py", presets=("gemma-topk", "gemma-topp"), python="python3.12"),
    "easydel": Peer(adapter="easydel_laws.py", presets=("easydel", "easydel-strict"), python="python3.12"),
    "tgi": Peer(adapter="tgi_laws.py", presets=("tgi",)),
    "written": Peer(adapter="written_laws.py", presets=_UNPUBLISHED),
    "xgrammar": Peer(adapter="xgrammar_masks.py", presets=()),
    "llguidance": Peer(adapter="llguidance_masks.py", presets=()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What was compared with a preset: how much of the engine ran, which code, and why not the rest of it."""

    runs: str
    code: str
    missing: str = ""


def _own(code: str) -> Source:
    return Source(runs=OWN, code=code)


def _written(code: str, missing: str) -> Source:
    return Source(runs=WRITTEN, code=code, missing=missing)


_NO_FASTDEPLOY = "not on PyPI (`fastdeploy` there is another project), and its kernels need a GPU"
_NO_MINDIE = "not on PyPI, and its device path needs an NPU"
_NO_TRTLLM = (
    "on 2026-11-23 PyPI had source archives alone, of metadata without code (1.2.1, 1.4.0rc1); they fetch "
    "the package, for GPUs, from NVIDIA's index"
)
_NO_NANOVLLM = "on 2026-11-23 PyPI had no such package; it is installed from its repository, for GPUs"
_NEEDS_GPU = "FlashInfer's kernels need a GPU"
_FLASHINFER = "flashinfer-python 0.6.18 (fb28d724): include/flashinfer/sampling.cuh"
_FD = "FastDeploy (0097a00a): custom_ops/gpu_ops/"

SOURCES: Mapping[str, Source] = {
    "mlx": _own("mlx_lm/sample_utils.py"),
    "hf": _own("transformers/generation: GenerationMixin._get_logits_processor"),
    "hf-cb": _own("transformers/generation: the same processors, those that continuous batching has"),
    "vllm-v1": _own("vllm/v1/sample: Sampler and the processors, top-k and top-p by PyTorch"),
    "vllm": _own("vllm/v1/worker/gpu/sample: Sampler, its Triton kernels under Triton's interpreter"),
    "vllm-flashinfer": Source(
        runs=AROUND, code=f"vllm/v1/worker/gpu/sample: Sampler; {_FLASHINFER}", missing=_NEEDS_GPU
    ),
    "sglang-pytorch": _own("sglang/srt/layers/sampler.py and sampling/penaltylib, backend pytorch"),
    "sglang": Source(
        runs=AROUND, code=f"sglang/srt/layers/sampler.py, backend flashinfer; {_FLASHINFER}", missing=_NEEDS_GPU
    ),
    "llamacpp": _own("llama.cpp's sampler chain, in the order of common/sampling.cpp"),
    "gemma-topk": _own("gemma/gm/text/_sampling.py"),
    "gemma-topp": _own("gemma/gm/text/_sampling.py"),
    "easydel": _own("easydel/inference/esurge/core/sampler.py"),
    "easydel-strict": _own("easydel/inference/esurge/core/sampler.py"),
    "tgi": Source(
        runs=AROUND,
        code="server/text_generation_server/utils/logits_process.py (db931fcf): transformers' warpers",
        missing="the server is not on PyPI: its penalties and its order are written",
    ),
    "fastdeploy-base": _written(_FD + "sample_kernels and top_p_sampling", _NO_FASTDEPLOY),
    "fastdeploy-base_non_truncated": _written(_FD + "top_p_sampling, non-truncated", _NO_FASTDEPLOY),
    "fastdeploy-air": _written(_FD + "sample_kernels/air_top_p_sampling.cu", _NO_FASTDEPLOY),
    "fastdeploy-rejection": _written(_FD + "sample_kernels/rejection_top_p_sampling.cu", _NO_FASTDEPLOY),
    "mindie": _written("MindIE-LLM (8b4871ad): the handlers in Python and the host's sampler in C++", _NO_MINDIE),
    "mindie-npu": _written("MindIE-LLM (8b4871ad): the selectors of its device path", _NO_MINDIE),
    "trtllm": _written("TensorRT-LLM (053c42c9): tensorrt_llm/_torch/pyexecutor/sampling_utils.py", _NO_TRTLLM),
    "trtllm-legacy": _written(
        "TensorRT-LLM (249d93d5, 03961722): cpp/tensorrt_llm/kernels/samplingTopKKernels.cu, samplingTopPKernels.cu, "
        "penaltyKernels.cu",
        _NO_TRTLLM,
    ),
    "nanovllm": _written("nano-vllm (bb823b3e): nanovllm/layers/sampler.py", _NO_NANOVLLM),
    "flashinfer": _written(_FLASHINFER, _NEEDS_GPU),
}
"""By preset."""
