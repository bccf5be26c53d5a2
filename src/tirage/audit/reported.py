"""Log-probabilities: whether they are some, and those of the draws; whether samples of a request are independent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tirage.audit.context import AuditContext, LawProbe, choose, draw_until, first_token, shares_of, widened
from tirage.audit.evidence import Evidence, Prediction
from tirage.audit.finding import Finding, judged
from tirage.audit.parameters import predicted
from tirage.audit.position import Position, softmax
from tirage.audit.server import NotTestedError
from tirage.engine import LogprobEntry

_SUM = 1.005
"""The largest sum of probabilities that rounding explains."""
_OTHERS: Mapping[str, float] = {"0.6": 0.6, "1.6": 1.6}


async def check_logprobs(context: AuditContext) -> Finding:
    """Whether listed probabilities sum to at most 1 and fall, and draws at temperature 1 follow them."""
    wrong = next((text for each in context.positions if (text := _malformed(each))), None)
    if wrong is not None:
        return Finding(name="logprobs", verdict="not obeyed", detail=wrong)
    probes = choose(context, (1.0,), lambda position, value: _plain_probe(context, position), count=3)
    evidence = context.evidence()
    drawn = await draw_until(context, probes, evidence)
    context.notes.append(await _mode(context, probes[0].position))
    return judged(
        "logprobs",
        evidence,
        kept="they sum to at most 1, fall, and draws at temperature 1 follow them",
        broken=f"draws at temperature 1 do not follow them: {evidence.fault}",
        shares=shares_of(probes[0], drawn[0]),
    )


def _malformed(position: Position) -> str | None:
    total = float(np.exp(position.logprobs).sum())
    if total > _SUM or position.logprobs[0] > math.log(_SUM):
        return f"the listed probabilities sum to {total:.3f}"
    return None


def _plain_probe(context: AuditContext, position: Position) -> LawProbe:
    """Draws at temperature 1, against laws of other temperatures."""
    faults = {f"they fit temperature {name}": softmax(position.logprobs / value) for name, value in _OTHERS.items()}
    kept = softmax(position.logprobs)
    return LawProbe(position=position, params=context.params(), prediction=predicted(kept, kept, faults, position))


async def _mode(context: AuditContext, position: Position) -> str:
    """A note on whether log-probabilities are those before or after the temperature."""
    answer = await context.server.ask(position.prompt, context.params(temperature=0.5, logprobs=context.server.top))
    found = first_token(answer)
    if found is None:
        return "at temperature 0.5 no log-probabilities are listed"
    listed = [each for each in found.top if position.index(each) < len(position.keys)][:5]
    raw, after = _distances(position, listed)
    if min(raw, after) > 0.05:
        return "log-probabilities at temperature 0.5 are neither those before nor those after the temperature"
    return f"log-probabilities are those {'before' if raw < after else 'after'} the temperature"


def _distances(position: Position, listed: Sequence[LogprobEntry]) -> tuple[float, float]:
    """The largest difference of the listed log-probabilities from those at temperature 1, and at 0.5; of their gaps."""
    told = np.array([each.logprob for each in listed])
    own = np.array([position.logprobs[position.index(each)] for each in listed])
    if len(listed) < 2:
        return math.inf, math.inf
    gaps, own_gaps = told - told[0], own - own[0]
    return float(np.abs(gaps - own_gaps).max()), float(np.abs(gaps - 2 * own_gaps).max())


async def check_n(context: AuditContext) -> Finding:
    """Whether `n` samples come, and are independent. Raises NotTestedError without positions."""
    if not context.positions:
        raise NotTestedError(context.no_positions)
    position = max(context.positions, key=lambda each: each.entropy)
    evidence = context.evidence()
    while evidence.outcomes < 48 and not evidence.rejected and (evidence.uncleared() or evidence.outcomes < 12):
        params = [context.params(n=4, logprobs=1) for _ in range(2)]
        for answer in await context.server.ask_all([(position.prompt, each) for each in params]):
            if len(answer.samples) != 4:
                detail = f"n=4 gives {len(answer.samples)} samples"
                return Finding(name="n", verdict="not obeyed", detail=detail, requests=1)
            entries = [sample.logprobs[0] for sample in answer.samples if sample.logprobs]
            _add_samples(context, position, evidence, entries)
    return judged("n", evidence, kept="n=4 samples are independent", broken="n=4 samples of a request are copies")


def _add_samples(
    context: AuditContext, position: Position, evidence: Evidence, entries: Sequence[LogprobEntry]
) -> None:
    """Holds the first tokens of all samples but the first one against the law, and against copies of the first."""
    with context.computing():
        law = np.append(np.exp(position.logprobs), position.tail)
        first, *others = (position.index(entry) for entry in entries)
        copies = 0.05 * law / law.sum()
        copies[first] += 0.95
        least, most = widened(law, law, position.noise)
        for index in others:
            evidence.add(Prediction(low=least, high=most, faults={"copies": copies}), index)
