"""The choice of a model's decode path at load time, by comparison with its own generation loop.

The model runs two short prompts in its own precision. What they would hide (rows that overwrite each other's state
below the noise of bfloat16, a window that no short prompt fills) shows on a small float32 replica, whose prompts lie on
both sides of every bound.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import DynamicCache

from tirage.errors import ModelError
from tirage.models.huggingface.cache_layers import is_known
from tirage.models.huggingface.forward import floats
from tirage.models.huggingface.model import CHUNK, DecodePath, HuggingFaceModel
from tirage.models.huggingface.small_replica import BOUND, small_replica
from tirage.models.protocol import Inputs

_CHUNK = 4
# Lengths of the prompts, different so that rows are padded, and numbers of decode steps. The first has three chunks.
_SHORT = ((11, 4), (6, 3))
# The windows of a replica hold 12 tokens: one row crosses a window, one the bound of the rope, one is beyond both.
_LONG = ((BOUND - 3, 6), (9, 5), (BOUND + 6, 4))
# Differences that a joined pass may cause, relative to the largest logit. A wrong mask or state is far above.
_TOLERANCE = {torch.float32: 2e-4, torch.float64: 1e-6}
_LOW_PRECISION = 6e-2
_PATHS: tuple[DecodePath, ...] = ("joined", "alone", "recomputed")

_log = logging.getLogger("tirage")
# The results of replicas, by class and configuration.
_known: dict[str, ProbeResult | None] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """Why each path and each way to prefill (in chunks, after cached prefixes, in batches) fails; empty if it works."""

    paths: dict[DecodePath, str] = field(default_factory=dict)
    chunks: str = ""
    resuming: str = ""
    batches: str = ""

    @property
    def path(self) -> DecodePath | None:
        """The fastest path that works; None if none does."""
        return next((path for path in _PATHS if not self.paths.get(path)), None)


def choose_path(model: HuggingFaceModel, name: str) -> None:
    """Sets how a model decodes and prefills to the fastest ways that give the logits of its own generation loop.

    The log says which and why. Raises ModelError when the model cannot run at all.
    """
    small = of_small_replica(model)
    found = examine(model, name, _SHORT, small)
    model.path = found.path or "recomputed"
    model.chunk = None if found.chunks else CHUNK
    model.resumes, model.joins_prompts = not found.resuming, not found.batches
    reasons = [f"not {path}: {reason}" for path, reason in found.paths.items() if reason]
    if model.path != "recomputed" and found.chunks:
        reasons.append(f"prompts are read in one piece: {found.chunks}")
    if model.path == "joined" and found.batches:
        reasons.append(f"prompts are read alone: {found.batches}")
    words = "; ".join(reasons)
    _log.info("%s decodes rows %s%s", name, model.path, f" ({words})" if words else "")
    if found.path is None:
        _log.warning("%s: no path gives the logits of the model's own generation loop; its texts may differ", name)
    if small is None:
        _log.info("%s was tried with short prompts alone: no small model of its class could be tried", name)


def of_small_replica(model: HuggingFaceModel) -> ProbeResult | None:
    """The result of a small float32 replica; None if none can be built or run."""
    key = describe(model.module)
    if key not in _known:
        replica = small_replica(model.module)
        _known[key] = None if replica is None else result_of(replica)
    return _known[key]


def result_of(replica: Any) -> ProbeResult | None:
    """The result of a replica; None if it cannot run, or if no path works."""
    try:
        found = examine(HuggingFaceModel(replica), type(replica).__name__, _LONG, None)
    except ModelError:
        return None
    # If no path works, the comparison itself is at fault.
    return None if found.path is None else found


def describe(module: Any) -> str:
    """The class and the configuration of a module, on which its replica depends."""
    settings = module.config.to_dict()
    for name in ("_name_or_path", "dtype"):
        settings.pop(name, None)
    return f"{type(module).__qualname__} {json.dumps(settings, sort_keys=True, default=str)}"


def examine(
    model: HuggingFaceModel, name: str, rows: Sequence[tuple[int, int]], known: ProbeResult | None
) -> ProbeResult:
    """The result for a model; what is `known` to fail is not tried. Raises ModelError when the model cannot run."""
    budget, model.prefixes.budget = model.prefixes.budget, 0
    known = ProbeResult() if known is None else known
    prompts, steps = probe_prompts(model, [length for length, _ in rows]), [count for _, count in rows]
    try:
        expected = [own_logits(model, prompt, prompt[:count]) for prompt, count in zip(prompts, steps, strict=True)]
    except Exception as error:
        raise ModelError(f"{name} cannot be run: {type(error).__name__}: {error}") from error
    try:
        return compare(model, PathTrial(prompts, steps, expected), known)
    finally:
        model.prefixes.budget = budget


@dataclass(frozen=True, slots=True)
class PathTrial:
    """Prompts, the number of decode steps of each, and the expected logits, float32 [1 + steps, V] for each."""

    prompts: list[list[int]]
    steps: list[int]
    expected: list[np.ndarray]


def compare(model: HuggingFaceModel, trial: PathTrial, known: ProbeResult) -> ProbeResult:
    """The result of trying the paths, the fastest first, until one works."""
    paths: dict[DecodePath, str] = {}
    refusals: dict[DecodePath, Callable[[HuggingFaceModel], str]] = {"joined": not_joinable}
    for path in _PATHS:
        model.path, model.chunk = path, None
        refuses = refusals.get(path, lambda _: "")
        paths[path] = known.paths.get(path) or refuses(model) or differs(model, trial)
        if not paths[path]:
            break
    if model.path == "recomputed":
        why = "each token reads all again"
        return ProbeResult(paths=paths, chunks=why, resuming=why, batches=why)
    batches = known.batches if model.path == "joined" else "rows decode alone"
    batches = batches or differs(model, trial, batches=True)
    model.chunk = _CHUNK
    chunks = known.chunks or differs(model, trial)
    model.chunk = 1
    resuming = known.resuming or (differs(model, trial) if chunks else "")
    return ProbeResult(paths=paths, chunks=chunks, resuming=resuming, batches=batches)


def probe_prompts(model: HuggingFaceModel, lengths: Sequence[int]) -> list[list[int]]:
    """Random prompts of those lengths, the same at every call."""
    rng = np.random.default_rng(0)
    high = min(model.vocab_size, getattr(model.config, "vocab_size", model.vocab_size))
    # Special and placeholder ids are usually at either end.
    low, high = (high // 8, high - high // 8) if high >= 16 else (0, high)
    return [rng.integers(low, high, length).tolist() for length in lengths]


@torch.inference_mode()
def own_logits(model: HuggingFaceModel, prompt: list[int], tokens: Sequence[int]) -> np.ndarray:
    """Logits float32 [1 + T, V] after a prompt and each of T tokens, by the steps of transformers' own `generate`."""
    module = model.module
    ids = torch.tensor([prompt], device=model.device)
    given: dict[str, Any] = {"attention_mask": torch.ones_like(ids), "use_cache": True}
    if model.forward.takes_positions:
        given["position_ids"] = module._prepare_position_ids_for_generation(ids, given)
    if model.forward.cache_name is not None:
        given[model.forward.cache_name] = DynamicCache(config=model.config)
    with model.rope.for_length(len(prompt), len(prompt)):
        first = module.prepare_inputs_for_generation(ids, is_first_iteration=True, **given)
        out = model.adapters.run([None], {**first, "return_dict": True})
    logits = [floats(out.logits[0, -1])]
    for token in tokens:
        given = module._update_model_kwargs_for_generation(out, given, is_encoder_decoder=False)
        ids = torch.cat([ids, ids.new_tensor([[token]])], dim=-1)
        step = module.prepare_inputs_for_generation(ids, next_sequence_length=1, **given)
        out = model.adapters.run([None], {**step, "return_dict": True})
        logits.append(floats(out.logits[0, -1]))
    return np.stack(logits)


def not_joinable(model: HuggingFaceModel) -> str:
    """Why the caches of rows cannot be batched; empty if they can."""
    if model.forward.cache_name is None:
        return "the model takes no cache of transformers"
    row = model.open(Inputs(token_ids=tuple(probe_prompts(model, [6])[0])))
    model.prefill_chunk(row)
    if not is_known(row.cache):
        kinds = sorted({type(layer).__name__ for layer in row.cache.layers})
        return f"cache layers {', '.join(kinds) or 'that the model keeps to itself'}"
    return ""


def differs(model: HuggingFaceModel, trial: PathTrial, *, batches: bool = False) -> str:
    """Why the present path of a model does not give the expected logits; empty if it does.

    With `batches` the prompts are prefilled in as few passes as possible, else each in passes of its own.
    """
    try:
        got = run_rows(model, trial.prompts, trial.steps, batches=batches)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"
    for want, have in zip(trial.expected, got, strict=True):
        scale = float(np.abs(want).max()) or 1.0
        error = float(np.abs(want - have).max()) / scale
        if not error <= tolerance_of(model):
            return f"logits differ by {error:.1e} of the largest"
    return ""


def run_rows(
    model: HuggingFaceModel, prompts: Sequence[list[int]], steps: Sequence[int], *, batches: bool = False
) -> list[np.ndarray]:
    """Logits float32 [1 + steps, V] of each prompt with a fixed continuation.

    Each row starts a step after the last one, or all at once with `batches`, in shared prefill passes.
    """
    rows: list[Any] = []
    logits: list[list[np.ndarray]] = [[] for _ in prompts]
    if batches:
        rows = prefill_batches(model, prompts, logits)
    while len(rows) < len(prompts) or any(len(each) <= count for each, count in zip(logits, steps, strict=True)):
        if len(rows) < len(prompts):
            row = model.open(Inputs(token_ids=tuple(prompts[len(rows)])))
            last = model.prefill_chunk(row)
            while row.left:
                last = model.prefill_chunk(row)
            logits[len(rows)].append(last[-1])
            rows.append(row)
        going = [index for index in range(len(rows)) if len(logits[index]) <= steps[index]]
        tokens = [prompts[index][len(logits[index]) - 1] for index in going]
        for index, each in zip(going, model.decode(tokens, [rows[index] for index in going]), strict=True):
            logits[index].append(each)
    for row in rows:
        model.close(row)
    return [np.stack(each) for each in logits]


def prefill_batches(model: HuggingFaceModel, prompts: Sequence[list[int]], logits: list[list[np.ndarray]]) -> list[Any]:
    """Rows of the prompts, prefilled in one pass for all that have the same rotary frequencies.

    Their logits float32 [V] are appended to those of each row.
    """
    rows = [model.open(Inputs(token_ids=tuple(prompt))) for prompt in prompts]
    passes: dict[int, list[int]] = {}
    for index, prompt in enumerate(prompts):
        passes.setdefault(model.rope.stage(len(prompt)), []).append(index)
    for indices in passes.values():
        for index, each in zip(indices, model.prefill_batch([rows[i] for i in indices]), strict=True):
            logits[index].append(each)
    return rows


def tolerance_of(model: HuggingFaceModel) -> float:
    """The relative difference that a joined pass may cause in the model's precision."""
    return _LOW_PRECISION if model.quantized else _TOLERANCE.get(model.module.dtype, _LOW_PRECISION)
