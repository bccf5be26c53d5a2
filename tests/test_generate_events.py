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
from tirage.engine import Delta, Tenant
from tirage.server import sse
from tirage.server.engine_input import ModelInfo
from tirage.server.options import Options
from tirage.server.request_group import RunningRequest
from tirage.server.request_manager import make_request
from tirage.server.routes import sglang_stream
from tirage.server.routes.generate import engine_input_of
from tirage.server.routes.sglang_request import read_body
from tirage.server.routes.sglang_shapes import EntryBuilder, LogprobLists, finish, token_text_of
from tirage.server.routes.sglang_stream import GenerateFormatter
from tirage.server.sse import JsonTemplate

TEXT = 'Grüße, "日本語" \\ \t\x01\x7f\u2028\ue000 😀👩‍👧 <stop> never said'
CONSTANT: dict[str, Any] = {
    "weight_version": "default",
    "num_retractions": 0,
    "reasoning_tokens": 0,
    "cached_tokens": 0,
    "cached_tokens_details": {"device": 0, "host": 0},
    "dp_rank": None,
}
LAST_ONLY = {"finish_reason", "weight_versions", "e2e_latency", "response_sent_to_client_ts", "grammar_complete"}


class Plain:
    """The events of each sample as whole objects, put together from everything that has come."""

    def __init__(self, requests: list[RunningRequest], body: Any, token_text: Any) -> None:
        self._requests, self._body, self._token_text = requests, body, token_text
        self._came: dict[tuple[int, int], list[Delta]] = {}
        self._shown: dict[tuple[int, int], int] = {}

    def format(self, number: int, delta: Delta) -> dict[str, Any] | None:
        key, request = (number, delta.index), self._body.requests[number]
        came = self._came.setdefault(key, [])
        came.append(delta)
        waiting = came[self._shown.get(key, 0) :]
        if delta.finish_reason is None and sum(len(one.token_ids) for one in waiting) < request.stream_interval:
            return None
        again = self._body.delta and self._shown.get(key, 0) > 0
        self._shown[key] = len(came)
        event = self._event(number, came, waiting if self._body.delta else came)
        return without_prompt(event) if again else event

    def _event(self, number: int, came: list[Delta], shown: list[Delta]) -> dict[str, Any]:
        body, request, running, last = self._body, self._body.requests[number], self._requests[number], came[-1]
        ids = [token for one in came for token in one.token_ids]
        own = running.rid or running.id
        meta: dict[str, Any] = {
            "id": own if request.returned == 1 else f"{own}/{last.index}",
            "finish_reason": finish(last.finish_reason, last.stop, ids, request.stop_regex),
            "prompt_tokens": len(running.request.prompt_ids),
            "completion_tokens": len(ids),
            **CONSTANT,
            "seed": running.request.seed,
        }
        if request.return_logprob:
            lists = LogprobLists(request, body, self._token_text)
            entries = [entry for one in shown for entry in one.logprobs or ()]
            meta |= lists.input(running.request.prompt_logprobs or (), running.request.prompt_ids[0])
            meta |= {name: list(each) for name, each in lists.output(entries).items()} | {
                "output_token_logprobs_length": len(entries)
            }
        event: dict[str, Any] = {
            "text": "".join(one.text for one in shown),
            "output_ids": [token for one in shown for token in one.token_ids],
            "meta_info": meta,
        }
        if body.is_list:
            event["index"] = sum(each.returned for each in body.requests[:number]) + last.index
        if body.return_prompt_token_ids:
            event["prompt_token_ids"] = list(running.request.prompt_ids)
        return event


def without_prompt(event: dict[str, Any]) -> dict[str, Any]:
    """An event after the first that shows what is new: nothing of the prompt's tokens is."""
    event.pop("prompt_token_ids", None)
    lists = {name: [] for name in event["meta_info"] if name.startswith("input_")}
    return event | {"meta_info": event["meta_info"] | lists}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    made = LLM(Script(TEXT.encode().decode("latin-1")), tokenizer=byte_level_tokenizer())
    yield made
    made.close()


def begin(llm: LLM, plain: dict[str, Any]) -> tuple[list[RunningRequest], Any]:
    """The running requests of a body, and what was read of it."""
    body = read_body({"stream": True, **plain}, Options.of())
    inputs = [engine_input_of(request, []) for request in body.requests]
    streams = llm.engine.submit_all([make_request(llm, each, Tenant()) for each in inputs])
    model = ModelInfo(name="script", fingerprint="")
    return [RunningRequest.of(*pair, model) for pair in zip(inputs, streams, strict=True)], body


def framed(event: sse.Event) -> bytes:
    """An event as a stream writes it."""
    return sse.CHUNKS.frame(event)


def both(llm: LLM, plain: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each event as it is sent, and as it would be made whole."""
    requests, body = begin(llm, plain)
    group: Any = SimpleNamespace(requests=requests)
    chunks = GenerateFormatter(group, body, llm.tokenizer, began=0.0)
    whole = Plain(requests, body, token_text_of(llm.tokenizer))
    for number, running in enumerate(requests):
        for delta in running.stream:
            sent = [framed(event) for event in chunks.format(number, delta)]
            expected = whole.format(number, delta)
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


@pytest.mark.parametrize("name", REQUESTS)
def test_the_last_cumulative_event_of_a_sample_is_its_entry_in_the_whole_answer(llm: LLM, name: str) -> None:
    requests, body = begin(llm, REQUESTS[name])
    group: Any = SimpleNamespace(requests=requests)
    chunks = GenerateFormatter(group, body, llm.tokenizer, began=0.0)
    for number, running in enumerate(requests):
        deltas = list(running.stream)
        events = [json.loads(framed(event)[6:]) for delta in deltas for event in chunks.format(number, delta)]
        lasts = [event for event in events if event["meta_info"]["finish_reason"] is not None]
        builder = EntryBuilder(running, body.requests[number], body, llm.tokenizer, began=0.0)
        entries = json.loads(sse.dump(builder.entries(running.request.completion())))
        for event, entry in zip(sorted(lasts, key=lambda each: each.get("index", 0)), entries, strict=True):
            event.pop("index", None)
            for member in ("e2e_latency", "response_sent_to_client_ts"):
                assert event["meta_info"].pop(member) > 0 < entry["meta_info"].pop(member)
            assert event == entry


@pytest.mark.parametrize("mode", ["cumulative", "delta"])
@pytest.mark.parametrize("name", [name for name, body in REQUESTS.items() if "return_logprob" in body])
def test_a_long_event_in_pieces_says_the_same(llm: LLM, name: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_pieces = 0

    def counted(event: sse.Event) -> bytes:
        nonlocal in_pieces
        in_pieces += not isinstance(event, (bytes, dict))
        return sse.CHUNKS.frame(event)

    monkeypatch.setattr(sglang_stream, "_LONG_BYTES", 300)
    monkeypatch.setitem(globals(), "framed", counted)
    for sent, expected in both(llm, REQUESTS[name] | {"stream_options": {"mode": mode}}):
        for member in set(sent["meta_info"]) - set(expected["meta_info"]):
            del sent["meta_info"][member]
        assert sent == expected
    # What an event has besides what earlier ones have shown is little, but for the last.
    assert (in_pieces > 5) is (mode == "cumulative")


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


def test_a_template_leaves_texts_that_look_like_its_holes_alone() -> None:
    event = {"id": '"a":null', "a": None, "b": {"c": '\\"d":null', "d": None}}
    filled = JsonTemplate(event, ["a", "d"]).fill(b"[1]", b'"x"')
    assert json.loads(filled) == {"id": '"a":null', "a": [1], "b": {"c": '\\"d":null', "d": "x"}}


def test_a_template_takes_per_cent_signs_for_what_they_are() -> None:
    event = {"id": "100 %b of %", "a%d": None}
    assert json.loads(JsonTemplate(event, ["a%d"]).fill(b'"5 %b"')) == {"id": "100 %b of %", "a%d": "5 %b"}
