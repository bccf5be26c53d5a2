"""`/generate` at its edges: what is read once, what is refused in the route's own words, what tokens may be spelt."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request
from servers import Server, shared, until

from tirage import LLM, ParamsError
from tirage.dialects import from_sglang
from tirage.engine import Prompt, Tenant
from tirage.params import SamplingParams
from tirage.server.engine_input import EngineInput
from tirage.server.errors import Refusal
from tirage.server.http_request import in_worker_thread
from tirage.server.metrics import Metrics
from tirage.server.options import Options
from tirage.server.replay import model_info_of
from tirage.server.request_manager import RequestManager
from tirage.server.routes.sglang_request import read_body
from tirage.server.sse import dump, pieces, weight

HUGE = 10**400


@pytest.fixture(scope="module")
def server() -> Server:
    return shared("tiny")


def refused(server: Server, body: dict[str, Any], path: str = "/generate") -> dict[str, Any]:
    response = server.post(path, body)
    assert response.status_code == 400, response.text
    return response.json()["error"]


# --- refusals in the route's words ---------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str, str | None]] = [
    ({"input_embeds": [[0.5, HUGE]]}, "numbers that float32 can hold", "input_embeds[0]"),
    ({"input_embeds": [[1e39]]}, "must be finite", "input_embeds"),
    ({"input_embeds": [[1.0]] * 600}, "input_embeds must hold at most 512 tokens", "input_embeds"),
    ({"input_ids": [1] * 600}, "input_ids must hold at most 512 tokens", "input_ids"),
    ({"input_ids": [HUGE]}, "input_ids must be integers in [0, 1536)", "input_ids"),
    ({"text": "a" * 9000}, "text must hold at most 8192 characters", "text"),
    (
        {"text": "a " * 5000, "return_logprob": True, "logprob_start_len": 1},
        "text must hold at most 8192 characters",
        "text",
    ),
    ({"text": "a", "rid": "x" * 200}, "--max-rid", "rid"),
    ({"text": "a", "urgency": 1}, "got 'urgency'; leave it out", "urgency"),
    ({"text": "a", "sampling_params": {"json_schema": '{"$ref": "#"}'}}, "json_schema", "sampling_params.json_schema"),
    ({"text": "a", "sampling_params": {"json_schema": "{"}}, "json_schema must be", "sampling_params.json_schema"),
    (
        {
            "text": "a b c",
            "return_logprob": True,
            "logprob_start_len": 2,
            "sampling_params": {"truncate_prompt_tokens": 1},
        },
        "logprob_start_len must be at most the prompt's 1 tokens, got 2",
        "logprob_start_len",
    ),
    ({"text": "a", "return_logprob": True, "token_ids_logprob": [5] * 1025}, "--max-logprob-ids", None),
    (
        {"text": "a", "stream": True, "sampling_params": {"best_of": 3}},
        "sampling_params.best_of must be n to stream, got 3; leave it out",
        "sampling_params.best_of",
    ),
    (
        {"text": ["a", "b"], "stream": True, "sampling_params": [{"n": 2, "best_of": 2}, {"n": 2, "best_of": 4}]},
        "sampling_params[1].best_of must be n to stream, got 4; leave it out",
        "sampling_params[1].best_of",
    ),
]


@pytest.mark.parametrize(("body", "message", "param"), REFUSED)
def test_a_refusal_speaks_of_the_field_that_was_sent(
    server: Server, body: dict[str, Any], message: str, param: str | None
) -> None:
    error = refused(server, body)
    assert message in error["message"]
    assert param is None or error["param"] == param


def test_a_refused_request_leaves_nothing_running(server: Server) -> None:
    long = {"max_new_tokens": 400, "ignore_eos": True, "n": 4, "truncate_prompt_tokens": 1}
    refused(server, {"text": "a b", "return_logprob": True, "logprob_start_len": 3, "sampling_params": long})
    until(lambda: server.metric("tirage_engine_running") == server.metric("tirage_engine_waiting") == 0, server, "idle")


# --- log-probabilities of chosen tokens ----------------------------------------------------------------------------


def test_every_token_that_is_asked_for_has_an_entry_as_often_as_it_is(server: Server) -> None:
    body = {"text": "a", "return_logprob": True, "logprob_start_len": 0, "token_ids_logprob": [7, 5, 7]}
    meta = server.post("/generate", {**body, "sampling_params": {"max_new_tokens": 2}}).json()["meta_info"]
    positions = meta["output_token_ids_logprobs"] + meta["input_token_ids_logprobs"][1:]
    assert len(positions) == 3
    for entries in positions:
        assert [entry[1] for entry in entries] == [7, 5, 7]
        assert entries[0] == entries[2]


FORCED = {"regex": "dogs and cats", "max_new_tokens": 20, "forcing": "canonical"}
CHOSEN = {"text": "Once upon", "return_logprob": True, "top_logprobs_num": 2, "token_ids_logprob": [3, 50]}


def test_a_forced_token_has_no_logprobs_of_chosen_tokens_beside_it(server: Server) -> None:
    body = {**CHOSEN, "sampling_params": FORCED}
    answer = server.post("/generate", body)
    assert answer.status_code == 200, answer.text
    meta = answer.json()["meta_info"]
    drawn, forced = meta["completion_tokens"] - meta["forced_tokens"], meta["forced_tokens"]
    assert forced
    chosen = meta["output_token_ids_logprobs"]
    assert sorted(len(entries) for entries in chosen) == [0] * forced + [2] * drawn
    assert [bool(entries) for entries in chosen] == [bool(tops) for tops in meta["output_top_logprobs"]]
    lines = server.post("/generate", {**body, "stream": True}).text.split("\n\n")
    last = json.loads(lines[-3].removeprefix("data: "))
    assert last["meta_info"]["output_token_ids_logprobs"] == chosen


@pytest.mark.slow
def test_the_logprobs_of_an_answer_are_bounded_in_all(server: Server) -> None:
    wide = {"return_logprob": True, "logprob_start_len": 0, "token_ids_logprob": list(range(1024))}
    one = {"max_new_tokens": 1}
    error = refused(server, {"input_ids": [[5] * 400] * 3, **wide, "sampling_params": one})
    assert error["message"].endswith("; the operator can raise it with --max-logprob-entries")
    named = {"return_logprob": True, "token_ids_logprob": list(range(1024)), "sampling_params": {"n": 128}}
    assert "logprob entries" in refused(server, {"text": "a", **named})["message"]
    half = {"text": "a", **named, "sampling_params": {"max_new_tokens": 300}}
    assert server.post("/generate", half).status_code == 200
    assert "logprob entries" in refused(server, {**half, "stream": True})["message"]
    delta = {**half, "stream": True, "stream_options": {"mode": "delta"}}
    assert server.post("/generate", delta).status_code == 200
    small = {"input_ids": [[5] * 40] * 3, **wide, "sampling_params": one}
    answers = server.post("/generate", small).json()
    assert [len(each["meta_info"]["input_token_ids_logprobs"]) for each in answers] == [40] * 3


VALUES: list[Any] = [
    {},
    [],
    [{}],
    {"a": [], "é\n": None, "b": {"c": [1.5, True, "x\u2028"]}},
    {"many": list(range(100)), "triples": [[[-0.5, 7, None]] * 3] * 33},
    [{"meta": {"list": [None, *range(40)]}}] * 20,
    {"hidden_states": [[[0.5] * 40] * 40, *([[0.25] * 40] * 20)]},
    [[[[1]]], []],
    list(range(17)),
    "text",
]


@pytest.mark.parametrize("value", VALUES)
def test_a_long_answer_is_the_same_bit_by_bit(value: Any) -> None:
    assert b"".join(pieces(value)) == dump(value)


def as_iterators(value: Any) -> Any:
    """The value with iterators for lists."""
    if isinstance(value, dict):
        return {name: as_iterators(each) for name, each in value.items()}
    return iter([as_iterators(each) for each in value]) if isinstance(value, list) else value


@pytest.mark.parametrize("value", VALUES)
def test_lists_may_be_made_while_they_are_encoded(value: Any) -> None:
    assert b"".join(pieces(as_iterators(value))) == dump(as_iterators(value)) == dump(value)


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(TypeError, match="set is not JSON"):
        dump({"a": {1}})


@pytest.mark.parametrize("count", [2, 40])
def test_an_answer_in_many_parts_is_one_body(count: int, server: Server) -> None:
    params = {"n": count, "max_new_tokens": 20, "sampling_seed": 3, "ignore_eos": True}
    body = {"text": "Once", "sampling_params": params, "return_logprob": True, "top_logprobs_num": 20}
    answer = server.post("/generate", body)
    found = answer.json()
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert [len(each["meta_info"]["output_top_logprobs"]) for each in found] == [20] * count
    assert {len(top) for each in found for top in each["meta_info"]["output_top_logprobs"]} == {20}
    first = server.post("/generate", {**body, "sampling_params": {**params, "n": 1}}).json()
    names = ("output_token_logprobs", "output_top_logprobs")
    assert [found[0]["meta_info"][name] for name in names] == [first["meta_info"][name] for name in names]


def test_logprobs_make_an_answer_heavy() -> None:
    with LLM("tiny") as llm:
        sampling = {"max_new_tokens": 4, "ignore_eos": True}
        plain = from_sglang(sampling)
        light = llm.generate("One day", plain)[0]
        heavy = llm.generate("One day", plain.replace(logprobs=5, prompt_logprobs=5, logprob_token_ids=(7, 8)))[0]
    assert weight(light) == light.usage.total_tokens
    assert weight(heavy) >= 8 * heavy.usage.total_tokens


# --- work that is done once, and beside the loop -------------------------------------------------------------------


def test_parameters_of_a_whole_batch_are_read_once() -> None:
    body = {"text": ["a", "b", "c"], "sampling_params": {"logit_bias": {"5": 1.0}, "stop": ["x"]}}
    requests = read_body(body, Options()).requests
    assert requests[0].params is requests[1].params is requests[2].params
    each = read_body({**body, "sampling_params": [{"n": 1}, {"n": 2}, None]}, Options()).requests
    assert [request.params.n for request in each] == [1, 2, 1]
    assert [request.where for request in each] == [f"sampling_params[{i}]." for i in range(3)]


def request_with(body: bytes) -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request({"type": "http", "method": "POST", "headers": [], "app": FastAPI()}, receive)


@pytest.mark.parametrize(("size", "apart"), [(10, False), (5000, True)])
def test_a_large_body_is_understood_in_a_thread(size: int, apart: bool) -> None:
    async def run() -> int:
        return await in_worker_thread(request_with(b"x" * size), threading.get_ident)

    assert (asyncio.run(run()) != threading.get_ident()) is apart


# --- other routes --------------------------------------------------------------------------------------------------


def test_nulls_are_as_absent_on_every_route(server: Server) -> None:
    plain = server.post("/tokenize", {"prompt": "hi"}).json()
    assert server.post("/tokenize", {"prompt": "hi", "add_special_tokens": None}).json() == plain
    assert server.post("/detokenize", {"tokens": [388], "skip_special_tokens": None}).status_code == 200
    assert server.post("/abort_request", {"rid": "nobody", "abort_all": None}).status_code == 200
    assert "got none; name what to stop" in refused(server, {}, "/abort_request")["message"]
    error = refused(server, {"rid": "a", "abort_all": 1}, "/abort_request")
    assert error["message"] == "abort_all must be true or false, got 1; leave it out for false"


def test_each_name_is_aborted_or_not_found_once(server: Server) -> None:
    answer = server.post("/abort_request", {"rid": ["x", "y", "x"]}).json()
    assert answer == {"aborted": [], "not_found": ["x", "y"]}


def test_lists_of_tokens_become_a_list_of_texts(server: Server) -> None:
    ids = server.post("/tokenize", {"prompt": ["One day", "The dog"]}).json()["tokens"]
    texts = server.post("/detokenize", {"tokens": ids}).json()["text"]
    assert texts == [server.post("/detokenize", {"tokens": each}).json()["text"] for each in ids]
    assert [text.strip() for text in texts] == ["One day", "The dog"]
    assert refused(server, {"tokens": [[5], 6]}, "/detokenize")["param"] == "tokens"
    assert refused(server, {"tokens": [[5]] * 129}, "/detokenize")["message"].endswith("--max-prompts")
    error = refused(server, {"tokens": [5, HUGE]}, "/detokenize")
    assert error["message"].startswith("tokens must be integers in [0, 1536)")
    assert error["param"] == "tokens"


def test_all_that_is_stopped_is_named_also_before_it_runs() -> None:
    async def run(manager: RequestManager) -> list[str]:
        engine_input = EngineInput(prompt=Prompt(text="a"), params=SamplingParams(max_tokens=4), rid="early")
        coming = asyncio.create_task(manager.submit([engine_input], tenant=Tenant()))
        await asyncio.sleep(0)
        names = manager.abort_all()
        with pytest.raises(Refusal, match="aborted"):
            await coming
        return names

    with LLM("tiny") as llm:
        manager = RequestManager(llm, Options(), metrics=Metrics(), model_info=model_info_of(llm, "tiny"))
        assert asyncio.run(run(manager)) == ["early"]
        manager.close()


# --- keys ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "setting", [{"api_key": ("",)}, {"api_key": ("a", " ")}, {"admin_key": ""}, {"admin_key": "a "}]
)
def test_a_key_that_everyone_would_have_is_refused(setting: dict[str, Any]) -> None:
    flag = "--api-key" if "api_key" in setting else "--admin-key"
    with pytest.raises(ParamsError, match=f"^{flag} must be a text without spaces around it"):
        Options.of(**setting)


@pytest.mark.slow
def test_a_server_with_an_empty_key_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="--admin-key must be a text"):
        Server("tiny", "--admin-key", "")
