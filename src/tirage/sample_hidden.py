"""`sample_hidden`: tokens from a model's last hidden states, without all of their logits at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tirage.backends import head as backend
from tirage.backends.head import Head
from tirage.draw import Draw
from tirage.params import SamplingParams
from tirage.sampling import Counter, Pair, States, draw_batch, row_states
from tirage.sampling_batch import SamplingBatch


def sample_hidden(
    hidden: Any,
    weight: Any,
    params: SamplingParams | Sequence[SamplingParams],
    *,
    bias: Any = None,
    history: Sequence[Pair] | None = None,
    step: Counter | None = None,
    mask: Any = None,
    sample_index: Counter = 0,
    state: States | None = None,
    block: int = 8192,
) -> Draw:
    """The Draw of `tirage.sample(hidden @ weight.T + bias, params, ...)`, without writing [B, V] logits.

    `hidden` [B, D] or [D] and `weight` [V, D], the weight of the model's output layer, with `bias` [V] or None: torch
    tensors of one dtype (float16, bfloat16, float32, float64) on one device, 1 <= V <= 2^20. The other arguments are
    those of `tirage.sample`. `block` tokens are computed at a time, [B, block] float32: more take more memory.

    The head is read once for greedy and top-k (k up to 1,024), two or three times for min-p, top-p and rows without a
    filter, of which the last time only the blocks that matter. Rows with other filters first, custom processors,
    logprobs, or so flat that a sixteenth of the vocabulary stays, are computed whole, as many at a time as fit into the
    memory of one block. So this saves memory, and time only where a matrix product is cheap beside writing its result.

    Logits are those of the block's own product, which may differ in their last bits from a product of the whole
    matrix; from equal logits come equal tokens, statuses and logprobs, bit for bit. Raises ParamsError as
    `tirage.sample` does, and for tensors whose shapes, types or devices do not fit.
    """
    head = Head.of(hidden, weight, bias, block=block)
    states = row_states(head.shape, params, history, step, sample_index, state)
    batch = SamplingBatch.of(states, head.shape[1])
    return draw_batch(backend, head, batch, backend.as_mask(mask, head.shape))
