"""`EngineRows`: the same tokens as `tirage.sample`, whatever the engine does with its requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from text_requests import PROMPT, REQUESTS, V, alone, logits_of

import tirage
from tirage import ParamsError, SamplingParams
from tirage.integrations.params import ENGINE_FIELDS, read_params
from tirage.integrations.rows import EngineRows


def stepped(rows: EngineRows, outputs: dict[int, list[int]], which: list[int]) -> None:
    logits = np.stack([logits_of(r, outputs[r]) for r in which])
    draw = rows.draw(logits, which, [outputs[r] for r in which])
    for r, token in zip(which, draw.token_ids.tolist(), strict=True):
        outputs[r].append(token)


def all_rows() -> tuple[EngineRows, dict[int, list[int]]]:
    rows = EngineRows(V)
    for r, params in enumerate(REQUESTS):
        rows.add(r, params, PROMPT)
    return rows, {r: [] for r in range(len(REQUESTS))}


def test_rows_in_any_company_and_order_draw_what_they_draw_alone() -> None:
    rows, outputs = all_rows()
    random = np.random.default_rng(0)
    while which := [r for r in outputs if len(outputs[r]) < 24]:
        some = random.permutation(which)[: random.integers(1, len(which) + 1)].tolist()
        stepped(rows, outputs, some)
    assert outputs == {r: alone(r, 24) for r in outputs}


@pytest.mark.parametrize("kept", [0, 1, 5, 7])
def test_tokens_that_are_taken_back_leave_no_trace(kept: int) -> None:
    rows, outputs = all_rows()
    for _ in range(6):
        stepped(rows, outputs, list(outputs))
    ahead = {r: [*output[: min(kept, 5)], 11, *output[min(kept, 5) + 1 :]] for r, output in outputs.items()}
    rows.draw(np.zeros((len(ahead), V), np.float32), list(ahead), list(ahead.values()))
    outputs = {r: output[: min(kept, 5)] for r, output in outputs.items()}
    for _ in range(8):
        stepped(rows, outputs, list(outputs))
    assert outputs == {r: alone(r, len(outputs[r])) for r in outputs}


def test_a_request_that_comes_again_under_its_key_begins_anew() -> None:
    rows, outputs = all_rows()
    for _ in range(3):
        stepped(rows, outputs, list(outputs))
    rows.remove(1)
    rows.remove(1)
    assert 1 not in rows
    assert len(rows) == len(REQUESTS) - 1
    rows.add(1, REQUESTS[1], PROMPT)
    for _ in range(3):
        stepped(rows, outputs, [1, 0])
    assert outputs[1] == alone(1, 6)


def test_an_unseeded_request_keeps_its_seed() -> None:
    rows = EngineRows(V)
    rows.add("a", SamplingParams(), PROMPT)
    seed = rows.seed("a")
    drawn = [int(rows.draw(np.zeros((1, V), np.float32), ["a"], [[0] * t]).token_ids[0]) for t in range(9)]
    seeded = SamplingParams(seed=seed)
    assert drawn == [int(tirage.sample(np.zeros(V, np.float32), seeded, step=t).token_ids[0]) for t in range(9)]


def test_an_output_that_is_not_known_is_refused_only_where_it_is_read() -> None:
    rows, _ = all_rows()
    logits = np.stack([logits_of(0, [])])
    draw = rows.draw(logits, [0], [[4, -1]])
    assert draw.token_ids.tolist() == tirage.sample(logits, REQUESTS[0], step=2).token_ids.tolist()
    with pytest.raises(ParamsError, match="repetition_penalty"):
        rows.draw(logits, [1], [[4, -1]])
    before = rows.draw(logits, [1], [[4, 9]]).token_ids.tolist()
    assert before == tirage.sample(logits, REQUESTS[1], history=[(PROMPT, [4, 9])]).token_ids.tolist()


def test_rows_that_do_not_fit_are_refused() -> None:
    rows, _ = all_rows()
    logits = np.zeros((2, V), np.float32)
    with pytest.raises(ParamsError, match="different requests"):
        rows.draw(logits, [0, 0], [[], []])
    with pytest.raises(KeyError):
        rows.draw(logits, [0, 99], [[], []])
    with pytest.raises(ParamsError, match=r"logits must be \[1, 48\]"):
        rows.draw(logits, [0], [[]])
    with pytest.raises(ParamsError, match="allowed_token_ids"):
        rows.add("x", SamplingParams(allowed_token_ids=(V,)))
    with pytest.raises(ParamsError, match="allowed_token_ids"):
        rows.check(SamplingParams(allowed_token_ids=(V,)))
    with pytest.raises(ParamsError):
        rows.add("x", SamplingParams(), [V])


@pytest.mark.parametrize(
    "given", [{"top_p": 0.9, "seed": 7}, '{"top_p": 0.9, "seed": 7}', SamplingParams(top_p=0.9, seed=7)]
)
def test_parameters_are_read_as_object_mapping_or_text(given: Any) -> None:
    assert read_params(given, "vLLM") == SamplingParams(top_p=0.9, seed=7)


def test_words_become_ids() -> None:
    params = read_params({"bad_words": ["the"]}, "vLLM", tokenizer=tirage.LLM("tiny").tokenizer)
    assert params.bad_words_token_ids
    with pytest.raises(ParamsError, match="tokeniz"):
        read_params({"bad_words": ["the"]}, "vLLM")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"top_pp": 0.9}, "top_p"),
        ({"top_p": 0}, "top_p must be in"),
        ({"max_tokens": 5}, "give it to vLLM itself"),
        ({"stop": ["x"]}, "stop must be left out"),
        ({"guided_decoding": {"regex": "a"}}, "guided_decoding must be left out"),
        ({"bad_words": ["a"], "bad_words_level": "text"}, "tokenized|bad_words"),
        ("{", "JSON"),
        (7, "fields of SamplingParams"),
    ],
)
def test_what_no_draw_can_do_is_refused(given: Any, says: str) -> None:
    with pytest.raises(ParamsError, match=says):
        read_params(given, "vLLM")


def test_fields_of_the_engine_are_fields() -> None:
    assert set(SamplingParams().to_dict()) >= ENGINE_FIELDS
