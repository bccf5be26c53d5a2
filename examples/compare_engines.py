"""The same parameters as several engines read them

`top_p=0.9` keeps another set of tokens in another engine. The law under each preset shows what a move would change.
"""

import tirage

llm = tirage.LLM("tiny")
engines = ("canonical", "vllm", "sglang", "hf", "llamacpp", "mlx")
asked = [tirage.SamplingParams(temperature=1.5, top_k=40, top_p=0.9, seed=4, semantics=name) for name in engines]
compared = llm.compare("Once upon a time there was a", asked)

for name, each in zip(engines, compared.explanations):
    order = " > ".join(stage.label for stage in each.stages[1:])
    print(f"{name:10} {each.support_size:3} tokens left, drew {each.token.shown:10} {order}")
