"""What the record of a draw costs, and log_law beside torch's log_softmax. (1 thread)

python -m benchmarks.record [--rounds 15]
"""

from __future__ import annotations

import argparse
import os
import time
from functools import partial
from typing import Any, cast

os.environ.setdefault("TIRAGE_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from numpy.typing import NDArray

import tirage
from benchmarks.engine import llama, open_llm
from benchmarks.harness import interleaved, logits, save
from tirage.torch import log_law

VOCAB, ROWS = 128256, 64
CONFIGS = {
    "top_p 0.95": {"top_p": 0.95},
    "top_p 0.95, temperature 0.8": {"top_p": 0.95, "temperature": 0.8},
    "top_p 0.95, repetition_penalty 1.1": {"top_p": 0.95, "repetition_penalty": 1.1},
    "top_k 50": {"top_k": 50},
    "min_p 0.05": {"min_p": 0.05},
}
LAWS = {
    "temperature 1": {},
    "temperature 0.8": {"temperature": 0.8},
    "top_p 0.95": {"top_p": 0.95},
    "top_p 0.95, temperature 0.8": {"top_p": 0.95, "temperature": 0.8},
}
GOAL_RECORD, GOAL_LAW = 1.05, 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    tirage.warmup()
    rows = []
    for shape in ("peaked", "medium", "flat"):
        x = logits(shape, ROWS, VOCAB)
        rows += [*records(shape, x, rounds, CONFIGS), *laws(shape, rounds)]
    # Sharper, so that rows keep nearly as many ids as `max_kept_ids` lets a record have by default.
    x = logits("medium", ROWS, VOCAB) * np.float32(1.17)
    rows += records("medium, within the default limit", x, rounds, {"top_p 0.95": CONFIGS["top_p 0.95"]})
    for name, x in of_models().items():
        rows += records(name, x, rounds, {"top_p 0.95": CONFIGS["top_p 0.95"]})
    rows += texts(rounds)
    notes = "processor time, medians of interleaved rounds, 1 thread; of draws, B=64, V=128256 or the model's"
    save("record", rows, notes=notes)


def of_models() -> dict[str, NDArray[np.float32]]:
    """Logits [64, V] after each token of a text: of the bundled model, and of a larger one without training."""
    tiny = tirage.LLM("tiny")
    story = tiny.generate("Once upon a time", tirage.SamplingParams(seed=0, max_tokens=2 * ROWS))[0].text
    ids, model = tiny.tokenizer.encode(story)[:ROWS], cast("Any", tiny.model)
    with torch.no_grad():
        large = llama("large")(torch.arange(10, 10 + ROWS)[None]).logits[0].numpy()
    return {"the bundled model": model.score(ids), "a Llama of 100 M random parameters": large}


def records(shape: str, x: NDArray[np.float32], rounds: int, configs: dict[str, dict]) -> list[dict]:
    """The draw with its record from logits [64, V], over the draw without."""
    jobs, kept, vocab = {}, {}, x.shape[1]
    for name, options in configs.items():
        for recorded in (False, True):
            flight = tirage.Batch(vocab, ROWS)
            for row in range(ROWS):
                params = tirage.SamplingParams(seed=row, return_kept=recorded, max_kept_ids=vocab, **options)
                flight.add(params, [1, 2, 3])
            jobs[f"{name} {recorded}"] = lambda flight=flight: flight.sample(x)
        # The least that a record can cost: as many ids written once.
        kept[name] = np.array(flight.sample(x).kept_ids)
        jobs[f"{name} copy"] = kept[name].copy
    seconds = interleaved(jobs, rounds=rounds)
    return [
        {
            "what": "record",
            "shape": shape,
            "config": name,
            "us_per_row": round(seconds[f"{name} False"] / ROWS * 1e6, 2),
            "recorded_us_per_row": round(seconds[f"{name} True"] / ROWS * 1e6, 2),
            "ids_per_row": kept[name].size // ROWS,
            "copy_of_ids_us_per_row": round(seconds[f"{name} copy"] / ROWS * 1e6, 2),
            "ratio": round(seconds[f"{name} True"] / seconds[f"{name} False"], 3),
            "goal": GOAL_RECORD if name == "top_p 0.95" else None,
        }
        for name in configs
    ]


def texts(rounds: int) -> list[dict]:
    """Tokens per second of an engine whose requests have records, beside those of the same ones without."""
    tiny, large = tirage.LLM("tiny"), open_llm(llama("large"))
    rows = []
    for name, llm, tokens in (("the bundled model", tiny, 100), ("a Llama of 100 M random parameters", large, 24)):
        for streams in (1, 16):
            jobs = {
                f"{recorded}": partial(generate, llm, streams=streams, tokens=tokens, recorded=recorded)
                for recorded in (False, True)
            }
            seconds = interleaved(jobs, rounds=rounds, clock=time.process_time)
            plain, recorded = (streams * tokens / seconds[key] for key in ("False", "True"))
            speeds = {"tokens_per_s": round(plain, 1), "recorded_tokens_per_s": round(recorded, 1)}
            rows.append({"what": "texts", "model": name, "streams": streams, "config": "top_p 0.95", **speeds})
            rows[-1] |= {"ratio": round(plain / recorded, 3), "goal": GOAL_RECORD}
        llm.close()
    return rows


def generate(llm: tirage.LLM, *, streams: int, tokens: int, recorded: bool) -> None:
    """Texts of so many streams, with all ids that could have been drawn or without."""
    kept = {"return_kept": recorded, "max_kept_ids": llm.model.vocab_size}
    params = [
        tirage.SamplingParams(seed=seed, max_tokens=tokens, top_p=0.95, ignore_eos=True, **kept)
        for seed in range(streams)
    ]
    llm.generate([list(range(10, 26))] * streams, params)


def laws(shape: str, rounds: int) -> list[dict]:
    """Forward and backward of log_law over those of log_softmax and gather."""
    x = torch.from_numpy(logits(shape, ROWS, VOCAB)).requires_grad_()
    jobs = {}
    for name, options in LAWS.items():
        recorded = bool(options.keys() - {"temperature"})
        params = [
            tirage.SamplingParams(seed=row, return_kept=recorded, max_kept_ids=VOCAB, **options) for row in range(ROWS)
        ]
        drawn = tirage.sample(x.detach(), params)
        jobs[name, "log_law"] = lambda p=params, d=drawn: backward(x, log_law(x, p, d.token_ids))
        if recorded:
            jobs[name, "log_law of kept ids"] = lambda p=params, d=drawn: backward(
                x, log_law(x, p, d.token_ids, kept=d)
            )
    ids = torch.arange(ROWS)
    jobs["log_softmax"] = lambda: backward(x, torch.log_softmax(x, -1)[ids, ids])
    seconds = interleaved(jobs, rounds=rounds)
    floor = seconds.pop("log_softmax")
    return [
        {
            "what": what,
            "shape": shape,
            "config": name,
            "ms": round(each * 1e3, 2),
            "log_softmax_ms": round(floor * 1e3, 2),
            "ratio": round(each / floor, 3),
            "goal": GOAL_LAW,
        }
        for (name, what), each in seconds.items()
    ]


def backward(x: torch.Tensor, values: torch.Tensor) -> None:
    x.grad = None
    values.sum().backward()
    assert np.isfinite(values.detach().numpy()).all()


if __name__ == "__main__":
    main()
