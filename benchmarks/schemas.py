"""What does a JSON schema cost beside llguidance's own reader and xgrammar? Compilation and masks at V = 128,000.

python -m benchmarks.schemas [--every 4] [--sample 150] [--seed 14] [--limit 20] [--keep FILE [--only xgrammar]]

Schemas in use, from jsonschemabench: TIRAGE_REAL_SCHEMAS names the file. Each is compiled anew, up to its first mask,
and a valid instance is followed token by token; times are processor time, in one process. xgrammar takes seconds for a
vocabulary of this size: it gets a random sample of the schemas, each in a copy of the process that ends after `limit`
seconds of processor time.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.guided import words
from benchmarks.harness import commit, save
from tirage import GrammarError, GuidedDecodingParams
from tirage.guided import Compiler, Vocabulary
from tirage.guided.json_schema import forget_schemas
from tirage.guided.llguidance_backend import LlguidanceTokenizer

WIDTH = 128_000
NOTES = (
    "Processor time in one process, new to first mask; masks along valid instances that both follow. Schemas of the "
    "half that the compiler was not tuned on. llguidance's own reader allows any whitespace, ours up to 8 characters. "
    "xgrammar with one thread, on a random sample of these schemas, each in a fork of the process; those that exceed "
    "the limit of processor time are counted and left out of the comparison; its row names the commits."
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

    clock = staticmethod(time.process_time)

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary, self._number = vocabulary, 0
        self._words = vocabulary.words
        self._compiler = Compiler(vocabulary, budget=0)
        self.compile("{}")

    def forget(self) -> None:
        """Frees what the last compilation has left, as a new request would not wait for it."""
        forget_schemas()
        self._compiler._cached.clear()

    def compile(self, schema: str) -> Start | None:
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

    clock = staticmethod(time.process_time)

    def __init__(self, vocabulary: Vocabulary) -> None:
        import llguidance

        self._library = llguidance
        wrapper = llguidance.TokenizerWrapper(LlguidanceTokenizer(vocabulary))
        self._tokenizer = llguidance.LLTokenizer(wrapper, n_vocab=vocabulary.width + 1)
        self._mask = np.zeros((vocabulary.width + 32) // 32, np.int32)

    def forget(self) -> None:
        """Nothing is kept."""

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
    """xgrammar's compiler, with one thread: in a process with a limit of its time, Linux counts that in 4 ms."""

    clock = staticmethod(time.thread_time)

    def __init__(self, vocabulary: Vocabulary) -> None:
        import xgrammar

        self._library, tokens = xgrammar, [*vocabulary.tokens, b"<end of text>"]
        info = xgrammar.TokenizerInfo(tokens, vocab_size=len(tokens), stop_token_ids=[len(tokens) - 1])
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._mask = np.zeros((1, (len(tokens) + 31) // 32), np.int32)

    def forget(self) -> None:
        """Nothing is kept."""

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


def masks(start: Start, tokens: list[int], clock: Callable[[], float]) -> list[float] | None:
    """Seconds of the mask before each token; None if one of them is refused."""
    fill, accept = start()
    times = []
    for token in tokens:
        began = clock()
        fill()
        times.append(clock() - began)
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


Times = tuple[float, list[float] | None]
"""Seconds of a compilation, and of the masks along an instance."""
Outcome = tuple[Times | None, bool]
"""The times, None if the schema is refused, and whether they were had within the limit."""
Outcomes = dict[int, Outcome]
"""By the number of the schema."""
Compilers = Ours | Llguidance | Xgrammar
COMPILERS: dict[str, Callable[[Vocabulary], Compilers]] = {
    "tirage": Ours,
    "llguidance": Llguidance,
    "xgrammar": Xgrammar,
}


def once(compiler: Compilers, schema: str, tokens: list[int] | None) -> Times | None:
    """The times of one compiler for one schema; None if it is refused. What the last one has left is freed before."""
    compiler.forget()
    clock = compiler.clock
    began = clock()
    start = compiler.compile(schema)
    seconds = clock() - began
    return None if start is None else (seconds, masks(start, tokens, clock) if tokens else None)


def ended(compiler: Compilers, schema: str, tokens: list[int] | None) -> Outcome:
    """The times in this process, where there is no limit."""
    return once(compiler, schema, tokens), True


def in_copy(job: Callable[[], Times | None], limit: int) -> Outcome:
    """What a job gives in a fork of this process, and whether it ended within so many seconds of processor time."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        with os.fdopen(write, "w") as pipe:
            json.dump(job(), pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    found = json.loads(answer) if answer else None
    return (None if found is None else (found[0], found[1])), bool(answer)


class Kept:
    """What was measured, one line of a file for each compiler and line of the schemas: a stop loses nothing.

    Lines of tirage and llguidance, which are compared with each other, count if they are of the commit that is checked
    out. xgrammar's count at any commit, as nothing here changes it; its rows name the commits.
    """

    def __init__(self, path: Path | None) -> None:
        self._path, self._commit = path, commit()
        lines = path.read_text().splitlines() if path and path.exists() else []
        found = [json.loads(line) for line in lines]
        self._found = {(row["compiler"], row["schema"]): row for row in found if self._counts(row)}

    def _counts(self, row: dict[str, Any]) -> bool:
        return row["compiler"] == "xgrammar" or row["commit"] == self._commit

    def measured(self, name: str, schema: int, job: Callable[[], Outcome]) -> Outcome:
        """The outcome of a job, measured now unless it is in the file."""
        if (name, schema) not in self._found:
            times, is_ended = job()
            row = {"compiler": name, "schema": schema, "commit": self._commit, "times": times, "ended": is_ended}
            self._found[name, schema] = row
            if self._path:
                with self._path.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        row = self._found[name, schema]
        return row["times"], row["ended"]

    def commits(self, name: str) -> list[str]:
        """The commits at which a compiler was measured."""
        return sorted({str(row["commit"]) for (compiler, _), row in self._found.items() if compiler == name})


def measure(names: list[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Compile and mask times of the named compilers, on the schemas that the compared ones take."""
    kept, found = Kept(options.keep), schemas(options.every)
    chosen = sorted(random.Random(options.seed).sample(range(len(found)), min(options.sample, len(found))))
    outcomes = {name: dict[int, Outcome]() for name in names}
    vocabulary = Vocabulary(tuple(words(WIDTH)), {})
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    compilers = {name: COMPILERS[name](vocabulary) for name in names}
    for number, (schema, instance) in enumerate(found):
        tokens = cut(instance, ids) if instance else None
        for name, compiler in compilers.items():
            job: Callable[[], Outcome] = partial(ended, compiler, schema, tokens)
            if name == "xgrammar":
                if number not in chosen:
                    continue
                job = partial(in_copy, partial(once, compiler, schema, tokens), options.limit)
            outcomes[name][number] = kept.measured(name, 1 + number * options.every, job)
    rows = [taken(name, each) for name, each in outcomes.items()]
    if "xgrammar" in outcomes:
        exceeded = sum(not is_ended for _, is_ended in outcomes["xgrammar"].values())
        rows[-1] |= {"seed": options.seed, "limit_s": options.limit, "exceeded": exceeded}
        rows[-1] |= {"commits": kept.commits("xgrammar")}
    others = [name for name in names if name != "tirage"] if "tirage" in names else []
    return [
        *rows,
        *(compared(outcomes["tirage"], outcomes[other], other) for other in others),
        *(compared_masks(outcomes["tirage"], outcomes[other], other) for other in others),
    ]


def taken(name: str, outcomes: Outcomes) -> dict[str, Any]:
    """How many schemas a compiler takes, of those that it got."""
    return {
        "compiler": name,
        "taken": sum(times is not None for times, _ in outcomes.values()),
        "schemas": len(outcomes),
    }


def rounded(ratio: float) -> float:
    """A ratio with two digits after the point, or three that count: xgrammar takes hundreds of times as long."""
    return round(ratio, 2) if ratio >= 0.1 else float(f"{ratio:.3g}")


def both(ours: Outcomes, theirs: Outcomes) -> list[tuple[Times, Times]]:
    """The times of two compilers for each schema that both take."""
    pairs = [(ours[number][0], theirs[number][0]) for number in sorted(ours.keys() & theirs.keys())]
    return [(a, b) for a, b in pairs if a and b]


def compared(ours: Outcomes, theirs: Outcomes, other: str) -> dict[str, Any]:
    """Compile times on the schemas that both take."""
    pairs = both(ours, theirs)
    found: dict[str, Any] = {"compile": f"tirage and {other}", "schemas": len(pairs)}
    columns = {"tirage": [a[0] * 1e3 for a, _ in pairs], other: [b[0] * 1e3 for _, b in pairs]}
    for name, each in columns.items():
        found[f"{name}_median_ms"] = round(statistics.median(each), 3)
        found[f"{name}_p99_ms"] = round(float(np.quantile(each, 0.99)), 2)
        found[f"{name}_max_ms"] = round(max(each), 1)
    ratio = statistics.median(columns["tirage"]) / statistics.median(columns[other])
    return found | {"ratio_of_medians": rounded(ratio)}


def compared_masks(ours: Outcomes, theirs: Outcomes, other: str) -> dict[str, Any]:
    """Times of masks along instances that both follow."""
    pairs = [(a[1], b[1]) for a, b in both(ours, theirs) if a[1] is not None and b[1] is not None]
    columns = {
        "tirage": [time * 1e6 for a, _ in pairs for time in a],
        other: [time * 1e6 for _, b in pairs for time in b],
    }
    found: dict[str, Any] = {"masks": f"tirage and {other}", "instances": len(pairs), "masks_each": len(columns[other])}
    for name, each in columns.items():
        found[f"{name}_mean_us"] = round(statistics.fmean(each), 1)
        found[f"{name}_median_us"] = round(statistics.median(each), 1)
        found[f"{name}_p99_us"] = round(float(np.quantile(each, 0.99)), 1)
    ratio = statistics.fmean(columns["tirage"]) / statistics.fmean(columns[other])
    return found | {"ratio_of_means": rounded(ratio)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--sample", type=int, default=150, help="schemas for xgrammar, 0 for none; takes long")
    parser.add_argument("--seed", type=int, default=14, help="of the sample")
    parser.add_argument("--limit", type=int, default=20, help="seconds of processor time for one of them")
    parser.add_argument("--keep", type=Path, help="a file of what was measured, to go on after a stop")
    parser.add_argument("--only", choices=tuple(COMPILERS), help="measure one compiler into the file, save no results")
    options = parser.parse_args()
    names = [options.only] if options.only else [name for name in COMPILERS if name != "xgrammar" or options.sample]
    rows = measure(names, options)
    if options.only:
        print(json.dumps(rows))
    else:
        save("schemas", rows, notes=NOTES)


if __name__ == "__main__":
    main()
