"""Small random Llama folders, and an independent forward pass in plain float64 loops to compare with."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "vocab_size": 50,
    "max_position_embeddings": 600,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500.0,
    "tie_word_embeddings": False,
}
Tensors = dict[str, NDArray[Any]]


def random_tensors(config: dict[str, Any], seed: int = 0, *, bias: bool = False) -> Tensors:
    """Float32 weights of a Llama of that shape; with `bias`, on the query and gate projections only."""
    rng = np.random.default_rng(seed)
    d, inner, v = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    q, kv = (config[k] * config["head_dim"] for k in ("num_attention_heads", "num_key_value_heads"))
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (v, d), "model.norm.weight": (d,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (v, d)
    for i in range(config["num_hidden_layers"]):
        attention, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
        shapes |= {f"model.layers.{i}.input_layernorm.weight": (d,)}
        shapes |= {f"model.layers.{i}.post_attention_layernorm.weight": (d,)}
        shapes |= {f"{attention}.q_proj.weight": (q, d), f"{attention}.k_proj.weight": (kv, d)}
        shapes |= {f"{attention}.v_proj.weight": (kv, d), f"{attention}.o_proj.weight": (d, q)}
        shapes |= {f"{mlp}.gate_proj.weight": (inner, d), f"{mlp}.up_proj.weight": (inner, d)}
        shapes |= {f"{mlp}.down_proj.weight": (d, inner)}
        if bias:
            shapes |= {f"{attention}.q_proj.bias": (q,), f"{mlp}.gate_proj.bias": (inner,)}
    return {name: rng.normal(0, 0.4, shape).astype(np.float32) for name, shape in shapes.items()}


def write_folder(folder: Path, tensors: Tensors, **changes: Any) -> Path:
    """A Hugging Face folder of those tensors; `changes` go into its config.json."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    save_file(tensors, folder / "model.safetensors")
    return folder


def reference_logits(config: dict[str, Any], tensors: Tensors, ids: list[int]) -> NDArray[np.float64]:
    """Logits [V] after the last id: one position, one head, one product at a time, in float64."""
    w = {name: array.astype(np.float64) for name, array in tensors.items()}
    xs = [w["model.embed_tokens.weight"][i] for i in ids]
    for layer in range(config["num_hidden_layers"]):
        xs = _reference_block(config, w, f"model.layers.{layer}", xs)
    head = w["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
    return head @ _norm(xs[-1], w["model.norm.weight"], config)


def _reference_block(config: dict[str, Any], w: Tensors, prefix: str, xs: list[NDArray[Any]]) -> list[NDArray[Any]]:
    normed = [_norm(x, w[f"{prefix}.input_layernorm.weight"], config) for x in xs]
    project = {part: [_linear(w, f"{prefix}.self_attn.{part}_proj", x) for x in normed] for part in "qkv"}
    n, d = config["num_attention_heads"], config["head_dim"]
    shared = n // config["num_key_value_heads"]
    result = []
    for t, x in enumerate(xs):
        mixed = []
        for h in range(n):
            query = _turn(project["q"][t][h * d : (h + 1) * d], t, config)
            part = slice(h // shared * d, h // shared * d + d)
            keys = [_turn(project["k"][s][part], s, config) for s in range(t + 1)]
            weights = [math.exp(float(query @ key) / math.sqrt(d)) for key in keys]
            values = [project["v"][s][part] for s in range(t + 1)]
            mixed.append(sum(a * b for a, b in zip(weights, values, strict=True)) / sum(weights))
        x = x + _linear(w, f"{prefix}.self_attn.o_proj", np.concatenate(mixed))
        y = _norm(x, w[f"{prefix}.post_attention_layernorm.weight"], config)
        gate = _linear(w, f"{prefix}.mlp.gate_proj", y)
        up = _linear(w, f"{prefix}.mlp.up_proj", y)
        result.append(x + _linear(w, f"{prefix}.mlp.down_proj", gate / (1 + np.exp(-gate)) * up))
    return result


def _linear(w: Tensors, name: str, x: NDArray[Any]) -> NDArray[Any]:
    return w[f"{name}.weight"] @ x + w.get(f"{name}.bias", 0.0)


def _norm(x: NDArray[Any], weight: NDArray[Any], config: dict[str, Any]) -> NDArray[Any]:
    return x / math.sqrt(float(np.mean(x * x)) + config["rms_norm_eps"]) * weight


def _turn(x: NDArray[Any], position: int, config: dict[str, Any]) -> NDArray[Any]:
    half = len(x) // 2
    turned = np.empty_like(x)
    for i in range(half):
        angle = position * config["rope_theta"] ** (-2 * i / len(x))
        a, b = x[i], x[i + half]
        turned[i] = a * math.cos(angle) - b * math.sin(angle)
        turned[i + half] = b * math.cos(angle) + a * math.sin(angle)
    return turned
