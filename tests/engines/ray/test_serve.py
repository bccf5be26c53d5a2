"""`tirage serve --ray`: two replicas behind Ray's proxies answer as one server, also while one of them is killed."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from served import RayServer, until

from tirage import LLM, SamplingParams

KEY, ADMIN = {"authorization": "Bearer one"}, {"authorization": "Bearer operator"}
SEEDED = {"sampling_seed": 7, "max_new_tokens": 12, "temperature": 0.9, "top_p": 0.9, "ignore_eos": True}
LONG = {"sampling_seed": 3, "max_new_tokens": 500, "ignore_eos": True}
FLAGS = ("--replicas", "2", "--api-key", "one", "--api-key", "two", "--admin-key", "operator",
         "--max-running", "4", "--max-queue", "8")  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[RayServer]:
    with RayServer(*FLAGS) as found:
        found.client.headers.update(KEY)
        yield found


def generate(server: RayServer, **body: Any) -> httpx.Response:
    return server.client.post("/generate", json={"text": "Once", **body})


def together(count: int, job: Any) -> list[Any]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(job, range(count)))


def events(response: httpx.Response) -> list[str]:
    return [line[6:] for line in response.iter_lines() if line.startswith("data: ")]


def test_a_seed_gives_the_same_tokens_on_every_replica_as_on_one_machine(server: RayServer) -> None:
    params = SamplingParams(seed=7, max_tokens=12, temperature=0.9, top_p=0.9, ignore_eos=True)
    with LLM(backend="numpy") as llm:
        alone = llm.generate("Once", params)[0]
    answers = together(8, lambda _: generate(server, sampling_params=SEEDED).json())
    assert {tuple(each["output_ids"]) for each in answers} == {alone.token_ids}
    told = server.samples("tirage_requests_total")
    used = {labels.partition('replica="')[2][:8] for labels in told if 'route="/generate"' in labels}
    assert len(used) == 2


def test_a_stream_is_the_whole_answer_in_pieces(server: RayServer) -> None:
    body = {"text": "Once", "sampling_params": SEEDED, "stream": True, "stream_options": {"mode": "delta"}}
    with server.client.stream("POST", "/generate", json=body) as response:
        found = events(response)
    whole = generate(server, sampling_params=SEEDED).json()["text"]
    assert "".join(json.loads(each)["text"] for each in found[:-1]) == whole
    assert found[-1] == "[DONE]"


def test_openai_routes_keys_and_request_ids_hold(server: RayServer) -> None:
    body = {"prompt": "Once", "max_tokens": 4, "seed": 1}
    answer = server.client.post("/v1/completions", json=body, headers={"x-request-id": "mine"})
    assert answer.status_code == 200
    assert answer.headers.get_list("x-request-id") == ["mine"]
    assert server.client.post("/v1/completions", json=body, headers={"authorization": "no"}).status_code == 401
    assert server.client.post("/v1/completions", json={**body, "max_tokens": 0.5}).json()["error"]["param"]
    assert server.client.get("/health", headers={"authorization": ""}).status_code == 200


def test_metrics_are_those_of_both_replicas(server: RayServer) -> None:
    page = server.client.get("/metrics").text
    assert page.count("# TYPE tirage_engine_running gauge\n") == 1
    assert len(server.samples("tirage_engine_running")) == 2
    until(lambda: server.running() == 0)


def test_a_client_that_leaves_stops_its_request(server: RayServer) -> None:
    body = {"text": "Once", "sampling_params": LONG, "stream": True}
    with server.client.stream("POST", "/generate", json=body) as response:
        lines = response.iter_lines()
        assert next(lines)
        until(lambda: server.running() == 1)
    until(lambda: server.running() == 0)
    with pytest.raises(httpx.ReadTimeout):
        server.client.post("/generate", json={**body, "stream": False}, timeout=0.2)
    until(lambda: server.running() == 0)
    assert sum(value for name, value in server.samples("tirage_aborts_total").items() if "disconnect" in name) == 2


def test_an_abort_reaches_the_replica_that_runs_the_request_and_no_other_key_can(server: RayServer) -> None:
    found: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: found.append(generate(server, rid="x", sampling_params=LONG).json()))
    thread.start()
    until(lambda: server.running() == 1)
    other = server.client.post("/abort_request", json={"rid": "x"}, headers={"authorization": "Bearer two"})
    assert other.json() == {"aborted": [], "not_found": ["x"]}
    assert server.client.post("/abort_request", json={"rid": "x"}).json() == {"aborted": ["x"], "not_found": []}
    thread.join()
    assert found[0]["meta_info"]["finish_reason"]["type"] == "abort"


def test_what_only_the_operator_may_do(server: RayServer) -> None:
    assert server.client.post("/flush_cache").status_code == 403
    assert server.client.post("/flush_cache", headers=ADMIN).json() == {"success": True}


def test_too_many_requests_are_answered_with_503_and_when_to_come_again(server: RayServer) -> None:
    # Each replica takes eight, and eight more wait.
    answers = together(60, lambda _: generate(server, sampling_params={**LONG, "max_new_tokens": 30}))
    refused = [each for each in answers if each.status_code == 503]
    assert {each.status_code for each in answers} == {200, 503}
    assert {each.headers["retry-after"] for each in refused} == {"1"}
    assert {each.json()["error"]["type"] for each in refused} == {"service_unavailable_error"}


def read(server: RayServer, begun: threading.Event) -> list[str]:
    """The events of a long stream; `begun` is set with the first."""
    body = {"text": "Once", "sampling_params": LONG, "stream": True, "stream_options": {"mode": "delta"}}
    with server.client.stream("POST", "/generate", json=body) as response:
        found: list[str] = []
        for line in response.iter_lines():
            begun.set()
            found += [line[6:]] if line.startswith("data: ") else []
        return found


def test_killing_a_replica_ends_every_request_with_an_event_and_the_others_go_on(server: RayServer) -> None:
    until(lambda: server.running() == 0)
    answers: list[Future[list[str]]] = []
    with ThreadPoolExecutor(8) as pool:
        # Until both replicas have one.
        while len(answers) < 8 and min(server.samples("tirage_engine_running").values()) == 0:
            begun = threading.Event()
            answers.append(pool.submit(read, server, begun))
            assert begun.wait(60)
        os.kill(min(server.replicas()), signal.SIGKILL)
        streams = [each.result() for each in answers]
    ends = [json.loads(each[-2]) for each in streams]
    cut = [each["error"]["code"] for each in ends if "error" in each]
    assert {each[-1] for each in streams} == {"[DONE]"}
    assert 0 < len(cut) < len(streams)
    assert set(cut) == {"replica_ended"}
    whole = ["".join(json.loads(part)["text"] for part in each[:-1]) for each, end in zip(streams, ends, strict=True)
             if "error" not in end]  # fmt: skip
    assert len(set(whole)) == 1
    after = together(8, lambda _: generate(server, sampling_params=SEEDED))
    assert {each.status_code for each in after} == {200}
    until(lambda: len(server.replicas()) == 2)


def test_what_runs_when_the_server_ends_is_answered_whole(server: RayServer) -> None:
    """The last of all: the server is gone afterwards."""
    until(lambda: server.running() == 0)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(lambda: generate(server, sampling_params={**LONG, "max_new_tokens": 200}))
        until(lambda: server.running() == 1)
        server.process.send_signal(signal.SIGTERM)
        assert len(answer.result().json()["output_ids"]) == 200
    assert server.process.wait(60) == 0, server.log
