"""The server's plain routes, through a real process."""

from __future__ import annotations

from servers import shared


def test_health_is_200_once_the_model_answers() -> None:
    answer = shared().get("/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})


def test_tokenize_gives_the_ids_of_a_text() -> None:
    answer = shared().post("/tokenize", {"prompt": "hello"})
    assert answer.json() == {"tokens": [1, 399, 378, 342], "count": 4, "max_model_len": 512}


def test_an_unknown_route_is_an_error_envelope() -> None:
    answer = shared().get("/nowhere")
    assert answer.status_code == 404
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
