"""Small random models of transformers' architectures, and what each writes alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

transformers_logging.set_verbosity_error()
VOCAB = 200

_USUAL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GPT: dict[str, Any] = {
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_WINDOW = {"sliding_window": 16}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "bloom": {"hidden_size": 64, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2},
    "codegen": {**_GPT, "rotary_dim": 8},
    "cohere": _USUAL,
    "deepseek_v3": {
        **_USUAL, "num_key_value_heads": 4, "moe_intermediate_size": 32, "n_routed_experts": 4, "n_group": 1,
        "topk_group": 1, "num_experts_per_tok": 2, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8, "v_head_dim": 16, "first_k_dense_replace": 1, "head_dim": 8,
    },
    "exaone4": {**_USUAL, **_WINDOW},
    "falcon": {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "bos_token_id": 1, "eos_token_id": 2,
    },
    "gemma": _USUAL,
    "gemma2": {**_USUAL, **_WINDOW},
    "gemma3_text": {**_USUAL, **_WINDOW, "num_hidden_layers": 6},
    "glm": _USUAL,
    "gpt2": _GPT,
    "gpt_bigcode": _GPT,
    "gpt_neo": {
        "hidden_size": 64, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]],
        "window_size": 16, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2,
    },
    "gpt_neox": _USUAL,
    "gpt_oss": {**_USUAL, **_WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2},
    "gptj": {**_GPT, "rotary_dim": 8},
    "granite": _USUAL,
    "helium": _USUAL,
    "jamba": {
        **_USUAL, "num_hidden_layers": 4, "num_experts": 2, "attn_layer_offset": 1, "attn_layer_period": 2,
        "mamba_d_state": 8, "use_mamba_kernels": False,
    },
    "lfm2": {**_USUAL, "layer_types": ["conv", "full_attention"]},
    "llama": _USUAL,
    "llama4_text": {
        **_USUAL, "num_hidden_layers": 4, "attention_chunk_size": 16, "num_local_experts": 2,
        "intermediate_size_mlp": 96,
    },
    "mamba": {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8},
    "mamba2": {
        "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8, "num_heads": 8, "head_dim": 16, "n_groups": 1,
        "chunk_size": 8,
    },
    "mistral": {**_USUAL, **_WINDOW},
    "mixtral": {**_USUAL, "num_local_experts": 4, "num_experts_per_tok": 2},
    "mpt": {"d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 256, "expansion_ratio": 2},
    "nemotron": _USUAL,
    "olmo": _USUAL,
    "olmo2": _USUAL,
    "opt": {
        "hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "word_embed_proj_dim": 64,
        "max_position_embeddings": 256, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 2,
    },
    "phi": _USUAL,
    "phi3": _USUAL,
    "qwen2": _USUAL,
    "qwen2_moe": {**_USUAL, **_EXPERTS, "shared_expert_intermediate_size": 32},
    "qwen3": _USUAL,
    "qwen3_moe": {**_USUAL, **_EXPERTS},
    "qwen3_next": {
        **_USUAL, **_EXPERTS, "num_hidden_layers": 4, "shared_expert_intermediate_size": 32,
        "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    },
    "recurrent_gemma": {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 16, "lru_width": 64, "attention_window_size": 16,
    },
    "rwkv": {"hidden_size": 64, "num_hidden_layers": 2, "context_length": 256, "attention_hidden_size": 64},
    "smollm3": _USUAL,
    "stablelm": _USUAL,
    "starcoder2": _USUAL,
}  # fmt: skip
"""Configurations by model_type."""

UNLIKE = (
    "bloom", "deepseek_v3", "falcon", "gemma3_text", "gpt2", "gpt_neo", "gpt_oss", "jamba", "lfm2", "llama4_text",
    "mamba2", "mixtral", "mpt", "qwen3_next", "recurrent_gemma",
)  # fmt: skip
"""Each with a cache, a mask or positions that no other has; the rest attend as Llama does, under names of their own."""

RECOMPUTED = {"recurrent_gemma", "rwkv"}
"""Those that keep their state on the modules or in an argument of their own, not in a cache of transformers."""


def build(name: str = "llama", *, seed: int = 0, **changes: Any) -> Any:
    """A random model of an architecture; equal for equal arguments."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(name, **{"vocab_size": VOCAB, **ARCHITECTURES[name], **changes})
    return AutoModelForCausalLM.from_config(config).float().eval()


def alone(module: Any, prompt: Sequence[int], count: int, **inputs: Any) -> list[int]:
    """The ids that `generate` writes greedily after one prompt, whatever EOS says."""
    ids = torch.tensor([list(prompt)])
    # Some architectures have no id to pad with; nothing is padded here.
    options = {"max_new_tokens": count, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    mask = torch.ones_like(ids)
    return module.generate(ids, attention_mask=mask, **options, **inputs)[0, len(prompt) :].tolist()


class Numbers:
    """A tokenizer of ids written as numbers."""

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(f"{i} " for i in ids)
