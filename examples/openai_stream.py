"""OpenAI's client, streaming

A server must run: `tirage serve --model tiny`. The address is the only thing that a program has to change.
"""

import os

import openai

url = os.environ.get("TIRAGE_URL", "http://127.0.0.1:30000")
client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
stream = client.completions.create(
    model="tiny",
    prompt="Once upon a time",
    max_tokens=24,
    temperature=0.8,
    seed=7,
    stream=True,
    stream_options={"include_usage": True},
    extra_body={"min_p": 0.05},
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.text, end="")
        if choice.finish_reason:
            print("\n" + choice.finish_reason)
    if chunk.usage:
        print(chunk.usage.completion_tokens, "tokens")
