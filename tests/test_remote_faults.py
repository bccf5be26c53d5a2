"""Servers that are gone, slow, broken or hostile: every one of them is an error with a name, and nothing hangs."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import gzip
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from scripted_server import ScriptedServer, answer, events, hang, repeat

import tirage
from tirage import ParamsError, SamplingParams, TirageError, cli
from tirage.errors import ModelError, RemoteError, UnavailableError
from tirage.remote.answer import RemoteAnswer
from tirage.remote.connection import seconds_of
from tirage.remote.events import EventParser
from tirage.remote.formats import FORMATS
from tirage.remote.request import RemoteRequest
from tirage.remote.routes import REMOTE_DIALECTS

CHOICE = {"index": 0, "text": " time", "finish_reason": "stop", "stop_reason": None}
WHOLE = {"choices": [CHOICE], "usage": {"prompt_tokens": 2, "completion_tokens": 1}}
PARAMS = SamplingParams(seed=1, max_tokens=4)


def remote(url: str, **options: Any) -> Any:
    return tirage.LLM(url, **{"dialect": "vllm", "timeout_s": 20.0, "retries": 0, **options})


def failure(*scripts: Any, stream: bool = False, models: Any = None, **options: Any) -> tuple[TirageError, int]:
    """The error of a request to a server that answers so, and how many requests it got."""
    with ScriptedServer(*scripts, models=models) as server, remote(server.url, **options) as llm:
        with pytest.raises(TirageError) as caught:
            list(llm.stream("Once", PARAMS)) if stream else llm.generate("Once", PARAMS)
        return caught.value, len(server.requests)


def one_event(text: str = " time", **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": None, **more}]}


# --- gone, slow, cut off -------------------------------------------------------------------------------------------


def test_a_server_that_is_not_there_is_a_remote_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with remote(f"http://127.0.0.1:{port}") as llm, pytest.raises(RemoteError, match="does not answer: ConnectError"):
        llm.generate("Once", PARAMS)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "script",
    [
        hang,
        repeat(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", b": still here\n\n"),
        repeat(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", b"data: x"),
    ],
    ids=["says nothing", "only comments", "an event without an end"],
)
def test_a_server_that_never_answers_is_given_up(script: Any, stream: bool) -> None:
    error, asked = failure(script, stream=stream, timeout_s=0.3, retries=3)
    assert isinstance(error, RemoteError)
    assert "must answer within 0.3 seconds (timeout_s)" in str(error)
    assert asked <= 1


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (lambda connection: None, "does not answer: RemoteProtocolError"),
        (answer(WHOLE)[:-5], "cut its answer off"),
        (answer(b'{"choices": [')[:-1], "cut its answer off"),
        (answer(b"<html>"), "must answer with JSON, got '<html>'"),
        (answer(b"[" * 100_000), "must answer with JSON"),
        (answer(gzip.compress(json.dumps(WHOLE).encode()), headers=["Content-Encoding: gzip"]), "without compression"),
        (answer({"choices": []}), "must end every sample"),
        (answer({**WHOLE, "choices": [{**CHOICE, "finish_reason": None}]}), "must end every sample"),
        (answer({**WHOLE, "choices": [{**CHOICE, "index": 1}]}), "must answer with 1 samples, got number 1"),
        (answer({**WHOLE, "usage": {"completion_tokens": 5}}), "must end 1 texts after 4 tokens, got 5"),
        (answer([]), "answer of the server's answer must be an object, got []"),
        (repeat(b"HTTP/1.1 200 OK\r\n", b"X-Another: one\r\n"), "does not answer: RemoteProtocolError"),
        (b"SSH-2.0-server\r\n", "does not answer: RemoteProtocolError"),
    ],
)
def test_an_answer_that_cannot_be_read_is_a_remote_error(script: Any, says: str) -> None:
    error, _ = failure(script)
    assert isinstance(error, RemoteError)
    assert says in str(error)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (events(one_event(), done=False, length=10_000), "cut its answer off"),
        (events(one_event(), done=False), "must end every sample"),
        (events(one_event()), "must end every sample"),
        (events(one_event(), {"error": {"message": "out of memory"}}), "the server failed: out of memory"),
        (events("hello"), "must be an object, got 'hello'"),
        (answer(WHOLE), "must answer with an event stream, got 'application/json'"),
        (events(*[one_event(token_ids=[1, 2, 3])] * 2), "must end a text after 4 tokens, it goes on"),
    ],
)
def test_a_broken_stream_is_a_remote_error_and_not_asked_for_again(script: Any, says: str) -> None:
    error, asked = failure(script, stream=True, retries=3)
    assert isinstance(error, RemoteError)
    assert says in str(error)
    assert asked == 1


@pytest.mark.parametrize(
    ("event", "says"),
    [
        ({"choices": []}, "must say something in an event"),
        (one_event(""), "must say something in an event"),
        (one_event("x" * 100), "must end a text after 4 tokens, it goes on"),
    ],
)
def test_a_stream_that_never_ends_is_given_up(event: Any, says: str) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    piece = (b"data: " + json.dumps(event).encode() + b"\n\n") * 100
    error, _ = failure(repeat(head, piece), stream=True, timeout_s=300.0)
    assert isinstance(error, RemoteError)
    assert says in str(error)


def test_what_came_before_a_cut_is_not_lost() -> None:
    script = events(one_event(" upon"), one_event(" a"), done=False, length=10_000)
    with ScriptedServer(script) as server, remote(server.url) as llm:
        deltas = llm.stream("Once", PARAMS)
        assert next(deltas).text + next(deltas).text == " upon a"
        with pytest.raises(RemoteError):
            next(deltas)


# --- statuses, and what is sent again ------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "first",
    [
        answer({"error": {"message": "later"}}, status=429, headers=["Retry-After: 0"]),
        answer({"detail": "later"}, status=503, headers=["Retry-After: Sun, 06 Nov 1994 08:49:37 GMT"]),
        answer(b"", status=502, headers=["Retry-After: 0"]),
    ],
)
def test_a_server_that_has_no_time_is_asked_again(first: bytes, stream: bool) -> None:
    last = one_event("", finish_reason="stop", stop_reason=None)
    good = events(one_event(), last) if stream else answer(WHOLE)
    with ScriptedServer(first, first, good) as server, remote(server.url, retries=2) as llm:
        found = list(llm.stream("Once", PARAMS))[-1].completion if stream else llm.generate("Once", PARAMS)[0]
        assert found is not None
        assert found.text == " time"
        assert len(server.requests) == 3
        assert server.requests[0] == server.requests[1] == server.requests[2]


@pytest.mark.parametrize("first", [lambda connection: None, answer({"error": "busy"}, status=503)])
def test_a_dropped_connection_is_made_again_after_a_growing_time(first: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("tirage.remote.connection.asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": wait}))
    with ScriptedServer(first, first, answer(WHOLE)) as server, remote(server.url, retries=2) as llm:
        found = llm.generate("Once", PARAMS.replace(seed=None))[0]
        assert found.text == " time"
        assert [body["seed"] for _, _, body in server.requests] == [found.seed] * 3
    assert 0.25 <= waited[0] <= 0.75
    assert 0.5 <= waited[1] <= 1.5


@pytest.mark.parametrize(
    ("script", "kind", "says", "asked"),
    [
        (
            answer({"error": {"message": "no"}}, status=500, headers=["Retry-After: 0"]),
            RemoteError,
            "status 500: no",
            3,
        ),
        (answer({}, status=503, headers=["Retry-After: 3600"]), RemoteError, "status 503", 1),
        (answer({"error": {"message": "top_q?"}}, status=400), ParamsError, "refuses the request: top_q?", 1),
        (answer({"detail": [{"msg": "bad"}]}, status=422), ParamsError, "bad", 1),
        (answer({"error": "who?"}, status=401), RemoteError, "status 401: who?; give api_key", 1),
        (answer({"detail": "Not Found"}, status=404), RemoteError, "check the address and the dialect", 1),
        (answer(b"", status=307, headers=["Location: http://evil/"]), RemoteError, "not followed", 1),
        (answer({"error": "x" * 10**6}, status=404), RemoteError, "status 404", 1),
        (answer(b"\x1b[2J\xff", status=418), RemoteError, "status 418", 1),
    ],
)
def test_other_statuses_are_errors_with_the_message_of_the_server(
    script: bytes, kind: type[TirageError], says: str, asked: int
) -> None:
    error, count = failure(script, retries=2)
    assert type(error) is kind
    assert says in str(error)
    assert str(error).isprintable()
    assert len(str(error)) < 1000
    assert count == asked


@pytest.mark.parametrize(
    ("header", "seconds"), [("7", 7.0), (" 0 ", 0.0), (None, None), ("soon", None), ("-1", None), ("1e3", None)]
)
def test_a_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert seconds_of(header) == seconds
    assert seconds_of("Sun, 06 Nov 1994 08:49:37 GMT") == 0.0


def test_the_first_failure_of_many_ends_the_others() -> None:
    server = ScriptedServer(answer({"error": "no"}, status=400), hang)
    with server, remote(server.url) as llm, pytest.raises(ParamsError, match="refuses the request: no"):
        llm.generate(["one", "two", "three"], PARAMS)


def test_a_key_is_sent_and_never_shown() -> None:
    with ScriptedServer(answer({"error": "no"}, status=403)) as server, remote(server.url, api_key="s3cret") as llm:
        with pytest.raises(RemoteError) as caught:
            llm.generate("Once", PARAMS)
        assert "authorization: bearer s3cret" in server.requests[0][1]
        assert "s3cret" not in f"{caught.value!r} {vars(llm)!r} {llm._server.options!r}"


# --- the list of models --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listed", "kind", "says"),
    [
        ({"data": []}, ModelError, "model_name must be one of those that the server has, none"),
        ({"data": [{"id": "a"}, {"id": "b"}]}, ModelError, "a, b"),
        ({"data": [{"id": "a", "owned_by": "llamacpp"}]}, ModelError, "dialect must be 'llamacpp'"),
        ({"data": [{"id": "a", "owned_by": "sglang"}]}, ModelError, "dialect must be 'sglang'"),
        ({"data": [{"id": 5}]}, RemoteError, "id of the server's answer must be a text, got 5"),
        ([1], RemoteError, "must be an object, got [1]"),
    ],
)
def test_a_list_of_models_that_does_not_fit_is_an_error(listed: Any, kind: type[TirageError], says: str) -> None:
    error, asked = failure(answer(WHOLE), models=answer(listed))
    assert type(error) is kind
    assert says in str(error)
    assert asked == 0


def test_the_name_of_the_model_is_looked_up_once_and_adapters_are_passed_over() -> None:
    models = answer({"data": [{"id": "base", "owned_by": "vllm"}, {"id": "tuned", "parent": "base"}]})
    with ScriptedServer(answer(WHOLE), models=models) as server, remote(server.url) as llm:
        llm.generate(["Once", tirage.Prompt(text="Once", adapter="tuned")], PARAMS)
        assert sorted(body["model"] for _, _, body in server.requests) == ["base", "tuned"]
        assert server.models_asked == 1


def test_the_command_line_names_one_of_several_models(capsys: pytest.CaptureFixture[str]) -> None:
    models = answer({"data": [{"id": "a"}, {"id": "b"}]})
    command = ["generate", "Once", "--dialect", "openai", "--semantics", "openai", "--model"]
    with ScriptedServer(events(one_event(finish_reason="stop")), models=models) as server:
        none = "model_name must be one of those that the server has, a, b"
        for given, says in ([], none), (["--model-name=b"], " time"):
            with contextlib.suppress(SystemExit):
                cli.main([*command, server.url, *given])
            assert says in "".join(capsys.readouterr())
        assert [body["model"] for _, _, body in server.requests] == ["b"]
    with pytest.raises(SystemExit, match="2"):
        cli.main([*command, "tiny", "--model-name=b"])


def test_a_named_model_needs_no_list() -> None:
    models = answer({"detail": "Not Found"}, status=404)
    with ScriptedServer(answer(WHOLE), models=models) as server, remote(server.url, model_name="mine") as llm:
        assert llm.generate("Once", PARAMS)[0].text == " time"
        assert server.requests[0][2]["model"] == "mine"


# --- answers of other types ----------------------------------------------------------------------------------------

TOP = {"id": 5, "token": " a", "bytes": [32, 97], "logprob": -0.5}
SCORED = {**TOP, "top_logprobs": [TOP]}
OPENAI = {
    "choices": [
        {
            "index": 0,
            "text": " a",
            "finish_reason": "stop",
            "stop_reason": "b",
            "token_ids": [5],
            "prompt_token_ids": [1, 2],
            "logprobs": {
                "tokens": [" a"],
                "token_logprobs": [-0.5],
                "top_logprobs": [{" a": -0.5}],
                "text_offset": [0],
            },
            "prompt_logprobs": [None, {"2": {"logprob": -0.5, "rank": 1, "decoded_token": "x"}}],
        }
    ],
    "usage": {"prompt_tokens": 2, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1}},
}
CHAT = {
    "choices": [
        {"index": 0, "message": {"content": " a"}, "finish_reason": "length", "logprobs": {"content": [SCORED]}}
    ],
    "usage": {"prompt_tokens": 2, "completion_tokens": 1},
}
META = {
    "finish_reason": {"type": "stop", "matched": 7, "kind": "token", "matched_text": " a"},
    "prompt_tokens": 2,
    "completion_tokens": 1,
    "cached_tokens": 0,
    "output_token_logprobs": [[-0.5, 5, " a"]],
    "output_top_logprobs": [[[-0.5, 5, " a"]]],
    "input_token_logprobs": [[None, 1, None], [-0.5, 2, "x"]],
    "input_top_logprobs": [None, [[-0.5, 2, "x"]]],
}
SGLANG = {"text": " a", "output_ids": [5], "meta_info": META}
LLAMACPP = {
    "index": 0,
    "content": " a",
    "tokens": [5],
    "stop": True,
    "stop_type": "word",
    "stopping_word": "b",
    "tokens_predicted": 1,
    "tokens_evaluated": 2,
    "completion_probabilities": [SCORED],
}
WRONG: list[Any] = [None, True, -1, 2**70, 1.5, "x", "\ud800", [], {}, [None], [[]], {"a": 1}, float("nan")]


def paths(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from paths(each, (*place, key))


def changed(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    found = copy.deepcopy(value)
    inner = found
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = new
    return found


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("dialect", "chat", "whole"),
    [("vllm", False, OPENAI), ("openai", True, CHAT), ("sglang", False, SGLANG), ("llamacpp", False, LLAMACPP)],
)
def test_any_other_value_anywhere_is_read_or_a_remote_error(dialect: str, chat: bool, whole: Any, stream: bool) -> None:
    found = REMOTE_DIALECTS[dialect]
    route = found.chats if chat else found.prompts
    params = SamplingParams(logprobs=1, prompt_logprobs=1, max_tokens=4, stop=["b"])
    more = {"messages": [{"role": "user", "content": "hi"}]} if chat else {"text": "Once"}
    refused = 0
    for place in paths(whole):
        for new in WRONG:
            request = RemoteRequest(params=params, seed=1, fields={}, stream=stream, **more)
            answered = RemoteAnswer(request)
            try:
                list(
                    answered.deltas(answered.add(FORMATS[route.form](route, request).read(changed(whole, place, new))))
                )
                list(answered.end())[-1].completion.text.encode()  # type: ignore[union-attr]
            except RemoteError:
                refused += 1
    assert refused > 100


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_are_found_whatever_the_pieces(size: int) -> None:
    data = (
        b': hi\r\ndata: {"a": 1}\r\n\r\nevent: x\ndata: one\ndata: two\n\ndata:three\n\nerror: {}\n\ndata: unfinished'
    )
    parser = EventParser()
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert [each for piece in pieces for each in parser.feed(piece)] == [b'{"a": 1}', b"one\ntwo", b"three", b"{}"]


def test_an_event_has_a_largest_size() -> None:
    parser = EventParser(most=100)
    assert list(parser.feed(b"data: " + b"x" * 90 + b"\n\n" + b"data: " + b"y" * 90 + b"\n\n")) != []
    with pytest.raises(RemoteError, match="at most 100 bytes"):
        list(parser.feed(b"data: xxxxxxx\n" * 20))


# --- options -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("http://", {}, "model must be an address such as"),
        ("http://h:99999", {}, "model must be an address such as"),
        ("http://me:pw@h", {}, "without user, query and fragment"),
        ("http://h/?q=1", {}, "without user, query and fragment"),
        ("http://h", {"dialect": None}, "dialect must be one of vllm, sglang, openai, llamacpp, tirage"),
        ("http://h", {"dialect": "vlm"}, "did you mean 'vllm'"),
        ("http://h", {"sampler": "mine"}, "sampler must be 'engine' or 'tirage'"),
        ("http://h", {"dialect": "sglang", "sampler": "tirage"}, "sampler must be 'engine' for dialect 'sglang'"),
        ("http://h", {"timeout_s": 0}, "timeout_s must be a positive number"),
        ("http://h", {"retries": -1}, "retries must be an integer of at least 0"),
        ("http://h", {"api_key": "a\r\nHost: b"}, "api_key must be a text without line breaks"),
        ("http://h", {"max_running": 0}, "max_running must be a positive integer"),
        ("http://h", {"backend": "torch"}, "backend must be left out for the address of a server"),
    ],
)
def test_wrong_options_are_refused_by_name(url: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ParamsError) as caught:
        remote(url, **options)
    assert says in str(caught.value)
    assert "pw" not in str(caught.value)


def test_options_of_a_server_are_refused_for_a_model() -> None:
    with pytest.raises(ParamsError, match="dialect must go with the address of a server, got the model 'tiny'"):
        tirage.LLM("tiny", dialect="vllm")
    with pytest.raises(TypeError, match="unexpected keyword argument 'bakend'"):
        tirage.LLM("tiny", bakend="numpy")  # type: ignore[call-arg]


def test_a_closed_one_says_so_and_closing_twice_does_no_harm() -> None:
    with ScriptedServer(answer(WHOLE)) as server:
        llm = remote(server.url)
        llm.generate("Once", PARAMS)
        llm.close()
        llm.close()
        with pytest.raises(TirageError, match="is closed"):
            llm.generate("Once", PARAMS)


def test_closing_ends_what_waits_in_other_threads() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    started = threading.Event()

    def first_then_silence(connection: socket.socket) -> None:
        connection.sendall(head + b"data: " + json.dumps(one_event()).encode() + b"\n\n")
        started.set()
        hang(connection)

    with ScriptedServer(first_then_silence) as server, ThreadPoolExecutor(2) as threads:
        llm = remote(server.url)
        deltas = llm.stream("Once", PARAMS)
        assert next(deltas).text == " time"
        waiting = [threads.submit(next, deltas), threads.submit(llm.generate, "Once", PARAMS)]
        started.wait(60)
        llm.close()
        for each in waiting:
            with pytest.raises(UnavailableError, match="closed"):
                each.result(60)
        deltas.close()


def test_an_iterator_that_is_collected_in_the_loop_itself_hangs_nobody() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    event = b"data: " + json.dumps(one_event()).encode() + b"\n\n"
    with ScriptedServer(repeat(head + event, b": ping\n\n")) as server, remote(server.url) as llm:
        held = [llm.stream("Once", PARAMS)]
        next(held[0])

        async def drop() -> None:
            held.clear()
            gc.collect()

        llm._threads.run(drop())
        assert held == []


def test_cancelling_a_task_closes_the_connection() -> None:
    left = threading.Event()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"

    def until_left(connection: socket.socket) -> None:
        connection.sendall(head)
        hang(connection)
        left.set()

    async def cancelled(llm: Any) -> None:
        task = asyncio.create_task(anext(llm.astream("Once", PARAMS)))
        while not server.requests:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with ScriptedServer(until_left) as server, remote(server.url) as llm:
        asyncio.run(cancelled(llm))
        assert left.wait(60)
