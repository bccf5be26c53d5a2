"""A session with a server through langchain-openai and litellm; prints one JSON line.

Run by tests/test_openai_clients.py in the interpreter that TIRAGE_TEST_CLIENTS_PYTHON names, which has both.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing is to be fetched

import litellm
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=99)


def through_langchain(url: str) -> dict[str, Any]:
    model = ChatOpenAI(base_url=f"{url}/v1", api_key="null", model="tiny", seed=5, max_tokens=60)  # type: ignore[call-arg]
    closing = model.bind(extra_body={"close_grammar": True}).bound  # type: ignore[attr-defined]
    structured = ChatOpenAI(
        base_url=f"{url}/v1",
        api_key="null",
        model="tiny",
        seed=5,
        max_tokens=80,
        extra_body={"close_grammar": True},
    )  # type: ignore[call-arg]
    text = closing.invoke("How old are you").content
    return {
        "same": text == "".join(chunk.content for chunk in model.stream("How old are you")),
        "schema": isinstance(structured.with_structured_output(Person, method="json_schema").invoke("Who?"), Person),
        "tools": isinstance(
            structured.with_structured_output(Person, method="function_calling").invoke("Who?"), Person
        ),
    }


def through_litellm(url: str) -> dict[str, Any]:
    found = {}
    for provider in ("openai", "hosted_vllm"):
        options: dict[str, Any] = {
            "model": f"{provider}/tiny",
            "api_base": f"{url}/v1",
            "api_key": "null",
            "messages": [{"role": "user", "content": "How old are you"}],
            "seed": 5,
            "max_tokens": 12,
        }
        whole = litellm.completion(**options).choices[0].message.content  # type: ignore[union-attr]
        parts = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(**options, stream=True)]  # type: ignore[union-attr]
        found[provider] = whole == "".join(parts)
    return found


if __name__ == "__main__":
    print(json.dumps({"langchain": through_langchain(sys.argv[1]), "litellm": through_litellm(sys.argv[1])}))
