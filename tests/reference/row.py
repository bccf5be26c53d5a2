"""One branch of one row: edits, then filters, in the order that the semantics lists (S-P, S-O)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from reference import past
from reference.arithmetic import (
    FLT_MAX,
    LIMIT,
    OCTAVE,
    at_least,
    constant,
    exponent,
    f32,
    half_neglog2,
    key,
    log2_of,
    neglog2,
    reciprocal,
    settle,
    share_32,
    tiny,
    weight,
)
from tirage.params import FIELDS, SamplingParams
from tirage.processors import Past, find_processor
from tirage.semantics import EDITS, FILTERS, Semantics

OK, NON_FINITE, NO_TOKEN, PROCESSOR_FAILED = 0, 1, 2, 4
NOTHING = -math.inf


@dataclass(slots=True, kw_only=True)
class Branch:
    """The tokens still in, `ranked` by (key descending, id ascending), and what gives them their weight.

    `seen` is the set that entered the last temperature stage (or the first filter); `cut` the weight that a truncated
    top-p left to its crossing token. `listed` counts the tokens at -inf that no filter took from llama.cpp's list of
    candidates. `greedy` says that a law is one-hot by T = 0.
    """

    params: SamplingParams
    semantics: Semantics
    x: list[float]
    coin: bool
    status: int = OK
    ranked: list[int] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)
    m: float = 0.0
    c: float = constant(1.0)
    inverse_t: float = 1.0
    cut: dict[int, int] = field(default_factory=dict)
    listed: int = 0
    greedy: bool = False

    def q(self, token: int) -> int:
        return exponent(self.x[token], self.m, self.c)

    def w(self, token: int) -> int:
        return self.cut.get(token, weight(self.q(token)))

    def weights(self) -> dict[int, int]:
        """Weight of each token still in; the total is the sum."""
        return {t: 2**40 if self.greedy else self.w(t) for t in self.ranked}

    def mass(self, tokens: Sequence[int]) -> int:
        return sum(self.w(t) for t in tokens)

    def mean_q(self) -> int:
        """floor(sum(w q) / sum(w)) over the tokens still in."""
        return sum(self.w(t) * self.q(t) for t in self.ranked) // self.mass(self.ranked)

    def rebase(self) -> None:
        """Weights are relative to the largest logit among the tokens that enter here."""
        self.seen = list(self.ranked)
        self.m = self.x[self.ranked[0]] + 0.0


def run(
    logits: Sequence[float],
    params: SamplingParams,
    semantics: Semantics,
    *,
    prompt: Sequence[int],
    output: Sequence[int],
    step: int,
    forbidden: set[int],
    coin: bool,
) -> Branch:
    """The Branch after all stages, with XTC's coin given and the tokens of `forbidden` masked."""
    masks = forbidden | past.banned_tokens(params, semantics, prompt, output, step)
    row = Branch(params=params, semantics=semantics, x=list(logits), coin=coin)
    _mask(row, masks)
    for stage in semantics.stages:
        if stage in EDITS and row.status == OK:
            _EDITS.get(stage, _no_edit)(row, prompt, output)
            if stage == "processors":
                _mask(row, masks)
                row.status = PROCESSOR_FAILED if row.status == NON_FINITE else row.status
    if row.status == OK:
        _enter(row)
    if row.status == OK:
        _filter(row)
    return row


def _mask(row: Branch, masks: set[int]) -> None:
    """Forbidden tokens become -inf; NaN or +inf in any other makes the row bad (S-N5)."""
    for token in masks:
        row.x[token] = NOTHING
    if not all(v < math.inf for v in row.x):
        row.status = NON_FINITE


def _enter(row: Branch) -> None:
    candidates = [t for t, v in enumerate(row.x) if v > NOTHING]
    row.ranked = sorted(candidates, key=lambda t: (-key(row.x[t]), t))
    row.listed = len(row.x) - len(candidates)
    if candidates:
        row.rebase()
    else:
        row.status = NO_TOKEN


# --- edits ------------------------------------------------------------------------------------------------------


def _change(row: Branch, token: int, formula: Callable[[float], float]) -> None:
    if row.x[token] != NOTHING:
        row.x[token] = settle(formula(tiny(row.x[token])))


def _no_edit(row: Branch, prompt: Sequence[int], output: Sequence[int]) -> None:
    """n-gram bans are hard masks, which were applied already."""


def _bias(row: Branch, prompt: Sequence[int], output: Sequence[int]) -> None:
    for token, bias in dict(row.params.logit_bias or {}).items():
        if bias != NOTHING:
            amount = tiny(f32(bias))
            _change(row, token, lambda v, amount=amount: f32(v + amount))


def _repetition(row: Branch, prompt: Sequence[int], output: Sequence[int]) -> None:
    r = f32(row.params.repetition_penalty)
    if row.params.repetition_penalty == 1.0:
        return
    for token in past.counted(row.semantics.repetition_history, row.semantics.penalty_window, prompt, output):
        _change(row, token, lambda v: min(f32(v * (reciprocal(r) if v > 0 else r)), FLT_MAX))


def _frequency(row: Branch, prompt: Sequence[int], output: Sequence[int]) -> None:
    f = tiny(past.frequency_penalty(row.params, row.semantics, len(prompt) + len(output)))
    counts = past.counted(row.semantics.frequency_history, row.semantics.penalty_window, prompt, output)
    if row.params.frequency_penalty:
        for token, n in counts.items():
            _change(row, token, lambda v, n=n: f32(v - min(f32(f * f32(n)), FLT_MAX)))


def _presence(row: Branch, prompt: Sequence[int], output: Sequence[int]) -> None:
    penalty = tiny(f32(row.params.presence_penalty))
    if row.params.presence_penalty:
        for token in past.counted(row.semantics.presence_history, row.semantics.penalty_window, prompt, output):
            _change(row, token, lambda v: f32(v - penalty))


def _dry(row: Branch, prompt: Sequence[int], output: Sequence[int]) -> None:
    if row.params.dry_multiplier:
        for token, penalty in past.dry_penalties(row.params, [*prompt, *output]).items():
            _change(row, token, lambda v, penalty=penalty: f32(v - tiny(penalty)))


def _scale(row: Branch, prompt: Sequence[int], output: Sequence[int]) -> None:
    if row.params.temperature not in {0.0, 1.0}:
        factor = reciprocal(f32(row.params.temperature))
        for token in range(len(row.x)):
            _change(row, token, lambda v: min(f32(v * factor), FLT_MAX))


def _processors(row: Branch, prompt: Sequence[int], output: Sequence[int]) -> None:
    for name, args in row.params.logits_processors:
        logits = np.array(row.x, np.float32)
        result = find_processor(name).run(logits, args, row.params.extra_args, lambda: Past(prompt, output))
        row.x = [float(v) for v in np.asarray(result, np.float32)[0]]


_EDITS = {
    "logit_bias": _bias,
    "repetition": _repetition,
    "frequency": _frequency,
    "presence": _presence,
    "dry": _dry,
    "scale": _scale,
    "processors": _processors,
}


# --- filters ----------------------------------------------------------------------------------------------------


def filters_of(params: SamplingParams, semantics: Semantics) -> list[str]:
    """The filters of a row in order; T = 0 ends the list where the temperature stage stands (S-P3)."""
    stages = [stage for stage in semantics.stages if stage in FILTERS]
    if params.temperature != 0:
        return stages
    if semantics.greedy == "first":
        return ["greedy"]
    return [*stages[: stages.index("temperature")], "greedy"] if "temperature" in stages else ["greedy"]


def _filter(row: Branch) -> None:
    for stage in filters_of(row.params, row.semantics):
        before, size = row.listed, len(row.ranked)
        _FILTERS[stage](row)
        if stage == "top_n_sigma":
            row.listed = before + size - len(row.ranked)
        elif stage == "top_k" and row.params.top_k:
            row.listed = max(0, min(before, row.params.top_k - size))
        elif stage in _CUTTING and not FIELDS[_CUTTING[stage]].is_off(getattr(row.params, _CUTTING[stage])):
            row.listed = 0


_CUTTING = {
    "top_p": "top_p",
    "min_p": "min_p",
    "top_a": "top_a",
    "typical": "typical_p",
    "epsilon": "epsilon_cutoff",
    "eta": "eta_cutoff",
    "top_h": "top_h",
}
"""Filters that leave no token at -inf in the list, by the parameter that switches them on."""


def _keep_first(row: Branch, n: int, ties: str) -> None:
    """Cut after the first n ranked tokens; `all` keeps those that equal the last one too."""
    last = key(row.x[row.ranked[n - 1]])
    row.ranked = [t for i, t in enumerate(row.ranked) if i < n or (ties == "all" and key(row.x[t]) == last)]


def _greedy(row: Branch) -> None:
    row.ranked = row.ranked[:1]
    row.greedy = True


def _temperature(row: Branch) -> None:
    t = f32(max(row.params.temperature, row.semantics.temperature_floor or 0.0))
    spread = f32(row.params.dynatemp_range)
    row.rebase()
    if not spread:
        row.c, row.inverse_t = constant(t), reciprocal(t)
        return
    low, high = f32(max(0.0, t - spread)), f32(min(t + spread, 1e20))
    ratio = math.floor(Fraction(low) / Fraction(high) * 2**32)
    t32 = ratio + (2**32 - ratio) * _entropy_share(row) // 2**32
    r = f32(2**62 // max(t32, 2**9)) * 2.0**-30
    row.c, row.inverse_t = min(f32(constant(high) * r), FLT_MAX), min(f32(reciprocal(high) * r), FLT_MAX)


def _entropy_share(row: Branch) -> int:
    """(H / Hmax) ^ exponent in units of 2^-32; H at T = 1 over the tokens still in (S-O9)."""
    q = [exponent(row.x[t], row.m, constant(1.0)) for t in row.ranked]
    w = [weight(qi) for qi in q]
    entropy = sum(wi * qi for wi, qi in zip(w, q, strict=True)) // sum(w) + log2_of(sum(w)) - 40 * OCTAVE
    most = log2_of(len(row.ranked) + (row.listed if row.semantics.entropy_count == "listed" else 0))
    if entropy <= 0 or most <= 0:
        return 0
    octaves = max(log2_of(most) - log2_of(entropy), 0)
    raised = math.floor(octaves * Fraction(f32(row.params.dynatemp_exponent)))
    return weight(min(raised, LIMIT)) // 2**8


def _top_n_sigma(row: Branch) -> None:
    """Fixed point relative to the row: the widest distance gets 30 bits (S-O6)."""
    top = row.x[row.ranked[0]]
    distance = {t: tiny(min(f32(top - row.x[t]), FLT_MAX)) for t in row.ranked}
    widest = max(distance.values())
    if row.params.top_n_sigma == 0 or widest == 0:
        return
    unit = Fraction(2) ** (29 - (math.frexp(widest)[1] - 1))
    v = {t: math.floor(Fraction(d) * unit) for t, d in distance.items()}
    n, s1, s2 = len(v), sum(v.values()), sum(i * i for i in v.values())
    deviation = math.isqrt(4 * ((n * s2 - s1 * s1) // (n * n)))
    bound = math.floor(Fraction(f32(row.params.top_n_sigma)) * deviation / 2)
    row.ranked = [t for t in row.ranked if v[t] <= bound]


def _top_k(row: Branch) -> None:
    if 0 < row.params.top_k < len(row.ranked):
        single = row.params.top_k == 1 and row.semantics.top_k_one == "argmax"
        _keep_first(row, row.params.top_k, "index" if single else row.semantics.top_k_ties)


def _top_p(row: Branch) -> None:
    p, rule, scope = share_32(row.params.top_p), row.semantics.top_p_rule, row.semantics.top_p_scope
    if p == 2**32:
        return
    joint = scope == "joint" or (scope == "joint_unless_min_p" and row.params.min_p == 0)
    joint = joint or (scope == "joint_unless_top_k" and row.params.top_k == 0)
    total = sum(weight(row.q(t)) for t in row.seen) if joint else row.mass(row.ranked)
    target = max(1, -(-p * total // 2**32))
    before, n = 0, 0
    for token in row.ranked:
        inside = before <= p * total // 2**32 if rule == "le" else before < target
        if n and not inside:
            break
        n, before = n + 1, before + row.w(token)
    crossing = row.ranked[n - 1]
    if rule == "truncated":
        row.cut = {crossing: row.w(crossing) - max(0, before - target)}
    _keep_first(row, n, row.semantics.top_p_ties)


def _min_p(row: Branch) -> None:
    ratio = f32(row.params.min_p)
    if ratio == 0:
        return
    if row.semantics.min_p_rule == "logit_ratio":
        first = row.x[row.ranked[0]]
        bound = tiny(f32(ratio * first))
        row.ranked = [t for t in row.ranked if key(row.x[t]) >= key(bound) or key(row.x[t]) == key(first)]
        return
    most = min(neglog2(ratio), LIMIT)
    if row.semantics.min_p_rule == "gt" and math.frexp(ratio)[0] == 0.5:
        most = max(0, most - 1)
    least = min(row.q(t) for t in row.ranked)
    row.ranked = [t for t in row.ranked if row.q(t) - least <= most]


def _typical(row: Branch) -> None:
    p = share_32(row.params.typical_p)
    if p == 2**32:
        return
    mean, total = row.mean_q(), row.mass(row.ranked)
    target = p * total // 2**32 + 1 if row.semantics.typical_rule == "gt" else max(1, -(-p * total // 2**32))
    far = {t: abs(row.q(t) - mean) for t in row.ranked}
    reached, reach, taken = 0, 0, set[int]()
    for token in sorted(row.ranked, key=lambda t: far[t]):
        if reached < target:
            reached, reach = reached + row.w(token), far[token]
            taken.add(token)
    all_ties = row.semantics.typical_ties == "all"
    row.ranked = [t for t in row.ranked if (far[t] <= reach if all_ties else t in taken)]


def _epsilon(row: Branch) -> None:
    if f32(row.params.epsilon_cutoff) > 0:
        bound = at_least(row.params.epsilon_cutoff, row.mass(row.ranked))
        first = key(row.x[row.ranked[0]])
        row.ranked = [t for t in row.ranked if row.w(t) >= bound or key(row.x[t]) == first]


def _top_a(row: Branch) -> None:
    a = Fraction(f32(row.params.top_a))
    if a > 0:
        bound = math.ceil(a * max(row.w(t) for t in row.ranked) ** 2 / row.mass(row.ranked))
        first = key(row.x[row.ranked[0]])
        row.ranked = [t for t in row.ranked if row.w(t) >= bound or key(row.x[t]) == first]


def _eta(row: Branch) -> None:
    if f32(row.params.eta_cutoff) > 0:
        bound = at_least(row.params.eta_cutoff, row.mass(row.ranked))
        depth = row.mean_q() + half_neglog2(row.params.eta_cutoff)
        first = key(row.x[row.ranked[0]])
        row.ranked = [t for t in row.ranked if row.w(t) >= bound or row.q(t) <= depth or key(row.x[t]) == first]


def _top_h(row: Branch) -> None:
    """Among the first 100 tokens, the prefix that holds the share H of their entropy (S-O7)."""
    if not row.params.top_h:
        return
    first = row.ranked[:100]
    level = log2_of(row.mass(first)) - 40 * OCTAVE
    entropy = [row.w(t) * (row.q(t) + level) for t in first]
    n = 1
    while n < len(first) and sum(entropy[: n + 1]) * 2**32 <= share_32(row.params.top_h) * sum(entropy):
        n += 1
    row.ranked = first[:n]


def _xtc(row: Branch) -> None:
    """With the coin up, remove the tokens at the threshold but the least likely of them (S-O8)."""
    if not row.coin:
        return
    total = row.mass(row.ranked)
    bound = max(1, at_least(row.params.xtc_threshold, total))
    if row.semantics.xtc_rule == "gt":
        bound = math.floor(Fraction(f32(row.params.xtc_threshold)) * total) + 1
    likely = [t for t in row.ranked if row.w(t) >= bound]
    spared = set(row.params.xtc_protected_ids)
    if likely and row.semantics.xtc_ties == "all":
        spared |= {t for t in likely if key(row.x[t]) == key(row.x[likely[-1]])}
    removed = set(likely[:-1]) - spared
    row.ranked = [t for t in row.ranked if t not in removed]


_FILTERS = {
    "greedy": _greedy,
    "temperature": _temperature,
    "top_n_sigma": _top_n_sigma,
    "top_k": _top_k,
    "top_p": _top_p,
    "min_p": _min_p,
    "typical": _typical,
    "epsilon": _epsilon,
    "eta": _eta,
    "top_a": _top_a,
    "top_h": _top_h,
    "xtc": _xtc,
}
