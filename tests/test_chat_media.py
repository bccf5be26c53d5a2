"""Chats with images and audio: on real classes, beside chats of text, each writes what its class writes alone."""

from __future__ import annotations

import base64
import io
import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from small_media import build_media
from small_torch import build

from tirage import LLM, ParamsError, SamplingParams
from tirage.engine.content_parts import MAX_BYTES, split_parts
from tirage.models.huggingface import wrap_module

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
RNG = np.random.default_rng(0)
PICTURES = [Image.fromarray(RNG.integers(0, 255, shape, dtype=np.uint8)) for shape in ((40, 50, 3), (60, 30, 3))]
RATE = 16000
SOUNDS = [(RNG.standard_normal(count) * 0.2).astype(np.float32).clip(-1, 1) for count in (8000, 5000)]
MARKS = {"llava": "<image>", "gemma3": "<start_of_image>", "qwen2_audio": "<|audio_bos|><|AUDIO|><|audio_eos|>"}
TEMPLATE = """{%- for message in messages -%}
[{{ message.role }}]{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}
{%- if part.type == 'text' %}{{ part.text }}{% elif part.type in ('image', 'audio') %}MARK{% endif %}
{%- endfor %}{% endif %}
{%- endfor -%}
{%- if add_generation_prompt %}[assistant]{% endif -%}"""


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def wav(samples: np.ndarray, *, rate: int = RATE, channels: int = 1, width: int = 2) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as opened:
        opened.setnchannels(channels)
        opened.setsampwidth(width)
        opened.setframerate(rate)
        scale = 1 << (8 * width - 1)
        whole = np.round(samples * (scale - 1)).astype(np.int64) + (128 if width == 1 else 0)
        opened.writeframes(np.repeat(whole, channels).astype({1: "u1", 2: "<i2", 4: "<i4"}[width]).tobytes())
    return file.getvalue()


def data_url(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def asks(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts]}]


def image(item: Any) -> dict[str, Any]:
    return {"type": "image", "image": item}


def opened(name: str, folder: Path) -> tuple[LLM, Any, Any]:
    module, processor = build_media(name)
    processor.chat_template = TEMPLATE.replace("MARK", MARKS[name])
    module.save_pretrained(folder)
    processor.save_pretrained(folder)
    return LLM(folder), module, processor


def lone(module: Any, processor: Any, messages: list[Any], **media: Any) -> list[int]:
    """What the class writes after the prompt that transformers makes of the same messages."""
    text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    given = {"sampling_rate": RATE} if "audio" in media else {}
    inputs = processor(text=[text], return_tensors="pt", **media, **given)
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return module.generate(**inputs, **options)[0, inputs["input_ids"].shape[1] :].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llava", "gemma3"])
def test_chats_with_images_beside_text_write_what_each_writes_alone(name: str, tmp_path: Path) -> None:
    llm, module, processor = opened(name, tmp_path)
    one = asks("What is ", image(PICTURES[0]), " this?")
    two = [*asks(image(PICTURES[1]), image(PICTURES[0])), {"role": "assistant", "content": "both"}, *asks("and now?")]
    plain = [{"role": "user", "content": "hello there"}]
    with llm:
        streams = llm.engine.submit_all([llm.chat_request(messages, GREEDY) for messages in (one, plain, two)])
        done = [list(stream.wait(120).token_ids) for stream in streams]
    assert done == [
        lone(module, processor, one, images=PICTURES[:1]),
        lone(module, processor, plain),
        lone(module, processor, two, images=PICTURES[::-1]),
    ]


@pytest.mark.slow
def test_chats_with_audio_beside_text_write_what_each_writes_alone(tmp_path: Path) -> None:
    llm, module, processor = opened("qwen2_audio", tmp_path)
    parts = [{"type": "audio", "audio": sound} for sound in SOUNDS]
    one, two = asks("Listen: ", parts[0]), asks(parts[1], "then", parts[0], "which?")
    plain = [{"role": "user", "content": "hello there"}]
    with llm:
        streams = llm.engine.submit_all([llm.chat_request(messages, GREEDY) for messages in (one, plain, two)])
        done = [list(stream.wait(120).token_ids) for stream in streams]
        assert done == [
            lone(module, processor, one, audio=SOUNDS[:1]),
            lone(module, processor, plain),
            lone(module, processor, two, audio=SOUNDS[::-1]),
        ]
        coded = base64.b64encode(wav(SOUNDS[0])).decode()
        heard = llm.chat(
            asks("Listen: ", {"type": "input_audio", "input_audio": {"data": coded, "format": "wav"}}), GREEDY
        )
        assert heard.finish_reason == "length"


@pytest.mark.slow
def test_every_way_to_write_an_image_gives_the_same(tmp_path: Path) -> None:
    llm = opened("llava", tmp_path)[0]
    url = data_url(png(PICTURES[0]), "image/png")
    ways = [
        image(PICTURES[0]),
        image(np.asarray(PICTURES[0])),
        image(png(PICTURES[0])),
        image(url),
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image_url", "image_url": url},
    ]
    with llm:
        done = {llm.chat(asks("What is ", way), GREEDY).token_ids for way in ways}
        assert len(done) == 1
        streamed = "".join(delta.text for delta in llm.chat_stream(asks("What is ", ways[0]), GREEDY))
        assert streamed == llm.chat(asks("What is ", ways[0]), GREEDY).text


def test_a_model_without_a_template_gets_marks_in_plain_lines() -> None:
    module, processor = build_media("llava")
    with LLM(wrap_module(module, processor=processor), tokenizer=processor.tokenizer) as llm:
        request = llm.chat_request(asks("What is ", image(PICTURES[0]), "?"), GREEDY)
        inputs = processor(text=["user: What is <image>?\nassistant:"], images=PICTURES[:1], return_tensors="pt")
        assert request.prompt_ids == inputs["input_ids"][0].tolist()


# What is refused, by name and before anything runs.


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (
            {"type": "video", "video": "x"},
            r"messages\[0\].content\[1\].type must be one of text, image, .* got 'video'",
        ),
        ({"type": "imgae"}, "got 'imgae'; did you mean 'image'"),
        ({"type": "image"}, r"messages\[0\].content\[1\].image must hold an image or a sound, got none"),
        ({"type": "image_url", "image_url": {}}, r"image_url.url must hold an image"),
        (image("http://example.com/cat.png"), "must be a data URL of base64, bytes or the object itself, got 'http"),
        (image("/etc/passwd"), "must be a data URL"),
        (image("data:image/png;base64,!!!"), "must be valid base64"),
        (image(b"GIF89a"), "must be a whole PNG, JPEG, WebP or GIF image"),
        (image(b"%PDF-1.4"), "must be a whole PNG"),
        (image(7), "must be a PIL image or uint8"),
        ({"type": "audio", "audio": SOUNDS[0]}, "prompt audio must not be given, this model takes none"),
    ],
)
def test_a_part_that_is_no_image_is_refused_by_name(part: dict[str, Any], message: str, llava: LLM) -> None:
    with pytest.raises(ParamsError, match=message):
        llava.chat(asks("See ", part), GREEDY)


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return opened("llava", tmp_path_factory.mktemp("llava"))[0]


def test_a_mark_that_a_client_writes_is_refused_beside_an_image(llava: LLM) -> None:
    with pytest.raises(ParamsError, match="with images or audio must not spell special tokens"):
        llava.chat(asks("See <image>", image(PICTURES[0])), GREEDY)


def test_a_model_of_text_alone_refuses_images_by_name() -> None:
    with LLM("tiny") as llm, pytest.raises(ParamsError, match="prompt images must not be given, this model takes text"):
        llm.chat(asks("See ", image(PICTURES[0])))
    tokenizer = build_media("llava")[1].tokenizer
    with LLM(wrap_module(build()), tokenizer=tokenizer) as llm, pytest.raises(ParamsError, match="images must not be"):
        llm.chat(asks("See ", image(PICTURES[0])))


def test_parts_of_text_alone_are_a_text() -> None:
    with LLM("tiny") as llm:
        request = llm.chat_request([{"role": "user", "content": "Hello\nthere"}], GREEDY)
        assert llm.chat_request(asks("Hello", "there"), GREEDY).prompt_ids == request.prompt_ids


def test_a_picture_of_too_many_pixels_or_bytes_is_not_decoded() -> None:
    file = io.BytesIO()
    Image.new("1", (40_000, 1_000)).save(file, "PNG")
    for data, message in ((file.getvalue(), "at most 32000000 pixels, got 40000000"), (bytes(MAX_BYTES + 1), "bytes")):
        with pytest.raises(ParamsError, match=message):
            split_parts(asks(image(data)), sampling_rate=None)


@pytest.mark.parametrize(("width", "channels"), [(1, 1), (2, 1), (2, 2), (4, 1)])
def test_a_wav_is_read_as_the_floats_that_it_holds(width: int, channels: int) -> None:
    part = {"type": "audio", "audio": wav(SOUNDS[1], width=width, channels=channels)}
    (sound,) = split_parts(asks(part), sampling_rate=RATE).audio
    assert sound.dtype == np.float32
    assert np.allclose(sound, SOUNDS[1], atol=2.0 ** (2 - 8 * min(width, 2)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (wav(SOUNDS[1], rate=8000), "at 16000 Hz, got 16 bits at 8000 Hz; resample it"),
        (b"RIFF", "must be a whole WAV file"),
        (b"OggS....", "must be a whole WAV file"),
        ("sound.wav", "must be a data URL"),
    ],
)
def test_a_bad_sound_is_refused_by_name(data: Any, message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        split_parts(asks({"type": "audio", "audio": data}), sampling_rate=RATE)


@pytest.mark.slow
def test_the_template_of_an_older_processor_is_found(tmp_path: Path) -> None:
    opened("llava", tmp_path)
    source = (tmp_path / "chat_template.jinja").read_text()
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": source}))
    with LLM(tmp_path) as llm:
        assert llm.chat_template.source == source
