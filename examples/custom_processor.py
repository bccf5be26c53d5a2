"""A logits processor of your own

A function gets the logits of the rows that name it, and their arguments. Masks hold after it, whatever it returns,
and one that fails ends its own row only.
"""

import numpy as np

import tirage


def prefer(logits: np.ndarray, args: list[dict]) -> np.ndarray:
    for row, arguments in zip(logits, args):
        row[arguments["token_ids"]] += arguments["by"]
    return logits


tirage.register_processor("prefer", prefer, arg_names=["token_ids", "by"])

llm = tirage.LLM("tiny")
dog = llm.tokenizer.encode("The dog")[-1:]
for by in (0.0, 6.0):
    named = (("prefer", {"token_ids": dog, "by": by}),)
    params = tirage.SamplingParams(temperature=0, max_tokens=12, logits_processors=named)
    print(by, llm.generate("There was a", params)[0].text)
