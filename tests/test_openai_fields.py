"""Every field that OpenAI's, vLLM's, SGLang's and FastDeploy's clients know: it works, or it is refused by its name."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from later import openai
from servers import Server, shared, slow_server
from test_openai import USER, chat, complete, error, post, stream, stream_chat, tiny
from test_openai_tools import TIME, WEATHER

from tirage.server.routes.messages_request import MESSAGES
from tirage.server.routes.openai_request import CHAT, COMPLETIONS, Route
from tirage.server.routes.responses_request import RESPONSES

OF_THE_CLIENT = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
"""Arguments of the official client that are no fields of a request."""


@pytest.mark.parametrize(
    ("create", "route"),
    [
        (lambda: openai.resources.chat.Completions.create, CHAT),
        (lambda: openai.resources.Completions.create, COMPLETIONS),
    ],
    ids=["chat", "completions"],
)
def test_every_argument_of_the_official_client_is_known(create: Callable[[], Any], route: Route) -> None:
    sent = set(inspect.signature(create()).parameters) - OF_THE_CLIENT
    assert sent <= {*route.fields, *route.openai.names}


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS, RESPONSES, MESSAGES], ids=lambda route: route.name)
def test_a_request_that_names_no_semantics_means_what_its_route_says(route: Route) -> None:
    assert (route.openai.preset, route.fastdeploy.preset) == ("openai", "fastdeploy-base")


def test_the_operator_may_allow_more_samples_than_openai_does() -> None:
    server = shared("tiny", "--max-n", "130", "--max-best-of", "132", "--max-samples", "300")
    for path, about in (("/v1/completions", {"prompt": "Once"}), ("/v1/chat/completions", {"messages": USER})):
        asked = {**about, "max_tokens": 1, "seed": 1}
        for given, count in (({"n": 130}, 130), ({"n": 2, "best_of": 132}, 2)):
            assert len(server.post(path, {**asked, **given}).json()["choices"]) == count
        for given, flag in (({"n": 131}, "--max-n"), ({"best_of": 133}, "--max-best-of")):
            refused = server.post(path, {**asked, **given})
            assert refused.status_code == 400
            assert flag in refused.json()["error"]["message"]


def test_a_chat_takes_every_stage_of_ours() -> None:
    # vLLM's order of stages has none of these, OpenAI's is ours.
    for given in ({"dry_multiplier": 0.8}, {"xtc_probability": 0.5}, {"typical_p": 0.5}, {"no_repeat_ngram_size": 2}):
        [record] = chat(max_tokens=3, return_effective_params=True, **given)["effective_params"]
        assert record["params"]["semantics"] == "openai"


TAKEN: dict[str, list[Any]] = {
    "user": ["me"], "model": ["m" * 512],
    "metadata": [{"a": "b"}, {}, {f"{i:064}": "b" * 512 for i in range(16)}],
    "store": [False], "service_tier": ["auto", "default"], "modalities": [["text"]],
    "parallel_tool_calls": [True, False], "prompt_cache_key": ["k"],
    "safety_identifier": ["s"],
    "prompt_cache_retention": ["in_memory"], "use_beam_search": [False], "length_penalty": [1.0, 1], "echo": [False],
    "early_stopping": [False],
    "include_reasoning": [True], "separate_reasoning": [False], "enable_thinking": [False], "top_logprobs": [0],
    "response_format": [{"type": "text"}, {"type": "text", "json_schema": None}], "priority": [0], "rid": ["r"],
    "add_generation_prompt": [True], "continue_final_message": [False], "no_stop_trim": [True],
    "tool_choice": ["auto", "none"], "prediction": [None],
    "disable_chat_template": [False], "collect_metrics": [False], "lora_path": [None], "logit_bias": [{}],
}  # fmt: skip
REFUSED: dict[str, list[Any]] = {
    "model": ["m" * 513],
    "metadata": [
        {"enable_thinking": True}, "a", dict.fromkeys(map(str, range(17)), ""), {"a" * 65: ""}, {"a": "b" * 513},
    ],
    "store": [True], "service_tier": ["flex"], "modalities": [["audio"]],
    "prediction": [{"type": "content", "content": "a"}], "audio": [{}], "functions": [[]], "function_call": ["auto"],
    "verbosity": ["low"], "web_search_options": [{}], "moderation": [{}], "prompt_cache_options": [{}],
    "prompt_cache_retention": ["24h"], "reasoning_effort": ["low"], "enable_thinking": [True],
    "use_beam_search": ["yes", 1], "beam_width": [2, 0], "early_stopping": [True, "never", "no"],
    "length_penalty": [2.0, True], "echo": [True], "cache_salt": ["", 3], "documents": [[]],
    "include_reasoning": [False],
    "lora_path": ["nobody"], "custom_logit_processor": ["forced_token", 3, ""], "custom_params": [{"a": 1}, 3],
    "tool_choice": ["required", 3], "top_logprobs": [1, -1, 21], "max_completion_tokens": [-1, "1", 1.0],
    "chat_template": ["x"], "logit_bias": [{"a": 1}, {"5": None}, [5]],
    "stop": [[str(i) for i in range(33)], "x" * 257],
    "bad_words": [[str(i) for i in range(129)], ["x" * 257]], "logprob_token_ids": [list(range(1025))],
    "chat_template_kwargs": [{"tools": [WEATHER]}, {"messages": []}, {"nobody": 1}], "n": [129], "best_of": [21],
    "response_format": [
        {"type": "xml"}, {"type": "text", "a": 1}, {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": 3}}, {"type": "json_schema", "json_schema": {"strict": "yes"}},
        {"type": "json_schema", "json_schema": {"schema": "{}"}}, {"type": "json_schema", "json_schema": {"a": 1}},
        {"type": "structural_tag", "structures": 3, "triggers": []},
    ],
    "messages": [
        [{"role": "robot", "content": "a"}], [{**USER[0], "function_call": {"name": "f", "arguments": "{}"}}],
        [{**USER[0], "audio": {"id": "a"}}], [{"role": "user", "content": [{"type": "refusal", "refusal": "no"}]}],
    ],
}  # fmt: skip


@pytest.mark.parametrize("field", TAKEN)
def test_what_changes_nothing_is_taken(field: str) -> None:
    plain = chat()["choices"]
    for value in TAKEN[field]:
        assert chat(**{field: value})["choices"] == plain


@pytest.mark.parametrize("field", REFUSED)
def test_what_cannot_be_done_is_refused_by_name(field: str) -> None:
    for value in REFUSED[field]:
        for lenient in ({}, {"x-tirage-unknown-fields": "ignore"}):
            answer = shared().post("/v1/chat/completions", {"messages": USER, field: value}, headers=lenient)
            found = answer.json()["error"]
            assert (answer.status_code, found["param"].startswith(field)) == (400, True), found
            assert "must" in found["message"] or "were refused" in found["message"]
            assert "; " in found["message"] or "got" in found["message"]


def test_what_is_ignored_in_a_schema_is_listed() -> None:
    schema = {"name": "a", "schema": {"const": 1, "nullable": True}}
    body = {"messages": USER, "max_tokens": 3, "response_format": {"type": "json_schema", "json_schema": schema}}
    answer = shared().post("/v1/chat/completions", body)
    assert answer.headers["x-tirage-ignored-in-schema"] == "#/nullable"


def test_unknown_options_of_a_stream_are_refused_or_ignored_by_wish() -> None:
    options = {"messages": USER, "max_tokens": 2, "stream": True, "stream_options": {"include_usages": True}}
    found = error("/v1/chat/completions", options)
    assert (found["param"], "did you mean 'stream_options.include_usage'" in found["message"]) == (
        "stream_options",
        True,
    )
    answer = shared().post("/v1/chat/completions", options, headers={"x-tirage-unknown-fields": "ignore"})
    assert answer.headers["x-tirage-ignored-fields"] == "stream_options.include_usages"
    options["stream_options"] = {"include_usage": 1}
    assert error("/v1/chat/completions", options)["param"] == "stream_options.include_usage"


@pytest.mark.parametrize("name", ["enable_thinking", "reasoning_effort", "chat_template_kwargs"])
def test_variables_of_the_template_go_with_messages(name: str) -> None:
    value = {"enable_thinking": True, "reasoning_effort": "low", "chat_template_kwargs": {"a": 1}}[name]
    assert error("/v1/chat/completions", {"prompt_token_ids": [5], name: value})["param"] == name


def test_both_limits_of_tokens_may_be_given_where_they_agree() -> None:
    assert chat(max_tokens=3, max_completion_tokens=3)["usage"]["completion_tokens"] == 3
    body = {"messages": USER, "max_tokens": 3, "max_completion_tokens": 4}
    assert error("/v1/chat/completions", body)["param"] == "max_completion_tokens"


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"prompt": ["a"] * 129}, "prompt", None),
        ({"prompt": ["a"] * 100, "n": 3}, "n", None),
        ({"prompt": ["a", "b" * 9000]}, "prompt", "context_length_exceeded"),
        ({"prompt_token_ids": [5] * 513}, "prompt_token_ids", "context_length_exceeded"),
        ({"messages": [{"role": "user", "content": "b" * 9000}]}, "messages", "context_length_exceeded"),
        ({"messages": USER, "max_tokens": 513}, "max_tokens", "context_length_exceeded"),
        ({"messages": USER, "rid": "r" * 129}, "rid", None),
        ({"messages": USER, "logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", None),
    ],
)
def test_a_limit_is_told_by_the_clients_field(body: dict[str, Any], param: str, code: str | None) -> None:
    found = error("/v1/chat/completions" if "messages" in body else "/v1/completions", body)
    assert (found["param"], found["code"]) == (param, code)


# Shapes of what is asked for.


def test_text_may_hold_tags_with_json_inside() -> None:
    tag = {"begin": "<n>", "schema": {"type": "integer", "minimum": 10, "maximum": 99}, "end": "</n>"}
    forced = {"type": "structural_tag", "format": {"type": "tag", "begin": "<n>", "end": "</n>", "content": {
        "type": "json_schema", "json_schema": tag["schema"]}}}  # fmt: skip
    [choice] = chat(response_format=forced, max_tokens=30)["choices"]
    assert 10 <= int(choice["message"]["content"].removeprefix("<n>").removesuffix("</n>")) <= 99
    free = {"type": "structural_tag", "structures": [tag], "triggers": ["<n"]}
    assert chat(response_format=free)["choices"][0]["message"]["content"]
    assert post("/v1/completions", {"prompt": "a", "response_format": forced, "max_tokens": 30})["choices"][0]["text"]


def test_the_drawn_token_is_among_the_likeliest_as_it_is_spelled() -> None:
    for entry in chat(logprobs=True, top_logprobs=20)["choices"][0]["logprobs"]["content"]:
        top = {(each["token"], each["logprob"]) for each in entry["top_logprobs"]}
        assert (entry["token"], entry["logprob"]) in top


def test_completions_take_ids_in_fastdeploys_field() -> None:
    ids = tiny().tokenizer.encode("Once upon")
    for given in (ids, [ids]):
        for prompt in ({}, {"prompt": ""}):
            body = {"prompt_token_ids": given, **prompt, "seed": 1, "max_tokens": 6}
            assert post("/v1/completions", body)["choices"] == complete()["choices"]
    for body in ({"prompt": "a", "prompt_token_ids": ids}, {"prompt_token_ids": "a"}, {"prompt_token_ids": ["a"]},
                 {"prompt_token_ids": []}, {"prompt_token_ids": [9999]}):  # fmt: skip
        assert error("/v1/completions", body)["param"].startswith("prompt_token_ids")


def test_a_function_without_parameters_takes_no_arguments() -> None:
    named = {"type": "function", "function": {"name": "time"}}
    bare = {"type": "function", "function": {"name": "time"}}
    for tool in (bare, TIME):
        [choice] = chat(tools=[tool], tool_choice=named, max_tokens=20)["choices"]
        assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {}


@pytest.fixture(scope="module")
def named() -> Server:
    return shared("tiny", "--enable-custom-logit-processor")


@pytest.mark.slow
@pytest.mark.parametrize("reference", ["forced_token", '{"processor": "forced_token"}'])
def test_a_processor_is_named_as_sglangs_clients_do(named: Server, reference: str) -> None:
    more = {"custom_logit_processor": reference, "custom_params": {"token_id": 300}}
    client: Any = openai.OpenAI(base_url=f"{named.url}/v1", api_key="null", max_retries=0)
    extra = {**more, "return_token_ids": True}
    reply = client.chat.completions.create(model="tiny", messages=USER, max_tokens=3, extra_body=extra)
    assert reply.choices[0].model_dump()["token_ids"] == [300] * 3
    body = {"prompt": "a", "max_tokens": 2, "return_token_ids": True, **more}
    assert named.post("/v1/completions", body).json()["choices"][0]["token_ids"] == [300] * 2
    wrong = named.post("/v1/completions", {**body, "custom_params": {"token": 300}}).json()["error"]
    assert wrong["param"] == "custom_params"
    unknown = named.post("/v1/completions", {**body, "custom_logit_processor": "forced_tokens"}).json()["error"]
    assert unknown["param"] == "custom_logit_processor"


NAIVE = """{% for m in messages %}{{ m.role + ': ' + m.content.strip() }}{{ m.name.upper() if m.name }}
{% endfor %}{% for t in tools or [] %}{{ t.function.parameters.properties.items() | list }}{% endfor %}{{ 1 // one }}"""


@pytest.mark.slow
def test_a_conversation_that_the_models_template_fails_at_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text(NAIVE)
    good = {"messages": USER, "max_tokens": 2, "chat_template_kwargs": {"one": 1}}
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    with Server("tiny", "--chat-template", str(path)) as server:
        for more in (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]},
            {"messages": [{**USER[0], "name": 3}]},
            {"tools": [{"type": "function", "function": {"name": "f"}}]},
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": 3}}}]},
            {"chat_template_kwargs": {"one": 0}},
            {"chat_template_kwargs": {}},
        ):
            answer = server.post("/v1/chat/completions", {**good, **more})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages"), answer.text
            assert "chat template" in answer.json()["error"]["message"]
        assert server.post("/v1/chat/completions", good).status_code == 200
        assert "Traceback" not in server.log


# Ends.


@pytest.mark.slow
def test_a_stream_whose_time_is_over_says_so_in_its_last_event() -> None:
    with slow_server("--request-timeout", "1") as server:
        body = {"messages": USER, "prompt": "a", "max_tokens": 400, "ignore_eos": True, "stream": True}
        for path, without in (("/v1/chat/completions", "prompt"), ("/v1/completions", "messages")):
            given = {name: value for name, value in body.items() if name != without}
            lines = [line for line in server.post(path, given).text.split("\n\n") if line]
            assert lines[-1] == "data: [DONE]"
            last = json.loads(lines[-2].removeprefix("data: "))["error"]
            assert (last["code"], "--request-timeout" in last["message"]) == ("timeout", True)
            whole = server.post(path, {**given, "stream": False})
            assert (whole.status_code, whole.json()["error"]["code"]) == (504, "timeout")


@pytest.mark.slow
def test_usage_counts_every_prompt_once_and_every_token_drawn() -> None:
    prompts = ["Once upon", "The fox", "a"]
    lengths = [len(tiny().tokenizer.encode(prompt)) for prompt in prompts]
    body = {"prompt": prompts, "n": 2, "max_tokens": 4, "ignore_eos": True}
    expected = {"prompt_tokens": sum(lengths), "completion_tokens": 24, "total_tokens": sum(lengths) + 24}
    assert expected.items() <= complete(**body)["usage"].items()
    chunks = stream("/v1/completions", **body, stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert expected.items() <= chunks[-1]["usage"].items()
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks[:-1]]
    assert counts == sorted(counts)
    assert counts[-1] == 24
    best = {**body, "best_of": 3}
    assert complete(**best)["usage"]["completion_tokens"] == 36
    called = chat(tools=[WEATHER], tool_choice="required", close_grammar=True, return_token_ids=True, max_tokens=120)
    assert called["usage"]["completion_tokens"] == len(called["choices"][0]["token_ids"])
    cached = chat(stream_options=None)["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert 0 <= cached < chat()["usage"]["prompt_tokens"]
    assert stream_chat(stream_options={"include_usage": True})[-1]["usage"]["completion_tokens"] == 8
