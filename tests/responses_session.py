"""A session with /v1/responses through the official `openai` client, of whichever version runs this; prints one line.

Run by tests/test_responses_clients.py, in its own interpreter and in the one that TIRAGE_TEST_OPENAI3_PYTHON names.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import openai
from pydantic import BaseModel, Field

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: Any = [{"type": "function", "name": "weather", "description": "Tells it.", "parameters": CITY, "strict": True}]
PLAIN: Any = {"model": "tiny", "input": "How old are you", "extra_body": {"seed": 5}, "max_output_tokens": 24}


class Person(BaseModel):
    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=99)


def main(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="null", max_retries=0)
    found = {
        "version": openai.__version__.split(".")[0],
        "text": text(client),
        "streamed": streamed(client),
        "parsed": parsed(client),
        "tools": tools(client),
        "kept": kept(client),
        "errors": errors(client),
    }
    print(json.dumps(found))


def text(client: Any) -> dict[str, Any]:
    """A response, and the same words from chat completions."""
    response = client.responses.create(**PLAIN, include=["message.output_text.logprobs"], top_logprobs=2)
    part = response.output[0].content[0]
    chat = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": PLAIN["input"]}], seed=5, max_completion_tokens=24
    )
    return {
        "as in a chat": response.output_text == chat.choices[0].message.content,
        "logprobs": "".join(each.token for each in part.logprobs) == response.output_text,
        "top": {len(each.top_logprobs) for each in part.logprobs} == {2},
        "usage": response.usage.total_tokens == chat.usage.total_tokens,
    }


def streamed(client: Any) -> dict[str, Any]:
    """The same through `stream`, which puts the events together by itself."""
    whole = client.responses.create(**PLAIN)
    deltas = ""
    with client.responses.stream(**PLAIN) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                deltas += event.delta
        final = stream.get_final_response()
    plain = [event.type for event in client.responses.create(**PLAIN, stream=True)]
    return {
        "same": deltas == final.output_text == whole.output_text,
        "usage": final.usage.total_tokens == whole.usage.total_tokens,
        "first": plain[:3],
        "last": plain[-1] == f"response.{whole.status}",
    }


def parsed(client: Any) -> dict[str, Any]:
    """A response as an object of a pydantic class, whole and streamed."""
    options: Any = {**PLAIN, "max_output_tokens": 80, "extra_body": {"seed": 5, "close_grammar": True}}
    response = client.responses.parse(**options, text_format=Person)
    with client.responses.stream(**options, text_format=Person) as stream:
        final = stream.get_final_response()
    return {
        "is a person": isinstance(response.output_parsed, Person),
        "same": final.output_parsed == response.output_parsed,
    }


def tools(client: Any) -> dict[str, Any]:
    """A forced call, whole and streamed, and the answer to its result."""
    options: Any = {**PLAIN, "tools": TOOLS, "tool_choice": {"type": "function", "name": "weather"}}
    response = client.responses.create(**options)
    [call] = response.output
    with client.responses.stream(**options) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        [same] = stream.get_final_response().output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    told: Any = [{"role": "user", "content": PLAIN["input"]}, call, result]
    by_items = client.responses.create(**{**PLAIN, "input": told}, tools=TOOLS, tool_choice="none")
    by_id = client.responses.create(
        **{**PLAIN, "input": [result]}, previous_response_id=response.id, tools=TOOLS, tool_choice="none"
    )
    return {
        "city": json.loads(call.arguments)["city"] in {"Paris", "Rome"},
        "same": "".join(pieces) == same.arguments == call.arguments,
        "goes on": by_items.output_text == by_id.output_text != "",
        "prompt": by_items.usage.input_tokens == by_id.usage.input_tokens,
    }


def kept(client: Any) -> dict[str, Any]:
    """A response that the server keeps, read again and deleted."""
    response = client.responses.create(**PLAIN, metadata={"a": "b"})
    again = client.responses.retrieve(response.id)
    items = [item.content[0].text for item in client.responses.input_items.list(response.id)]
    client.responses.delete(response.id)
    try:
        client.responses.retrieve(response.id)
    except openai.NotFoundError:
        return {"same": again == response, "metadata": again.metadata, "items": items, "gone": True}
    return {"gone": False}


def errors(client: Any) -> dict[str, str]:
    """The exception classes that refusals become."""
    bad: Any = {"model": "tiny", "input": "a"}
    attempts = {
        "value": lambda: client.responses.create(**bad, temperature=9),
        "name": lambda: client.responses.create(**bad, extra_body={"temprature": 1}),
        "tool": lambda: client.responses.create(**bad, tools=[{"type": "web_search"}]),
        "previous": lambda: client.responses.create(**bad, previous_response_id="resp_1"),
        "background": lambda: client.responses.create(**bad, background=True),
    }
    found = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except openai.APIStatusError as error:
            body: Any = error.body
            found[name] = f"{type(error).__name__} {error.status_code} {body.get('param', None)}"
    return found


if __name__ == "__main__":
    main(sys.argv[1])
