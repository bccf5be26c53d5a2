"""From finished rows to what a draw reports: the token, its law, its logprobs (plain NumPy, one row).

A row is one list of steps, but XTC's coin and llama.cpp's check-then-resample make its law a mixture of two; here
is the only place that knows. SPEC.md rules S-W5, S-W6, S-L1 ... S-L5.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tirage.backends.numpy import plain
from tirage.backends.numpy.plain import Observer
from tirage.draw import Status
from tirage.errors import RowError
from tirage.exact import numbers
from tirage.exact.keys import FLT_MAX, NEG_INF_KEY, keys, value
from tirage.exact.logs import OCTAVE, ilog2, ln_fixed, log_mass
from tirage.exact.philox import Domain, uniform64
from tirage.exact.weights import exponents, weights
from tirage.history import Counts
from tirage.operators import Step
from tirage.operators.row import OK, PROCESSOR_FAILED, Process, RowState, mass
from tirage.operators.xtc import COINS
from tirage.sampling_metadata import Drawn, SamplingMetadata, View
from tirage.watermarks import gumbel

ONE = 1 << 32
_POINT = 63
"""Probabilities of a mixture are counted in units of 2^-63 (S-L4)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowInput:
    """What one row asks: its logits, its steps and everything they refer to.

    `allowed` is a hard mask; `checked` counts only when the token drawn without it is not in it.
    """

    logits: NDArray[np.float32]
    steps: Sequence[Step]
    edit_ids: NDArray[np.int32]
    edit_values: NDArray[np.float32]
    counts: Counts | None = None
    allowed: NDArray[np.bool_] | None = None
    checked: NDArray[np.bool_] | None = None
    protected: NDArray[np.int32] | None = None
    process: Process | None = None

    def run(self, *, coin: bool, check: bool = True, observe: Observer | None = None) -> RowState:
        """The finished Row, with XTC's coin forced, and with or without the mask that is `checked`."""
        x, taken = plain.start(self.logits, self._mask(check))
        row = RowState(
            x=x,
            masked=taken,
            counts=self.counts,
            edit_ids=self.edit_ids,
            edit_values=self.edit_values,
            process=self.process,
            coin=coin,
            protected=self.protected,
        )
        return plain.run(row, self.steps, observe)

    def _mask(self, check: bool) -> NDArray[np.bool_] | None:
        if self.checked is None or not check:
            return self.allowed
        return self.checked if self.allowed is None else self.allowed & self.checked

    @property
    def coin_share(self) -> int:
        """How often XTC is on, in units of 2^-32; 0 without XTC."""
        return next((step.a for step in self.steps if step.op.base in COINS), 0)


@dataclass(frozen=True, slots=True, eq=False)
class BranchLaw:
    """One pass over the steps: the row it left and, under check-then-resample, the masked row behind it."""

    row: RowState
    fallback: RowState | None = None
    checked: NDArray[np.bool_] | None = None

    @property
    def status(self) -> int:
        """0, or why nothing can be drawn; a chain without a legal token asks its fallback."""
        return self.row.status or (self.fallback.status if self.fallback is not None else OK)

    def draw(self, seed: int, step: int, sample: int) -> int:
        """The token of this seed, step and sample: inverse transform in token-id order (S-W5)."""
        return self.drawn(seed, step, sample)[0]

    def drawn(self, seed: int, step: int, sample: int) -> tuple[int, RowState]:
        """What `draw` gives, and the row that it was drawn from."""
        token = drawn(self.row, uniform64(seed, step, sample, Domain.DRAW))
        if self.fallback is None or self.checked is None or self.checked[token]:
            return token, self.row
        return _pick(self.fallback, uniform64(seed, step, sample, Domain.RESAMPLE)), self.fallback

    def points(self) -> dict[int, int]:
        """Probability of each token in the law, in units of 2^-63."""
        first = _points(self.row)
        if self.fallback is None or self.checked is None:
            return first
        legal = {t: p for t, p in first.items() if self.checked[t]}
        w = self.row.w()
        rejected = mass(w) - mass(w[self.checked[self.row.ids]])
        again = (rejected << _POINT) // mass(w)
        for token, p in _points(self.fallback).items():
            legal[token] = legal.get(token, 0) + (again * p >> _POINT)
        return legal

    def law(self, size: int) -> NDArray[np.float64]:
        """Probability of each token, float64 [V]: RN64(w) / RN64(W) on each branch (S-W6)."""
        law = np.zeros(size)
        w = self.row.w()
        law[self.row.ids] = w.astype(np.float64) / np.float64(mass(w))
        if self.fallback is None or self.checked is None:
            return law
        law[~self.checked] = 0.0
        kept = mass(w[self.checked[self.row.ids]])
        again = np.float64(mass(w) - kept) / np.float64(mass(w))
        w = self.fallback.w()
        law[self.fallback.ids] += again * (w.astype(np.float64) / np.float64(mass(w)))
        return law


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """The law of one row: the chain without XTC, the chain with it, and how often each is taken."""

    request: RowInput
    off: BranchLaw
    on: BranchLaw | None
    share: int

    @property
    def status(self) -> int:
        return self.off.status or (self.on.status if self.on is not None else OK)

    def chain(self, seed: int, step: int, sample: int) -> BranchLaw:
        """The branch that the XTC coin of this seed, step and sample takes (S-O8)."""
        if self.on is None:
            return self.off
        return self.on if uniform64(seed, step, sample, Domain.XTC) >> 32 < self.share else self.off

    def law(self) -> NDArray[np.float64]:
        """Probability of each token under the rules the draw uses, float64 [V]; NaN for a bad row."""
        size = self.request.logits.size
        if self.status != OK:
            return np.full(size, np.nan)
        law = self.off.law(size)
        if self.on is None:
            return law
        p = self.share / ONE
        return (1.0 - p) * law + p * self.on.law(size)

    @property
    def mixed(self) -> bool:
        """True when the law is a mixture of branches."""
        return self.on is not None or self.off.fallback is not None

    def points(self) -> dict[int, int]:
        """Probability of each token that can be drawn, in units of 2^-63 (S-L4)."""
        off = self.off.points()
        if self.on is None:
            return {t: p for t, p in off.items() if p}
        on = self.on.points()
        mix = {t: off.get(t, 0) * (ONE - self.share) + on.get(t, 0) * self.share >> 32 for t in off.keys() | on.keys()}
        possible = {t: p for t, p in off.items() if p and self.share < ONE} | {t: p for t, p in on.items() if p}
        return {t: max(mix[t], 1) for t in possible}

    def kept(self) -> NDArray[np.int32]:
        """The ids int32 [n] of the tokens that can be drawn, ascending (S-R1)."""
        row = self.off.row
        return np.array(sorted(self.points()) if self.mixed else row.ids[row.w() > 0], np.int32)

    def logmass(self, kept: NDArray[np.int32]) -> np.float32:
        """ln of the share that `kept` int32 [n] hold of the set that the last temperature stage saw (S-R2)."""
        row = self.off.row
        if row.greedy and not self.mixed:
            return np.float32(0)
        seen = weights(exponents(row.x[row.base], row.m, row.c))
        apart = self.mixed or row.reweighted is not None
        held = seen[np.isin(row.base, kept)] if apart else row.w()
        return ln_fixed(ilog2(max(mass(held), 1)) - ilog2(mass(seen))) + np.float32(0)


def outcome(request: RowInput) -> Distribution:
    """The law of `request`, ready to draw from."""
    share = request.coin_share
    off = _chain(request, coin=False)
    if not share or off.status != OK:
        return Distribution(request, off, None, 0)
    return Distribution(request, off, _chain(request, coin=True), share)


def _chain(request: RowInput, *, coin: bool) -> BranchLaw:
    if request.checked is None:
        return BranchLaw(request.run(coin=coin))
    return BranchLaw(request.run(coin=coin, check=False), request.run(coin=coin), request.checked)


def drawn(row: RowState, u: int) -> int:
    """The token of a row: that of its uniform, or under a watermark by races the first of the keyed race (S-M5)."""
    if row.race is None:
        return _pick(row, u)
    key, context = row.race
    keyed = gumbel.uniforms(key, np.array([context], np.uint64), row.ids)
    return int(row.ids[gumbel.first(keyed, row.w())])


def _pick(row: RowState, u: int) -> int:
    reached = np.cumsum(row.w())
    r = u * int(reached[-1]) >> 64
    return int(row.ids[np.searchsorted(reached, np.uint64(r), side="right")])


def _points(row: RowState) -> dict[int, int]:
    w = row.w()
    total = mass(w)
    return {int(t): (int(wi) << _POINT) // total for t, wi in zip(row.ids, w, strict=True) if wi}


# --- logprobs -----------------------------------------------------------------------------------------------


def logprobs(x: NDArray[np.float32], m: np.float32, inverse_t: np.float32, total: int) -> NDArray[np.float32]:
    """ln p of each logit, float32 [V]: -(min((m - x) / T, FLT_MAX) + ln Z), -inf for -inf. Rule S-L2."""
    with np.errstate(over="ignore"):
        distance = np.minimum((m - x) * inverse_t, FLT_MAX)
    return np.where(x == -np.inf, np.float32(-np.inf), np.float32(0) - (distance + log_mass(total))).astype(np.float32)


def token_logprob(result: Distribution, chain: BranchLaw, token: int) -> np.float32:
    """ln of the probability with which `token` is drawn, under the whole law of the row (S-L3, S-L4)."""
    if result.mixed:
        return ln_fixed(ilog2(result.points()[token]) - _POINT * OCTAVE) + np.float32(0)
    at = int(np.searchsorted(chain.row.ids, token))
    if chain.row.reweighted is not None:
        return _share_logprob(int(chain.row.reweighted[at]), mass(chain.row.reweighted))
    return _row_logprobs(chain.row)[at]


def _row_logprobs(row: RowState) -> NDArray[np.float32]:
    """Logprobs of the tokens still in, under the law of this branch."""
    if row.greedy:
        return np.zeros(row.ids.size, np.float32)
    total = mass(row.w())
    if row.reweighted is not None:
        return np.array([_share_logprob(int(w), total) for w in row.reweighted], np.float32)
    lp = logprobs(row.x[row.ids], row.m, row.inverse_t, total)
    if row.trimmed is not None:
        token, left = row.trimmed
        lp[np.searchsorted(row.ids, token)] = ln_fixed(ilog2(left) - ilog2(total)) + np.float32(0)
    return lp


def _share_logprob(w: int, total: int) -> np.float32:
    """ln of the share of a weight that a watermark left; -inf for none (S-M6)."""
    return ln_fixed(ilog2(w) - ilog2(total)) + np.float32(0) if w else np.float32(-np.inf)


def view_logprobs(result: Distribution, view: int) -> NDArray[np.float32]:
    """Logprobs of every token in one view, float32 [V]; -inf outside it (S-L5)."""
    row = result.off.row
    if view == View.SAMPLED:
        return _sampled_view(result)
    x = _raw(result) if view == View.RAW else row.x
    if not (x > -np.inf).any():
        return np.full(x.size, -np.inf, np.float32)
    raw_or_greedy = view == View.RAW or row.greedy
    c, inverse_t = (numbers.temperature_constant(1.0), np.float32(1)) if raw_or_greedy else (row.c, row.inverse_t)
    m = value(keys(x).max())
    return logprobs(x, m, inverse_t, mass(weights(exponents(x, m, c))))


def _raw(result: Distribution) -> NDArray[np.float32]:
    """The model's own logits; a non-finite one that a mask made harmless counts as -inf."""
    x = result.request.logits
    return np.where(np.isfinite(x), x, np.float32(-np.inf))


def _sampled_view(result: Distribution) -> NDArray[np.float32]:
    lp = np.full(result.request.logits.size, -np.inf, np.float32)
    if result.mixed:
        for token, p in result.points().items():
            lp[token] = ln_fixed(ilog2(p) - _POINT * OCTAVE) + np.float32(0)
    else:
        lp[result.off.row.ids] = _row_logprobs(result.off.row)
    return lp


def _view_keys(result: Distribution, view: int, lp: NDArray[np.float32]) -> NDArray[np.int32]:
    """What a view ranks by: its logits' keys, restricted to the tokens it holds."""
    x = _raw(result) if view == View.RAW else result.off.row.x
    if view == View.SAMPLED and (result.mixed or result.off.row.reweighted is not None):
        return keys(lp)
    return np.where(lp == -np.inf, np.int32(NEG_INF_KEY), keys(x))


# --- rows of a batch ----------------------------------------------------------------------------------------


def draw_row(result: Distribution, rows: SamplingMetadata, r: int, out: Drawn) -> None:
    """Draw row `r` of `rows` from its law and write everything it asked for into `out`."""
    clear(rows, r, out, result.status)
    if result.status != OK:
        return
    key = int(rows.seeds[r]), int(rows.steps[r]), int(rows.samples[r])
    chain = result.chain(*key)
    token, source = chain.drawn(*key)
    if rows.chances is not None and source.chances is not None:
        rows.chances[r] = source.chances[np.searchsorted(source.ids, token)]
    limit = 0 if rows.records is None else int(rows.records.limits[r])
    kept = result.kept() if limit or result.mixed else None
    support = int((chain.row.w() > 0).sum()) if kept is None else kept.size
    if limit and support > limit:
        clear(rows, r, out, Status.kept_too_wide)
        return
    out.token_ids[r] = token
    out.sampled_logprobs[r] = token_logprob(result, chain, token)
    out.support[r] = support
    if limit and rows.records is not None and kept is not None:
        raw, processed = (view_logprobs(result, view)[token] for view in (View.RAW, View.PROCESSED))
        rows.records.put(r, kept=kept, logmass=result.logmass(kept), raw=raw, processed=processed)
    if rows.views[r] != View.NONE:
        _report_view(result, rows, r, token, out)


def clear(rows: SamplingMetadata, r: int, out: Drawn, status: int) -> None:
    """Write `status` and what a row reports when it has no token, or asked for nothing."""
    asked = slice(int(rows.asked_start[r]), int(rows.asked_start[r + 1]))
    out.status[r] = status
    out.token_ids[r], out.support[r], out.ranks[r], out.top_ids[r] = -1, 0, 0, -1
    out.sampled_logprobs[r] = out.logprobs[r] = out.asked_logprobs[asked] = np.nan
    out.top_logprobs[r] = -np.inf if status == OK else np.nan


def _report_view(result: Distribution, rows: SamplingMetadata, r: int, token: int, out: Drawn) -> None:
    view = int(rows.views[r])
    lp = view_logprobs(result, view)
    key = _view_keys(result, view, lp)
    out.logprobs[r] = lp[token]
    out.ranks[r] = 1 + int((key > key[token]).sum())
    candidates = np.flatnonzero(key > NEG_INF_KEY)
    top = candidates[np.argsort(-key[candidates].astype(np.int64), kind="stable")][: rows.top_n[r]]
    out.top_ids[r, : top.size] = top
    out.top_logprobs[r, : top.size] = lp[top]
    asked = slice(int(rows.asked_start[r]), int(rows.asked_start[r + 1]))
    out.asked_logprobs[asked] = lp[rows.asked_ids[asked]]


def request_of(logits: NDArray[np.float32], rows: SamplingMetadata, r: int, process: Process | None = None) -> RowInput:
    """Row `r` of the logits [B, V] and of their metadata as a RowInput."""
    counted = slice(int(rows.count_start[r]), int(rows.count_start[r + 1]))
    protected = rows.protected_ids[rows.protected_start[r] : rows.protected_start[r + 1]]
    return RowInput(
        logits=logits[r],
        steps=plain.steps_of(rows.programs[r]),
        edit_ids=rows.edit_ids,
        edit_values=rows.edit_values,
        counts=Counts(np.stack([rows.count_ids[counted], rows.prompt_counts[counted], rows.output_counts[counted]])),
        allowed=unpacked(rows.masks[r], logits.shape[1]) if rows.masks.size else None,
        checked=unpacked(rows.checks[r], logits.shape[1]) if rows.resample[r] else None,
        protected=protected if protected.size else None,
        process=process,
    )


def unpacked(words: NDArray[np.int32], size: int) -> NDArray[np.bool_]:
    """A bitmask row, int32 words with the least significant bit first, as bool [size]."""
    return np.unpackbits(np.ascontiguousarray(words).view(np.uint8), bitorder="little")[:size].astype(bool)


def draw(
    logits: NDArray[np.float32],
    rows: SamplingMetadata,
    out: Drawn,
    *,
    which: Iterable[int] | None = None,
    processes: Sequence[Process | None] | None = None,
) -> Drawn:
    """`out`, with the rows `which` (default all) of logits [B, V] drawn into it; a failing processor ends its row."""
    for r in range(rows.count) if which is None else which:
        process = None if processes is None else processes[r]
        try:
            result = outcome(request_of(logits, rows, r, process))
        except RowError as error:
            _tell(r, str(error))
            clear(rows, r, out, Status.processor_failed)
        else:
            if result.status == PROCESSOR_FAILED:
                _tell(r, "a logits processor returned NaN or +inf")
            draw_row(result, rows, r, out)
    return out


def _tell(r: int, reason: str) -> None:
    # Most programs never get here, and to import it takes longer than a small draw.
    import logging

    logging.getLogger("tirage").warning("row %d has no token: %s", r, reason)
