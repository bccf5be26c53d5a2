"""The exact draw of a JitableSamplingParams: on the host for concrete arrays, as part of the program for traced ones.

Both give the tokens that `tirage.sample` draws for the SamplingParams the arrays were made of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tirage import sampling
from tirage.backends import jax as backend
from tirage.backends.jax import traced, traced_history
from tirage.backends.jax.arrays import is_traced
from tirage.backends.jax.program import Columns, TracedProgram, TracedStage
from tirage.backends.jax.traced_history import BEYOND, TracedHistory
from tirage.compat.easydel import operands
from tirage.compat.easydel.arrays import SlotArrays
from tirage.compat.easydel.columns import PAD, counts, rows_of, table_per_row
from tirage.draw import Draw, Status
from tirage.errors import ParamsError
from tirage.fields.rules import shown
from tirage.operators.frequency import FREQUENCY
from tirage.operators.min_p import MIN_P
from tirage.operators.presence import PRESENCE
from tirage.operators.repetition import REPETITION
from tirage.operators.row import SCOPES
from tirage.operators.temperature import GREEDY, TEMPERATURE
from tirage.operators.top_k import TOP_K
from tirage.operators.top_p import RULES, TOP_P
from tirage.params import SamplingParams
from tirage.semantics import Semantics, resolve

_FILTERS = {"temperature", "top_k", "top_p", "min_p"}
_PENALTIES = {"repetition": REPETITION, "frequency": FREQUENCY, "presence": PRESENCE}
_WORDS = "bad_words_token_ids"
_NUMBERS = (
    *("random_sampling", "temperature", "top_k", "top_p", "min_p", "min_tokens"),
    *(f"{name}_penalty" for name in _PENALTIES),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawInputs:
    """What B rows are drawn from besides logits: `input_ids` [B, T] up to `length` [B], `step` and `index` [B].

    The first two are None where no history is given.
    """

    input_ids: Any
    length: Any
    step: Any
    index: Any

    @property
    def prompt(self) -> Any:
        """How many of the ids [B] are the prompt's: all but the last `step`."""
        return jnp.maximum(self.length - self.step.astype(jnp.int32), 0)


def sample(params: SlotArrays, logits: Any, *, history: Any, step: Any, mask: Any, sample_index: Any) -> Draw:
    """One token per row of logits [B, V]; see `JitableSamplingParams.sample`."""
    matrix = backend.as_logits(logits if isinstance(logits, Array) else jnp.asarray(logits))
    words = backend.as_mask(mask, matrix.shape)
    at = _draw_inputs(params, matrix, history, step, sample_index)
    if is_traced(*jax.tree.leaves((params, matrix, words, at.input_ids, at.length, at.step, at.index))):
        return _traced(params, matrix, at, words)
    return _drawn(params, matrix, at, words)


def _draw_inputs(params: SlotArrays, logits: Array, history: Any, step: Any, sample_index: Any) -> DrawInputs:
    rows, slots = logits.shape[0], params.temperature.size
    if slots not in (1, rows):
        raise ParamsError(f"logits must have {slots} rows, one per slot, got {rows}; give one row per slot")
    ids, length = (None, None) if history is None else _history(history, logits)
    step = (0 if params.step is None else params.step) if step is None else step
    return DrawInputs(
        input_ids=ids,
        length=length,
        step=_per_row("step", step, rows, jnp.uint32),
        index=_per_row("sample_index", sample_index, rows, jnp.uint32),
    )


def _history(history: Any, logits: Array) -> tuple[Array, Array]:
    # A list of two pairs, prompt and output as for SamplingParams, must not pass for ids and a length.
    if not isinstance(history, tuple) or len(history) != 2:
        raise ParamsError(
            f"history must be (input_ids, cur_len) for a JitableSamplingParams, got {shown(history)}; "
            "give the ids [B, T] and how many of them are not padding"
        )
    ids, _ = rows_of(jnp.asarray(history[0]), logits)
    length = _per_row("cur_len", history[1], logits.shape[0], jnp.int32)
    return jnp.pad(ids, ((0, 0), (0, ids.shape[1] == 0))), jnp.clip(length, 0, ids.shape[1])


def _per_row(name: str, value: Any, rows: int, dtype: Any) -> Array:
    """One integer per row; what is not traced must lie within `dtype`, from 0."""
    array = value if is_traced(value) else np.asarray(value)
    if array.size not in (1, rows) or not jnp.issubdtype(array.dtype, jnp.integer):
        raise ParamsError(
            f"{name} must be 1 or {rows} integers, one per row of logits, got {shown(value)}; give one per slot"
        )
    limit = np.iinfo(dtype).max
    if isinstance(array, np.ndarray) and not ((array >= 0) & (array <= limit)).all():
        raise ParamsError(f"{name} must be integers in [0, {limit}], got {shown(value)}; count from 0")
    return jnp.broadcast_to(jnp.asarray(array.astype(dtype)).reshape(-1), (rows,))


# --- on the host ------------------------------------------------------------------------------------------------


def _drawn(params: SlotArrays, logits: Array, at: DrawInputs, mask: Any) -> Draw:
    each = host_params(params)
    for slot, one in enumerate(each if at.input_ids is None else ()):
        name = _needing_history(one)
        if name:
            raise ParamsError(
                f"history must be given with {name} {shown(getattr(one, name))} in slot {slot}, got None; "
                "pass history=(input_ids, cur_len)"
            )
    return sampling.sample(
        logits,
        each * logits.shape[0] if len(each) == 1 else each,
        history=None if at.input_ids is None else _pairs(at),
        step=np.asarray(at.step).tolist(),
        mask=mask,
        sample_index=np.asarray(at.index).tolist(),
    )


def _needing_history(params: SamplingParams) -> str:
    """The name of a parameter that needs a history, or ""."""
    values = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
    penalties = (name for name, off in values.items() if getattr(params, name) != off)
    long = any(len(word) > 1 for word in params.bad_words_token_ids)
    return next(penalties, _WORDS if long else "")


def _pairs(at: DrawInputs) -> list[tuple[list[int], list[int]]]:
    ids, lengths, prompts = (np.asarray(each).tolist() for each in (at.input_ids, at.length, at.prompt))
    return [(row[:split], row[split:end]) for row, end, split in zip(ids, lengths, prompts, strict=True)]


def host_params(params: SlotArrays) -> list[SamplingParams]:
    """The parameters of each slot as SamplingParams; raises ParamsError for traced arrays."""
    if is_traced(*jax.tree.leaves(params)):
        raise ParamsError("params must be concrete here, got traced arrays; ask outside jit")
    batch = params.view_1d()
    slots = batch.temperature.size
    named: dict[str, list[Any]] = {
        name: np.asarray(getattr(batch, name)).tolist() for name in (*_NUMBERS, "max_tokens")
    }
    named["stop_token_ids"] = _listed(batch.all_stop_token_ids, slots, 1)
    named[_WORDS] = _listed(batch.bad_words_token_ids, slots, 2)
    named["allowed_token_ids"] = _listed(batch.allowed_token_ids, slots, 1)
    named["seed"] = [None] * slots if batch.seed is None else _seeds(batch.seed)
    return [_host(batch.semantics, {name: values[slot] for name, values in named.items()}) for slot in range(slots)]


def _host(semantics: str, values: dict[str, Any]) -> SamplingParams:
    greedy = not values.pop("random_sampling")
    return SamplingParams(
        **values
        | {
            "temperature": 0.0 if greedy else max(values["temperature"], 0.0),
            "top_k": max(values["top_k"], 0),
            "max_tokens": None if values["max_tokens"] < 0 else values["max_tokens"],
            "allowed_token_ids": values["allowed_token_ids"] or None,
            "semantics": semantics,
        }
    )


def _listed(table: Any, slots: int, rank: int) -> list[list[Any]]:
    """The ids of each slot's table, without padding; empty words are none."""
    if table is None:
        return [[] for _ in range(slots)]
    rows = np.broadcast_to(np.asarray(table), (slots, *table.shape[table.ndim - rank :])).tolist()
    if rank == 1:
        return [[token for token in row if token >= 0] for row in rows]
    found = [[[token for token in word if token >= 0] for word in row] for row in rows]
    return [[word for word in row if word] for row in found]


def _seeds(words: Any) -> list[int]:
    low, high = np.asarray(words).astype(np.uint64).reshape(-1, 2).T
    return (high << np.uint64(32) | low).astype(np.int64).tolist()


# --- inside a program -------------------------------------------------------------------------------------------


def _traced(params: SlotArrays, logits: Array, at: DrawInputs, mask: Any) -> Draw:
    if params.seed is None:
        raise ParamsError(
            "seed must be given inside jit, got None; make the parameters of SamplingParams(seed=...), a batch with "
            "init_empty(seeded=True)"
        )
    rows, flat = logits.shape[0], params.view_1d()
    columns = {name: table_per_row(name, getattr(flat, name), 0, logits) for name in _NUMBERS}
    semantics = resolve(params.semantics)
    stages = _filters(columns, semantics)
    without_history = jnp.zeros(rows, bool)
    if at.input_ids is None:
        without_history = _without_history(columns, params, logits)
    else:
        stages = [*_penalties(columns, semantics), *stages]
    seeds = table_per_row("seed", jnp.reshape(params.seed, (-1, 2)), 1, logits)
    program = TracedProgram(
        stages=tuple(stage for stage, _, _ in stages),
        columns=tuple(given for _, given, _ in stages),
        on=tuple(on for _, _, on in stages),
        tables={
            "banned": _banned(params, columns, logits, at, semantics),
            "counts": _counts(at, logits.shape[1]),
            "protected": jnp.zeros((rows, 0), jnp.int32),
        },
        mask=mask,
        keys=jnp.concatenate([seeds, at.step[:, None], at.index[:, None]], axis=1),
        views=np.zeros(rows, np.int8),
        top_n=np.zeros(rows, np.int32),
        asked=np.zeros((rows, 0), np.int32),
        widths=(0, 0),
    )
    found = traced.draw(_allowed(params, logits), program)
    return Draw(
        token_ids=jnp.where(without_history, -1, found.token_ids),
        sampled_logprobs=jnp.where(without_history, np.float32(np.nan), found.sampled_logprobs),
        support_sizes=jnp.where(without_history, 0, found.support),
        status=jnp.where(without_history, np.int8(Status.history_missing), jnp.asarray(found.status)),
        seeds=seeds,
    )


_Listed = list[tuple[TracedStage, Columns, Array]]


def _filters(given: dict[str, Array], semantics: Semantics) -> _Listed:
    """The filters in the order of the semantics; a greedy row leaves at the temperature stage."""
    greedy = ~given["random_sampling"] | (given["temperature"] <= 0)
    safe = jnp.where(greedy, 1.0, given["temperature"])
    joint = int(semantics.top_p_scope == "joint")
    cut_p = TracedStage(TOP_P, (RULES.index(semantics.top_p_rule), int(semantics.top_p_ties == "all"), joint))
    known: dict[str, tuple[TracedStage, Columns, Array]] = {
        "top_k": (
            TracedStage(TOP_K, (int(semantics.top_k_ties == "all"),)),
            {"k": given["top_k"]},
            given["top_k"] > 0,
        ),
        "top_p": (cut_p, {"p": operands.mass_fraction(given["top_p"])}, given["top_p"] < 1),
        "min_p": (TracedStage(MIN_P), {"widest": operands.ratio_threshold(given["min_p"])}, given["min_p"] > 0),
    }
    found: _Listed = []
    for name in (stage for stage in semantics.stages if stage in _FILTERS):
        if name == "temperature":
            scale = {"c": operands.temperature_constant(safe), "inverse_t": operands.reciprocal(safe)}
            found += [(TracedStage(GREEDY), {}, greedy), (TracedStage(TEMPERATURE), scale, ~greedy)]
            known = {name: (stage, own, on & ~greedy) for name, (stage, own, on) in known.items()}
        else:
            found.append(known[name])
    return found


def _penalties(given: dict[str, Array], semantics: Semantics) -> _Listed:
    r, frequency, presence = (given[f"{name}_penalty"] for name in _PENALTIES)
    known: dict[str, tuple[Columns, Array]] = {
        "repetition": ({"r": r, "inverse": operands.reciprocal(r)}, r != 1),
        "frequency": ({"penalty": frequency}, frequency != 0),
        "presence": ({"penalty": presence}, presence != 0),
    }
    return [
        (TracedStage(_PENALTIES[name], (SCOPES.index(getattr(semantics, f"{name}_history")),)), *known[name])
        for name in semantics.stages
        if name in known
    ]


def _without_history(given: dict[str, Array], params: SlotArrays, logits: Array) -> Array:
    """Rows whose parameters need a history, bool [B]."""
    penalised = (
        (given["repetition_penalty"] != 1) | (given["frequency_penalty"] != 0) | (given["presence_penalty"] != 0)
    )
    lengths = table_per_row("bad_words_lengths", params.bad_words_lengths, 1, logits)
    return penalised | jnp.any(lengths > 1, axis=1)


def _allowed(params: SlotArrays, logits: Array) -> Array:
    if params.allowed_token_ids is None:
        return logits
    ids = table_per_row("allowed_token_ids", params.allowed_token_ids, 1, logits)
    inside = counts(ids, ids >= 0, logits.shape[1]) > 0
    return jnp.where(inside | jnp.all(ids < 0, axis=1, keepdims=True), logits, -jnp.inf)


def _counts(at: DrawInputs, vocabulary: int) -> Array:
    """int32 [B, 3, T]: each id, its count in the prompt and in the output; an id is listed wherever it occurs."""
    if at.input_ids is None:
        return jnp.zeros((at.step.shape[0], 3, 0), jnp.int32)
    place = jnp.arange(at.input_ids.shape[1])[None]
    known = (place < at.length[:, None]) & (at.input_ids >= 0) & (at.input_ids < vocabulary)
    opening = place < at.prompt[:, None]
    ids = jnp.where(known, at.input_ids, 0)
    times = [
        jnp.take_along_axis(counts(at.input_ids, known & part, vocabulary), ids, axis=1) for part in (opening, ~opening)
    ]
    return jnp.stack([jnp.where(known, at.input_ids, BEYOND), *times], axis=1)


def _banned(params: SlotArrays, given: dict[str, Array], logits: Array, at: DrawInputs, semantics: Semantics) -> Array:
    """int32 [B, n]: stop ids before `min_tokens`, and ids that would complete a bad word."""
    stops = table_per_row("all_stop_token_ids", params.all_stop_token_ids, 1, logits)
    early = at.step < given["min_tokens"].astype(jnp.uint32)
    banned = jnp.where(early[:, None] & (stops >= 0), stops, BEYOND)
    words = table_per_row(_WORDS, params.bad_words_token_ids, 2, logits)
    if not words.shape[1] or not words.shape[2]:
        return banned
    lengths = table_per_row("bad_words_lengths", params.bad_words_lengths, 1, logits)
    history = _past(at, logits.shape[0])
    only_output = jnp.full(logits.shape[0], semantics.bad_words_history == "output")
    return jnp.concatenate(
        [banned, traced_history.by_words(history, _left_padded(words, lengths), only_output)], axis=1
    )


def _past(at: DrawInputs, rows: int) -> TracedHistory:
    none = jnp.zeros(rows, jnp.int32)
    if at.input_ids is None:
        tokens, length, prompt = jnp.zeros((rows, 1), jnp.int32), none, none
    else:
        tokens, length, prompt = at.input_ids, at.length, at.prompt
    return TracedHistory(tokens=tokens, prompt=prompt, length=length, counts=none, distinct=none)


def _left_padded(words: Array, lengths: Array) -> Array:
    """Words [B, W, L] that end in the last column, with -1 before them."""
    place = jnp.arange(words.shape[2]) - (words.shape[2] - lengths)[..., None]
    found = jnp.take_along_axis(words, jnp.maximum(place, 0), axis=2)
    return jnp.where((place >= 0) & (found > PAD), found, -1)
