"""Tokens of sequences that are decoded together are put side by side in the KV cache, which changes no logit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_models import STORIES, random_folder, stories
from numpy.typing import NDArray

from tirage.models import Inputs
from tirage.models.gguf import GGUFModel
from tirage.models.gguf.model import GGUFRow

pytestmark = pytest.mark.skipif(not STORIES.exists(), reason="needs shared/models/stories260K and its GGUF file")
PROMPTS = ((5, 9, 300), (7, 8, 12, 40, 41), (6,))
STEPS = 90


def half(path: Path) -> GGUFModel:
    return GGUFModel(path, dtype="float16")


def opened(model: GGUFModel) -> list[GGUFRow]:
    rows = [model.open(Inputs(token_ids=ids)) for ids in PROMPTS]
    for row in rows:
        model.prefill_chunk(row)
    return rows


def moves_of(model: GGUFModel) -> list[Sequence[int]]:
    """The sequences that are gathered from now on, at a time."""
    moves, own = list[Sequence[int]](), model._context.gather

    def gather(sequences: Sequence[int]) -> list[int]:
        moves.append(sequences)
        return own(sequences)

    model._context.gather = gather
    return moves


def logits_of(model: GGUFModel, rows: list[GGUFRow], steps: int = STEPS) -> NDArray[np.float32]:
    return np.stack([model.decode([20 + step + at for at in range(len(rows))], rows) for step in range(steps)])


def without(model: GGUFModel) -> GGUFModel:
    model._gathers = False
    return model


@pytest.mark.parametrize("name", ["stories", "q8"])
def test_gathered_tokens_give_the_same_logits_bit_for_bit(name: str) -> None:
    path = stories() if name == "stories" else random_folder().with_name("q8.gguf")
    model, scattered = half(path), without(half(path))
    moves = moves_of(model)
    found, expected = logits_of(model, opened(model)), logits_of(scattered, opened(scattered))
    assert 1 < len(moves) < 8
    assert found.tobytes() == expected.tobytes()


def test_float32_attention_visits_all_cells_wherever_tokens_lie() -> None:
    model = GGUFModel(stories())
    moves = moves_of(model)
    logits_of(model, opened(model))
    assert not moves


def test_a_single_row_and_rows_that_share_tokens_stay_where_they_are() -> None:
    model = half(stories())
    moves, rows = moves_of(model), opened(model)
    logits_of(model, rows[:1])
    assert not moves
    logits_of(model, [rows[1], model.fork(rows[1]), rows[2]])
    assert not moves


def test_too_much_is_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tirage.models.gguf.model._MOST_GATHERED", 1)
    model = half(stories())
    moves = moves_of(model)
    logits_of(model, opened(model))
    assert not moves


def test_a_sequence_that_finds_no_room_again_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, plain = half(stories()), without(half(stories()))
    load, refused = model._context.load, list[int]()

    def refuse_once(sequence: int, state: Any) -> bool:
        if not refused:
            refused.append(sequence)
            return False
        return load(sequence, state)

    monkeypatch.setattr(model._context, "load", refuse_once)
    found, expected = logits_of(model, opened(model)), logits_of(plain, opened(plain))
    assert refused
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())
