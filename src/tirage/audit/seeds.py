"""Seeds: the same text for the same seed, alone and under load, and another one for another seed."""

from __future__ import annotations

import math

from tirage.audit.context import AuditContext, only_sample
from tirage.audit.evidence import Evidence, bernoulli
from tirage.audit.finding import Finding, judged
from tirage.audit.server import NotTestedError

_TOKENS = 12
_RARELY = 0.01
"""How often a server that repeats itself may fail to, by rounding."""
_FAULTS = {"a text in three is another": 0.33, "nearly every text is another": 0.95}
_PAIRS = 24


async def text_of(context: AuditContext, seed: int) -> str:
    """The text that a seed gives at the first position, or after a fixed prompt."""
    prompt = context.positions[0].prompt if context.positions else "Once upon a time there was a"
    answer = await context.server.ask(prompt, context.params(seed=seed, max_tokens=_TOKENS))
    return only_sample(answer).text


def _seeds(context: AuditContext, count: int) -> list[int]:
    return [context.random.randrange(1, 2**31) for _ in range(count)]


async def check_seed(context: AuditContext) -> Finding:
    """Whether a seed gives its text again, one request at a time."""
    evidence = context.evidence()
    prediction = bernoulli(_RARELY, _FAULTS)
    for seed in _seeds(context, _PAIRS):
        is_other = await text_of(context, seed) != await text_of(context, seed)
        context.add(evidence, prediction, int(is_other))
        if evidence.rejected or not evidence.uncleared():
            break
    return judged(
        "seed",
        evidence,
        kept="a seed gives its text again",
        broken="a seed gives another text when it is sent again, alone",
    )


async def check_seed_under_load(context: AuditContext) -> Finding:
    """Whether a seed gives its text again beside other requests."""
    evidence = context.evidence()
    prediction = bernoulli(_RARELY, _FAULTS)
    seeds = _seeds(context, _PAIRS)
    prompt = context.positions[0].prompt if context.positions else "Once upon a time there was a"
    while seeds and not evidence.rejected and (evidence.uncleared() or not evidence.outcomes):
        some, seeds = seeds[:6], seeds[6:]
        alone = [await text_of(context, seed) for seed in some]
        beside = _seeds(context, 4)
        asked = [(prompt, context.params(seed=seed, max_tokens=_TOKENS)) for seed in (*some, *beside)]
        answers = await context.server.ask_all(asked)
        for one, answer in zip(alone, answers, strict=False):
            context.add(evidence, prediction, int(one != only_sample(answer).text))
    return judged(
        "seed under load",
        evidence,
        kept="a seed gives its text again beside other requests",
        broken="a seed gives another text beside other requests than alone",
    )


async def check_another_seed(context: AuditContext) -> Finding:
    """Whether another seed gives another text. Raises NotTestedError where texts would be the same anyway."""
    evidence = context.evidence()
    most = _collision(context)
    if most > 0.8:
        raise NotTestedError("no place was found where two seeds would give different texts")
    prompt = context.positions[0].prompt if context.positions else "Once upon a time there was a"
    asked = [(prompt, context.params(seed=seed, max_tokens=_TOKENS)) for seed in _seeds(context, 24)]
    texts = [only_sample(answer).text for answer in await context.server.ask_all(asked)]
    with context.computing():
        _add_pairs(evidence, texts, most)
    return judged(
        "another seed",
        evidence,
        kept="other seeds give other texts",
        broken="other seeds give the same text",
    )


def _collision(context: AuditContext) -> float:
    """How likely two texts are the same, at most: by their first tokens, where the law is known."""
    if not context.positions:
        return 0.5
    probabilities = [float(value) for value in context.positions[0].logprobs]
    return sum(math.exp(value) ** 2 for value in probabilities) + context.positions[0].tail ** 2


def _add_pairs(evidence: Evidence, texts: list[str], most: float) -> None:
    """Holds pairs of texts with nothing in common against a server that gives one text for all seeds."""
    for one, other in zip(texts[::2], texts[1::2], strict=True):
        evidence.add(bernoulli(most, {"all seeds give one text": 0.98}, kept=min(most, 0.5)), int(one == other))
