"""Rows over worker threads: each draws a contiguous share with scratch of its own, so the result is the same."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tirage.backends.numpy.kernels import warm
from tirage.draw import Status
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


@dataclass(frozen=True, slots=True)
class RecordRoom:
    """Where the kernels write the records of B rows, before it is known how many ids each holds.

    `limits` int64 [B] or [0]; `kept` int32 [B, widest], of which only what is written is ever touched; `numbers`
    float32 [B, 3]: ln of the mass, raw and processed logprob.
    """

    limits: NDArray[np.int64]
    kept: NDArray[np.int32]
    numbers: NDArray[np.float32]

    @classmethod
    def of(cls, rows: SamplingMetadata, vocab_size: int) -> RecordRoom:
        """Room for the records of `rows`; none where no row asks for one."""
        if rows.records is None:
            return _NO_ROOM
        limits = rows.records.limits
        kept = np.empty((limits.size, min(int(limits.max(initial=0)), vocab_size)), np.int32)
        return cls(limits, kept, np.full((limits.size, 3), np.nan, np.float32))

    @property
    def arrays(self) -> tuple[Any, ...]:
        """What the kernel takes."""
        return self.limits, self.kept, self.numbers

    def empty(self, records: TokenRecords, drawn: Drawn) -> None:
        """Hands over the records of the rows that have a token; those that are too wide for theirs lose it."""
        wide = drawn.status == Status.kept_too_wide
        drawn.token_ids[wide], drawn.support[wide], drawn.sampled_logprobs[wide] = -1, 0, np.nan
        drawn.top_logprobs[wide] = np.nan
        which = np.flatnonzero((self.limits > 0) & (drawn.status == Status.ok))
        for row, size in zip(which.tolist(), drawn.support[which].tolist(), strict=True):
            records.kept[row] = self.kept[row, :size]
        for at, name in enumerate(("logmass", "raw", "processed")):
            getattr(records, name)[which] = self.numbers[which, at]


_NO_ROOM = RecordRoom(np.zeros(0, np.int64), np.zeros((0, 0), np.int32), np.zeros((0, 0), np.float32))


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
    global _workers, _lock, _scratch
    _workers, _lock, _scratch = None, threading.Lock(), _Scratch()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def draw(logits: NDArray[np.float32], rows: SamplingMetadata, *, threads: int | None = None) -> Drawn:
    """The draw of B rows that `supports` accepts, equal bit for bit to the plain path's.

    `logits` float32 [B, V], C-contiguous, never written. `threads` overrides the number of threads. The kernels
    must be `ready()`.
    """
    out = Drawn.empty(rows, keep=True)
    room = RecordRoom.of(rows, logits.shape[1])
    arguments, results = _inputs(logits, rows), (*_results(out), *room.arrays)
    _spread(lambda lo, hi: _share(arguments, lo, hi, results), logits, threads)
    if rows.records is not None:
        room.empty(rows.records, out)
    return out


def single_draw(rows: SamplingMetadata, vocab_size: int) -> Callable[[NDArray[np.float32], int], tuple[int, float]]:
    """A function that draws the one row of `rows`, which has no view, again and again; for one thread at a time.

    It takes logits float32 [1, V], C-contiguous, and the Philox step, and gives the token, -1 for a bad row, with its
    log-probability. `supports` must accept the row, whose arrays must not change; the kernels must be `single_ready()`.
    """
    from tirage.backends.numpy.kernels import single

    entry, table = warm.single_entry(), np.zeros(single.WORDS, np.int64)
    step, token, logprob, status = (table[at : at + 1] for at in range(single.ARGUMENTS))
    out = replace(Drawn.empty(rows), token_ids=token, sampled_logprobs=logprob.view(np.float32)[:1])
    out.status = status.view(np.int8)[:1]
    fixed = _inputs(np.empty((1, vocab_size), np.float32), replace(rows, steps=step, memo={}))[1:]
    arguments = (*fixed, 0, 1, _scratch.of(vocab_size), *_results(out), *_NO_ROOM.arrays)
    single.fill(table, single.address_of(warm.entry()), arguments)

    def draw_next(logits: NDArray[np.float32], at: int) -> tuple[int, float]:
        # The table has the addresses of the arguments alone.
        assert arguments
        return entry(logits, at, table)

    return draw_next


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


def _spread(work: Callable[[int, int], None], logits: NDArray[np.float32], threads: int | None) -> None:
    """Call `work` for shares [lo, hi) of the rows, on several threads where there is enough to do."""
    b = logits.shape[0]
    n = _threads if threads is None else threads
    if n <= 1 or b < 2 or (threads is None and logits.size < _SMALL):
        work(0, b)
        return
    bounds = [b * t // n for t in range(n + 1)]
    waiting: list[Future[None]] = [
        _executor().submit(work, lo, hi) for lo, hi in itertools.pairwise(bounds[1:]) if hi > lo
    ]
    work(bounds[0], bounds[1])
    for future in waiting:
        future.result()


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
