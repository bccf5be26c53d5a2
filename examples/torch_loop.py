"""Logits from PyTorch

Tensors go in and come out, and the tokens are those of NumPy, bit for bit. Here a small random model stands for
yours.
"""

import numpy as np
import torch

import tirage

torch.manual_seed(0)
embed, head = torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50)
params = [tirage.SamplingParams(temperature=0.9, min_p=0.05, seed=seed) for seed in tirage.seeds(7, 3)]

ids = torch.tensor([[1], [2], [3]])
with torch.no_grad():
    for _ in range(8):
        logits = head(embed(ids).mean(dim=1)) * 3
        history = [(row[:1], row[1:]) for row in ids.tolist()]
        draw = tirage.sample(logits, params, history=history)
        again = tirage.sample(logits.numpy(), params, history=history)
        assert np.array_equal(draw.token_ids.numpy(), again.token_ids)
        ids = torch.cat([ids, draw.token_ids[:, None]], dim=1)
print(ids.shape, draw.token_ids.dtype, draw.token_ids.device)
