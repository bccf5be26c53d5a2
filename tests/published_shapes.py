"""Configurations as published, but narrow, shallow and with a small vocabulary; bounds are the published ones."""

from __future__ import annotations

from typing import Any

_SMALL: dict[str, Any] = {
    "vocab_size": 200, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SHORT = [1.0 + 0.01 * i for i in range(8)]
LONG = [1.0 + 2.0 * i for i in range(8)]

SHAPES: dict[str, tuple[str, dict[str, Any], int]] = {
    "Phi-3-mini-128k": ("phi3", {
        **_SMALL, "max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "sliding_window": 262144,
        "rope_theta": 10000.0, "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG},
    }, 4096),
    "Phi-3.5-MoE": ("phimoe", {
        **_SMALL, "max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "sliding_window": 131072,
        "num_local_experts": 4, "num_experts_per_tok": 2, "rope_theta": 10000.0, "rope_scaling": {
            "type": "longrope", "short_factor": SHORT, "long_factor": LONG, "short_mscale": 1.243163121016122,
            "long_mscale": 1.243163121016122, "original_max_position_embeddings": 4096,
        },
    }, 4096),
    "Llama-3.1": ("llama", {
        **_SMALL, "max_position_embeddings": 131072, "rope_theta": 500000.0, "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    }, 8192),
    "Qwen2": ("qwen2", {
        **_SMALL, "max_position_embeddings": 32768, "sliding_window": 131072, "use_sliding_window": False,
        "max_window_layers": 28, "rope_theta": 1000000.0,
    }, 1024),
    "Qwen2.5-1M": ("qwen2", {
        **_SMALL, "max_position_embeddings": 131072, "rope_theta": 1000000.0,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    }, 1024),
    "Qwen3": ("qwen3", {**_SMALL, "max_position_embeddings": 40960, "rope_theta": 1000000}, 1024),
    "Mistral-7B-v0.1": ("mistral", {
        **_SMALL, "max_position_embeddings": 32768, "sliding_window": 4096, "rope_theta": 10000.0,
    }, 4096),
    "Gemma-2": ("gemma2", {
        # Its scores are computed whole, [heads, length, length], several times at once.
        **_SMALL, "num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": 8192,
        "sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": 16,
    }, 4096),
    "Gemma-3": ("gemma3_text", {
        **_SMALL, "num_hidden_layers": 6, "max_position_embeddings": 32768, "sliding_window": 512,
        "sliding_window_pattern": 6, "rope_theta": 1000000, "rope_local_base_freq": 10000,
    }, 512),
    "gpt-oss": ("gpt_oss", {
        **_SMALL, "max_position_embeddings": 131072, "sliding_window": 128, "num_local_experts": 4,
        "num_experts_per_tok": 2, "rope_theta": 150000, "rope_scaling": {
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    }, 128),
    "Llama-4": ("llama4_text", {
        **_SMALL, "num_hidden_layers": 4, "attention_chunk_size": 1024, "num_local_experts": 2,
        "intermediate_size_mlp": 96, "max_position_embeddings": 262144,
    }, 1024),
    "RecurrentGemma": ("recurrent_gemma", {
        "vocab_size": 200, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 16, "lru_width": 64, "attention_window_size": 256, "bos_token_id": 1,
        "eos_token_id": 2,
    }, 256),
    "Jamba": ("jamba", {
        **_SMALL, "num_hidden_layers": 3, "num_experts": 2, "attn_layer_offset": 1, "attn_layer_period": 3,
        "mamba_d_state": 8, "use_mamba_kernels": False, "max_position_embeddings": 262144,
    }, 256),
    "Mamba": ("mamba", {
        "vocab_size": 200, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "bos_token_id": 1,
        "eos_token_id": 2,
    }, 256),
    "Qwen3-Next": ("qwen3_next", {
        **_SMALL, **_EXPERTS, "num_hidden_layers": 4, "shared_expert_intermediate_size": 32,
        "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
        "max_position_embeddings": 262144,
    }, 256),
}  # fmt: skip
"""By name: the model_type, the configuration, and a length at which what a layer or the engine does changes."""
