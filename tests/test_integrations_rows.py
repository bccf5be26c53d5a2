"""`EngineRows`: the same tokens as `tirage.sample`, whatever the engine does with its requests."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from text_requests import CARRYING, PROMPT, REQUESTS, V, alone, logits_of

import tirage
from tirage import ParamsError, SamplingParams
from tirage.integrations import drawn_path
from tirage.integrations.params import ENGINE_FIELDS, read_params
from tirage.integrations.rows import EngineRows
from tirage.params import FIELDS


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
    # Those that carry a state must draw at each place of a text; the next test has them.
    for r in CARRYING:
        del outputs[r]
    for _ in range(6):
        stepped(rows, outputs, list(outputs))
    ahead = {r: [*output[: min(kept, 5)], 11, *output[min(kept, 5) + 1 :]] for r, output in outputs.items()}
    rows.draw(np.zeros((len(ahead), V), np.float32), list(ahead), list(ahead.values()))
    outputs = {r: output[: min(kept, 5)] for r, output in outputs.items()}
    for _ in range(8):
        stepped(rows, outputs, list(outputs))
    assert outputs == {r: alone(r, len(outputs[r])) for r in outputs}


@pytest.mark.parametrize("wrong_from", [0, 1, 3])
def test_drafts_that_are_refused_leave_no_trace(wrong_from: int) -> None:
    """As assisted generation does: a draw at each draft, then back to the first that is wrong, whose draw stands."""
    rows, outputs = all_rows()
    expected = {r: alone(r, 12) for r in outputs}
    while len(outputs[0]) < 9:
        before = {r: list(output) for r, output in outputs.items()}
        for place in range(4):
            stepped(rows, outputs, list(outputs))
            if place >= wrong_from:
                for output in outputs.values():
                    output[-1] = (output[-1] + 1 + place) % V
        outputs = {r: [*before[r], *expected[r][len(before[r]) :][: wrong_from + 1]] for r in outputs}
    while len(outputs[0]) < 12:
        stepped(rows, outputs, list(outputs))
    assert {r: output[:12] for r, output in outputs.items()} == expected


def test_a_request_that_was_taken_away_goes_on_where_it_was() -> None:
    """As vLLM does with one that it preempts: gone, and back as a new one with its output."""
    rows, outputs = all_rows()
    random = np.random.default_rng(3)
    key = {r: r for r in outputs}
    for round_ in range(1, 9):
        stepped_keys(rows, outputs, key)
        for r in random.permutation(list(outputs))[:9].tolist():
            rows.remove(key[r])
            key[r] = 100 * round_ + r
            rows.add(key[r], REQUESTS[r], PROMPT)
    assert outputs == {r: alone(r, 8) for r in outputs}


def stepped_keys(rows: EngineRows, outputs: dict[int, list[int]], key: dict[int, int]) -> None:
    which = list(outputs)
    logits = np.stack([logits_of(r, outputs[r]) for r in which])
    draw = rows.draw(logits, [key[r] for r in which], [outputs[r] for r in which])
    for r, token in zip(which, draw.token_ids.tolist(), strict=True):
        outputs[r].append(token)


def test_twins_with_a_state_come_back_to_their_own() -> None:
    """Unseeded ones are told apart by nothing but their text, from which the state follows, whatever the seed is."""
    params, outputs = SamplingParams(mirostat=2, mirostat_tau=2.0), [list[int]() for _ in range(6)]
    kept, taken = EngineRows(V), EngineRows(V)
    for at in range(6):
        kept.add(at, params.replace(seed=at), PROMPT)
        taken.add((at, 0), params.replace(seed=at), PROMPT)
    for step in range(8):
        logits = np.stack([logits_of(0, output) for output in outputs])
        tokens = kept.draw(logits, range(6), outputs).token_ids.tolist()
        assert taken.draw(logits, [(at, step) for at in range(6)], outputs).token_ids.tolist() == tokens
        for at, token in enumerate(tokens):
            outputs[at].append(token)
            taken.remove((at, step))
        for at in reversed(range(6)):
            taken.add((at, step + 1), params.replace(seed=at), PROMPT)


def test_a_state_that_nobody_knows_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, outputs = all_rows()
    for r in CARRYING:
        with pytest.raises(ParamsError, match=r"(mirostat|adaptive_target) must have drawn each token of its request"):
            rows.draw(np.zeros((1, V), np.float32), [r], [[4]])
    monkeypatch.setattr(drawn_path, "KEPT_TOKENS", 3)
    rows, outputs = all_rows()
    first, second = CARRYING[:2]
    for _ in range(3):
        stepped(rows, outputs, [first, second])
    for r in (first, second):
        rows.remove(r)
        rows.add(r, REQUESTS[r], PROMPT)
    with pytest.raises(ParamsError, match="without its state the request cannot go on"):
        stepped(rows, outputs, [first])
    stepped(rows, outputs, [second])
    assert outputs[second] == alone(second, 4)


def test_a_request_that_leaves_often_pushes_no_other_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn_path, "KEPT_TOKENS", 12)
    left, waits = drawn_path.LeftPaths(), drawn_path.DrawnPath([1], [(1, 0.5)])
    left.keep("waits", waits)
    for count in range(1, 11):
        path = drawn_path.DrawnPath([7] * count, [(7, 0.0)] * count)
        left.keep("leaves", path)
        assert left.take("leaves", [7] * count) == path
    assert left.take("leaves", [7]) == drawn_path.DrawnPath()
    assert left.take("waits", [1]) == waits


def test_of_those_that_left_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn_path, "KEPT_TOKENS", 2)
    left, paths = drawn_path.LeftPaths(), [drawn_path.DrawnPath([id_], [(id_, 0.5)]) for id_ in range(3)]
    for path in paths:
        left.keep("alike", path)
    assert [left.take("alike", path.tokens) for path in paths] == [drawn_path.DrawnPath(), *paths[1:]]


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
        ({"thinking_budget": 5}, "thinking_budget must be left out here, got 5; give it to vLLM itself"),
        ({"forcing": "canonical"}, "forcing must be left out"),
        ({"reasoning_parser": "qwen3"}, "reasoning_parser must be left out"),
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


def test_every_parameter_that_the_adapters_accept_is_in_the_proofs_of_the_engines() -> None:
    sys.path.insert(0, str(Path(__file__).parent / "engines"))
    every = importlib.import_module("every_parameter")
    asked = [*every.requests(), *every.operators_own(), *every.company()]
    for fields in asked:
        read_params(fields, "vLLM")
    named = {name for fields in asked for name in fields}
    # Words need a tokenizer, and become the ids that are in the proofs.
    elsewhere = {"bad_words", "bad_words_level", "tokenized"}
    assert set(FIELDS) - ENGINE_FIELDS - named == elsewhere
