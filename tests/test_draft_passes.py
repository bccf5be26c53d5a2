"""Passes over drafts: their logits are those of single tokens, and a row that gives tokens back goes on as before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_llama import CONFIG, random_tensors, write_folder
from small_torch import build

from tirage.engine.plain_model import PlainModel
from tirage.models import Inputs, SpeculativeModel, load
from tirage.models.huggingface import wrap_module
from tirage.models.llama_jax import open_jax

PROMPT, DRAFT = (3, 9, 4, 20, 7), [5, 11, 6, 30]


def opened(model: Any, prompt: tuple[int, ...] = PROMPT) -> Any:
    row = model.open(Inputs(token_ids=prompt))
    while row.left:
        model.prefill_chunk(row)
    return row


def singly(model: Any, ids: list[int], prompt: tuple[int, ...] = PROMPT) -> np.ndarray:
    row = opened(model, prompt)
    logits = np.concatenate([np.array(model.decode([token_id], [row])) for token_id in ids])
    model.close(row, reuse=False)
    return logits


def check_rows(model: Any, same: Callable[[Any, Any], None]) -> None:
    """Rows with drafts and without in one pass, tokens taken back, and what follows: as one token after the other."""
    assert isinstance(model, SpeculativeModel)
    assert model.draft_refusal == ""
    first, second = opened(model), opened(model, (8, 8, 2))
    assert min(model.room_for_draft(row) for row in (first, second)) >= len(DRAFT)
    found = np.array(model.extend_rows([DRAFT, [17]], [first, second]))
    same(found, np.concatenate([singly(model, DRAFT), singly(model, [17], (8, 8, 2))]))
    model.truncate_row(first, 2)
    together = np.array(model.decode([40, 12], [first, second]))
    same(together[:1], singly(model, [*DRAFT[:2], 40])[-1:])
    same(together[1:], singly(model, [17, 12], (8, 8, 2))[-1:])
    found = np.array(model.extend_rows([[1, 2, 3], DRAFT], [first, second]))
    model.truncate_row(first, 3)
    model.truncate_row(second, 4)
    same(np.array(model.decode([13], [first])), singly(model, [*DRAFT[:2], 40, 13])[-1:])
    same(np.array(model.extend_rows([[14, 15]], [second]))[-1:], singly(model, [17, 12, 14, 15], (8, 8, 2))[-1:])
    other = model.fork(first)
    same(np.array(model.decode([21], [other])), singly(model, [*DRAFT[:2], 40, 13, 21])[-1:])
    for row in (first, second, other):
        model.close(row, reuse=True)
    same(singly(model, DRAFT), singly(model, DRAFT))


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, atol=2e-4 * np.abs(wanted).max())


def folder_of(tmp_path: Path, **changes: Any) -> Path:
    return write_folder(tmp_path / "llama", random_tensors({**CONFIG, **changes}), **changes)


@pytest.mark.parametrize(
    "changes", [{}, {"vocab_size": 333, "intermediate_size": 129}, {"hidden_size": 96, "head_dim": 24}]
)
def test_the_numpy_llama_reads_drafts_bit_for_bit(tmp_path: Path, changes: dict[str, Any]) -> None:
    check_rows(PlainModel(load(folder_of(tmp_path, **changes))), np.testing.assert_array_equal)


def test_the_bundled_model_reads_drafts_and_forced_text_bit_for_bit() -> None:
    model = PlainModel(load("tiny"))
    check_rows(model, np.testing.assert_array_equal)
    row = opened(model)
    np.testing.assert_array_equal(model.extend_row(row, DRAFT), singly(model, DRAFT)[-1:])


@pytest.mark.slow
def test_the_jax_llama_reads_drafts_in_one_pass(tmp_path: Path) -> None:
    check_rows(PlainModel(open_jax(load(folder_of(tmp_path)))), close)


ROWS = ("llama", "gpt2", "falcon", "gemma", "mistral", "qwen3", "bloom", "gpt_neox")


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("packed", [False, True])
def test_models_of_transformers_read_drafts_in_one_pass(name: str, packed: bool) -> None:
    check_rows(wrap_module(build(name), packed=packed), close)


def test_a_sliding_window_ends_the_room_for_drafts() -> None:
    model = wrap_module(build("gemma3_text"))  # a window of 16
    assert model.draft_refusal == ""
    assert model.room_for_draft(opened(model, (5,) * 8)) == 16 - 1 - 8 - 1
    assert model.room_for_draft(opened(model, (5,) * 14)) <= 0
    row = opened(model)
    close(np.array(model.extend_rows([DRAFT], [row])), singly(model, DRAFT))
    model.truncate_row(row, 3)
    longer = [*range(20, 40)]
    found = np.concatenate([model.decode([token_id], [row]) for token_id in longer])
    close(found, singly(model, [DRAFT[0], *longer])[1:])


@pytest.mark.parametrize("name", ["mamba", "qwen3_next", "rwkv"])
def test_a_state_that_cannot_give_tokens_back_is_named(name: str) -> None:
    model = wrap_module(build(name))
    assert "cannot give tokens back" in model.draft_refusal or "in one pass" in model.draft_refusal


def test_hidden_states_and_embeddings_leave_no_room_for_drafts() -> None:
    model = wrap_module(build("llama"))
    row = model.open(Inputs(token_ids=PROMPT, hidden_states=True))
    assert model.room_for_draft(row) == 0


def test_a_pass_that_fails_advances_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    model = wrap_module(build("llama"))
    first, second = opened(model), opened(model, (8, 8, 2))
    decode = model.decode

    def failing(*_: Any) -> Any:
        raise RuntimeError("planted")

    monkeypatch.setattr(model, "decode", failing)
    with pytest.raises(RuntimeError, match="planted"):
        model.extend_rows([DRAFT, [17]], [first, second])
    monkeypatch.setattr(model, "decode", decode)
    close(model.decode([5, 17], [first, second]), np.concatenate([singly(model, [5]), singly(model, [17], (8, 8, 2))]))
