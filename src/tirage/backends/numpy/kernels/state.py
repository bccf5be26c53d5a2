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
    out_of_line,
    value_of,
)
from tirage.backends.numpy.kernels.vectors import BLOCK, WORDS
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
        ("undivided", "i4"),  # the last temperature stage saw the whole row
        ("noting", "i4"),  # the row is recorded: a cut by mass notes which tokens it keeps
        ("noted", "i4"),  # work.kept has a bit for each token of the window, which is dense
        ("trimmed", "i4"),  # id of the token that a truncated top-p cut short, or -1
        ("n", "i8"),  # length of the compact list
        ("members", "i8"),  # tokens in the window, -1 when nobody has counted
        ("mean", "i8"),  # Qbar
        ("total", "u8"),  # mass of the window, when weighed
        ("base", "u8"),  # mass that joint filters judge on
        ("seen", "u8"),  # mass of the set that the last temperature stage saw, 0 while nobody has weighed it
        ("left", "u8"),  # weight left to the trimmed token
    ],
    align=True,
)


class Work(NamedTuple):
    """Scratch of one thread: nothing is allocated per row."""

    row: Any
    block_max: Any
    block_mass: Any
    keys: Any
    ids: Any
    order: Any
    mass: Any
    table: Any
    marks: Any
    kept: Any
    states: Any


def scratch(vocab_size: int) -> Work:
    """Fresh scratch for rows of this size. The lists have room for the token past the end that a pass may write."""
    blocks = -(-vocab_size // BLOCK)
    room = (blocks + 1) * BLOCK
    return Work(
        row=np.empty(vocab_size, np.float32),
        block_max=np.empty(blocks, np.int32),
        block_mass=np.empty(blocks, np.uint64),
        keys=np.empty(room, np.int32),
        ids=np.empty(room, np.int32),
        order=np.empty(room, np.uint32),
        mass=np.empty(room, np.uint64),
        table=np.empty(256, np.uint64),
        marks=np.empty(2 * WORDS, np.uint64),
        kept=np.empty(blocks * WORDS, np.uint64),
        states=np.zeros(3, STATE),
    )


@kernel
def enter(s, high, low):
    """Reset `s` to a row whose keys lie in [low, high]: everything above -inf is in, T = 1."""
    out_of_line()
    s.low_key, s.low_id = i32(NEG_INF + i32(1)), MAX_KEY
    s.high_key, s.high_id = high, i32(0)
    s.floor, s.ceiling = low, high
    s.m, s.c, s.inverse_t = value_of(high), UNIT, f32(1)
    s.whole, s.compact, s.weighed, s.loose, s.greedy, s.trimmed = 1, 0, 0, 0, 0, -1
    s.undivided, s.seen, s.noting, s.noted = 1, 0, 0, 0
    s.n, s.members, s.total, s.base, s.left = 0, -1, 0, 0, 0


@kernel
def set_low(s, key, token):
    """Raise the lower end to (key, token), if that is higher and above some token of the row."""
    out_of_line()
    if key < s.floor or (key == s.floor and token == MAX_KEY):
        return
    if (key > s.low_key) or ((key == s.low_key) and (token < s.low_id)):
        s.low_key, s.low_id = key, token
        s.whole, s.weighed, s.noted, s.loose, s.members = 0, 0, 0, 1, -1


@kernel
def set_high(s, key, token):
    """Lower the upper end to (key, token)."""
    out_of_line()
    s.high_key, s.high_id = key, token
    s.whole, s.weighed, s.noted, s.loose, s.members = 0, 0, 0, 1, -1


@inline
def member(s, key, token):
    """True when this token is kept."""
    return ((key > s.low_key) | ((key == s.low_key) & (token <= s.low_id))) & (
        (key < s.high_key) | ((key == s.high_key) & (token >= s.high_id))
    )


@kernel
def shrink(s, work):
    """Drop from the compact list what the window no longer holds."""
    out_of_line()
    n = i64(0)
    for i in range(s.n):
        k, t = work.keys[i], work.ids[i]
        work.keys[n], work.ids[n], work.mass[n] = k, t, work.mass[i]
        n += i64(member(s, k, t))
    s.n, s.loose = n, 0
