"""Random schedules of requests that come, go and are aborted in one scheduler: each draws what it draws alone.

Two kinds of models run them. One decodes each row by itself, so that its logits are those of a row that is alone, bit
by bit; there the log-probabilities must be equal too. The other decodes rows together, as it does in the server.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from small_torch import Numbers, build

from tirage import LLM, GuidedDecodingParams, Prompt, SamplingParams, warmup
from tirage.engine import SchedulerConfig, SequenceGroup
from tirage.engine.scheduler import Scheduler
from tirage.models.huggingface import wrap_module

_BASE = SamplingParams(max_tokens=14, ignore_eos=True, logprobs=3)
FEATURES: tuple[SamplingParams, ...] = (
    _BASE,
    _BASE.replace(temperature=0),
    _BASE.replace(temperature=1.7, top_k=40, top_p=0.9, n=2),
    _BASE.replace(min_p=0.02, frequency_penalty=0.7, presence_penalty=0.4, repetition_penalty=1.2),
    _BASE.replace(stop=["e", "7 "], min_tokens=3),
    _BASE.replace(logit_bias={9: 4.0, 12: -3.0}, bad_words_token_ids=[5, (9, 12)], stop_token_ids=[17]),
    _BASE.replace(
        semantics="canonical", dry_multiplier=1.0, dry_sequence_breakers=(), no_repeat_ngram_size=3, top_n_sigma=2.0
    ),
    _BASE.replace(semantics="canonical", xtc_probability=0.5, xtc_threshold=0.05, temperature=1.2, logprobs=None),
    _BASE.replace(guided_decoding=GuidedDecodingParams(regex="[0-9a-z ]{4,30}")),
    _BASE.replace(best_of=3, n=1),
)
PROMPTS: tuple[tuple[int, ...], ...] = tuple(
    tuple(int(token) for token in np.random.default_rng(length).integers(4, 196, length))
    for length in (1, 3, 9, 20, 40)
)
REQUESTS = len(FEATURES) * len(PROMPTS)
MAX_RUNNING = 6


class OneByOne:
    """A model that decodes rows one after another, whatever rows there are."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        if name == "choose_prefill" or name == "prefill_batch":
            raise AttributeError(name)
        return getattr(self._model, name)

    def decode(self, token_ids: Sequence[int], caches: Sequence[Any]) -> NDArray[np.float32]:
        """Logits float32 [B, V] of each row by itself."""
        rows = [self._model.decode([token], [row]) for token, row in zip(token_ids, caches, strict=True)]
        return np.concatenate(rows)


@cache
def opened(name: str, *, one_by_one: bool) -> LLM:
    """The model of a name: "tiny", or "torch", a random Llama of transformers' own code.

    Read one by one its prompts are too: on some processors the last token of a prompt read whole has other last bits
    than one that continues a kept prefix.
    """
    if name == "tiny":
        return LLM("tiny", backend="numpy")
    model = wrap_module(build("llama"), prefill_batch_tokens=0)
    if one_by_one:
        model.chunk = 1
    return LLM(model, tokenizer=Numbers())


@dataclass(frozen=True, slots=True)
class Outcome:
    """The tokens of each sample, and the log-probabilities that its answer holds for them."""

    tokens: tuple[tuple[int, ...], ...]
    logprobs: tuple[Any, ...]


def outcome(request: Any) -> Outcome:
    """What has come of a request so far, every sample of it."""
    samples = request.samples
    return Outcome(
        tuple(tuple(sample.token_ids) for sample in samples), tuple(tuple(sample.entries) for sample in samples)
    )


@dataclass(slots=True)
class Lives:
    """What some schedules had in them, and what differed from what was expected."""

    requests: int = 0
    aborted: int = 0
    differences: list[str] = field(default_factory=list)


@dataclass(slots=True)
class World:
    """A scheduler over one model, and what each request draws alone in it."""

    llm: LLM
    model: Any

    def scheduler(self) -> Scheduler:
        return Scheduler(self.model, self.llm.tokenizer, config=SchedulerConfig(max_running=MAX_RUNNING))

    def group(self, key: int, *, salt: str) -> SequenceGroup:
        """The request of a key: its parameters, seed and prompt follow from it."""
        params = FEATURES[key % len(FEATURES)].replace(seed=1000 + key)
        if params.guided_decoding is not None and self.llm.folder is None:
            params = params.replace(guided_decoding=None)
        prompt = Prompt(token_ids=PROMPTS[key // len(FEATURES)], salt=salt)
        return SequenceGroup(self.llm.request(prompt, params), lambda sample: None)

    def alone(self, key: int) -> Outcome:
        """What the request of a key draws by itself, to its end."""
        scheduler, group = self.scheduler(), self.group(key, salt=f"alone {key}")
        scheduler.add(group)
        while scheduler.busy:
            scheduler.step()
        return outcome(group.request)

    def live(self, seed: int, expected: Callable[[int], Outcome], lives: Lives, *, logprobs: bool) -> None:
        """Runs the schedule of a seed, and adds it to what is known of those before."""
        pick = np.random.default_rng(seed)
        scheduler = self.scheduler()
        running: list[tuple[int, SequenceGroup, bool]] = []
        for number in range(int(pick.integers(2, 9))):
            key = int(pick.integers(REQUESTS))
            # Some share their prefixes with the others of this schedule, some have a tenant of their own.
            running.append((key, self.group(key, salt=str(int(pick.integers(3)) or f"own {number}")), False))
            scheduler.add(running[-1][1])
            for _ in range(int(pick.integers(6))):
                scheduler.step()
            if pick.random() < 0.4:
                index = int(pick.integers(len(running)))
                scheduler.abort(running[index][1])
                running[index] = (*running[index][:2], True)
        while scheduler.busy:
            scheduler.step()
        lives.requests += len(running)
        lives.aborted += sum(aborted for *_, aborted in running)
        lives.differences += [
            f"schedule {seed}, request {key}: {difference}"
            for key, group, aborted in running
            if (difference := differs(outcome(group.request), expected(key), aborted=aborted, logprobs=logprobs))
        ]


def differs(found: Outcome, expected: Outcome, *, aborted: bool, logprobs: bool) -> str:
    """In what an outcome differs from what is expected; of an aborted one all that it has must be expected."""
    for index, (tokens, wanted) in enumerate(zip(found.tokens, expected.tokens, strict=True)):
        if tokens != (wanted[: len(tokens)] if aborted else wanted):
            return f"sample {index} has the tokens {tokens}, alone {wanted}"
        if logprobs and found.logprobs[index] != expected.logprobs[index][: len(found.logprobs[index])]:
            return f"sample {index} has other log-probabilities"
    return ""


MODELS: Mapping[str, tuple[str, bool]] = {
    "tiny": ("tiny", False),
    "tiny, one by one": ("tiny", True),
    "torch": ("torch", False),
    "torch, one by one": ("torch", True),
}
"""By name: the model, and whether it decodes rows one by one."""


def isolation(
    *, count: int = 10_000, names: Sequence[str] = tuple(MODELS), seed: int = 0, minutes: float = math.inf
) -> Iterator[dict[str, Any]]:
    """So many schedules, shared among the models: no token differs, nor a log-probability where logits are equal.

    There are fewer when so many `minutes` are over, of which each model has its part. The kernels are made ready first:
    a schedule over the plain path costs twice as much, and a server draws by the kernels.
    """
    warmup()
    for name in names:
        base, one_by_one = MODELS[name]
        llm = opened(base, one_by_one=one_by_one)
        world = World(llm, OneByOne(llm.engine.model) if one_by_one else llm.engine.model)
        expected, lives = cache(world.alone), Lives()
        began, spent, schedules = time.monotonic(), time.process_time(), -(-count // len(names))
        for number in range(seed, seed + schedules):
            if time.monotonic() - began > 60 * minutes / len(names):
                schedules = number - seed
                break
            world.live(number, expected, lives, logprobs=one_by_one)
        took, spent = time.monotonic() - began, time.process_time() - spent
        yield {
            "case": f"isolation, {name}",
            "schedules": schedules,
            "seed": seed,
            "requests": lives.requests,
            "aborted": lives.aborted,
            "logprobs": one_by_one,
            "seconds": round(took),
            "processor_s": round(spent),
            "differences": len(lives.differences),
            "failures": lives.differences[:10],
        }
