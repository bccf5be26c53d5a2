"""Several texts from one seed

Eight rows with the same seed are copies. `n` gives the samples of one request streams of their own, and
`tirage.seeds` makes seeds for separate requests.
"""

import tirage

llm = tirage.LLM("tiny")
params = tirage.SamplingParams(temperature=0.9, seed=7, max_tokens=12)

copies = llm.generate(["One day"] * 3, params)
samples = llm.generate("One day", params.replace(n=3))[0].samples
separate = llm.generate(["One day"] * 3, [params.replace(seed=seed) for seed in tirage.seeds(7, 3)])

print(len({each.text for each in copies}), "text from one seed in three requests")
for sample in samples:
    print("sample", sample.index, sample.text)
for each in separate:
    print("seed", each.seed, each.text)
