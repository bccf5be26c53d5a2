"""SGLang's client code

A server must run: `tirage serve --model tiny`. Fields and answers of `/generate` are SGLang's, and so is the meaning.
"""

import json
import os
from urllib.request import Request, urlopen

url = os.environ.get("TIRAGE_URL", "http://127.0.0.1:30000")
body = {
    "text": ["Once upon a time", "The dog"],
    "sampling_params": {"temperature": 0.8, "top_p": 0.9, "max_new_tokens": 10, "sampling_seed": 7},
    "return_logprob": True,
}
request = Request(f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"})
with urlopen(request) as reply:
    for answer in json.load(reply):
        logprobs = [round(logprob, 2) for logprob, *_ in answer["meta_info"]["output_token_logprobs"]]
        print(answer["text"], answer["meta_info"]["finish_reason"], logprobs[:3])
