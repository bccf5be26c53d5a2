"""The one stage list: a request's parameters, lowered to the steps that every path executes.

`plan(params)` does what depends on the parameters alone, once; `CompiledParams.lower` adds what depends on the history.
`sample`, `law`, `explain` and every kernel run the steps that come out and know nothing else, so a preset cannot
mean one thing here and another there. SPEC.md rules S-P1 ... S-P9.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tirage.errors import ParamsError
from tirage.exact import numbers
from tirage.history import Counts, History, banned_by_ngrams, banned_by_words, dry_penalties
from tirage.params import FIELDS, SamplingParams
from tirage.semantics import EDITS, Semantics, resolve


class Op(IntEnum):
    """What one step does; the integers a..e after each name are its operands ("bits" = a float32's bits).

    Edits: BAN [a, b) of the row's edit ids (those that lead the list are hard masks); ADD [a, b): x + value;
    REPETITION a = scope, b, c = bits of r and 1/r; FREQUENCY a = scope, b = bits of f; PRESENCE likewise;
    SCALE a = bits of 1/T; PROCESS: custom processors.
    Filters: GREEDY; TEMPERATURE a = bits of c, b = bits of 1/T; DYNAMIC_TEMPERATURE a, b = those of T max,
    c = T min / T max * 2^32, d, e = exponent as E / 2^s; TOP_N_SIGMA a, b = E, s; TOP_K a = k, b = keep ties;
    TOP_P a = P, b = rule (0 lt, 1 le, 2 truncated), c = keep ties, d = joint; MIN_P a = largest q - min q;
    MIN_P_LOGIT a = bits of min_p; TYPICAL a = P, b = 1 when the mass must exceed it; EPSILON a, b = E, s;
    ETA a, b = E, s, c = -log2(eps)/2; TOP_H a = H; XTC a = coin threshold, b, c = E, s, d = strict.
    """

    END = 0
    BAN = 1
    ADD = 2
    REPETITION = 3
    FREQUENCY = 4
    PRESENCE = 5
    SCALE = 6
    PROCESS = 7
    GREEDY = 16
    TEMPERATURE = 17
    DYNAMIC_TEMPERATURE = 18
    TOP_N_SIGMA = 19
    TOP_K = 20
    TOP_P = 21
    MIN_P = 22
    MIN_P_LOGIT = 23
    TYPICAL = 24
    EPSILON = 25
    ETA = 26
    TOP_H = 27
    XTC = 28


FIRST_FILTER = Op.GREEDY
SCOPES = ("both", "output", "prompt")
TOP_P_RULES = ("lt", "le", "truncated")


class Step(NamedTuple):
    """One step: the operation, up to five integer operands, and the stage it belongs to."""

    op: Op
    a: int = 0
    b: int = 0
    c: int = 0
    d: int = 0
    e: int = 0
    stage: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The steps of one row at one moment, with the arrays that BAN and ADD refer to."""

    steps: tuple[Step, ...]
    edit_ids: NDArray[np.int32]
    edit_values: NDArray[np.float32]


_NO_IDS = np.zeros(0, np.int32)
_NO_VALUES = np.zeros(0, np.float32)


class _Edits:
    """Collects steps and their ids and values in order."""

    __slots__ = ("ids", "size", "steps", "values")

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.ids: list[NDArray[np.int32]] = []
        self.values: list[NDArray[np.float32]] = []
        self.size = 0

    def put(self, op: Op, ids: NDArray[np.int32], values: NDArray[np.float32] | None, stage: str) -> None:
        if not ids.size:
            return
        self.steps.append(Step(op, self.size, self.size + ids.size, stage=stage))
        self.ids.append(ids)
        self.values.append(np.zeros(ids.size, np.float32) if values is None else values)
        self.size += ids.size

    def lowered(self, filters: tuple[Step, ...]) -> Program:
        steps = (*self.steps, *filters)
        if not self.ids:
            return Program(steps, _NO_IDS, _NO_VALUES)
        return Program(steps, np.concatenate(self.ids), np.concatenate(self.values))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompiledParams:
    """What one SamplingParams asks of every row that uses it, independent of history and vocabulary.

    `readers` are the parameters whose effect depends on the tokens so far.
    `fixed` is the finished lowering when the history cannot change it, else None; `needs_counts` says whether a
    penalty reads the history's counts; `coin` is XTC's share in units of 2^-32; `highest_id` names the parameter
    that mentions the highest token id, and that id.
    """

    params: SamplingParams
    semantics: Semantics
    filters: tuple[Step, ...]
    bias: tuple[NDArray[np.int32], NDArray[np.float32]]
    banned: NDArray[np.int32]
    allowed: NDArray[np.int32] | None
    stop_ids: NDArray[np.int32]
    highest_id: tuple[str, int]
    coin: int
    needs_counts: bool
    readers: tuple[str, ...]
    fixed: Program | None = None

    def check(self, vocab_size: int) -> None:
        """Raise ParamsError when the parameters name a token that the vocabulary does not have."""
        name, token = self.highest_id
        if token >= vocab_size:
            raise ParamsError(
                f"{name} must lie in [0, {vocab_size}), got {token}; the logits have {vocab_size} columns"
            )

    def check_history(self) -> None:
        """Raise ParamsError for what cannot take effect without a history."""
        for name in self.readers:
            raise ParamsError(
                f"{name} must come with the tokens so far, got history None; "
                "pass history=[((), ())] for none, one pair per row"
            )

    def counts(self, history: History) -> Counts | None:
        """The counts that the penalties of this plan read; None when none does."""
        return history.counts(self.semantics.penalty_window) if self.needs_counts else None

    def lower(self, history: History, step: int) -> Program:
        """The steps of a row with this history at this step."""
        if self.fixed is not None:
            return self.fixed
        edits = _Edits()
        for stage, ids in self._bans(history, step):
            edits.put(Op.BAN, ids, None, stage)
        for stage in self.semantics.stages:
            if stage in EDITS:
                self._edit(edits, stage, history)
        return edits.lowered(self.filters)

    def _bans(self, history: History, step: int) -> list[tuple[str, NDArray[np.int32]]]:
        """Hard masks by id: they lead the steps, so that nothing after them can revive a token (S-P2)."""
        params, bans = self.params, []
        if self.banned.size:
            bans.append(("logit_bias", self.banned))
        if params.bad_words_token_ids:
            tokens = history.tokens() if self.semantics.bad_words_history == "both" else history.output()
            words = banned_by_words(params.bad_words_token_ids, tokens)
            bans.append(("bad_words", np.array(words, np.int32)))
        if params.no_repeat_ngram_size:
            bans.append(("no_repeat_ngram", banned_by_ngrams(params.no_repeat_ngram_size, history.tokens())))
        if step < params.min_tokens:
            bans.append(("min_tokens", self.stop_ids))
        return bans

    def _edit(self, edits: _Edits, stage: str, history: History) -> None:
        params = self.params
        if stage == "logit_bias":
            edits.put(Op.ADD, *self.bias, stage)
        elif stage == "dry" and params.dry_multiplier:
            penalties = self._dry(history)
            ids = np.fromiter(penalties, np.int32, len(penalties))
            values = np.fromiter(penalties.values(), np.float32, len(penalties))
            edits.put(Op.ADD, ids, -values, stage)
        elif stage == "processors" and params.logits_processors:
            edits.steps.append(Step(Op.PROCESS, stage=stage))
        elif stage == "scale" and params.temperature not in {0.0, 1.0}:
            factor = numbers.bits(numbers.reciprocal(params.temperature))
            edits.steps.append(Step(Op.SCALE, factor, stage=stage))
        elif stage in _active_penalties(params):
            edits.steps.append(_penalty(stage, params, self.semantics, history))

    def _dry(self, history: History) -> dict[int, np.float32]:
        params = self.params
        return dry_penalties(
            history.tokens(),
            multiplier=params.dry_multiplier,
            base=params.dry_base,
            allowed_length=params.dry_allowed_length,
            last_n=params.dry_last_n,
            breakers=frozenset(params.dry_breaker_token_ids),
        )


def _active_penalties(params: SamplingParams) -> tuple[str, ...]:
    values = {
        "repetition": params.repetition_penalty != 1.0,
        "frequency": params.frequency_penalty != 0.0,
        "presence": params.presence_penalty != 0.0,
    }
    return tuple(stage for stage, active in values.items() if active)


def _penalty(stage: str, params: SamplingParams, semantics: Semantics, history: History) -> Step:
    window = semantics.penalty_window
    scope = 0 if window else SCOPES.index(getattr(semantics, f"{stage}_history"))
    if stage == "repetition":
        r = params.repetition_penalty
        return Step(
            Op.REPETITION,
            scope,
            numbers.bits(numbers.f32(r)),
            numbers.bits(numbers.reciprocal(r)),
            stage=stage,
        )
    if stage == "presence":
        return Step(Op.PRESENCE, scope, numbers.bits(numbers.operand(params.presence_penalty)), stage=stage)
    penalty = numbers.operand(params.frequency_penalty)
    if semantics.frequency_divisor == "length":
        counted = min(history.length, window or history.length)
        penalty = numbers.operand(penalty / np.float32(max(counted, 1)))
    return Step(Op.FREQUENCY, scope, numbers.bits(penalty), stage=stage)


def _filters(params: SamplingParams, semantics: Semantics) -> tuple[Step, ...]:
    """The filter steps, off ones left out; T = 0 ends the list where the temperature stage stands (S-P3)."""
    steps: list[Step] = []
    stages = [stage for stage in semantics.stages if stage not in EDITS]
    if params.temperature == 0 and "temperature" not in stages:
        return (Step(Op.GREEDY, stage="temperature"),)
    for stage in stages:
        if stage == "temperature" and params.temperature == 0:
            return (*steps, Step(Op.GREEDY, stage=stage))
        step = _LOWER[stage](params, semantics)
        if step is not None:
            steps.append(step._replace(stage=stage))
    return tuple(steps)


def _temperature(params: SamplingParams, semantics: Semantics) -> Step:
    t, spread = float(numbers.f32(params.temperature)), float(numbers.f32(params.dynatemp_range))
    if not spread:
        return Step(
            Op.TEMPERATURE,
            numbers.bits(numbers.temperature_constant(t)),
            numbers.bits(numbers.reciprocal(t)),
        )
    low, high = max(0.0, t - spread), min(t + spread, numbers.MAX_TEMPERATURE)
    e, s = numbers.scaled_fraction(params.dynatemp_exponent)
    return Step(
        Op.DYNAMIC_TEMPERATURE,
        numbers.bits(numbers.temperature_constant(high)),
        numbers.bits(numbers.reciprocal(high)),
        numbers.ratio_32(low, high),
        e,
        s,
    )


def _top_k(params: SamplingParams, semantics: Semantics) -> Step | None:
    if not params.top_k:
        return None
    return Step(Op.TOP_K, params.top_k, int(semantics.top_k_ties == "all"))


def _top_p(params: SamplingParams, semantics: Semantics) -> Step | None:
    mass = numbers.mass_fraction(params.top_p)
    if mass == 1 << 32:
        return None
    scope = semantics.top_p_scope
    joint = scope == "joint" or (scope == "joint_unless_min_p" and not params.min_p)
    return Step(
        Op.TOP_P,
        mass,
        TOP_P_RULES.index(semantics.top_p_rule),
        int(semantics.top_p_ties == "all"),
        int(joint),
    )


def _min_p(params: SamplingParams, semantics: Semantics) -> Step | None:
    ratio = float(numbers.f32(params.min_p))
    if ratio == 0.0:
        return None
    if semantics.min_p_rule == "logit_ratio":
        return Step(Op.MIN_P_LOGIT, numbers.bits(np.float32(ratio)))
    threshold = numbers.ratio_threshold(ratio)
    # Only a power of two has a threshold that some q meets exactly; "gt" leaves that q out.
    if semantics.min_p_rule == "gt" and np.frexp(ratio)[0] == 0.5:
        threshold = max(threshold - 1, 0)
    return Step(Op.MIN_P, threshold)


def _typical(params: SamplingParams, semantics: Semantics) -> Step | None:
    mass = numbers.mass_fraction(params.typical_p)
    return None if mass == 1 << 32 else Step(Op.TYPICAL, mass, int(semantics.typical_rule == "gt"))


def _scaled(op: Op, value: float) -> Step | None:
    e, s = numbers.scaled_fraction(value)
    return Step(op, e, s) if e else None


def _eta(params: SamplingParams, semantics: Semantics) -> Step | None:
    step = _scaled(Op.ETA, params.eta_cutoff)
    return step and step._replace(c=numbers.half_neglog2(params.eta_cutoff))


def _top_h(params: SamplingParams, semantics: Semantics) -> Step | None:
    return Step(Op.TOP_H, numbers.mass_fraction(params.top_h)) if params.top_h else None


def _xtc(params: SamplingParams, semantics: Semantics) -> Step | None:
    coin = numbers.mass_fraction(params.xtc_probability)
    if not coin:
        return None
    e, s = numbers.scaled_fraction(params.xtc_threshold)
    return Step(Op.XTC, coin, e, s, int(semantics.xtc_rule == "gt"))


_FEW = 64
_LOWER = {
    "temperature": _temperature,
    "top_n_sigma": lambda params, semantics: _scaled(Op.TOP_N_SIGMA, params.top_n_sigma),
    "top_k": _top_k,
    "top_p": _top_p,
    "min_p": _min_p,
    "typical": _typical,
    "epsilon": lambda params, semantics: _scaled(Op.EPSILON, params.epsilon_cutoff),
    "eta": _eta,
    "top_h": _top_h,
    "xtc": _xtc,
}


def plan(params: SamplingParams) -> CompiledParams:
    """The CompiledParams of `params`; equal parameters share one, and an object remembers its own."""
    try:
        return params.memo
    except AttributeError:
        # What is long is remembered by its own object alone: thousands of such, each with a seed of its own, are much.
        build = _plan.__wrapped__ if _is_long(params) else _plan
        object.__setattr__(params, "memo", build(params))
        return params.memo


def _is_long(params: SamplingParams) -> bool:
    """Whether parameters hold more than a few entries, or texts that may be of any length."""
    lists = (params.logit_bias, params.allowed_token_ids, params.bad_words_token_ids, params.stop, params.bad_words)
    entries = sum(map(len, filter(None, lists))) + len(params.logprob_token_ids)
    return entries > _FEW or params.guided_decoding is not None or bool(params.extra_args or params.logits_processors)


@lru_cache(maxsize=4096)
def _plan(params: SamplingParams) -> CompiledParams:
    semantics = resolve(params.semantics)
    filters = _filters(params, semantics)
    bias = sorted(dict(params.logit_bias or {}).items())
    finite = [(token, numbers.operand(value)) for token, value in bias if value != -np.inf]
    draft = CompiledParams(
        params=params,
        semantics=semantics,
        filters=filters,
        bias=(np.array([t for t, _ in finite], np.int32), np.array([v for _, v in finite], np.float32)),
        banned=np.array([t for t, v in bias if v == -np.inf], np.int32),
        allowed=None if params.allowed_token_ids is None else np.array(params.allowed_token_ids, np.int32),
        stop_ids=np.array(sorted(params.all_stop_token_ids), np.int32),
        highest_id=_highest_id(params),
        coin=next((s.a for s in filters if s.op == Op.XTC), 0),
        needs_counts=bool(_active_penalties(params)),
        readers=tuple(n for n, spec in FIELDS.items() if spec.reads_history(getattr(params, n))),
    )
    return draft if _depends_on_history(params, semantics) else replace(draft, fixed=draft.lower(_NOTHING, 0))


_NOTHING = History(_NO_IDS, 0, 0)


def _depends_on_history(params: SamplingParams, semantics: Semantics) -> bool:
    """Whether the steps themselves, not only the counts they read, change as a request goes on."""
    return bool(
        params.bad_words_token_ids
        or params.min_tokens
        or params.dry_multiplier
        or params.no_repeat_ngram_size
        or (params.frequency_penalty and semantics.frequency_divisor == "length")
    )


def _highest_id(params: SamplingParams) -> tuple[str, int]:
    """The parameter that names the highest token id, and that id; ("", -1) when none does."""
    named = {
        "logit_bias": dict(params.logit_bias or {}),
        "allowed_token_ids": params.allowed_token_ids or (),
        "bad_words_token_ids": [token for word in params.bad_words_token_ids for token in word],
        "logprob_token_ids": params.logprob_token_ids,
        "xtc_protected_ids": params.xtc_protected_ids,
        "dry_breaker_token_ids": params.dry_breaker_token_ids,
        "stop_token_ids": params.all_stop_token_ids,
    }
    highest = [(name, max(ids)) for name, ids in named.items() if ids]
    return max(highest, key=lambda pair: pair[1], default=("", -1))
