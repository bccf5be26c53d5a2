"""The `hf` preset against the real thing: Hugging Face's own processors and warpers, run in float64."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest

import tirage

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    from transformers.generation import logits_process as hf

V = 400
ROWS = 60

WARPERS: dict[str, tuple[dict, Callable[[], list]]] = {
    "temperature": ({"temperature": 0.7}, lambda: [hf.TemperatureLogitsWarper(0.7)]),
    "top_k": ({"top_k": 7}, lambda: [hf.TopKLogitsWarper(7)]),
    "top_p": ({"top_p": 0.9}, lambda: [hf.TopPLogitsWarper(0.9)]),
    "min_p": ({"min_p": 0.03}, lambda: [hf.MinPLogitsWarper(0.03)]),
    "typical": ({"typical_p": 0.7}, lambda: [hf.TypicalLogitsWarper(0.7)]),
    "epsilon": ({"epsilon_cutoff": 0.002}, lambda: [hf.EpsilonLogitsWarper(0.002)]),
    "eta": ({"eta_cutoff": 0.002}, lambda: [hf.EtaLogitsWarper(0.002)]),
    "top_h": ({"top_h": 0.4}, lambda: [hf.TopHLogitsWarper(0.4)]),
    "the whole chain": (
        {"temperature": 1.3, "top_k": 40, "top_p": 0.92, "min_p": 0.01, "typical_p": 0.95, "epsilon_cutoff": 1e-3},
        lambda: [
            hf.TemperatureLogitsWarper(1.3),
            hf.TopKLogitsWarper(40),
            hf.TopPLogitsWarper(0.92),
            hf.MinPLogitsWarper(0.01),
            hf.TypicalLogitsWarper(0.95),
            hf.EpsilonLogitsWarper(1e-3),
        ],
    ),
}


def rows(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    spread = rng.uniform(0.3, 4.0, (ROWS, 1))
    return (rng.standard_normal((ROWS, V)) * spread).astype(np.float32)


def peer_law(x: np.ndarray, processors: list, ids: np.ndarray | None = None) -> np.ndarray:
    """What `transformers.generate` would hand to torch.multinomial, float64 [B, V]."""
    scores = torch.from_numpy(x.astype(np.float64))
    tokens = torch.zeros((len(x), 1), dtype=torch.long) if ids is None else torch.from_numpy(ids)
    for processor in processors:
        scores = processor(tokens, scores)
    return torch.softmax(scores, dim=-1).numpy()


def total_variation(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    return 0.5 * np.abs(ours - theirs).sum(axis=1)


@pytest.mark.parametrize("name", WARPERS)
def test_every_warper_gives_the_law_of_its_hugging_face_namesake(name: str) -> None:
    options, processors = WARPERS[name]
    x = rows(11)
    ours = tirage.law(x, tirage.SamplingParams(semantics="hf", **options))
    # No row of this seed has a token within float32 rounding of a boundary.
    assert total_variation(ours, peer_law(x, processors())).max() < 2e-6


def test_the_penalties_and_bans_are_those_of_hugging_face() -> None:
    x = rows(12)
    rng = np.random.default_rng(1)
    prompt, output = rng.integers(0, 60, (ROWS, 30)), rng.integers(0, 60, (ROWS, 30))
    params = tirage.SamplingParams(
        semantics="hf", repetition_penalty=1.3, no_repeat_ngram_size=2, bad_words_token_ids=((5,), (7, 8))
    )
    ours = tirage.law(x, params, history=[(p, o) for p, o in zip(prompt, output, strict=True)])
    processors = [
        hf.RepetitionPenaltyLogitsProcessor(1.3),
        hf.NoRepeatNGramLogitsProcessor(2),
        hf.NoBadWordsLogitsProcessor([[5], [7, 8]], eos_token_id=torch.tensor([V - 1])),
    ]
    theirs = peer_law(x, processors, np.concatenate([prompt, output], axis=1))
    assert total_variation(ours, theirs).max() < 2e-6


def test_min_tokens_holds_back_what_hugging_face_holds_back() -> None:
    x = rows(13)
    params = tirage.SamplingParams(semantics="hf", min_tokens=3, max_tokens=9, stop_token_ids=(4, 9))
    ours = tirage.law(x, params, history=[([1, 2], [3])] * ROWS)
    ids = np.tile(np.array([1, 2, 3]), (ROWS, 1))
    processor = hf.MinNewTokensLengthLogitsProcessor(2, 3, eos_token_id=torch.tensor([4, 9]))
    assert total_variation(ours, peer_law(x, [processor], ids)).max() < 2e-6
