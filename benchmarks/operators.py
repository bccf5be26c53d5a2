"""What does each operator cost? A row per operator at V = 128k, B = 1 and 64, with 4096 tokens of history.

python -m benchmarks.operators [--rounds 7] [--only NAME ...]; with `--only` the results go to `operators_some.json`.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TIRAGE_THREADS", "1")

import numpy as np

import tirage
from benchmarks.harness import interleaved, logits, save

VOCAB = 128256
HISTORY = 4096

OPERATORS: dict[str, dict] = {
    "greedy": {"temperature": 0},
    "temperature": {},
    "dynamic temperature": {"dynatemp_range": 0.3},
    "logit_bias (300 ids)": {"logit_bias": {i * 400: 1.5 for i in range(300)}},
    "allowed_token_ids (1000)": {"allowed_token_ids": tuple(range(0, 100000, 100))},
    "repetition_penalty": {"repetition_penalty": 1.2},
    "frequency_penalty": {"frequency_penalty": 0.4},
    "presence_penalty": {"presence_penalty": 0.4},
    "dry": {"dry_multiplier": 0.8},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 3},
    "bad_words (64 sequences)": {"bad_words_token_ids": tuple((i, i + 1) for i in range(64))},
    "min_tokens": {"min_tokens": 5000, "max_tokens": 9000, "stop_token_ids": (2, 3)},
    "top_k 50": {"top_k": 50},
    "top_p 0.95": {"top_p": 0.95},
    "top_k 50 + top_p 0.95": {"top_k": 50, "top_p": 0.95},
    "min_p 0.05": {"min_p": 0.05},
    "top_a 0.2": {"top_a": 0.2},
    "p_less": {"p_less": "plain"},
    "p_less norm": {"p_less": "norm"},
    "tfs 0.95": {"tfs": 0.95},
    "smoothing_factor 0.3": {"smoothing_factor": 0.3},
    "min_keep 3 + top_p 0.95": {"min_keep": 3, "top_p": 0.95},
    "typical_p 0.9": {"typical_p": 0.9},
    "epsilon_cutoff 3e-4": {"epsilon_cutoff": 3e-4},
    "eta_cutoff 3e-4": {"eta_cutoff": 3e-4},
    "top_n_sigma 1": {"top_n_sigma": 1.0},
    "top_h 0.4": {"top_h": 0.4},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    "mirostat 1": {"mirostat": 1, "mirostat_tau": 3.0},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 3.0},
    "truncated top_p 0.9 (fastdeploy-base)": {"top_p": 0.9, "semantics": "fastdeploy-base"},
    "joint top_k + top_p (sglang)": {"top_k": 50, "top_p": 0.9, "semantics": "sglang"},
    "llama.cpp chain": {"top_k": 40, "top_p": 0.95, "min_p": 0.05, "temperature": 0.8, "semantics": "llamacpp"},
    "logprobs 20 raw": {"top_p": 0.95, "logprobs": 20},
    "logprobs 20 processed": {"top_p": 0.95, "logprobs": 20, "logprobs_mode": "processed"},
    "logprobs 20 sampled": {"top_p": 0.95, "logprobs": 20, "logprobs_mode": "sampled"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--shape", default="peaked", choices=("peaked", "medium", "flat"))
    parser.add_argument("--only", nargs="+", default=list(OPERATORS), choices=list(OPERATORS), metavar="NAME")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 64])
    options = parser.parse_args()
    tirage.warmup()
    rows = [row for batch in options.batches for row in measure(options.shape, batch, options.rounds, options.only)]
    notes = f"{options.shape} logits, {HISTORY} tokens of history, thread CPU time, 1 thread"
    save("operators" if len(options.only) == len(OPERATORS) else "operators_some", rows, notes=notes)
    largest = max(options.batches)
    slowest = sorted((row for row in rows if row["B"] == largest), key=lambda row: -row["us_per_row"])[:5]
    print(f"slowest at B = {largest}:", ", ".join(f"{row['operator']} {row['us_per_row']:.0f} us" for row in slowest))


def measure(shape: str, batch: int, rounds: int, names: list[str]) -> list[dict]:
    x = logits(shape, batch, VOCAB)
    rng = np.random.default_rng(5)
    jobs = {"max": lambda: x.max(axis=1)}
    for name in names:
        flight = tirage.Batch(VOCAB, batch)
        for row in range(batch):
            ids = rng.zipf(1.3, HISTORY) % VOCAB
            flight.add(tirage.SamplingParams(seed=row, **OPERATORS[name]), ids[:1024], output_ids=ids[1024:])
        jobs[name] = lambda flight=flight: flight.sample(x)
    seconds = interleaved(jobs, rounds=rounds if batch > 1 else rounds * 5)
    return [
        {
            "operator": name,
            "B": batch,
            "us_per_row": round(seconds[name] / batch * 1e6, 1),
            "ratio_to_max": round(seconds[name] / seconds["max"], 1),
        }
        for name in names
    ]


if __name__ == "__main__":
    main()
