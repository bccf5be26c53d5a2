"""A session with /v1/responses through OpenAI's Agents SDK, which speaks it by default; prints one line of JSON.

Run by tests/test_responses_clients.py in the interpreter that TIRAGE_TEST_AGENTS_PYTHON names.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel


class City(BaseModel):
    city: Literal["Paris", "Rome"]


async def main(url: str) -> None:
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="null", max_retries=0)
    model = OpenAIResponsesModel(model="tiny", openai_client=client)
    asked: list[str] = []

    @function_tool
    def weather(city: Literal["Paris", "Rome"]) -> str:
        """Tells the weather."""
        asked.append(city)
        return "rain"

    def agent(**options: Any) -> Any:
        settings = ModelSettings(temperature=0, max_tokens=80, tool_choice=options.pop("choice", None))
        return Agent(name="a", model=model, model_settings=settings, **options)

    await Runner.run(agent(tools=[weather], choice="weather"), "How is Rome?", max_turns=3)
    typed = await Runner.run(agent(output_type=City), "Which city?")
    streamed = Runner.run_streamed(agent(instructions="Help."), "Hello")
    kinds = [event.data.type async for event in streamed.stream_events() if event.type == "raw_response_event"]
    after = await Runner.run(agent(), "And why?", previous_response_id=streamed.last_response_id)
    found = {
        "called": asked[0] in ("Paris", "Rome"),
        "typed": isinstance(typed.final_output, City),
        "streamed": kinds.count("response.output_text.delta") > 1 and bool(streamed.final_output),
        "went on": after.last_response_id is not None,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
