"""Requests that mean harm to a real server: each is refused with its reason, and the next one is served."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hostile import NORMAL, ROUTES, Client, Reply, check, memory, text_of
from servers import Server, shared
from small_files import base64_of, data_uri, image_file, png_of, png_with_text_bomb
from test_server_media import FORBIDDEN, NO_MEDIA
from test_server_media_url import HOSTILE as HOSTILE_URLS
from test_strict_json import BAD as BAD_JSON


@pytest.fixture
def server() -> Server:
    return shared("tiny")


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    made = Client(server)
    yield made
    made.close()


@pytest.fixture(scope="module")
def sizes() -> tuple[int, int]:
    """The context of the model, and the width of its logits."""
    from tirage.models import find_folder, open_model

    model = open_model(find_folder("tiny"), backend="numpy")
    return model.max_length, model.vocab_size


def refused(client: Client, route: str, body: Any, *words: str) -> str:
    """The message of a 400; the next normal request is served."""
    reply = client.send(route, body)
    check(reply, f"{route} {str(body)[:200]}")
    assert reply.status == 400, f"{route} {str(body)[:200]}: {reply.status} {reply.body[:300]!r}"
    message = reply.json["error"]["message"]
    assert any(word in message for word in words) or not words, f"{str(body)[:200]}: {message}"
    assert client.send(route, NORMAL[route]).status == 200
    return message


def served(client: Client, route: str, body: Any) -> Reply:
    reply = client.send(route, body)
    check(reply, f"{route} {str(body)[:200]}")
    assert reply.status == 200, f"{route} {str(body)[:200]}: {reply.body[:300]!r}"
    return reply


def with_params(route: str, more: dict[str, Any], *, drop: tuple[str, ...] = ()) -> dict[str, Any]:
    """The normal request of a route with some sampling parameters, in the route's own spelling."""
    body = {name: value for name, value in NORMAL[route].items() if name not in drop}
    if route == "/v1/responses":
        return {**body, **{"max_output_tokens" if name == "max_tokens" else name: more[name] for name in more}}
    if route != "/generate":
        return {**body, **more}
    spelled = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "seed": "sampling_seed"}
    inner = {spelled.get(name, name): value for name, value in more.items()}
    return {**body, "sampling_params": {**NORMAL[route]["sampling_params"], **inner}}


# --- bodies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BAD_JSON)
def test_a_body_that_is_no_strict_json_is_refused(client: Client, name: str) -> None:
    body, _ = BAD_JSON[name]
    # All routes read bodies by one door; large ones are tried at one of them.
    routes = (*ROUTES, "/tokenize", "/detokenize", "/explain", "/abort_request") if len(body) < 500_000 else ROUTES[:1]
    for route in routes:
        reply = client.send(route, body)
        check(reply, f"{route} {name}")
        assert reply.status == 400, f"{route} {name}: {reply.status}"


TEXTS = (
    "\0", "\u202e", "\ufeffa", "e\u0301", "\U0001f469\u200d\U0001f469", "\U0010ffff", "\r\n\t", "<|im_start|>system",
    "\x7f\x9f", "%s%n", "' OR 1=1", "\u2028",
)  # fmt: skip


def test_text_of_any_kind_survives(client: Client) -> None:
    for text in (
        "\0",
        "\u202e",
        "\ufeffa",
        "e\u0301",
        "👩‍👩‍👧",
        "\U0010ffff",
        "\r\n\t",
        "<|im_start|>system",
        "\x7f\x9f",
    ):
        for route, field in (("/generate", "text"), ("/v1/completions", "prompt")):
            served(client, route, {**NORMAL[route], field: text})
        served(client, "/v1/responses", {**NORMAL["/v1/responses"], "input": text})
        message = {"role": "user", "content": text}
        served(client, "/v1/chat/completions", {**NORMAL["/v1/chat/completions"], "messages": [message]})


# --- numbers and products ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("n", [129, 2**31, 2**63, 10**30, 0, -1, 1.5, True, "2"])
def test_a_wild_number_of_samples_is_refused_at_once(client: Client, route: str, n: Any) -> None:
    before = memory(client._server)
    refused(client, route, with_params(route, {"n": n}), "n must be", "n (")
    assert memory(client._server) - before < 64 << 20


def test_products_are_bounded_and_not_only_factors(client: Client) -> None:
    prompts = ["a"] * 100
    refused(client, "/v1/completions", {**NORMAL["/v1/completions"], "prompt": prompts, "n": 3}, "at most 256, got 300")
    body = {"text": prompts, "sampling_params": {"max_new_tokens": 1, "n": 3}}
    refused(client, "/generate", body, "at most 256, got 300")
    refused(client, "/v1/completions", {"prompt": ["a"] * 129, "max_tokens": 1}, "at most 128, got 129")
    refused(
        client, "/generate", {"text": ["a"] * 129, "sampling_params": {"max_new_tokens": 1}}, "at most 128, got 129"
    )
    refused(client, "/v1/completions", {"prompt": "a", "best_of": 21, "max_tokens": 1}, "best_of")


@pytest.mark.parametrize("value", [-1, 21, 2048, 2049, 2**31, 2**63, 1.5, "5"])
def test_log_probabilities_are_bounded(client: Client, value: Any) -> None:
    refused(client, "/v1/completions", {**NORMAL["/v1/completions"], "logprobs": value}, "logprobs")
    chat = {**NORMAL["/v1/chat/completions"], "logprobs": True, "top_logprobs": value}
    refused(client, "/v1/chat/completions", chat, "logprobs")
    body = {**NORMAL["/generate"], "return_logprob": True, "top_logprobs_num": value}
    refused(client, "/generate", body, "top_logprobs_num")


def test_impossible_tokens_have_finite_log_probabilities(client: Client) -> None:
    allowed = {"allowed_token_ids": [300, 301], "logprobs_mode": "processed"}
    body = {**with_params("/generate", allowed), "return_logprob": True, "top_logprobs_num": 5}
    found = served(client, "/generate", {**body, "token_ids_logprob": [5, 300]}).json["meta_info"]
    assert min(value for value, *_ in found["output_token_ids_logprobs"][0]) == -3.4028235e38
    reply = served(client, "/v1/completions", {**NORMAL["/v1/completions"], **allowed, "logprobs": 5}).json
    values = reply["choices"][0]["logprobs"]["top_logprobs"][0].values()
    assert all(-9999.0 <= value <= 0 for value in values)


@pytest.mark.parametrize("route", ROUTES)
def test_lengths_are_checked_against_each_other_and_the_context(
    client: Client, route: str, sizes: tuple[int, int]
) -> None:
    context, _ = sizes
    wild = (2**31 - 1, 2**63, 10**18, -1, 1.5, "8", True)
    for value in wild:
        refused(client, route, with_params(route, {"max_tokens": value}), "max_")
    for low in (4, context, 2**31 - 1, 2**63, 10**18, -1):
        refused(client, route, with_params(route, {"max_tokens": 3, "min_tokens": low}), "min_", "max_")
    refused(client, route, with_params(route, {"max_tokens": context + 1}), "max_")
    for low, high in ((0, 0), (0, 1), (3, 3)):
        served(client, route, with_params(route, {"max_tokens": high, "min_tokens": low}))


IDS = (-1, 10**9, 2**31, 2**63, 2**64, True, 1.5, "a", None, [1])


@pytest.mark.parametrize("bad", IDS)
def test_token_ids_outside_the_logits_are_refused(client: Client, bad: Any, sizes: tuple[int, int]) -> None:
    for value in (bad, sizes[1]) if bad == -1 else (bad,):
        for name in ("stop_token_ids", "allowed_token_ids", "bad_words_token_ids"):
            if name == "bad_words_token_ids" and value == [1]:
                continue
            for route in ROUTES:
                refused(client, route, with_params(route, {name: [5, value]}))
        for route in ROUTES:
            if value is not None and not isinstance(value, (list, bool, float)):
                refused(client, route, with_params(route, {"logit_bias": {str(value): 1.0}}), "logit_bias")
        refused(client, "/generate", {"input_ids": [5, value], "sampling_params": {"max_new_tokens": 1}}, "input_ids")
        refused(client, "/generate", {**NORMAL["/generate"], "return_logprob": True, "token_ids_logprob": [5, value]})
        refused(client, "/v1/completions", {"prompt": [5, value], "max_tokens": 1}, "prompt")


def test_a_bad_id_leaves_a_neighbours_tokens_alone(client: Client, server: Server) -> None:
    body = {"text": "Once upon", "sampling_params": {"max_new_tokens": 60, "sampling_seed": 5, "ignore_eos": True}}
    alone = served(client, "/generate", body).json["output_ids"]
    found: list[Any] = []

    def ask() -> None:
        other = Client(server)
        found.append(other.send("/generate", body).json)
        other.close()

    neighbour = threading.Thread(target=ask)
    neighbour.start()
    for bad in (-1, 10**9, 2**31):
        refused(client, "/generate", with_params("/generate", {"stop_token_ids": [bad], "logit_bias": {str(bad): 5}}))
    neighbour.join()
    assert found[0]["output_ids"] == alone


FLOATS = ("1e999", "-1e999", "NaN", "Infinity", "-Infinity")


@pytest.mark.parametrize("literal", FLOATS)
def test_numbers_that_are_none_are_refused_in_every_field(client: Client, literal: str) -> None:
    for name in ("temperature", "top_p", "min_p", "frequency_penalty", "repetition_penalty"):
        for route in ROUTES:
            body = str(with_params(route, {name: 12345.5})).replace("'", '"').replace("12345.5", literal)
            assert refused(client, route, body.replace("True", "true").encode()).startswith("body must be")


@pytest.mark.parametrize("route", ROUTES)
def test_a_tiny_temperature_is_greedy_and_a_large_one_is_finite(client: Client, route: str) -> None:
    greedy = served(client, route, with_params(route, {"temperature": 0})).json
    cold = served(client, route, with_params(route, {"temperature": 1e-12})).json
    assert text_of(cold) == text_of(greedy)
    check(client.send(route, with_params(route, {"temperature": 1e20})), route)


@pytest.mark.parametrize("route", ROUTES)
def test_seeds_beyond_64_bits_are_refused(client: Client, route: str) -> None:
    for seed in (2**63, 2**64, -(2**63) - 1, "100", 1e20, 1.5, True, [1]):
        refused(client, route, with_params(route, {"seed": seed}), "seed")
    assert refused(client, route, b'{"seed": ' + b"7" * 100_000 + b"}").startswith("body must be")
    served(client, route, with_params(route, {"seed": 2**63 - 1}))


@pytest.mark.parametrize("route", ROUTES)
def test_stops_and_bad_words_are_bounded(client: Client, route: str) -> None:
    for stop in ([f"{i}" for i in range(10_000)], [f"{i}" for i in range(33)], [""], ["a" * 257], [1], {"a": 1}, 7):
        refused(client, route, with_params(route, {"stop": stop}), "stop")
    for words in ([f"w{i}" for i in range(129)], [""], [[]], 7):
        refused(client, route, with_params(route, {"bad_words": words}), "bad_words")
    bias = {str(i): 1.0 for i in range(1025)}
    refused(client, route, with_params(route, {"logit_bias": bias}), "logit_bias")


def test_prompts_at_the_edges_of_the_context(client: Client, sizes: tuple[int, int]) -> None:
    context, _ = sizes
    for route, field in (("/generate", "input_ids"), ("/v1/completions", "prompt")):
        for length in (context, context + 1, 100_000):
            body = with_params(route, {"max_tokens": 1}) | {field: [5] * length}
            body.pop("text", None)
            message = refused(client, route, body)
            assert str(context) in message
        body = with_params(route, {"max_tokens": 1}) | {field: [5] * (context - 1)}
        body.pop("text", None)
        served(client, route, body)
        for empty in ([], [[]]):
            refused(client, route, {k: v for k, v in NORMAL[route].items() if k != "text"} | {field: empty})
    echoed = served(client, "/v1/completions", {"prompt": "Once upon", "echo": True, "max_tokens": 0}).json
    assert echoed["choices"][0]["text"] == "Once upon"


@pytest.mark.parametrize("text", ["a", " ", "😀", "\n", "the cat "])
def test_an_endless_text_is_refused_before_it_is_tokenised(client: Client, server: Server, text: str) -> None:
    endless = text * (1_000_000 // len(text.encode()))
    for route, more in (
        ("/generate", {"text": endless}),
        ("/v1/completions", {"prompt": endless}),
        ("/v1/completions", {"prompt": endless, "truncate_prompt_tokens": 4}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": endless}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": endless}]}]}),
    ):
        refused(client, route, NORMAL[route] | more, "at most")


@pytest.mark.slow
def test_health_answers_while_large_bodies_are_read() -> None:
    # Patient with its engine, whose thread may get no processor for a while on a busy machine.
    with Server("tiny", "--health-timeout", "120") as server:
        watched_while_large_bodies_are_read(server)


def watched_while_large_bodies_are_read(server: Server) -> None:
    waits: list[float] = []
    over = threading.Event()
    client = Client(server)

    def watch() -> None:
        with httpx.Client() as watcher:
            while not over.is_set():
                began = time.perf_counter()
                assert watcher.get(f"{server.url}/health").status_code == 200
                waits.append(time.perf_counter() - began)
                time.sleep(0.02)

    thread = threading.Thread(target=watch)
    thread.start()
    for text in ("a", " ", "the cat "):
        client.send("/generate", NORMAL["/generate"] | {"text": text * (30_000_000 // len(text))})
    over.set()
    thread.join()
    client.close()
    # The goal is 100 ms on a quiet machine; a server that tokenises in its loop is silent for half a minute.
    assert max(waits) < 10


# --- names, files and addresses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["/etc", "../x", "a/b", "org/repo", "https://x/y", "．．/x", "\0", "x" * 5000, 7, [], True]
)
def test_an_adapter_is_a_known_name_and_never_a_place(client: Client, name: Any) -> None:
    refused(client, "/generate", {**NORMAL["/generate"], "lora_path": name}, "lora_path")


@pytest.mark.parametrize("name", NO_MEDIA)
def test_what_is_no_image_is_refused_on_both_routes(client: Client, name: str) -> None:
    source, _ = NO_MEDIA[name]
    assert "image_data" in refused(client, "/generate", {**NORMAL["/generate"], "image_data": source})
    part = {"type": "image_url", "image_url": {"url": source}}
    chat = {**NORMAL["/v1/chat/completions"], "messages": [{"role": "user", "content": [part]}]}
    refused(client, "/v1/chat/completions", chat)


def test_no_url_makes_the_server_reach_for_anything(client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as there:
        there.settimeout(0.2)
        port = there.getsockname()[1]
        for url in (
            *HOSTILE_URLS[::4],
            f"http://127.0.0.1:{port}/",
            f"http://localhost:{port}/a.png",
            f"http://[::1]:{port}/",
        ):
            refused(client, "/generate", {**NORMAL["/generate"], "image_data": url}, "image_data")
            refused(client, "/generate", {**NORMAL["/generate"], "audio_data": [url]}, "audio_data")
        text = f"![x](http://127.0.0.1:{port}/a.png) <img src='http://127.0.0.1:{port}/b.png'>"
        served(client, "/generate", {**NORMAL["/generate"], "text": text})
        with pytest.raises(TimeoutError):
            there.accept()


@pytest.mark.slow
def test_a_bomb_costs_the_server_no_memory(client: Client, server: Server) -> None:
    refused(client, "/generate", {**NORMAL["/generate"], "image_data": data_uri(image_file())})
    before = memory(server)
    for data in (png_of(20_000, 20_000), png_with_text_bomb(), png_of(30_000, 1_000)):
        for _ in range(3):
            refused(client, "/generate", {**NORMAL["/generate"], "image_data": [base64_of(data)] * 10}, "image_data")
    refused(client, "/generate", {**NORMAL["/generate"], "image_data": [data_uri(image_file())] * 17}, "at most 16")
    assert memory(server) - before < 64 << 20


@pytest.mark.slow
def test_no_name_leads_out_of_the_media_root(tmp_path: Path) -> None:
    root = tmp_path / "media"
    root.mkdir()
    (root / "a.png").write_bytes(image_file())
    (tmp_path / "outside.png").write_bytes(image_file())
    (root / "out.png").symlink_to(tmp_path / "outside.png")
    with Server("tiny", "--media-root", str(root)) as server:
        client = Client(server)
        for name in FORBIDDEN:
            message = refused(client, "/generate", {**NORMAL["/generate"], "image_data": name}, "image_data")
            assert str(tmp_path) not in message
        inside = refused(client, "/generate", {**NORMAL["/generate"], "image_data": "a.png"})
        assert "takes" in inside or "must not be given" in inside
        client.close()
