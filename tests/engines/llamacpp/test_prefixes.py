"""Keys and values that finished requests leave: they change no token, and leave the context when it is idle."""

from __future__ import annotations

import numpy as np
import pytest
from gguf_models import STARTS, STORIES, greedy, ids_of, random_folder, stories

from tirage import LLM
from tirage.models import Inputs
from tirage.models.gguf import GGUFModel

pytestmark = pytest.mark.skipif(not STORIES.exists(), reason="needs shared/models/stories260K and its GGUF file")


def taken(model: GGUFModel) -> int:
    """The sequences of the context that are in use."""
    return model._context.sequences - len(model._free)


def ended(model: GGUFModel, prompt: list[int]) -> None:
    """A request that has ended."""
    row = model.open(Inputs(token_ids=tuple(prompt)))
    model.prefill_chunk(row)
    model.close(row, reuse=True)


@pytest.mark.parametrize(("file", "apart"), [("q8.gguf", 0.0), ("random.gguf", 1e-5)])
def test_logits_after_what_was_copied_back_are_those_of_a_fresh_context(file: str, apart: float) -> None:
    random = np.random.default_rng(3)
    prompts = [random.integers(3, 300, 40).tolist() for _ in range(4)]
    model = GGUFModel(random_folder().with_name(file))
    for prompt in prompts:
        ended(model, prompt)
    assert taken(model) == 0
    for prompt in prompts:
        fresh = GGUFModel(random_folder().with_name(file))
        ended(fresh, prompt)
        rows = [each.open(Inputs(token_ids=(*prompt, 5))) for each in (model, fresh)]
        assert [row.cached for row in rows] == [40, 40]
        # Attention in float32 sums by place in the cache, which another sequence may have before.
        found, expected = [each.prefill_chunk(row) for each, row in zip((model, fresh), rows, strict=True)]
        np.testing.assert_allclose(found, expected, rtol=0, atol=apart)
        for token in (7, 8, 9):
            found, expected = model.decode([token], rows[:1]), fresh.decode([token], rows[1:])
            np.testing.assert_allclose(found, expected, rtol=0, atol=apart)
        model.close(rows[0])


def test_the_context_is_emptied_once_no_row_is_open() -> None:
    model = GGUFModel(stories())
    ended(model, [10] * 30)
    assert taken(model) == 1
    row = model.open(Inputs(token_ids=(11,) * 30))
    model.prefill_chunk(row)
    ended(model, [12] * 30)
    # The row, and two that were kept.
    assert taken(model) == 3
    model.close(row, reuse=True)
    assert (taken(model), len(model._kept)) == (0, 3)


def test_rows_that_begin_alike_take_what_was_copied_out() -> None:
    model = GGUFModel(stories())
    for first in (10, 11):
        ended(model, [first] * 30)
    rows = [model.open(Inputs(token_ids=(*[10] * 30, at))) for at in (7, 8, 9)]
    assert [row.cached for row in rows] == [30, 30, 30]
    # Each has a copy in cells of its own.
    assert taken(model) == 3


def test_rows_that_begin_alike_share_what_was_copied_back() -> None:
    model = GGUFModel(stories())
    model._context.share()
    for first in (10, 11):
        ended(model, [first] * 30)
    rows = [model.open(Inputs(token_ids=(*[10] * 30, at))) for at in (7, 8, 9)]
    assert [row.cached for row in rows] == [30, 30, 30]
    # A sequence for each row, one for what they share.
    assert taken(model) == 4
    for row in rows:
        model.close(row)
    assert taken(model) == 1
    model.forget()
    assert taken(model) == 0


def test_without_room_a_prompt_is_computed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    model = GGUFModel(stories())
    for first in (10, 11):
        ended(model, [first] * 30)
    monkeypatch.setattr(model._context, "load", lambda *_: False)
    row = model.open(Inputs(token_ids=(10,) * 31))
    assert (row.cached, row.left, taken(model)) == (0, 31, 1)


def test_what_cannot_be_copied_out_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    model = GGUFModel(stories())
    monkeypatch.setattr(model._context, "save", lambda _: None)
    for first in (10, 11):
        ended(model, [first] * 30)
    assert (taken(model), len(model._kept)) == (0, 0)


def test_turns_of_two_chats_say_what_they_say_alone() -> None:
    with LLM(stories()) as llm, LLM(stories(), prefix_bytes=0) as fresh:
        chats = [llm.tokenizer.encode(start) for start in STARTS[:2]]
        for _ in range(3):
            for at, chat in enumerate(chats):
                (ids,) = ids_of(llm, [chat], greedy(20))
                assert [ids] == ids_of(fresh, [chat], greedy(20))
                chats[at] = [*chat, *ids, 15]
        assert llm.engine.progress().cached_tokens > 100
