"""The server's plain routes, through a real process: what they say, and how they refuse."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import pytest
from raw_http import exchange, request, status_of
from servers import Server, shared

from tirage import LLM

KEYED = ("tiny", "--api-key", "sesame", "--api-key", "opens", "--admin-key", "chief")
ADMIN = {"authorization": "Bearer chief"}
ENVELOPE = {"message", "type", "param", "code"}


# --- what there is -----------------------------------------------------------------------------------------------

ROUTES = {
    "/health": {"get"},
    "/health_generate": {"get"},
    "/ready": {"get"},
    "/metrics": {"get"},
    "/version": {"get"},
    "/model_info": {"get"},
    "/get_model_info": {"get"},
    "/server_info": {"get"},
    "/get_server_info": {"get"},
    "/tokenize": {"post"},
    "/detokenize": {"post"},
    "/explain": {"post"},
    "/check_constraint": {"post"},
    "/score": {"post"},
    "/v1/score": {"post"},
    "/generative_scoring": {"post"},
    "/v1/tokenize": {"post"},
    "/v1/detokenize": {"post"},
    "/abort_request": {"post"},
    "/generate": {"post", "put"},
    "/v1/completions": {"post"},
    "/v1/chat/completions": {"post"},
    "/v1/responses": {"post"},
    "/v1/responses/{response_id}": {"get", "delete"},
    "/v1/responses/{response_id}/cancel": {"post"},
    "/v1/responses/{response_id}/input_items": {"get"},
    "/v1/messages": {"post"},
    "/v1/messages/count_tokens": {"post"},
    "/v1/models": {"get"},
    "/v1/models/{name}": {"get"},
}
ADMIN_ROUTES = {"/flush_cache": {"post"}}


def described(server: Server, headers: dict[str, str] | None = None) -> dict[str, set[str]]:
    paths = server.get("/openapi.json", headers=headers).json()["paths"]
    return {path: set(methods) for path, methods in paths.items()}


@pytest.mark.slow
def test_the_routes_are_these_and_no_others() -> None:
    assert described(shared()) == ROUTES
    assert described(shared(*KEYED), ADMIN) == ROUTES | ADMIN_ROUTES


def test_health_is_200_once_the_model_answers() -> None:
    answer = shared().get("/health")
    idle = {"waiting": 0, "running": 0, "oldest_s": 0.0}
    assert (answer.status_code, answer.json()["status"]) == (200, "ready")
    assert shared().get("/ready").json() == {"status": "ready", "preparation": {"plain": idle, "guided": idle}}
    assert shared().get("/health_generate").status_code == 200
    for path in ("/health", "/ready"):
        head = shared().ask("HEAD", path)
        assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
def test_model_info_has_sglangs_names(path: str) -> None:
    info = shared().get(path).json()
    assert info["model_path"] == info["tokenizer_path"] == "tiny"
    assert info["is_generation"] is True
    llm = LLM("tiny")
    assert (info["vocab_size"], info["max_model_len"]) == (llm.model.vocab_size, llm.model.max_length)
    assert info["eos_token_ids"] == llm.generation_config["eos_token_id"]
    assert info["logits_processors"] == ["allowed_tokens", "disallowed_tokens", "forced_token", "thinking_budget"]


def test_server_info_shows_the_settings_without_secrets_and_paths() -> None:
    info = shared(*KEYED).get("/server_info", headers=ADMIN).json()
    assert info["status"] == "ready"
    assert (info["max_n"], info["max_body"], info["host"]) == (128, 32 * 2**20, "127.0.0.1")
    assert not {"api_key", "admin_key"} & set(info)
    assert set(info["engine"]) == {"waiting", "reading", "running", "started", "completed"}


def test_version_is_the_packages() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", shared().get("/version").json()["version"])


# --- text --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/tokenize", "/v1/tokenize"])
@pytest.mark.parametrize("name", ["prompt", "text", "content"])
def test_tokenize_gives_the_ids_of_a_text(path: str, name: str) -> None:
    answer = shared().post(path, {name: "hello"})
    assert answer.json() == {"tokens": [1, 399, 378, 342], "count": 4, "max_model_len": 512, "token_strs": None}


def test_tokenize_takes_several_texts_and_leaves_the_first_token_out_on_request() -> None:
    answer = shared().post("/tokenize", {"prompt": ["hello", ""], "add_special_tokens": False}).json()
    assert (answer["tokens"], answer["count"]) == ([[399, 378, 342], []], [3, 0])


def test_detokenize_is_the_way_back() -> None:
    text = "Once upon a time, there was a fox."
    tokens = shared().post("/tokenize", {"prompt": text}).json()["tokens"]
    answer = shared().post("/detokenize", {"tokens": tokens}).json()
    assert answer == {"text": text, "prompt": text, "content": text}


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/tokenize", {}, "exactly one of prompt"),
        ("/tokenize", {"prompt": "a", "text": "b"}, "exactly one of prompt"),
        ("/tokenize", {"prompt": 5}, "prompt must be"),
        ("/tokenize", {"prompt": [["a"]]}, "prompt must be"),
        ("/tokenize", {"prompt": ["a"] * 129}, "--max-prompts"),
        ("/tokenize", {"promt": "a"}, "did you mean 'prompt'"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens must be"),
        ("/tokenize", [], "must be a JSON object"),
        ("/tokenize", "text", "must be a JSON object"),
        ("/detokenize", {"tokens": "1"}, "tokens must be"),
        ("/detokenize", {"tokens": [-1]}, "-1"),
        ("/detokenize", {"tokens": [10**9]}, "1000000000"),
        ("/detokenize", {"tokens": [1.5]}, "1.5"),
        ("/detokenize", {"tokens": [True]}, "True"),
        ("/detokenize", {}, "tokens must be"),
    ],
)
def test_a_wrong_body_is_a_400_that_names_the_field(path: str, body: object, words: str) -> None:
    answer = shared().post(path, body)
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == ENVELOPE
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe{}", b'{"prompt": "\\ud800"}', b'{"prompt": NaN}', b"{} {}"])
def test_a_body_that_is_no_json_is_a_400(body: bytes) -> None:
    head = request("/tokenize", None, headers=["Content-Type: application/json"])
    whole = head.replace(b"Content-Length: 0", b"Content-Length: %d" % len(body)) + body
    assert status_of(exchange(shared().port, whole)) == 400


def test_an_unknown_route_or_method_is_an_error_envelope() -> None:
    for answer, status in (
        (shared().get("/nowhere"), 404),
        (shared().get("/tokenize"), 405),
        (shared().post("/nowhere"), 404),
        (shared().post("/"), 405),
    ):
        assert answer.status_code == status
        assert set(answer.json()["error"]) == ENVELOPE


# --- metrics -----------------------------------------------------------------------------------------------------

ASKED = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 20, "ignore_eos": True}}
USAGE = ("prompt_tokens", "completion_tokens", "cached_tokens")


@pytest.fixture(scope="module")
def counted() -> Iterator[Server]:
    """A server whose numbers are compared before and after."""
    with Server("tiny", "--max-running", "1", "--max-queue", "0") as server:
        yield server


def settled(server: Server) -> dict[str, float]:
    """The numbers once nothing is in flight any more: an answer is counted when it has been sent, and the tokens of a
    step just after they are given away."""
    deadline, before = time.monotonic() + 60, dict[str, float]()
    while (now := server.metrics())["tirage_requests_in_flight"] or drawn(now) != drawn(before):
        assert time.monotonic() < deadline
        time.sleep(0.1)
        before = now
    return now


def drawn(numbers: dict[str, float]) -> float | None:
    """How many tokens the engine has counted."""
    return numbers.get("tirage_engine_output_tokens_total")


def moved(server: Server, before: dict[str, float]) -> dict[str, float]:
    """What the numbers grew by."""
    after = settled(server)
    return {name: value - before.get(name, 0.0) for name, value in after.items() if value != before.get(name, 0.0)}


def test_metrics_count_tokens_and_times_of_what_was_answered(counted: Server) -> None:
    before = settled(counted)
    told = [counted.post("/generate", ASKED).json()["meta_info"] for _ in range(3)]
    grown = moved(counted, before)
    for name in USAGE:
        assert grown.get(f"tirage_{name}_total", 0) == sum(one[name] for one in told)
    assert grown["tirage_engine_output_tokens_total"] == 60
    assert grown['tirage_samples_total{reason="length"}'] == 3
    assert grown["tirage_engine_completed_total"] == 3
    for name, count in (("time_to_first_token", 3), ("inter_token", 57), ("prepare", 3)):
        assert grown[f"tirage_{name}_seconds_count"] == count
        assert grown[f"tirage_{name}_seconds_sum"] > 0
    for name in ("read", "sample", "text", "decode"):
        assert grown[f"tirage_engine_{name}_s_total"] > 0
    assert 0 < counted.metric("tirage_engine_sampling_share") < 1


def test_streams_are_counted_like_other_answers(counted: Server) -> None:
    before = settled(counted)
    text = counted.post("/generate", {**ASKED, "stream": True}).text
    last = json.loads(text.split("data: ")[-2])["meta_info"]
    grown = moved(counted, before)
    assert grown["tirage_completion_tokens_total"] == last["completion_tokens"] == 20
    assert grown["tirage_time_to_first_token_seconds_count"] == 1


def test_metrics_count_constraints_refusals_and_aborts(counted: Server) -> None:
    before = settled(counted)
    regex = {"max_new_tokens": 5, "regex": "[a-z ]+"}
    assert counted.post("/generate", {"text": "a", "sampling_params": regex}).status_code == 200
    assert counted.post("/generate", {**ASKED, "text": ["a", "b", "c"]}).status_code == 503
    grown = moved(counted, before)
    assert grown["tirage_grammar_compile_seconds_count"] == 1
    assert grown["tirage_refused_total"] == 1


PLAIN_CALLS = {
    "/generate": ASKED,
    "/tokenize": {"prompt": "a"},
    "/v1/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [5]},
    "/v1/detokenize": {"tokens": [5]},
    "/abort_request": {"rid": "a"},
    "/explain": {"text": "a"},
    "/check_constraint": {"regex": "a"},
    **{path: {"query": "a", "items": "b", "label_token_ids": [5]} for path in ("/score", "/v1/score")},
    "/generative_scoring": {"query": "a", "items": ["b"], "label_token_ids": [5]},
    "/v1/completions": {"prompt": "a"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
    "/v1/responses": {"input": "a", "max_output_tokens": 2},
    "/v1/messages": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "a"}]},
}


def test_every_route_is_counted_under_its_own_name(counted: Server) -> None:
    before = settled(counted)
    for path, methods in ROUTES.items():
        if path in PLAIN_CALLS:
            assert counted.post(path, PLAIN_CALLS[path]).status_code == 200
        else:
            method, *_ = sorted(methods)
            counted.ask(method.upper(), path.replace("{name}", "tiny").replace("{response_id}", "resp_1"))
    grown = moved(counted, before)
    labels = {found[1] for name in grown if (found := re.match(r'tirage_requests_total\{route="([^"]+)"', name))}
    assert {label.replace(":path", "") for label in labels} == set(ROUTES)


@pytest.mark.slow
def test_no_client_can_make_the_metrics_page_grow() -> None:
    server = shared()

    def names(first: int) -> set[str]:
        for number in range(first, first + 25):
            server.get(f"/nowhere/{number}", headers={"x-request-id": f"id-{number}"})
            server.get(f"/v1/models/{number}")
            server.post("/abort_request", {"rid": f"rid-{number}"})
            server.post("/generate", {**PLAIN_CALLS["/generate"], "rid": f"rid-{number}"} if number < 2 else {"x": 1})
        return set(server.metrics())

    names(0)
    before = names(25)
    assert names(50) == before


# --- the log -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_log_has_one_line_a_request_and_nothing_of_its_text() -> None:
    with Server("tiny", "--log-format", "json") as server:
        secret = "the owl whispers"
        server.post("/generate", {"text": secret, "sampling_params": {"max_new_tokens": 2}, "rid": "a\r\n\x1b[31mb"})
        server.post("/tokenize", {"prompt": secret})
        server.get("/no%0d%0aINJECTED%1b[31m")
        exchange(server.port, b"GET /%00%e2%80%a8 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        server.get("/" + "long" * 2000)
        server.stop()
        lines = [json.loads(line) for line in server.log.splitlines()]
        assert not any("whispers" in line for line in server.log.splitlines())
        answered = [line for line in lines if "status" in line]
        assert {line["path"] for line in answered} >= {"/generate", "/tokenize"}
        assert {"id", "method", "path", "status", "ms", "time", "level", "message"} == set(answered[0])
        assert not any(re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028]", line) for line in server.log.split("\n"))
        assert max(len(line) for line in server.log.splitlines()) < 2500
