"""`replay_engine`: a request's tokens as another engine drew them, step by step from its logits. SPEC.md S-S8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.backends.numpy.distribution import Distribution
from tirage.draw import Status
from tirage.engine_replay.engines import (
    CandidateLogits,
    Choice,
    ReplayedEngine,
    ReplaySettings,
    SeededDraw,
    engine_named,
)
from tirage.errors import ParamsError
from tirage.operators.row import RowState
from tirage.params import SamplingParams
from tirage.sampling import Ids, on_host, outcomes, row_states
from tirage.sampling_batch import SamplingBatch

_THRESHOLD = 2e-5
"""Share of a threshold by which sums of probabilities in binary32 may be off, over a vocabulary of 10^5 tokens."""
_SMALL_GPU = 20 * 1024
"""Threads that the smallest GPU of today runs at once: a vocabulary up to that size is filled alike on all."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EngineReplay:
    """The tokens of one request as `engine` draws them, arrays over its T steps.

    `token_ids` int64 [T]; `margins` float64 [T], by how much each won: nats, or for llama.cpp the distance of its
    uniform from the next token's share; `certain` bool [T], False where the engine's binary32 may have decided
    otherwise. `preset` is the meaning that the parameters were read in. `difference` is the first step at which the
    engine's recorded token is another one, None where all are the same or none were given.
    """

    engine: str
    preset: str
    token_ids: NDArray[np.int64]
    margins: NDArray[np.float64]
    certain: NDArray[np.bool_]
    difference: int | None = None


def replay_engine(
    logits: Any,
    params: SamplingParams,
    *,
    engine: str,
    prompt_ids: Ids = (),
    output_ids: Sequence[int] | None = None,
    cuda_threads: int | None = None,
    batch_truncates: bool = False,
) -> EngineReplay:
    """The tokens that `engine` draws from `logits` [T, V], one row for each step of a request, as an EngineReplay.

    `logits` of `sample`'s types are the model's own, before penalties and temperature, with all columns that the
    engine's sampler saw. `params` need a seed; the preset of `REPLAYED_ENGINES[engine]` takes the place of their
    semantics. `prompt_ids` are read by penalties, and their number by engines that key draws by position. `output_ids`
    [T] are the tokens that the engine recorded, along which the logits were computed: penalties follow them, and
    `difference` says where one differs; without them each step follows the tokens drawn here.
    `cuda_threads`, for engines on CUDA with more than 20,480 columns: `multi_processor_count *
    max_threads_per_multi_processor` of the GPU. `batch_truncates`: another row of SGLang's batch had top_k or top_p.

    Raises ParamsError, before any work, for an engine that is not replayed (with the reason), a request without a seed
    or with parameters that the engine does not draw with, wrong shapes and ids, and at the step of a row without a
    token. What each engine does: docs/replaying_engines.md.
    """
    known = engine_named(engine)
    matrix = on_host(logits)
    recorded = _recorded(output_ids, matrix.shape)
    _check(known, engine, params)
    if batch_truncates and not known.truncating:
        raise ParamsError(f"batch_truncates must be False for {engine}, which draws each row for itself, got True")
    settings = ReplaySettings(
        vocab_size=matrix.shape[1],
        cuda_threads=_threads(known, engine, matrix.shape[1], cuda_threads),
        truncated=known.truncates(params) or (batch_truncates and bool(known.truncating)),
    )
    drawing = params.replace(semantics=known.preset)
    prompt = _prompt(known, engine, drawing, prompt_ids, matrix)
    assert params.seed is not None
    chosen = _walk(matrix, drawing, known.make(params.seed, settings), prompt, recorded)
    drawn = np.array([each.token_id for each in chosen], np.int64)
    different = [] if recorded is None else np.flatnonzero(drawn != recorded).tolist()
    return EngineReplay(
        engine=engine,
        preset=known.preset,
        token_ids=drawn,
        margins=np.array([each.margin for each in chosen], np.float64),
        certain=np.array([each.certain for each in chosen], np.bool_),
        difference=different[0] if different else None,
    )


def _walk(
    matrix: NDArray[np.float32],
    params: SamplingParams,
    seeded: SeededDraw,
    prompt: list[int],
    recorded: NDArray[np.int64] | None,
) -> list[Choice]:
    """The choice of every step, each with the history that the engine had."""
    chosen: list[Choice] = []
    for step in range(matrix.shape[0]):
        past = [each.token_id for each in chosen] if recorded is None else recorded[:step].tolist()
        row, history = matrix[step : step + 1], (prompt, past)
        law = _law(row, params, history)
        if law.status != Status.ok:
            raise ParamsError(
                f"logits must leave a token at every step, got a row with status {Status(law.status).name} "
                f"at step {step}"
            )
        sides = [_law(row, each, history).off.row for each in _nearby(params)]
        chosen.append(seeded.draw(_candidates(law.off.row, sides, len(prompt) + step - 1)))
    return chosen


def _nearby(params: SamplingParams) -> list[SamplingParams]:
    """The parameters with thresholds a little lower and higher, as an engine's rounding may have them."""
    thresholds = {name: getattr(params, name) for name in ("top_p", "min_p") if 0 < getattr(params, name) < 1}
    if not thresholds:
        return []
    return [
        params.replace(**{name: min(value * factor, 1.0) for name, value in thresholds.items()})
        for factor in (1 - _THRESHOLD, 1 + _THRESHOLD)
    ]


def _law(row: NDArray[np.float32], params: SamplingParams, history: tuple[list[int], list[int]]) -> Distribution:
    states = row_states((1, row.shape[1]), params, [history], None, 0)
    [law] = outcomes(row, SamplingBatch.of(states, row.shape[1]), None)
    return law


def _candidates(row: RowState, sides: Sequence[RowState], position: int) -> CandidateLogits:
    """What the filters left, with logits over the temperature as the last temperature stage has it, and what they may.

    `sides` are the row with other thresholds. Of equal logits an engine's sort keeps others than the lowest ids.
    """
    kept, doubtful = np.zeros(row.x.size, np.bool_), np.zeros(row.x.size, np.bool_)
    kept[row.ids] = True
    for side in sides:
        doubtful |= kept ^ np.isin(np.arange(row.x.size), side.ids)
    lowest = (row.x == row.x[row.ids].min()) & ~row.masked
    if not row.greedy and (lowest & ~kept).any():
        doubtful |= lowest
    ids = np.flatnonzero(kept | doubtful)
    scale = 0.0 if row.greedy else float(row.c) / (2.0**23 * np.log2(np.e))
    return CandidateLogits(
        ids=ids,
        logits=(row.x[ids].astype(np.float64) - float(row.m)) * scale,
        kept=kept[ids],
        doubtful=doubtful[ids],
        position=position,
    )


def _check(known: ReplayedEngine, engine: str, params: SamplingParams) -> None:
    """Raises ParamsError for a request whose draws cannot be repeated."""
    if params.seed is None:
        raise ParamsError(
            f"seed must be that of the request, got None: without one {engine} draws from a state that all requests "
            "share, and which is kept nowhere"
        )
    plain = SamplingParams()
    for name, reason in known.refused.items():
        if getattr(params, name) != getattr(plain, name):
            raise ParamsError(f"{name} must be {getattr(plain, name)!r} to replay {engine}: {reason}")
    if params.n > 1:
        raise ParamsError(f"n must be 1, got {params.n}: replay each sample alone, with the seed that {engine} gave it")


def _threads(known: ReplayedEngine, engine: str, vocab_size: int, given: int | None) -> int:
    """The threads of the GPU that count, checked."""
    if not known.cuda:
        if given is not None:
            raise ParamsError(f"cuda_threads must be None for {engine}, whose draws do not depend on them, got {given}")
        return 0
    if given is None and vocab_size > _SMALL_GPU:
        raise ParamsError(
            f"cuda_threads must be given for {vocab_size} columns, as a GPU with fewer threads fills them in rounds: "
            "multi_processor_count * max_threads_per_multi_processor of its torch.cuda.get_device_properties"
        )
    if given is not None and (isinstance(given, bool) or not isinstance(given, int) or given < 256):
        raise ParamsError(f"cuda_threads must be an integer >= 256, got {given!r:.60}")
    return _SMALL_GPU if given is None else given


def _recorded(output_ids: Any, shape: tuple[int, ...]) -> NDArray[np.int64] | None:
    """The engine's tokens int64 [T], checked against the logits."""
    if output_ids is None:
        return None
    try:
        found = np.asarray(output_ids)
    except ValueError as error:
        raise ParamsError(f"output_ids must be integers [T]: {error}") from None
    if found.shape != shape[:1] or (found.size and found.dtype.kind not in "iu"):
        raise ParamsError(
            f"output_ids must be {shape[0]} integers, one for each row of logits, got {found.dtype} {list(found.shape)}"
        )
    wrong = found[(found < 0) | (found >= shape[1])]
    if wrong.size:
        raise ParamsError(f"output_ids must lie in [0, {shape[1]}), got {int(wrong[0])}")
    return found.astype(np.int64)


def _prompt(
    known: ReplayedEngine, engine: str, params: SamplingParams, prompt_ids: Ids, matrix: NDArray[np.float32]
) -> list[int]:
    """The prompt, checked with all that the rows are checked for."""
    prompt = [int(token) for token in prompt_ids]
    if known.positions and not prompt:
        raise ParamsError(f"prompt_ids must hold the prompt, got none: {engine} keys a draw by its position")
    row_states((1, matrix.shape[1]), params, [(prompt, ())], None, 0)
    return prompt
