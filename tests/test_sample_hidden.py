"""Tokens from hidden states: what whole logits draw, from blocks of them, and how often and how much is computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from preset_rows import requests, states
from random_rows import assert_same, expected_drawn, random_case
from strategies import SHAPES, logits_of
from torch import Tensor

from tirage import ParamsError, SamplingParams, sample
from tirage.backends.head import Head, candidates
from tirage.backends.head.draw import draw_from_head
from tirage.backends.numpy import distribution
from tirage.backends.torch.arrays import to_numpy
from tirage.sampling_batch import SamplingBatch
from tirage.sampling_metadata import Drawn, SamplingMetadata
from tirage.semantics import PRESETS
from tirage.torch import sample_hidden

V = 97


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLogits(Head):
    """A head whose "hidden states" [B, V] are logits, NaN and infinities too; it notes what is computed."""

    computed: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def of_logits(cls, logits: NDArray[np.float32], block: int) -> KnownLogits:
        return cls(
            hidden=torch.from_numpy(logits.copy()), weight=torch.zeros(logits.shape[1], 1), bias=None, block=block
        )

    def _of(self, hidden: Tensor, start: int, stop: int) -> Tensor:
        self.computed.append((len(hidden), stop - start))
        return hidden[:, start:stop]


def by_head(logits: NDArray[np.float32], rows: SamplingMetadata, block: int, processes: Any = None) -> Drawn:
    with np.errstate(all="ignore"):
        return draw_from_head(KnownLogits.of_logits(logits, block), rows, processes).moved(to_numpy)


@pytest.mark.slow
@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_parameter_of_every_preset_draws_what_the_plain_path_draws(preset: str) -> None:
    params = requests(PRESETS[preset])
    logits = np.stack([logits_of(SHAPES[r % len(SHAPES)], V, r) for r in range(len(params))])
    frame = SamplingBatch.of(states(params, V), V)
    rows = frame.metadata(None)
    with np.errstate(all="ignore"):
        expected = distribution.draw(logits, rows, Drawn.empty(rows), processes=frame.processes)
    assert_same(expected, by_head(logits, rows, 10, frame.processes))


@pytest.mark.slow
@pytest.mark.parametrize(("size", "block"), [(1, 1), (33, 7), (1000, 64), (5000, 4999), (5000, 5000), (5000, 5001)])
def test_random_programs_draw_what_the_plain_path_draws(monkeypatch: pytest.MonkeyPatch, size: int, block: int) -> None:
    # Rows of small vocabularies would all be few enough.
    monkeypatch.setattr(candidates, "_FEW", 40)
    for seed in range(8):
        logits, rows = random_case(700_000 + 1000 * size + seed, size)
        with np.errstate(all="ignore"):
            expected = expected_drawn(logits, rows)
        assert_same(expected, by_head(logits, rows, block))


# --- through the public function -------------------------------------------------------------------------------------

B, D = 12, 16
REQUESTS: list[dict[str, Any]] = [
    {"temperature": 0},
    {},
    {"temperature": 40.0},
    {"top_k": 7},
    {"top_k": 7, "top_p": 0.8, "min_p": 0.05},
    {"top_p": 0.9},
    {"top_p": 0.4, "xtc_probability": 0.6, "xtc_threshold": 0.05},
    {"min_p": 0.1, "temperature": 2.0},
    {"typical_p": 0.6},
    {"smoothing_factor": 0.3, "smoothing_curve": 2.0, "top_p": 0.9},
    {"p_less": "norm", "top_p": 0.9},
    {"top_p": 0.9, "p_less": "plain", "tfs": 0.9},
    {"min_keep": 9, "top_p": 0.1, "min_p": 0.9},
    {"top_p": 0.9, "repetition_penalty": 1.4, "frequency_penalty": 0.3, "logit_bias": {3: 5.0, 1900: -4.0}},
    {"top_p": 0.9, "bad_words_token_ids": [[5], [1, 6]], "min_tokens": 4, "stop_token_ids": [9]},
]


def whole_numbers(*, dtype: torch.dtype = torch.float32, seed: int = 0, size: int = 2000) -> tuple[Tensor, ...]:
    """Hidden states, a head and a bias whose products are whole numbers: exact in any order of summation."""
    torch.manual_seed(seed)
    draw = [torch.randint(-3, 4, shape).to(dtype) for shape in ((B, D), (size, D), (size,))]
    return tuple(draw)


def spoken(semantics: str, given: dict[str, Any]) -> bool:
    """Whether the preset has these parameters."""
    try:
        SamplingParams(semantics=semantics, **given)
    except ParamsError:
        return False
    return True


PAIRS = [
    (given, preset) for preset in ("canonical", "sglang", "llamacpp") for given in REQUESTS if spoken(preset, given)
]


@pytest.mark.parametrize(("given", "semantics"), PAIRS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_draws_what_sample_draws_from_the_logits(given: dict[str, Any], semantics: str, dtype: torch.dtype) -> None:
    hidden, weight, bias = whole_numbers(dtype=dtype)
    params = [SamplingParams(seed=row, semantics=semantics, **given) for row in range(B)]
    history = [([1, 2, row], [3, 5 * row, 1]) for row in range(B)]
    mask = torch.full((B, -(-2000 // 32)), -1, dtype=torch.int32)
    mask[1, :30], mask[2] = 0, 0
    expected = sample(hidden @ weight.T + bias, params, history=history, mask=mask)
    drawn = sample_hidden(hidden, weight, params, bias=bias, history=history, mask=mask, block=300)
    for name in ("token_ids", "sampled_logprobs", "support_sizes", "status", "seeds"):
        assert np.array_equal(getattr(expected, name), getattr(drawn, name), equal_nan=True), name
    assert drawn.status.tolist().count(0) == B - 1


def test_logprobs_come_with_it_and_one_row_is_enough() -> None:
    hidden, weight, _ = whole_numbers()
    params = SamplingParams(seed=3, top_p=0.9, logprobs=4)
    expected, drawn = sample(hidden[:1] @ weight.T, params), sample_hidden(hidden[0], weight, params)
    assert drawn.token_ids.tolist() == expected.token_ids.tolist()
    assert drawn.top_token_ids.tolist() == expected.top_token_ids.tolist()
    assert drawn.top_logprobs.tolist() == expected.top_logprobs.tolist()
    assert sample_hidden(hidden[:0], weight, params).token_ids.tolist() == []


def test_records_come_with_it() -> None:
    hidden, weight, _ = whole_numbers()
    params = [SamplingParams(seed=row, top_k=7, return_kept=row % 2 == 0) for row in range(B)]
    expected, drawn = sample(hidden @ weight.T, params), sample_hidden(hidden, weight, params, block=300)
    for name in ("token_ids", "kept_ids", "kept_offsets", "kept_logmass", "raw_logprobs", "processed_logprobs"):
        assert np.array_equal(getattr(expected, name), getattr(drawn, name), equal_nan=True), name
    assert len(drawn.kept_ids) == B // 2 * 7


PEAKED = logits_of("peaked", 40_000, 1)[None].repeat(8, axis=0) * 8
READINGS: list[tuple[dict[str, Any], int]] = [
    ({"temperature": 0}, 1),
    ({"top_k": 20}, 1),
    ({"top_p": 0.9}, 3),
    ({"min_p": 0.05}, 3),
    ({}, 3),
]


@pytest.mark.parametrize(("given", "most"), READINGS, ids=str)
def test_blocks_are_read_as_seldom_as_the_page_says_and_never_all_at_once(given: dict[str, Any], most: int) -> None:
    params = [SamplingParams(seed=row, **given) for row in range(8)]
    frame = SamplingBatch.of(states(params, 40_000), 40_000)
    head = KnownLogits.of_logits(PEAKED, 1000)
    draw_from_head(head, frame.metadata(None))
    assert set(head.computed) == {(8, 1000)}
    assert len(head.computed) <= 40 * most
    if most > 1:
        assert len(head.computed) > 40


def test_flat_rows_are_computed_whole_a_few_at_a_time() -> None:
    params = [SamplingParams(seed=row, top_p=0.9) for row in range(8)]
    frame = SamplingBatch.of(states(params, 40_000), 40_000)
    flat = np.stack([logits_of("normal", 40_000, row) for row in range(8)]) / np.float32(100)
    head = KnownLogits.of_logits(flat, 10_000)
    rows = frame.metadata(None)
    drawn = draw_from_head(head, rows).moved(to_numpy)
    assert_same(expected_drawn(flat, rows), drawn)
    assert max(rows * size for rows, size in head.computed) == 8 * 10_000
    assert sum(rows < 8 for rows, _ in head.computed) == 4 * 4


def test_a_bound_that_is_one_bin_short_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above can fail."""
    true = candidates._Search.bound

    def short(self: Any, *given: Any) -> tuple[Tensor, Tensor]:
        last, size = true(self, *given)
        return last - 1, size

    monkeypatch.setattr(candidates._Search, "bound", short)
    frame = SamplingBatch.of(states([SamplingParams(seed=r, top_p=0.9) for r in range(64)], 1000), 1000)
    logits, rows = np.stack([logits_of("normal", 1000, r) for r in range(64)]), frame.metadata(None)
    assert by_head(logits, rows, 100).support.tolist() != expected_drawn(logits, rows).support.tolist()


GOOD = {"hidden": torch.zeros(2, 4), "weight": torch.zeros(5, 4), "params": SamplingParams(seed=0)}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"hidden": np.zeros((2, 4))}, r"hidden must be a dense torch.Tensor with data, got numpy.ndarray"),
    ({"hidden": torch.zeros(2, 3)}, r"hidden must have shape \[B, 4\] for weight \[5, 4\], got \[2, 3\]"),
    ({"hidden": torch.zeros(1, 2, 4)}, r"hidden must have 1 or 2 dimensions, got \[1, 2, 4\]"),
    ({"hidden": torch.zeros(2, 4, dtype=torch.int64)}, r"hidden must be float16, bfloat16, float32 or float64, got"),
    ({"weight": torch.zeros(5, 4).half()}, r"weight must be torch.float32 on cpu as hidden is, got torch.float16"),
    ({"weight": torch.zeros(5)}, r"weight must have 2 dimensions"),
    ({"weight": torch.zeros(0, 4)}, r"weight must have 1 to 1048576 rows, one per token, got 0"),
    ({"weight": torch.zeros(5, 4, device="meta")}, r"weight must be a dense torch.Tensor with data"),
    ({"bias": torch.zeros(4)}, r"bias must have shape \[5\]"),
    ({"block": 0}, r"block must be a whole number of tokens, at least 1, got 0"),
    ({"params": [SamplingParams()] * 3}, r"params must hold one entry per row \(2\), got 3"),
    ({"params": SamplingParams(frequency_penalty=1.0)}, r"history"),
    ({"mask": torch.zeros(2, 2, dtype=torch.int32)}, r"mask must have shape"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_does_not_fit_is_refused(given: dict[str, Any], message: str) -> None:
    arguments = {**GOOD, **given}
    with pytest.raises(ParamsError, match=message):
        sample_hidden(arguments.pop("hidden"), arguments.pop("weight"), arguments.pop("params"), **arguments)
