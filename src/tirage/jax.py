"""What a learner in JAX needs: the log-probability of given tokens under the law they were drawn from."""

from __future__ import annotations

from collections.abc import Sequence
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
from tirage.sampling_batch import SamplingBatch


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
    outside the law, without slope; NaN for a row that draws nothing. Inside `jit`, `grad` and `vmap` the law is found
    on the host, through a callback; there, what does not fit in `token_ids` or `kept` ends the program with the error.
    Raises ParamsError for custom processors, which have no known slope, and for arguments that do not fit. SPEC.md
    S-R5, S-R6.
    """
    matrix = backend.as_logits(logits)
    batch = law_batch(row_states(tuple(matrix.shape), params, history, step, 0, state), matrix.shape[1])
    rows = logits if logits.ndim == 2 else logits[None]
    words = backend.as_mask(mask, tuple(matrix.shape))
    given = (jnp.asarray(token_ids), words, _pair(kept))
    if not is_traced(*jax.tree.leaves(given)):
        # What does not fit is named here rather than from inside a callback.
        LawRequest.of(batch, None if words is None else np.asarray(words), *map(_host, (token_ids, given[2])))
    return _log_law(batch, rows if rows.dtype == jnp.float64 else rows.astype(jnp.float32), given)


def _pair(kept: Any) -> Any:
    pair = (kept.kept_ids, kept.kept_offsets) if hasattr(kept, "kept_ids") else kept
    return tuple(map(jnp.asarray, pair)) if isinstance(pair, (tuple, list)) and pair[0] is not None else pair


def _host(values: Any) -> Any:
    return jax.tree.map(np.asarray, values)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _log_law(batch: SamplingBatch, logits: Array, given: Any) -> Array:
    shape = jax.ShapeDtypeStruct(logits.shape[:1], logits.dtype)
    run = lambda x, given: _laws(batch, x, given)[0]  # noqa: E731
    return jax.pure_callback(run, shape, logits, given, vmap_method="sequential")


def _forward(batch: SamplingBatch, logits: Array, given: Any) -> tuple[Array, tuple[Array, Any]]:
    shapes = (jax.ShapeDtypeStruct(logits.shape[:1], logits.dtype), jax.ShapeDtypeStruct(logits.shape, logits.dtype))
    value, slopes = jax.pure_callback(partial(_laws, batch), shapes, logits, given, vmap_method="sequential")
    return value, (slopes, given)


def _backward(batch: SamplingBatch, kept: tuple[Array, Any], scale: Array) -> tuple[Array, Any]:
    slopes, given = kept
    # Where nothing is asked of a row, a slope that is not defined says nothing.
    by_logits = jnp.where(scale[:, None] == 0, 0, slopes * scale[:, None])
    return by_logits, jax.tree.map(lambda leaf: np.zeros(leaf.shape, jax.dtypes.float0), given)


_log_law.defvjp(_forward, _backward)


def _laws(batch: SamplingBatch, logits: Any, given: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Values [B] and slopes [B, V] of all rows, in NumPy and in the dtype of the logits."""
    doubles = np.asarray(logits)
    tokens, words, kept = _host(given)
    matrix = np.ascontiguousarray(doubles, np.float32)
    request = LawRequest.of(batch, words, tokens, kept)
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
