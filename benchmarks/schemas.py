"""What does a JSON schema cost beside llguidance's own reader and xgrammar? Compilation and masks at V = 128,000.

python -m benchmarks.schemas [--every 4] [--without-xgrammar]

Schemas in use, from jsonschemabench: TIRAGE_REAL_SCHEMAS names the file. Each is compiled anew, up to its first mask,
and a valid instance is followed token by token; times are processor time, in one process.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.guided import words
from benchmarks.harness import save
from tirage import GrammarError, GuidedDecodingParams
from tirage.guided import Compiler, Vocabulary
from tirage.guided.json_schema import compile_schema
from tirage.guided.llguidance_backend import LlguidanceTokenizer

WIDTH = 128_000
SELDOM, SHORT = 10, 1000
"""xgrammar takes seconds for a vocabulary of this size: it gets every tenth schema, if it has at most so many bytes."""
NOTES = (
    "Processor time in one process, new to first mask; masks along valid instances that both follow. Schemas of the "
    "half that the compiler was not tuned on. llguidance's own reader allows any whitespace, ours up to 8 characters. "
    "xgrammar, if it was measured, with one thread, on few short schemas."
)
Fill = Callable[[], object]
Accept = Callable[[int], bool]
Start = Callable[[], tuple[Fill, Accept]]
"""Begins a text: gives what fills the next mask, and what takes a token."""


def schemas(every: int) -> list[tuple[str, str | None]]:
    """Each schema as JSON text, with a valid instance if there is one.

    With an even number the schemas of the odd half: the compiler has been tuned on the others.
    """
    path = Path(os.environ.get("TIRAGE_REAL_SCHEMAS", "../shared/data/schemas_real.jsonl.gz"))
    if not path.exists():
        sys.exit("TIRAGE_REAL_SCHEMAS must name the schemas of jsonschemabench, one JSON object per line")
    found = []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in list(file)[1::every]:
            row = json.loads(line)
            valid = [test["data"] for test in row["tests"] if test["valid"]]
            instance = json.dumps(valid[0], ensure_ascii=False, separators=(",", ":")) if valid else None
            found.append((json.dumps(row["schema"], ensure_ascii=False), instance))
    return found


class Ours:
    """The compiler of this package."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._compiler = Compiler(vocabulary, budget=0)
        self._words, self._number = vocabulary.words, 0
        self.compile("{}")

    def compile(self, schema: str) -> Start | None:
        compile_schema.cache_clear()
        self._number += 1
        try:
            # A space more or less makes another key of the same schema.
            grammar = self._compiler.compile(GuidedDecodingParams(json=" " * (self._number % 7) + schema))
        except GrammarError:
            return None

        def start() -> tuple[Fill, Accept]:
            matcher, mask = grammar.matcher(), np.zeros(self._words, np.int32)
            return lambda: matcher.fill_mask(mask), matcher.accept

        return start


class Llguidance:
    """llguidance's own reader of JSON schemas, with its own choice of whitespace and without forced tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        import llguidance

        self._library = llguidance
        wrapper = llguidance.TokenizerWrapper(LlguidanceTokenizer(vocabulary))
        self._tokenizer = llguidance.LLTokenizer(wrapper, n_vocab=vocabulary.width + 1)
        self._mask = np.zeros((vocabulary.width + 32) // 32, np.int32)

    def compile(self, schema: str) -> Start | None:
        grammar = f'%llguidance {{"no_forcing": true}}\nstart: %json {schema}\n'
        matcher = self._library.LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            return None
        matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)

        def start() -> tuple[Fill, Accept]:
            own = matcher.deep_copy()
            return (
                lambda: own.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes),
                lambda token: own.try_consume_tokens([token]) == 1,
            )

        return start


class Xgrammar:
    """xgrammar's compiler, with one thread."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        import xgrammar

        self._library, tokens = xgrammar, [*vocabulary.tokens, b"<end of text>"]
        info = xgrammar.TokenizerInfo(tokens, vocab_size=len(tokens), stop_token_ids=[len(tokens) - 1])
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._mask = np.zeros((1, (len(tokens) + 31) // 32), np.int32)

    def compile(self, schema: str) -> Start | None:
        try:
            compiled = self._compiler.compile_json_schema(schema, strict_mode=False)
        except Exception:  # the library raises errors of many kinds
            return None
        self._library.GrammarMatcher(compiled).fill_next_token_bitmask(self._mask)

        def start() -> tuple[Fill, Accept]:
            matcher = self._library.GrammarMatcher(compiled)
            return lambda: matcher.fill_next_token_bitmask(self._mask), matcher.accept_token

        return start


def masks(start: Start, tokens: list[int]) -> list[float] | None:
    """Seconds of the mask before each token; None if one of them is refused."""
    fill, accept = start()
    times = []
    for token in tokens:
        began = time.thread_time()
        fill()
        times.append(time.thread_time() - began)
        if not accept(token):
            return None
    return times


def cut(text: str, ids: dict[bytes, int]) -> list[int]:
    """A text as the longest tokens, from left to right."""
    data, found, at = text.encode(), [], 0
    while at < len(data):
        size = next(n for n in range(min(16, len(data) - at), 0, -1) if data[at : at + n] in ids)
        found.append(ids[data[at : at + size]])
        at += size
    return found


def measure(every: int, *, with_xgrammar: bool = True) -> list[dict[str, Any]]:
    """Compile and mask times of each compiler, on the schemas that all the compared ones take."""
    vocabulary = Vocabulary(tuple(words(WIDTH)), {})
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    compilers: dict[str, Ours | Llguidance | Xgrammar] = {
        "tirage": Ours(vocabulary),
        "llguidance": Llguidance(vocabulary),
    }
    others = ["llguidance"]
    if with_xgrammar:
        others.append("xgrammar")
        compilers["xgrammar"] = Xgrammar(vocabulary)
    compiled: dict[str, list[float | None]] = {name: [] for name in compilers}
    filled: dict[str, list[list[float] | None]] = {name: [] for name in compilers}
    for number, (schema, instance) in enumerate(schemas(every)):
        for name, compiler in compilers.items():
            is_left_out = name == "xgrammar" and (number % SELDOM or len(schema) > SHORT)
            # What the last one has left is freed before the clock runs.
            start = None
            began = time.thread_time()
            start = None if is_left_out else compiler.compile(schema)
            compiled[name].append(time.thread_time() - began if start is not None else None)
            known = start is not None and instance is not None
            filled[name].append(masks(start, cut(instance, ids)) if known and start and instance else None)
    rows = [
        {"compiler": name, "taken": sum(each is not None for each in compiled[name]), "schemas": len(compiled[name])}
        for name in ("tirage", "llguidance")
    ]
    rows += [compared(compiled, other) for other in others]
    rows += [compared_masks(filled, other) for other in others]
    return rows


def compared(times: dict[str, list[float | None]], other: str) -> dict[str, Any]:
    """Compile times on the schemas that both take."""
    pairs = [(a, b) for a, b in zip(times["tirage"], times[other], strict=True) if a is not None and b is not None]
    ours, theirs = ([pair[i] * 1e3 for pair in pairs] for i in (0, 1))
    found = {"compile": f"tirage and {other}", "schemas": len(pairs)}
    for name, each in (("tirage", ours), (other, theirs)):
        found[f"{name}_median_ms"] = round(statistics.median(each), 3)
        found[f"{name}_p99_ms"] = round(float(np.quantile(each, 0.99)), 2)
        found[f"{name}_max_ms"] = round(max(each), 1)
    return found | {"ratio_of_medians": round(statistics.median(ours) / statistics.median(theirs), 2)}


def compared_masks(times: dict[str, list[list[float] | None]], other: str) -> dict[str, Any]:
    """Times of masks along instances that both follow."""
    pairs = [(a, b) for a, b in zip(times["tirage"], times[other], strict=True) if a is not None and b is not None]
    ours, theirs = ([time * 1e6 for pair in pairs for time in pair[i]] for i in (0, 1))
    found = {"masks": f"tirage and {other}", "instances": len(pairs), "masks_each": len(ours)}
    for name, each in (("tirage", ours), (other, theirs)):
        found[f"{name}_mean_us"] = round(statistics.fmean(each), 1)
        found[f"{name}_median_us"] = round(statistics.median(each), 1)
        found[f"{name}_p99_us"] = round(float(np.quantile(each, 0.99)), 1)
    return found | {"ratio_of_means": round(statistics.fmean(ours) / statistics.fmean(theirs), 2)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--without-xgrammar", action="store_true", help="it takes minutes at this vocabulary")
    options = parser.parse_args()
    save("schemas", measure(options.every, with_xgrammar=not options.without_xgrammar), notes=NOTES)


if __name__ == "__main__":
    main()
