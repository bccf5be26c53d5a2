"""Responses that the server keeps: how a client goes on from one, who sees it, and when it is gone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from responses_wire import PLAIN, ROUTE, ask, events, refused, settled
from servers import Server, shared
from test_responses import WEATHER, chat

from tirage.dialects import DialectError
from tirage.engine import Tenant
from tirage.server.errors import Refusal
from tirage.server.response_store import ResponseStore, StoredResponse
from tirage.server.routes.responses_kept import without_references

ANN, BOB = Tenant("ann"), Tenant("bob")


# --- over the wire -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_a_response_goes_on_from_another(stream: bool) -> None:
    first = ask(instructions="Answer as a dog.")
    more = {"input": "And your name?", "previous_response_id": first["id"], "return_token_ids": True}
    after = events(**more)[-1]["response"] if stream else ask(**more)
    text = first["output"][0]["content"][0]["text"]
    said = [(PLAIN["input"], text), (more["input"], None)]
    messages = [
        {"role": role, "content": content}
        for user, assistant in said
        for role, content in (("user", user), ("assistant", assistant))
        if content is not None
    ]
    told = chat(messages=messages, return_token_ids=True)
    assert after["prompt_token_ids"] == told["prompt_token_ids"]
    assert after["previous_response_id"] == first["id"]
    third = ask(input="Why?", previous_response_id=after["id"])
    assert third["usage"]["input_tokens"] > after["usage"]["total_tokens"]


@pytest.mark.slow
def test_an_item_is_named_by_reference() -> None:
    first = ask(tools=[WEATHER], tool_choice={"type": "function", "name": "weather"})
    [call] = first["output"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    question = {"role": "user", "content": PLAIN["input"]}
    listed = shared().get(f"{ROUTE}/{first['id']}/input_items").json()["data"][0]["id"]
    answers = [
        ask(input=[{"type": "item_reference", "id": listed}, {"type": "item_reference", "id": call["id"]}, output]),
        ask(input=[question, {"id": call["id"]}, output]),
        ask(input=[question, call, output]),
        ask(input=[output], previous_response_id=first["id"]),
    ]
    assert len({json.dumps(settled({**each, "previous_response_id": None})) for each in answers}) == 1
    found = refused(status=404, input=[{"type": "item_reference", "id": "msg_1_2"}])
    assert (found["param"], found["code"]) == ("input[0].id", "response_not_found")


@pytest.mark.slow
def test_a_kept_response_is_read_listed_and_deleted() -> None:
    response = ask(input=[{"role": "user", "content": text} for text in ("One", "Two", "Three")])
    path = f"{ROUTE}/{response['id']}"
    assert shared().get(path).json() == response

    def texts(query: str = "") -> tuple[list[str], bool]:
        page = shared().get(f"{path}/input_items{query}").json()
        ids = [page["data"][0]["id"], page["data"][-1]["id"]]
        assert ids == [page["first_id"], page["last_id"]]
        return [item["content"][0]["text"] for item in page["data"]], page["has_more"]

    assert texts() == (["Three", "Two", "One"], False)
    assert texts("?order=asc&limit=2") == (["One", "Two"], True)
    last = shared().get(f"{path}/input_items?order=asc&limit=2").json()["last_id"]
    assert texts(f"?order=asc&after={last}") == (["Three"], False)
    for query in ("?limit=0", "?limit=101", "?limit=ten", "?order=up", "?after=x"):
        assert shared().get(f"{path}/input_items{query}").status_code == 400
    assert shared().get(f"{path}?stream=true").status_code == 400
    cancelled = shared().post(f"{path}/cancel")
    assert (cancelled.status_code, "background" in cancelled.text) == (400, True)
    assert shared().ask("DELETE", path).json() == {"id": response["id"], "object": "response", "deleted": True}
    for method, gone in (("GET", path), ("DELETE", path), ("POST", f"{path}/cancel"), ("GET", f"{path}/input_items")):
        found = shared().ask(method, gone)
        assert (found.status_code, found.json()["error"]["code"]) == (404, "response_not_found")


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_a_long_response_is_kept_as_it_was_sent(stream: bool) -> None:
    wanted = {
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 20,
        "max_output_tokens": 100,
        "ignore_eos": True,
    }
    sent = events(**wanted) if stream else []
    response = sent[-1]["response"] if stream else ask(**wanted)
    [part] = response["output"][0]["content"]
    assert len(part["logprobs"]) > 90
    assert {len(each["top_logprobs"]) for each in part["logprobs"]} == {20}
    assert shared().get(f"{ROUTE}/{response['id']}").json() == response
    done = [each for each in sent if each["type"] == "response.output_item.done"]
    assert [each["item"] for each in done] == (response["output"] if stream else [])


@pytest.mark.slow
def test_a_response_is_kept_unless_the_request_does_not_want_it() -> None:
    response = ask(store=False)
    assert response["store"] is False
    assert shared().get(f"{ROUTE}/{response['id']}").status_code == 404
    found = refused(status=404, previous_response_id=response["id"])
    assert found["param"] == "previous_response_id"


@pytest.mark.slow
def test_a_key_sees_its_own_responses_only() -> None:
    flags = ("tiny", "--api-key", "sesame", "--api-key", "opens", "--admin-key", "chief")
    server, owner = shared(*flags), {"authorization": "Bearer sesame"}
    made = server.post(ROUTE, PLAIN, headers=owner).json()
    path, other = f"{ROUTE}/{made['id']}", {"authorization": "Bearer opens"}
    assert server.get(path).status_code == 401
    assert server.get(path, headers=other).status_code == 404
    assert server.ask("DELETE", path, headers=other).status_code == 404
    for fields in ({"previous_response_id": made["id"]}, {"input": [{"id": made["output"][0]["id"]}]}):
        assert server.post(ROUTE, {**PLAIN, **fields}, headers=other).status_code == 404
    assert server.get(path, headers=owner).json() == made


@pytest.mark.slow
def test_an_operator_may_have_none_kept() -> None:
    with Server("tiny", "--max-stored-bytes", "0") as server:
        response = ask(server)
        assert response["store"] is False
        assert server.get(f"{ROUTE}/{response['id']}").status_code == 404
        found = refused(server, store=True)
        assert (found["param"], "--max-stored-bytes" in found["message"]) == ("store", True)


# --- the store -----------------------------------------------------------------------------------------------------


def stored(id: str, size: int, *before: StoredResponse) -> StoredResponse:
    """A response of this many bytes."""
    return StoredResponse(
        id=id, response=[b'{"output"', b":[]}"], items=b"[" + b" " * (size - 15) + b"]", before=before
    )


def kept(store: ResponseStore, tenant: Tenant, *names: str) -> list[str]:
    return [name for name in names if store.find(name, tenant=tenant) is not None]


def test_the_oldest_makes_room() -> None:
    store = ResponseStore(300)
    for name in ("resp_a", "resp_b", "resp_c", "resp_d"):
        store.keep(stored(name, 100), tenant=ANN)
    assert kept(store, ANN, "resp_a", "resp_b", "resp_c", "resp_d") == ["resp_b", "resp_c", "resp_d"]
    assert store.size == 300


def test_who_keeps_little_loses_nothing_to_others() -> None:
    store = ResponseStore(300)
    store.keep(stored("resp_b", 100), tenant=BOB)
    for number in range(9):
        store.keep(stored(f"resp_{number}", 100), tenant=ANN)
    assert kept(store, BOB, "resp_b") == ["resp_b"]
    assert kept(store, ANN, *(f"resp_{number}" for number in range(9))) == ["resp_7", "resp_8"]


def test_what_does_not_fit_is_not_kept_and_pushes_nothing_out() -> None:
    store = ResponseStore(300)
    store.keep(stored("resp_a", 200), tenant=ANN)
    store.keep(stored("resp_b", 301), tenant=ANN)
    assert kept(store, ANN, "resp_a", "resp_b") == ["resp_a"]


def test_a_response_counts_what_it_goes_on_from() -> None:
    first = stored("resp_a", 100)
    assert stored("resp_b", 50, first).size == 150
    store = ResponseStore(200)
    store.keep(first, tenant=ANN)
    store.keep(stored("resp_b", 50, first), tenant=ANN)
    assert (kept(store, ANN, "resp_a", "resp_b"), store.size) == (["resp_b"], 150)


def test_nothing_is_left_of_what_is_deleted() -> None:
    store = ResponseStore(300)
    store.keep(stored("resp_a", 100), tenant=ANN)
    assert store.delete("resp_a", tenant=BOB) is False
    assert store.delete("resp_a", tenant=ANN) is True
    assert (store.size, store.delete("resp_a", tenant=ANN)) == (0, False)


def test_a_reference_stands_for_an_item_of_its_own_tenant() -> None:
    store, said = ResponseStore(10_000), {"id": "msg_a_0", "type": "message"}
    response = [json.dumps({"output": [said]}).encode()]
    store.keep(StoredResponse(id="resp_a", response=response, items=b'[{"role":"user","content":"Hi"}]'), tenant=ANN)
    names: list[Any] = [{"type": "item_reference", "id": "msg_a_0"}, {"id": "msg_a_in0"}, {"role": "user"}]
    found = without_references(names, store, ANN)
    assert (found[0], found[1]["content"], found[2]) == (said, [{"type": "input_text", "text": "Hi"}], {"role": "user"})
    with pytest.raises(Refusal):
        without_references(names, store, BOB)


@pytest.mark.parametrize("item_id", ["", "msg", "msg_", "msg_a", "__", "msg_a_9", "msg__0", "msg_a_0_0"])
def test_an_id_of_no_item_is_not_found(item_id: str) -> None:
    store = ResponseStore(10_000)
    response = [json.dumps({"output": [{"id": "msg_a_0"}]}).encode()]
    store.keep(StoredResponse(id="resp_a", response=response, items=b"[]"), tenant=ANN)
    with pytest.raises(Refusal) as caught:
        without_references([{"id": item_id}], store, ANN)
    assert (caught.value.status, caught.value.param) == (404, "input[0].id")


def test_an_item_is_named_once() -> None:
    store = ResponseStore(10_000)
    response = [json.dumps({"output": [{"id": "msg_a_0"}]}).encode()]
    store.keep(StoredResponse(id="resp_a", response=response, items=b"[]"), tenant=ANN)
    with pytest.raises(DialectError) as caught:
        without_references([{"id": "msg_a_0"}] * 2, store, ANN)
    assert caught.value.param == "input[1].id"
