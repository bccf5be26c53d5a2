"""What a draw gives back: one token per row, and everything known about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class Status(IntEnum):
    """How a row fared: `ok`, or why there is no token (rule S-N6)."""

    ok = 0
    non_finite_logits = 1
    """Some logit that the masks let through is NaN or +inf."""
    no_allowed_token = 2
    """Every token is masked or -inf."""
    empty_slot = 3
    """`Batch` only: no request is in this slot."""
    processor_failed = 4
    """A custom logits processor raised or returned something unusable; the log says what."""
    history_full = 5
    """`Batch` inside `jax.jit` or on CUDA: the request has said more tokens than its slot can hold."""
    history_missing = 6
    """`JitableSamplingParams` inside `jax.jit` only: penalties or bad words, and no history to read."""
    kept_too_wide = 7
    """`return_kept` only: more tokens could have been drawn than `max_kept_ids` allows the record to hold."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draw:
    """One drawn token per row; arrays of the caller's library, first axis B ([V] logits are B = 1).

    `token_ids` int64 [B], -1 where `status` int8 [B] (codes of Status) is not ok. `sampled_logprobs` float32 [B]: ln of
    the probability with which the token was drawn (greedy 0.0, NaN for a bad row). `support_sizes` int64 [B]: tokens
    that could have been drawn. `seeds` int64 [B]: the seed used, given or fresh; with it the draw can be repeated.

    Filled only when some row asks (`logprobs=n` or `logprob_token_ids`), else None, each in its row's `logprobs_mode`:
    `logprobs` float32 [B] and `ranks` int64 [B] of the drawn token (rank 1 = largest; equal logits share a rank),
    `top_token_ids` int64 [B, N] and `top_logprobs` float32 [B, N] (N = largest n; -1 and -inf past a row's own n),
    `given_logprobs`: per row a tuple of the logprobs of its `logprob_token_ids`; of a `Batch` like a CUDA tensor one
    float32 tensor [B, N] (N = largest number of ids; NaN past a row's own). Rows that did not ask hold NaN, 0, -1.

    Filled only when some row asks for its record (`return_kept`), else None: `kept_ids` int32 [N], the ids that each
    row could have drawn, ascending, one row after the other; those of row r are `kept_ids[kept_offsets[r] :
    kept_offsets[r + 1]]`, with `kept_offsets` int64 [B + 1]. `kept_logmass` float32 [B]: ln of the share that they hold
    of the mass of the set that the last temperature stage saw. `raw_logprobs` and `processed_logprobs` float32 [B]: the
    drawn token's logprob under the model's own law, and after penalties, masks and temperature. Rows that did not ask,
    or have no token, hold no ids and NaN. SPEC.md S-R1 ... S-R4.

    `states`, None unless some row has Mirostat or adaptive-p: NumPy float64 [B], what each row carries to its next draw
    (S-C1), which takes it as `state`; NaN for rows that carry nothing. A `Batch` on CUDA that draws such rows there
    gives a tensor.

    Under JAX a Draw is a pytree and its integers are int32; seeds keep their 64 bits as a NumPy array. Inside
    `jax.jit` `given_logprobs` is float32 [B, N], NaN past a row's own, and what a `Batch` draws there has `seeds`
    uint32 [B, 2], low word first.
    """

    token_ids: Any
    sampled_logprobs: Any
    support_sizes: Any
    status: Any
    seeds: Any
    logprobs: Any = None
    ranks: Any = None
    top_token_ids: Any = None
    top_logprobs: Any = None
    given_logprobs: Any = None
    kept_ids: Any = None
    kept_offsets: Any = None
    kept_logmass: Any = None
    raw_logprobs: Any = None
    processed_logprobs: Any = None
    states: Any = None

    def __len__(self) -> int:
        """B."""
        return len(self.token_ids)
