"""Watermarks over HTTP: marked on every route, and no key in answers, logs, metrics or errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from field_answers import body_of, route_of
from field_effects import CHAT, COMPLETIONS, GENERATE, MESSAGES, PLACES, RESPONSES, SAMPLING
from servers import Server, shared

import tirage
from tirage import LLM, ParamsError, Watermark, cli
from tirage.errors import TirageError
from tirage.server.replay import read_records, replay
from tirage.server.watermark import operator_watermark

SECRET = 8_123_456_789_012_345_677
MARK = {"scheme": "gumbel", "key": SECRET, "context_width": 3}
PLACES_OF_PARAMETERS = [place for place in PLACES if place != GENERATE]


def answer(place: str, fields: dict[str, Any]) -> Any:
    return shared().post(route_of(place), body_of(place, fields, stream=False))


def length(place: str) -> dict[str, int]:
    name = {SAMPLING: "max_new_tokens", RESPONSES: "max_output_tokens"}.get(place, "max_tokens")
    return {name: 100}


@pytest.mark.parametrize("place", [CHAT, COMPLETIONS])
def test_the_text_of_a_route_is_detected(place: str) -> None:
    asked = {"watermark": MARK, "temperature": 1.5, "ignore_eos": True, "return_token_ids": True, **length(place)}
    ids = answer(place, asked).json()["choices"][0]["token_ids"]
    mark = Watermark(scheme="gumbel", key=SECRET, context_width=3)
    assert tirage.detect(ids, mark).p_value < 1e-3
    assert tirage.detect(ids, mark.replace(key=1)).p_value > 1e-3


def test_the_request_of_the_page_is_answered_and_marked() -> None:
    page = (Path(__file__).parents[1] / "docs" / "watermarks.md").read_text(encoding="utf-8")
    [request] = re.findall(r"^```json\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    options = {"model": "tiny", "temperature": 1.5, "max_tokens": 100, "ignore_eos": True, "return_token_ids": True}
    reply = shared().post("/v1/chat/completions", {**json.loads(request), **options}).json()
    mark = Watermark(**json.loads(request)["watermark"])
    assert tirage.detect(reply["choices"][0]["token_ids"], mark).p_value < 1e-3


@pytest.mark.parametrize("place", PLACES_OF_PARAMETERS)
def test_no_answer_holds_a_key(place: str) -> None:
    asked = {"watermark": MARK, "temperature": 1.0}
    if place != MESSAGES and place != SAMPLING:
        asked["return_effective_params"] = True
    body = body_of(place, asked, stream=False)
    if place == SAMPLING:
        body["return_effective_params"] = True
    reply = shared().post(route_of(place), body)
    assert reply.status_code == 200, reply.text
    assert str(SECRET) not in reply.text
    if place != MESSAGES:
        assert '"key":null' in reply.text.replace(" ", "")


@pytest.mark.parametrize("place", PLACES_OF_PARAMETERS)
def test_errors_logs_and_metrics_hold_no_key(place: str) -> None:
    for wrong in (
        {"scheme": "gumbel", "key": SECRET, "bias": 3.0},
        {"scheme": "kgw", "key": str(SECRET)},
        {"scheme": "synthid", "key": [SECRET, -SECRET]},
        SECRET,
    ):
        reply = answer(place, {"watermark": wrong})
        assert reply.status_code == 400, reply.text
        assert "watermark" in reply.text
        assert str(SECRET) not in reply.text
    reply = answer(place, {"watermark": MARK, "temperature": 0.0})
    assert "must come with a temperature above 0" in reply.text
    server: Server = shared()
    assert str(SECRET) not in server.log + server.get("/metrics").text


def test_a_replay_needs_the_key() -> None:
    asked = {"watermark": MARK, "temperature": 1.0, "return_effective_params": True}
    records = read_records(answer(COMPLETIONS, asked).content)
    llm = LLM("tiny")
    assert records[0]["params"]["watermark"] == {**MARK, "key": None}
    with pytest.raises(ParamsError, match="watermark key must be given to replay a watermarked text"):
        replay(llm, records[0])
    done = replay(llm, records[0], watermark_key=SECRET)
    assert done.difference is None
    assert replay(llm, records[0], watermark_key=5).difference is not None
    plain = read_records(answer(COMPLETIONS, {"return_effective_params": True}).content)
    with pytest.raises(ParamsError, match="watermark key must be left out"):
        replay(llm, plain[0], watermark_key=5)
    assert str(SECRET) not in json.dumps(records)


def test_the_command_replays_with_the_key_of_an_option_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TIRAGE_WATERMARK_KEY", raising=False)
    marked, plain, key = (tmp_path / name for name in ("marked.json", "plain.json", "key"))
    asked = {"temperature": 1.0, "return_effective_params": True}
    marked.write_text(answer(COMPLETIONS, {"watermark": MARK, **asked}).text)
    plain.write_text(answer(COMPLETIONS, asked).text)
    key.write_text(f"{SECRET}\n")

    def status(file: Path, *words: str) -> int:
        with pytest.raises(SystemExit) as ended:
            cli.main(["replay", str(file), *words])
        return int(ended.value.code or 0)

    assert status(marked) == 2
    assert "pass --watermark-key" in capsys.readouterr().err
    for words, expected in (([str(SECRET)], 0), ([f"@{key}"], 0), (["5"], 1)):
        assert status(marked, "--watermark-key", *words) == expected
    monkeypatch.setenv("TIRAGE_WATERMARK_KEY", str(SECRET))
    assert (status(marked), status(plain), status(marked, "--watermark-key", "5")) == (0, 0, 1)
    assert str(SECRET) not in "".join(capsys.readouterr())


# --- the operator's watermark -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def marking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file = tmp_path_factory.mktemp("marks") / "mark.json"
    file.write_text(json.dumps(MARK))
    with Server("tiny", "--watermark", str(file)) as server:
        yield server


@pytest.mark.parametrize("place", [CHAT, COMPLETIONS])
def test_the_operator_marks_the_texts_that_name_no_watermark(marking: Server, place: str) -> None:
    asked = {"temperature": 1.5, "seed": 4, "ignore_eos": True, "return_token_ids": True, **length(place)}
    ids = marking.post(route_of(place), body_of(place, asked, stream=False)).json()["choices"][0]["token_ids"]
    given = answer(place, {**asked, "watermark": MARK}).json()["choices"][0]["token_ids"]
    assert ids == given
    other = {**MARK, "key": 5}
    own = marking.post(route_of(place), body_of(place, {**asked, "watermark": other}, stream=False)).json()
    assert (
        own["choices"][0]["token_ids"] == answer(place, {**asked, "watermark": other}).json()["choices"][0]["token_ids"]
    )
    assert str(SECRET) not in marking.log + marking.get("/metrics").text


def test_what_cannot_be_marked_is_answered_without(marking: Server) -> None:
    greedy = {"text": "Once upon", "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
    assert marking.post("/generate", greedy).json()["text"] == shared().post("/generate", greedy).json()["text"]
    beams = {"prompt": "Once", "n": 2, "use_beam_search": True, "max_tokens": 4, "temperature": 0}
    assert marking.post("/v1/completions", beams).status_code == 200


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "--watermark must be a file of JSON with a scheme and a key"),
        ('{"key": 812', "--watermark must be a file of JSON with a scheme and a key"),
        ('{"scheme": "gumbel", "key": -812}', "watermark.key must be an integer in"),
    ],
)
def test_a_wrong_file_ends_the_start_and_shows_no_key(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "mark.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(TirageError, match=re.escape(message)) as caught:
        operator_watermark(file)
    assert "812" not in str(caught.value)
