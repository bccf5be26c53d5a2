"""How much faster does compact JSON come with `forcing="canonical"`? A Llama of 100 M random parameters, one thread.

Both ways are measured in turn in one process, at one stream and at several, in processor time. The texts keep the same
schema and are as long; they differ, as other tokens are drawn. Forced tokens are longer than drawn ones, so that the
ratio of bytes is that of the time for a text. The tokenizer is the bundled one.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.guided import random_llama
from benchmarks.harness import save
from tirage import LLM, GuidedDecodingParams, SamplingParams
from tirage.models import find_model

RECORD = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 8},
        "age_in_years": {"type": "integer", "minimum": 0, "maximum": 120},
        "is_active": {"type": "boolean"},
        "country": {"enum": ["Germany", "Greece", "France", "Finland"]},
    },
    "required": ["first_name", "age_in_years", "is_active", "country"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": RECORD, "minItems": 3, "maxItems": 3}
GUIDED = GuidedDecodingParams(json=SCHEMA, disable_any_whitespace=True)


def folder_with_tokenizer(folder: Path, small: bool) -> Path:
    """A random Llama with the bundled tokenizer."""
    random_llama(folder, small)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(find_model("tiny") / name, folder)
    return folder


def measured(llm: LLM, streams: int, rounds: int) -> dict[str, Any]:
    """Tokens and bytes per second of both ways, medians over the rounds."""
    found: dict[str, list[tuple[float, float, float]]] = {"None": [], "canonical": []}
    for seed in range(rounds + 1):
        for forcing in (None, "canonical"):
            params = [
                SamplingParams(seed=100 * seed + i, max_tokens=400, guided_decoding=GUIDED, forcing=forcing)
                for i in range(streams)
            ]
            start = time.process_time()
            replies = llm.generate(["The records: "] * streams, params)
            seconds = time.process_time() - start
            tokens = sum(len(reply.token_ids) for reply in replies)
            forced = sum(reply.samples[0].forced_tokens for reply in replies)
            if seed:
                size = sum(len(reply.text.encode()) for reply in replies)
                found[str(forcing)].append((tokens / seconds, size / seconds, forced / tokens))
    plain, taken = ([statistics.median(column) for column in zip(*found[name], strict=True)] for name in found)
    return {
        "streams": streams,
        "tokens_per_s": round(plain[0], 1),
        "tokens_per_s_with_forcing": round(taken[0], 1),
        "ratio": round(taken[0] / plain[0], 2),
        "ratio_of_bytes_per_s": round(taken[1] / plain[1], 2),
        "share_of_forced_tokens": round(taken[2], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--small", action="store_true", help="a small model, to see that it runs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for backend in ("torch", "numpy"):
        with tempfile.TemporaryDirectory() as folder:
            path = folder_with_tokenizer(Path(folder), options.small)
            with LLM(path, backend=backend) as llm:
                for streams in options.streams if backend == "torch" else (1,):
                    model = "Llama 256x2" if options.small else "Llama 768x12, 100 M"
                    rows.append({"model": model, "backend": backend, **measured(llm, streams, options.rounds)})
                    print(json.dumps(rows[-1]), flush=True)
    if not options.small:
        save(
            "forcing",
            rows,
            notes="medians of processor time; compact JSON of about 300 characters, float32, one thread",
        )


if __name__ == "__main__":
    main()
