"""Requests with different parameters in one batch

A greedy request, a creative one and one that must not repeat itself share every step; one of them leaves early.
"""

import numpy as np

import tirage

llm = tirage.LLM("tiny")
model = llm.model
asked = {
    "The dog": tirage.SamplingParams(temperature=0),
    "Once upon a time": tirage.SamplingParams(temperature=1.2, min_p=0.1, seed=1),
    "The cat and the cat": tirage.SamplingParams(temperature=0.7, no_repeat_ngram_size=2, seed=2),
}
batch = tirage.Batch(model.vocab_size, capacity=4)
caches, logits = {}, {}
for text, params in asked.items():
    prompt = llm.tokenizer.encode(text)
    slot = batch.add(params, prompt)
    logits[slot], caches[slot] = model.prefill(prompt)

for step in range(12):
    rows = np.zeros((4, model.vocab_size), np.float32)
    rows[list(logits)] = list(logits.values())
    draw = batch.sample(rows)
    batch.advance(draw)
    if step == 5:
        print(llm.tokenizer.decode(batch.history(0)[1]))
        batch.remove(0)
        del caches[0]
    slots = list(caches)
    next_rows = model.decode([int(draw.token_ids[slot]) for slot in slots], [caches[slot] for slot in slots])
    logits = dict(zip(slots, next_rows))
for slot in caches:
    print(llm.tokenizer.decode(batch.history(slot)[1]))
