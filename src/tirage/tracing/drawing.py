"""From the finished row to the token: the throws and the coin, in the integers that decided."""

from __future__ import annotations

import numpy as np

from tirage.backends.numpy.distribution import BranchLaw, Distribution, drawn
from tirage.exact.philox import Domain, uniform64
from tirage.operators.row import RowState
from tirage.sampling_batch import SamplingRow
from tirage.tracing.records import Interval, UniformDraw, XtcFlag
from tirage.tracing.texts import TokenTexts

_NEIGHBOURS = 2


def throws(chain: BranchLaw, state: SamplingRow, texts: TokenTexts) -> tuple[UniformDraw, ...]:
    """Every throw of a row that has a token: two when the mask refused the token of the first."""
    first = _throw(chain.row, state, Domain.DRAW, texts)
    token = first.hit.token.token_id
    if chain.fallback is None or chain.checked is None or chain.checked[token]:
        return (first,)
    refused = _throw(chain.row, state, Domain.DRAW, texts, accepted=False)
    return refused, _throw(chain.fallback, state, Domain.RESAMPLE, texts)


def _throw(
    row: RowState, state: SamplingRow, domain: Domain, texts: TokenTexts, *, accepted: bool = True
) -> UniformDraw:
    w = row.w()
    ids, ends = row.ids[w > 0], np.cumsum(w[w > 0])
    total, keyed = int(ends[-1]), row.race is not None and domain == Domain.DRAW
    uniform = 0 if keyed else uniform64(state.seed, state.at, state.sample_index, domain)
    target = uniform * total >> 64
    at = int(np.searchsorted(ends, np.uint64(target), side="right"))
    if keyed:
        at = int(np.searchsorted(ids, drawn(row, uniform)))
        target = int(ends[at - 1]) if at else 0

    def interval(i: int) -> Interval:
        return Interval(token=texts.token(int(ids[i])), start=int(ends[i - 1]) if i else 0, end=int(ends[i]))

    around = range(max(at - _NEIGHBOURS, 0), min(at + _NEIGHBOURS + 1, ids.size))
    return UniformDraw(
        domain=domain.name.lower(),
        total=total,
        uniform=uniform,
        target=target,
        hit=interval(at),
        neighbours=tuple(interval(i) for i in around),
        greedy=row.greedy,
        accepted=accepted,
        keyed=keyed,
    )


def coin(result: Distribution, state: SamplingRow) -> XtcFlag | None:
    """XTC's coin, or None for a row that throws none."""
    if result.on is None:
        return None
    value = uniform64(state.seed, state.at, state.sample_index, Domain.XTC) >> 32
    return XtcFlag(value=value, threshold=result.share)
