"""The places at which a test has power: found by asking the server for texts, and for the laws along them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tirage.audit.context import AuditContext, first_token, only_sample
from tirage.audit.position import AuditPrompt, Position, position_of
from tirage.audit.server import NotTestedError
from tirage.engine import LogprobEntry
from tirage.remote.answer import AnswerPart

PROMPTS = (
    "Once upon a time there was a",
    "One day, a little girl named Lily",
    "Tom and his mom went to the",
    "The weather was nice, so they",
    "He looked at the big red",
    "The capital of France is",
    "My favourite things are",
    "Yesterday I saw a",
    "In the morning she likes to",
    "They were very happy because",
)
_LEAST, _MOST = 0.5, 2.4
_WANTED = 0.45
_POSITIONS = 12
_TOKENS = 20


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A prompt at whose end several tokens are likely, by an answer that went on with it."""

    prompt: AuditPrompt
    score: float


async def find_positions(context: AuditContext) -> tuple[Position, ...]:
    """Up to 12 positions of medium entropy, each asked for twice.

    Raises NotTestedError for a server that lists no log-probabilities.
    """
    params = [context.params(max_tokens=_TOKENS, logprobs=context.server.top) for _ in PROMPTS]
    answers = await context.server.ask_all(list(zip(PROMPTS, params, strict=True)))
    samples = [only_sample(answer) for answer in answers]
    if not any(sample.logprobs and sample.logprobs[0].top for sample in samples):
        raise NotTestedError("the server lists no log-probabilities")
    for sample in samples:
        context.remember(sample.logprobs)
    with context.computing():
        candidates = [each for pair in zip(PROMPTS, answers, strict=True) for each in _candidates(*pair)]
        best = sorted(candidates, key=lambda each: each.score)[:_POSITIONS]
    return await laws_at(context, [each.prompt for each in best])


async def laws_at(context: AuditContext, prompts: Sequence[AuditPrompt]) -> tuple[Position, ...]:
    """The usable ones of the positions at the ends of prompts, from two answers for each."""
    asked = [(prompt, context.params(logprobs=context.server.top)) for prompt in prompts for _ in range(2)]
    answers = await context.server.ask_all(asked)
    firsts = [first_token(answer) for answer in answers]
    context.remember([each for each in firsts if each is not None])
    with context.computing():
        pairs = zip(prompts, firsts[::2], firsts[1::2], strict=True)
        found = [position_of(prompt, [one, two]) for prompt, one, two in pairs if one and two]
        usable = tuple(each for each in found if each is not None and each.usable)
    context.laws |= {each.prompt: each for each in usable}
    context.prompt_ids |= {
        prompt: answer.prompt_token_ids
        for (prompt, _), answer in zip(asked, answers, strict=True)
        if answer.prompt_token_ids
    }
    return usable


def _candidates(prompt: str, answer: AnswerPart) -> Iterator[_Candidate]:
    """The places along a text: as token ids where the answer tells them all, else as far as the texts of tokens go."""
    sample = only_sample(answer)
    ids = answer.prompt_token_ids if len(sample.token_ids) == len(sample.logprobs) else None
    text = ""
    for place, entry in enumerate(sample.logprobs):
        if ids is None and not sample.text.startswith(text):
            return
        if _LEAST < (entropy := _entropy(entry)) < _MOST:
            so_far = prompt + text if ids is None else ids + sample.token_ids[:place]
            yield _Candidate(so_far, abs(entropy - 1.4) + _likely(entry))
        text += entry.text


def _entropy(entry: LogprobEntry) -> float:
    listed = np.array([each.logprob for each in entry.top if math.isfinite(each.logprob)])
    return float(-(np.exp(listed) * listed).sum())


def _likely(entry: LogprobEntry) -> float:
    """How far the largest probability is from one that leaves others room."""
    return abs(max((math.exp(each.logprob) for each in entry.top), default=1.0) - _WANTED)
