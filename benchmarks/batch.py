"""What does a file of prompts cost beside the engine alone? `tirage batch` against `LLM.generate` of the same requests.

Processor time of interleaved rounds, so that other work on the machine does not count; goal: at least 0.95 of the
engine's throughput. `python -m benchmarks.batch [--rows 192] [--rounds 5]`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import interleaved, save
from tirage import LLM, SamplingParams
from tirage.cluster import generate, seed_of
from tirage.cluster.input_file import InputFile
from tirage.cluster.row_ids import check_ids

PROMPTS = ("Once upon a time", "The dog", "She said that the old house by the river")
COMMON = SamplingParams(temperature=0.8, top_p=0.95, ignore_eos=True)
GOAL = 0.95


def compared(llm: LLM, folder: Path, *, rows: int, tokens: int, rounds: int) -> dict[str, Any]:
    """Tokens per processor second of both ways, for rows of so many tokens."""
    common = COMMON.replace(max_tokens=tokens)
    prompts = [PROMPTS[i % 3] for i in range(rows)]
    params = [common.replace(seed=seed_of(i)) for i in range(rows)]
    file = folder / "in.jsonl"
    file.write_text("".join(json.dumps({"id": i, "prompt": text}) + "\n" for i, text in enumerate(prompts)))

    def by_file() -> None:
        shutil.rmtree(folder / "out", ignore_errors=True)
        generate(file, common, out=folder / "out", model=llm)

    ways = {"engine": lambda: llm.generate(prompts, params), "file": by_file}
    seconds = interleaved(ways, rounds=rounds, clock=time.process_time)
    found = [json.loads(line)["text"] for part in sorted((folder / "out").glob("*.jsonl")) for line in part.open()]
    if found != [each.text for each in llm.generate(prompts, params)]:
        raise RuntimeError("the two ways gave different texts")
    speeds = {f"{way}_tokens_per_cpu_s": round(rows * tokens / each) for way, each in seconds.items()}
    ratio = round(seconds["engine"] / seconds["file"], 3)
    return {"question": "file", "rows": rows, "tokens": tokens, **speeds, "ratio": ratio, "goal": GOAL}


def ids(folder: Path, rows: int) -> dict[str, Any]:
    """What the check that ids differ takes before a run begins."""
    file = folder / "ids.jsonl"
    file.write_text("".join(json.dumps({"id": f"row-{i}", "prompt": PROMPTS[i % 3] * 8}) + "\n" for i in range(rows)))
    start = time.process_time()
    check_ids(InputFile(file))
    return {"question": "ids", "rows": rows, "us_per_row": round((time.process_time() - start) / rows * 1e6, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, LLM(backend="numpy", max_running=32) as llm:
        measured = {"rows": given.rows, "rounds": given.rounds}
        rows = [compared(llm, Path(folder), tokens=tokens, **measured) for tokens in (8, 64)]
        rows.append(ids(Path(folder), 50_000))
    save("batch", rows, notes="processor time, medians of interleaved rounds; the bundled model on NumPy, 32 at once")


if __name__ == "__main__":
    main()
