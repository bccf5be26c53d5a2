"""A text that matches a pattern, and one of a few answers

The constraint is a mask at every step, so the law is the model's own, given that the text fits.
"""

import math

import tirage
from tirage import GuidedDecodingParams, SamplingParams

llm = tirage.LLM("tiny")
animal = GuidedDecodingParams(regex=r" (small|shy) (dog|cat|fox) named [A-Z][a-z]{2,7}")
for sample in llm.generate("Once upon a time there was a", SamplingParams(seed=1, n=3, guided_decoding=animal))[
    0
].samples:
    print(sample.text, sample.grammar_complete)

mood = GuidedDecodingParams(choice=[" friendly", " happy", " sad", " tired"])
[answer] = llm.generate("Once upon a time there was a", SamplingParams(seed=1, guided_decoding=mood, logprobs=0))
print(answer.text, "which the model alone says with p =", round(math.exp(answer.samples[0].cumulative_logprob), 4))
