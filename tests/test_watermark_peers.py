"""Watermarks beside those of transformers: green lists, g-values, processed scores, detectors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import PretrainedConfig, WatermarkDetector, WatermarkingConfig
from transformers.generation.logits_process import SynthIDTextWatermarkLogitsProcessor, WatermarkLogitsProcessor

import tirage
from tirage import SamplingParams, Watermark
from tirage.watermarks import green_list, synthid

V = 300
KEYS = [654, 400, 836, 123, 340, 443, 597, 160, 57]
KGW = [
    {"scheme": "kgw", "key": 15485863},
    {"scheme": "kgw", "key": 2**61 + 12345, "bias": 5.5, "greenlist_ratio": 0.5},
    {"scheme": "kgw", "key": 77, "seeding_scheme": "selfhash", "context_width": 3},
    {"scheme": "kgw", "key": 10**12 + 39, "seeding_scheme": "selfhash", "bias": 1.0},
]


def processor_of(mark: Watermark) -> WatermarkLogitsProcessor:
    return WatermarkLogitsProcessor(
        vocab_size=V,
        device="cpu",
        greenlist_ratio=mark.greenlist_ratio,
        bias=mark.bias,
        hashing_key=mark.keys[0],
        seeding_scheme=mark.seeding_scheme,
        context_width=mark.width,
    )


def synthid_of(mark: Watermark) -> SynthIDTextWatermarkLogitsProcessor:
    return SynthIDTextWatermarkLogitsProcessor(
        ngram_len=mark.ngram_len,
        keys=list(mark.keys),
        sampling_table_size=mark.sampling_table_size,
        sampling_table_seed=mark.sampling_table_seed,
        context_history_size=mark.context_history_size,
        device="cpu",
        skip_first_ngram_calls=mark.skip_first_ngram_calls,
    )


def logits(seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(V) * 2).astype(np.float32)


def law_of(scores: torch.Tensor) -> np.ndarray:
    return torch.softmax(scores.double(), -1).numpy()


@pytest.mark.slow
@pytest.mark.parametrize("options", KGW, ids=str)
def test_the_green_list_and_the_law_are_those_of_transformers(options: dict) -> None:
    mark = Watermark(**options)
    theirs = processor_of(mark)
    rng = np.random.default_rng(0)
    for seed in range(12):
        past, x = rng.integers(0, V, 6), logits(seed)
        scores = theirs(torch.from_numpy(past)[None], torch.from_numpy(x)[None])[0]
        law = tirage.law(x, SamplingParams(watermark=mark), history=[(past[:4], past[4:])])[0]
        assert np.abs(law / law_of(scores) - 1).max() < 3e-6
        greedy = SamplingParams(watermark=mark, temperature=0)
        assert tirage.sample(x, greedy, history=[(past[:4], past[4:])]).token_ids[0] == int(scores.argmax())


@pytest.mark.parametrize("options", KGW, ids=str)
def test_the_bias_comes_after_temperature_and_filters(options: dict) -> None:
    """As transformers has it: the warpers first, the watermark last."""
    mark, past, x = Watermark(**options), np.array([5, 9, 250, 3]), logits(3)
    warped = torch.from_numpy(x / np.float32(0.7))[None]
    kept = torch.topk(warped, 20).indices
    warped = torch.full_like(warped, -torch.inf).scatter(1, kept, warped.gather(1, kept))
    expected = law_of(processor_of(mark)(torch.from_numpy(past)[None], warped)[0])
    law = tirage.law(x, SamplingParams(watermark=mark, temperature=0.7, top_k=20), history=[(past, ())])[0]
    assert np.array_equal(law > 0, expected > 0)
    assert np.abs(law - expected).max() < 1e-6


def test_every_token_of_a_green_list_is_transformers() -> None:
    theirs = processor_of(Watermark(**KGW[0]))
    for token in (0, 1, 17, 299):
        green = theirs._get_greenlist_ids(torch.tensor([4, token])).tolist()
        ours = green_list.left_green(15485863, token, V, green_list.green_count(V, 0.25))
        assert np.flatnonzero(ours).tolist() == sorted(green)
        asked = [green_list.is_green_after(15485863, token, t, V, 75) for t in range(V)]
        assert np.flatnonzero(asked).tolist() == sorted(green)


SYNTHID = [
    {"key": KEYS},
    {"key": [2**62 + 5, 3], "ngram_len": 3, "sampling_table_seed": 9, "sampling_table_size": 1000},
    {"key": KEYS * 3, "skip_first_ngram_calls": True, "context_history_size": 2, "ngram_len": 2},
]


@pytest.mark.parametrize("options", SYNTHID, ids=str)
def test_synthid_gives_the_law_of_transformers_token_by_token(options: dict) -> None:
    """Also where a context comes again: the output has three tokens only, and their processor keeps a state."""
    mark = Watermark(scheme="synthid", **options)
    theirs, rng = synthid_of(mark), np.random.default_rng(1)
    prompt, output = [7, 8], []
    marked = 0
    for step in range(25):
        x = logits(step)
        scores = theirs(torch.tensor([prompt + output]), torch.from_numpy(x)[None])[0]
        law = tirage.law(x, SamplingParams(watermark=mark), history=[(prompt, output)])[0]
        assert np.abs(law - law_of(scores)).max() < 2e-6
        marked += not np.allclose(law, law_of(torch.from_numpy(x)), atol=1e-6)
        output.append(int(rng.integers(0, 3)))
    assert 3 <= marked <= 25


def test_g_values_and_repeated_contexts_are_those_of_transformers() -> None:
    mark = Watermark(scheme="synthid", key=KEYS, ngram_len=4)
    tokens = np.random.default_rng(2).integers(0, 5, 200)
    theirs = synthid_of(mark)
    values = theirs.compute_g_values(torch.from_numpy(tokens)[None])[0].numpy()
    grams = np.lib.stride_tricks.sliding_window_view(tokens, 4)
    state = np.ones(len(grams), np.uint64)
    for column in grams.T:
        state = synthid.hashed(state, column.astype(np.uint64))
    table = synthid.g_table(0, 1 << 16)
    ours = np.stack([synthid.g_layer(state, key, table) for key in KEYS], 1)
    assert np.array_equal(ours, values)
    fresh = theirs.compute_context_repetition_mask(torch.from_numpy(tokens)[None])[0].numpy()
    found = tirage.detect(tokens, mark, vocab_size=V)
    assert found.scored == fresh.sum()
    assert found.score == values[fresh.astype(bool)].sum()


@pytest.mark.parametrize("options", KGW, ids=str)
def test_the_detector_counts_what_transformers_counts(options: dict) -> None:
    mark = Watermark(**options)
    config = WatermarkingConfig(
        greenlist_ratio=mark.greenlist_ratio,
        bias=mark.bias,
        hashing_key=mark.keys[0],
        seeding_scheme=mark.seeding_scheme,
        context_width=mark.width,
    )
    model = PretrainedConfig(vocab_size=V, bos_token_id=V + 1)
    detector = WatermarkDetector(model, "cpu", config.to_dict(), ignore_repeated_ngrams=True)
    for seed in range(3):
        tokens = np.random.default_rng(seed).integers(0, V, 60)
        theirs = detector(torch.from_numpy(tokens)[None], return_dict=True)
        ours = tirage.detect(tokens, mark, vocab_size=V)
        assert (ours.scored, ours.score) == (theirs.num_tokens_scored[0], theirs.num_green_tokens[0])
        # The normal approximation of our exact tail, which older transformers approximate once more.
        assert ours.p_value == pytest.approx(math.erfc(theirs.z_score[0] / math.sqrt(2)) / 2, abs=0.12)
