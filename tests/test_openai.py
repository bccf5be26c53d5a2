"""OpenAI's routes through a real server: published shapes, logprobs, echo, choices, seeds, refusals, streams."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

import pytest
from servers import shared

from tirage import LLM, SamplingParams
from tirage.server.routes.openai_shapes import number
from tirage.text import open_detokenizer

PROMPT = "Once upon"
HEAD = {"id", "object", "created", "model", "system_fingerprint", "choices"}
ENDED = {"logprobs", "finish_reason", "stop_reason", "matched_stop", "stop_details"}
USAGE = {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"}
USER = [{"role": "user", "content": "How old are you"}]


@cache
def tiny() -> LLM:
    """The model of the server, in this process."""
    return LLM("tiny")


def post(path: str, body: dict[str, Any]) -> Any:
    """The answer's JSON, which holds no NaN and no infinity."""
    answer = shared().post(path, body)
    assert answer.status_code == 200, answer.text
    return json.loads(answer.text, parse_constant=refuse)


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is no JSON")


def complete(**body: Any) -> Any:
    return post("/v1/completions", {"prompt": PROMPT, "max_tokens": 6, "seed": 1, **body})


def chat(**body: Any) -> Any:
    return post("/v1/chat/completions", {"messages": USER, "max_tokens": 8, "seed": 1, **body})


def stream(path: str, **body: Any) -> list[Any]:
    """The events of a stream, which ends with exactly one [DONE]."""
    answer = shared().post(path, {"max_tokens": 8, "seed": 1, "stream": True, **body})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = answer.text.split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") for line in lines)
    assert [line for line in lines if "[DONE]" in line] == ["data: [DONE]"] == lines[-1:]
    return [json.loads(line.removeprefix("data: "), parse_constant=refuse) for line in lines[:-1]]


def stream_texts(**body: Any) -> list[Any]:
    return stream("/v1/completions", **{"prompt": PROMPT, **body})


def stream_chat(**body: Any) -> list[Any]:
    return stream("/v1/chat/completions", **{"messages": USER, **body})


def error(path: str, body: dict[str, Any], status: int = 400) -> Any:
    answer = shared().post(path, body)
    assert (answer.status_code, set(answer.json())) == (status, {"error"}), answer.text
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    return answer.json()["error"]


# Shapes.


def test_a_completion_has_openais_keys() -> None:
    found = complete()
    assert set(found) == HEAD | {"usage"}
    assert (found["object"], found["model"], found["id"][:5]) == ("text_completion", "tiny", "cmpl-")
    assert set(found["choices"][0]) == {"index", "text", *ENDED}
    assert set(found["usage"]) == USAGE
    assert found["usage"]["total_tokens"] == found["usage"]["prompt_tokens"] + 6


def test_a_chat_completion_has_openais_keys() -> None:
    found = chat()
    assert set(found) == HEAD | {"usage"}
    assert (found["object"], found["id"][:9]) == ("chat.completion", "chatcmpl-")
    assert set(found["choices"][0]) == {"index", "message", *ENDED}
    assert set(found["choices"][0]["message"]) == {"role", "content", "refusal"}
    assert set(found["usage"]) == USAGE


def test_a_chat_chunk_has_openais_keys() -> None:
    chunks = stream_chat()
    assert all(set(chunk) == HEAD and chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    *growing, last = [set(chunk["choices"][0]) for chunk in chunks]
    assert all(keys == {"index", "delta", "logprobs", "finish_reason"} for keys in growing)
    assert last == {"index", "delta", *ENDED}
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(set(chunk["choices"][0]["delta"]) == {"content"} for chunk in chunks[1:])


def test_models_have_openais_keys() -> None:
    found = shared().get("/v1/models").json()
    assert set(found) == {"object", "data"}
    [model] = found["data"]
    assert set(model) == {"id", "object", "created", "owned_by", "root", "parent", "max_model_len"}
    assert (model["root"], model["parent"], model["max_model_len"]) == ("tiny", None, tiny().model.max_length)
    assert shared().get("/v1/models/tiny").json() == found["data"][0]
    missing = shared().get("/v1/models/other")
    assert (missing.status_code, missing.json()["error"]["param"]) == (404, "model")


@pytest.mark.parametrize("model", [None, "null", "gpt-4o", "tiny"])
def test_any_name_of_the_model_or_none_will_do(model: str | None) -> None:
    assert complete()["choices"] == complete(model=model)["choices"]


# Streams.


@pytest.mark.parametrize("n", [1, 3])
def test_streamed_text_is_the_text(n: int) -> None:
    whole = complete(n=n, max_tokens=20)
    texts = [""] * n
    ends: list[str] = []
    for chunk in stream_texts(n=n, max_tokens=20):
        [choice] = chunk["choices"]
        texts[choice["index"]] += choice["text"]
        ends += [] if choice["finish_reason"] is None else [choice["finish_reason"]]
    assert [choice["text"] for choice in whole["choices"]] == texts
    assert [choice["finish_reason"] for choice in whole["choices"]] == ends


@pytest.mark.parametrize("n", [1, 3])
def test_every_chat_chunk_has_one_choice_with_text_content(n: int) -> None:
    whole = chat(n=n, max_tokens=20, temperature=1.5)
    texts = [""] * n
    ends = 0
    for chunk in stream_chat(n=n, max_tokens=20, temperature=1.5):
        [choice] = chunk["choices"]
        assert isinstance(choice["delta"]["content"], str)
        texts[choice["index"]] += choice["delta"]["content"]
        ends += choice["finish_reason"] is not None
    assert [choice["message"]["content"] for choice in whole["choices"]] == texts
    assert ends == n


def test_usage_comes_last_and_only_when_asked_for() -> None:
    whole = chat()["usage"]
    chunks = stream_chat(stream_options={"include_usage": True})
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert (chunks[-1]["choices"], chunks[-1]["usage"]) == ([], whole)
    assert not any("usage" in chunk for chunk in stream_chat())
    running = stream_chat(stream_options={"continuous_usage_stats": True})
    assert running[-1]["usage"]["completion_tokens"] == whole["completion_tokens"]


def test_tokens_of_a_stream_can_be_put_together() -> None:
    few, many = stream_chat(max_streaming_response_tokens=4), stream_chat()
    assert len(few) < len(many)
    for chunks in (few, many):
        assert (
            "".join(c["choices"][0]["delta"]["content"] for c in chunks) == chat()["choices"][0]["message"]["content"]
        )


# Logprobs.


def test_completion_logprobs_have_places_in_the_text() -> None:
    [choice] = complete(logprobs=3, max_tokens=12)["choices"]
    found = choice["logprobs"]
    assert set(found) == {"text_offset", "token_logprobs", "tokens", "top_logprobs"}
    assert "".join(found["tokens"]) == choice["text"]
    assert all(choice["text"].startswith(t, at) for t, at in zip(found["tokens"], found["text_offset"], strict=True))
    for token, logprob, top in zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True):
        assert 3 <= len(top) <= 4
        assert top[token] == logprob


def test_an_echoed_prompt_has_its_logprobs_without_drawing_anything() -> None:
    llm = tiny()
    [expected] = llm.generate(PROMPT, SamplingParams(max_tokens=0, prompt_logprobs=2))
    found = complete(echo=True, logprobs=2, max_tokens=0)
    [choice] = found["choices"]
    assert (choice["text"], found["usage"]["completion_tokens"]) == (PROMPT, 0)
    assert expected.prompt_logprobs is not None
    values = [None if entry is None else entry.logprob for entry in expected.prompt_logprobs]
    assert values == pytest.approx(choice["logprobs"]["token_logprobs"], abs=1e-4)
    assert choice["logprobs"]["tokens"][1:] == ["Once", " upon"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 4]


def test_an_echo_goes_on_into_the_text() -> None:
    [plain], [echoed] = complete(logprobs=1)["choices"], complete(echo=True, logprobs=1)["choices"]
    assert echoed["text"] == PROMPT + plain["text"]
    assert echoed["logprobs"]["text_offset"][3:] == [len(PROMPT) + at for at in plain["logprobs"]["text_offset"]]
    assert echoed["logprobs"]["token_logprobs"][3:] == pytest.approx(plain["logprobs"]["token_logprobs"], abs=1e-4)
    chunks = stream_texts(echo=True, logprobs=1, max_tokens=6)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == echoed["text"]
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["logprobs"]]
    assert [token for part in parts for token in part["tokens"]] == echoed["logprobs"]["tokens"]
    assert [at for part in parts for at in part["text_offset"]] == echoed["logprobs"]["text_offset"]


@pytest.mark.parametrize(("keep", "text"), [(3, "time there was"), (2, "there was"), (6, "Once upon a time there was")])
def test_a_cut_prompt_is_echoed_as_it_was_read(keep: int, text: str) -> None:
    asked = {"prompt": "Once upon a time there was", "truncate_prompt_tokens": keep, "echo": True, "logprobs": 0}
    [choice] = complete(**asked, max_tokens=2)["choices"]
    logprobs, first = choice["logprobs"], len(choice["logprobs"]["tokens"]) - 2
    assert first == keep
    assert choice["text"][: logprobs["text_offset"][first]] == text
    places = zip(logprobs["tokens"], logprobs["text_offset"], strict=True)
    assert all(choice["text"][at:].startswith(token) for token, at in places)
    assert "".join(chunk["choices"][0]["text"] for chunk in stream_texts(**asked, max_tokens=2)) == choice["text"]


def test_forced_tokens_of_samples_that_are_not_returned_count_too() -> None:
    body = {"regex": "Once upon a time", "forcing": "canonical", "max_tokens": 20}
    drawn = complete(**body, n=3)["usage"]
    assert drawn["completion_tokens_details"]["forced_tokens"] > drawn["completion_tokens"] / 2
    assert complete(**body, best_of=3)["usage"] == drawn


def test_chat_logprobs_spell_the_content_in_bytes() -> None:
    [choice] = chat(logprobs=True, top_logprobs=2, max_tokens=12)["choices"]
    entries = choice["logprobs"]["content"]
    assert set(choice["logprobs"]) == {"content", "refusal"}
    assert all(set(entry) == {"token", "logprob", "bytes", "top_logprobs"} for entry in entries)
    assert all(set(top) == {"token", "logprob", "bytes"} for entry in entries for top in entry["top_logprobs"])
    assert {len(entry["top_logprobs"]) for entry in entries} == {2}
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == choice["message"]["content"]
    chunks = [chunk["choices"][0]["logprobs"] for chunk in stream_chat(logprobs=True, top_logprobs=2, max_tokens=12)]
    assert [entry for part in chunks if part for entry in part["content"]] == entries


def test_chat_logprobs_leave_a_stop_out_as_the_text_does() -> None:
    whole = chat(max_tokens=12)["choices"][0]["message"]["content"]
    stop = whole.split()[2]
    [choice] = chat(max_tokens=12, logprobs=True, stop=[stop])["choices"]
    content = choice["message"]["content"]
    assert (choice["finish_reason"], content) == ("stop", whole[: whole.index(stop)])
    spelled = bytes(byte for entry in choice["logprobs"]["content"] for byte in entry["bytes"]).decode()
    assert spelled == content or spelled.startswith(content)
    chunks = [chunk["choices"][0] for chunk in stream_chat(max_tokens=12, logprobs=True, stop=stop)]
    assert "".join(chunk["delta"]["content"] for chunk in chunks) == content
    streamed = [entry for chunk in chunks if chunk["logprobs"] for entry in chunk["logprobs"]["content"]]
    assert streamed == choice["logprobs"]["content"]


def test_minus_infinity_is_a_number_that_json_can_write() -> None:
    assert (number(-math.inf), number(math.nan), number(-1.5)) == (-9999.0, -9999.0, -1.5)


def test_prompt_logprobs_are_vllms() -> None:
    found = complete(prompt_logprobs=1)["choices"][0]["prompt_logprobs"]
    assert found[0] is None
    assert all(set(each) == {"logprob", "rank", "decoded_token"} for top in found[1:] for each in top.values())
    ids = tiny().tokenizer.encode(PROMPT)
    assert all(str(token) in top for token, top in zip(ids[1:], found[1:], strict=True))
    assert chat(prompt_logprobs=1)["prompt_logprobs"][0] is None


def test_tokens_can_be_spelled_by_id() -> None:
    [choice] = complete(logprobs=2, return_tokens_as_token_ids=True, return_token_ids=True)["choices"]
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]
    assert all(name.startswith("token_id:") for top in choice["logprobs"]["top_logprobs"] for name in top)


# Prompts, choices, seeds.


def test_a_prompt_is_a_text_or_ids_or_a_list_of_either() -> None:
    ids = tiny().tokenizer.encode(PROMPT)
    texts = {complete(prompt=prompt)["choices"][0]["text"] for prompt in (PROMPT, [PROMPT], ids, [ids])}
    assert len(texts) == 1
    found = complete(prompt=["Once upon", "The fox"], n=2)
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2, 3]
    assert found["choices"][2:] == [
        {**choice, "index": index + 2} for index, choice in enumerate(complete(prompt="The fox", n=2)["choices"])
    ]


@pytest.mark.parametrize("prompt", [[], [[]], [""[:0], 3], [1, "a"], {"text": "a"}, 3, [True], [[1.5]], None])
def test_what_is_no_prompt_is_refused(prompt: Any) -> None:
    assert error("/v1/completions", {"prompt": prompt})["param"].startswith("prompt")


def test_choices_of_one_seed_differ_and_come_again() -> None:
    first, again = complete(n=4, temperature=1.5), complete(n=4, temperature=1.5)
    texts = [choice["text"] for choice in first["choices"]]
    assert len(set(texts)) > 1
    assert first["choices"] == again["choices"]
    assert complete(temperature=1.5)["choices"][0]["text"] == texts[0]
    assert complete(temperature=1.5, seed=2)["choices"][0]["text"] != texts[0]
    assert first["usage"]["completion_tokens"] == 24


def test_the_best_of_many_are_returned_and_all_are_counted() -> None:
    found = complete(best_of=4, n=2)
    assert (len(found["choices"]), found["usage"]["completion_tokens"]) == (2, 24)
    [completion] = tiny().generate(PROMPT, SamplingParams(best_of=4, n=2, seed=1, max_tokens=6))
    assert [sample.text for sample in completion.samples] == [choice["text"] for choice in found["choices"]]


def test_best_of_n_is_streamed_in_the_order_of_the_whole_answer() -> None:
    body = {"n": 3, "best_of": 3, "temperature": 1.5, "seed": 4}
    whole = [choice["text"] for choice in complete(**body)["choices"]]
    assert whole == [choice["text"] for choice in complete(**{**body, "best_of": None})["choices"]]
    told = dict.fromkeys(range(3), "")
    for chunk in stream_texts(max_tokens=6, **body):
        for choice in chunk["choices"]:
            told[choice["index"]] += choice["text"]
    assert list(told.values()) == whole


def test_a_request_is_what_the_library_does() -> None:
    [expected] = tiny().generate(PROMPT, SamplingParams(temperature=0.9, top_p=0.8, seed=7, max_tokens=30))
    found = complete(temperature=0.9, top_p=0.8, seed=7, max_tokens=30)
    assert found["choices"][0]["text"] == expected.text
    reply = tiny().chat(USER, SamplingParams(temperature=0.9, seed=7, max_tokens=30))
    assert chat(temperature=0.9, seed=7, max_tokens=30)["choices"][0]["message"]["content"] == reply.text


def test_defaults_are_openais() -> None:
    body = {"prompt": PROMPT, "seed": 1}
    assert post("/v1/completions", body)["usage"]["completion_tokens"] == 16
    reply = post("/v1/chat/completions", {"messages": USER, "seed": 1, "return_effective_params": True})
    assert reply["choices"][0]["finish_reason"] == "stop"


def test_max_completion_tokens_bias_and_stops_count() -> None:
    assert chat(max_tokens=None, max_completion_tokens=3)["usage"]["completion_tokens"] == 3
    token = tiny().tokenizer.encode(" fox", add_special_tokens=False)[0]
    assert set(complete(logit_bias={str(token): 100}, return_token_ids=True)["choices"][0]["token_ids"]) == {token}
    [choice] = complete(max_tokens=40, stop=["a", "e"])["choices"]
    assert (choice["finish_reason"], set(choice["text"]) & {"a", "e"}) == ("stop", set())


def test_a_developer_speaks_as_the_system() -> None:
    system = [{"role": "system", "content": "Be kind."}, *USER]
    developer = [{"role": "developer", "content": "Be kind."}, *USER]
    assert chat(messages=system)["choices"] == chat(messages=developer)["choices"]
    parts = [{"role": "system", "content": [{"type": "text", "text": "Be kind."}]}, *USER]
    assert chat(messages=system)["choices"] == chat(messages=parts)["choices"]


def test_token_ids_may_stand_for_messages() -> None:
    ids = tiny().chat_template.encode(USER)
    found = chat(return_token_ids=True)
    assert found["prompt_token_ids"] == ids
    again = post(
        "/v1/chat/completions", {"prompt_token_ids": ids, "seed": 1, "max_tokens": 8, "return_token_ids": True}
    )
    assert again["choices"][0]["token_ids"] == found["choices"][0]["token_ids"]
    streamed = stream_chat(return_token_ids=True)
    drawn = [token for chunk in streamed for token in chunk["choices"][0].get("token_ids", [])]
    assert drawn == found["choices"][0]["token_ids"]


# Structure.


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "constraint",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA, "strict": True}}},
        {"guided_json": SCHEMA},
        {"extra_body": {"guided_json": json.dumps(SCHEMA)}},
        {"structured_outputs": {"json": SCHEMA}},
        {"json_schema": json.dumps(SCHEMA)},
    ],
    ids=["openai", "vllm", "extra_body", "structured_outputs", "sglang"],
)
def test_a_schema_binds_the_text(constraint: dict[str, Any]) -> None:
    [choice] = chat(max_tokens=80, close_grammar=True, **constraint)["choices"]
    found = json.loads(choice["message"]["content"])
    assert choice["finish_reason"] == "stop"
    assert set(found) == {"name", "age"}
    assert 0 <= found["age"] <= 99


def test_an_object_or_plain_text_can_be_asked_for() -> None:
    [choice] = chat(max_tokens=60, close_grammar=True, response_format={"type": "json_object"})["choices"]
    assert isinstance(json.loads(choice["message"]["content"]), dict)
    assert chat()["choices"] == chat(response_format={"type": "text"})["choices"]


def test_a_pattern_and_a_choice_bind_the_text() -> None:
    assert chat(guided_choice=["yes", "no"])["choices"][0]["message"]["content"] in {"yes", "no"}
    assert complete(guided_regex="[0-9]{4}")["choices"][0]["text"].isdigit()
    assert complete(regex="[0-9]{4}")["choices"][0]["text"].isdigit()


# Refusals.


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1), ("temperature", 2.1), ("temperature", "1"), ("top_p", 1.1), ("top_p", True),
        ("frequency_penalty", 2.5), ("presence_penalty", -2.5), ("seed", 2**63), ("seed", 1.5), ("n", 0), ("n", 129),
        ("logit_bias", {"1": 101}), ("logit_bias", {"-1": 1}), ("logit_bias", {"1536": 1}), ("logit_bias", {"x": 1}),
        ("stop", [""]), ("stop", 3), ("stop_token_ids", [1536]), ("max_tokens", -1), ("max_tokens", 1.5),
        ("stream", "yes"), ("model", 3), ("user", ["a"]), ("min_p", 2), ("top_k", -2), ("bad_words_token_ids", [-1]),
        ("suffix", "x"), ("best_of", 0), ("echo", 1), ("logprobs", 21), ("logprobs", -1), ("sampling_method", "bass"),
        ("stream_options", {"include_usage": True}), ("extra_body", 3), ("priority", 1),
    ],
)  # fmt: skip
def test_a_bad_value_of_completions_is_refused_by_name(field: str, value: Any) -> None:
    assert (error("/v1/completions", {"prompt": "a", field: value})["param"] or "").startswith(field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("messages", "a"), ("messages", []), ("messages", [{"role": "user"}]), ("messages", [{"content": "a"}]),
        ("messages", [{"role": "robot", "content": "a"}]), ("top_logprobs", 2), ("response_format", {"type": "xml"}),
        ("chat_template", "{{ 1 }}"), ("chat_template_kwargs", {"chat_template": "x"}), ("store", True),
        ("chat_template_kwargs", {"enable_thinking": True}), ("functions", [{"name": "f"}]), ("modalities", ["audio"]),
        ("tools", [{"type": "custom"}]), ("tool_choice", "required"), ("reasoning_effort", "high"),
        ("add_generation_prompt", "no"), ("max_completion_tokens", -1),
    ],
)  # fmt: skip
def test_a_bad_value_of_a_chat_is_refused_by_name(field: str, value: Any) -> None:
    found = error("/v1/chat/completions", {"messages": USER, field: value})
    assert field in f"{found['param']} {found['message']}"


def test_an_unknown_field_is_refused_with_the_nearest_name_or_ignored_by_wish() -> None:
    found = error("/v1/chat/completions", {"messages": USER, "temprature": 1})
    assert (found["param"], "did you mean 'temperature'" in found["message"]) == ("temprature", True)
    body = {"messages": USER, "temprature": 1, "max_tokens": 1}
    answer = shared().post("/v1/chat/completions", body, headers={"x-tirage-unknown-fields": "ignore"})
    assert (answer.status_code, answer.headers["x-tirage-ignored-fields"]) == (200, "temprature")


def test_a_field_given_twice_is_refused() -> None:
    assert error("/v1/completions", {"prompt": "a", "top_k": 1, "extra_body": {"top_k": 2}})["param"] == "top_k"


def test_nothing_of_a_stream_is_sent_before_the_request_is_known_to_be_good() -> None:
    error("/v1/chat/completions", {"messages": USER, "stream": True, "guided_regex": "("})
    error("/v1/completions", {"prompt": "a", "stream": True, "best_of": 3})


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers() -> None:
    found = error("/v1/completions", {"prompt": [5] * 513})
    assert "512" in found["message"]
    assert "513" in found["message"]
    assert (found["param"], found["code"]) == ("prompt", "context_length_exceeded")
    found = error("/v1/chat/completions", {"messages": [{"role": "user", "content": "a b " * 400}]})
    assert (found["param"], found["code"]) == ("messages", "context_length_exceeded")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"guided_regex": "("}, "guided_regex"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}},
            "response_f",
        ),
        ({"structured_outputs": {"json": {"type": 3}}}, "structured_outputs"),
        ({"logit_bias": {"1536": 1}}, "logit_bias"),
        ({"bad_words_token_ids": [1622, 25062]}, "bad_words_token_ids"),
        ({"stop_token_ids": [1536]}, "stop_token_ids"),
        ({"messages": None, "prompt_token_ids": [-1]}, "prompt_token_ids"),
        ({"semantics": {"a": 1}}, "semantics"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}],
                "tool_choice": "required",
            },
            "tools",
        ),
    ],
)
def test_a_refusal_at_the_door_of_the_engine_names_the_clients_field(body: dict[str, Any], param: str) -> None:
    assert error("/v1/chat/completions", {"messages": USER, **body})["param"].startswith(param)


def test_effective_parameters_are_told_on_request() -> None:
    found = complete(return_effective_params=True, seed=None)
    assert isinstance(found["effective_params"], (dict, list))
    assert "seed" in json.dumps(found["effective_params"])


def test_offsets_are_those_of_the_detokenizer() -> None:
    llm = tiny()
    [choice] = complete(logprobs=0, return_token_ids=True, max_tokens=12)["choices"]
    detokenizer, places, place = open_detokenizer(llm.tokenizer, llm.tokenizer.encode(PROMPT)), [], 0
    for token in choice["token_ids"]:
        places.append(place)
        place += len(detokenizer.push(token))
    assert choice["logprobs"]["text_offset"] == places


# Ends that are errors.

DEAD_END = {"guided_regex": "[0-9]+", "allowed_token_ids": [300]}


def test_a_text_that_cannot_go_on_is_an_error_and_not_free_text() -> None:
    found = error("/v1/chat/completions", {"messages": USER, **DEAD_END})
    assert found["code"] == "no_allowed_token"


def test_an_error_is_the_last_event_of_a_stream() -> None:
    for chunks in (stream_chat(**DEAD_END, n=2), stream_texts(**DEAD_END)):
        assert [set(chunk) for chunk in chunks if "choices" not in chunk] == [{"error"}]
        assert chunks[-1]["error"]["code"] == "no_allowed_token"
        assert not any(choice["finish_reason"] for chunk in chunks[:-1] for choice in chunk["choices"])


def test_a_stream_may_end_with_its_effective_parameters() -> None:
    last = stream_chat(return_effective_params=True)[-1]
    assert last["choices"] == []
    [streamed], [whole] = last["effective_params"], chat(return_effective_params=True)["effective_params"]
    assert streamed["params"].pop("output_kind") != whole["params"].pop("output_kind")
    assert streamed == whole
