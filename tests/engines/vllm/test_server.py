"""tirage inside vLLM's OpenAI server: opting in over HTTP, the 400 of what is wrong, and a server that lives on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.error import HTTPError

import pytest
from llama_folder import PROMPTS
from served import Server

FIELDS = {"seed": 11, "top_p": 0.9, "temperature": 1.2, "presence_penalty": 0.5}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("served"))
    try:
        made.wait()
        yield made
    finally:
        made.stop()


def test_a_seed_says_the_same_text_at_any_temperature_of_vllm(server: Server) -> None:
    text = server.text(FIELDS)
    assert text == server.text(FIELDS) == server.text(FIELDS, temperature=1)
    assert text != server.text({**FIELDS, "seed": 12})
    assert server.text({}, temperature=1) != server.text({}, temperature=1)


def test_a_batch_says_what_each_says_alone(server: Server) -> None:
    given = [({**FIELDS, "seed": seed}, PROMPTS[seed % 8]) for seed in range(16)]
    alone = [server.text(fields, prompt) for fields, prompt in given]
    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(lambda each: server.text(*each), given)) == alone


def test_chat_and_streams_draw_the_same(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "vllm_xargs": {"tirage": json.dumps(FIELDS)}}
    whole = server.post("chat/completions", **body)["choices"][0]["message"]["content"]
    events = server.post("chat/completions", stream=True, **body).split("\n\n")
    pieces = [json.loads(event[6:])["choices"] for event in events if event.startswith("data: {")]
    assert "".join(each[0]["delta"].get("content") or "" for each in pieces if each) == whole


def test_samples_of_one_request_need_the_seed_of_vllm(server: Server) -> None:
    body = {"prompt": "a", "n": 3, "temperature": 1, "vllm_xargs": {"tirage": json.dumps(FIELDS)}}
    answers = [[c["text"] for c in server.post("completions", seed=11, **body)["choices"]] for _ in range(2)]
    assert answers[0] == answers[1]
    assert len({*answers[0]}) == 3
    assert answers[0][0] == server.text(FIELDS, "a")


def test_structured_outputs_hold(server: Server) -> None:
    body = {"structured_outputs": {"choice": ["yes", "no", "maybe"]}, "ignore_eos": False}
    said = {server.text({"seed": seed, "temperature": 20.0}, **body) for seed in range(12)}
    assert said <= {"yes", "no", "maybe"}
    assert len(said) > 1


@pytest.mark.parametrize(
    ("fields", "body", "says"),
    [
        ('{"top_pp": 1}', {}, "did you mean 'top_p'"),
        ("{", {}, "JSON"),
        ("[]", {}, "SamplingParams"),
        ('{"max_tokens": 1}', {}, "give it to vLLM itself"),
        ('{"logit_bias": {"512": 1}}', {}, "512 columns"),
        ("{}", {"temperature": 0.5}, "temperature of vLLM"),
        ("{}", {"temperature": 1, "top_k": 5}, "top_k of vLLM"),
        ('{"seed": 1}', {"n": 2, "temperature": 1}, "give vLLM the same seed"),
        (3, {}, "fields of SamplingParams"),
    ],
)
def test_what_is_wrong_is_a_400(server: Server, fields: Any, body: dict[str, Any], says: str) -> None:
    with pytest.raises(HTTPError) as refused:
        server.post("completions", prompt="a", vllm_xargs={"tirage": fields}, **body)
    assert refused.value.code == 400
    assert says in refused.value.read().decode()


def test_a_request_that_cannot_be_drawn_ends_alone(server: Server) -> None:
    impossible = {"allowed_token_ids": [5], "ignore_eos": False, "max_tokens": 30}
    with ThreadPoolExecutor(3) as threads:
        good = [threads.submit(server.text, FIELDS, max_tokens=30) for _ in range(2)]
        bad = threads.submit(server.text, {"allowed_token_ids": [6]}, **impossible)
        assert bad.result() == ""
        assert good[0].result() == good[1].result() == server.text(FIELDS, max_tokens=30)
    assert "no_allowed_token" in server.log.read_text()
