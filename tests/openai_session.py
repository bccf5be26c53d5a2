"""A session with a server through the official `openai` client, of whichever version runs this; prints one JSON line.

Run by tests/test_openai_clients.py, in its own interpreter and in the one that TIRAGE_TEST_OPENAI3_PYTHON names.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import openai
from pydantic import BaseModel, Field

USER: Any = [{"role": "user", "content": "How old are you"}]
CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "parameters": {**CITY, "additionalProperties": False}}}
]


class Person(BaseModel):
    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=99)


def main(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="null", max_retries=0)
    found = {
        "version": openai.__version__.split(".")[0],
        "models": [model.id for model in client.models.list()],
        "chat": chat(client),
        "completions": completions(client),
        "parse": parse(client),
        "tools": tools(client),
        "errors": errors(client, url),
        "async": asyncio.run(streamed_at_once(url)),
    }
    print(json.dumps(found))


def chat(client: Any) -> dict[str, Any]:
    """A reply at once and as a stream, with its usage and logprobs."""
    options: dict[str, Any] = {"model": "null", "messages": USER, "seed": 5, "max_tokens": 12, "logprobs": True}
    whole = client.chat.completions.create(**options)
    chunks = [*client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})]
    text = "".join(chunk.choices[0].delta.content for chunk in chunks[:-1])
    return {
        "same": text == whole.choices[0].message.content,
        "usage": chunks[-1].usage.total_tokens == whole.usage.total_tokens,
        "logprobs": len(whole.choices[0].logprobs.content) > 0,
    }


def completions(client: Any) -> dict[str, Any]:
    """Completions of two prompts, at once and as a stream."""
    options: dict[str, Any] = {"model": "tiny", "prompt": ["Once", "The fox"], "seed": 5, "max_tokens": 8, "n": 2}
    whole = client.completions.create(**options, extra_body={"top_k": 20})
    texts = [""] * 4
    for chunk in client.completions.create(**options, extra_body={"top_k": 20}, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    return {"same": texts == [choice.text for choice in whole.choices]}


def parse(client: Any) -> dict[str, Any]:
    """A reply as an object of a pydantic class."""
    reply = client.chat.completions.parse(
        model="tiny",
        messages=USER,
        response_format=Person,
        max_tokens=80,
        seed=5,
        extra_body={"close_grammar": True},
    )
    person = reply.choices[0].message.parsed
    return {"is a person": isinstance(person, Person), "of an age": 0 <= person.age <= 99}


def tools(client: Any) -> dict[str, Any]:
    """A forced call, and the answer to its result."""
    named: Any = {"type": "function", "function": {"name": "weather"}}
    options: dict[str, Any] = {"model": "tiny", "messages": USER, "tools": TOOLS, "seed": 5}
    reply = client.chat.completions.create(**options, tool_choice=named)
    [call] = reply.choices[0].message.tool_calls
    arguments = ""
    for chunk in client.chat.completions.create(**options, tool_choice=named, stream=True):
        for piece in chunk.choices[0].delta.tool_calls or []:
            arguments += piece.function.arguments
    results: Any = [{"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    told = [*USER, reply.choices[0].message.model_dump(exclude_none=True), *results]
    after = client.chat.completions.create(**{**options, "messages": told}, max_tokens=4, tool_choice="none")
    return {
        "finish": reply.choices[0].finish_reason,
        "city": json.loads(call.function.arguments)["city"] in {"Paris", "Rome"},
        "same": arguments == call.function.arguments,
        "goes on": after.choices[0].message.content is not None,
    }


def errors(client: Any, url: str) -> dict[str, str]:
    """The exception classes that refusals become."""
    bad_field = {"temprature": 1}
    attempts = {
        "value": lambda: client.chat.completions.create(model="tiny", messages=USER, temperature=9),
        "name": lambda: client.chat.completions.create(model="tiny", messages=USER, extra_body=bad_field),
        "schema": lambda: client.chat.completions.create(
            model="tiny", messages=USER, stream=True, extra_body={"guided_regex": "("}
        ),
        "model": lambda: client.models.retrieve("other"),
        "route": lambda: client.embeddings.create(model="tiny", input="a"),
    }
    found = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except openai.APIStatusError as error:
            body: Any = error.body
            found[name] = f"{type(error).__name__} {error.status_code} {body.get('param', None)}"
    return found


async def streamed_at_once(url: str) -> bool:
    """Whether many streams at once each give what they give alone."""
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="null", max_retries=0)

    async def text(seed: int) -> str:
        events = await client.completions.create(model="tiny", prompt="Once", seed=seed, max_tokens=12, stream=True)
        return "".join([event.choices[0].text async for event in events])

    together = await asyncio.gather(*(text(seed) for seed in range(6)))
    return together == [await text(seed) for seed in range(6)]


if __name__ == "__main__":
    main(sys.argv[1])
