"""How likely is this text?

`prompt_logprobs` scores each token of a given text; their mean makes the perplexity, and the worst one is where the
model was surprised.
"""

import math

import tirage

llm = tirage.LLM("tiny")
params = tirage.SamplingParams(prompt_logprobs=1, max_tokens=0)
texts = [
    "Once upon a time there was a shy girl named Tess.",
    "Once upon a time there was a Tess girl named shy.",
    "Once upon a time there was a shy girl named Tax.",
]
for text, answer in zip(texts, llm.generate(texts, params)):
    scored = [entry for entry in answer.prompt_logprobs if entry is not None]
    perplexity = math.exp(-sum(entry.logprob for entry in scored) / len(scored))
    worst = min(scored, key=lambda entry: entry.logprob)
    print(f"{text}  perplexity {perplexity:6.1f}, least expected: {worst.text!r} (rank {worst.rank})")
