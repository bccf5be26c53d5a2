"""GGUF files of Llamas, of a folder or with random weights, written with llama.cpp's own package `gguf`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import quantize
from numpy.typing import NDArray
from safetensors.numpy import load_file

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def convert(folder: Path, path: Path, *, kind: str = "F32", **metadata: str) -> Path:
    """The GGUF file of a float32 Llama folder with a byte-level tokenizer; `metadata` are texts by key.

    In `metadata` keys `__` stands for a dot: `tokenizer__chat_template`.
    """
    config = json.loads((folder / "config.json").read_text())
    writer = llama_writer(path, config)
    write_byte_level_tokenizer(writer, json.loads((folder / "tokenizer.json").read_text()))
    for key, value in metadata.items():
        writer.add_string(key.replace("__", "."), value)
    for name, values in named_tensors(load_file(folder / "model.safetensors"), config):
        add_tensor(writer, name, values, kind)
    finish(writer)
    return path


def random_llama(path: Path, config: dict[str, Any], *, kind: str, seed: int = 1) -> Path:
    """The GGUF file of a Llama with random weights and a SentencePiece-like vocabulary of made-up words."""
    writer = llama_writer(path, config)
    words = [f"\u2581w{at}" for at in range(config["vocab_size"] - 259)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words])
    writer.add_token_scores([0.0] * 259 + [-float(at) for at in range(len(words))])
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
    writer.add_token_types([*kinds, *[TokenType.BYTE] * 256, *[TokenType.NORMAL] * len(words)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    random = np.random.default_rng(seed)
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    shapes = {"attn_q": (hidden, hidden), "attn_k": (hidden, hidden), "attn_v": (hidden, hidden)}
    shapes |= {"attn_output": (hidden, hidden), "ffn_gate": (inner, hidden), "ffn_up": (inner, hidden)}
    shapes |= {"ffn_down": (hidden, inner)}
    blocks = {
        f"blk.{i}.{name}.weight": shape for i in range(config["num_hidden_layers"]) for name, shape in shapes.items()
    }
    for name, shape in {"token_embd.weight": (vocab, hidden), "output.weight": (vocab, hidden), **blocks}.items():
        scale = 1.0 if name.startswith("token") else (3.0 if name.startswith("output") else 1.0) / shape[1] ** 0.5
        add_tensor(writer, name, random.standard_normal(shape, np.float32) * np.float32(scale), kind)
    for name in [
        "output_norm",
        *(f"blk.{i}.{n}_norm" for i in range(config["num_hidden_layers"]) for n in ("attn", "ffn")),
    ]:
        add_tensor(writer, f"{name}.weight", np.ones(hidden, np.float32), kind)
    finish(writer)
    return path


def llama_writer(path: Path, config: dict[str, Any]) -> GGUFWriter:
    """A writer with the sizes of a Llama."""
    writer = GGUFWriter(str(path), "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    return writer


def write_byte_level_tokenizer(writer: GGUFWriter, form: dict[str, Any]) -> None:
    """The vocabulary, merges and added tokens of a tokenizer.json; the last special token is EOS."""
    added = {token["id"]: token for token in form["added_tokens"]}
    texts = {i: token for token, i in form["model"]["vocab"].items()} | {i: t["content"] for i, t in added.items()}
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in form["model"]["merges"]]
    kinds = {True: TokenType.CONTROL, False: TokenType.USER_DEFINED}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([texts[i] for i in sorted(texts)])
    writer.add_token_types([kinds[added[i]["special"]] if i in added else TokenType.NORMAL for i in sorted(texts)])
    writer.add_token_merges(merges)
    writer.add_eos_token_id(max(i for i, token in added.items() if token["special"]))
    writer.add_add_bos_token(False)


def named_tensors(found: dict[str, NDArray[Any]], config: dict[str, Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    """The tensors under llama.cpp's names, with the rows of queries and keys in its order of rotation."""
    heads = {"self_attn.q_proj": config["num_attention_heads"], "self_attn.k_proj": config["num_key_value_heads"]}
    yield "token_embd.weight", found["model.embed_tokens.weight"]
    yield "output_norm.weight", found["model.norm.weight"]
    yield "output.weight", found.get("lm_head.weight", found["model.embed_tokens.weight"])
    for layer in range(config["num_hidden_layers"]):
        for theirs, ours in NAMES.items():
            values = found[f"model.layers.{layer}.{theirs}.weight"]
            yield f"blk.{layer}.{ours}.weight", rotated(values, heads[theirs]) if theirs in heads else values


def rotated(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows of queries or keys: pairs beside each other instead of half a head apart."""
    shape = weight.shape
    return weight.reshape(heads, 2, shape[0] // heads // 2, shape[1]).swapaxes(1, 2).reshape(shape)


def add_tensor(writer: GGUFWriter, name: str, values: NDArray[Any], kind: str) -> None:
    """Adds a tensor: matrices of that kind, vectors as float32."""
    values = np.ascontiguousarray(values, np.float32)
    wanted = GGMLQuantizationType[kind] if values.ndim > 1 else GGMLQuantizationType.F32
    writer.add_tensor(name, quantize(values, wanted), raw_dtype=wanted)


def finish(writer: GGUFWriter) -> None:
    """Writes the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
