"""Rows on a device whose steps follow from their newest tokens draw what NumPy draws: windows, n-grams, words, DRY."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from steady_steps import counted
from torch._dynamo.testing import CompileCounterWithBackend

from tirage import Batch, SamplingParams
from tirage.backends.torch.device import edits, past, row_form
from tirage.backends.torch.device.rows import DeviceRows
from tirage.batch import torch as batch_torch
from tirage.batch.torch import TorchBatch
from tirage.semantics import PRESETS, Semantics

V = 12
"""Few tokens, so that sequences come again."""
PROMPT = (1, 2, 3, 1, 2, 3, 4)


def _windowed(window: int, **options: Any) -> Semantics:
    return replace(PRESETS["canonical"], name="windowed", penalty_window=window, **options)


def _smoothing_at(place: int) -> Semantics:
    """The canonical order with the smoothing in another place."""
    stages = [stage for stage in PRESETS["canonical"].stages if stage != "smoothing"]
    stages.insert(place, "smoothing")
    return replace(PRESETS["canonical"], name=f"smoothing at {place}", stages=tuple(stages))


_PENALTIES: dict[str, Any] = {"repetition_penalty": 1.4, "frequency_penalty": 0.3, "presence_penalty": 0.2}
_WORDS = [(1, 2), (2, 3), (4, 4, 5), (7,), (3, 1, 2), (9, 2)]
ASKED: dict[str, SamplingParams] = {
    "window of 1": SamplingParams(semantics=_windowed(1), **_PENALTIES),
    "window of 3": SamplingParams(semantics=_windowed(3), **_PENALTIES),
    "window of 5": SamplingParams(semantics=_windowed(5), top_k=5, **_PENALTIES),
    "mlx": SamplingParams(semantics="mlx", **_PENALTIES),
    "llamacpp": SamplingParams(semantics="llamacpp", dry_multiplier=0.5, dry_sequence_breakers=(), **_PENALTIES),
    "tgi": SamplingParams(semantics="tgi", repetition_penalty=1.2, frequency_penalty=1.9),
    "averaged": SamplingParams(semantics=_windowed(4, frequency_divisor="length"), frequency_penalty=2.0),
    "words of the output": SamplingParams(bad_words_token_ids=_WORDS),
    "words of hf": SamplingParams(semantics="hf", bad_words_token_ids=_WORDS, eos_token_ids=[7]),
    "unigrams": SamplingParams(no_repeat_ngram_size=1, repetition_penalty=1.1),
    "bigrams": SamplingParams(no_repeat_ngram_size=2, temperature=0.5),
    "4-grams": SamplingParams(no_repeat_ngram_size=4, temperature=0.3),
    "sequences": SamplingParams(
        semantics="hf", sequence_bias=[((1, 2), 3.0), ((2, 3), -2.0), ((5,), 1.5), ((3, 4), -np.inf), ((2, 4), 2.5)]
    ),
    "dry": SamplingParams(dry_multiplier=1.5, dry_allowed_length=1, dry_sequence_breakers=()),
    "dry in a window": SamplingParams(
        dry_multiplier=0.7,
        dry_base=1.3,
        dry_allowed_length=2,
        dry_last_n=9,
        dry_breaker_token_ids=[4, 6],
        temperature=0.4,
    ),
    "dry at its limit": SamplingParams(
        dry_multiplier=1e30, dry_base=9e7, dry_allowed_length=1, dry_breaker_token_ids=[0], temperature=0
    ),
    "smoothing first": SamplingParams(
        semantics=_smoothing_at(0), smoothing_factor=0.3, smoothing_curve=2.0, logit_bias={2: 1.5}, **_PENALTIES
    ),
    "smoothing within": SamplingParams(
        semantics=_smoothing_at(3),
        smoothing_factor=0.6,
        sequence_bias=[((1, 2), 3.0)],
        dry_multiplier=0.5,
        dry_allowed_length=1,
        dry_sequence_breakers=(),
        no_repeat_ngram_size=4,
        typical_p=0.9,
        **_PENALTIES,
    ),
    "smoothing last": SamplingParams(smoothing_factor=0.5, **_PENALTIES),
    "all": SamplingParams(
        semantics="hf",
        bad_words_token_ids=_WORDS,
        no_repeat_ngram_size=3,
        sequence_bias=[((1, 2), 3.0), ((8,), 0.5)],
        repetition_penalty=1.3,
    ),
    "none": SamplingParams(temperature=0.9),
}
"""Requests whose steps follow from the order of their tokens."""
IN_A_RING: dict[str, Any] = {
    "names": ("window of 1", "window of 3", "mlx", "averaged", "dry in a window"),
    "late": ("dry in a window", "words of the output"),
}
"""Those that look back at 32 tokens at most, so that their rings come around."""


def _given(name: str) -> SamplingParams:
    return ASKED[name].replace(seed=len(name))


def _logits(step: int) -> torch.Tensor:
    r = np.random.default_rng(step)
    x = r.standard_normal((len(ASKED), V)).astype(np.float32) * 2
    x[r.random(x.shape) < 0.02] = -np.inf
    x[r.random(x.shape) < 0.002] = np.nan
    x[r.random(x.shape) < 0.002] = np.inf
    x[r.random(x.shape) < 0.02] = np.float32(-1e-40)
    return torch.from_numpy(x)


def _filled(kind: Callable[..., Any], names: list[str], **options: Any) -> Any:
    batch = kind(V, len(ASKED), like=torch.zeros(1, V), **options)
    for at, name in enumerate(names):
        batch.add(_given(name), PROMPT[: at % (1 + len(PROMPT))], output_ids=PROMPT[at % 5 :][: at % 4])
    return batch


def _plain(*args: Any, history_capacity: int | None = None, **options: Any) -> Batch:
    batch = Batch(*args, **options)
    assert type(batch) is Batch
    return batch


def same(
    steps: int,
    names: Sequence[str] = tuple(ASKED)[:-2],
    late: tuple[str, str] = ("dry", "words of hf"),
    **options: Any,
) -> None:
    """Draws from two batches, one on a device, while requests come, two of them `late`, go and change places."""
    there, here = _filled(TorchBatch, [*names], **options), _filled(_plain, [*names], **options)
    for step in range(steps):
        x = _logits(step)[: len(there)]
        drawn, expected = there.sample(x), here.sample(x)
        for field in ("token_ids", "sampled_logprobs", "support_sizes", "status"):
            np.testing.assert_array_equal(getattr(drawn, field), getattr(expected, field), f"{field} of step {step}")
        for batch in (there, here):
            batch.advance(drawn)
            if step == steps // 4:
                batch.remove(3)
            if step == steps // 3:
                batch.insert(_given(late[0]), (1, 2, 3, 5, 2, 3, 1, 2), slot=3)
                batch.add(_given(late[1]), (4, 4))
            if step == steps // 2:
                batch.reorder([*range(len(batch) - 1, -1, -1)])
    assert not there._hosted
    assert [there.history(slot) for slot in there.slots] == [here.history(slot) for slot in here.slots]


# --- the same tokens ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"history_capacity": 100}, IN_A_RING])
def test_what_follows_from_the_tokens_is_drawn_as_by_numpy(options: dict[str, Any]) -> None:
    same(60, **options)


def test_tables_grow_with_the_tokens_that_are_looked_back_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_torch, "_TAIL", 4)
    monkeypatch.setattr(row_form, "_FEWEST", 2)
    same(50)


def _half(right: Any) -> Any:
    return lambda tables, *rest: (lambda ids, due, *more: (ids, due & (ids % 2 == 0), *more))(*right(tables, *rest))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("leaving", lambda right: lambda tables: torch.full_like(right(tables), -1)),
        ("averaged", lambda right: lambda tables, penalty, window: right(tables, penalty, window) * 1.01),
        ("completed", _half),
        ("_repeating", _half),
        ("prolonging", _half),
        ("remember", lambda right: lambda tables, token, new: None),
        ("bans", lambda right: right),
    ],
    ids=["window", "average", "phrases", "n-grams", "DRY", "ring", "nothing"],
)
def test_a_rule_that_is_a_little_off_is_seen(name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past, name, wrong(getattr(past, name)))
    if name == "bans":
        return same(30)
    with pytest.raises(AssertionError, match=r"of step|not equal"):
        same(60)
    return None


def test_entries_that_write_to_one_place_write_thesame() -> None:
    """A token that one entry touches and another does not is written by the first alone."""
    x = torch.arange(6.0).repeat(2, 1)
    ids = torch.tensor([[3, 3, 1, 3], [0, 5, 5, 0]])
    touched = torch.tensor([[False, True, False, True], [False] * 4])
    edits._put(x, ids, touched, torch.full((2, 4), -9.0))
    assert x.tolist() == [[0.0, 1.0, 2.0, -9.0, 4.0, 5.0], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]]


# --- what leaves for the host -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(bad_words_token_ids=[[1] * 34]),
        SamplingParams(bad_words_token_ids=[[i % V, i // V % V, i // V**2 % V, i // V**3] for i in range(2049)]),
        SamplingParams(dry_multiplier=1.0, dry_base=1.001, dry_sequence_breakers=()),
        SamplingParams(semantics="hf", sequence_bias=[((1, 2), 3.0), ((3, 2), -2.0)]),
    ],
)
def test_what_tables_cannot_hold_is_drawn_by_the_host(params: SamplingParams) -> None:
    batch: Any = TorchBatch(V, 2, like=torch.zeros(1, V))
    batch.add(params)
    assert batch._hosted == {0}


# --- nothing is read by the host ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["window of 5", "words of hf", "bigrams", "dry", "all"])
def test_a_steady_step_asks_for_the_same_each_time(name: str) -> None:
    batch, x = TorchBatch(V, 4, like=torch.zeros(1, V)), _logits(0)[:4]
    for _ in range(4):
        batch.add(_given(name), PROMPT)
    batch.advance(batch.sample(x))
    found = counted(lambda: batch.advance(batch.sample(x)), 12)
    assert all(each == found[0] for each in found)
    assert +found[0][0] == {"tirage.draw_slots": 1, "tirage.append": 1}


def test_rows_without_values_can_be_drawn_and_moved_on() -> None:
    batch = _filled(TorchBatch, list(ASKED), history_capacity=64)
    rows = DeviceRows(4, V, torch.device("meta"), 64)
    rows.grow(batch.device_rows().layout)
    for _ in range(3):
        token, *_ = rows.step(torch.zeros(4, V, device="meta"))
        assert token.shape == (4,)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_a_step_with_all_of_it_and_logprobs_is_compiled_whole_and_draws_thesame() -> None:
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    names = [*ASKED]
    rows, alone = (_filled(TorchBatch, names[:-1], history_capacity=64) for _ in range(2))
    for batch in (rows, alone):
        batch.add(SamplingParams(logprobs=2, logprob_token_ids=(3, 9, 2, 5), seed=1))
    fixed = rows.device_rows()
    step = torch.compile(lambda x: fixed.step_reported(x, most=2), fullgraph=True, backend=counter)
    for number in range(12):
        (token, *_), told = step(_logits(number))
        drawn = alone.sample(_logits(number))
        alone.advance(drawn)
        assert torch.equal(token, drawn.token_ids)
        assert torch.equal(told.top_ids, drawn.top_token_ids)
        assert torch.allclose(told.asked_logprobs, drawn.given_logprobs, rtol=0, atol=0, equal_nan=True)
    assert counter.frame_count == 1
