"""Which path a model takes, found out when it is loaded: prompts run in company and as its own generation loop would.

The model itself runs two short prompts, in its own precision. What that hides (a state that rows overwrite for each
other below the noise of bfloat16, a window that no short prompt fills) shows on a small float32 model of its class,
whose prompts lie on both sides of every bound.
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
from tirage.models.huggingface.model import CHUNK, HuggingFaceModel, Path, floats, is_known
from tirage.models.huggingface.twin import BOUND, small_twin
from tirage.models.protocol import Inputs

_CHUNK = 4
# Of several lengths, so that rows are padded; each with its number of steps. Long enough for three pieces.
_SHORT = ((11, 4), (6, 3))
# The windows of a small model are 12 long: one row crosses a window, one the bound of the rope, one is beyond both.
_LONG = ((BOUND - 3, 6), (9, 5), (BOUND + 6, 4))
# Differences a joined pass may make, relative to the largest logit. A wrong mask or a mixed-up state is far above.
_TOLERANCE = {torch.float32: 2e-4, torch.float64: 1e-6}
_LOW_PRECISION = 6e-2
_PATHS: tuple[Path, ...] = ("joined", "alone", "recomputed")

_log = logging.getLogger("tirage")
# What a small model of a class has shown; its configuration says all.
_known: dict[str, Findings | None] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Why each path, reading in pieces and taking prompts up are wrong for a model; empty where they are right."""

    paths: dict[Path, str] = field(default_factory=dict)
    pieces: str = ""
    resuming: str = ""

    @property
    def path(self) -> Path | None:
        """The quickest path that is right."""
        return next((path for path in _PATHS if not self.paths.get(path)), None)


def choose_path(model: HuggingFaceModel, name: str) -> None:
    """Sets the model's `path`, `chunk` and `resumes` to the quickest that give the logits of its own generation loop.

    The log says which and why. Raises ModelError when the model cannot run at all.
    """
    small = of_small_twin(model)
    found = examine(model, name, _SHORT, small)
    model.path = found.path or "recomputed"
    model.chunk = None if found.pieces else CHUNK
    model.resumes = not found.resuming
    reasons = [f"not {path}: {reason}" for path, reason in found.paths.items() if reason]
    if model.path != "recomputed" and found.pieces:
        reasons.append(f"prompts are read in one piece: {found.pieces}")
    words = "; ".join(reasons)
    _log.info("%s decodes rows %s%s", name, model.path, f" ({words})" if words else "")
    if found.path is None:
        _log.warning("%s: no path gives the logits of the model's own generation loop; its texts may differ", name)
    if small is None:
        _log.info("%s was tried with short prompts alone: no small model of its class could be tried", name)


def of_small_twin(model: HuggingFaceModel) -> Findings | None:
    """What a small float32 model of the same class shows; None where none can be built or run."""
    key = describe(model.module)
    if key not in _known:
        twin = small_twin(model.module)
        _known[key] = None if twin is None else findings_of(twin)
    return _known[key]


def findings_of(twin: Any) -> Findings | None:
    try:
        found = examine(HuggingFaceModel(twin), type(twin).__name__, _LONG, None)
    except ModelError:
        return None
    # When nothing is right it is the comparison that fails.
    return None if found.path is None else found


def describe(module: Any) -> str:
    """What a small model follows from: the class and the configuration."""
    settings = module.config.to_dict()
    for name in ("_name_or_path", "dtype"):
        settings.pop(name, None)
    return f"{type(module).__qualname__} {json.dumps(settings, sort_keys=True, default=str)}"


def examine(model: HuggingFaceModel, name: str, rows: Sequence[tuple[int, int]], known: Findings | None) -> Findings:
    """What is wrong for a model; what is `known` to be is not tried again."""
    budget, model.prefixes.budget = model.prefixes.budget, 0
    known = Findings() if known is None else known
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
    """Prompts, the number of tokens that each goes on with, and the logits that are right."""

    prompts: list[list[int]]
    steps: list[int]
    expected: list[np.ndarray]


def compare(model: HuggingFaceModel, trial: PathTrial, known: Findings) -> Findings:
    paths: dict[Path, str] = {}
    refusals: dict[Path, Callable[[HuggingFaceModel], str]] = {"joined": not_joinable}
    for path in _PATHS:
        model.path, model.chunk = path, None
        refuses = refusals.get(path, lambda _: "")
        paths[path] = known.paths.get(path) or refuses(model) or differs(model, trial)
        if not paths[path]:
            break
    if model.path == "recomputed":
        return Findings(paths=paths, pieces="each token reads all again", resuming="each token reads all again")
    model.chunk = _CHUNK
    pieces = known.pieces or differs(model, trial)
    model.chunk = 1
    resuming = known.resuming or (differs(model, trial) if pieces else "")
    return Findings(paths=paths, pieces=pieces, resuming=resuming)


def probe_prompts(model: HuggingFaceModel, lengths: Sequence[int]) -> list[list[int]]:
    rng = np.random.default_rng(0)
    high = min(model.vocab_size, getattr(model.config, "vocab_size", model.vocab_size))
    # Special and placeholder ids tend to lie at either end.
    low, high = (high // 8, high - high // 8) if high >= 16 else (0, high)
    return [rng.integers(low, high, length).tolist() for length in lengths]


@torch.inference_mode()
def own_logits(model: HuggingFaceModel, prompt: list[int], tokens: Sequence[int]) -> np.ndarray:
    """Logits [1 + T, V] after a prompt and each of T tokens, by the steps of transformers' own `generate`."""
    module = model.module
    ids = torch.tensor([prompt], device=model.device)
    given: dict[str, Any] = {"attention_mask": torch.ones_like(ids), "use_cache": True}
    if model.takes_positions:
        given["position_ids"] = module._prepare_position_ids_for_generation(ids, given)
    if model.cache_name is not None:
        given[model.cache_name] = DynamicCache(config=model.config)
    with model.rope.reaching(len(prompt), len(prompt)):
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
    """Why rows cannot even be put side by side, or an empty string."""
    if model.cache_name is None:
        return "the model takes no cache of transformers"
    row = model.open(Inputs(token_ids=tuple(probe_prompts(model, [6])[0])))
    model.read(row)
    if not is_known(row.cache):
        kinds = sorted({type(layer).__name__ for layer in row.cache.layers})
        return f"cache layers {', '.join(kinds) or 'that the model keeps to itself'}"
    return ""


def differs(model: HuggingFaceModel, trial: PathTrial) -> str:
    """Why the model's present path is not right, or an empty string."""
    try:
        got = run_rows(model, trial.prompts, trial.steps)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"
    for want, have in zip(trial.expected, got, strict=True):
        scale = float(np.abs(want).max()) or 1.0
        error = float(np.abs(want - have).max()) / scale
        if not error <= tolerance_of(model):
            return f"logits differ by {error:.1e} of the largest"
    return ""


def run_rows(model: HuggingFaceModel, prompts: Sequence[list[int]], steps: Sequence[int]) -> list[np.ndarray]:
    """Logits [1 + steps, V] of each prompt's fixed continuation; each joins a step after the one before it."""
    rows: list[Any] = []
    logits: list[list[np.ndarray]] = [[] for _ in prompts]
    while len(rows) < len(prompts) or any(len(each) <= count for each, count in zip(logits, steps, strict=True)):
        if len(rows) < len(prompts):
            row = model.open(Inputs(token_ids=tuple(prompts[len(rows)])))
            last = model.read(row)
            while row.left:
                last = model.read(row)
            logits[len(rows)].append(last[-1])
            rows.append(row)
        going = [index for index in range(len(rows)) if len(logits[index]) <= steps[index]]
        tokens = [prompts[index][len(logits[index]) - 1] for index in going]
        for index, each in zip(going, model.decode(tokens, [rows[index] for index in going]), strict=True):
            logits[index].append(each)
    for row in rows:
        model.close(row)
    return [np.stack(each) for each in logits]


def tolerance_of(model: HuggingFaceModel) -> float:
    """The relative difference that a joined pass in the model's precision may make."""
    return _LOW_PRECISION if model.quantized else _TOLERANCE.get(model.module.dtype, _LOW_PRECISION)
