"""Calls that the pages allow, for a type checker to read; `test_typing.py` also runs them."""

from __future__ import annotations

import numpy as np

import tirage
from tirage import BeamSearchParams, RequestOutputKind, SamplingParams

ids = np.array([3, 1, 2])
logits = np.zeros((2, 9), np.float32)

SamplingParams(temperature=None, top_k=None, max_tokens=None, seed=None, stop_pattern=None)
SamplingParams(temperature=np.float32(0.5), top_p=np.float64(0.9), min_p=0, top_k=np.int64(40), seed=np.uint8(3))
SamplingParams(n=np.int32(1), max_tokens=np.int64(8), logprobs=np.int16(2), ignore_eos=np.True_)
SamplingParams(stop_token_ids=ids, allowed_token_ids=ids, logprob_token_ids=[np.int64(4)], xtc_protected_ids=range(3))
SamplingParams(stop_token_ids={1, 2}, stop="end", bad_words=["a", "b"], bad_words_token_ids=[3, [1, 2], ids])
SamplingParams(logit_bias={3: -1, 4: np.float32(2)}, output_kind="DELTA", logits_processors=())
SamplingParams(logit_bias={np.int64(3): 0.5}, output_kind=RequestOutputKind.DELTA, semantics="vllm")
BeamSearchParams(beam_width=np.int64(2), max_tokens=4, temperature=np.float32(0), length_penalty=1)

rows = [SamplingParams(seed=seed, repetition_penalty=np.float64(1.2)) for seed in tirage.seeds(np.int64(7), 2)]
history = [(ids, [1, 2]), ((), ids)]
tirage.sample(logits, rows, history=history, step=np.array([1, 2]), sample_index=np.int64(0))
tirage.law(logits, rows, history=[[[1], [2]], [[], []]], step=[0, 1])
tirage.explain(logits[0], rows[0], history=[(ids, ids)], step=np.int64(3))

number: float = rows[0].repetition_penalty
count: int = rows[0].top_k
batch = tirage.Batch(9, 2)
slot = batch.add(rows[0], ids, output_ids=np.array([1]))
batch.advance(batch.sample(logits[:1]))
