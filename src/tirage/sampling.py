"""`sample` and `law`: the one pipeline, from logits to drawn tokens, for arrays of any library."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol, overload, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tirage.backends import Backend, find, known, tell, type_name
from tirage.backends.numpy import dispatch, distribution
from tirage.backends.numpy.arrays import as_mask
from tirage.compiled_params import compiled
from tirage.draw import Draw
from tirage.errors import ParamsError
from tirage.history import History
from tirage.params import SamplingParams
from tirage.sampling_batch import SamplingBatch, SamplingRow, distinct
from tirage.sampling_metadata import Drawn
from tirage.token_records import TokenRecords

Ids = Iterable[int] | NDArray[np.integer[Any]]
Pair = tuple[Ids, Ids] | Sequence[Ids]
Counter = int | np.integer[Any] | Sequence[int] | NDArray[np.integer[Any]]
"""A number for all rows, or one for each."""
States = float | Sequence[float] | NDArray[np.floating[Any]]
"""What rows carry from token to token: a number for all rows, or one for each."""


@runtime_checkable
class DrawsItself(Protocol):
    """Parameters that draw from logits [B, V] themselves, as EasyDeL's JitableSamplingParams do."""

    def sample(self, logits: Any, *, history: Any, step: Any, mask: Any, sample_index: Any) -> Draw: ...


@overload
def sample(
    logits: Any,
    params: SamplingParams | Sequence[SamplingParams],
    *,
    history: Sequence[Pair] | None = None,
    step: Counter | None = None,
    mask: Any = None,
    sample_index: Counter = 0,
    state: States | None = None,
) -> Draw: ...
@overload
def sample(
    logits: Any,
    params: DrawsItself,
    *,
    history: Any = None,
    step: Any = None,
    mask: Any = None,
    sample_index: Any = 0,
) -> Draw: ...
def sample(
    logits: Any,
    params: SamplingParams | Sequence[SamplingParams] | DrawsItself,
    *,
    history: Any = None,
    step: Any = None,
    mask: Any = None,
    sample_index: Any = 0,
    state: States | None = None,
) -> Draw:
    """One token per row of `logits`, drawn exactly and repeatably; a bad row gets a status, never an exception.

    `logits` [V] or [B, V], float16, bfloat16, float32 or float64 (rounded to float32), 1 <= V <= 2^20, B may be 0;
    never modified. `params`: one for all rows, or one per row; one decides which fields are filled where B is 0.
    `history`: one (prompt_ids, output_ids) pair per row, read by penalties, bad words and n-gram rules, which are
    refused without it; ((), ()) is a row without tokens. `step`: the position that keys the uniform and that min_tokens
    counts, by default the row's number of output ids, so 0 without a history: a loop must pass one of them. Rows of one
    seed draw alike; `tirage.seeds` gives others. `mask`: int32 bitmask [B, ceil(V / 32)], least significant bit first,
    1 = allowed. `sample_index` separates the streams of several samples of one request; a list of it, one per row, is
    what parameters with n > 1 need here. `state`: what rows with Mirostat carry, a number or one per row, `Draw.states`
    of the draw before; None before the first token.

    Rows are independent: any other row could be absent. Without a seed a row gets a fresh one, reported in
    `Draw.seeds`. A custom processor that fails ends its own row. Raises ParamsError before any work for a wrong shape,
    dtype, id or step. Parameters with a `sample` of their own decide what the other arguments are. SPEC.md S-N to S-L.
    """
    if not isinstance(params, (SamplingParams, Sequence)) and isinstance(params, DrawsItself):
        if state is not None:
            raise ParamsError(f"state must be None with {type_name(params)}, got {state!r:.60}; it carries none")
        return params.sample(logits, history=history, step=step, mask=mask, sample_index=sample_index)
    backend = find(logits)
    matrix = backend.as_logits(logits)
    try:
        states = row_states(matrix.shape, params, history, step, sample_index, state)
        if isinstance(sample_index, (int, np.integer)):
            refuse_several(states)
        batch, words = SamplingBatch.of(states, matrix.shape[1]), backend.as_mask(mask, matrix.shape)
    except Exception as error:
        tell(matrix, error)
        raise
    drawn = draw_batch(backend, matrix, batch, words)
    return _of_no_rows(drawn, backend, matrix, params) if not states and isinstance(params, SamplingParams) else drawn


def law(
    logits: Any,
    params: SamplingParams | Sequence[SamplingParams],
    *,
    history: Sequence[Pair] | None = None,
    step: Counter | None = None,
    mask: Any = None,
    state: States | None = None,
) -> NDArray[np.float64]:
    """The probability with which `sample` draws each token, NumPy float64 [B, V]; NaN rows where it draws none.

    Same arguments, same rules, same integers as `sample`; greedy rows are one-hot, XTC rows the mixture over its coin.
    Each entry is RN64(w) / RN64(W), 0 outside the kept set and beyond 41 octaves below the maximum (S-W6).
    """
    matrix = on_host(logits)
    states = row_states(matrix.shape, params, history, step, 0, state)
    return dispatch.law(matrix, SamplingBatch.of(states, matrix.shape[1]), host_mask(mask, matrix.shape))


def on_host(logits: Any) -> NDArray[np.float32]:
    """Logits of any library as float32 [B, V] in NumPy, checked as `sample` checks them."""
    backend = find(logits)
    return backend.to_numpy(backend.as_logits(logits))


def host_mask(mask: Any, shape: tuple[int, ...]) -> NDArray[np.int32] | None:
    """A bitmask of any library as int32 [B, ceil(V / 32)] in NumPy; None stays None."""
    return as_mask(find(mask).to_numpy(mask) if known(mask) else mask, shape)


def outcomes(
    logits: NDArray[np.float32], batch: SamplingBatch, mask: NDArray[np.int32] | None
) -> list[distribution.Distribution]:
    """The law of each row of logits [B, V], as a Distribution: what `explain` and beams read."""
    rows = batch.metadata(mask)
    processes = batch.processes or (None,) * len(batch.states)
    return [
        distribution.outcome(distribution.request_of(logits, rows, r, process)) for r, process in enumerate(processes)
    ]


def draw_batch(backend: Backend, matrix: Any, batch: SamplingBatch, mask: Any) -> Draw:
    """The Draw of rows that were checked already: the backend's own float32 logits [B, V], one request each."""
    if batch.carried:
        _check_concrete(matrix, batch)
    drawn = backend.draw(matrix, batch, mask)
    asked = batch.wants_logprobs
    return Draw(
        token_ids=drawn.token_ids,
        sampled_logprobs=drawn.sampled_logprobs,
        support_sizes=drawn.support,
        status=drawn.status,
        seeds=backend.from_numpy(batch.base.seeds, matrix),
        logprobs=drawn.logprobs if asked else None,
        ranks=drawn.ranks if asked else None,
        top_token_ids=drawn.top_ids if asked else None,
        top_logprobs=drawn.top_logprobs if asked else None,
        given_logprobs=_given(drawn, batch.states) if asked else None,
        states=batch.follow(*map(backend.to_numpy, (drawn.token_ids, drawn.sampled_logprobs)))
        if batch.carried
        else None,
        **_recorded(backend, matrix, batch.base.records),
    )


def _of_no_rows(drawn: Draw, backend: Backend, matrix: Any, params: SamplingParams) -> Draw:
    """`drawn`, which has no rows, with every field that a row of `params` would have filled, without entries."""
    ids, floats, found = drawn.token_ids, drawn.sampled_logprobs, {}
    if params.lists_logprobs:
        top = (0, min(params.logprobs or 0, matrix.shape[1]))
        found = {
            "logprobs": floats,
            "ranks": ids,
            "top_token_ids": ids.reshape(top),
            "top_logprobs": floats.reshape(top),
            "given_logprobs": floats.reshape((0, len(params.logprob_token_ids))) if _is_traced(matrix) else (),
        }
    if params.return_kept:
        found |= _recorded(backend, matrix, TokenRecords.of(np.zeros(0, np.int64)))
    carries = compiled(params.unwrapped).carrier is not None
    return replace(drawn, **found, states=np.zeros(0) if carries else None)


def _is_traced(matrix: Any) -> bool:
    """Whether logits are JAX's inside a trace."""
    if type(matrix).__module__.partition(".")[0] not in {"jax", "jaxlib"}:
        return False
    from tirage.backends.jax.arrays import is_traced

    return is_traced(matrix)


def _check_concrete(matrix: Any, batch: SamplingBatch) -> None:
    """Raises ParamsError for rows that carry a state inside a trace, where nobody knows the token that moves it."""
    if _is_traced(matrix):
        name = batch.states[batch.carried[0]].carrier_name
        raise ParamsError(
            f"{name} must be off inside jax.jit, got it on: its state follows each token; draw outside jit"
        )


def _recorded(backend: Backend, matrix: Any, records: TokenRecords | None) -> dict[str, Any]:
    """The fields of a Draw that hold the records of its rows, as arrays of the caller's library."""
    if records is None:
        return {}
    found = {
        "kept_ids": records.ids,
        "kept_offsets": records.offsets,
        "kept_logmass": records.logmass,
        "raw_logprobs": records.raw,
        "processed_logprobs": records.processed,
    }
    if isinstance(matrix, np.ndarray):
        # These arrays are of this draw alone, so that many ids need not be copied.
        return found
    return {name: backend.from_numpy(values, matrix) for name, values in found.items()}


def _given(drawn: Drawn, states: Sequence[SamplingRow]) -> Any:
    asked = drawn.asked_logprobs
    if asked.ndim == 2:  # inside jax.jit there are no floats yet
        return asked
    flat = iter(asked.tolist())
    return tuple(tuple(next(flat) for _ in state.params.logprob_token_ids) for state in states)


# --- checking what came in ---------------------------------------------------------------------------------------


def row_states(
    shape: tuple[int, ...],
    params: SamplingParams | Sequence[SamplingParams],
    history: Sequence[Pair] | None,
    step: Counter | None,
    sample_index: Counter,
    state: States | None = None,
) -> list[SamplingRow]:
    """One checked SamplingRow per row of logits [B, V] = `shape`."""
    count, vocab_size = shape
    each = _per_row(params, count, "params", SamplingParams)
    pairs = [((), ())] * count if history is None else _pairs(history, count)
    steps = [None] * count if step is None else _counters(step, count, "step")
    samples = _counters(sample_index, count, "sample_index")
    rows: list[SamplingRow] = []
    for p, (prompt, output), at, index in zip(each, pairs, steps, samples, strict=True):
        row = SamplingRow.of(p, History.of(prompt, output, vocab_size=vocab_size), sample_index=index, step=at)
        # Once for rows of one SamplingParams.
        if not rows or row.compiled is not rows[-1].compiled:
            row.compiled.check(vocab_size)
            if history is None:
                row.compiled.check_history()
        rows.append(row)
    _carry(rows, state)
    return rows


def _carry(rows: Sequence[SamplingRow], state: States | None) -> None:
    """Gives rows that carry a state theirs; raises ParamsError for one that is missing after the first token."""
    given = None if state is None else _numbers(state, len(rows))
    for r, row in enumerate(rows):
        if row.compiled.carrier is None:
            continue
        if given is None and row.at:
            raise ParamsError(
                f"state must be given with {row.carrier_name} after the first token, got None at step {row.at}; "
                "pass state=Draw.states of the draw before, or use Batch, which carries it"
            )
        if given is not None:
            if not math.isfinite(given[r]):
                raise ParamsError(f"state must be a finite number with {row.carrier_name}, got {given[r]!r}")
            row.state = given[r]


def _numbers(value: States, count: int) -> list[float]:
    try:
        each = np.asarray(find(value).to_numpy(value) if known(value) else value, np.float64)
    except (TypeError, ValueError):
        raise ParamsError(f"state must be a number or {count} of them, got {value!r:.60}") from None
    if each.ndim and each.shape != (count,):
        raise ParamsError(f"state must be a number or {count} of them, got shape {list(each.shape)}")
    return np.broadcast_to(each, (count,)).tolist()


def refuse_several(states: Sequence[SamplingRow]) -> None:
    """Raises ParamsError for rows whose parameters ask for several samples."""
    for one in distinct(states):
        for name in ("n", "best_of"):
            count = getattr(one.params, name)
            if count is not None and count > 1:
                raise ParamsError(
                    f"{name} must be 1 for a row of logits, which is one sample, got {count}; use tirage.LLM, or one "
                    "row per sample, each with a seed of tirage.seeds or a sample_index of its own"
                )


def _per_row(value: Any, count: int, name: str, kind: type) -> list[Any]:
    if isinstance(value, kind):
        return [value] * count
    if isinstance(value, (str, bytes, dict)) or not isinstance(value, Sequence):
        raise ParamsError(f"{name} must be a {kind.__name__} or a sequence of {count}, got {type_name(value)}")
    for item in value:
        if not isinstance(item, kind):
            raise ParamsError(f"{name} must hold {kind.__name__} only, got {type_name(item)}")
    if len(value) != count:
        raise ParamsError(f"{name} must hold one entry per row ({count}), got {len(value)}")
    return list(value)


def _pairs(history: Any, count: int) -> list[Pair]:
    if isinstance(history, (str, bytes, dict)) or not isinstance(history, Sequence) or len(history) != count:
        got = len(history) if isinstance(history, Sequence) else type_name(history)
        raise ParamsError(f"history must be a list of {count} (prompt_ids, output_ids) pairs, got {got}")
    for pair in history:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ParamsError(
                f"history must hold (prompt_ids, output_ids) pairs, got {type_name(pair)}; wrap one pair in a list"
            )
    return list(history)


def _counters(value: Any, count: int, name: str) -> list[int]:
    each = [value] * count if isinstance(value, (int, np.integer)) else _listed(value, count, name)
    if len(each) != count:
        raise ParamsError(f"{name} must be an integer or {count} of them, got {len(each)}")
    for item in each:
        if isinstance(item, (bool, np.bool_)) or not isinstance(item, (int, np.integer)) or not 0 <= item < 1 << 32:
            raise ParamsError(f"{name} must be an integer in [0, 2^32), got {item!r}")
    return [int(item) for item in each]


def _listed(value: Any, count: int, name: str) -> list[Any]:
    sized = value.ndim == 1 if isinstance(value, np.ndarray) else isinstance(value, Sequence)
    if isinstance(value, (str, bytes, dict)) or not sized:
        got = f"shape {list(value.shape)}" if isinstance(value, np.ndarray) else type_name(value)
        raise ParamsError(f"{name} must be an integer or {count} of them, got {got}; pass a list")
    return list(value)
