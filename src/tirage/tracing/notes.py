"""What a stage did, and why the token came out, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tirage.history import History
from tirage.operators import OPERATORS, Step, counted
from tirage.operators.masks import BAN
from tirage.operators.min_keep import floor_note
from tirage.operators.row import RowState
from tirage.params import SamplingParams
from tirage.sampling_batch import SamplingRow
from tirage.semantics import Semantics
from tirage.tracing.records import Stage, Token, UniformDraw, XtcFlag
from tirage.tracing.slots import Slot
from tirage.tracing.snapshot import Snapshot
from tirage.tracing.texts import TokenTexts

INPUT = "the model's logits; tokens at -inf are out"
IDLE = "nothing to do for this row at this step"
CHECKED_LATER = "not applied before the draw: the drawn token was checked against it"
ENDED_GREEDY = "not reached: temperature 0 had settled the matter"
ENDED_BAD = "not reached: the row has no token"


@dataclass(frozen=True, slots=True)
class RecordedMoment:
    """A row that has just run a step, with the candidates before and after: what operators put into words."""

    state: SamplingRow
    slot: Slot
    step: Step
    row: RowState
    before: Snapshot
    after: Snapshot

    @property
    def params(self) -> SamplingParams:
        """The parameters of the request."""
        return self.state.params

    @property
    def semantics(self) -> Semantics:
        """Their semantics."""
        return self.state.compiled.semantics

    @property
    def history(self) -> History:
        """The tokens so far."""
        return self.state.history

    @property
    def at(self) -> int:
        """The step of the request."""
        return self.state.at

    @property
    def left(self) -> int:
        """How many candidates are left."""
        return self.after.ids.size

    @property
    def removed(self) -> int:
        """How many candidates the step removed."""
        return self.before.ids.size - self.after.ids.size

    @property
    def top_share(self) -> float:
        """Probability of the most likely candidate before the step."""
        return float(self.before.w.max() / self.before.total)

    @property
    def listed(self) -> int:
        """How many ids an edit of listed tokens names."""
        return self.step.b - self.step.a


def hard_mask(name: str, allowed: NDArray[np.bool_]) -> str:
    """The note of a mask, bool [V], that is applied before the first step."""
    giver = "the call's mask" if name == "mask" else "allowed_token_ids"
    return f"{giver} lets {counted(int(allowed.sum()), 'token')} of {allowed.size:,} through"


def note(moment: RecordedMoment) -> str:
    """The note of a stage that ran, in the words of its operator."""
    operator = OPERATORS[moment.slot.name]
    if moment.step.op is BAN:
        return operator.ban_note(moment)
    return floor_note(moment, operator.note(moment))


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
    name, left = _named(throw.hit.token), int((ending.row.w() > 0).sum())
    if throw.greedy:
        return _why_greedy(ending, name)
    if left == 1:
        return _why_alone(ending, name)
    share = throw.hit.weight / throw.total
    if throw.keyed:
        return f"{name}, with {share:.2%} of the mass of {left:,} tokens, was the first in the watermark's keyed race."
    coin = "" if ending.coin is None or not ending.coin.on else " XTC's coin was on."
    return (
        f"{name} owns [{throw.hit.start:,}, {throw.hit.end:,}) of {throw.total:,}, {share:.2%} of the mass of "
        f"{left:,} tokens, and R = {throw.target:,} fell there.{coin}"
    )


def _why_alone(ending: Ending, name: str) -> str:
    members, cut = ending.row.ids.size, _last_cut(ending.stages)
    if members == 1:
        return f"{name} was the only token left after {cut}."
    others = "that of the other rounds" if members == 2 else "those of the others round"
    return f"{name} was the only one with a weight of the {members:,} tokens left after {cut}; {others} to 0."


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
