"""No memory that nobody has written to reaches a client: two servers whose fresh memory differs answer alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from servers import Server

GREEDY: dict[str, Any] = {"temperature": 0, "max_new_tokens": 12, "sampling_seed": 3}
DRAWN: dict[str, Any] = {"sampling_seed": 7, "max_new_tokens": 12, "temperature": 1.3}
SCORES = {"return_logprob": True, "top_logprobs_num": 5, "logprob_start_len": 0, "token_ids_logprob": [5, 9]}
GENERATE: list[dict[str, Any]] = [
    {"text": "Once upon a time", "sampling_params": GREEDY, **SCORES},
    {"text": ["The dog", "A", "One day a bird"], "sampling_params": DRAWN | {"n": 2}, **SCORES},
    {"text": "The cat", "sampling_params": DRAWN | {"regex": "[a-z ]{3,20}"}, "return_logprob": True},
    {"text": "The cat", "sampling_params": DRAWN | {"min_p": 0.05, "top_k": 40, "frequency_penalty": 0.5}},
    {"text": "The cat", "sampling_params": DRAWN | {"stop": ["e "], "logit_bias": {"5": 3}}, "stream": True},
    {"text": "The owl", "sampling_params": {"max_new_tokens": 12, "beam_width": 3}},
]
STATES = {"text": "The owl", "sampling_params": GREEDY, "return_hidden_states": True}
CHAT = {
    "messages": [{"role": "user", "content": "Tell me of a fox"}], "seed": 5, "max_tokens": 10, "logprobs": True,
    "top_logprobs": 4, "n": 2,
}  # fmt: skip
CHANGING = {"id", "created", "e2e_latency", "response_sent_to_client_ts", "timings", "seed"}


def settled(value: Any) -> Any:
    """An answer without what differs from run to run."""
    if isinstance(value, dict):
        return {name: settled(each) for name, each in value.items() if name not in CHANGING}
    return [settled(each) for each in value] if isinstance(value, list) else value


def answers(byte: int, backend: str) -> list[Any]:
    """What a server answers whose fresh memory holds this byte."""
    environ = {
        "TIRAGE_TEST_POISON": str(byte),
        "MALLOC_PERTURB_": str(byte),
        "GLIBC_TUNABLES": f"glibc.malloc.perturb={byte}",
    }
    flags = ("--backend", backend, "--logits-processor", "plain=poison:plain")
    asked = [*(("/generate", body) for body in GENERATE), ("/v1/chat/completions", CHAT)]
    if backend == "torch":
        asked.append(("/generate", STATES))
    with Server("tiny", *flags, environ=environ, folders=(Path(__file__).parent,)) as server:
        # One after another: the prefixes that a request finds are then the same on both servers.
        found = [server.post(*one) for one in asked * 3]
    assert [one.status_code for one in found] == [200] * len(found)
    return [settled(read(one.text)) for one in found]


def read(text: str) -> Any:
    """The JSON of an answer, or of the events of a stream, without NaN and the like."""
    parts = [part for part in text.split("data: ")[1:] if not part.startswith("[DONE]")] or [text]
    return [json.loads(part, parse_constant=float) for part in parts][-1]


@pytest.mark.parametrize(
    "backend", [pytest.param("numpy", marks=pytest.mark.slow), pytest.param("torch", marks=pytest.mark.exhaustive)]
)
def test_what_lay_in_fresh_memory_never_shows(backend: str) -> None:
    first, second = answers(0xAB, backend), answers(0x5A, backend)
    assert first == second
    assert "nan" not in json.dumps(first).lower()
