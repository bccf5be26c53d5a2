"""The log-probability of a given token under a row's law, and its slope by each logit: what a policy gradient needs.

Which ids are kept follows from the logits as a draw reads them, or from a record of the draw; it has no slope. What is
differentiated is the law on these ids: penalties and temperature, the entropy that llama.cpp's dynamic temperature
follows, the weight that a truncated top-p leaves, the mixtures of XTC and of masks checked after the draw, and what
adaptive-p and watermarks make of the shares (`reweighting`). A law is a sum of products of quotients, and both parts of
a quotient are sums of weights, each times a constant. SPEC.md S-R5.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.backends.groups import taken
from tirage.backends.numpy import distribution
from tirage.backends.numpy.distribution import ONE, RowInput, request_of
from tirage.backends.numpy.plain import steps_of
from tirage.draw import Draw
from tirage.errors import ParamsError
from tirage.exact import numbers
from tirage.exact.keys import NEG_INF_KEY
from tirage.exact.weights import exponents, weights
from tirage.laws.edit_slopes import Doubles, Ids, RowSlopes, check_steps, edited_logits
from tirage.laws.reweighting import RULES as REWEIGHTS
from tirage.laws.reweighting import reweighted
from tirage.operators import Step
from tirage.operators.row import OK, RowState, mass
from tirage.operators.temperature import (
    DYNAMIC_TEMPERATURE,
    DYNAMIC_TEMPERATURE_LISTED,
    GREEDY,
    LEAST_FACTOR,
    TEMPERATURE,
)
from tirage.operators.top_p import RULES, TOP_P
from tirage.operators.typical import TYPICAL, TYPICAL_BY_RANK
from tirage.operators.xtc import COINS
from tirage.sampling_batch import SamplingBatch, SamplingRow
from tirage.sampling_metadata import SamplingMetadata, View
from tirage.token_records import TokenRecords

_UNLIKE_A_SOFTMAX = {GREEDY, DYNAMIC_TEMPERATURE, DYNAMIC_TEMPERATURE_LISTED, *COINS, *REWEIGHTS}
"""Filters after which a law is no softmax of what was there before them, at a temperature known in advance."""
LEAST_MASS = 1 << 30
"""Weights that sum to less are counted anew from the largest kept logit: they have too few bits."""


@dataclass(frozen=True, slots=True)
class TokenLaw:
    """ln of a token's probability, -inf outside the law and NaN in a row without one, and its slopes.

    `ids` int64 [n] are different tokens; `slopes` float64 [n] how `value` changes with their logits. `exact` is what a
    draw reports for the token, bit for bit; None where the ids are recorded ones that these logits would not keep.
    """

    value: float
    ids: Ids = field(default_factory=lambda: np.zeros(0, np.int64))
    slopes: Doubles = field(default_factory=lambda: np.zeros(0))
    exact: np.float32 | None = None

    @property
    def reported(self) -> np.float32:
        """`exact`, or `value` where it is None."""
        return np.float32(self.value) if self.exact is None else self.exact


# --- rows without mixtures: one quotient ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlainLaw:
    """A law that is a softmax over kept ids: float32 `c` and 1 / T, and whether m is the largest logit of all."""

    c: np.float32
    inverse_t: np.float32
    from_largest: bool
    filtered: bool
    edited: bool

    @classmethod
    def of(cls, steps: Sequence[Step]) -> PlainLaw | None:
        """The law of these steps; None for one that `mixed_law` has to find."""
        filters = [step for step in steps if step.op.is_filter]
        ops = [step.op.base for step in filters]
        if any(op in _UNLIKE_A_SOFTMAX for op in ops) or any(map(_truncates, filters)):
            return None
        at = next((i for i, op in enumerate(ops) if op == TEMPERATURE), -1)
        if at > 0 and {TYPICAL, TYPICAL_BY_RANK} & set(ops):
            return None
        c, inverse_t = numbers.temperature_constant(1.0), np.float32(1)
        if at >= 0:
            c, inverse_t = numbers.from_bits(filters[at].a), numbers.from_bits(filters[at].b)
        edited = any(not step.op.is_filter for step in steps)
        return cls(c, inverse_t, at <= 0, len(filters) > (at >= 0), edited)

    def exact(self, held: NDArray[np.float32], at: int, largest: np.float32) -> np.float32:
        """What a draw reports for the token at place `at` of the `held` logits float32 [n], those of the kept ids.

        They are edited ones, as is `largest`, the largest logit of the row. Rule S-L2.
        """
        m = largest if self.from_largest else held.max()
        total = mass(weights(exponents(held, m, self.c)))
        if total < LEAST_MASS:
            m = held.max()
            total = mass(weights(exponents(held, m, self.c)))
        return distribution.logprobs(held[at : at + 1], m, self.inverse_t, total)[0]

    def slopes(self, held: Doubles, at: int) -> tuple[float, Doubles]:
        """ln p of the token at place `at` of the `held` edited logits float64 [n], and its slopes by them [n]."""
        t = float(self.inverse_t)
        z = (held - held.max()) * t
        shares = np.exp(z)
        total = shares.sum()
        value = z[at] - np.log(total)
        shares *= -t / total
        shares[at] += t
        return float(value), shares


def _truncates(step: Step) -> bool:
    return step.op.base == TOP_P and RULES[step.b] == "truncated"


def exact_edits(request: RowInput) -> NDArray[np.float32]:
    """The logits float32 [V] of a row after its edits and its mask, with the bits of a draw."""
    edits = [step for step in request.steps if not step.op.is_filter]
    return RowInput(
        logits=request.logits, steps=edits, edit_ids=request.edit_ids, edit_values=request.edit_values,
        counts=request.counts, allowed=request.allowed,
    ).run(coin=False).x  # fmt: skip


def plain_law(law: PlainLaw, request: RowInput, logits: Doubles, token: int, kept: Ids) -> tuple[TokenLaw, np.float32]:
    """The law of a token among `kept` int64 [n] ascending from `logits` float64 [V], and what a draw would report."""
    at = int(np.searchsorted(kept, token))
    edited = edited_logits(request, logits)
    if at == kept.size or kept[at] != token or not np.isfinite(edited.x[token]):
        return TokenLaw(-np.inf), np.float32(-np.inf)
    x = exact_edits(request)
    value, slopes = law.slopes(edited.x[kept], at)
    return TokenLaw(value, *edited.by_model(kept, slopes)), law.exact(x[kept], at, x.max())


# --- any row: a mixture of quotients ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Truncation:
    """The token that a truncated top-p cut, `before` int64 it, what it judged int64, and the share p."""

    token: int
    before: Ids
    judged: Ids
    share: float


@dataclass(slots=True)
class Branch:
    """One pass over the steps: the finished row, the ids with weight (bool [V]), and what a top-p truncated.

    `listed` counts the tokens at -inf that are candidates where a dynamic temperature counts them (S-O9).
    """

    row: RowState
    held: NDArray[np.bool_]
    truncation: Truncation | None
    listed: int = 0

    @classmethod
    def of(cls, request: RowInput, *, coin: bool, check: bool) -> Branch:
        """The branch with XTC's coin and with, or without, the mask that counts only after a draw."""
        found: list[Truncation] = []
        ids: list[Ids] = []
        listed: list[int] = []

        def observe(step: Step, row: RowState) -> None:
            if not step.op.is_filter:
                return
            if step.op == DYNAMIC_TEMPERATURE_LISTED:
                listed.append(row.listed)
            # A token alone has all of the law, however little weight the share leaves it: of one that rounds to 0, 1.
            if _truncates(step) and row.trimmed is not None and row.ids.size > 1:
                entered = ids[-1] if ids else np.flatnonzero(row.key > NEG_INF_KEY)
                found.append(_truncation(step, row, row.base if step.d else entered))
            ids.append(row.ids)

        row = request.run(coin=coin, check=check, observe=observe)
        held = np.zeros(request.logits.size, bool)
        if row.status == OK:
            held[row.ids[row.w() > 0]] = True
        cut = found[0] if found and row.trimmed is not None and _is_cut(row) else None
        return cls(row, held, cut, sum(listed))

    def form(self, ids: NDArray[np.bool_]) -> Doubles:
        """The constants float64 [V] by which weights are multiplied to give the mass of the held ones of `ids`."""
        constants = (self.held & ids).astype(np.float64)
        cut = self.truncation
        if cut is not None and constants[cut.token]:
            constants[cut.token] = 0.0
            constants[cut.judged] += cut.share
            constants[cut.before] -= 1.0
        return constants


def _truncation(step: Step, row: RowState, judged: Ids) -> Truncation:
    assert row.trimmed is not None
    token = row.trimmed[0]
    key = row.key[row.ids]
    first = (key > row.key[token]) | ((key == row.key[token]) & (row.ids < token))
    return Truncation(token, row.ids[first], judged, step.a / ONE)


def _is_cut(row: RowState) -> bool:
    """Whether the last token of a truncated top-p lost weight at all."""
    assert row.trimmed is not None
    token, left = row.trimmed
    return left < int(weights(exponents(row.x[token : token + 1], row.m, row.c))[0])


@dataclass(frozen=True, slots=True)
class Quotient:
    """ln of one mass over another, and its slopes float64 [V] by edited logits."""

    value: float
    slopes: Doubles


def mixed_law(request: RowInput, logits: Doubles, token: int, kept: Ids | None) -> TokenLaw:
    """The law of a token of any row, in float64, from its `logits` float64 [V]; on recorded `kept` ids, or its own."""
    branches = _branches(request)
    if any(branch.row.status != OK for _, pair in branches for branch in pair):
        return TokenLaw(np.nan)
    if kept is not None:
        _freeze([branch for _, pair in branches for branch in pair], request, kept)
    edited = edited_logits(request, logits)
    terms = [term for share, pair in branches for term in _terms(request, edited, share, pair, token)]
    if not terms:
        return TokenLaw(-np.inf)
    values = np.array([sum(q.value for q in each) + share for share, each in terms])
    highest = values.max()
    if not np.isfinite(highest):
        return TokenLaw(-np.inf)
    parts = np.exp(values - highest)
    slopes = sum(part / parts.sum() * q.slopes for part, (_, each) in zip(parts, terms, strict=True) for q in each)
    _, slopes = edited.by_model(np.arange(edited.x.size), np.asarray(slopes))
    ids = np.flatnonzero(slopes)
    return TokenLaw(float(highest + np.log(parts.sum())), ids, slopes[ids])


def _branches(request: RowInput) -> list[tuple[float, list[Branch]]]:
    """(ln of how often it is taken, the branch and, where a mask counts after the draw, the one under it) of each."""
    checks = [True] if request.checked is None else [False, True]
    share = request.coin_share / ONE
    coins = [(coin, part) for coin, part in ((False, 1.0 - share), (True, share)) if part > 0.0]
    return [
        (float(np.log(part)), [Branch.of(request, coin=coin, check=check) for check in checks]) for coin, part in coins
    ]


def _freeze(branches: Sequence[Branch], request: RowInput, kept: Ids) -> None:
    """Has the branches hold the recorded ids, but for those that these logits give to other branches alone (S-R6)."""
    recorded = np.zeros(request.logits.size, bool)
    recorded[kept] = True
    legal = np.ones_like(recorded) if request.checked is None else request.checked
    union = np.logical_or.reduce([branch.held & legal for branch in branches])
    if np.array_equal(union, recorded):
        return
    for branch in branches:
        branch.truncation = None
        branch.held = (branch.held & ~legal) | (recorded & ~(union & ~branch.held))


def _terms(
    request: RowInput, edited: RowSlopes, share: float, pair: Sequence[Branch], token: int
) -> Iterator[tuple[float, list[Quotient]]]:
    """(ln of a constant, quotients) of the products whose sum is the token's probability in a branch."""
    one = np.zeros(request.logits.size, bool)
    one[token] = True
    free = pair[0]
    if free.held[token] and (request.checked is None or request.checked[token]):
        yield share, [_quotient(request, edited, free, one)]
    if request.checked is None:
        return
    rejected = free.held & ~request.checked
    if pair[1].held[token] and rejected.any():
        yield share, [_quotient(request, edited, free, rejected), _quotient(request, edited, pair[1], one)]


def _quotient(request: RowInput, edited: RowSlopes, branch: Branch, ids: NDArray[np.bool_]) -> Quotient:
    """The share of the mass of a branch that `ids`, bool [V], have."""
    t, moves = _inverse_temperature(request, edited, branch)
    # The difference first: large logits, and their products with 1 / T, have no bits left for what tells them apart.
    with np.errstate(invalid="ignore"):
        x = edited.x - edited.x[branch.held].max()
        z = x * t
    if branch.row.reweighted is not None:
        value, by_z = _reweighted_quotient(request, branch, z, ids)
    else:
        above, by_above = _log_mass(branch.form(ids), z)
        below, by_below = _log_mass(branch.form(np.ones_like(ids)), z)
        value, by_z = above - below, by_above - by_below
    slopes = by_z * t
    if moves is not None:
        some = by_z != 0
        slopes = slopes + (by_z[some] @ x[some]) * moves
    return Quotient(value, slopes)


def _reweighted_quotient(
    request: RowInput, branch: Branch, z: Doubles, ids: NDArray[np.bool_]
) -> tuple[float, Doubles]:
    """ln of the share of `ids`, bool [V], in a branch whose tokens were weighed anew, and its slopes by z [V]."""
    e = np.exp(z - z[z > -np.inf].max())
    kept, cut, place = np.flatnonzero(branch.held), branch.truncation, -1
    w = e[kept]
    if cut is not None and branch.held[cut.token]:
        place = int(np.searchsorted(kept, cut.token))
        w[place] = cut.share * e[cut.judged].sum() - e[cut.before].sum()
    shares = w / w.sum()
    after = reweighted(branch.row, request.steps, kept, shares)
    asked = ids[kept]
    found = float(after.shares[asked].sum())
    if found <= 0.0:
        return -np.inf, np.zeros(z.size)
    by_share = after.pull(asked / found)
    by_w = (by_share - by_share @ shares) / w.sum()
    slopes = np.zeros(z.size)
    slopes[kept] = by_w * e[kept]
    if cut is not None and place >= 0:
        slopes[cut.token] = 0.0
        slopes[cut.judged] += by_w[place] * cut.share * e[cut.judged]
        slopes[cut.before] -= by_w[place] * e[cut.before]
    return float(np.log(found)), slopes


def _log_mass(constants: Doubles, z: Doubles) -> tuple[float, Doubles]:
    """ln of the sum of weights e^z times constants, and its slopes by z, both [V]."""
    some = (constants != 0) & (z > -np.inf)
    slopes = np.zeros(z.size)
    if not some.any():
        return -np.inf, slopes
    highest = z[some].max()
    each = constants[some] * np.exp(z[some] - highest)
    total = max(each.sum(), float(np.finfo(np.float64).tiny))
    slopes[some] = each / total
    return float(highest + np.log(total)), slopes


def _inverse_temperature(request: RowInput, edited: RowSlopes, branch: Branch) -> tuple[float, Doubles | None]:
    """1 / T, and its slopes float64 [V] by edited logits where it follows their entropy (S-O9)."""
    row, dynamic = branch.row, {DYNAMIC_TEMPERATURE, DYNAMIC_TEMPERATURE_LISTED}
    step = next((step for step in request.steps if step.op in dynamic), None)
    if step is None or row.greedy or row.base.size < 2:
        return float(row.inverse_t), None
    x, most = edited.x[row.base], float(np.log(row.base.size + branch.listed))
    shares = np.exp(x - x.max())
    shares /= shares.sum()
    with np.errstate(divide="ignore"):
        logs = np.where(shares > 0, np.log(shares), 0.0)
    entropy = float(-(shares * logs).sum())
    if entropy <= 0.0:
        return float(row.inverse_t), None
    low, power = step.c / ONE, step.d / 2.0**step.e
    fraction = (entropy / most) ** power
    t, of_high = low + (1.0 - low) * fraction, float(numbers.from_bits(step.b))
    if t <= LEAST_FACTOR:
        return of_high / LEAST_FACTOR, None
    inverse = of_high / t
    by_entropy = (1.0 - low) * power * fraction / entropy
    moves = np.zeros(edited.x.size)
    moves[row.base] = -inverse / t * by_entropy * -shares * (logs + entropy)
    return inverse, moves


def exact_value(request: RowInput, token: int, kept: Ids | None) -> np.float32 | None:
    """What a draw reports for the token of any row [V]; None where recorded `kept` ids are not those of its own law."""
    result = distribution.outcome(request)
    if result.status != OK:
        return np.float32(np.nan)
    own = result.kept()
    if kept is not None and not np.array_equal(own, kept):
        return None
    if token not in own:
        return np.float32(-np.inf)
    return distribution.token_logprob(result, result.off, token)


# --- all rows of a call -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LawRequest:
    """The rows of a call, checked: what they ask, the tokens int64 [B], and the recorded ids of each row, or None."""

    rows: SamplingMetadata
    plain: list[PlainLaw | None]
    tokens: Ids
    kept: list[Ids] | None

    @classmethod
    def of(cls, batch: SamplingBatch, mask: NDArray[np.int32] | None, tokens: Any, kept: Any) -> LawRequest:
        """The request for `tokens` [B]; `kept` is a Draw, a pair (kept_ids, kept_offsets), or None.

        Raises ParamsError for tokens and records that do not fit the rows, and for what has no slope.
        """
        rows, size = batch.metadata(mask), batch.vocab_size
        laws: list[PlainLaw | None] = []
        for r in range(rows.count):
            steps = steps_of(rows.programs[r])
            check_steps(steps)
            laws.append(None if rows.resample[r] else PlainLaw.of(steps))
        ids = checked_tokens(tokens, rows.count, size)
        return cls(rows, laws, ids, None if kept is None else checked_kept(kept, ids, size))

    def drawn(self, which: Ids, vocab_size: int) -> SamplingMetadata:
        """The rows `which` [n] as they are drawn to find the ids that they keep and the logprobs of their tokens."""
        part, n = taken(self.rows, which), which.size
        wide = np.array([law is not None and law.filtered for law in self.plain], bool)[which]
        return replace(
            part,
            views=np.full(n, View.SAMPLED, np.int8),
            top_n=np.zeros(n, np.int32),
            asked_start=np.arange(n + 1, dtype=np.int64),
            asked_ids=self.tokens[which].astype(np.int32),
            records=TokenRecords.of(np.where(wide, vocab_size, 0)) if wide.any() else None,
            memo={},
        )

    def held_alone(self, which: Ids, places: Ids) -> SamplingMetadata:
        """The rows `which` [n], all plain, as draws from the logits of their recorded ids alone.

        What they report is the law of the tokens, which are at `places` [n] among these ids.
        """
        some = self.drawn(which, 0)
        programs = np.zeros_like(some.programs)
        for at, program in enumerate(some.programs):
            scales = program[program[:, 0] == TEMPERATURE]
            programs[at, : len(scales)] = scales
        return replace(some, programs=programs, asked_ids=places.astype(np.int32), records=None)

    def of_row(self, r: int, logits: NDArray[np.float32], doubles: Doubles, own: Ids | None) -> TokenLaw:
        """The law of the token of row `r`, from its logits [V] as float32 and as float64.

        `own` are the ids int64 [n] that it keeps where nothing is recorded and its law is plain. The value is what a
        draw would report wherever that is known.
        """
        request = request_of(logits[None], replace_row(self.rows, r), 0)
        token, law = int(self.tokens[r]), self.plain[r]
        kept = own if self.kept is None else self.kept[r]
        if law is not None:
            assert kept is not None
            found, exact = plain_law(law, request, doubles, token, kept)
        else:
            found, exact = mixed_law(request, doubles, token, kept), exact_value(request, token, kept)
        return found if exact is None else replace(found, exact=exact)


def law_batch(rows: Sequence[SamplingRow], vocab_size: int) -> SamplingBatch:
    """The packed rows of a call. Raises ParamsError for custom processors, which have no known slope."""
    batch = SamplingBatch.of(rows, vocab_size)
    if batch.processes is not None:
        raise ParamsError(
            "logits_processors must be empty in log_law, got some; their slope is not known: change the logits before"
        )
    return batch


def replace_row(rows: SamplingMetadata, r: int) -> SamplingMetadata:
    """The metadata of one row."""
    return taken(rows, np.array([r]))


def checked_tokens(tokens: Any, count: int, vocab_size: int) -> Ids:
    """The token ids as int64 [B]; ParamsError unless they are `count` integers in [0, V)."""
    ids = np.atleast_1d(_integers(tokens))
    if ids.shape != (count,) or ids.dtype.kind not in "iu":
        got = f"{ids.dtype} of shape {list(ids.shape)}"
        raise ParamsError(f"token_ids must be {count} integers, one for each row of logits, got {got}")
    for row in np.flatnonzero((ids < 0) | (ids >= vocab_size)).tolist():
        raise ParamsError(
            f"token_ids must lie in [0, {vocab_size}), got {int(ids[row])} in row {row}; leave rows without a token out"
        )
    return ids.astype(np.int64)


def _integers(values: Any) -> NDArray[Any]:
    """The values as an array; none, whose type nobody said, as integers."""
    array = np.asarray(values)
    return array if array.size else array.astype(np.int64)


def checked_kept(kept: Any, tokens: Ids, vocab_size: int) -> list[Ids]:
    """The recorded ids of each row, integers [n] each; ParamsError unless they fit the rows and hold their tokens."""
    pair = (kept.kept_ids, kept.kept_offsets) if isinstance(kept, Draw) else kept
    if not isinstance(pair, (tuple, list)) or len(pair) != 2 or pair[0] is None:
        raise ParamsError(
            "kept must be a Draw of rows with return_kept, or its (kept_ids, kept_offsets), "
            f"got {type(kept).__name__} without a record"
        )
    ids, offsets = map(_integers, pair)
    if ids.ndim != 1 or offsets.shape != (tokens.size + 1,) or {ids.dtype.kind, offsets.dtype.kind} - set("iu"):
        raise ParamsError(
            f"kept must have integers kept_ids [N] and kept_offsets [{tokens.size + 1}], got {list(ids.shape)} and "
            f"{list(offsets.shape)}"
        )
    if offsets[0] != 0 or offsets[-1] != ids.size or (np.diff(offsets) < 0).any():
        raise ParamsError(f"kept_offsets must ascend from 0 to the number of kept_ids, {ids.size}")
    each = [ids[a:b] for a, b in itertools.pairwise(offsets)]
    for row, (held, token) in enumerate(zip(each, tokens.tolist(), strict=True)):
        _check_held(held, token, row, vocab_size)
    return each


def _check_held(held: Ids, token: int, row: int, vocab_size: int) -> None:
    if held.size and (held[0] < 0 or held[-1] >= vocab_size or (held[1:] <= held[:-1]).any()):
        raise ParamsError(f"kept_ids must ascend within [0, {vocab_size}) in each row, got others in row {row}")
    at = np.searchsorted(held, token)
    if at == held.size or held[at] != token:
        raise ParamsError(f"kept_ids must hold the token of their row, got none of {token} in row {row}")
