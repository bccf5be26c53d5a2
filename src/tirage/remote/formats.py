"""The forms of requests and answers by their names: OpenAI's completions and chats, SGLang's and llama.cpp's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tirage.remote.answer import AnswerPart
from tirage.remote.llamacpp_format import LlamaCppFormat
from tirage.remote.openai_format import OpenAIFormat
from tirage.remote.request import RemoteRequest
from tirage.remote.routes import Form, RemoteRoute
from tirage.remote.sglang_format import SGLangFormat


class AnswerFormat(Protocol):
    """Writes the body of one request, and reads its answer or the events of its stream."""

    def __init__(self, route: RemoteRoute, request: RemoteRequest) -> None: ...

    def body(self, model: str) -> dict[str, Any]:
        """The body for a model of this name."""
        ...

    def read(self, answer: Any) -> AnswerPart:
        """What an answer or an event says. Raises RemoteError for what is neither."""
        ...


FORMATS: Mapping[Form, type[AnswerFormat]] = {
    "openai": OpenAIFormat,
    "generate": SGLangFormat,
    "completion": LlamaCppFormat,
}
