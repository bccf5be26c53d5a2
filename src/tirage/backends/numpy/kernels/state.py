"""What one row carries through its steps: the kept window, the temperature, and the scratch arrays.

The kept tokens are always a window of the order (key descending, id ascending), because every filter moves its
lower or its upper end. While the window is wide the row stays *dense*: passes go over the logits. Once it is
narrow it becomes *compact*: a list of keys and ids, ascending by id, that the remaining filters shorten.
The upper end is always a kept token, so `high_key` is the largest key still in.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tirage.backends.numpy.kernels.bits import (
    MAX_KEY,
    NEG_INF,
    f32,
    i32,
    i64,
    inline,
    kernel,
    value_of,
)
from tirage.backends.numpy.kernels.passes import BLOCK
from tirage.exact.numbers import temperature_constant

UNIT = temperature_constant(1.0)
"""c at T = 1."""

STATE = np.dtype(
    [
        ("low_key", "i4"),  # the window: last token kept ...
        ("low_id", "i4"),
        ("high_key", "i4"),  # ... and first
        ("high_id", "i4"),
        ("floor", "i4"),  # smallest and largest key of the row
        ("ceiling", "i4"),
        ("m", "f4"),  # those of the last temperature stage
        ("c", "f4"),
        ("inverse_t", "f4"),
        ("whole", "i4"),  # nothing has been cut yet
        ("compact", "i4"),
        ("weighed", "i4"),  # block_mass (dense) or mass (compact) hold the current weights
        ("loose", "i4"),  # the lower end has risen since the list was made or a list was thought of
        ("greedy", "i4"),
        ("trimmed", "i4"),  # id of the token that a truncated top-p cut short, or -1
        ("n", "i8"),  # length of the compact list
        ("mean", "i8"),  # Qbar, and the mass it was taken over
        ("entropy_mass", "u8"),
        ("total", "u8"),  # mass of the window, when weighed
        ("base", "u8"),  # mass that joint filters judge on
        ("left", "u8"),  # weight left to the trimmed token
    ],
    align=True,
)


class Work(NamedTuple):
    """Scratch of one thread, views of one buffer: nothing is allocated per row."""

    row: Any
    block_max: Any
    block_mass: Any
    keys: Any
    ids: Any
    order: Any
    mass: Any
    table: Any
    states: Any


def buffer_size(vocab_size: int) -> int:
    """int64 words that `carve` needs for this vocabulary."""
    v = _padded(vocab_size)
    return 2 * (v // BLOCK) + 4 * (v // 2) + v + 256


def _padded(vocab_size: int) -> int:
    return (vocab_size // BLOCK + 2) * BLOCK


@kernel
def carve(buffer, states, vocab_size):
    """Work whose arrays share `buffer`."""
    v = (vocab_size // BLOCK + 2) * BLOCK
    blocks = (vocab_size + BLOCK - 1) // BLOCK
    room = v // BLOCK
    half = v // 2
    a = 2 * room
    b = a + 4 * half
    return Work(
        buffer[a : a + half].view(np.float32)[:vocab_size],
        buffer[:room].view(np.int32)[:blocks],
        buffer[room : 2 * room].view(np.uint64)[:blocks],
        buffer[a + half : a + 2 * half].view(np.int32),
        buffer[a + 2 * half : a + 3 * half].view(np.int32),
        buffer[a + 3 * half : b].view(np.uint32),
        buffer[b : b + v].view(np.uint64),
        buffer[b + v : b + v + 256].view(np.uint64),
        states,
    )


@kernel
def enter(s, high, low):
    """Reset `s` to a row whose keys lie in [low, high]: everything above -inf is in, T = 1."""
    s.low_key, s.low_id = i32(NEG_INF + i32(1)), MAX_KEY
    s.high_key, s.high_id = high, i32(0)
    s.floor, s.ceiling = low, high
    s.m, s.c, s.inverse_t = value_of(high), UNIT, f32(1)
    s.whole, s.compact, s.weighed, s.loose, s.greedy, s.trimmed = 1, 0, 0, 0, 0, -1
    s.n, s.total, s.base, s.left = 0, 0, 0, 0


@kernel
def set_low(s, key, token):
    """Raise the lower end to (key, token), if that is higher."""
    if (key > s.low_key) or ((key == s.low_key) and (token < s.low_id)):
        s.low_key, s.low_id = key, token
        s.whole, s.weighed, s.loose = 0, 0, 1


@inline
def set_high(s, key, token):
    """Lower the upper end to (key, token)."""
    s.high_key, s.high_id = key, token
    s.whole, s.weighed, s.loose = 0, 0, 1


@inline
def member(s, key, token):
    """True when this token is kept."""
    return ((key > s.low_key) or ((key == s.low_key) and (token <= s.low_id))) and (
        (key < s.high_key) or ((key == s.high_key) and (token >= s.high_id))
    )


@kernel
def shrink(s, work):
    """Drop from the compact list what the window no longer holds."""
    n = i64(0)
    for i in range(s.n):
        k, t = work.keys[i], work.ids[i]
        work.keys[n], work.ids[n], work.mass[n] = k, t, work.mass[i]
        n += i64(member(s, k, t))
    s.n, s.loose = n, 0
