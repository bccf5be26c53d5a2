"""A vocabulary in parts

Tensor-parallel models end with the logits in parts. They are drawn from without being put together, and the token is
the same.
"""

import numpy as np

import tirage
from tirage.backends.sharded import Shards

logits = np.random.default_rng(0).normal(0, 3, (4, 32_000)).astype(np.float32)
params = [tirage.SamplingParams(temperature=0.9, top_p=0.95, seed=seed) for seed in tirage.seeds(1, 4)]
parts = Shards(np.split(logits, [10_000, 20_000], axis=1))

whole = tirage.sample(logits, params)
cut = tirage.sample(parts, params)
print(whole.token_ids.tolist(), cut.token_ids.tolist() == whole.token_ids.tolist())
