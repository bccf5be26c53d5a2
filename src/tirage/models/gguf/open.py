"""Opening a GGUF file with the options of `tirage.LLM`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from tirage.errors import ModelError, ParamsError
from tirage.models.counts import checked_count
from tirage.models.gguf.library import load_library
from tirage.models.gguf.model import GGUFModel

_log = logging.getLogger("tirage")


def open_gguf(
    path: Path,
    *,
    backend: str = "auto",
    dtype: str | None = None,
    device: str | None = None,
    adapters: Any = None,
    enable_lora: bool | None = None,
    prefix_bytes: int | None = None,
    prefill_batch_tokens: int | None = None,
    tp_plan: str | None = None,
    engine_args: Any = None,
) -> GGUFModel:
    """The model of a GGUF file.

    `dtype` is that of the KV cache, as in `GGUFModel`. `device` None is libllama's choice, "cpu" no GPU at all, "cuda"
    and "metal" all layers on it. Raises ParamsError for options that only other models have, and ModelError for a file
    that cannot be used, a missing llama-cpp-python, and a GPU for which it was not built.
    """
    if backend != "auto":
        raise ParamsError(f"backend must be 'auto' for a GGUF file, which llama.cpp runs, got {backend!r}")
    if dtype not in (None, "auto", "float16", "float32"):
        raise ParamsError(
            f"dtype must be 'auto', 'float16' or 'float32' for a GGUF file, got {dtype!r}; it is that of the KV cache, "
            "as the file has its own for the weights"
        )
    if adapters or enable_lora:
        raise ParamsError("adapters must not be given for a GGUF file; merge them into it")
    if tp_plan is not None:
        raise ParamsError(f"tp_plan must not be given for a GGUF file, which is not cut, got {tp_plan!r}")
    if engine_args:
        raise ParamsError("engine_args must not be given for a GGUF file; they are vLLM's")
    counts = {"prefix_bytes": prefix_bytes, "prefill_batch_tokens": prefill_batch_tokens}
    given = {name: checked_count(name, count) for name, count in counts.items() if count is not None}
    model = GGUFModel(path, dtype=dtype or "auto", gpu_layers=gpu_layers(device), **given)
    _log.info("%s runs on llama.cpp, for at most %s tokens", path.name, model.max_length)
    return model


def gpu_layers(device: str | None) -> int | None:
    """The layers that a GPU computes: None is libllama's default, -1 all of them.

    Raises ParamsError for an unknown device, and ModelError for a GPU for which libllama was not built.
    """
    if device in (None, "auto"):
        return None
    if device == "cpu":
        return 0
    if device not in ("cuda", "metal"):
        raise ParamsError(f"device must be 'cpu', 'cuda' or 'metal' for a GGUF file, got {device!r}")
    if not load_library().llama_supports_gpu_offload():
        raise ModelError(f"llama-cpp-python must be built for a GPU to run on {device!r}; build it again, or use 'cpu'")
    return -1
