"""What does a constraint cost? Compilation and masks at V = 128,000, and tokens per second of a 100 M Llama.

python -m benchmarks.guided [--rounds 21] [--tokens 16] [--small]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

import tirage
from benchmarks.harness import save
from tirage import LLM, GuidedDecodingParams, SamplingParams
from tirage.guided import Compiler, Matcher, Vocabulary
from tirage.models import load

ROWS = 32
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"enum": ["Lyon", "Turin", "Basel"]}},
            "required": ["street", "city"],
        },
    },
    "required": ["name", "age", "address"],
    "additionalProperties": False,
}
GBNF = r"""
root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x01-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "person schema": {"json": PERSON},
    "any JSON": {"json": {}},
    "email pattern": {"regex": r"[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,}"},
    "choice of 3": {"choice": ["positive", "negative", "neutral"]},
    "JSON in GBNF": {"grammar": GBNF},
}


def words(size: int) -> list[bytes]:
    """A vocabulary that is shaped like those in use: bytes, numbers, punctuation, and words with and without space."""
    rng = random.Random(20260)
    found = {bytes([byte]): None for byte in range(256)} | {b"%d" % number: None for number in range(1000)}
    signs = "\"{}[]:,.;()<>=+-*/\\\n\t #_'"
    while len(found) < min(4000, size // 2):
        found["".join(rng.choice(signs) for _ in range(rng.randint(2, 4))).encode()] = None
    starts = ["b", "c", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "st", "tr", "th", ""]
    syllables = [a + b + c for a in starts for b in "aeiou" for c in ("", "n", "r", "s", "t", "l", "ng")]
    while len(found) < size:
        word = "".join(rng.choice(syllables) for _ in range(rng.randint(1, 3)))
        found[(rng.choice(["", " "]) + rng.choice([word, word.capitalize()])).encode()] = None
    return list(found)


class Words:
    """A tokenizer of such a vocabulary: enough to write text."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._tokens = tokens

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self._tokens[i] for i in ids).decode("utf-8", "replace")


def median_ms(job: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        job()
        times.append((time.perf_counter() - start) * 1e3)
    return round(statistics.median(times), 3)


def compile_times(compiler: Compiler, rounds: int) -> list[dict[str, Any]]:
    """Milliseconds of a compilation, new and known; a new one is made new by a comment or a name of its own."""
    rows = []
    for name, mode in CONSTRAINTS.items():
        fresh = iter(range(1_000_000))
        guided = GuidedDecodingParams(**mode)
        compiler.compile(guided)

        def cold(mode: dict[str, Any] = mode, fresh: Any = fresh) -> object:
            return compiler.compile(GuidedDecodingParams(**changed(mode, next(fresh))))

        rows.append({
            "constraint": name,
            "compile_ms": median_ms(cold, rounds),
            "cached_ms": median_ms(lambda guided=guided: compiler.compile(guided), rounds * 5),
            "matcher_ms": median_ms(lambda guided=guided: compiler.compile(guided).matcher(), rounds * 5),
        })
    return rows


def changed(mode: dict[str, Any], number: int) -> dict[str, Any]:
    """The same constraint under a key of its own."""
    if "json" in mode:
        return {"json": mode["json"] | {"$comment": str(number)}}
    if "regex" in mode:
        return {"regex": f"{mode['regex']}(?#{number})"}
    if "choice" in mode:
        return {"choice": [*mode["choice"], f"other {number}"]}
    return {"grammar": f"# {number}\n{mode['grammar']}"}


def mask_times(compiler: Compiler, steps: int) -> list[dict[str, Any]]:
    """Milliseconds to fill the masks of 32 rows at different places of random texts."""
    rng = np.random.default_rng(1)
    rows = []
    for name, mode in CONSTRAINTS.items():
        grammar = compiler.compile(GuidedDecodingParams(**mode))
        mask = np.zeros((ROWS, compiler.vocabulary.words), np.int32)
        matchers = [grammar.matcher() for _ in range(ROWS)]
        times = []
        for _ in range(steps):
            start = time.perf_counter()
            for matcher, row in zip(matchers, mask, strict=True):
                matcher.fill_mask(row)
            times.append((time.perf_counter() - start) * 1e3)
            matchers = [
                advanced(matcher, row, rng) or grammar.matcher() for matcher, row in zip(matchers, mask, strict=True)
            ]
        rows.append({
            "constraint": name,
            "masks_of_32_rows_ms": round(statistics.median(times), 3),
            "slowest_ms": round(max(times), 3),
        })
    return rows


def advanced(matcher: Matcher, mask: Any, rng: np.random.Generator) -> Matcher | None:
    """The matcher after a random token; None at the end of a text."""
    choices = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
    return matcher if len(choices) and matcher.accept(int(rng.choice(choices))) else None


def throughput(tokens: int, small: bool) -> list[dict[str, Any]]:
    """Tokens per second of a random Llama, with and without a schema that never ends."""
    with tempfile.TemporaryDirectory() as folder:
        model = load(random_llama(Path(folder), small))
    llm = LLM(model, tokenizer=Words(words(model.vocab_size)))
    free = SamplingParams(seed=1, max_tokens=tokens, temperature=0.8)
    bound = free.replace(guided_decoding=GuidedDecodingParams(json={"type": "array", "minItems": 10_000}))
    prompts = ["The fox"] * 4
    speeds: dict[str, list[float]] = {"free": [], "guided": []}
    for params in (free, bound):
        llm.generate(prompts, params)
    for _ in range(5):
        for name, params in (("free", free), ("guided", bound)):
            start = time.perf_counter()
            drawn = sum(len(completion.token_ids) for completion in llm.generate(prompts, params))
            speeds[name].append(drawn / (time.perf_counter() - start))
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    return [
        {
            "model": "Llama 256x2" if small else "Llama 768x12, 100 M",
            "free_tokens_per_s": round(medians["free"], 2),
            "guided_tokens_per_s": round(medians["guided"], 2),
            "ratio": round(medians["guided"] / medians["free"], 3),
        }
    ]


def random_llama(folder: Path, small: bool) -> Path:
    """A folder with random weights."""
    d, layers, heads, vocab = (256, 2, 4, 32_000) if small else (768, 12, 12, 32_000)
    inner = 4 * d * 2 // 3
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": d,
        "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": heads, "head_dim": d // heads, "vocab_size": vocab, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
    }  # fmt: skip
    rng = np.random.default_rng(3)
    shapes = {"model.embed_tokens.weight": (vocab, d), "model.norm.weight": (d,)}
    for i in range(layers):
        at = f"model.layers.{i}"
        shapes |= {f"{at}.{norm}_layernorm.weight": (d,) for norm in ("input", "post_attention")}
        shapes |= {f"{at}.self_attn.{part}_proj.weight": (d, d) for part in "qkvo"}
        shapes |= {f"{at}.mlp.{part}_proj.weight": (inner, d) for part in ("gate", "up")}
        shapes |= {f"{at}.mlp.down_proj.weight": (d, inner)}
    tensors = {name: rng.standard_normal(shape, dtype=np.float32) * np.float32(0.05) for name, shape in shapes.items()}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--small", action="store_true", help="a small vocabulary and model, to see that it runs")
    options = parser.parse_args()
    tirage.warmup()
    compiler = Compiler(Vocabulary(tuple(words(8_000 if options.small else 128_000))))
    rows = compile_times(compiler, options.rounds) + mask_times(compiler, options.rounds * 5)
    rows += throughput(options.tokens, options.small)
    if options.small:
        print(json.dumps(rows, indent=1))
    else:
        save("guided", rows, notes="medians of wall time, one thread; V = 128,000 for compilation and masks")


if __name__ == "__main__":
    main()
