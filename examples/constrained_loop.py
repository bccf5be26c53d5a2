"""A constraint in a loop of your own

A compiled constraint says at each step which tokens may come, as a mask of bits, and takes the token that was drawn.
"""

import numpy as np

import tirage
from tirage.guided import Compiler, Vocabulary

llm = tirage.LLM("tiny")
model, prompt = llm.model, llm.tokenizer.encode("The fox was born on ")
vocabulary = Vocabulary.of(llm.tokenizer, model.vocab_size)
date = tirage.GuidedDecodingParams(regex=r"20[0-2][0-9]-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])")
matcher = Compiler(vocabulary).compile(date).matcher()

mask = np.zeros((1, vocabulary.words), np.int32)
logits, cache = model.prefill(prompt)
output: list[int] = []
while not matcher.complete:
    matcher.fill_mask(mask[0])
    rows = np.asarray(logits).reshape(1, -1)
    draw = tirage.sample(rows, tirage.SamplingParams(seed=7), history=[(prompt, output)], mask=mask)
    output.append(int(draw.token_ids[0]))
    assert matcher.accept(output[-1])
    logits = model.decode([output[-1]], [cache])
print(llm.tokenizer.decode(output), "in", len(output), "tokens")
