"""Rows over worker threads: each draws a contiguous share with scratch of its own, so the result is the same."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tirage.backends.numpy.kernels import warm
from tirage.errors import ParamsError
from tirage.exact.philox import Domain, uniform64
from tirage.operators import FIRST_FILTER
from tirage.operators.xtc import XTC
from tirage.sampling_metadata import Drawn, SamplingMetadata
from tirage.token_records import TokenRecords

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

_SMALL = 1 << 21
"""Logits below which one thread is faster than handing work over (about 200 us of work)."""


class SingleRecord(NamedTuple):
    """What one row records beside its token: the ids int32 [n], ascending, and the numbers of `TokenRecords`."""

    kept: NDArray[np.int32]
    logmass: float
    raw: float
    processed: float


@dataclass(frozen=True, slots=True, eq=False)
class RecordRoom:
    """Where the kernels write the records of B rows, before it is known how many ids each holds.

    `limits` int64 [B] or [0]; `kept` int32 [B * widest], of which only what is written is ever touched, as each share
    of the rows writes its ids one row after the other; `ends` int64 [B + 1], where in `kept` those of each row end,
    behind a zero; `numbers` float32 [3, B], those of the records.
    """

    limits: NDArray[np.int64]
    kept: NDArray[np.int32]
    ends: NDArray[np.int64]
    numbers: NDArray[np.float32]

    @classmethod
    def of(cls, records: TokenRecords | None, vocab_size: int) -> RecordRoom:
        """Room for these records; none where no row asks for one."""
        if records is None:
            return _NO_ROOM
        size = records.limits.size
        kept = _spare.take(size * min(records.widest, vocab_size))
        return cls(records.limits, kept, np.zeros(size + 1, np.int64), records.numbers)

    @property
    def arrays(self) -> tuple[Any, ...]:
        """What the kernel takes."""
        return self.limits, self.kept, self.ends, self.numbers

    @property
    def single(self) -> SingleRecord:
        """The record of the only row, which the next draw writes over: its ids are a copy."""
        logmass, raw, processed = self.numbers[:, 0].tolist()
        return SingleRecord(self.kept[: self.ends[1]].copy(), logmass, raw, processed)

    def empty(self, records: TokenRecords, bounds: Sequence[int]) -> None:
        """Hands over the ids; `bounds` are where the shares of the rows begin, and where the last ends.

        Out of the caches, as after a draw of many rows, every call of NumPy costs as much as a row: there are few.
        """
        if len(bounds) == 2:
            ids, ends = self.kept[: self.ends[-1]], self.ends
        else:
            ids, ends = self._joined(bounds)
        # A few ids would hold on to all of the room.
        records.take(ids if 8 * ids.size >= self.kept.size or len(bounds) > 2 else ids.copy(), ends)
        _spare.put(self.kept)

    def _joined(self, bounds: Sequence[int]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The ids of all shares, and where those of each row end, behind a zero."""
        width, ends, parts = self.kept.size // self.limits.size, self.ends.copy(), [self.kept[:0]]
        for lo, hi in itertools.pairwise(bounds):
            if hi > lo:
                parts.append(self.kept[lo * width : self.ends[hi]])
                ends[lo + 1 : hi + 1] += sum(part.size for part in parts[:-1]) - lo * width
        return np.concatenate(parts), ends


class _Spare:
    """Memory of an earlier record that nobody has any more.

    Memory that is new to the process has to be cleared first, which takes as long as the ids themselves.
    """

    def __init__(self) -> None:
        self._held: list[NDArray[np.int32]] = []

    def take(self, size: int) -> NDArray[np.int32]:
        """Room for `size` ids, int32 [size]."""
        # pop() is atomic: no two threads get the same memory.
        while self._held:
            held = self._held.pop()
            # Views hold on to their array: two references are `held` and the argument.
            if held.size >= size and sys.getrefcount(held) == 2:
                return held[:size]
        return np.empty(size, np.int32)

    def put(self, room: NDArray[np.int32]) -> None:
        """Keeps what `room` is made of for the next record."""
        whole = room if room.base is None else room.base
        if whole.size <= _MOST_SPARE and not self._held:
            self._held.append(whole)


_MOST_SPARE = 1 << 24
"""Most ids that are kept for the next record: 64 MiB."""
_spare = _Spare()
_NO_ROOM = RecordRoom(np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros((0, 0), np.float32))


class _Scratch(threading.local):
    """One thread's arrays, for the vocabulary drawn from last."""

    size = 0
    work: Any = None

    def of(self, vocab_size: int) -> Any:
        if self.size != vocab_size:
            from tirage.backends.numpy.kernels.state import scratch

            self.work, self.size = scratch(vocab_size), vocab_size
        return self.work


_scratch = _Scratch()
_lock = threading.Lock()
_workers: ThreadPoolExecutor | None = None


def _initial_threads() -> int:
    wanted = os.environ.get("TIRAGE_THREADS", "")
    return max(1, int(wanted)) if wanted.isdecimal() else min(4, len(_cores()))


def _cores() -> range | set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


_threads = _initial_threads()


def threads() -> int:
    """How many threads `draw` uses for large batches."""
    return _threads


def set_threads(n: int) -> None:
    """Sets the number of threads (>= 1) for large batches, by default `TIRAGE_THREADS`; results do not depend on it.

    Raises ParamsError for another number.
    """
    global _threads, _workers
    if type(n) is not int or n < 1:
        raise ParamsError(f"threads must be an integer >= 1, got {n!r}; 1 draws on the calling thread alone")
    with _lock:
        _threads, _workers = n, None


def _executor() -> ThreadPoolExecutor:
    global _workers
    with _lock:
        if _workers is None:
            from concurrent.futures import ThreadPoolExecutor

            _workers = ThreadPoolExecutor(max(1, _threads - 1), thread_name_prefix="tirage-draw")
        return _workers


def _after_fork() -> None:
    # A child inherits the executor's queue but none of its threads.
    global _workers, _lock, _scratch, _spare
    _workers, _lock, _scratch, _spare = None, threading.Lock(), _Scratch(), _Spare()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def draw(logits: NDArray[np.float32], rows: SamplingMetadata, *, threads: int | None = None) -> Drawn:
    """The draw of B rows that `supports` accepts, equal bit for bit to the plain path's.

    `logits` float32 [B, V], C-contiguous, never written. `threads` overrides the number of threads. The kernels
    must be `ready()`.
    """
    out = Drawn.empty(rows, keep=True)
    room = RecordRoom.of(rows.records, logits.shape[1])
    arguments, results = _inputs(logits, rows), (*_results(out), *room.arrays)
    bounds = _spread(lambda lo, hi: _share(arguments, lo, hi, results), logits, threads)
    if rows.records is not None:
        room.empty(rows.records, bounds)
    return out


def single_draw(
    rows: SamplingMetadata, vocab_size: int
) -> tuple[Callable[[NDArray[np.float32], int], tuple[int, float]], RecordRoom]:
    """A function that draws the one row of `rows`, which has no view, again and again; for one thread at a time.

    It takes logits float32 [1, V], C-contiguous, and the Philox step, and gives the token, -1 for a bad row, with its
    log-probability. The room is where it writes the record of the token, if the row has one. `supports` must accept the
    row, whose arrays must not change; the kernels must be `single_ready()`.
    """
    from tirage.backends.numpy.kernels import single

    entry, table = warm.single_entry(), np.zeros(single.WORDS, np.int64)
    step, token, logprob, status = (table[at : at + 1] for at in range(single.ARGUMENTS))
    out = replace(Drawn.empty(rows), token_ids=token, sampled_logprobs=logprob.view(np.float32)[:1])
    out.status = status.view(np.int8)[:1]
    fixed = _inputs(np.empty((1, vocab_size), np.float32), replace(rows, steps=step, memo={}))[1:]
    room = RecordRoom.of(None if rows.records is None else rows.records.anew(), vocab_size)
    arguments = (*fixed, 0, 1, _scratch.of(vocab_size), *_results(out), *room.arrays)
    single.fill(table, single.address_of(warm.entry()), arguments)

    def draw_next(logits: NDArray[np.float32], at: int) -> tuple[int, float]:
        # The table has the addresses of the arguments alone.
        assert arguments
        return entry(logits, at, table)

    return draw_next, room


def law(logits: NDArray[np.float32], rows: SamplingMetadata, out: NDArray[np.float64]) -> None:
    """Write the laws of B rows that `supports` accepts into `out` [B, V], zeros at first; NaN where nothing is drawn.

    Arguments as `draw` takes them, with rows that have no view. The kernels must be `law_ready()`.
    """
    drawn = Drawn.empty(rows, keep=True)
    arguments, results = _inputs(logits, rows), (*_results(drawn), *_NO_ROOM.arrays)

    def share(lo: int, hi: int) -> None:
        for r in range(lo, hi):
            _share(arguments, r, r + 1, results)
            if drawn.status[r]:
                out[r] = np.nan
            else:
                _write_law(logits, rows, r, out[r])

    _spread(share, logits, None)


def gather(
    x: NDArray[np.float32], ids: NDArray[np.int32], held: NDArray[np.float32]
) -> tuple[NDArray[np.float32], np.float32, bool]:
    """The logits of `ids` int32 [n], which are the first n of `held` [V], the largest, and whether all are finite.

    `x` float32 [V] and `held` are C-contiguous. The kernels must be `held_ready()`, as for those below.
    """
    largest, finite = warm.held_entries()[0](x, ids, held)
    return held[: ids.size], np.float32(largest), finite


def mass_of(held: NDArray[np.float32], m: np.float32, c: np.float32) -> int:
    """The integer mass of logits float32 [n]."""
    return warm.held_entries()[1](held, m, c)


def write_shares(
    held: NDArray[np.float32],
    ids: NDArray[np.int32],
    m: np.float32,
    c: np.float32,
    factor: float,
    out: NDArray[np.float32],
) -> None:
    """Writes the weights of logits `held` float32 [n], 1 for m, times `factor` to `out` float32 [V] at `ids` int32 [n].

    `held` is overwritten.
    """
    warm.held_entries()[2](held, ids, m, c, np.float32(factor), out)


def write_marked(
    x: NDArray[np.float32], ids: NDArray[np.int32], marks: NDArray[np.uint8], m: np.float32, c: np.float32,
    factor: float, out: NDArray[np.float32],
) -> None:  # fmt: skip
    """`write_shares` of many `ids` [n] of the logits `x` [V], and 0 for all others; `marks` [V] are scratch."""
    warm.held_entries()[3](x, ids, marks, m, c, np.float32(factor), out)


def marked_mass(
    x: NDArray[np.float32], ids: NDArray[np.int32], marks: NDArray[np.uint8], c: np.float32, *, from_largest: bool,
    least: int,
) -> tuple[int, np.float32, bool]:  # fmt: skip
    """The integer mass of many `ids` int32 [n] of `x` float32 [V], m, and whether their logits are finite.

    m is the largest logit of all if `from_largest`, else, and where the mass is less than `least`, of the ids.
    `marks` [V] are scratch.
    """
    total, m, finite = warm.held_entries()[4](x, ids, marks, c, from_largest, least)
    return total, np.float32(m), finite


def _write_law(logits: NDArray[np.float32], rows: SamplingMetadata, r: int, out: NDArray[np.float64]) -> None:
    """The law of the row that this thread drew last; with XTC the mixture of both branches."""
    work, program = _scratch.of(logits.shape[1]), rows.programs[r]
    edited = 0 < program[0, 0] < FIRST_FILTER or rows.masks.size
    x = work.row if edited else logits[r]
    write = warm.law_entry()
    write(x, work.block_max, work.states, 0, out)
    xtc = np.flatnonzero(program[:, 0] == XTC)
    if not xtc.size:
        return
    other = np.zeros_like(out)
    write(x, work.block_max, work.states, 1, other)
    share = int(program[xtc[0], 1])
    on = uniform64(*_key(rows, r), Domain.XTC) >> 32 < share
    p = share / (1 << 32)
    off_law, on_law = (other, out) if on else (out, other)
    np.add((1.0 - p) * off_law, p * on_law, out=out)


def _key(rows: SamplingMetadata, r: int) -> tuple[int, int, int]:
    return int(rows.seeds[r]), int(rows.steps[r]), int(rows.samples[r])


def _results(out: Drawn) -> tuple[Any, ...]:
    return (
        out.token_ids,
        out.sampled_logprobs,
        out.support,
        out.status,
        out.logprobs,
        out.ranks,
        out.top_ids,
        out.top_logprobs,
        out.asked_logprobs,
    )


def _spread(work: Callable[[int, int], None], logits: NDArray[np.float32], threads: int | None) -> list[int]:
    """Call `work` for shares [lo, hi) of the rows, on several threads where there is enough to do; their bounds."""
    b = logits.shape[0]
    n = _threads if threads is None else threads
    if n <= 1 or b < 2 or (threads is None and logits.size < _SMALL):
        work(0, b)
        return [0, b]
    bounds = [b * t // n for t in range(n + 1)]
    waiting: list[Future[None]] = [
        _executor().submit(work, lo, hi) for lo, hi in itertools.pairwise(bounds[1:]) if hi > lo
    ]
    work(bounds[0], bounds[1])
    for future in waiting:
        future.result()
    return bounds


def _inputs(logits: NDArray[np.float32], rows: SamplingMetadata) -> tuple[Any, ...]:
    return (
        logits,
        rows.programs,
        rows.edit_ids,
        rows.edit_values,
        rows.count_start,
        rows.count_ids,
        rows.prompt_counts,
        rows.output_counts,
        rows.masks,
        rows.seeds,
        rows.steps,
        rows.samples,
        rows.views,
        rows.top_n,
        rows.asked_start,
        rows.asked_ids,
    )


def _share(arguments: tuple[Any, ...], lo: int, hi: int, results: tuple[Any, ...]) -> None:
    warm.entry()(*arguments, lo, hi, _scratch.of(arguments[0].shape[1]), *results)
