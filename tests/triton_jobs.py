"""Hostile rows for the Triton kernels: random programs, and ones made for a bound of the kernels.

Imported by a process that runs under TRITON_INTERPRET.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from curved_rows import around_tail, clustered, falling, program_with_tail
from numpy.typing import NDArray
from preset_rows import requests, states
from random_rows import EDGES, FILTERS, SHAPES, Pile, logits_rows, random_filters, rows_of, varied
from tied_rows import TIED_SETS, tied_rows
from top_h_rows import programs_with_top_h
from typical_rows import programs_with_typical, share_at_level

from tirage.backends.numpy import distribution
from tirage.backends.torch import as_logits, kernels, plan, triton
from tirage.exact import numbers
from tirage.exact.keys import FLT_MAX, cleaned
from tirage.operators import OPERATORS, Operation, Step
from tirage.operators.adaptive_p import ADAPTIVE_P
from tirage.operators.epsilon import EPSILON
from tirage.operators.eta import ETA
from tirage.operators.min_keep import FLOORED
from tirage.operators.min_p import MIN_P
from tirage.operators.p_less import P_LESS
from tirage.operators.row import Process, RowState, mass, mean_exponent
from tirage.operators.smoothing import SMOOTH
from tirage.operators.temperature import DYNAMIC_TEMPERATURE, DYNAMIC_TEMPERATURE_LISTED, TEMPERATURE
from tirage.operators.top_h import TOP_H
from tirage.operators.top_k import TOP_K
from tirage.operators.top_n_sigma import TOP_N_SIGMA
from tirage.operators.top_p import RULES, TOP_P
from tirage.operators.typical import TYPICAL, TYPICAL_BY_RANK
from tirage.operators.xtc import XTC, XTC_TIES_KEPT
from tirage.sampling_batch import SamplingBatch
from tirage.sampling_metadata import SamplingMetadata
from tirage.semantics import PRESETS

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 50, 63, 64, 65, 97, 128, 200, 257, 300)
TILES = ((4, 8), (16, 32), (8, 4), (16, 64), (64, 128))
"""Pairs of BLOCK and TILE: several of both in most rows, and vocabularies on either side of their bounds."""
MOST_FILTERS = 3
"""Filters of a random program, and perhaps an end: one more makes several times as many ways through the kernels."""
FURTHER = 1000
FURTHER_OPS = (DYNAMIC_TEMPERATURE, DYNAMIC_TEMPERATURE_LISTED, XTC, XTC_TIES_KEPT)
"""Filters that do not only keep a prefix, one of which jobs from that number on have."""
SQUARES = (0.0, 0.3, 2.0, 1e-30, 1e30, 0.01)
"""Coefficients of smoothing."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TIED = 2000
"""Jobs from that number on have rows with most tokens at one logit: see `tied_job`."""
DOUBTFUL = 3000
"""Jobs from that number on have a top-p that cuts where the mass of the row is in doubt: see `doubtful_job`."""
ON_EDGE = 4000
"""Jobs from that number on have a threshold by sums over the row that stands at a token: see `summed_job`."""
APART = 5000
"""Jobs from that number on have a threshold far below the cut behind it: see `apart_job`."""
LEVELED = 6000
"""Jobs of sets from that number on have a typical before any other filter: see `leveled_job`."""
CURVED = 9000
"""Jobs of sets from that number on have a tail-free step: see `curved_job`."""
HEADED = 9500
"""Those from that number on have rows with a head: see `curved_job`."""
UNEDITED = 8000
"""Jobs of sets from that number on have no mask, and no edit but a smoothing."""
FEW_REMOVED, SHARPER = 6000, 6500
"""Jobs from these numbers on have filters that remove few tokens, or none: see `few_removed_job`."""
TEMPERED = 7000
"""Jobs from that number on have an XTC before a temperature: see `tempered_job`."""
SPARING = 8000
"""Jobs from that number on have an XTC that spares tokens: see `sparing_job`."""
FIRST = 8500
"""Jobs from that number on have a top-h: see `first_job`."""
WITHIN = 9800
"""Jobs from that number on have a top-k or a top-h within what wider cuts keep: see `within_job`."""
BY_LEVELS = 10000
"""Jobs from that number on have a typical that passes over split blocks draw: see `level_job`."""
FAR_BELOW = (-1e10, -65504.0, float(np.finfo(np.float32).min), -100.0, -3e38)
"""Logits that stand for forbidden tokens elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Rows to draw: logits [B, V] of some dtype, and the sizes of the kernels' blocks and tiles."""

    logits: torch.Tensor
    rows: SamplingMetadata
    processes: tuple[Process | None, ...] | None = None
    tiles: tuple[int, int]


def program_job(number: int, rows: int) -> Job:
    """One random order of the kernels' filters, with other operands, edits and a mask in each row."""
    if number >= BY_LEVELS:
        return level_job(number, rows)
    if number >= WITHIN:
        return within_job(number, rows)
    if number >= FIRST:
        return first_job(number, rows)
    if number >= SPARING:
        return sparing_job(number, rows)
    if number >= TEMPERED:
        return tempered_job(number, rows)
    if number >= FEW_REMOVED:
        return few_removed_job(number, rows)
    if number >= APART:
        return apart_job(number, rows)
    if number >= ON_EDGE:
        return summed_job(number, rows)
    if number >= DOUBTFUL:
        return doubtful_job(number, rows)
    if number >= TIED:
        return tied_job(number, rows)
    r = np.random.default_rng(number)
    size, program = SIZES[number % len(SIZES)], _filters(r, number)
    pile, programs = Pile(size), []
    for _ in range(rows):
        pile.history(r)
        programs.append((pile.edits(r) if r.random() < 0.3 else []) + varied(program, r, options=True))
    masks = r.integers(-(2**31), 2**31, (rows, -(-size // 32))).astype(np.int32)
    masks[r.random(rows) < 0.7] = -1
    return Job(
        logits=shaped_logits(r, rows, size, number),
        rows=rows_of(programs, r, pile, masks=masks),
        tiles=_tiles(number, size),
    )


def _filters(r: np.random.Generator, number: int) -> list[tuple[int, ...]]:
    """Filters that the kernels run together: from job `FURTHER` on, among them one of `FURTHER_OPS`."""
    if number < FURTHER:
        return random_filters(r, set(kernels.FILTERS).difference(FURTHER_OPS, [TOP_H]), most=MOST_FILTERS)
    while True:
        program = random_filters(r, set(kernels.FILTERS) - {TOP_H}, most=MOST_FILTERS)
        if {step[0] for step in program}.intersection(FURTHER_OPS) and triton.supports(rows_of([program], r)).all():
            return program


def set_job(number: int, rows: int) -> Job:
    """One random order of all filters, with other operands, edits and a mask in each row."""
    if number >= TIED_SETS:
        logits, programs = tied_rows(number, rows, 300, r := np.random.default_rng(number))
        return Job(logits=torch.from_numpy(logits), rows=rows_of(programs, r, Pile(300)), tiles=(16, 32))
    if LEVELED <= number < UNEDITED or number >= CURVED:
        return (curved_job if number >= CURVED else leveled_job)(number, rows)
    r = np.random.default_rng(number)
    size, program = SIZES[number % len(SIZES)], random_filters(r, plan.SETS, most=MOST_FILTERS)
    # It gives new weights and takes no token away: nothing may follow.
    program.sort(key=lambda step: step[0] == ADAPTIVE_P)
    pile, programs = Pile(size), []
    for _ in range(rows):
        pile.history(r)
        edits = pile.edits(r) if r.random() < 0.3 and number < UNEDITED else []
        if r.random() < 0.3:
            smoothing = int(SMOOTH), *(numbers.bits(np.float32(r.choice(SQUARES))) for _ in range(2))
            edits.insert(int(r.integers(len(edits) + 1)), smoothing)
        programs.append(edits + varied(program, r, options=True))
    masks = r.integers(-(2**31), 2**31, (rows, -(-size // 32))).astype(np.int32)
    masks[r.random(rows) < 0.7] = -1
    packed = rows_of(programs, r, pile, masks=masks if number < UNEDITED else masks[:0])
    return Job(
        logits=shaped_logits(r, rows, size, number),
        rows=replace(packed, **_spared(packed, size, r)),
        tiles=TILES[number % len(TILES)],
    )


def _spared(rows: SamplingMetadata, size: int, r: np.random.Generator) -> dict[str, NDArray]:
    """Tokens that XTC never removes, in half of the rows that have it."""
    has_coin = np.isin(rows.programs[:, :, 0], plan._COINS).any(axis=1) & (r.random(rows.count) < 0.5)
    flags = has_coin[:, None] & (r.random((rows.count, size)) < r.choice([0.05, 0.5], rows.count)[:, None])
    start = np.concatenate([[0], np.cumsum(flags.sum(1))]).astype(np.int64)
    return {"protected_start": start, "protected_ids": np.nonzero(flags)[1].astype(np.int32)}


def _tiles(number: int, size: int) -> tuple[int, int]:
    """Blocks and tiles for so many logits: each number of tiles that a row's list has is a way of its own."""
    block, tile = TILES[number % len(TILES)]
    return block, max(tile, 1 << (size // 8).bit_length())


def tied_job(number: int, rows: int) -> Job:
    """A top-k that parts the ties that most tokens are, and then an epsilon near the weight of a token above them.

    The histogram tells the mass that the top-k leaves only between far bounds.
    """
    r, size = np.random.default_rng(number), SIZES[-1 - number % 4]
    logits, programs = np.zeros((rows, size), np.float32), []
    for row in logits:
        second, k = float(r.uniform(0.1, 0.6)), int(r.integers(size // 4, size))
        row[r.choice(size, 2, replace=False)] = second, math.log(2)
        weight = math.exp(second)
        share = (weight if r.random() < 0.5 else r.uniform(1, 2)) / (2 + weight + k - 2)
        programs.append([(int(TOP_K), k, 0), (int(EPSILON), *numbers.scaled_fraction(share))])
    return Job(logits=torch.from_numpy(logits), rows=rows_of(programs, r, Pile(size)), tiles=_tiles(number, size))


def doubtful_job(number: int, rows: int) -> Job:
    """A top-p that ends close to a bound between two of a few likely tokens; all others lie in blocks of their own.

    The histogram tells nearly nothing of where it ends, as what the others weigh is known but for a small share.
    """
    r, size = np.random.default_rng(number), SIZES[-1 - number % 4]
    logits, programs = -6 - 3 * r.random((rows, size)), []
    for row in logits:
        row[: r.integers(2, 5)] = r.random()
        row[0] += r.random()
        reached = np.cumsum(np.sort(np.exp(row))[::-1])
        share = reached[r.integers(1, 3)] / reached[-1] * (1 + r.uniform(-1, 1) * 2.0 ** -r.integers(15, 24))
        programs.append([(int(TOP_P), int(share * 2**32), *FILTERS[TOP_P](r)[1:3], 0)])
    x = torch.from_numpy(logits.astype(np.float32))
    return Job(logits=x, rows=rows_of(programs, r, Pile(size)), tiles=_tiles(number, size))


def apart_job(number: int, rows: int) -> Job:
    """A min-p or top-n-sigma, or both, far below the cut of a top-p, on which a top-k or an epsilon may follow.

    A good part of the mass stands between them, and logits that are rounded tie at either cut.
    """
    r, size = np.random.default_rng(number), SIZES[-1 - number % 4]
    behind = (TOP_P, TOP_K, EPSILON)[number % 3]
    logits, programs = np.empty((rows, size), np.float32), []
    for row in logits:
        row[:] = np.linspace(r.uniform(2, 6), 0, size) if r.random() < 0.5 else r.uniform(1, 4) * r.random(size)
        row[:] = row if r.random() < 0.5 else np.round(row * 8) / 8
        least = (int(MIN_P), numbers.ratio_threshold(float(r.uniform(0.01, 0.3))))
        widest = (int(TOP_N_SIGMA), *numbers.scaled_fraction(float(r.uniform(1, 3))))
        steps = [least, widest][:: 1 if r.random() < 0.5 else -1][: 1 + number % 2]
        share = int(r.uniform(0.1, 0.7) * 2**32)
        steps.append((int(TOP_P), share, *FILTERS[TOP_P](r)[1:3], int(r.random() < 0.2)))
        programs.append([*steps, (int(behind), *FILTERS[behind](r))])
    return Job(
        logits=torch.from_numpy(r.permuted(logits, axis=1)),
        rows=rows_of(programs, r, Pile(size)),
        tiles=_tiles(number, size),
    )


def few_removed_job(number: int, rows: int) -> Job:
    """A top-k, min-p or epsilon near the last tokens, which may remove none, then a dynamic temperature and a top-p.

    Some rows have a min-p behind that, which may keep fewer tokens than the top-p. From job `SHARPER` on all have one
    that removes none at T = 1, but may at that temperature.
    """
    r, size = np.random.default_rng(number), SIZES[-1 - number % 4]
    logits, programs = r.uniform(1, 6, (rows, 1)) * r.random((rows, size)), []
    for row in logits:
        row[r.random(size) < r.choice([0.0, 0.3])] = -math.inf
        row[:] = row if r.random() < 0.5 else np.round(row * 8) / 8
        last = np.sort(row[row > -math.inf])[int(r.integers(3))]
        share = math.exp(last - row.max()) * (1 + r.uniform(-1, 1) * 2.0 ** -r.integers(4, 24))
        mass = float(np.exp(row - row.max()).sum())
        first = (
            (int(TOP_K), int((row > -math.inf).sum()) + int(r.integers(-2, 3)), 0),
            (int(MIN_P), numbers.ratio_threshold(min(share, 1.0))),
            (int(EPSILON), *numbers.scaled_fraction(min(share / mass, 0.99))),
        )[number % 3]
        top_p = (int(TOP_P), int(r.uniform(0.1, 1) * 2**32), *FILTERS[TOP_P](r)[1:3], 0)
        behind = [(int(MIN_P), numbers.ratio_threshold(float(r.uniform(0.1, 0.9))))] if r.random() < 0.5 else []
        temperature = float(r.choice([0.5, 1.0]))
        if number >= SHARPER:
            reach, temperature = float(row.max() - row[row > -math.inf].min()), 0.5
            behind = [(int(MIN_P), numbers.ratio_threshold(math.exp(-reach * r.uniform(1, 1.6))))]
            top_p = (int(TOP_P), int(r.uniform(0.95, 1) * 2**32), *top_p[2:])
        programs.append([first, _dynamic(temperature, 0.4), top_p, *behind])
    return Job(
        logits=torch.from_numpy(logits.astype(np.float32)),
        rows=rows_of(programs, r, Pile(size)),
        tiles=_tiles(number, size),
    )


def tempered_job(number: int, rows: int) -> Job:
    """An XTC whose threshold mostly stands at a token, then a temperature, which counts from what the XTC leaves.

    Most have other filters before it, and every other job rounds its logits.
    """
    r, size = np.random.default_rng(number), SIZES[number % len(SIZES)]
    logits = shaped_logits(r, rows, size, number)
    logits = logits if number % 2 else (logits * 4).round() / 4
    cuts = [op for op in (TOP_K, TOP_P, MIN_P, EPSILON) if r.random() < 0.3]
    cuts = [FLOORED[op] if op in FLOORED and r.random() < 0.3 else op for op in cuts]
    ops, op = [TEMPERATURE, *cuts][int(r.random() < 0.7) :], (XTC, XTC_TIES_KEPT)[number // 2 % 2]
    programs = []
    for row in logits:
        before = [(int(each), *FILTERS[each](r)) for each in ops]
        share, *operands = FILTERS[op](r)
        part = _share_of_one(as_logits(row[None])[0].numpy(), before, r) if r.random() < 0.7 else None
        if part is not None:
            operands[:2] = numbers.scaled_fraction(part)
        coin = int(r.choice([share, int(0.3 * 2**32), 1 << 32]))
        programs.append([*before, (int(op), coin, *operands), (int(TEMPERATURE), *FILTERS[TEMPERATURE](r))])
    return Job(logits=logits, rows=rows_of(programs, r, Pile(size)), tiles=_tiles(number, size))


def sparing_job(number: int, rows: int) -> Job:
    """The same in which XTC spares a few tokens, half of them, or all; in two of three jobs no temperature follows."""
    r, job = np.random.default_rng(number), tempered_job(number, rows)
    programs = job.rows.programs.copy()
    if number % 3:
        at = np.argmax(np.isin(programs[:, :, 0], (XTC, XTC_TIES_KEPT)), axis=1) + 1
        programs[np.arange(rows), at] = 0
    return sparing(replace(job, rows=replace(job.rows, programs=programs)), r)


def sparing(job: Job, r: np.random.Generator) -> Job:
    """The same job, of each of whose rows XTC spares no token, a few, half of them, or all."""
    rows, size = job.logits.shape
    part = r.choice([0.0, 0.05, 0.5, 1.0], (rows, 1))
    flags = r.random((rows, size)) < part
    packed = replace(
        job.rows,
        protected_start=np.concatenate([[0], np.cumsum(flags.sum(1))]).astype(np.int64),
        protected_ids=np.nonzero(flags)[1].astype(np.int32),
    )
    return replace(job, rows=packed)


def first_job(number: int, rows: int) -> Job:
    """A top-h alone, or among other filters; most rows have more tokens than it looks at."""
    r = np.random.default_rng(number)
    size = SIZES[number % len(SIZES)] if number % 3 == 0 else (*SIZES[-4:], 600)[number // 3 % 5]
    logits = shaped_logits(r, rows, size, number)
    packed = rows_of(programs_with_top_h(logits, r, alone=number % 5 == 0), r, Pile(size))
    return Job(logits=logits, rows=replace(packed, **_spared(packed, size, r)), tiles=_tiles(number, size))


def within_job(number: int, rows: int) -> Job:
    """One to three cuts, a top-k of few tokens or a top-h, and mostly one more step; half have a temperature before it.

    In most rows a few tokens lie far above the others, a cut leaves a part of these, and no token that the top-k or the
    top-h looks at lies there.
    """
    r, size = np.random.default_rng(number), (*SIZES[-4:], 600)[number % 5]
    behind = (TOP_P, None, DYNAMIC_TEMPERATURE, XTC, MIN_P, TEMPERATURE)[number // 2 % 6]
    cuts = r.choice((TOP_P, EPSILON, ETA, TOP_N_SIGMA, FLOORED[TOP_P]), int(r.integers(3)), replace=False)
    logits, programs = shaped_logits(r, rows, size, number), []
    for row in logits:
        if r.random() < 0.7:
            row[:] = torch.from_numpy(r.permutation(np.r_[r.random(10), r.normal(-3.5, 0.5, size - 10)])).to(row.dtype)
        few = (int(TOP_H), *FILTERS[TOP_H](r)) if number % 2 else (int(TOP_K), int(r.integers(1, 25)), 0)
        least = int(MIN_P), numbers.ratio_threshold(float(r.uniform(0.01, 0.05)))
        steps = [least, *((int(op), *FILTERS[op](r)) for op in cuts), few]
        if r.random() < 0.5:
            steps.insert(int(r.integers(1, len(steps))), (int(TEMPERATURE), *FILTERS[TEMPERATURE](r)))
        if behind is TOP_P:
            steps.append((int(TOP_P), int(r.uniform(0.05, 0.5) * 2**32), *FILTERS[TOP_P](r)[1:3], 1))
        elif behind is not None:
            steps.append((int(behind), *FILTERS[behind](r)))
        programs.append(steps)
    return Job(logits=logits, rows=rows_of(programs, r, Pile(size)), tiles=_tiles(number, size))


def headed_job(number: int, rows: int) -> Job:
    """A top-k within the likeliest tokens, which tie and mostly are among the first of the row, and an XTC of what it
    leaves: all of it has one key, and is only counted where the histogram has a lane for that.

    XTC spares tokens in every other job.
    """
    r, size = np.random.default_rng(number), SIZES[-1 - number % 7]
    logits, programs = r.uniform(1, 6, (rows, size)), []
    for row in logits:
        ties = int(r.integers(2, 7))
        row[r.choice(8 if r.random() < 0.7 else size, ties, replace=False)] = 8
        op = (XTC, XTC_TIES_KEPT)[int(r.random() < 0.2)]
        coin = int(r.choice([int(0.3 * 2**32), 1 << 32]))
        top_k = int(TOP_K), int(r.integers(2, ties + 1)), 0
        programs.append([top_k, (int(op), coin, *numbers.scaled_fraction(0.1), 0)])
    x = torch.from_numpy(logits.astype(np.float32))
    job = Job(logits=x, rows=rows_of(programs, r, Pile(size)), tiles=_tiles(number, size))
    return sparing(job, r) if number % 2 else job


def _share_of_one(x: np.ndarray, begun: list[tuple[int, ...]], r: np.random.Generator) -> float | None:
    """The share of the mass, at most 0.5, that a token has of the set that steps leave of logits [V], or a little more
    or less; None where no token can be drawn."""
    given = distribution.request_of(x[None], rows_of([begun], r), 0)
    with np.errstate(all="ignore"):
        row = given.run(coin=False)
    if row.status:
        return None
    w = row.w()
    return min(int(r.choice(w)) / mass(w) * (1 + r.choice([-1, 0, 0, 1]) * 2.0 ** -r.integers(20, 40)), 0.5)


def summed_job(number: int, rows: int, *, alone: bool = False) -> Job:
    """An eta, p-less or top-n-sigma whose threshold is the number of one token, or 1 less, where an operand tells it.

    Some rows have a few logits far below all others, and most have another filter behind, unless it is to be `alone`.
    """
    r, size = np.random.default_rng(number), SIZES[number % len(SIZES)]
    op = (ETA, P_LESS, TOP_N_SIGMA)[number % 3]
    rest = () if alone else random_filters(r, set(plan.CUTS) - {TOP_H}, most=2)
    logits, programs = shaped_logits(r, rows, size, number), []
    for row in logits:
        if r.random() < 0.3:
            row[r.choice(size, min(size, int(r.integers(1, 4))), replace=False)] = float(r.choice(FAR_BELOW))
        begun = [(int(TEMPERATURE), *FILTERS[TEMPERATURE](r))] if r.random() < 0.5 else []
        x = as_logits(row[None])[0].numpy()
        programs.append([*begun, (int(op), *_operands_at(x, begun, op, r)), *varied([*rest], r, options=True)])
    return Job(logits=logits, rows=rows_of(programs, r, Pile(size)), tiles=_tiles(number, size))


def leveled_job(number: int, rows: int) -> Job:
    """A typical of the whole row whose mass is mostly that of the nearest tokens up to one of them, or a little more.

    Some rows have a few logits far below all others, and most have other filters behind.
    """
    r, size = np.random.default_rng(number), SIZES[number % len(SIZES)]
    op, rest = (TYPICAL, TYPICAL_BY_RANK)[number % 2], random_filters(r, set(plan.SETS) - {ADAPTIVE_P}, most=2)
    logits, programs = shaped_logits(r, rows, size, number), []
    for row in logits:
        if r.random() < 0.3:
            row[r.choice(size, min(size, int(r.integers(1, 4))), replace=False)] = float(r.choice(FAR_BELOW))
        begun = [(int(TEMPERATURE), *FILTERS[TEMPERATURE](r))] if r.random() < 0.5 else []
        share, exceed = FILTERS[op](r)
        if r.random() < 0.7:
            share = share_at_level(as_logits(row[None])[0].numpy(), begun, r) or share
        programs.append([*begun, (int(op), share, exceed), *varied(rest, r, options=True)])
    return Job(logits=logits, rows=rows_of(programs, r, Pile(size)), tiles=_tiles(number, size))


def level_job(number: int, rows: int) -> Job:
    """A typical that is the only cut, or behind a top-k. Every other job rounds its logits: some tie at either end."""
    r, size = np.random.default_rng(number), SIZES[number % len(SIZES)]
    logits = shaped_logits(r, rows, size, number)
    if number % 2:
        logits = (logits * float(r.choice([1, 4, 32]))).round() / 4
    programs = programs_with_typical(logits, number // 2, r, far=FAR_BELOW[1:4])
    return Job(logits=logits, rows=rows_of(programs, r, Pile(size)), tiles=_tiles(number, size))


def curved_job(number: int, rows: int) -> Job:
    """A tail-free step, mostly of the whole row, whose share of the curvature is mostly that up to one rank, or less.

    From job `HEADED` on, rows are longer, and fall off so far that their first tokens may tell where they are cut.
    """
    r, early = np.random.default_rng(number), number >= HEADED
    size = (200, 300, 500, 700)[number % 4] if early else (*SIZES, 700, 1500)[number % 25]
    before, behind = around_tail(r, early=early)
    logits, programs = shaped_logits(r, rows, size, number), []
    for row in logits:
        if r.random() < (0.9 if early else 0.6):
            row[:] = torch.from_numpy((falling if early else clustered)(r, size)).to(row.dtype)
        programs.append(program_with_tail(as_logits(row[None])[0].numpy(), before, behind, r, early=early))
    tiles = ((16, 32), (16, 64), (64, 128))[number % 3] if early else TILES[number % 7 % len(TILES)]
    return Job(logits=logits, rows=rows_of(programs, r, Pile(size)), tiles=tiles)


def _operands_at(x: np.ndarray, begun: list[tuple[int, ...]], op: Operation, r: np.random.Generator) -> tuple[int, ...]:
    """Operands of a filter of logits [V] at the bound of one of them; random ones where nothing tells them."""
    given = distribution.request_of(x[None], rows_of([begun], r), 0)
    with np.errstate(all="ignore"):
        row = given.run(coin=False)
    if row.status or op is P_LESS:
        return FILTERS[op](r)
    at, w = int(r.integers(row.ids.size)), row.w()
    if op is ETA:
        exponent = int(row.q()[at]) - mean_exponent(row.q(), w) - int(r.integers(2))
        share = max(min(int(w[at]) / mass(w), 0.99), 1e-30) if r.random() < 0.3 else 1e-30
        return *numbers.scaled_fraction(share), max(exponent, 0)
    v, deviation = deviation_of(row.x[row.ids], row.m)
    if not deviation or not v[at]:
        return FILTERS[op](r)
    part = (int(v[at]) << 64) // deviation
    shift = 31 - (part.bit_length() - 64)
    e = -(-(int(v[at]) << shift + 1) // deviation) - int(r.integers(2))
    return (e, shift) if 2**31 <= e < 2**32 and shift >= 0 else FILTERS[op](r)


def deviation_of(x: np.ndarray, m: np.float32) -> tuple[np.ndarray, int]:
    """(distances of logits [n] from the largest of them, twice their standard deviation), as top-n-sigma has them."""
    with np.errstate(over="ignore"):
        distance = cleaned(np.minimum(m - x, FLT_MAX))
    shift = 29 - (math.frexp(float(distance.max()))[1] - 1)
    v = np.ldexp(distance.astype(np.float64), shift).astype(np.int64)
    squares = sum(each * each for each in v.tolist())
    return v, math.isqrt((v.size * squares - int(v.sum()) ** 2) // v.size**2 << 2)


def _dynamic(t: float, reach: float) -> tuple[int, ...]:
    """The step of a dynamic temperature."""
    step = OPERATORS["temperature"].lower(
        temperature=t, dynatemp_range=reach, dynatemp_exponent=1.0, temperature_floor=None, entropy_count="candidates"
    )
    assert isinstance(step, Step)
    return int(step.op), *step.operands


def likely_job(number: int, rows: int) -> Job:
    """A top-p behind a dynamic temperature, of logits whose histogram is coarse where most of the mass is."""
    r, size = np.random.default_rng(number), SIZES[-1 - number % 4]
    programs = []
    for _ in range(rows):
        programs.append([
            _dynamic(float(r.choice([0.11, 0.15, 0.25])), 0.1),
            (int(TOP_P), int(r.integers(1 << 30, 1 << 32)), *FILTERS[TOP_P](r)[1:3], 0),
        ])
    octaves = np.where(r.random((rows, size)) < 0.05, 3 * r.random((rows, size)), 38 + r.random((rows, size)))
    logits = torch.from_numpy((-math.log(2) * octaves).astype(np.float32))
    return Job(logits=logits, rows=rows_of(programs, r, Pile(size)), tiles=_tiles(number, size))


def second_job(number: int, rows: int) -> Job:
    """A temperature that stands behind a filter, mostly behind one that removes little, and a top-p behind it.

    Half of the rows have logits whose histogram is coarse where most of the mass is, and XTC or a min-p may follow.
    """
    r, size = np.random.default_rng(number), SIZES[-1 - number % 7]
    first, behind = (TOP_K, MIN_P, EPSILON, TOP_P)[number % 4], (None, XTC, MIN_P, XTC_TIES_KEPT, None)[number % 5]
    logits = shaped_logits(r, rows, size, 0).numpy()
    octaves = np.where(r.random((rows, size)) < 0.05, 3 * r.random((rows, size)), 38 + r.random((rows, size)))
    is_coarse, programs = r.random(rows) < 0.5, []
    logits[is_coarse] = (-math.log(2) * octaves[is_coarse]).astype(np.float32)
    for _ in range(rows):
        weak = {TOP_K: (size, 0), MIN_P: (numbers.ratio_threshold(1e-30),), EPSILON: (1 << 31, 130)}
        operands = weak[first] if first in weak and r.random() < 0.7 else FILTERS[first](r)
        temperature = (int(TEMPERATURE), *FILTERS[TEMPERATURE](r))
        if r.random() < 0.5:
            t = float(r.choice([0.11, 0.15, 0.25]))
            factors = numbers.temperature_constant(t), numbers.reciprocal(t)
            temperature = (int(TEMPERATURE), *(numbers.bits(factor) for factor in factors))
        rule = int(behind is None and r.random() < 0.2) * RULES.index("truncated")
        top_p = (int(TOP_P), int(r.integers(1 << 29, 1 << 32)), rule or int(r.integers(2)), int(r.integers(2)), 0)
        last = [] if behind is None else [(int(behind), *FILTERS[behind](r))]
        programs.append([(int(first), *operands), temperature, top_p, *last])
    return Job(logits=torch.from_numpy(logits), rows=rows_of(programs, r, Pile(size)), tiles=_tiles(number, size))


def preset_job(number: int, times: int) -> Job:
    """Every parameter of a preset at each of its values, with and without logprobs, over so many logits."""
    r = np.random.default_rng(number)
    semantics = PRESETS[sorted(PRESETS)[number % len(PRESETS)]]
    params = [params for params in requests(semantics) for _ in range(times)]
    size = (33, 97)[number // len(PRESETS) % 2]
    batch = SamplingBatch.of(states(params, size), size)
    packed = batch.metadata(None)
    seeds = r.integers(-(2**63), 2**63 - 1, len(params))
    return Job(
        logits=shaped_logits(r, len(params), size, number),
        rows=replace(packed, seeds=seeds),
        processes=batch.processes,
        tiles=TILES[number % len(TILES)],
    )


def bound_job(number: int, rows: int) -> Job:
    """The same as `program_job`, where the share of a top-p and the uniform stand at the bound of a token.

    The uniform, the row's seed here, is the least that draws a token, or the one below.
    """
    r, job = np.random.default_rng(number), program_job(number, rows)
    x, programs = as_logits(job.logits).numpy(), job.rows.programs.copy()
    seeds = np.zeros(rows, np.uint64)
    for row in range(rows):
        request = distribution.request_of(x, job.rows, row)
        steps = list(request.steps)
        for at, step in enumerate(steps):
            if step.op == TOP_P:
                before = replace(request, steps=steps[:at]).run(coin=False)
                programs[row, at, 1] = _share_at_bound(before, r) if before.status == 0 else step.a
                steps[at] = step._replace(a=int(programs[row, at, 1]))
        seeds[row] = _uniform_at_bound(replace(request, steps=steps).run(coin=False), r)
    return replace(job, rows=replace(job.rows, programs=programs, seeds=seeds.view(np.int64)))


def _share_at_bound(row: RowState, r: np.random.Generator) -> int:
    """A share of top-p, in units of 2^-32, whose part of the row's mass is a prefix's mass and less than 1 above it.

    Where there is none, one just above or below a prefix's mass.
    """
    reached = r.permutation(np.cumsum(row.w()[row.ranked()])).tolist()
    total = max(reached)
    for part in reached:
        share = (((part + 1) << 32) - 1) // total
        if share * total > part << 32 and share < 1 << 32:
            return share
    return min(max(-(-(reached[0] << 32) // total) - int(r.integers(2)), 1), (1 << 32) - 1)


def _uniform_at_bound(row: RowState, r: np.random.Generator) -> int:
    if row.status:
        return 0
    reached = np.cumsum(row.w())
    least = -(-(int(r.choice(reached)) << 64) // int(reached[-1]))
    return min(max(least - int(r.integers(2)), 0), (1 << 64) - 1)


def shaped_logits(r: np.random.Generator, rows: int, size: int, number: int) -> torch.Tensor:
    """Logits [rows, size] of mixed shapes; the number of the job says which dtype."""
    logits = torch.from_numpy(logits_rows(r, rows, size, SHAPES | EDGES))
    return logits.to(DTYPES[number % len(DTYPES)])
