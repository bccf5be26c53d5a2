"""A text as it is written

Pieces arrive token by token; a stop string never shows up half, because what may become one is held back.
"""

import tirage

llm = tirage.LLM("tiny")
params = tirage.SamplingParams(temperature=0.8, seed=3, max_tokens=40, stop=["and", "\n"])
pieces = []
for delta in llm.stream("One day", params):
    pieces.append(delta.text)
    if delta.finish_reason is not None:
        print(pieces)
        print(delta.finish_reason, repr(delta.stop.matched_text))
