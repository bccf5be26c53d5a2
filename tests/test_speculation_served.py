"""Servers with drafts: what they answer, whole and streamed, is what a server without drafts answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from servers import Server, shared

FLAGS = {
    "lookup": ("--speculative-config", json.dumps({"method": "ngram", "num_speculative_tokens": 6})),
    "draft": ("--draft", "tiny"),
}
TWICE = "The red kite flew over the hill. The red kite flew over the hill. The red"
REQUESTS: list[dict[str, Any]] = [
    {"temperature": 0, "max_new_tokens": 40},
    {"temperature": 0.9, "top_p": 0.9, "sampling_seed": 3, "max_new_tokens": 40, "n": 3},
    {"temperature": 0.8, "sampling_seed": 5, "frequency_penalty": 0.6, "repetition_penalty": 1.1, "max_new_tokens": 30},
    {"temperature": 1.0, "sampling_seed": 1, "stop": ["kite", "."], "min_new_tokens": 4, "max_new_tokens": 40},
    {
        "temperature": 1.0,
        "sampling_seed": 2,
        "regex": "(the red kite and the blue ship ){4,6}end",
        "max_new_tokens": 60,
    },
]


@pytest.fixture(scope="module", params=FLAGS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server("tiny", *FLAGS[request.param]) as running:
        yield running


def answers(server: Server, params: dict[str, Any]) -> list[tuple[str, Any]]:
    """Texts and reasons of the samples of one request."""
    found = server.post("/generate", {"text": TWICE, "sampling_params": params}).json()
    each = found if isinstance(found, list) else [found]
    return [(one["text"], one["meta_info"]["finish_reason"]) for one in each]


def streamed(server: Server, params: dict[str, Any]) -> str:
    """The text of a stream of one sample."""
    body = {"text": TWICE, "sampling_params": params | {"n": 1}, "stream": True}
    lines = server.post("/generate", body).text.split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    return events[-1]["text"]


@pytest.mark.slow
def test_answers_whole_and_streamed_are_those_without_drafts(server: Server) -> None:
    before = server.metric("tirage_engine_accepted_tokens_total")
    for params in REQUESTS:
        expected = answers(shared(), params)
        assert answers(server, params) == expected, params
        assert streamed(server, params) == expected[0][0], params
    assert server.metric("tirage_engine_accepted_tokens_total") > before
    assert server.metric("tirage_engine_draft_tokens_total") >= server.metric("tirage_engine_accepted_tokens_total")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--speculative-config", "{"), "--speculative-config must be JSON"),
        (("--speculative-config", '{"method": "eagle"}'), "method"),
        (("--draft", "/nowhere"), "nowhere"),
    ],
)
def test_a_server_says_what_is_wrong_with_its_drafts_and_ends(flags: tuple[str, str], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        Server("tiny", *flags)
