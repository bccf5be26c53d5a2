"""Hostile rows for the Triton kernels with an eta, p-less or top-n-sigma behind other cuts, whose sets may be large."""

from __future__ import annotations

import numpy as np
import torch
from random_rows import FILTERS, Pile, rows_of
from triton_jobs import SIZES, Job, _operands_at, _tiles, shaped_logits

from tirage import SamplingParams
from tirage.backends.torch import as_logits, triton
from tirage.exact import numbers
from tirage.operators import Operation
from tirage.operators.epsilon import EPSILON
from tirage.operators.eta import ETA
from tirage.operators.min_keep import FLOORED
from tirage.operators.min_p import MIN_P, MIN_P_LOGIT
from tirage.operators.p_less import P_LESS
from tirage.operators.temperature import TEMPERATURE
from tirage.operators.top_a import TOP_A
from tirage.operators.top_k import TOP_K
from tirage.operators.top_n_sigma import TOP_N_SIGMA
from tirage.operators.top_p import TOP_P
from tirage.operators.xtc import XTC, XTC_TIES_KEPT

BEHIND = {
    "top-p and eta": SamplingParams(top_p=0.95, eta_cutoff=3e-4),
    "top-p and p-less": SamplingParams(top_p=0.95, p_less="norm"),
    "min-p and eta": SamplingParams(min_p=0.02, eta_cutoff=3e-4),
    "epsilon and eta": SamplingParams(epsilon_cutoff=3e-5, eta_cutoff=3e-4),
    "top-k of 20,000 and eta": SamplingParams(top_k=20000, eta_cutoff=3e-4),
}
"""Requests with a threshold by sums of a set that another cut leaves, which may be large."""
COUNTED = 1000
"""Jobs from that number on have a top-k behind a top-n-sigma: see `counted_job`."""
_BEFORE = (TOP_P, TOP_P, TOP_K, MIN_P, EPSILON, TOP_A, FLOORED[TOP_P], FLOORED[MIN_P], MIN_P_LOGIT)
_BEHIND = (
    *6 * (None,),
    TEMPERATURE,
    TEMPERATURE,
    TOP_P,
    XTC,
    XTC_TIES_KEPT,
    TOP_K,
    MIN_P,
    EPSILON,
    ETA,
    P_LESS,
    FLOORED[TOP_P],
)


def behind_job(number: int, rows: int) -> Job:
    """One order of filters: one to three cuts that may leave many tokens, a threshold by sums of what is left, which
    mostly stands at a token, and mostly one more filter. Every other job rounds its logits."""
    if number >= COUNTED:
        return counted_job(number, rows)
    r = np.random.default_rng(number)
    size = (*SIZES[-7:], 600, 1500)[number % 9]
    logits = shaped_logits(r, rows, size, number)
    for row in logits:
        if r.random() < 0.7:
            row[:] = torch.from_numpy((r.choice([0.05, 0.3, 1.0, 2.0]) * r.standard_normal(size)).astype(np.float32))
    if number % 2:
        logits = (logits * 32).round() / float(r.choice([8, 32]))
    op = TOP_N_SIGMA if number % 10 == 9 else (ETA, P_LESS)[number // 2 % 2]
    while True:
        before = [_BEFORE[at] for at in r.permutation(len(_BEFORE))[: int(r.choice([1, 1, 2, 3]))]]
        behind = [each for at in r.permutation(len(_BEHIND))[:1] if (each := _BEHIND[at]) is not None]
        ops = [*([TEMPERATURE] if r.random() < 0.4 else []), *before]
        known = [(int(each), *FILTERS[each](r)) for each in (*ops, op, *behind)]
        if triton.supports(rows_of([known], r)).all():
            break
    programs = []
    for row in logits:
        begun = [(int(each), *_operands(each, size, r)) for each in ops]
        x = as_logits(row[None])[0].numpy()
        step = (int(op), *(_operands_at(x, begun, op, r) if r.random() < 0.6 else FILTERS[op](r)))
        programs.append([*begun, step, *((int(each), *FILTERS[each](r)) for each in behind)])
    return Job(logits=logits, rows=rows_of(programs, r, Pile(size)), tiles=_tiles(number, size))


def counted_job(number: int, rows: int) -> Job:
    """A top-n-sigma, and a top-k of about as many tokens as that leaves."""
    r, size = np.random.default_rng(number), (SIZES[-1], 600)[number % 2]
    spread = r.uniform(1, 20, (rows, 1)) * r.random((rows, size)) ** r.integers(1, 5, (rows, 1))
    logits = np.where(r.random((rows, 1)) < 0.5, spread, r.standard_normal((rows, size))).astype(np.float32)
    programs = []
    for row in logits:
        sigmas = float(r.choice([0.3, 0.5, 1.0, 1.5, 2.0]))
        left = int((row >= row.max() - sigmas * row.std()).sum())
        widest = (int(TOP_N_SIGMA), *numbers.scaled_fraction(sigmas))
        programs.append([widest, (int(TOP_K), max(1, left + int(r.integers(-1, 12))), 0)])
    return Job(logits=torch.from_numpy(logits), rows=rows_of(programs, r, Pile(size)), tiles=_tiles(number, size))


def _operands(op: Operation, size: int, r: np.random.Generator) -> tuple[int, ...]:
    """Operands of a filter, mostly such that it leaves many tokens."""
    known = FILTERS[op](r)
    if r.random() < 0.2:
        return known
    if op in (TOP_P, FLOORED[TOP_P]):
        return int(r.uniform(0.4, 1) ** 0.3 * 2**32), *known[1:]
    if op == TOP_K:
        return int(r.integers(size // 8, size + 2)), *known[1:]
    if op in (MIN_P, FLOORED[MIN_P]):
        return numbers.ratio_threshold(float(10.0 ** -r.uniform(0.1, 2))), *known[1:]
    if op == EPSILON:
        return numbers.scaled_fraction(float(r.uniform(0.2, 1) / size))
    return known
