"""Read a finished folder back with NumPy alone and print what the model says: `python training/sample.py FOLDER`."""

import argparse
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

STORIES = ["Once upon a time"] * 6 + ["One day, a little fox", "The sky", "My name is", "Long ago,"]
CHATS = [
    "Hello!",
    "What is your name?",
    "Tell me a story about a fox.",
    "What is 3 + 4?",
    "What is the opposite of hot?",
    "Which day comes after Monday?",
    "What colour is the sky?",
    "My name is Mia.",
    "Give me a person as JSON.",
    "Send me an emoji of a cat.",
]
OBJECTS = ['{"name": "Mia", "age": 7,', '{"name":', '[{"', '{"city": "Paris",', '{"item": "kite",']


def read_weights(folder: Path) -> dict[str, np.ndarray]:
    """The tensors in float32: `int8 * scale` where a scale is stored."""
    stored = load_file(folder / "model.safetensors")
    return {
        name: value.astype(np.float32) * stored[f"{name}_scale"][:, None] if f"{name}_scale" in stored else value
        for name, value in stored.items()
        if not name.endswith("_scale")
    }


def norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def turned(x: np.ndarray, theta: float) -> np.ndarray:
    """Rotary positions on `[T, heads, head_dim]`, halves paired."""
    length, _, dim = x.shape
    angles = np.outer(np.arange(length), theta ** -(np.arange(0, dim, 2) / dim))[:, None, :].astype(np.float32)
    first, second = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def attend(x: np.ndarray, w: dict[str, np.ndarray], at: str, config: dict) -> np.ndarray:
    heads, kv_heads, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    q, k, v = ((x @ w[f"{at}.{name}_proj.weight"].T).reshape(len(x), -1, dim) for name in "qkv")
    q, k = turned(q, config["rope_theta"]), np.repeat(turned(k, config["rope_theta"]), heads // kv_heads, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim) + np.triu(np.full((len(x), len(x)), -np.inf), 1)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = np.einsum("hqk,khd->qhd", shares / shares.sum(-1, keepdims=True), np.repeat(v, heads // kv_heads, axis=1))
    return mixed.reshape(len(x), -1).astype(np.float32) @ w[f"{at}.o_proj.weight"].T


def logits(tokens: list[int], w: dict[str, np.ndarray], config: dict) -> np.ndarray:
    """The last position's logits; no cache, since this is a check and not a server."""
    x, eps = w["model.embed_tokens.weight"][tokens], config["rms_norm_eps"]
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        x = x + attend(norm(x, w[f"{at}.input_layernorm.weight"], eps), w, f"{at}.self_attn", config)
        y = norm(x, w[f"{at}.post_attention_layernorm.weight"], eps)
        gate, up = (y @ w[f"{at}.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"{at}.mlp.down_proj.weight"].T
    return w["model.embed_tokens.weight"] @ norm(x[-1], w["model.norm.weight"], eps)


def pick(scores: np.ndarray, rng: np.random.Generator, temperature: float, top_p: float) -> int:
    shares = np.exp((scores - scores.max()) / temperature)
    order = np.argsort(-shares, kind="stable")
    total = np.cumsum(shares[order] / shares.sum())
    kept = order[: int(np.searchsorted(total, top_p)) + 1]
    return int(rng.choice(kept, p=shares[kept] / shares[kept].sum()))


def complete(folder: Path, prompts: list[str], *, limit: int, temperature: float, seed: int) -> list[str]:
    """Each prompt with its continuation, drawn at top-p 0.95."""
    config, weights = json.loads((folder / "config.json").read_text()), read_weights(folder)
    stops = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    tokenizer, rng, texts = Tokenizer.from_file(str(folder / "tokenizer.json")), np.random.default_rng(seed), []
    for prompt in prompts:
        tokens = tokenizer.encode(prompt).ids
        start = len(tokens) if "<|assistant|>" in prompt else 0
        for _ in range(limit):
            token = pick(logits(tokens, weights, config), rng, temperature, 0.95)
            if token in stops:
                break
            tokens.append(token)
        texts.append(tokenizer.decode(tokens[start:]))
    return texts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, default=220)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    asks = [f"<|user|>{ask}<|end|><|assistant|>" for ask in CHATS]
    prompts = STORIES + asks + OBJECTS
    answers = complete(options.folder, prompts, limit=options.limit, temperature=options.temperature, seed=options.seed)
    for prompt, answer in zip(STORIES + CHATS + OBJECTS, answers, strict=True):
        print(f"--- {prompt}\n{answer}")
