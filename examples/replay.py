"""Prove where an answer came from

A server must run: `tirage serve --model tiny`. An answer that was asked for with `return_effective_params` holds all
that it takes to draw it again, token by token, with `tirage replay` or from Python.
"""

import json
import os
from urllib.request import Request, urlopen

import tirage
from tirage.server.replay import read_records, replay

url = os.environ.get("TIRAGE_URL", "http://127.0.0.1:30000")
body = {
    "text": "Once upon a time",
    "sampling_params": {"temperature": 0.9, "max_new_tokens": 12, "ignore_eos": True},
    "return_effective_params": True,
}
request = Request(f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"})
with urlopen(request) as reply:
    [record] = read_records(reply.read())

again = replay(tirage.LLM("tiny"), record)
print(len(again.completion.token_ids), again.difference, again.same_model)
