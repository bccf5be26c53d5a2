"""What admission by cost adds to a request, in processor time of one thread: `python -m benchmarks.admission`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.harness import interleaved, save
from tirage import LLM, GuidedDecodingParams, Prompt, SamplingParams
from tirage.engine.mask_turns import MaskTurns
from tirage.server.admission import check_cost
from tirage.server.engine_input import EngineInput
from tirage.server.options import Limits

CONTEXT, REPEATS, ROUNDS = 131_072, 100, 31
SCHEMA = {"type": "object", "properties": {f"p{i}": {"enum": [f"v{j}" for j in range(10)]} for i in range(100)}}


def one(text: str = "Once upon a time there was a fox. " * 20, **params: Any) -> EngineInput:
    given: dict[str, Any] = {"max_tokens": 100} | params
    return EngineInput(prompt=Prompt(text=text), params=SamplingParams(**given))


REQUESTS: dict[str, list[EngineInput]] = {
    "a plain request": [one()],
    "a chat": [
        EngineInput(messages=[{"role": "user", "content": "Tell me of a fox"}] * 9, params=SamplingParams(max_tokens=9))
    ],
    "stops, bad words and logprobs": [one(stop=["\n\n", "User:"], bad_words=["bad", "words"], logprobs=5)],
    "a schema of 100 properties": [one(guided_decoding=GuidedDecodingParams(json=SCHEMA))],
    "128 prompts of one request": [one()] * 128,
}


def admitted(inputs: list[EngineInput]) -> Callable[[], None]:
    """Admits a request many times."""
    limits = Limits()

    def job() -> None:
        for _ in range(REPEATS):
            check_cost(inputs, limits, context=CONTEXT)

    return job


def turns(count: int) -> Callable[[], None]:
    """Asks many times which of so many samples without a constraint may be drawn."""
    with LLM("tiny") as llm:
        samples = [llm.request("a", SamplingParams(max_tokens=9, seed=1)).samples[0] for _ in range(count)]
    masks = MaskTurns()

    def job() -> None:
        for _ in range(REPEATS):
            masks.ready(samples)

    return job


def main() -> None:
    jobs = {f"admission: {name}": admitted(inputs) for name, inputs in REQUESTS.items()}
    jobs |= {f"a step of {count} plain samples: masks": turns(count) for count in (1, 64)}
    times = interleaved(jobs, rounds=ROUNDS)
    rows = [{"what": name, "microseconds": round(seconds / REPEATS * 1e6, 2)} for name, seconds in times.items()]
    save("admission", rows, notes="processor time; the limit for a plain request is 50 microseconds")


if __name__ == "__main__":
    main()
