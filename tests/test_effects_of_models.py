"""Effects of fields that take another model or another server: on every route that has them, whole and streamed."""

from __future__ import annotations

import base64
import io
import time
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from field_answers import answer_of, body_of, together, tokens_of
from field_effects import CHAT, COMPLETIONS, GENERATE, MESSAGES, RESPONSES
from servers import Server, shared
from small_media import build_media

ROUTES = (GENERATE, CHAT, COMPLETIONS, RESPONSES)
BOTH = (False, True)
TEMPLATE = "{{ enable_thinking }}{{ reasoning_effort }}{{ tone }}{% for m in messages %}{{ m.content }}{% endfor %}"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def open_to_names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that takes processors by name, with a template of many variables."""
    path = tmp_path_factory.mktemp("template") / "template.jinja"
    path.write_text(TEMPLATE)
    with Server("tiny", "--enable-custom-logit-processor", "--chat-template", str(path)) as server:
        yield server


@pytest.mark.parametrize("stream", BOTH)
@pytest.mark.parametrize("place", ROUTES)
def test_a_processor_is_named_on_every_route(open_to_names: Server, place: str, stream: bool) -> None:
    arguments = {"custom_params": {"token_id": 300}}
    if place == GENERATE:
        arguments = {"sampling_params": {**arguments, "max_new_tokens": 3}}
    body = body_of(place, {"custom_logit_processor": "forced_token", **arguments}, stream=stream)
    assert set(tokens_of(open_to_names, place, body)) == {300}


@pytest.mark.parametrize("stream", BOTH)
@pytest.mark.parametrize("place", [CHAT, RESPONSES])
def test_variables_reach_the_chat_template(open_to_names: Server, place: str, stream: bool) -> None:
    def prompt(**fields: Any) -> Any:
        body = body_of(place, {"return_token_ids": True, **fields}, stream=stream)
        found = answer_of(open_to_names, place, body)
        whole = together(place, found) if stream and place == RESPONSES else found
        return (whole[0] if stream and place == CHAT else whole)["prompt_token_ids"]

    effort = {"reasoning_effort": "low"} if place == CHAT else {"reasoning": {"effort": "low"}}
    texts = [prompt(), prompt(enable_thinking=True), prompt(**effort)]
    texts.append(prompt(chat_template_kwargs={"tone": "kind"}))
    assert len({tuple(ids) for ids in texts}) == 4


@pytest.mark.parametrize("stream", BOTH)
def test_a_processor_is_named_for_a_message(open_to_names: Server, stream: bool) -> None:
    fields = {"custom_logit_processor": "forced_token", "custom_params": {"token_id": 300}, "max_tokens": 3}
    forced = tokens_of(open_to_names, MESSAGES, body_of(MESSAGES, fields, stream=stream))
    assert forced
    assert len(forced) % 3 == 0
    assert forced == forced[: len(forced) // 3] * 3


@pytest.mark.parametrize("stream", BOTH)
def test_variables_reach_the_template_of_a_message(open_to_names: Server, stream: bool) -> None:
    def text(**fields: Any) -> Any:
        return tokens_of(open_to_names, MESSAGES, body_of(MESSAGES, {"temperature": 2.0, **fields}, stream=stream))

    thinking = text(thinking={"type": "adaptive"})
    assert thinking == text(chat_template_kwargs={"enable_thinking": True})
    assert thinking != text()
    effort = {"output_config": {"effort": "low"}}
    assert text(**effort) == text(chat_template_kwargs={"reasoning_effort": "low"}) != text()


@pytest.mark.parametrize("stream", BOTH)
@pytest.mark.parametrize(
    ("place", "name"),
    [
        (GENERATE, "rid"),
        *((place, n) for place in (CHAT, COMPLETIONS, MESSAGES, RESPONSES) for n in ("rid", "request_id")),
    ],
)
def test_a_request_is_aborted_by_its_name_on_every_route(place: str, name: str, stream: bool) -> None:
    endless = {"ignore_eos": True} if place in (MESSAGES, RESPONSES) else {"n": 8, "ignore_eos": True}
    if place == GENERATE:
        endless = {"sampling_params": {**endless, "max_new_tokens": None}}
    else:
        endless["max_output_tokens" if place == RESPONSES else "max_tokens"] = 480
    body = body_of(place, {**endless, name: "this-one"}, stream=stream)
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(shared().post, place, body)
        while "this-one" not in shared().post("/abort_request", {"rid": "this-one"}).json()["aborted"]:
            assert not reply.done(), reply.result().text
            time.sleep(0.005)
        ended = reply.result()
    assert "abort" in ended.text


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("audio")
    module, processor = build_media("qwen2_audio")
    module.save_pretrained(folder)
    processor.save_pretrained(folder)
    with Server(folder) as server:
        yield server


def test_a_sound_comes_whole_and_streamed(hearing: Server) -> None:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(16_000)
        sound.writeframes(np.random.default_rng(0).integers(-9000, 9000, 4000, np.int16).tobytes())
    text, sampling = "<|AUDIO|> one", {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}
    data = base64.b64encode(buffer.getvalue()).decode()
    for stream in BOTH:
        body = {"text": text, "sampling_params": sampling, "stream": stream}
        without = tokens_of(hearing, GENERATE, body)
        assert tokens_of(hearing, GENERATE, {**body, "audio_data": data}) != without
