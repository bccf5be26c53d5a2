"""Cells of their own or shared ones: who has which, that neither changes a logit, and when one follows another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from gguf_llama import random_llama
from gguf_models import STORIES, greedy, ids_of, random_folder, stories

from tirage import LLM, SamplingParams
from tirage.models import Inputs
from tirage.models.gguf import GGUFModel
from tirage.models.gguf.model import UNFORKED, GGUFRow
from tirage.models.gguf.sequence_state import SequenceStates

KINDS = (0.3, 0.15, 0.15, 0.15, 0.12, 0.12, 0.005, 0.005)
"""How likely each kind of step of a schedule is."""

pytestmark = pytest.mark.skipif(not STORIES.exists(), reason="needs shared/models/stories260K and its GGUF file")


def opened(model: GGUFModel, prompts: Sequence[Sequence[int]]) -> list[GGUFRow]:
    """A row for each prompt, prefilled alone."""
    return [model.prefill(prompt)[1] for prompt in prompts]


def prompts_of(count: int) -> list[list[int]]:
    random = np.random.default_rng(11)
    return [random.integers(3, 300, 5 + 3 * at).tolist() for at in range(count)]


LONG = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": 1024, "rope_theta": 10000.0, "rms_norm_eps": 1e-5,
}  # fmt: skip
"""A small model whose context is longer than the fewest cells of a sequence."""


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_llama(tmp_path_factory.mktemp("long") / "long.gguf", LONG, kind="Q8_0")


@pytest.fixture(scope="module")
def long_exact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In float32, where logits hardly depend on how a past was computed."""
    return random_llama(tmp_path_factory.mktemp("long") / "exact.gguf", LONG, kind="F32")


@pytest.mark.parametrize(("file", "apart"), [("q8.gguf", 0.0), ("random.gguf", 1e-4)])
def test_rows_of_any_company_and_order_have_the_logits_of_each_alone(file: str, apart: float) -> None:
    model, prompts = GGUFModel(random_folder().with_name(file)), prompts_of(8)
    rows, alone = opened(model, prompts), [GGUFModel(random_folder().with_name(file)) for _ in prompts]
    single = [opened(each, [prompt])[0] for each, prompt in zip(alone, prompts, strict=True)]
    companies = ([0, 1, 2, 3, 4, 5, 6, 7], [7, 3, 0], [0, 2, 4, 6], [6, 5], [1], [4, 7, 1, 2], [7, 6, 5, 4, 3, 2, 1, 0])
    for token, company in enumerate(companies, 3):
        found = model.decode([token] * len(company), [rows[at] for at in company])
        for at, logits in zip(company, found, strict=True):
            # Products in float32 depend on how many rows there are.
            expected = alone[at].decode([token], [single[at]])[0]
            np.testing.assert_allclose(logits, expected, rtol=0, atol=apart)
    assert not model._context.shared


def test_rows_that_close_leave_no_gap_and_change_nothing() -> None:
    model, alone = (GGUFModel(random_folder().with_name("q8.gguf")) for _ in range(2))
    rows = opened(model, prompts_of(8))
    others = opened(alone, prompts_of(8))
    for closed in (3, 0, 4):
        model.close(rows.pop(closed), reuse=closed == 0)
        alone.close(others.pop(closed))
        found = model.decode([7] * len(rows), rows)
        places = sorted(model._context._places.of([row.sequence for row in rows]))
        assert places == list(range(places[0], places[0] + len(rows)))
        for at, logits in enumerate(found):
            np.testing.assert_array_equal(logits, alone.decode([7], [others[at]])[0])


def test_prompts_of_one_length_are_prefilled_in_one_batch_with_gaps_between_them() -> None:
    model, alone = GGUFModel(random_folder().with_name("q8.gguf")), GGUFModel(random_folder().with_name("q8.gguf"))
    random = np.random.default_rng(4)
    prompts = [random.integers(3, 300, 31).tolist() for _ in range(8)]
    rows = [model.open(Inputs(token_ids=tuple(prompt))) for prompt in prompts]
    chosen = [rows[at] for at in (1, 3, 6, 7)]
    assert model.choose_prefill(chosen) == [0, 1, 2, 3]
    for row, logits in zip(chosen, model.prefill_batch(chosen), strict=True):
        np.testing.assert_array_equal(logits, alone.prefill(row.token_ids)[0])


def test_a_fork_has_all_share_their_cells_until_many_rows_had_none() -> None:
    model, alone = GGUFModel(stories()), GGUFModel(stories())
    rows, others = opened(model, prompts_of(3)), opened(alone, prompts_of(3))
    model.decode([5, 6, 7], rows)
    fork = model.fork(rows[1])
    assert model._context.shared
    found = model.decode([8, 9, 10, 11], [*rows, fork])
    for at, token in enumerate((5, 6, 7)):
        alone.decode([token], [others[at]])
    other = alone.fork(others[1])
    for row, token, logits in zip((*others, other), (8, 9, 10, 11), found, strict=True):
        # Sums of attention in float32 go by place in the cache.
        np.testing.assert_allclose(logits, alone.decode([token], [row])[0], rtol=0, atol=1e-4)
    for row in (*rows, fork):
        model.close(row, reuse=True)
    for at in range(UNFORKED):
        model.close(opened(model, [[4, 5, 6, at + 7]])[0])
        assert model._context.shared
    (row,) = opened(model, [[4, 5, 6]])
    assert not model._context.shared
    assert model.fork(row).length == 3


@pytest.mark.parametrize("moved", [False, True])
def test_sequences_become_longer_and_then_share(long: Path, monkeypatch: pytest.MonkeyPatch, moved: bool) -> None:
    model, alone = GGUFModel(long, first_cells=256), GGUFModel(long, first_cells=8192)
    monkeypatch.setattr(model._context, "_most_apart", 8 * 512)
    prompts = [[5] * 250, [6] * 100]
    first = opened(model, [[4], [7]]) if moved else []
    rows, others = opened(model, prompts), opened(alone, prompts)
    if moved:
        # The place between is left out, so that two sequences change theirs.
        model.decode([8, 8], [first[0], rows[1]])
        model.truncate_row(rows[1], 1)
        model.close(first.pop())
        assert model._context._places.of(range(4)) != [0, 1, 2, 3]
    layouts = dict.fromkeys([(model._context.shared, model._context.cells)])
    for at in range(300):
        layouts[model._context.shared, model._context.cells] = None
        tokens = [7 + at, 9]
        np.testing.assert_array_equal(model.decode(tokens, rows), alone.decode(tokens, others))
    assert [*layouts] == [(False, 8 * 256), (False, 8 * 512), (True, 8 * 512)]
    assert not alone._context.shared
    assert not model._context.is_separable


def test_after_a_fork_they_have_as_many_cells_of_their_own_as_before(long: Path) -> None:
    model = GGUFModel(long, first_cells=256)
    rows = opened(model, [[5] * 300, *([at + 3] for at in range(9))])
    layout = model._context.cells, model._context.sequences
    assert layout == (16 * 512, 16)
    rows.append(model.fork(rows[0]))
    for row in rows:
        model.close(row)
    for _ in range(UNFORKED):
        model.close(opened(model, [[4]])[0])
    opened(model, [[4]])
    assert (model._context.cells, model._context.sequences, model._context.shared) == (*layout, False)


def test_more_rows_than_there_is_room_for_share(monkeypatch: pytest.MonkeyPatch) -> None:
    model = GGUFModel(stories(), first_cells=256)
    monkeypatch.setattr(model._context, "_most_apart", 16 * 256)
    rows = opened(model, [[5, at + 3] for at in range(20)])
    assert (model._context.sequences, model._context.shared) == (32, True)
    assert len({row.sequence for row in rows}) == 20
    alone = GGUFModel(stories())
    for row, logits in zip(rows, model.decode([7] * 20, rows), strict=True):
        other = alone.prefill(row.token_ids[:2])[1]
        np.testing.assert_allclose(logits, alone.decode([7], [other])[0], rtol=0, atol=1e-4)


def test_a_release_that_writes_other_states_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SequenceStates.__init__

    def unknown(self: SequenceStates, *given: object, **named: int) -> None:
        made(self, *given, **named)
        self.are_known = False

    monkeypatch.setattr(SequenceStates, "__init__", unknown)
    model = GGUFModel(stories())
    assert (model._context.shared, model._context.is_separable) == (True, False)
    for at in range(2 * UNFORKED):
        model.close(opened(model, [[4, 5, at + 3]])[0])
    assert model._context.shared


def test_texts_are_the_same_before_and_after_samples_that_share() -> None:
    with LLM(stories()) as llm, LLM(stories()) as other:
        prompts = [llm.tokenizer.encode(text) for text in ("Once upon a time", "The dog", "A cat", "Lily and Tom")]
        expected = ids_of(other, prompts, greedy(30))
        assert ids_of(llm, prompts, greedy(30)) == expected
        samples = llm.generate(prompts[0], SamplingParams(n=5, seed=2, max_tokens=20))[0].samples
        assert llm.engine.model._context.shared
        assert ids_of(llm, prompts, greedy(30)) == expected
        assert len({sample.token_ids for sample in samples}) == 5


@pytest.mark.parametrize("seed", range(6))
def test_any_schedule_of_rows_leaves_each_its_own_past(
    long_exact: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(seed)
    model, alone = GGUFModel(long_exact, first_cells=256, prefix_bytes=1 << 18), GGUFModel(long_exact, prefix_bytes=0)
    # Small enough that some schedules share their cells, as they have too many of their own.
    monkeypatch.setattr(model._context, "_most_apart", int(random.choice([8, 16, 64])) * 512)
    rows, layouts, checked, moved = list[GGUFRow](), set[tuple[int, int, bool]](), 0, list[tuple[int, int]]()
    exchange = model._context._exchange
    monkeypatch.setattr(model._context, "_exchange", lambda *pair: (moved.append(pair), exchange(*pair)))
    for _ in range(240):
        kind = random.choice(["open", "decode", "decode", "decode", "close", "close", "fork", "extend"], p=KINDS)
        if kind == "open" or not rows:
            # Prompts begin alike, so that some take what others have left.
            prompt = [*([5] * int(random.choice([0, 20, 240]))), *random.integers(3, 300, 8).tolist()]
            rows.append(model.open(Inputs(token_ids=tuple(prompt))))
            while not model.prefill_chunk(rows[-1]).size:
                pass
        elif kind == "close":
            model.close(rows.pop(int(random.integers(len(rows)))), reuse=bool(random.integers(2)))
        elif kind == "fork":
            rows.append(model.fork(rows[int(random.integers(len(rows)))]))
        else:
            some = [rows[at] for at in random.permutation(len(rows))[: random.integers(1, len(rows) + 1)]]
            tokens = random.integers(3, 300, len(some)).tolist()
            if kind == "extend":
                found = model.extend_rows([[token] for token in tokens], some)
            else:
                found = model.decode(tokens, some)
            row, logits = some[-1], found[-1]
            expected, other = alone.prefill(row.token_ids)
            alone.close(other)
            np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)
            checked += 1
        layouts.add((model._context.cells, model._context.sequences, model._context.shared))
    assert checked > 50
    assert len(layouts) > 1
    assert moved
