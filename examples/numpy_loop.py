"""A loop of your own

The model and the loop are yours; `tirage.sample` draws. The history says which step this is, so nothing else is kept.
"""

import numpy as np

import tirage

llm = tirage.LLM("tiny")
model, prompt = llm.model, llm.tokenizer.encode("Once upon a time")
params = tirage.SamplingParams(temperature=0.8, top_p=0.95, repetition_penalty=1.1, seed=7)

logits, cache = model.prefill(prompt)
output: list[int] = []
for _ in range(24):
    draw = tirage.sample(np.asarray(logits).reshape(1, -1), params, history=[(prompt, output)])
    output.append(int(draw.token_ids[0]))
    logits = model.decode([output[-1]], [cache])
print(llm.tokenizer.decode(output))
