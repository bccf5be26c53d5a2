"""`verify`: which tokens of a draft plain decoding would have drawn, from the logits of one pass over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.backends import Backend, find, known, type_name
from tirage.errors import ParamsError
from tirage.history import MAX_HISTORY
from tirage.params import SamplingParams
from tirage.sampling import Counter, Pair, draw_batch, refuse_several, row_states
from tirage.sampling_batch import SamplingBatch, SamplingRow

NO_TOKEN = -1
"""Ends a draft that is shorter than those of other rows, and stands after the last token of a verified one."""
_MODULES = {"numpy": "numpy", "torch": "torch", "jax": "jax.numpy", "jaxlib": "jax.numpy", "mlx": "mlx.core"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Verification:
    """What plain decoding draws along drafts of k tokens; arrays of the caller's library, first axis B.

    `accepted` int64 [B]: how many tokens of the draft, from its first on, are those drawn. `token_ids` int64
    [B, k + 1]: these tokens and the one drawn after them, then -1. `sampled_logprobs` float32 [B, k + 1]: ln of the
    probability with which each was drawn, NaN where there is none. `status` int64 [B]: that of the last draw (codes of
    Status); where it is not ok, `token_ids` hold the accepted tokens alone. `seeds` int64 [B]: the seed of each row,
    given or fresh. Under JAX integers are int32, seeds a NumPy array, and it is a pytree.
    """

    accepted: Any
    token_ids: Any
    sampled_logprobs: Any
    status: Any
    seeds: Any

    def __len__(self) -> int:
        """B."""
        return len(self.token_ids)


def verify(
    logits: Any,
    draft_ids: Any,
    params: SamplingParams | Sequence[SamplingParams],
    *,
    history: Sequence[Pair] | None = None,
    step: Counter | None = None,
    mask: Any = None,
    sample_index: Counter = 0,
) -> Verification:
    """The tokens that plain decoding draws along drafts: the same ones, step for step, whatever the drafts say.

    `logits` [B, k + 1, V] of `sample`'s types: those before the first token of each draft and after each of its k
    tokens. `draft_ids` integers [B, k], of any library or nested lists, -1 after the end of a shorter draft. A token
    is accepted while it is the one that `sample` draws at that step with the row's `params`, `history` (without the
    draft) and seed; drafts decide how many tokens there are, never which. `step` is that of the first token, by default
    the number of output ids. `mask`: int32 bits [B, k + 1, ceil(V / 32)], or [B, ceil(V / 32)] for all steps.
    `sample_index` as for `sample`.

    Raises ParamsError before any work for what `sample` refuses, and for drafts of another shape, with ids outside the
    vocabulary or longer than a history may be. Inside `jax.jit`, drafts may be traced where no parameter reads them.
    SPEC.md S-V1 to S-V3.
    """
    backend, shape = _shape_of(logits)
    rows, width, vocab_size = shape
    matrix = backend.as_logits(logits.reshape(rows * width, vocab_size))
    traced = _is_traced(draft_ids)
    drafts = None if traced else _host_drafts(draft_ids, shape)
    first = row_states((rows, vocab_size), params, history, step, sample_index)
    if isinstance(sample_index, (int, np.integer)):
        refuse_several(first)
    states = _along(first, drafts, width)
    words = backend.as_mask(_flat_mask(mask, rows, width), matrix.shape)
    drawn = draw_batch(backend, matrix, SamplingBatch.of(states, vocab_size), words)
    given = draft_ids if drafts is None else backend.from_numpy(drafts, matrix)
    return _verified(drawn, given, seeds_of(first), backend, matrix, (rows, width))


def _shape_of(logits: Any) -> tuple[Backend, tuple[int, int, int]]:
    backend = find(logits)
    if getattr(logits, "ndim", None) != 3 or not logits.shape[1]:
        shape = list(getattr(logits, "shape", ())) or type_name(logits)
        raise ParamsError(f"logits must have shape [B, k + 1, V] to verify drafts of k tokens, got {shape}")
    rows, width, vocab_size = (int(size) for size in logits.shape)
    return backend, (rows, width, vocab_size)


def _is_traced(draft_ids: Any) -> bool:
    if library_of(draft_ids) not in {"jax", "jaxlib"}:
        return False
    from tirage.backends.jax.arrays import is_traced

    return is_traced(draft_ids)


def library_of(array: Any) -> str:
    """The library that an array's type comes from."""
    return type(array).__module__.partition(".")[0]


def _host_drafts(draft_ids: Any, shape: tuple[int, int, int]) -> NDArray[np.int64]:
    """Drafts as int64 [B, k], checked."""
    rows, width, vocab_size = shape
    try:
        array = np.asarray(find(draft_ids).to_numpy(draft_ids) if known(draft_ids) else draft_ids)
    except (TypeError, ValueError) as error:
        raise ParamsError(f"draft_ids must be integers [B, k], got {type_name(draft_ids)}: {error}") from None
    wanted = (rows, width - 1)
    if array.shape != wanted and not (array.size == 0 and not rows * (width - 1)):
        raise ParamsError(
            f"draft_ids must have shape [B, k] = {list(wanted)} for logits {list(shape)}, got {list(array.shape)}"
        )
    if array.size and array.dtype.kind not in "iu":
        raise ParamsError(f"draft_ids must be integers, got {array.dtype}")
    wrong = array[(array < NO_TOKEN) | (array >= vocab_size)] if array.size else array
    if wrong.size:
        raise ParamsError(
            f"draft_ids must lie in [0, {vocab_size}), the vocabulary of the logits, or be -1 after the end of a "
            f"draft, got {int(wrong.flat[0])}"
        )
    return array.astype(np.int64).reshape(wanted)


def _along(first: Sequence[SamplingRow], drafts: NDArray[np.int64] | None, width: int) -> list[SamplingRow]:
    """The rows of all steps, those of a draft together: each as if the tokens before it had been drawn."""
    found: list[SamplingRow] = []
    for index, state in enumerate(first):
        if state.compiled.carrier is not None:
            raise ParamsError(
                f"{state.carrier_name} must be off in verify, got it on: the law of a place depends on the token drawn "
                "before it; draw the tokens one by one with sample"
            )
        if drafts is None:
            _check_unread(state)
        elif state.history.length + width - 1 > MAX_HISTORY:
            raise ParamsError(
                f"draft_ids must leave histories of at most {MAX_HISTORY} tokens, got {state.history.length} and a "
                f"draft of {width - 1}; shorten the draft"
            )
        history = state.history
        for ahead in range(width):
            found.append(replace(state, history=history, step=state.at + ahead))
            if drafts is not None and ahead < width - 1 and drafts[index, ahead] != NO_TOKEN:
                history = history.copy()
                history.append(int(drafts[index, ahead]))
    return found


def _check_unread(state: SamplingRow) -> None:
    """Raises ParamsError where a draw depends on the tokens of a draft, which nobody knows while it is traced."""
    if state.params.logits_processors:
        raise ParamsError("draft_ids must be concrete with logits_processors, which read them, got a traced array")
    state.compiled.check_history()


def _flat_mask(mask: Any, rows: int, width: int) -> Any:
    """A mask of all steps, [B * (k + 1), words]; what is no such array is left to the check of masks."""
    if getattr(mask, "ndim", None) == 3:
        if tuple(mask.shape[:2]) != (rows, width):
            raise ParamsError(
                f"mask must have shape [B, k + 1, words] = [{rows}, {width}, ...], got {list(mask.shape)}"
            )
        return mask.reshape(rows * width, mask.shape[2])
    if getattr(mask, "ndim", None) == 2 and mask.shape[0] == rows:
        return mask[np.repeat(np.arange(rows), width)]
    return mask


def seeds_of(states: Sequence[SamplingRow]) -> NDArray[np.int64]:
    """The seeds of rows, int64 [B]."""
    return np.array([state.seed for state in states], np.int64)


def _verified(
    drawn: Any, drafts: Any, seeds: NDArray[np.int64], backend: Backend, like: Any, shape: tuple[int, int]
) -> Verification:
    """The Verification of the draws [B * (k + 1)] of all steps, of which those behind a rejected token do not count."""
    xp = import_module(_MODULES[library_of(drawn.token_ids)])
    if library_of(drawn.token_ids) in {"jax", "jaxlib"}:
        from tirage.backends.jax.tree import register

        register(Verification)
    tokens = drawn.token_ids.reshape(shape)
    # A draw without a token is no token of the draft, though both are -1 where that has ended.
    agrees = xp.where((tokens[:, :-1] == drafts) & (tokens[:, :-1] != NO_TOKEN), 1, 0)
    accepted = xp.cumprod(agrees, 1).sum(1)
    at = backend.from_numpy(np.arange(shape[1])[None], like)
    counts = at <= accepted[:, None]
    return Verification(
        accepted=accepted,
        token_ids=xp.where(counts, tokens, NO_TOKEN),
        sampled_logprobs=xp.where(counts, drawn.sampled_logprobs.reshape(shape), float("nan")),
        status=xp.where(at == accepted[:, None], drawn.status.reshape(shape), 0).sum(1),
        seeds=backend.from_numpy(seeds, like),
    )
