"""Small random float32 replicas of models, which show what precision and size of the originals would hide.

A replica has the class of its original but fewer layers and experts, and smaller widths and vocabulary; heads keep
their size. Windows, attention chunks and the bounds of longrope and dynamic NTK are reduced as well, so that short
prompts lie on both sides of them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import torch

VOCAB = 256
BOUND = 20
"""The length at which the rotary frequencies of a replica change, if they depend on the length."""
_WINDOW = 12
_MOST_LAYERS = 12
# A larger replica is not built, because loading must not take noticeably longer.
_MOST_PARAMETERS = 40_000_000

_WINDOWS = ("sliding_window", "attention_window_size", "attention_chunk_size", "window_size")
_CAPS = {
    "intermediate_size": 128, "intermediate_size_mlp": 128, "moe_intermediate_size": 64, "ffn_dim": 128,
    "shared_expert_intermediate_size": 64, "n_inner": 128, "num_experts": 4, "num_local_experts": 4,
    "n_routed_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
    "kv_lora_rank": 32, "q_lora_rank": 32, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "first_k_dense_replace": 1, "chunk_size": 8, "mamba_chunk_size": 8,
}  # fmt: skip
_STATES = (
    ("num_heads", "head_dim", "expand", "n_groups"),
    ("mamba_n_heads", "mamba_d_head", "mamba_expand", "mamba_n_groups"),
)
_DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def small_replica(module: Any) -> Any:
    """A replica of a module in float32 on the CPU; None if none that is small enough can be built."""
    for narrow in (True, False):
        try:
            config = small_config(module.config, narrow=narrow)
            if count_parameters(type(module), config) <= _MOST_PARAMETERS:
                return build(type(module), config)
        except Exception:  # not all values of a configuration fit together; the next one keeps more of them
            continue
    return None


def build(kind: Any, config: Any) -> Any:
    """A model whose weights are large enough for the logits to depend on what a row attends to."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        replica = kind._from_config(config, dtype=torch.float32).eval()
        for part in replica.modules():
            if isinstance(part, torch.nn.Linear):
                torch.nn.init.normal_(part.weight, std=part.in_features**-0.5)
    return replica


def count_parameters(kind: Any, config: Any) -> int:
    """The number of parameters of a model of that class and configuration."""
    with torch.device("meta"):
        return sum(each.numel() for each in kind._from_config(config).parameters())


def small_config(config: Any, *, narrow: bool) -> Any:
    """A copy of a configuration with few layers and low bounds and, if `narrow`, few heads and experts."""
    small = copy.deepcopy(config)
    text = small.get_text_config(decoder=True)
    for part in parts_of(small):
        if part is not text and part is not small:
            cut_layers(part, 1)
    cut_layers(text, depth_of(text))
    cut_vocabulary(small, text)
    shrink_bounds(text)
    if narrow:
        make_narrow(text)
    return small


def parts_of(config: Any) -> Iterator[Any]:
    """A configuration and those inside it."""
    yield config
    for value in vars(config).values():
        if hasattr(value, "model_type") and hasattr(value, "to_dict"):
            yield from parts_of(value)


def depth_of(config: Any) -> int:
    """The number of first layers that contain every type of layer; ValueError if they are too many."""
    kinds = next((k for k in (getattr(config, n, None) for n in ("layer_types", "layers_block_type")) if k), None)
    if not isinstance(kinds, list):
        return 2
    depth = max(kinds.index(kind) for kind in set(kinds)) + 1
    if depth > _MOST_LAYERS:
        raise ValueError(f"{depth} layers")
    return max(depth, 2)


def cut_layers(config: Any, depth: int) -> None:
    """Keeps the first `depth` layers of a configuration."""
    names = [name for name in _DEPTHS if isinstance(getattr(config, name, None), int)]
    whole = {getattr(config, name) for name in names}
    for name in names:
        setattr(config, name, min(depth, getattr(config, name)))
    for name, value in [*vars(config).items()]:
        if isinstance(value, list) and len(value) in whole:
            setattr(config, name, value[:depth])


def cut_vocabulary(config: Any, text: Any) -> None:
    """Cuts the vocabulary, and drops special token ids beyond it."""
    for part in {id(part): part for part in (config, text)}.values():
        if isinstance(getattr(part, "vocab_size", None), int):
            part.vocab_size = min(part.vocab_size, VOCAB)
        for name, value in [*vars(part).items()]:
            if name.endswith("_token_id") and name[:3] in ("pad", "bos", "eos") and not is_below(value, VOCAB):
                setattr(part, name, None)


def is_below(value: Any, bound: int) -> bool:
    """Whether a value is an integer in [0, bound)."""
    return isinstance(value, int) and 0 <= value < bound


def shrink_bounds(config: Any) -> None:
    """Reduces windows, attention chunks and the bounds of rotary frequencies."""
    for name in _WINDOWS:
        if isinstance(getattr(config, name, None), int):
            setattr(config, name, min(getattr(config, name), _WINDOW))
    given = getattr(config, "rope_parameters", None) or {}
    for rope in [given] if "rope_type" in given else given.values():
        kind = rope.get("rope_type") if isinstance(rope, dict) else None
        if kind == "dynamic":
            config.max_position_embeddings = BOUND
        if kind == "longrope":
            lower_longrope(config, rope)


def lower_longrope(config: Any, rope: dict[str, Any]) -> None:
    """Lowers the bound of longrope; its ratio to the context, on which the attention factor depends, stays."""
    ratio = config.max_position_embeddings / rope["original_max_position_embeddings"]
    config.max_position_embeddings = max(BOUND + 1, math.ceil(BOUND * ratio))
    rope["original_max_position_embeddings"] = BOUND
    if getattr(config, "original_max_position_embeddings", None) is not None:
        config.original_max_position_embeddings = BOUND


def make_narrow(config: Any) -> None:
    """Reduces heads and experts; heads keep their size, and the width becomes at most that of all heads together."""
    for name, cap in _CAPS.items():
        value = getattr(config, name, None)
        if isinstance(value, int) and not isinstance(value, bool):
            setattr(config, name, min(value, cap))
    heads = getattr(config, "num_attention_heads", None)
    if not isinstance(heads, int):
        config.hidden_size = min(config.hidden_size, 64)
        cut_states(config)
        return
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    shared = getattr(config, "num_key_value_heads", None) or heads
    few_shared = min(shared, 4 if shared == heads else 2)
    few = few_shared * min(heads // shared, 2)
    config.num_attention_heads, config.hidden_size = few, min(config.hidden_size, few * size)
    if getattr(config, "num_key_value_heads", None):
        config.num_key_value_heads = few_shared
    if getattr(config, "lru_width", None):
        config.lru_width = config.hidden_size
    cut_states(config)


def cut_states(config: Any) -> None:
    """Reduces the heads of recurrent states to what fits the narrower model."""
    for heads, size, expand, groups in _STATES:
        if isinstance(getattr(config, heads, None), int) and isinstance(getattr(config, expand, None), int):
            setattr(config, heads, getattr(config, expand) * config.hidden_size // getattr(config, size))
            setattr(config, groups, 1)
