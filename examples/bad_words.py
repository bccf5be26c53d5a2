"""Words that must not appear

By default a bad word is forbidden in every spelling, inside longer words too. `bad_words_level="sequence"` forbids
only the tokens by which the tokenizer writes it, as other engines do.
"""

import tirage

llm = tirage.LLM("tiny")
greedy = tirage.SamplingParams(temperature=0, max_tokens=12)
for params in (
    greedy,
    greedy.replace(bad_words=["live"], bad_words_level="sequence"),
    greedy.replace(bad_words=["live"]),
    greedy.replace(bad_words=["live", "girl", ","]),
):
    print(params.bad_words, llm.generate("Once upon a time", params)[0].text)
