"""What all checks of an audit share: the server, the places found in its texts, and the draws of a test."""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tirage.audit.evidence import Evidence, Prediction, separation
from tirage.audit.finding import PresetFit, TokenShare
from tirage.audit.position import AuditPrompt, Position
from tirage.audit.server import AuditedServer, NotTestedError
from tirage.engine import LogprobEntry
from tirage.params import SamplingParams
from tirage.remote.answer import AnswerPart, SamplePart

MOST_DRAWS = 320
_FEWEST_DRAWS = 24
_POWER = 0.03
"""The least divergence, in nats a draw, at which a test is begun."""


@dataclass(slots=True, kw_only=True)
class AuditContext:
    """A running audit. `threshold` is the logarithm of the stake that rejects a promise.

    `positions` are those with several likely next tokens, `laws` all that were asked for, by prompt. `ids` are the
    token ids that answers have told, by text, and `prompt_ids` those of prompts; `biased` says whether logit_bias is
    known to be obeyed, `no_positions` why there are none.
    `promise` is the name of the preset that the server is held to, None for none, and `fit` how the presets fit.
    """

    server: AuditedServer
    threshold: float
    random: random.Random
    promise: str | None = None
    positions: tuple[Position, ...] = ()
    ids: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    arithmetic_s: float = 0.0
    no_positions: str = "no place was found where several tokens are likely, with their log-probabilities"
    fit: PresetFit | None = None
    biased: bool = False
    laws: dict[AuditPrompt, Position] = field(default_factory=dict)
    prompt_ids: dict[AuditPrompt, tuple[int, ...]] = field(default_factory=dict)

    def params(self, **values: object) -> SamplingParams:
        """Parameters to send: temperature 1, a fresh seed if the dialect has one, all else off, and these values."""
        seed = {"seed": self.random.randrange(1, 2**31)} if self.server.has("seed") else {}
        plain = {"temperature": 1.0, "max_tokens": 1, "semantics": self.server.preset, **seed, **values}
        return SamplingParams(**plain)  # type: ignore[arg-type]

    def evidence(self) -> Evidence:
        """Evidence with nothing in it yet."""
        return Evidence(self.threshold)

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """A block whose time counts as the audit's own arithmetic."""
        began = time.process_time()
        try:
            yield
        finally:
            self.arithmetic_s += time.process_time() - began

    def add(self, evidence: Evidence, prediction: Prediction, outcome: int) -> None:
        """Takes an outcome in, as arithmetic."""
        with self.computing():
            evidence.add(prediction, outcome)

    def remember(self, entries: Sequence[LogprobEntry]) -> None:
        """Keeps the ids of tokens that an answer tells."""
        for entry in itertools.chain(entries, *(each.top for each in entries)):
            if entry.token_id >= 0:
                self.ids[entry.text] = entry.token_id


@dataclass(frozen=True, slots=True, kw_only=True)
class LawProbe:
    """A position, the parameters to draw with, and what is promised of the next token."""

    position: Position
    params: SamplingParams
    prediction: Prediction


def widened(
    low: NDArray[np.float64], high: NDArray[np.float64], noise: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bounds of probabilities [K] widened by a factor whose logarithm is `noise`."""
    factor = float(np.exp(noise))
    return low / factor, np.minimum(high * factor, 1.0)


def choose(
    context: AuditContext,
    values: Sequence[object],
    make: Callable[[Position, object], LawProbe | None],
    *,
    count: int = 2,
) -> list[LawProbe]:
    """The probes, each at another position, that tell the promise from its faults with the fewest draws.

    Raises NotTestedError where the server has too few positions that list tokens, or none of them tells enough.
    """
    if not context.positions:
        raise NotTestedError(context.no_positions)
    found: list[tuple[float, LawProbe]] = []
    with context.computing():
        for position in context.positions:
            probes = [probe for value in values if (probe := make(position, value)) is not None]
            scored = [(separation(probe.prediction), probe) for probe in probes]
            found += sorted(scored, key=lambda pair: -pair[0])[:1]
    best = sorted(found, key=lambda pair: -pair[0])[:count]
    if not best or best[0][0] < _POWER:
        raise NotTestedError("at no place found would these parameters change the draws enough to be seen")
    return [probe for score, probe in best if score >= best[0][0] / 2]


async def draw_until(context: AuditContext, probes: Sequence[LawProbe], evidence: Evidence) -> list[list[int]]:
    """The indices of the tokens drawn with each probe, in turn, until the evidence says enough or too much is drawn."""
    drawn: list[list[int]] = [[] for _ in probes]
    for which in itertools.cycle(range(len(probes))):
        if evidence.outcomes >= _FEWEST_DRAWS and not evidence.uncleared():
            break
        if evidence.rejected or sum(map(len, drawn)) >= MOST_DRAWS:
            break
        probe = probes[which]
        for index in await draws_of(context, probe):
            drawn[which].append(index)
            if index < len(probe.prediction.high):
                context.add(evidence, probe.prediction, index)
    return drawn


async def draws_of(context: AuditContext, probe: LawProbe, *, count: int = 8) -> list[int]:
    """The indices of tokens drawn at a probe's position, `count` at once, each with a seed of its own."""
    asked = []
    for _ in range(count):
        seed = context.params().seed
        asked.append((probe.position.prompt, probe.params.replace(seed=seed, logprobs=1)))
    answers = await context.server.ask_all(asked)
    firsts = [first_token(answer) for answer in answers]
    context.remember([each for each in firsts if each is not None])
    none = len(probe.position.keys)
    return [none if each is None else probe.position.index(each) for each in firsts]


def first_token(answer: AnswerPart) -> LogprobEntry | None:
    """The first token of the first sample with its log-probability; None where the answer does not tell it."""
    sample = only_sample(answer)
    return sample.logprobs[0] if sample.logprobs else None


def only_sample(answer: AnswerPart) -> SamplePart:
    """The first sample. Raises NotTestedError for an answer without any."""
    if not answer.samples:
        raise NotTestedError("the server answers with no sample")
    return answer.samples[0]


def shares_of(probe: LawProbe, drawn: Sequence[int], *, most: int = 8) -> tuple[TokenShare, ...]:
    """The bars of a plot: the likeliest tokens as promised, and all that were drawn although they are not."""
    texts = [*probe.position.texts, "others"]
    held = [index for index in drawn if index < len(probe.prediction.high)]
    counts = {index: held.count(index) / max(len(held), 1) for index in set(held)}
    low, high = probe.prediction.low, probe.prediction.high
    order = sorted(range(len(high)), key=lambda i: -max(float(high[i]), counts.get(i, 0.0)))[:most]
    return tuple(
        TokenShare(token=texts[i], low=float(low[i]), high=float(high[i]), drawn=counts.get(i, 0.0)) for i in order
    )
