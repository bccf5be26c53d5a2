"""How long does a call of Gemma's door take beside one of the `gemma` package's own? 16 prompts, 16 tokens, warm.

python -m benchmarks.gemma [--rounds 25], in an environment that has `gemma` as well (CONTRIBUTING.md says how to make
one). Models have random weights; both doors run the same model and parameters, and greedy tokens are compared.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gemma import gm  # pyright: ignore[reportMissingImports]
from gemma.gm.nn import _transformer, config  # pyright: ignore[reportMissingImports]
from gemma.gm.text import _tokenizer  # pyright: ignore[reportMissingImports]

import tirage
from benchmarks.harness import interleaved, save
from tirage.compat import gemma as ours

theirs: Any = gm.text  # pyright: ignore[reportAttributeAccessIssue]

PROMPTS = [f"hello there {number}" + "x" * number for number in range(16)]
LOCAL, GLOBAL = config.AttentionType.LOCAL_SLIDING, config.AttentionType.GLOBAL

SIZES: dict[str, dict[str, Any]] = {
    "2 layers of 32, 128 tokens": {"num_embed": 128, "embed_dim": 32, "hidden_dim": 64, "layers": (LOCAL, GLOBAL)},
    "6 layers of 256, 8192 tokens": {
        "num_embed": 8192,
        "embed_dim": 256,
        "hidden_dim": 1024,
        "layers": (LOCAL, GLOBAL) * 3,
    },
}
METHODS: dict[str, tuple[str, dict[str, float]]] = {
    "greedy": ("Greedy", {}),
    "temperature": ("RandomSampling", {"temperature": 0.8}),
    "top_p 0.9": ("TopPSampling", {"p": 0.9}),
}


class Letters:
    """What the package's tokenizer asks of SentencePiece, with one id per letter."""

    def GetPieceSize(self) -> int:  # noqa: N802
        return 128

    def EncodeAsIds(self, text: str) -> list[int]:  # noqa: N802
        return [ord(letter) for letter in text]

    def DecodeIds(self, ids: list[int]) -> str:  # noqa: N802
        return "".join(chr(token) for token in ids if token)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LetterTokenizer(_tokenizer.Tokenizer):
    path: str = "none"
    special_tokens = _tokenizer._Gemma3SpecialTokens
    VERSION = 0

    @functools.cached_property
    def _sp(self) -> Letters:
        return Letters()


def model_of(num_embed: int, embed_dim: int, hidden_dim: int, layers: tuple[Any, ...]) -> tuple[Any, Any]:
    """A Gemma 3 Transformer of this size and random parameters."""
    shape = config.TransformerConfig(
        num_embed=num_embed,
        embed_dim=embed_dim,
        hidden_dim=hidden_dim,
        num_heads=embed_dim // 16,
        num_kv_heads=embed_dim // 16,
        head_dim=16,
        final_logit_softcap=None,
        attention_types=layers,
        sliding_window_size=32,
        use_post_attn_norm=None,
        attn_logits_soft_cap=None,
        use_post_ffw_norm=None,
    )
    model = _transformer.Transformer(config=shape, dtype=jnp.float32)
    shapes = jax.eval_shape(model.init, jax.random.PRNGKey(0), jnp.zeros((5,), jnp.int32))["params"]
    rng = np.random.RandomState(0)
    scale = 0.35 * (32 / embed_dim) ** 0.5
    return model, jax.tree.map(lambda leaf: jnp.asarray(rng.normal(0, scale, leaf.shape), leaf.dtype), shapes)


def row(size: str, method: str, rounds: int) -> dict[str, Any]:
    """Seconds of both doors for one model and method."""
    model, params = model_of(**SIZES[size])
    name, options = METHODS[method]

    def call(door: Any) -> Any:
        sampler = door.Sampler(
            model=model, params=params, tokenizer=LetterTokenizer(), cache_length=128, max_out_length=16, pad_length=32
        )
        chosen = getattr(door, name)(**options)
        return lambda: sampler.sample(PROMPTS, sampling=chosen, rng=3, return_state=True)

    jobs = {"ours": call(ours), "theirs": call(theirs)}
    tokens = {key: np.asarray(job().tokens) for key, job in jobs.items()}
    seconds = fastest(jobs, rounds)
    return {
        "model": size,
        "method": method,
        "ours_ms": round(seconds["ours"] * 1e3, 1),
        "gemma_ms": round(seconds["theirs"] * 1e3, 1),
        "ratio": round(seconds["theirs"] / seconds["ours"], 2),
        "same_tokens": bool((tokens["ours"] == tokens["theirs"]).all()) if method == "greedy" else None,
    }


def fastest(jobs: dict[str, Any], rounds: int) -> dict[str, float]:
    """The least seconds of each job: other work on the machine only ever adds to them."""
    single = [interleaved(jobs, rounds=1, clock=time.perf_counter) for _ in range(rounds)]
    return {name: min(each[name] for each in single) for name in jobs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    rounds = parser.parse_args().rounds
    tirage.warmup()
    rows = [row(size, method, rounds) for size in SIZES for method in METHODS]
    save("gemma", rows, notes="wall time of a call, 16 prompts x 16 tokens, least of interleaved rounds; gemma 4.0.1")


if __name__ == "__main__":
    main()
