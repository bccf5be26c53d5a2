"""Alone or in company: the same text

One request asked alone, and again among sixteen others with other parameters. The bundled model computes each row by
itself, so its logits are the same, and with the logits every token.
"""

import tirage

llm = tirage.LLM("tiny")
mine = tirage.SamplingParams(temperature=0.9, top_p=0.9, repetition_penalty=1.2, seed=7, max_tokens=16)
others = [tirage.SamplingParams(temperature=0.1 * i, top_k=i + 1, seed=i, max_tokens=5 + i) for i in range(16)]

[alone] = llm.generate("Once upon a time", mine)
company = llm.generate([*["One day"] * 8, "Once upon a time", *["The cat"] * 8], [*others[:8], mine, *others[8:]])
print(alone.text)
print(company[8].token_ids == alone.token_ids)
