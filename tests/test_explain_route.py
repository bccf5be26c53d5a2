"""`/explain`: it explains the tokens that `/generate` draws, asks the model once, and keeps to the limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from servers import Server, shared

from tirage.server.next_token import LogitsCache

PARAMS = {"top_p": 0.9, "temperature": 0.9, "repetition_penalty": 1.1, "frequency_penalty": 0.2, "seed": 5}
TEXT = "Once upon a"


@pytest.fixture
def server() -> Server:
    return shared("tiny")


def explained(server: Server, **body: Any) -> dict[str, Any]:
    """The answer to a question that is answered."""
    answer = server.post("/explain", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def generated(server: Server, **params: Any) -> list[int]:
    return server.post("/generate", {"text": TEXT, "sampling_params": params}).json()["output_ids"]


@pytest.mark.parametrize("semantics", ["sglang", "vllm", "llamacpp"])
def test_every_token_of_a_text_is_explained_as_it_was_drawn(server: Server, semantics: str) -> None:
    params = {**PARAMS, "max_new_tokens": 6, "semantics": semantics}
    drawn = generated(server, **params)
    found = [explained(server, text=TEXT, output_ids=drawn[:at], sampling_params=params) for at in range(len(drawn))]
    assert [each["explanations"][0]["token_id"] for each in found] == drawn


def test_a_token_far_into_a_text_is_explained_as_it_was_drawn(server: Server) -> None:
    params = {**PARAMS, "max_new_tokens": 300, "ignore_eos": True}
    drawn = generated(server, **params)
    (found,) = explained(server, text=TEXT, output_ids=drawn[:290], sampling_params=params)["explanations"]
    assert (found["token_id"], found["step"]) == (drawn[290], 290)


def test_a_constraint_is_explained_from_where_the_text_has_come_to(server: Server) -> None:
    params = {"regex": "(yes|no), [a-z]{3}", "max_new_tokens": 20, "seed": 3}
    drawn = generated(server, **params)
    for at in range(len(drawn)):
        (found,) = explained(server, text=TEXT, output_ids=drawn[:at], sampling_params=params)["explanations"]
        assert found["token_id"] == drawn[at]
        assert found["allowed"]["count"] < found["vocab_size"]
        assert drawn[at] in [token["token_id"] for token in found["allowed"]["tokens"]]


def test_what_is_allowed_at_first_is_listed_with_the_likeliest_first(server: Server) -> None:
    (found,) = explained(server, text=TEXT, sampling_params={"regex": "[ab]"}, top=0)["explanations"]
    # A letter has a token of its own, and one for its byte.
    assert found["allowed"]["count"] == len(found["allowed"]["tokens"]) == 4
    assert {token["shown"] for token in found["allowed"]["tokens"]} == {'"a"', '"b"'}
    assert explained(server, text=TEXT)["explanations"][0]["allowed"] is None


def test_several_parameters_are_explained_over_the_same_logits(server: Server) -> None:
    asked = [{"temperature": 0.5}, {"top_k": 3, "semantics": "hf"}]
    found = explained(server, text=TEXT, sampling_params=asked, semantics="vllm", top=3)["explanations"]
    assert [each["semantics"].partition("@")[0] for each in found] == ["vllm", "hf"]
    logits = [{trace["token_id"]: trace["logit"] for trace in each["tokens"]} for each in found]
    shared_ids = logits[0].keys() & logits[1].keys()
    assert len(shared_ids) >= 3
    assert all(logits[0][token] == logits[1][token] for token in shared_ids)


def test_a_chat_has_the_prompt_of_the_chat_route(server: Server) -> None:
    messages = [{"role": "user", "content": "Tell me of a cat"}]
    ids = explained(server, messages=messages)["input_ids"]
    chat = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1}).json()
    assert len(ids) == chat["usage"]["prompt_tokens"]


def test_the_model_is_asked_once_for_all_parameters(server: Server) -> None:
    explained(server, text="The model is asked once")
    before = server.metric("tirage_prompt_tokens_total")
    for temperature in (0.1, 0.5, 1.5):
        explained(server, text="The model is asked once", sampling_params={"temperature": temperature})
    assert server.metric("tirage_prompt_tokens_total") == before
    explained(server, text="The model is asked once", output_ids=[300])
    assert server.metric("tirage_prompt_tokens_total") > before


LONG = [300] * 512
REFUSED: list[tuple[dict[str, Any], str, str | None]] = [
    ({}, "text must be given, or input_ids or messages instead, got none of them; give one", "text"),
    ({"text": "a", "messages": []}, "got text and messages; give one", "text"),
    ({"text": "a", "sampling_params": []}, "sampling_params must be an object or a list of 1 to 8", "sampling_params"),
    ({"text": "a", "sampling_params": [{}] * 9}, "got 9 of them", "sampling_params"),
    ({"text": "a", "sampling_params": {"top_p": 2}}, "top_p must be in (0, 1], got 2", "sampling_params.top_p"),
    ({"text": "a", "sampling_params": [{}, {"top_k": "x"}]}, "top_k must be an integer", "sampling_params[1].top_k"),
    ({"text": "a", "sampling_params": {"regex": "("}}, "regex must be a valid pattern", "sampling_params.regex"),
    ({"text": "a", "sampling_params": {"beam_width": 2}}, "beams are not drawn", "sampling_params.beam_width"),
    ({"text": "a", "sampling_params": {"bad_words": [f"a{i}" for i in range(129)]}}, "at most 128", "bad_words"),
    ({"text": "a", "output_ids": "1"}, "output_ids must be a list of token ids, got '1'", "output_ids"),
    ({"text": "a", "output_ids": [1.5]}, "output_ids[0] must be a token id, got 1.5", "output_ids[0]"),
    ({"text": "a", "output_ids": [99999]}, "output_ids must be integers in [0, 1536), got 99999", "output_ids"),
    ({"text": "a", "output_ids": [2, 300]}, "must leave a token to draw, got a text that ends: eos", "output_ids"),
    ({"text": "a", "output_ids": [300], "sampling_params": {"regex": "[0-9]+"}}, "grammar_failed", "output_ids"),
    ({"input_ids": LONG}, "must be fewer than the 512 tokens of the context, got 512", "output_ids"),
    ({"text": "a", "top": 21}, "top must be at most 20, got 21; the operator can raise it with --max-top", "top"),
    ({"text": "a", "follow": [1] * 1025}, "number of follow must be at most 1024, got 1025", "follow"),
    ({"text": "a", "follow": [1536]}, "follow must hold token ids in [0, 1536), got 1536", "follow"),
    ({"text": "a", "nothing": 1}, "field must be a known name, got 'nothing'", "nothing"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "neither images", "messages[0].content"),
    ({"messages": "a"}, "messages must be a list of objects, got 'a'", "messages"),
    ({"text": "a", "lora_path": "../x"}, "lora_path must be the name of a loaded adapter", "lora_path"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "message", "param"), REFUSED)
def test_what_cannot_be_explained_is_refused_by_name(
    server: Server, body: dict[str, Any], message: str, param: str | None
) -> None:
    answer = server.post("/explain", body)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert message in error["message"]
    assert error["param"] == param


def test_kept_logits_are_those_of_the_tenant_that_used_them_last() -> None:
    cache, rows = LogitsCache(most_bytes=3 * 16), [np.full(4, value, np.float32) for value in range(4)]
    for tenant, row in zip("abc", rows, strict=False):
        cache.put((tenant, None, (1, 2)), row)
    assert cache.get(("a", None, (1, 2))) is rows[0]
    cache.put(("d", None, (1, 2)), rows[3])
    found = {tenant: cache.get((tenant, None, (1, 2))) for tenant in "abcd"}
    assert found["b"] is None
    assert all(found[tenant] is row for tenant, row in zip("acd", (rows[0], *rows[2:]), strict=True))
    assert cache.get(("a", "adapter", (1, 2))) is None
