"""From finished branches to the law, the token and the logprobs (S-W5, S-W6, S-L1 ... S-L5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from reference.arithmetic import (
    FLT_MAX,
    OCTAVE,
    constant,
    exponent,
    f32,
    key,
    ln_of,
    log2_of,
    share_32,
    uniform,
    weight,
)
from reference.branch import NOTHING, OK, Branch
from reference.row import filters_of, run
from tirage.params import SamplingParams
from tirage.semantics import resolve

DRAW, XTC, RESAMPLE = 0, 1, 4
POINTS = 2**63
NAN = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one row gives: the token or -1, and every number that a backend must reproduce exactly.

    `weights` are those of the branch the token was drawn from, `support` the ids that the whole law can give.
    `logprob`, `rank`, `top` ((id, logprob) pairs) and `given` are in the view of `logprobs_mode`.
    """

    token: int
    status: int
    support: tuple[int, ...] = ()
    weights: dict[int, int]
    chance: float | None = None
    sampled_logprob: float = NAN
    logprob: float = NAN
    rank: int = 0
    top: tuple[tuple[int, float], ...] = ()
    given: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ReferenceChain:
    """One pass over the stages; under check-then-resample a second, masked pass stands behind it."""

    first: Branch
    again: Branch | None
    forbidden: set[int]

    @property
    def status(self) -> int:
        return self.first.status or (self.again.status if self.again else OK)

    def law(self) -> dict[int, Fraction]:
        """Exact probability of each token."""
        law = _shares(self.first)
        if self.again is None:
            return law
        rejected = sum((p for t, p in law.items() if t in self.forbidden), Fraction(0))
        legal = {t: p for t, p in law.items() if t not in self.forbidden}
        return _sum(legal, {t: rejected * p for t, p in _shares(self.again).items()})

    def points(self) -> dict[int, int]:
        """The law in units of 2^-63, every product truncated (S-L4)."""
        points = {t: math.floor(p * POINTS) for t, p in _shares(self.first).items()}
        if self.again is None:
            return points
        rejected = sum((p for t, p in _shares(self.first).items() if t in self.forbidden), Fraction(0))
        legal = {t: p for t, p in points.items() if t not in self.forbidden}
        second = {t: math.floor(p * POINTS) for t, p in _shares(self.again).items()}
        return _sum(legal, {t: math.floor(rejected * POINTS) * p // POINTS for t, p in second.items()})

    def draw(self, seed: int, step: int, sample_index: int) -> tuple[int, Branch]:
        """The token, and the branch that it came from."""
        token = self.first.winner
        if token is None:
            token = pick(self.first.weights(), uniform(seed, step, sample_index, DRAW))
        if self.again is None or token not in self.forbidden:
            return token, self.first
        return pick(self.again.weights(), uniform(seed, step, sample_index, RESAMPLE)), self.again


@dataclass(frozen=True, slots=True)
class ReferenceOutcome:
    """The law of one row: without XTC, with it, and the coin's threshold in units of 2^-32."""

    params: SamplingParams
    logits: list[float]
    off: ReferenceChain
    on: ReferenceChain
    share: int

    @property
    def status(self) -> int:
        return self.off.status or self.on.status

    @property
    def mixed(self) -> bool:
        """Whether the law is a mixture, whose logprobs follow S-L4."""
        return self.share > 0 or self.off.again is not None

    def law(self) -> dict[int, Fraction]:
        """Exact probability of each token that can be drawn."""
        p = Fraction(self.share, 2**32)
        off = {t: (1 - p) * v for t, v in self.off.law().items()}
        both = _sum(off, {t: p * v for t, v in self.on.law().items()})
        return {t: v for t, v in both.items() if v}

    def points(self) -> dict[int, int]:
        """The law in units of 2^-63, at least one for every token that a branch can give (S-L4)."""
        if not self.share:
            return {t: p for t, p in self.off.points().items() if p}
        off, on = self.off.points(), self.on.points()
        mixed = _sum({t: p * (2**32 - self.share) for t, p in off.items()}, {t: p * self.share for t, p in on.items()})
        return {t: max(p // 2**32, 1) for t, p in mixed.items() if p}

    def draw(self, seed: int, step: int, sample_index: int) -> tuple[int, Branch]:
        """The token, and the branch that it came from, after the toss of XTC's coin (S-O8)."""
        tossed = self.share > uniform(seed, step, sample_index, XTC) // 2**32
        return (self.on if tossed else self.off).draw(seed, step, sample_index)


def pick(weights: dict[int, int], u: int) -> int:
    """First token, by id, whose running sum of weights exceeds floor(u * W / 2^64) (S-W5)."""
    r = u * sum(weights.values()) // 2**64
    for token in sorted(weights):
        r -= weights[token]
        if r < 0:
            return token
    raise ArithmeticError("the running sum reaches W, which exceeds every r")


def evaluate(
    logits: Sequence[float],
    params: SamplingParams,
    prompt_ids: Sequence[int] = (),
    output_ids: Sequence[int] = (),
    *,
    step: int | None = None,
    mask: Sequence[bool] | None = None,
    state: float | None = None,
) -> ReferenceOutcome:
    """The law of one row; `mask` holds one truth value per token, True = allowed."""
    semantics = resolve(params.semantics)
    x = [f32(float(v)) for v in logits]
    step = len(output_ids) if step is None else step
    outside = set() if params.allowed_token_ids is None else set(range(len(x))) - set(params.allowed_token_ids)
    forbidden = set() if mask is None else {t for t, allowed in enumerate(mask) if not allowed}
    resample = bool(forbidden) and semantics.mask_mode == "resample"

    def branch(taken: set[int], coin: bool) -> Branch:
        past = {"prompt": prompt_ids, "output": output_ids, "step": step, "state": state}
        return run(x, params, semantics, **past, forbidden=taken, coin=coin)

    def chain(coin: bool) -> ReferenceChain:
        full = branch(outside | forbidden, coin)
        return ReferenceChain(branch(outside, coin), full, forbidden) if resample else ReferenceChain(full, None, set())

    share = share_32(params.xtc_probability) if "xtc" in filters_of(params, semantics) else 0
    return ReferenceOutcome(params, x, chain(False), chain(share > 0), share)


def _shares(branch: Branch) -> dict[int, Fraction]:
    weights = branch.weights()
    total = sum(weights.values())
    return {t: Fraction(w, total) for t, w in weights.items() if w}


def _sum(a: dict, b: dict) -> dict:
    return {t: a.get(t, 0) + b.get(t, 0) for t in a.keys() | b.keys()}


# --- logprobs ---------------------------------------------------------------------------------------------------


def logprob(x: float, m: float, inverse_t: float, total: int) -> float:
    """ln of the probability of a logit `x`, binary32 (S-L2)."""
    if x == NOTHING:
        return NOTHING
    distance = min(f32(f32(m - x) * inverse_t), FLT_MAX)
    return 0.0 - f32(distance + ln_of(log2_of(total) - 40 * OCTAVE))


def sampled_view(result: ReferenceOutcome, branch: Branch) -> dict[int, float]:
    """Logprobs of the tokens of a branch, or of the whole mixture, under the law of the draw (S-L3, S-L4)."""
    if result.mixed:
        return {t: ln_of(log2_of(p) - 63 * OCTAVE) + 0.0 for t, p in result.points().items()}
    if branch.greedy:
        return dict.fromkeys(branch.ranked, 0.0)
    total = sum(branch.weights().values())
    if branch.near:
        return {t: ln_of(log2_of(w) - log2_of(total)) + 0.0 for t, w in branch.near.items() if w}
    view = {t: logprob(branch.x[t], branch.m, branch.inverse_t, total) for t in branch.ranked}
    return view | {t: ln_of(log2_of(w) - log2_of(total)) + 0.0 for t, w in branch.cut.items()}


def view_of(result: ReferenceOutcome) -> tuple[dict[int, float], dict[int, float]]:
    """The logprobs of a view, and the values by which it ranks its tokens (S-L5)."""
    branch = result.off.first
    if result.params.logprobs_mode == "sampled":
        view = sampled_view(result, branch)
        return view, view if result.mixed or branch.near else {t: branch.x[t] for t in view}
    raw = result.params.logprobs_mode == "raw"
    x = result.logits if raw else branch.x
    finite = {t: v for t, v in enumerate(x) if abs(v) < math.inf}
    c, inverse_t = (constant(1.0), 1.0) if raw or branch.greedy else (branch.c, branch.inverse_t)
    m = max(finite.values(), default=0.0) + 0.0
    total = sum(weight(exponent(v, m, c)) for v in finite.values())
    return {t: logprob(v, m, inverse_t, total) for t, v in finite.items()}, finite


def report(result: ReferenceOutcome, *, seed: int, step: int, sample_index: int) -> Result:
    """The Result of one draw from `result`."""
    if result.status != OK:
        return Result(token=-1, status=result.status, weights={}, given=(NAN,) * len(result.params.logprob_token_ids))
    token, branch = result.draw(seed, step, sample_index)
    params = result.params
    known = {
        "token": token,
        "status": OK,
        "support": tuple(sorted(result.law())),
        "weights": branch.weights(),
        "chance": branch.chance.get(token),
        "sampled_logprob": sampled_view(result, branch)[token],
    }
    if params.logprobs is None and not params.logprob_token_ids:
        return Result(**known)
    view, order = view_of(result)
    ranked = sorted(view, key=lambda t: (-key(order[t]), t))
    return Result(
        **known,
        logprob=view.get(token, NOTHING),
        rank=1 + sum(token not in view or key(order[t]) > key(order[token]) for t in view),
        top=tuple((t, view[t]) for t in ranked[: params.logprobs or 0]),
        given=tuple(view.get(t, NOTHING) for t in params.logprob_token_ids),
    )
