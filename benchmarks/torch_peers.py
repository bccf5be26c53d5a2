"""How much faster than the torch-native samplers of vLLM and SGLang, and than llama.cpp's chain?

Same logits, same settings and meaning (their preset), one process, one thread; tirage draws from a torch tensor. The
functions of vLLM and SGLang come from their published wheels, fetched with pip into --cache and read there; llama.cpp's
from llama-cpp-python, if it is installed (pip builds it from source). A peer that cannot be had is named in the notes.

python -m benchmarks.torch_peers [--rounds 5] [--cache DIR] [--batches 8 32] [--vocab 128256]
"""

from __future__ import annotations

import argparse
import ast
import ctypes
import os
import subprocess
import sys
import tempfile
import zipfile

os.environ.setdefault("TIRAGE_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

import tirage
from benchmarks.harness import interleaved, logits, save

TEMPERATURE = 0.8
CONFIGS: dict[str, dict[str, Any]] = {
    "top_p 0.5": {"top_p": 0.5},
    "top_p 0.9": {"top_p": 0.9},
    "top_p 0.95": {"top_p": 0.95},
    "top_p 0.99": {"top_p": 0.99},
    "top_k 20": {"top_k": 20},
    "top_k 50": {"top_k": 50},
    "top_k 50 + top_p 0.95": {"top_k": 50, "top_p": 0.95},
}
GOALS = {"vllm": {"top_p": 20.0, "top_k": 6.0}, "sglang": {"top_p": 20.0, "top_k": 6.0}}
GOALS["llamacpp"] = {"top_p": 15.0, "top_k": 4.0}

Job = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Peer:
    """Another sampler: the preset that means the same, and its step for logits and settings."""

    preset: str
    job: Callable[[torch.Tensor, dict[str, Any]], Job]


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    tirage.warmup()
    peers, missing = _peers(options.cache)
    rows = [
        row
        for batch in options.batches
        for shape in ("peaked", "medium", "flat")
        for row in measure(peers, torch.from_numpy(logits(shape, batch, options.vocab)), shape, options.rounds)
    ]
    rounds = f"medians of {options.rounds} rounds (top-k: {options.rounds * 10})"
    notes = f"V = {options.vocab}, T = {TEMPERATURE}, thread CPU time, 1 thread, {rounds}"
    save("torch_peers", rows, notes="; ".join([notes, *missing]))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--vocab", type=int, default=128256)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "tirage-peers")
    return parser.parse_args()


def measure(peers: dict[str, Peer], x: torch.Tensor, shape: str, rounds: int) -> list[dict[str, Any]]:
    """One row per peer and configuration, timed in turn with tirage under the peer's own meaning."""
    rows = []
    for config, options in CONFIGS.items():
        for name, peer in peers.items():
            jobs = {"tirage": ours(x, options, peer.preset), name: peer.job(x, options)}
            # Top-k takes a tenth of the time, and what else the machine does shows ten times as much in it.
            seconds = interleaved(jobs, rounds=rounds * 10 if "top_k" in options else rounds)
            rows.append({
                "peer": name,
                "B": len(x),
                "shape": shape,
                "config": config,
                "tirage_us_per_row": round(seconds["tirage"] / len(x) * 1e6, 1),
                "peer_us_per_row": round(seconds[name] / len(x) * 1e6, 1),
                "times_faster": round(seconds[name] / seconds["tirage"], 1),
                "goal": None if len(options) > 1 else GOALS[name][next(iter(options))],
            })
    return rows


def ours(x: torch.Tensor, options: dict[str, Any], preset: str) -> Job:
    flight = tirage.Batch(x.shape[1], x.shape[0], like=x)
    for row in range(x.shape[0]):
        flight.add(tirage.SamplingParams(seed=row, temperature=TEMPERATURE, semantics=preset, **options))
    return lambda: flight.sample(x)


# --- the peers ------------------------------------------------------------------------------------------------------


def _peers(cache: Path) -> tuple[dict[str, Peer], list[str]]:
    """The peers that can be had, and a note for each that cannot."""
    makers = {"vllm": vllm, "sglang": sglang, "llamacpp": llamacpp}
    found: dict[str, Peer] = {}
    missing = []
    for name, make in makers.items():
        try:
            found[name] = make(cache)
        except (OSError, ImportError, LookupError, subprocess.CalledProcessError) as error:
            missing.append(f"not measured: {name} ({type(error).__name__}: {error})")
    return found, missing


def vllm(cache: Path) -> Peer:
    """vLLM's `forward_native` on a CPU: top-k alone by topk, else a sort; softmax; exponential noise."""
    ops = functions_of(
        wheel("vllm", "0.33.0", cache),
        "vllm/v1/sample/ops/topk_topp_sampler.py",
        "apply_top_k_top_p_pytorch apply_top_k_only random_sample empty_exponential_noise_like "
        "sample_with_exponential_noise",
    )

    def job(x: torch.Tensor, options: dict[str, Any]) -> Job:
        k = torch.full((len(x),), options["top_k"], dtype=torch.int32) if "top_k" in options else None
        p = torch.full((len(x),), options["top_p"]) if "top_p" in options else None
        scaled = torch.empty_like(x)

        def run() -> object:
            scores = ops.apply_top_k_top_p_pytorch(torch.div(x, TEMPERATURE, out=scaled), k, p, allow_cpu_sync=True)
            return ops.random_sample(scores.softmax(dim=-1, dtype=torch.float32), {})

        return run

    return Peer("vllm", job)


def sglang(cache: Path) -> Peer:
    """SGLang's `pytorch` sampling backend: softmax, then topk or sort, masks and multinomial."""
    ops = functions_of(
        wheel("sglang", "0.5.23", cache),
        "sglang/srt/layers/sampler.py",
        "top_k_top_p_min_p_sampling_from_probs_torch",
    )
    every = 1 << 30

    def job(x: torch.Tensor, options: dict[str, Any]) -> Job:
        most = options.get("top_k", every)
        k, p = torch.full((len(x),), most, dtype=torch.int32), torch.full((len(x),), options.get("top_p", 1.0))
        min_p, positions, scaled = torch.zeros(len(x)), torch.zeros(len(x), dtype=torch.int64), torch.empty_like(x)

        def run() -> object:
            probs = torch.softmax(torch.div(x, TEMPERATURE, out=scaled), dim=-1)
            return ops.top_k_top_p_min_p_sampling_from_probs_torch(
                probs, k, p, min_p, False, None, positions, max_top_k=most
            )

        return run

    return Peer("sglang-pytorch", job)


def llamacpp(cache: Path) -> Peer:
    """llama.cpp's sampler chain on candidate arrays; filling them costs it one copy, less than its own loop."""
    # Its bindings are typed for one version of ctypes, and the package may be absent.
    c: Any = import_module("llama_cpp.llama_cpp")
    entry = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])

    def chain(options: dict[str, Any], seed: int) -> Any:
        made = c.llama_sampler_chain_init(c.llama_sampler_chain_default_params())
        parts = [c.llama_sampler_init_top_k(options["top_k"])] if "top_k" in options else []
        parts += [c.llama_sampler_init_top_p(options["top_p"], 1)] if "top_p" in options else []
        for part in (*parts, c.llama_sampler_init_temp(TEMPERATURE), c.llama_sampler_init_dist(seed)):
            c.llama_sampler_chain_add(made, part)
        return made

    def job(x: torch.Tensor, options: dict[str, Any]) -> Job:
        filled = np.zeros(x.shape, entry)
        filled["id"], filled["logit"] = np.arange(x.shape[1]), x.numpy()
        scratch = np.empty(x.shape[1], entry)
        data = ctypes.cast(scratch.ctypes.data, ctypes.POINTER(c.llama_token_data))
        chains = [chain(options, seed) for seed in range(len(x))]

        def run() -> object:
            drawn = []
            for row, each in zip(filled, chains, strict=True):
                np.copyto(scratch, row)
                array = c.llama_token_data_array(data, scratch.size, -1, False)
                c.llama_sampler_apply(each, ctypes.byref(array))
                drawn.append(int(array.data[array.selected].id))
            return drawn

        return run

    return Peer("llamacpp", job)


# --- functions out of a wheel ---------------------------------------------------------------------------------------


def wheel(name: str, version: str, cache: Path) -> Path:
    """The wheel of a release in `cache`, fetched by pip when it is not there."""
    pattern = f"{name}-{version}-*.whl"
    if not any(cache.glob(pattern)):
        what = ["--no-deps", "--only-binary=:all:", "--dest", str(cache), f"{name}=={version}"]
        subprocess.run([sys.executable, "-m", "pip", "download", *what], check=True, stdout=subprocess.DEVNULL)
    return next(iter(sorted(cache.glob(pattern))))


def functions_of(archive: Path, member: str, names: str) -> ModuleType:
    """A module of the named functions of one file of a wheel, without what else the file imports."""
    text = zipfile.ZipFile(archive).read(member).decode()
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    found = {function.name: ast.get_source_segment(text, function) for function in functions}
    parts = ["from __future__ import annotations", "import torch", *(found[name] or "" for name in names.split())]
    path = archive.parent / f"{archive.name.partition('-')[0]}_functions.py"
    path.write_text("\n\n\n".join(parts) + "\n")
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
