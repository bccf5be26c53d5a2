"""A tool call that keeps its schema

A server must run: `tirage serve --model tiny`. `tool_choice` names the function, and the arguments are held to its
schema while they are drawn, so they always parse.
"""

import json
import os

import openai

url = os.environ.get("TIRAGE_URL", "http://127.0.0.1:30000")
client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
schema = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Oslo", "Lima"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    },
    "required": ["city", "days"],
}
reply = client.chat.completions.create(
    model="tiny",
    messages=[{"role": "user", "content": "How is the weather?"}],
    tools=[{"type": "function", "function": {"name": "weather", "parameters": schema}}],
    tool_choice={"type": "function", "function": {"name": "weather"}},
    max_tokens=60,
    seed=7,
)
call = reply.choices[0].message.tool_calls[0]
print(call.function.name, json.loads(call.function.arguments))
