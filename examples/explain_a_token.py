"""Why this token?

Every stage of one draw: what it left of the tokens, and which of them it removed.
"""

import tirage

llm = tirage.LLM("tiny")
params = tirage.SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=7)
why = llm.explain("Once upon a time there was a", params)

for stage in why.stages:
    print(f"{stage.label:12} {stage.candidates_before:4} -> {stage.candidates_after:3}  {stage.note}")
for trace in why.tokens[:6]:
    print(f"{trace.token.shown:10} {trace.model_probability:.3f} -> {trace.probability:.3f}  {trace.removed_by or ''}")
print(f"drawn: {why.token.shown}, which had a chance of {why.probability:.3f}; print(why) says more")
