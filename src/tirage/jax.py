"""What a learner in JAX needs: the log-probability of given tokens under the law they were drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from tirage.backends import jax as backend
from tirage.backends.jax.arrays import is_traced
from tirage.backends.numpy.dispatch import draw_rows
from tirage.laws.token_laws import LawRequest, TokenLaw, law_batch
from tirage.params import SamplingParams
from tirage.sampling import Counter, Pair, States, row_states
from tirage.sampling_batch import SamplingBatch, SamplingRow


def log_law(
    logits: Array,
    params: SamplingParams | Sequence[SamplingParams],
    token_ids: Any,
    *,
    history: Sequence[Pair] | None = None,
    step: Counter | None = None,
    mask: Any = None,
    kept: Any = None,
    state: States | None = None,
) -> Array:
    """ln of the probability of each row's token under its law, differentiable by `logits`: an array [B].

    `logits` [B, V] or [V], `params`, `history`, `step`, `state` and `mask` int32 [B, ceil(V / 32)] as `tirage.sample`
    takes them; `token_ids` integers [B]. `kept`: the Draw of rows with `return_kept`, or its (kept_ids int [N],
    kept_offsets int [B + 1]): the law on these ids, whatever ids the logits would keep now; None: on those that they
    keep. The ids have no slope; penalties, temperature, dynamic temperature and mixtures have theirs.

    float32, and float64 for float64 logits under x64. In float32 the value is `Draw.sampled_logprobs` bit for bit where
    the logits are those of the draw, so that the ratio of two policies that agree is exactly 1. -inf for a token
    outside the law, without slope; NaN for a row that draws nothing. The law is found on the host, inside `jit` and
    `vmap` through a callback, which is compiled once for calls that differ in arrays alone; there, what does not fit in
    `token_ids` or `kept` ends the program with the error. Raises ParamsError for custom processors, which have no known
    slope, and for arguments that do not fit. SPEC.md S-R5, S-R6.
    """
    matrix = backend.as_logits(logits)
    states = row_states(tuple(matrix.shape), params, history, step, 0, state)
    batch = law_batch(states, matrix.shape[1])
    x = logits if logits.ndim == 2 else logits[None]
    words = backend.as_mask(mask, tuple(matrix.shape))
    pair = (kept.kept_ids, kept.kept_offsets) if hasattr(kept, "kept_ids") else kept
    if not is_traced(*jax.tree.leaves((token_ids, words, pair))):
        # What does not fit is named here rather than from inside a callback, and before JAX narrows integers.
        LawRequest.of(batch, None if words is None else np.asarray(words), token_ids, pair)
    given = (jnp.asarray(token_ids), words, None if pair is None else tuple(map(jnp.asarray, pair)))
    return _log_law(_LawRows.of(batch), x if x.dtype == jnp.float64 else x.astype(jnp.float32), given)


def _host(values: Any) -> Any:
    return jax.tree.map(np.asarray, values)


@dataclass(frozen=True, slots=True)
class _LawRows:
    """The rows of a call; those of equal requests are equal, so that JAX finds the program that it made for them."""

    asked: bytes
    carried: tuple[float | None, ...]
    vocab_size: int
    states: Sequence[SamplingRow] = field(compare=False)

    @classmethod
    def of(cls, batch: SamplingBatch) -> _LawRows:
        return cls(batch.asked(), tuple(row.state for row in batch.states), batch.vocab_size, batch.states)


@dataclass(frozen=True, slots=True)
class _LawCall:
    """`_laws` of these rows as a function of arrays: their values, or with `slopes` both."""

    rows: _LawRows
    slopes: bool

    def __call__(self, logits: Any, given: Any) -> Any:
        """The result for logits [..., B, V], each leading axis one that `vmap` added."""
        x, rest = _host((logits, given))
        values, slopes = np.empty(x.shape[:-1], x.dtype), np.empty_like(x)
        for at in np.ndindex(x.shape[:-2]):
            values[at], slopes[at] = _laws(self.rows, x[at], *jax.tree.map(lambda leaf, at=at: leaf[at], rest))
        return (values, slopes) if self.slopes else values

    def run(self, logits: Array, given: Any) -> Any:
        """The result as JAX arrays: through a callback in a trace, which JAX compiles, else without."""
        if not is_traced(logits, *jax.tree.leaves(given)):
            return jax.tree.map(jnp.asarray, self(logits, given))
        values = jax.ShapeDtypeStruct(logits.shape[:1], logits.dtype)
        shapes = (values, jax.ShapeDtypeStruct(logits.shape, logits.dtype)) if self.slopes else values
        return jax.pure_callback(self, shapes, logits, given, vmap_method="broadcast_all")


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _log_law(rows: _LawRows, logits: Array, given: Any) -> Array:
    return _LawCall(rows, slopes=False).run(logits, given)


def _forward(rows: _LawRows, logits: Array, given: Any) -> tuple[Array, tuple[Array, Any]]:
    value, slopes = _LawCall(rows, slopes=True).run(logits, given)
    return value, (slopes, given)


def _backward(rows: _LawRows, kept: tuple[Array, Any], scale: Array) -> tuple[Array, Any]:
    slopes, given = kept
    # Where nothing is asked of a row, a slope that is not defined says nothing.
    by_logits = jnp.where(scale[:, None] == 0, 0, slopes * scale[:, None])
    return by_logits, jax.tree.map(lambda leaf: np.zeros(leaf.shape, jax.dtypes.float0), given)


_log_law.defvjp(_forward, _backward)


def _laws(
    rows: _LawRows, doubles: NDArray[Any], tokens: NDArray[Any], words: Any, kept: Any
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Values [B] and slopes [B, V] of all rows, in the dtype of the logits [B, V], which is float32 or float64."""
    matrix = np.ascontiguousarray(doubles, np.float32)
    # A batch of its own, as calls of one program may run beside each other.
    request = LawRequest.of(law_batch(rows.states, rows.vocab_size), words, tokens, kept)
    own = _own_ids(request, matrix) if kept is None else {}
    values, slopes = np.full(len(matrix), np.nan, doubles.dtype), np.zeros_like(doubles)
    for r in range(len(matrix)):
        found = _law_of_row(request, r, matrix[r], doubles[r].astype(np.float64), own)
        values[r] = found.value if doubles.dtype == np.float64 else found.reported
        slopes[r, found.ids] = found.slopes
    return values, slopes


def _law_of_row(
    request: LawRequest, r: int, logits: NDArray[np.float32], doubles: NDArray[np.float64], own: Any
) -> TokenLaw:
    if request.kept is None and request.plain[r] is not None and own[r] is None:
        return TokenLaw(np.nan)
    return request.of_row(r, logits, doubles, own.get(r))


def _own_ids(request: LawRequest, logits: NDArray[np.float32]) -> dict[int, NDArray[np.int64] | None]:
    """The ids int64 [n] that each plain row keeps; None for one that draws nothing."""
    which = np.array([r for r, law in enumerate(request.plain) if law is not None], np.int64)
    if not which.size:
        return {}
    rows = request.drawn(which, logits.shape[1])
    drawn = draw_rows(logits[which], rows)
    found: dict[int, NDArray[np.int64] | None] = {}
    for at, r in enumerate(which.tolist()):
        kept = np.arange(logits.shape[1])
        if rows.records is not None and rows.records.limits[at]:
            kept = rows.records.kept[at].astype(np.int64)
        found[r] = None if drawn.status[at] else kept
    return found
