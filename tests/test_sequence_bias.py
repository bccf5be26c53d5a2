"""sequence_bias against transformers' own processor, by hand, and where it is refused."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers.generation.logits_process import SequenceBiasLogitsProcessor

import tirage
from tirage import ParamsError, SamplingParams
from tirage.dialects import from_hf

V = 30


def random_biases(rng: np.random.Generator, said: list[int]) -> dict[tuple[int, ...], float]:
    """Up to six sequences, about half of which the text so far has begun."""
    found: dict[tuple[int, ...], float] = {}
    for _ in range(rng.integers(1, 7)):
        length = int(rng.integers(1, 5))
        ids = rng.integers(0, 5, length).tolist()
        if 1 < length <= len(said) + 1 and rng.random() < 0.6:
            ids[:-1] = said[-(length - 1) :]
        found[tuple(ids)] = float(rng.choice([1.5, -2.25, 0.1, -7.3, -math.inf]))
    return found


def test_the_law_is_that_of_transformers_processor() -> None:
    rng = np.random.default_rng(0)
    for _ in range(150):
        said = rng.integers(0, 5, rng.integers(1, 9)).tolist()
        x, biases = (rng.standard_normal(V) * 2).astype(np.float32), random_biases(rng, said)
        theirs = SequenceBiasLogitsProcessor([[list(ids), bias] for ids, bias in biases.items()])
        scores = theirs(torch.tensor([said]), torch.from_numpy(x)[None])[0].double()  # pyright: ignore
        at = int(rng.integers(0, len(said) + 1))
        for semantics in ("hf", "canonical"):
            params = SamplingParams(sequence_bias=biases, semantics=semantics)
            law = tirage.law(x, params, history=[(said[:at], said[at:])])[0]
            np.testing.assert_allclose(law, torch.softmax(scores, 0).numpy(), atol=1e-6)
            np.testing.assert_array_equal(law > 0, torch.isfinite(scores).numpy())


def test_a_sequence_counts_when_its_opening_is_the_newest_text_of_prompt_and_output() -> None:
    x, params = np.zeros(8, np.float32), SamplingParams(sequence_bias=[[[1, 2, 3], 5.0], [[2, 4], -math.inf]])
    law = tirage.law(np.stack([x] * 3), params, history=[((0, 1), (2,)), ((), (2,)), ((1, 2), (0,))])
    assert law.argmax(1).tolist()[0] == 3
    np.testing.assert_array_equal(law == 0, [[t == 4 for t in range(8)]] * 2 + [[False] * 8])
    np.testing.assert_allclose(law[1][[0, 3]], 1 / 7)


def test_biases_of_one_token_add_up_whatever_their_order() -> None:
    x, said = np.linspace(0, 1, 8, dtype=np.float32), [((1,), (2,))]
    pairs = [[[2, 5], 0.1], [[1, 2, 5], 1e30], [[5], 0.2], [[0, 5], 9.0]]
    draws = [tirage.law(x, SamplingParams(sequence_bias=order), history=said)[0] for order in (pairs, pairs[::-1])]
    np.testing.assert_array_equal(*draws)
    assert draws[0][5] == 1


def test_one_token_needs_no_history_and_more_do() -> None:
    x = np.zeros(8, np.float32)
    alone = tirage.sample(x, SamplingParams(sequence_bias={(3,): 50.0}, seed=1))
    assert alone.token_ids.tolist() == [3]
    with pytest.raises(ParamsError, match=r"^sequence_bias must come with the tokens so far"):
        tirage.sample(x, SamplingParams(sequence_bias={(1, 3): 50.0}, seed=1))


def test_json_carries_it_and_the_dialect_parts_single_tokens() -> None:
    params = SamplingParams(sequence_bias={(1, 2): -math.inf, (4, 5): 0.5})
    assert params.to_dict()["sequence_bias"] == [[[1, 2], "-inf"], [[4, 5], 0.5]]
    assert SamplingParams.from_dict(params.to_dict()) == params
    read = from_hf({"sequence_bias": [[[3], 1.5], [[4, 5], 2.0]]})
    assert (dict(read.logit_bias or {}), read.sequence_bias) == ({3: 1.5}, (((4, 5), 2.0),))


def test_a_batch_like_a_jax_array_refuses_it_by_name() -> None:
    batch = tirage.Batch(vocab_size=8, capacity=1, like=jnp.zeros(1))
    with pytest.raises(ParamsError, match=r"^sequence_bias must be None in a batch like a JAX array, got 1 seq"):
        batch.add(SamplingParams(sequence_bias={(1, 2): 1.0}, seed=1), prompt_ids=[1])
