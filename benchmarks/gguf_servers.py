"""Eight streams of GGUF models from `tirage serve` and from llama.cpp's own server, on one thread each.

    python -m benchmarks.gguf_servers FILE.gguf ... [--streams 8] [--rounds 5]

Both servers run; in each round each of them gets the same prompts at once, and streams the same number of tokens for
each, while the other one rests. Counted are the processor time of the server and the wall time. Runs in the
environment of `python scripts/engines.py llamacpp`, whose tests have built llama.cpp's server. Results:
`results/gguf_servers.json`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np

from benchmarks.gguf import NEW, PARAMETERS, WRITER
from benchmarks.harness import save

TESTS = WRITER.parents[1]


def tirage_body(prompt: list[int], fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The route and body of a request to `tirage serve`."""
    params = {**fields, "max_new_tokens": NEW, "ignore_eos": True, "sampling_seed": 1}
    return "/generate", {"input_ids": prompt, "sampling_params": params, "stream": True}


def llama_body(prompt: list[int], fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The route and body of a request to llama.cpp's server: no filter but those asked for, nothing cached."""
    off = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    chosen = {**off, **fields, "n_predict": NEW, "ignore_eos": True, "seed": 1, "cache_prompt": False}
    return "/completion", {"prompt": prompt, **chosen, "stream": True}


def stream(url: str, route: str, body: dict[str, Any]) -> int:
    """The number of events that a request is answered with."""
    request = Request(url + route, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request) as answer:
        return sum(line.startswith(b"data: {") for line in answer)


def spent_s(pid: int) -> float:
    """The processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(pid: int, job: Callable[[], object]) -> tuple[float, float]:
    """The wall time and the server's processor time of a job, in seconds."""
    wall, spent = time.perf_counter(), spent_s(pid)
    job()
    return time.perf_counter() - wall, spent_s(pid) - spent


def row_of(name: str, found: dict[str, list[tuple[float, float]]], streams: int) -> dict[str, Any]:
    """Tokens per second by the wall clock and per second of processor time, medians, and the ratios of both."""
    tokens = streams * NEW
    wall, spent = ({who: statistics.median(each[at] for each in all_) for who, all_ in found.items()} for at in (0, 1))
    return {
        "streams": streams,
        "parameters": name,
        "tokens_per_s": {who: round(tokens / value, 1) for who, value in wall.items()},
        "tokens_per_cpu_s": {who: round(tokens / value, 1) for who, value in spent.items()},
        "tirage_to_llama_server": round(wall["llama-server"] / wall["tirage"], 3),
        "by_cpu_time": round(spent["llama-server"] / spent["tirage"], 3),
    }


def measure(path: Path, *, streams: int, rounds: int) -> list[dict[str, Any]]:
    """A row for each set of parameters."""
    sys.path[:0] = [str(WRITER), str(TESTS)]
    llama_server, servers = importlib.import_module("llama_server"), importlib.import_module("servers")
    prompts = [ids.tolist() for ids in np.random.default_rng(1).integers(3, 32000, (streams, 16))]
    with tempfile.TemporaryDirectory() as folder, servers.Server(path) as own, ThreadPoolExecutor(streams) as threads:
        flags = ("-np", str(streams), "-c", str(streams * 256), "-tb", "1", "--no-webui")
        other = llama_server.LlamaServer(path, Path(folder), *flags)
        sides = {
            "tirage": (own.url, own.pid, tirage_body),
            "llama-server": (other.url, other.process.pid, llama_body),
        }
        rows = []
        for name, fields in PARAMETERS.items():
            found: dict[str, list[tuple[float, float]]] = {who: [] for who in sides}
            for at in range(rounds + 1):
                for who, (url, pid, body) in sides.items():
                    jobs = [(url, *body(prompt, fields)) for prompt in prompts]
                    times = measured(pid, lambda jobs=jobs: list(threads.map(lambda job: stream(*job), jobs)))
                    if at:
                        found[who].append(times)
            rows.append({"model": path.name, "rounds": rounds, **row_of(name, found, streams)})
            print(rows[-1], flush=True)
        other.stop()
    return rows


def main() -> None:
    """Measures the files that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=8)
    asked = parser.parse_args()
    notes = (
        f"llama-cpp-python {version('llama-cpp-python')} and the server of the llama.cpp that it brings, one thread "
        f"each, {NEW} new tokens after prompts of 16, prefill included, streamed, sides interleaved, medians of the "
        "rounds; on a busy machine by_cpu_time is the figure to read"
    )
    rows = [row for file in asked.files for row in measure(file, streams=asked.streams, rounds=asked.rounds)]
    save("gguf_servers", rows, notes=notes)


if __name__ == "__main__":
    main()
