"""The one compiled entry: draw rows lo .. hi of a batch. The other files of filters and passes are parts of it."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit, types

from tirage.backends.numpy.kernels import parts
from tirage.backends.numpy.kernels.bits import MIN_KEY, NEG_INF, POS_INF, frozen, i32, i64, inline, kernel, u64, uniform
from tirage.backends.numpy.kernels.cache_folder import distrusted
from tirage.backends.numpy.kernels.edits import edit
from tirage.backends.numpy.kernels.entropy import xtc
from tirage.backends.numpy.kernels.filters import count
from tirage.backends.numpy.kernels.passes import copy_row, find_maxima, largest
from tirage.backends.numpy.kernels.program import (
    branch_logprob,
    first_positive,
    mixed_logprob,
    mixed_support,
    pick,
    run,
)
from tirage.backends.numpy.kernels.record import record, record_raw
from tirage.backends.numpy.kernels.report import report
from tirage.backends.numpy.kernels.state import STATE, Work, enter
from tirage.backends.numpy.kernels.support import operations
from tirage.draw import Status
from tirage.exact.philox import Domain
from tirage.operators import FIRST_FILTER
from tirage.operators.xtc import XTC
from tirage.sampling_metadata import View

_log = logging.getLogger("tirage")

_UNCACHED = (
    "the kernels cannot be cached, so every process compiles them anew: %s; set NUMBA_CACHE_DIR to a folder that you, "
    "and nobody else, can write to"
)
_told: list[str] = []
_OK, _NON_FINITE, _NO_TOKEN, _TOO_WIDE = 0, 1, 2, int(Status.kept_too_wide)
_FIRST_FILTER, _XTC_OP = int(FIRST_FILTER), int(XTC)
_NONE = int(View.NONE)
_DRAW, _COIN = i32(Domain.DRAW), i32(Domain.XTC)


@inline
def _find_xtc(program):
    """(how often XTC acts in units of 2^-32, its place, whether it comes last); 0 without XTC."""
    share, at, last = u64(0), 0, True
    for i in range(program.shape[0]):
        op = program[i, 0]
        if op == 0:
            break
        if op == _XTC_OP and share == u64(0):
            share, at = u64(program[i, 1]), i
        else:
            last = share == u64(0)
    return share, at, last


@inline
def _edits(program):
    return program.shape[0] > 0 and 0 < program[0, 0] < _FIRST_FILTER


@kernel
def _judge(high, low):
    """Status of a row whose keys lie in [low, high]."""
    if high >= POS_INF or low < NEG_INF:
        return _NON_FINITE
    return _NO_TOKEN if high <= NEG_INF else _OK


@inline
def _draw_branch(x, work, program, high, low, seed, step, sample, recorded):
    """(token, XTC's coin, its share, nested); leaves the drawn branch in states[0], the other one in states[1]."""
    share, at, nested = _find_xtc(program)
    s, other = work.states[0], work.states[1]
    coin = share > u64(0) and (uniform(seed, step, sample, _COIN) >> u64(32)) < share
    turns = 2 if share > u64(0) and not nested else 1
    for turn in range(turns):
        if turn:
            work.states[1] = work.states[0]
        enter(s, high, low)
        run(x, s, work, program, turns == 2 and coin == (turn == 1), recorded)
    if share > u64(0) and nested:
        work.states[1] = work.states[0]
        e = program[at]
        xtc(x, s if coin else other, work, e[2], e[3], e[4] != 0, coin)
    return pick(x, s, work, uniform(seed, step, sample, _DRAW)), coin, share, nested


@inline
def _drawn(x, work, token, coin, share, nested):
    """(logprob of the token, how many could have been drawn)."""
    s, other = work.states[0], work.states[1]
    if share > u64(0):
        off, on = (other, s) if coin else (s, other)
        return mixed_logprob(off, on, share, x[token], token), i64(mixed_support(x, off, on, share, work, nested))
    return branch_logprob(s, x[token], token), i64(count(x, s, work, first_positive(s)))


@inline
def _begin_record(limits, ends, r, end):
    """Whether the row is recorded; the ids of the rows so far `end` there, which is where its own end without any."""
    if limits.size > 0:
        ends[r + 1] = end
    return limits.size > 0 and limits[r] > 0


def draw_entry(digest: int) -> Any:
    """The function that is compiled.

    `digest` of the package's source makes stale caches miss, since Numba stamps one file only.
    """

    def draw_rows(
        logits, programs, edit_ids, edit_values, count_start, count_ids, prompt_counts, output_counts, masks,
        seeds, steps, samples, views, top_n, asked_start, asked_ids, lo, hi, work,
        tokens, sampled, support, status, logprobs, ranks, top_ids, top_logprobs, asked, limits, kept, ends, numbers,
    ):  # fmt: skip
        width = kept.size // max(limits.size, 1)
        end, room = lo * width, hi * width
        for r in range(lo, hi if digest != 0 else lo):
            recorded = _begin_record(limits, ends, r, end)
            program, x = programs[r], logits[r]
            words = masks[r] if masks.shape[0] else edit_ids[:0]
            edited, bad = _edits(program), False
            copied = edited or words.size > 0
            if copied:
                high, low = copy_row(x, words, work.row, work.block_max)
                x = frozen(work.row)
            else:
                high, low = find_maxima(x, work.block_max)
            if edited:
                c = slice(count_start[r], count_start[r + 1])
                suspicious = _judge(high, low) == _NON_FINITE
                bad = edit(
                    work.row, work.block_max, program, edit_ids, edit_values,
                    count_ids[c], prompt_counts[c], output_counts[c], suspicious,
                )  # fmt: skip
                high, low = largest(work.block_max), MIN_KEY
                status[r] = _NON_FINITE if bad else (_NO_TOKEN if high <= NEG_INF else _OK)
            else:
                status[r] = _judge(high, low)
            if status[r] != _OK:
                top_logprobs[r, :] = np.nan
                continue
            token, coin, share, nested = _draw_branch(
                x, work, program, high, low, seeds[r], steps[r], samples[r], recorded
            )
            s, other = work.states[0], work.states[1]
            tokens[r] = token
            sampled[r], support[r] = _drawn(x, work, token, coin, share, nested)
            if recorded and support[r] > limits[r]:
                status[r], tokens[r], sampled[r], support[r] = _TOO_WIDE, -1, np.nan, 0
                top_logprobs[r, :] = np.nan
                continue
            if recorded:
                end = record(x, s, work, token, kept, end, room, support[r], numbers[:, r])
                ends[r + 1] = end
            if views[r] != _NONE:
                a = slice(asked_start[r], asked_start[r + 1])
                off = other if (share and coin) else s
                report(
                    logits[r], x, off, work.states[2], work, copied, views[r], token, asked_ids[a], top_n[r],
                    logprobs[r : r + 1], ranks[r : r + 1], top_ids[r], top_logprobs[r], asked[a],
                )  # fmt: skip
            if recorded:
                # Last, as the raw view of an edited row takes the scratch of the other.
                record_raw(logits[r], x, s, work, copied, token, numbers[:, r])

    return draw_rows


def draw_signature() -> Any:
    def given(kind: Any, dimensions: int = 1) -> Any:
        return types.Array(kind, dimensions, "C", readonly=True)

    def made(kind: Any, dimensions: int = 1) -> Any:
        return types.Array(kind, dimensions, "C")

    f4, i1, i4, i8 = types.float32, types.int8, types.int32, types.int64
    u4, u8 = types.uint32, types.uint64
    kinds = (f4, i4, u8, i4, i4, u4, u8, u8, u8, u8, numba_type(STATE))
    work = types.NamedTuple([made(kind) for kind in kinds], Work)
    return types.void(
        given(f4, 2), given(i8, 3), given(i4), given(f4), given(i8), given(i4), given(i4), given(i4), given(i4, 2),
        given(i8), given(i8), given(i8), given(i1), given(i4), given(i8), given(i4), i8, i8, work,
        made(i8), made(f4), made(i8), made(i1), made(f4), made(i8), made(i8, 2), made(f4, 2), made(f4),
        given(i8), made(i4), made(i8), made(f4, 2),
    )  # fmt: skip


def numba_type(dtype: np.dtype) -> Any:
    from numba.np.numpy_support import from_dtype

    return from_dtype(dtype)


@functools.cache
def _source_digest() -> int:
    sources = sorted(Path(__file__).parent.glob("*.py"))
    # Codes of operations are constants of the compiled code, and another operation may move them.
    codes = repr([(op.name, int(op)) for op in sorted(operations())])
    text = b"".join(path.read_bytes() for path in sources) + codes.encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little") | 1


def dispatcher(make: Callable[[int], Any] = draw_entry, *, cache: bool = True) -> Any:
    """An entry before it is compiled, with a cache where Numba finds a folder that it may write to.

    That is NUMBA_CACHE_DIR, else this package's `__pycache__`, else the user's cache folder. One that other users can
    write to is not used.
    """
    entry = make(_source_digest())
    options = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": False}
    if cache:
        try:
            made: Any = njit(cache=True, **options)(entry)
            if (reason := distrusted(Path(made._cache.cache_path))) is None:
                if parts.is_known():
                    _load_alone(made._cache)
                return made
            tell_uncached(reason)
        except RuntimeError as error:
            tell_uncached(error)
    return njit(**options)(entry)


def _load_alone(cache: Any) -> None:
    """Has a cache of Numba load machine code and nothing else.

    By itself it first makes all functions known of which Numba can compile calls. That imports hundreds of modules,
    SciPy's among them: half of the time until the kernels are ready. What is compiled has no use for them, and before
    Numba compiles anything it does so in any case.
    """

    def load(signature: Any, target: Any) -> Any:
        with cache._guard_against_spurious_io_errors():
            return cache._load_overload(signature, target)

    cache.load_overload = load


def tell_uncached(error: Exception | str) -> None:
    """Logs that the kernels cannot be cached; once, though there are several of them."""
    if not _told:
        _told.append(str(error))
        _log.warning(_UNCACHED, error)


def compiled(make: Callable[[int], Any], signature: Any, begun: Callable[[Any], None] = lambda _: None) -> Any:
    """A compiled entry, from the cache when it is there; without a cache it is compiled each time.

    `begun` gets the dispatcher before that, whose statistics say whether the cache had it.
    """
    made = dispatcher(make)
    begun(made)
    try:
        made.compile(signature)
    except OSError as error:
        # The folder was there, but the cache could not be read or written: a full disk, say.
        tell_uncached(error)
        made = dispatcher(make, cache=False)
        made.compile(signature)
    made.disable_compile()
    return made
