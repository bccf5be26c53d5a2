"""One branch of one row: edits, then filters, in the order that the semantics lists (S-P, S-O)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from reference import marks, past
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
    state: float = 0.0
    near: dict[int, int] = field(default_factory=dict)
    winner: int | None = None
    chance: dict[int, float] = field(default_factory=dict)

    def q(self, token: int) -> int:
        return exponent(self.x[token], self.m, self.c)

    def w(self, token: int) -> int:
        return self.cut.get(token, weight(self.q(token)))

    def weights(self) -> dict[int, int]:
        """Weight of each token still in; the total is the sum."""
        if self.near:
            return self.near
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
    state: float | None = None,
) -> Branch:
    """The Branch after all stages, with XTC's coin given and the tokens of `forbidden` masked.

    `state` is what the row carries, by default what it begins with (S-C1).
    """
    masks = forbidden | past.banned_tokens(params, semantics, prompt, output, step)
    row = Branch(params=params, semantics=semantics, x=list(logits), coin=coin)
    row.state = first_state(params) if state is None else state
    _mask(row, masks)
    for stage in stages_of(params, semantics):
        if stage in EDITS and row.status == OK:
            _EDITS.get(stage, _no_edit)(row, prompt, output)
            if stage == "processors":
                _mask(row, masks)
                row.status = PROCESSOR_FAILED if row.status == NON_FINITE else row.status
    if row.status == OK:
        _enter(row)
    if row.status == OK:
        _filter(row, lambda: _marked(row, prompt, output))
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


def _sequence_bias(row: Branch, prompt: Sequence[int], output: Sequence[int]) -> None:
    said = [*prompt, *output]
    added: dict[int, Fraction] = {}
    for ids, bias in row.params.sequence_bias or ():
        opening = list(ids[:-1])
        if bias != NOTHING and said[len(said) - len(opening) :] == opening and len(said) >= len(opening):
            added[ids[-1]] = added.get(ids[-1], Fraction(0)) + Fraction(tiny(f32(bias)))
    for token, total in added.items():
        amount = tiny(f32(float(total)))
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


def _smoothing(row: Branch, prompt: Sequence[int], output: Sequence[int]) -> None:
    """Distances from the largest logit by A d^2 + B d^3, with coefficients that the temperature divides again."""
    factor, curve = Fraction(f32(row.params.smoothing_factor)), Fraction(f32(row.params.smoothing_curve))
    candidates = [v for v in row.x if v != NOTHING]
    if not factor or not row.params.temperature or not candidates:
        return
    t = Fraction(f32(max(row.params.temperature, row.semantics.temperature_floor or 0.0)))
    square = tiny(f32(min(float(factor * (3 - curve) / 2 / t), FLT_MAX)))
    cube = tiny(f32(min(float(factor * (curve - 1) / 2 / t**2), FLT_MAX)))
    top = tiny(max(candidates))

    def formula(v: float) -> float:
        d = settle(f32(top - v))
        growth = settle(f32(square + settle(f32(cube * d))))
        return f32(top - settle(f32(growth * settle(f32(d * d)))))

    for token in range(len(row.x)):
        _change(row, token, formula)


def _processors(row: Branch, prompt: Sequence[int], output: Sequence[int]) -> None:
    for name, args in row.params.logits_processors:
        logits = np.array(row.x, np.float32)
        result = find_processor(name).run(logits, args, row.params.extra_args, lambda: Past(prompt, output))
        row.x = [float(v) for v in np.asarray(result, np.float32)[0]]


_EDITS = {
    "logit_bias": _bias,
    "sequence_bias": _sequence_bias,
    "repetition": _repetition,
    "frequency": _frequency,
    "presence": _presence,
    "dry": _dry,
    "scale": _scale,
    "processors": _processors,
    "smoothing": _smoothing,
}


def first_state(params: SamplingParams) -> float:
    """What a row carries before its first token (S-C1)."""
    return 2.0 * f32(params.mirostat_tau) if params.adaptive_target < 0 else f32(params.adaptive_target)


def next_state(params: SamplingParams, state: float, sampled_logprob: float, chance: float | None = None) -> float:
    """What it carries after a token, each operation rounded to binary64 (S-C1).

    `chance` is the token's share before S-O15, None where that did not run.
    """
    if params.adaptive_target >= 0:
        decay = f32(params.adaptive_decay)
        return state if chance is None else chance * (1.0 - decay) + state * decay
    surprise = -sampled_logprob * float.fromhex("0x1.71547652b82fep+0")
    return state - f32(params.mirostat_eta) * (surprise - f32(params.mirostat_tau))


# --- filters ----------------------------------------------------------------------------------------------------


def stages_of(params: SamplingParams, semantics: Semantics) -> list[str]:
    """The stages of a row in order: all, or those that run beside Mirostat (S-O14)."""
    if params.mirostat and semantics.mirostat_with == "temperature":
        return [stage for stage in semantics.stages if stage in {"logit_bias", "temperature", "mirostat"}]
    return list(semantics.stages)


def filters_of(params: SamplingParams, semantics: Semantics) -> list[str]:
    """The filters of a row in order; T = 0 ends the list where the temperature stage stands (S-P3)."""
    stages = [stage for stage in stages_of(params, semantics) if stage in FILTERS]
    if params.temperature != 0:
        return stages
    if semantics.greedy == "first":
        return ["greedy"]
    return [*stages[: stages.index("temperature")], "greedy"] if "temperature" in stages else ["greedy"]


def _marked(row: Branch, prompt: Sequence[int], output: Sequence[int]) -> None:
    """The watermark: before greedy a bias, else new weights or the winner of a race."""
    mark, before = row.params.watermark, row.weights()
    if mark is not None and row.params.temperature == 0:
        for token in marks.green_tokens(mark, [*prompt, *output], row.ranked, len(row.x)):
            _change(row, token, lambda v: f32(v + marks.bias_of(mark)))
        row.ranked.sort(key=lambda t: (-key(row.x[t]), t))
    elif mark is not None:
        after, row.winner = marks.marked(mark, before, row.ranked, prompt, output, len(row.x))
        row.near = row.near if after is before else after


def _filter(row: Branch, mark: Callable[[], None]) -> None:
    heeded = set[str]()
    stages = filters_of(row.params, row.semantics)
    if "min_keep" in stages:
        heeded = set(stages[stages.index("min_keep") :]) & {"top_p", "min_p", "typical", "xtc"}
    for stage in [*stages, "watermark"]:
        if stage == ("watermark" if row.params.temperature else "greedy"):
            mark()
        before, size, entered = row.listed, len(row.ranked), list(row.ranked)
        _FILTERS.get(stage, _heeded_by_others)(row)
        if stage in heeded and len(row.ranked) < min(row.params.min_keep, size):
            _fill(row, stage, entered)
        if stage == "top_n_sigma":
            row.listed = before + size - len(row.ranked)
        elif stage == "top_k" and row.params.top_k:
            row.listed = max(0, min(before, row.params.top_k - size))
        elif stage in _CUTTING and not FIELDS[_CUTTING[stage]].is_off(getattr(row.params, _CUTTING[stage])):
            row.listed = max(0, min(before, row.params.min_keep - size)) if stage in heeded else 0


def _fill(row: Branch, stage: str, entered: list[int]) -> None:
    """min_keep: the first of the order that the filter goes by, from the tokens that entered it; XTC removes none."""
    row.ranked, row.cut = entered, {}
    if stage == "typical":
        mean = row.mean_q()
        chosen = set(sorted(entered, key=lambda t: abs(row.q(t) - mean))[: row.params.min_keep])
        row.ranked = [t for t in entered if t in chosen]
    elif stage != "xtc":
        row.ranked = entered[: row.params.min_keep]


_CUTTING = {
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


def _heeded_by_others(row: Branch) -> None:
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


_FILTERS = {
    "min_keep": _heeded_by_others,
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
