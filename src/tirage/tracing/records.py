"""What an explanation holds. Plain frozen records, written by `trace`, read by the three views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tirage.draw import Status
from tirage.params import SamplingParams

Kind = Literal["input", "mask", "edit", "filter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token: its id, its text (None without a tokenizer) and a form that is safe and complete to show."""

    token_id: int
    text: str | None
    shown: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """A token that a stage took out, with the probability that it had until then."""

    token: Token
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What one stage did to one row.

    `params` are the parameters that govern it, `options` the choices of the semantics about it, `rule` the rule of
    SPEC.md. `off`: its parameters ask for nothing. `reached`: False when an earlier stage had settled the matter.
    `candidates_before` of a stage is `candidates_after` of the one before it, and
    `before - removed_count + added_count == after` (only a custom processor adds). `removed_mass` is the share of
    probability that the removed tokens had, `examples` the most likely of them, `changed_count` the logits of
    remaining tokens that the stage changed. `note` says it in words.
    """

    name: str
    kind: Kind
    rule: str
    params: Mapping[str, Any]
    options: Mapping[str, Any]
    off: bool
    reached: bool
    candidates_before: int
    candidates_after: int
    removed_count: int = 0
    added_count: int = 0
    removed_mass: float = 0.0
    examples: tuple[Removed, ...] = ()
    changed_count: int = 0
    note: str = ""

    @property
    def label(self) -> str:
        """The name that tells stages apart: a bias of -inf is a mask, other biases are an edit."""
        return "logit_bias -inf" if self.name == "logit_bias" and self.kind == "mask" else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStep:
    """One token at one stage.

    Probabilities are w / W, from the integer weights of the set before and after the stage at the temperature in
    force there (1 until a temperature stage); `cumulative` is the mass, before the stage, of this token and all
    that rank above it. 0 for a token that is out; NaN where the logit is not finite.
    """

    logit_before: float
    logit_after: float
    probability_before: float
    probability_after: float
    cumulative: float
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTrace:
    """One token on its way through the stages; `steps` go with `Explanation.stages`.

    `rank` is 1 + the number of tokens whose model logit is larger (0 for NaN). `model_probability` is at
    temperature 1, before anything was asked; `probability` that of the law which the token was drawn from.
    `removed_by` is the label of the stage that took it out, or None.
    """

    token: Token
    drawn: bool
    rank: int
    logit: float
    model_probability: float
    probability: float
    removed_by: str | None
    steps: tuple[TokenStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The integers [start, end) that mean this token."""

    token: Token
    start: int
    end: int

    @property
    def weight(self) -> int:
        """How many integers mean the token: its integer weight."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformDraw:
    """One use of the uniform: R = floor(U * W / 2^64) and the interval of [0, W) that it fell in (S-W5).

    `domain` names the random bits: "draw", or "resample" for the second throw of check-then-resample.
    `neighbours` are the owner of R and up to two tokens on either side, in token-id order. `greedy`: one token owns
    all of W, so the uniform decides nothing. `accepted` is False when the mask then forbade the token. `keyed`: a
    watermark's race drew the token, so `uniform` is 0 and `target` the beginning of its interval.
    """

    domain: str
    total: int
    uniform: int
    target: int
    hit: Interval
    neighbours: tuple[Interval, ...]
    greedy: bool
    accepted: bool
    keyed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class XtcFlag:
    """XTC's coin: on when `value`, 32 random bits, is below `threshold` (S-O8)."""

    value: int
    threshold: int

    @property
    def on(self) -> bool:
        """Whether XTC acted."""
        return self.value < self.threshold


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExplainedDraw:
    """One draw with all that led to its token.

    `status` is `Status.ok`, or why there is no token; then `token` is None and `reason` names the culprit.
    `seed`, `step` and `sample_index` repeat the draw; `fresh_seed` tells that the request had none. `stages` are
    those that were asked for, in order; `all_stages` also lists those that are off. `tokens` are the most likely
    ones before and after all stages, with the drawn one, by model rank. `throws` holds one entry, two when a token
    drawn without the mask had to be drawn again (the stages are then those of the second), none without a token.
    `mixed`: the law is a mixture (XTC's coin, or drawing again), so `probability` differs from the last throw's share.
    """

    params: SamplingParams
    semantics: str
    vocab_size: int
    seed: int
    fresh_seed: bool
    step: int
    sample_index: int
    status: Status
    token: Token | None
    probability: float
    logprob: float
    support_size: int
    mixed: bool
    reason: str
    all_stages: tuple[Stage, ...]
    tokens: tuple[TokenTrace, ...]
    coin: XtcFlag | None
    throws: tuple[UniformDraw, ...]

    @property
    def token_id(self) -> int:
        """The drawn token, exactly the one that `tirage.sample` draws; -1 when there is none."""
        return -1 if self.token is None else self.token.token_id

    def trace_of(self, token_id: int) -> TokenTrace:
        """The trace of a token that was followed; raises KeyError for another."""
        for trace in self.tokens:
            if trace.token.token_id == token_id:
                return trace
        raise KeyError(token_id)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages that the request turned on, in the order they ran."""
        return tuple(stage for stage in self.all_stages if not stage.off)
