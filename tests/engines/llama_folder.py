"""Folders of small Llamas with random weights and a tokenizer of bytes, in the form that every engine loads.

Head size 64, as some engines have no kernels for less. Weights follow from a seed alone; the logits of a float32 folder
have a spread of about 3, so that no parameter leaves one candidate only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

HEAD = 64
EOS = "<|end|>"
PROMPTS = ("Once upon a time", "the cat sat on the mat", "def f(x):", "1, 2, 3, 4,", "so it is that", "a", "why? ", "{")

_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


def write_folder(
    folder: Path,
    *,
    vocab_size: int = 512,
    heads: int = 2,
    layers: int = 2,
    max_length: int = 1024,
    dtype: str = "float32",
    seed: int = 1,
) -> Path:
    """The folder, with config, weights and tokenizer of a Llama with hidden size 64 * heads."""
    folder.mkdir(parents=True, exist_ok=True)
    hidden = HEAD * heads
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": HEAD,
        "max_position_embeddings": max_length,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "eos_token_id": 511,
        "torch_dtype": dtype,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 511}))
    _write_tokenizer(folder)
    _write_weights(folder / "model.safetensors", dict(_tensors(config, seed)), dtype)
    return folder


def _write_tokenizer(folder: Path) -> None:
    """256 bytes, then 255 pairs of letters, then EOS: 512 ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = list(product(ascii_lowercase, ascii_lowercase))[:255]
    pieces = [*alphabet, *(a + b for a, b in pairs)]
    tokenizer = Tokenizer(BPE({piece: i for i, piece in enumerate(pieces)}, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(EOS, special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS, "chat_template": _TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))


def _tensors(config: dict[str, Any], seed: int) -> Iterator[tuple[str, NDArray[np.float32]]]:
    random = np.random.default_rng(seed)
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]

    def normal(rows: int, columns: int, scale: float = 1.0) -> NDArray[np.float32]:
        return random.standard_normal((rows, columns), np.float32) * np.float32(scale / columns**0.5)

    yield "model.embed_tokens.weight", random.standard_normal((vocab, hidden), np.float32)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for name in ("q", "k", "v", "o"):
            yield f"{at}self_attn.{name}_proj.weight", normal(hidden, hidden, 2.0)
        for name in ("gate", "up"):
            yield f"{at}mlp.{name}_proj.weight", normal(inner, hidden)
        yield f"{at}mlp.down_proj.weight", normal(hidden, inner)
        for name in ("input", "post_attention"):
            yield f"{at}{name}_layernorm.weight", np.ones(hidden, np.float32)
    yield "model.norm.weight", np.ones(hidden, np.float32)
    yield "lm_head.weight", normal(vocab, hidden, 3.0)


def _write_weights(path: Path, tensors: dict[str, NDArray[np.float32]], dtype: str) -> None:
    """Safetensors by hand: bfloat16, which NumPy lacks, is the upper half of float32, rounded."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts, at = [], 0
    for name, values in tensors.items():
        raw = values.tobytes() if dtype == "float32" else _bfloat16(values).tobytes()
        kind = "F32" if dtype == "float32" else "BF16"
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": [at, at + len(raw)]}
        parts.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    path.write_bytes(b"".join([len(text).to_bytes(8, "little"), text, *parts]))


def _bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
