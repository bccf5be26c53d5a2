"""Penalties: whether a word that a prompt repeats is drawn as much more rarely as they say.

A prompt is one word `m` times, so that the history of the next tokens is known; its law after `m`, `m + 1`, ... words
comes from the server. Answers are followed as long as they repeat the word.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.audit.context import AuditContext, only_sample
from tirage.audit.evidence import Evidence, Prediction, bernoulli, separation
from tirage.audit.finding import Finding, judged
from tirage.audit.parameters import predicted
from tirage.audit.position import Position, softmax
from tirage.audit.search import laws_at
from tirage.audit.server import NotTestedError
from tirage.remote.answer import SamplePart
from tirage.semantics import PRESETS

WORDS = ("very", "no", "big", "go", "up", "more", "red", "one")
_COUNTS = (2, 3, 4)
_STEPS = 3
_MOST = 240
_WANTED = 0.65
"""How likely the word is made, if it can be: rare enough to be seen likelier, and likely enough to be seen gone."""
LEAST_LOGIT = 2.0
"""The least absolute value that a likely token's logit is taken to have. The repetition penalty divides or multiplies
logits, which a server does not tell; those of language models are larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedWord:
    """A prompt of one word `times` times, and the positions after it and after each further one, up to three.

    `indices` are the places of the word among the tokens listed there. Every request has `logit_bias` for the word,
    `bias` by its `token_id`, where the word would else be too rare; a bias of 0 is none.
    """

    times: int
    positions: tuple[Position, ...]
    indices: tuple[int, ...]
    token_id: int | None = None
    bias: float = 0.0

    @property
    def likely(self) -> float:
        """The probability that the word follows once more at the first and at the second position."""
        return math.prod(self.probability(step) for step in range(2))

    def probability(self, step: int) -> float:
        """The probability that the word follows at a position, with its bias."""
        return _moved(math.exp(self.positions[step].logprobs[self.indices[step]]), self.bias)

    def law(self, step: int, shift: float) -> NDArray[np.float64]:
        """The law [K] of the listed tokens at a position, with its bias and something more added to its logit."""
        logits = self.positions[step].logprobs.copy()
        logits[self.indices[step]] += self.bias + shift
        return softmax(logits)

    def asked(self) -> dict[str, Any]:
        """The bias as a parameter of a request."""
        return {"logit_bias": {self.token_id: self.bias}} if self.bias else {}


async def find_repeated(context: AuditContext) -> list[RepeatedWord]:
    """The words that may well follow themselves. Raises NotTestedError where there are none."""
    if not context.positions:
        raise NotTestedError(context.no_positions)
    prompts = [" ".join([word] * count) for word in WORDS for count in _COUNTS]
    if prompts[0] not in context.laws and prompts[-1] not in context.laws:
        await laws_at(context, prompts)
    pairs = [(word, count) for word in WORDS for count in _COUNTS[:-1]]
    with context.computing():
        words = [one for pair in pairs if (one := _repeated(context, *pair)) is not None]
    if not words:
        raise NotTestedError("no word was found that is likely to follow itself")
    return words


def _repeated(context: AuditContext, word: str, times: int) -> RepeatedWord | None:
    """The word after so many of it, with a bias where there is one to be had; None where it is not listed."""
    positions, indices = [], []
    prompts = [" ".join([word] * count) for count in range(times, times + _STEPS)]
    told = next((ids[-1] for prompt in prompts[1:] if (ids := context.prompt_ids.get(prompt))), None)
    token_id = context.ids.get(f" {word}") if told is None else told
    for prompt in prompts:
        position = context.laws.get(prompt)
        key = token_id if position is not None and position.by_id else f" {word}"
        index = position.keys.index(key) if position is not None and key in position.keys else None
        if position is None or index is None or not _goes_on(context, prompts[0], prompt):
            break
        positions.append(position)
        indices.append(index)
    if len(positions) < 2:
        return None
    plain = RepeatedWord(times=times, positions=tuple(positions), indices=tuple(indices))
    if token_id is None or not context.biased:
        return plain
    rarest = min(plain.probability(step) for step in range(2))
    bias = min(10.0, max(0.0, round(_logit(_WANTED) - _logit(rarest), 1)))
    return replace(plain, token_id=token_id, bias=bias)


def _goes_on(context: AuditContext, first: str, prompt: str) -> bool:
    """Whether the tokens of a prompt are those of the first one and one more for each word, as far as they are told."""
    one, other = context.prompt_ids.get(first), context.prompt_ids.get(prompt)
    if one is None or other is None:
        return True
    more = prompt.count(" ") - first.count(" ")
    return other[: len(one)] == one and len(other) == len(one) + more and len(set(other[len(one) :])) <= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PenaltyProbe:
    """A word, the value of the penalty, and what is promised at each step of an answer that repeats the word."""

    word: RepeatedWord
    value: float
    steps: tuple[Prediction, ...]

    @property
    def power(self) -> float:
        """Nats an answer, by how likely each step is."""
        reached, total = 1.0, 0.0
        for step, (prediction, index) in enumerate(zip(self.steps, self.word.indices, strict=False)):
            names = [each for each in prediction.faults if step or each != "it is ignored"]
            total += reached * separation(prediction, names) if names else 0.0
            reached *= float(prediction.high[index])
        return total + self._ignored()

    def _ignored(self) -> float:
        reached = float(self.steps[0].high[self.word.indices[0]])
        return 3 * reached * separation(self.steps[1], ["it is ignored"])


async def check_additive(context: AuditContext, name: str) -> Finding:
    """Whether a frequency or presence penalty is subtracted from the logits of tokens, and of which."""
    words = await find_repeated(context)
    with context.computing():
        probes = [_additive(context, name, word, value) for word in words for value in (1.0, 2.0)]
        probe = max(probes, key=lambda each: each.power)
    evidence = context.evidence()
    await _follow(context, {name: probe.value}, probe, evidence)
    about = f"{name}={probe.value:g}"
    return judged(
        name,
        evidence,
        kept=f"{about}: the draws follow the law",
        broken=f"{about}: {evidence.fault}",
    )


async def _follow(context: AuditContext, values: Mapping[str, Any], probe: PenaltyProbe, evidence: Evidence) -> None:
    """Adds answers to the evidence until it says enough."""
    for _ in range(_MOST // 8):
        if evidence.rejected or (evidence.outcomes >= 24 and not evidence.uncleared()):
            break
        given = {**values, **probe.word.asked(), "max_tokens": len(probe.steps), "logprobs": 1}
        params = [context.params(**given) for _ in range(8)]
        prompt = probe.word.positions[0].prompt
        for answer in await context.server.ask_all([(prompt, each) for each in params]):
            _add_steps(context, probe, only_sample(answer), evidence)


def _add_steps(context: AuditContext, probe: PenaltyProbe, sample: SamplePart, evidence: Evidence) -> None:
    """Adds the tokens of an answer, as long as it repeats the word."""
    with context.computing():
        for step, (prediction, entry) in enumerate(zip(probe.steps, sample.logprobs, strict=False)):
            index = probe.word.positions[step].index(entry)
            if index < len(prediction.high):
                evidence.add(prediction, index)
            if index != probe.word.indices[step]:
                break


def _additive(context: AuditContext, name: str, word: RepeatedWord, value: float) -> PenaltyProbe:
    """What a penalty promises at each step, whether it counts the prompt or not, and what faults make of it."""
    option = {"frequency_penalty": "frequency_history", "presence_penalty": "presence_history"}[name]
    right = [PRESETS[context.promise]] if context.promise else [PRESETS["openai"], PRESETS["llamacpp"]]
    histories = {getattr(each, option) for each in right}
    steps = []
    for step, position in enumerate(word.positions):
        # The first word of the prompt may be another token than those after a space.
        counts = {"output": [step], "both": [step + word.times, step + word.times - 1]}
        kept = [word.law(step, -value * _times(name, n)) for each in sorted(histories) for n in counts[each]]
        own = counts[min(histories)][0]
        faults = {
            "it is ignored": word.law(step, 0.0),
            "it is added, not subtracted": word.law(step, value * _times(name, own)),
        }
        if histories == {"output"}:
            shift = -value * _times(name, counts["both"][0])
            faults["it counts the tokens of the prompt too"] = word.law(step, shift)
        if histories == {"both"}:
            faults["it does not count the prompt"] = word.law(step, -value * _times(name, step))
        low, high = np.min(kept, axis=0), np.max(kept, axis=0)
        steps.append(predicted(low, high, faults, position, learn=f" {step}"))
    return PenaltyProbe(word=word, value=value, steps=tuple(steps))


def _times(name: str, count: int) -> int:
    """How many times a penalty is subtracted for a token that was there so often."""
    return count if name == "frequency_penalty" else min(count, 1)


async def check_repetition(context: AuditContext) -> Finding:
    """Whether a repetition penalty above 1 makes a repeated word rarer: how often it is drawn twice in a row.

    Raises NotTestedError where no word repeats often enough.
    """
    words = await find_repeated(context)
    value = 2.0 if context.server.dialect_name in ("sglang", "tirage") else 5.0
    least = LEAST_LOGIT * (1 - 1 / value)
    with context.computing():
        word = max(words, key=lambda each: _repetition(each, least)[1])
        prediction, power = _repetition(word, least)
    if power < 0.02:
        raise NotTestedError("no word was found that follows itself often enough to see a penalty")
    evidence = context.evidence()
    for _ in range(_MOST // 8):
        given = {"repetition_penalty": value, **word.asked(), "max_tokens": 2, "logprobs": 1}
        params = [context.params(**given) for _ in range(8)]
        prompt = word.positions[0].prompt
        for answer in await context.server.ask_all([(prompt, each) for each in params]):
            entries = only_sample(answer).logprobs
            same = [
                word.positions[i].index(entry) == index
                for i, (index, entry) in enumerate(zip(word.indices[:2], entries, strict=False))
            ]
            context.add(evidence, prediction, int(len(same) == 2 and all(same)))
        if evidence.rejected or not evidence.uncleared():
            break
    about = f"repetition_penalty={value:g}"
    return judged(
        "repetition_penalty",
        evidence,
        kept=f"{about}: a repeated word is drawn more rarely",
        broken=f"{about}: {evidence.fault}",
    )


def _repetition(word: RepeatedWord, least: float) -> tuple[Prediction, float]:
    """What is promised of "the word twice more", if the penalty takes at least `least` off its second logit."""
    first, second = (word.probability(step) for step in range(2))
    noise = math.exp(2 * word.positions[0].noise)
    high = min(0.98, first * _moved(second, -least) * noise)
    raised = _moved(first, least) * _moved(second, least)
    faults = {"it is ignored": max(word.likely, high), "it makes repeated words likelier": max(raised, high)}
    prediction = bernoulli(high, faults)
    return prediction, float(np.minimum(separation(prediction, ["it is ignored"]), 3.0))


def _logit(probability: float) -> float:
    """The logarithm of the odds."""
    return math.log(probability / max(1 - probability, 1e-9))


def _moved(probability: float, shift: float) -> float:
    """A probability after something is added to its logit."""
    odds = probability / max(1 - probability, 1e-9) * math.exp(shift)
    return odds / (1 + odds)
