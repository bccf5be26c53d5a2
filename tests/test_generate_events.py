"""The events of `/generate`, which are put together from JSON made ahead, against ones that are made as a whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from small_models import Script
from small_tokenizers import byte_level_tokenizer

from tirage import LLM
from tirage.engine import Delta
from tirage.server import sse
from tirage.server.engine_input import ModelInfo
from tirage.server.options import Options
from tirage.server.request_group import RunningRequest
from tirage.server.request_manager import make_request
from tirage.server.routes.generate import call_of, speller
from tirage.server.routes.sglang_request import read_body
from tirage.server.routes.sglang_shapes import Scores, finish, meta_of
from tirage.server.routes.sglang_stream import GenerateFormatter
from tirage.server.sse import JsonTemplate

TEXT = 'Grüße, "日本語" \\ \t\x01\x7f\u2028\ue000 😀👩‍👧 <stop> never said'
LAST_ONLY = {"finish_reason", "weight_versions", "e2e_latency", "response_sent_to_client_ts", "grammar_complete"}


class Plain:
    """The events of each sample as whole objects, put together from everything that has come."""

    def __init__(self, tickets: list[RunningRequest], body: Any, spell: Any) -> None:
        self._tickets, self._body, self._spell = tickets, body, spell
        self._came: dict[tuple[int, int], list[Delta]] = {}
        self._shown: dict[tuple[int, int], int] = {}

    def say(self, number: int, delta: Delta) -> dict[str, Any] | None:
        key, ask = (number, delta.index), self._body.asks[number]
        came = self._came.setdefault(key, [])
        came.append(delta)
        waiting = came[self._shown.get(key, 0) :]
        if delta.finish_reason is None and sum(len(one.token_ids) for one in waiting) < ask.interval:
            return None
        self._shown[key] = len(came)
        return self._event(number, came, waiting if self._body.delta else came)

    def _event(self, number: int, came: list[Delta], shown: list[Delta]) -> dict[str, Any]:
        body, ask, ticket, last = self._body, self._body.asks[number], self._tickets[number], came[-1]
        ids = [token for one in came for token in one.token_ids]
        meta = meta_of(ticket, ask, last.index, len(ids))
        meta["finish_reason"] = finish(last.finish_reason, last.stop, ids, ask.patterns)
        if ask.logprobs:
            scores, entries = Scores(ask, body, self._spell), [entry for one in shown for entry in one.logprobs or ()]
            meta |= scores.input(ticket.request.prompt_logprobs or (), ticket.request.prompt_ids[0])
            meta |= scores.output(entries) | {"output_token_logprobs_length": len(entries)}
        event: dict[str, Any] = {
            "text": "".join(one.text for one in shown),
            "output_ids": [token for one in shown for token in one.token_ids],
            "meta_info": meta,
        }
        if body.listed:
            event["index"] = sum(each.answers for each in body.asks[:number]) + last.index
        if body.prompt_ids:
            event["prompt_token_ids"] = list(ticket.request.prompt_ids)
        return event


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    made = LLM(Script(TEXT.encode().decode("latin-1")), tokenizer=byte_level_tokenizer())
    yield made
    made.close()


def begin(llm: LLM, plain: dict[str, Any]) -> tuple[list[RunningRequest], Any]:
    """The calls of a request, running."""
    body = read_body({"stream": True, **plain}, Options.of())
    calls = [call_of(ask, []) for ask in body.asks]
    handles = llm.engine.submit_all([make_request(llm, call, "") for call in calls])
    mark = ModelInfo(name="script", fingerprint="")
    return [RunningRequest.of(call, handle, mark) for call, handle in zip(calls, handles, strict=True)], body


def both(llm: LLM, plain: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each event as it is sent, and as it would be made whole."""
    tickets, body = begin(llm, plain)
    spell = speller(llm.tokenizer)
    visit: Any = SimpleNamespace(tickets=tickets)
    chunks, whole = GenerateFormatter(visit, body, spell, began=0.0), Plain(tickets, body, spell)
    for number, ticket in enumerate(tickets):
        for delta in ticket.handle:
            sent = [sse.frame(event) for event in chunks.say(number, delta)]
            expected = whole.say(number, delta)
            assert len(sent) == (expected is not None)
            if expected is not None:
                assert sent[0].startswith(b"data: ")
                assert sent[0].endswith(b"\n\n")
                assert sent[0].count(b"\n") == 2
                yield json.loads(sent[0][6:]), expected


PLAIN: dict[str, Any] = {"max_new_tokens": 80, "temperature": 0, "ignore_eos": True}
SCORED = {"return_logprob": True, "top_logprobs_num": 2, "token_ids_logprob": [65, 200], "logprob_start_len": 0}
WORDS = {"return_text_in_logprobs": True}
REQUESTS: dict[str, dict[str, Any]] = {
    "multi-byte text": {"text": "ab", "sampling_params": PLAIN},
    "an id like a hole": {"text": "ab", "sampling_params": PLAIN, "rid": '"text":null,"completion_tokens":null'},
    "several samples": {"text": "ab", "sampling_params": PLAIN | {"n": 3, "temperature": 1, "sampling_seed": 3}},
    "a batch": {"text": ["ab", "c", "dé"], "sampling_params": [PLAIN, PLAIN | {"max_new_tokens": 9}, PLAIN]},
    "a stop that trims": {"text": "ab", "sampling_params": PLAIN | {"stop": ["<stop>", " 😀👩‍👧 !"]}},
    "a stop that stays": {"text": "ab", "sampling_params": PLAIN | {"stop": "stop", "no_stop_trim": True}},
    "a pattern": {"text": "ab", "sampling_params": PLAIN | {"stop_regex": "<s.o"}},
    "an interval": {"text": "ab", "sampling_params": PLAIN | {"stream_interval": 7}},
    "no tokens": {"text": "ab", "sampling_params": PLAIN | {"max_new_tokens": 0}},
    "scores": {"text": "ab", "sampling_params": PLAIN, **SCORED},
    "scores in words": {"text": ["ab", "cd"], "sampling_params": PLAIN | {"n": 2}, **SCORED, **WORDS},
    "scores and an interval": {"text": "ab", "sampling_params": PLAIN | {"stream_interval": 4}, "return_logprob": True},
    "prompt ids": {"text": "ab", "sampling_params": PLAIN, "return_prompt_token_ids": True},
}  # fmt: skip


@pytest.mark.parametrize("mode", ["cumulative", "delta"])
@pytest.mark.parametrize("name", REQUESTS)
def test_an_event_says_what_it_would_say_made_as_a_whole(llm: LLM, name: str, mode: str) -> None:
    ended = 0
    for sent, expected in both(llm, REQUESTS[name] | {"stream_options": {"mode": mode}}):
        last = sent["meta_info"]["finish_reason"] is not None
        more = set(sent["meta_info"]) - set(expected["meta_info"])
        assert bool(more) is last
        assert more <= LAST_ONLY
        for member in more:
            del sent["meta_info"][member]
        assert sent == expected
        ended += last
    params = REQUESTS[name]["sampling_params"]
    assert ended == (3 if isinstance(params, list) else params.get("n", 1) * (2 if name == "scores in words" else 1))


def test_the_text_of_the_script_arrives_whole(llm: LLM) -> None:
    stopped = {"text": "ab", "sampling_params": PLAIN | {"stop": " never said"}}
    texts = [sent["text"] for sent, _ in both(llm, stopped)]
    assert texts[-1] == TEXT.removesuffix(" never said")
    assert all(longer.startswith(text) for text, longer in pairwise(texts))
    assert not any("\ufffd" in text for text in texts)


def test_a_sample_that_fails_says_so_in_its_last_event() -> None:
    made = LLM(Script("ab{"), tokenizer=byte_level_tokenizer())
    try:
        *_, (sent, _) = both(made, {"text": "ab", "sampling_params": PLAIN})
    finally:
        made.close()
    assert sent["text"] == "ab"
    assert sent["meta_info"]["finish_reason"]["type"] == "error"
    assert sent["error"]["code"] == "non_finite_logits"


def test_a_mold_leaves_texts_that_look_like_its_holes_alone() -> None:
    event = {"id": '"a":null', "a": None, "b": {"c": '\\"d":null', "d": None}}
    filled = JsonTemplate(event, ["a", "d"]).fill(b"[1]", b'"x"')
    assert json.loads(filled) == {"id": '"a":null', "a": [1], "b": {"c": '\\"d":null', "d": "x"}}
