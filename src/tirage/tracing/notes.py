"""What a stage did, and why the token came out, in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tirage.backends.numpy.plain import RowState
from tirage.history import banned_by_words
from tirage.sampling_batch import SamplingRow
from tirage.stages import SCOPES, Op, Step
from tirage.tracing.explanation import Stage, Token, UniformDraw, XtcFlag
from tirage.tracing.slots import Slot
from tirage.tracing.snapshot import Snapshot
from tirage.tracing.texts import TokenTexts, printable

INPUT = "the model's logits; tokens at -inf are out"
IDLE = "nothing to do for this row at this step"
CHECKED_LATER = "not applied before the draw: the drawn token was checked against it"
ENDED_GREEDY = "not reached: temperature 0 had settled the matter"
ENDED_BAD = "not reached: the row has no token"


@dataclass(frozen=True, slots=True)
class Moment:
    """A row that has just run a step, with the candidates before and after."""

    state: SamplingRow
    slot: Slot
    step: Step
    row: RowState
    before: Snapshot
    after: Snapshot

    @property
    def top_share(self) -> float:
        """Probability of the most likely candidate before the step."""
        return float(self.before.w.max() / self.before.total)

    @property
    def listed(self) -> int:
        """How many ids a BAN or ADD names."""
        return self.step.b - self.step.a


def counted(n: int, what: str, many: str = "") -> str:
    """`1 token`, `2 tokens`, with thousands apart."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {many or what + 's'}"


def hard_mask(name: str, allowed: NDArray[np.bool_]) -> str:
    """The note of a mask that is applied before the first step."""
    giver = "the call's mask" if name == "mask" else "allowed_token_ids"
    return f"{giver} lets {counted(int(allowed.sum()), 'token')} of {allowed.size:,} through"


def note(moment: Moment) -> str:
    """The note of a stage that ran."""
    if moment.step.op == Op.BAN:
        return _BANS[moment.slot.name](moment)
    return _NOTES.get(moment.slot.name, _unsaid)(moment)


def _unsaid(moment: Moment) -> str:
    return counted(moment.after.ids.size, "token") + " left"


# --- masks and edits ----------------------------------------------------------------------------------------------


def _bad_words(moment: Moment) -> str:
    params, history = moment.state.params, moment.state.history
    both = moment.state.plan.semantics.bad_words_history == "both"
    due = banned_by_words(params.bad_words_token_ids, history.tokens() if both else history.output())
    return f"{counted(len(due), 'bad word')} would be completed now"


def _min_tokens(moment: Moment) -> str:
    return f"step {moment.state.at} < {moment.state.params.min_tokens}: the stop tokens have to wait"


_BANS: dict[str, Callable[[Moment], str]] = {
    "logit_bias": lambda m: f"a bias of -inf forbids {counted(m.listed, 'token')}",
    "bad_words": _bad_words,
    "no_repeat_ngram": lambda m: f"{counted(m.listed, 'token')} would repeat a sequence of the text so far",
    "min_tokens": _min_tokens,
}


def _penalty(moment: Moment) -> str:
    counts, scope = moment.row.counts, SCOPES[moment.step.a]
    seen = 0 if counts is None else int((counts.seen(scope) > 0).sum())
    where = {"both": "prompt and output", "output": "the output", "prompt": "the prompt"}[scope]
    window = moment.state.plan.semantics.penalty_window
    where = f"the last {window} tokens" if window else where
    return f"acts on the {counted(seen, 'distinct token')} of {where}"


def _processors(moment: Moment) -> str:
    return "ran " + ", ".join(printable(name) for name, _ in moment.state.params.logits_processors)


def _scale(moment: Moment) -> str:
    return f"every logit divided by {moment.state.params.temperature:g}"


# --- filters --------------------------------------------------------------------------------------------------------


def _temperature(moment: Moment) -> str:
    t = moment.state.params.temperature
    if moment.step.op == Op.GREEDY:
        return "the largest logit, of equal ones the lowest id"
    if moment.step.op == Op.DYNAMIC_TEMPERATURE:
        return f"the entropy of the candidates chose {1 / float(moment.row.inverse_t):.4g}, within {_spread(moment)}"
    return f"distances between logits divided by {t:g}: {'sharper' if t < 1 else 'flatter'}"


def _spread(moment: Moment) -> str:
    t, spread = moment.state.params.temperature, moment.state.params.dynatemp_range
    return f"[{max(0.0, t - spread):g}, {t + spread:g}]"


def _top_k(moment: Moment) -> str:
    k, left = moment.state.params.top_k, moment.after.ids.size
    if left > k:
        return f"the {k} most likely, and {left - k} as likely as the last of them"
    return f"the {left} most likely" if left == k else f"no more than {k} candidates: all stay"


def _top_p(moment: Moment) -> str:
    left, p = moment.after.ids.size, moment.state.params.top_p
    text = f"the {counted(left, 'most likely token')} reach{'es' if left == 1 else ''} {p:g} of the mass"
    if moment.row.trimmed is None:
        return text
    return f"{text}; the last keeps only its share below {p:g}"


def _min_p(moment: Moment) -> str:
    if moment.step.op == Op.MIN_P_LOGIT:
        return f"logits at least {moment.state.params.min_p:g} times the largest logit"
    p = moment.state.params.min_p
    return f"at least {p:g} × {moment.top_share:.4g} = {p * moment.top_share:.4g}"


def _xtc(moment: Moment) -> str:
    p, threshold = moment.state.params.xtc_probability, moment.state.params.xtc_threshold
    if not moment.row.coin:
        return f"the coin said no (on with probability {p:g})"
    if moment.before.ids.size == moment.after.ids.size:
        return f"the coin said yes, but fewer than two tokens reach {threshold:g}"
    return f"the coin said yes: of the tokens that reach {threshold:g}, only the least likely stays"


_NOTES: dict[str, Callable[[Moment], str]] = {
    "logit_bias": lambda m: f"added to {counted(m.listed, 'logit')}",
    "repetition": _penalty,
    "frequency": _penalty,
    "presence": _penalty,
    "dry": lambda m: f"{counted(m.listed, 'token')} would prolong a repetition",
    "processors": _processors,
    "scale": _scale,
    "temperature": _temperature,
    "top_k": _top_k,
    "top_p": _top_p,
    "min_p": _min_p,
    "top_n_sigma": lambda m: f"logits within {m.state.params.top_n_sigma:g} standard deviations of the largest",
    "typical": lambda m: f"the most typical tokens that hold {m.state.params.typical_p:g} of the mass",
    "epsilon": lambda m: f"at least {m.state.params.epsilon_cutoff:g} likely",
    "eta": lambda m: f"at least as likely as the entropy asks, at most {m.state.params.eta_cutoff:g}",
    "top_h": lambda m: f"the most likely tokens that hold {m.state.params.top_h:g} of the entropy",
    "xtc": _xtc,
}


# --- the reason -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ending:
    """How the row ended: the finished row, what the stages did, and how the token was drawn."""

    row: RowState
    texts: TokenTexts
    stages: Sequence[Stage]
    throws: tuple[UniformDraw, ...]
    coin: XtcFlag | None


def reason(ending: Ending) -> str:
    """One or two sentences that say why the row has this token, or none."""
    if not ending.throws:
        return _why_none(ending)
    if len(ending.throws) == 1:
        text = _why(ending, ending.throws[0])
        return text[:1].upper() + text[1:]
    refused = ending.throws[0].hit.token
    again = _why(ending, ending.throws[1])
    return f"T{_named(refused)[1:]} came first, but the mask forbids it. With the mask applied, {again}"


def _named(token: Token) -> str:
    return f"token {token.token_id}" if token.text is None else f"token {token.token_id} {token.shown}"


def _why(ending: Ending, throw: UniformDraw) -> str:
    name, left = _named(throw.hit.token), sum(ending.row.w() > 0)
    if throw.greedy:
        return _why_greedy(ending, name)
    if left == 1:
        return f"{name} was the only token left after {_last_cut(ending.stages)}."
    share = throw.hit.weight / throw.total
    coin = "" if ending.coin is None or not ending.coin.on else " XTC's coin was on."
    return (
        f"{name} owns [{throw.hit.start:,}, {throw.hit.end:,}) of {throw.total:,}, {share:.2%} of the mass of "
        f"{left:,} tokens, and R = {throw.target:,} fell there.{coin}"
    )


def _why_greedy(ending: Ending, name: str) -> str:
    x = ending.row.x
    best = x[int(ending.row.ids[0])]
    equal = int((x == best).sum())
    if equal > 1:
        return (
            f"{name} is the lowest id of the {equal} tokens with the largest logit, {best:.6g}; temperature=0 takes it."
        )
    return f"{name} has the largest logit, {best:.6g}; temperature=0 takes it without a draw."


def _last_cut(stages: Sequence[Stage]) -> str:
    cuts = [stage.label for stage in stages if stage.removed_count]
    return cuts[-1] if cuts else "all stages"


def not_finite(x: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which logits are NaN or +inf, bool [V]; -inf is a legal way to be out."""
    return ~np.isfinite(x) & (x != -np.inf)


def _why_none(ending: Ending) -> str:
    bad = np.flatnonzero(not_finite(ending.row.x))
    if not bad.size:
        return f"No token is allowed: {_who_removed(ending.stages)}."
    token = ending.texts.token(int(bad[0]))
    value = "NaN" if np.isnan(ending.row.x[bad[0]]) else "+inf"
    more = f" ({counted(bad.size, 'logit')} in all are not finite)" if bad.size > 1 else ""
    return f"The logit of {_named(token)} is {value} and no mask hides it{more}, so nothing can be drawn."


def _who_removed(stages: Sequence[Stage]) -> str:
    cuts = [stage for stage in stages if stage.removed_count]
    return ", ".join(f"{_agent(stage)} took {stage.removed_count:,}" for stage in cuts)


def _agent(stage: Stage) -> str:
    return "the model (-inf)" if stage.kind == "input" else stage.label
