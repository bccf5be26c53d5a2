"""Beam search

The likeliest texts instead of drawn ones, with stops and penalties in every hypothesis.
"""

from tirage import LLM, BeamSearchParams, SamplingParams

llm = LLM("tiny")
search = BeamSearchParams(beam_width=4, max_tokens=12, num_return_sequences=3)
[answer] = llm.beam_search("The dog", search, sampling=SamplingParams(stop=["."], no_repeat_ngram_size=2))
for sample in answer.samples:
    print(f"{sample.score:.3f} {sample.cumulative_logprob:.3f} {sample.finish_reason} {sample.text!r}")
