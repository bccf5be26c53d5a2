"""Images in chats over the wire, and through templates that know no parts."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from servers import Server
from small_media import build_media

from tirage import LLM, Prompt, SamplingParams
from tirage.models.huggingface import wrap_module

PICTURE = np.random.default_rng(0).integers(0, 255, (40, 50, 3), dtype=np.uint8)
GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
KNOWS_PARTS = (
    "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}{% endif %}{{ '\\n' }}{% endfor %}assistant:"
)
KNOWS_TEXT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def opened(name: str, template: str, folder: Path) -> LLM:
    module, processor = build_media(name)
    path = folder / "template.jinja"
    path.write_text(template)
    return LLM(wrap_module(module, processor=processor), tokenizer=processor.tokenizer, chat_template=path)


def said(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts]}]


IMAGE = {"type": "image", "image": PICTURE}


@pytest.mark.slow
def test_a_template_that_knows_text_alone_gets_the_processors_marks(tmp_path: Path) -> None:
    llm = opened("llava", KNOWS_TEXT, tmp_path)
    [expected] = llm.generate(Prompt(text="user: See <image>\nassistant:", images=[PICTURE]), GREEDY)
    assert llm.chat(said("See ", IMAGE), GREEDY).token_ids == expected.token_ids


@pytest.mark.slow
def test_an_image_comes_over_the_wire(tmp_path: Path) -> None:
    module, processor = build_media("llava")
    module.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(KNOWS_PARTS)
    buffer = io.BytesIO()
    Image.fromarray(PICTURE).save(buffer, "PNG")
    uri = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    expected = LLM(tmp_path).chat(said("See", IMAGE), GREEDY)
    with Server(tmp_path) as server:
        content = [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": uri}}]
        body = {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 10}
        answer = server.post("/v1/chat/completions", {**body, "ignore_eos": True, "return_token_ids": True})
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["token_ids"] == list(expected.token_ids)
        source = {"type": "base64", "media_type": "image/png", "data": uri.partition(",")[2]}
        blocks = [{"type": "text", "text": "See"}, {"type": "image", "source": source}]
        more = {"temperature": 0, "max_tokens": 10, "ignore_eos": True}
        message = server.post("/v1/messages", {"messages": [{"role": "user", "content": blocks}], **more}).json()
        assert message["content"][0]["text"] == expected.text
        assert (
            message["usage"]["input_tokens"] + message["usage"]["cache_read_input_tokens"]
            == (server.post("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": blocks}]}).json())[
                "input_tokens"
            ]
        )
        parts = [{"type": "input_text", "text": "See"}, {"type": "input_image", "image_url": uri, "detail": "auto"}]
        own = {"temperature": 0, "max_output_tokens": 10, "ignore_eos": True, "return_token_ids": True}
        response = server.post("/v1/responses", {"input": [{"role": "user", "content": parts}], **own}).json()
        assert response["token_ids"] == list(expected.token_ids)
        again = server.post("/v1/responses", {"input": "Why?", "previous_response_id": response["id"], **own})
        assert again.status_code == 200, again.text
        parts[1]["image_url"] = "https://example.org/a.png"
        refused = server.post("/v1/responses", {"input": [{"role": "user", "content": parts}]}).json()["error"]
        assert refused["param"].startswith("input[0].content[1]")
        content[1]["image_url"] = {"url": "https://example.org/a.png"}
        refused = server.post("/v1/chat/completions", body).json()["error"]
        assert refused["param"].startswith("messages[0].content[1]")
