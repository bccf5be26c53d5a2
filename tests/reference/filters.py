"""The filters, one rule for each stage (S-O): each takes tokens away, or gives those that are left new weights."""

from __future__ import annotations

import math
from fractions import Fraction

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
    power_of_2,
    reciprocal,
    share_32,
    tiny,
    weight,
)
from reference.branch import Branch

CUTTING = {
    "top_p": "top_p",
    "min_p": "min_p",
    "top_a": "top_a",
    "p_less": "p_less",
    "tfs": "tfs",
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


def _p_less(row: Branch) -> None:
    kind = row.params.p_less
    if kind is None:
        return
    n, total = len(row.ranked), row.mass(row.ranked)
    chance = Fraction(sum(row.w(t) ** 2 for t in row.ranked), total**2)
    if kind == "norm":
        chance = (n * chance - 1) / (n - 1) if n > 1 else Fraction(0)
    first = key(row.x[row.ranked[0]])
    row.ranked = [t for t in row.ranked if Fraction(row.w(t), total) >= chance or key(row.x[t]) == first]


def _tfs(row: Branch) -> None:
    z, w = Fraction(f32(row.params.tfs)), [row.w(t) for t in row.ranked]
    bends = [abs(w[i] - 2 * w[i + 1] + w[i + 2]) for i in range(len(w) - 2)]
    if z >= 1 or not any(bends):
        return
    n = next(i for i in range(1, len(bends) + 1) if sum(bends[:i]) > z * sum(bends))
    row.ranked = row.ranked[:n]


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


def heeded_by_others(row: Branch) -> None:
    """min_keep is no filter of its own."""


def _mirostat(row: Branch) -> None:
    """Version 1 keeps the k first, version 2 what surprises by at most mu (S-O14)."""
    mu = max(-(2**30), min(math.floor(Fraction(row.state) * OCTAVE), 2**30))
    if row.params.mirostat == 1:
        row.ranked = row.ranked[: _zipf_count([row.q(t) for t in row.ranked[:100]], mu, row)]
    if row.params.mirostat == 2:
        level, first = log2_of(row.mass(row.ranked)), key(row.x[row.ranked[0]])
        surprise = {t: level - log2_of(row.w(t)) for t in row.ranked if row.w(t)}
        row.ranked = [t for t in row.ranked if surprise.get(t, math.inf) <= mu or key(row.x[t]) == first]


def _zipf_count(q: list[int], mu: int, row: Branch) -> int:
    ranks = range(1, len(q))
    t = {i: log2_of(i + 1) - log2_of(i) for i in ranks}
    covariance = sum(t[i] * (q[i] - q[i - 1]) for i in ranks)
    if not covariance:
        return len(row.ranked)
    slope = covariance * OCTAVE // sum(v * v for v in t.values())
    if slope == 0:
        return len(row.ranked)
    epsilon = slope - OCTAVE
    if epsilon == 0:
        epsilon = 1
    power = power_of_2(abs(epsilon) * log2_of(len(row.x)) // OCTAVE)
    rest = 2**62 - 2**124 // power if epsilon > 0 else power - 2**62
    level = log2_of(abs(epsilon)) - 23 * OCTAVE + mu - (log2_of(rest) - 62 * OCTAVE)
    exponent = level * OCTAVE // slope
    if exponent < 0:
        return 1
    return len(row.ranked) if exponent >= 21 * OCTAVE else min(power_of_2(exponent) // 2**62, len(row.ranked))


def _adaptive_p(row: Branch) -> None:
    """New weights by the distance of each share from the target, in binary64 (S-O15)."""
    if row.params.adaptive_target < 0:
        return
    wanted = 2.0 * f32(row.params.adaptive_target) - row.state
    target = round(Fraction(min(max(wanted, 0.0), 1.0)) * 2**32) / 2.0**32
    total = float(row.mass(row.ranked))
    row.chance = {t: float(row.w(t)) / total for t in row.ranked}
    depth = {}
    for token, p in row.chance.items():
        d = abs(p - target) * float.fromhex("0x1.aaaaaap+1")
        depth[token] = int(10.0 * (d * d) / (1.0 + d) * float.fromhex("0x1.71547652b82fep+23"))
    row.near = {t: weight(q - min(depth.values())) for t, q in depth.items()}


FILTER_RULES = {
    "min_keep": heeded_by_others,
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
    "p_less": _p_less,
    "tfs": _tfs,
    "top_h": _top_h,
    "xtc": _xtc,
    "mirostat": _mirostat,
    "adaptive_p": _adaptive_p,
}
"""Each filter by its stage."""
