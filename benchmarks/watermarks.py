"""What does a watermark cost? Time of a token with each scheme over that of the same token without, at V = 128k.

A context is new at each token, so nothing is remembered from the token before; with top_p 0.95 few tokens of a peaked
row are left to mark. The thread's CPU time, ways in turn. (1 thread)

python -m benchmarks.watermarks [--rounds 9]
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TIRAGE_THREADS", "1")

import itertools
from collections.abc import Callable

import numpy as np

import tirage
from benchmarks.harness import interleaved, logits, save
from tirage import SamplingParams, Watermark

VOCAB = 128256
KEYS = [int(key) for key in np.random.default_rng(0).integers(1, 2**62, 64)]
MARKS = {
    "gumbel": Watermark(scheme="gumbel", key=KEYS[0]),
    "kgw": Watermark(scheme="kgw", key=KEYS[0]),
    "kgw, selfhash": Watermark(scheme="kgw", key=KEYS[0], seeding_scheme="selfhash", context_width=3),
    "synthid, 10 layers": Watermark(scheme="synthid", key=KEYS[:10]),
    "synthid, 30 layers": Watermark(scheme="synthid", key=KEYS[:30]),
    "synthid, 64 layers": Watermark(scheme="synthid", key=KEYS),
}
CUTS = {"all tokens": {}, "top_p 0.95": {"top_p": 0.95}, "top_k 50": {"top_k": 50}}


def job(x: np.ndarray, mark: Watermark | None, cut: dict) -> Callable[[], object]:
    """Draws a token after a history that no call has seen before."""
    params, calls = SamplingParams(seed=1, watermark=mark, **cut), itertools.count(7)

    def run() -> object:
        call = next(calls)
        return tirage.sample(x, params, history=[((1, 2, 3), [call * at % VOCAB for at in range(1, 100)])])

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    tirage.warmup()
    rows = [row for shape in ("peaked", "flat") for cut in CUTS for row in measured(shape, cut, rounds)]
    save("watermarks", rows, notes=f"one row, V={VOCAB}, thread CPU time, medians of interleaved rounds, 1 thread")


def measured(shape: str, cut: str, rounds: int) -> list[dict]:
    x = logits(shape, 1, VOCAB)
    plain = job(x, None, CUTS[cut])
    seconds = interleaved({"": plain, **{name: job(x, mark, CUTS[cut]) for name, mark in MARKS.items()}}, rounds=rounds)
    without = seconds.pop("")
    left = int(tirage.sample(x, SamplingParams(seed=1, **CUTS[cut])).support_sizes[0])
    return [
        {
            "scheme": name,
            "shape": shape,
            "cut": cut,
            "tokens_left": left,
            "ms": round(each * 1e3, 2),
            "without_ms": round(without * 1e3, 2),
            "more_ms": round((each - without) * 1e3, 2),
        }
        for name, each in seconds.items()
    ]


if __name__ == "__main__":
    main()
