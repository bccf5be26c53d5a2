"""The comparison of presets with their engines: its page is its data, nothing is wrong, and its classifier bites."""

from __future__ import annotations

import json

import numpy as np
import pytest

from scripts.peers.__main__ import ADAPTERS, PEERS
from scripts.peers.classify import KNOWN, Known, classify, our_law
from scripts.peers.page import PAGE, Cell, Engine, page, read_engines
from scripts.peers.rows import SHAPES, Row, operators_of, rows_of
from tirage.differences import DIFFERENCES
from tirage.semantics import PRESETS

RUN = {engine.engine: engine for engine in read_engines()}


def row(logits: list[float], preset: str = "canonical", **params: object) -> Row:
    return Row(id="x", preset=preset, operator="x", shape="x", logits=logits, params=params)


# Data and page.


def test_the_page_is_made_of_the_results() -> None:
    assert PAGE.read_text() == page(read_engines())


def test_nothing_is_wrong() -> None:
    assert RUN
    assert {name: engine.total("wrong") for name, engine in RUN.items() if engine.total("wrong")} == {}


@pytest.mark.parametrize("name", RUN)
def test_the_results_are_of_the_rows_that_are_made_now(name: str) -> None:
    made: dict[tuple[str, str], int] = {}
    for preset in ADAPTERS[name][1]:
        for each in rows_of(preset):
            made[preset, each.operator] = made.get((preset, each.operator), 0) + 1
    assert {(cell.preset, cell.operator): sum(cell.counts.values()) for cell in RUN[name].cells} == made


def test_thousands_of_rows_were_compared() -> None:
    compared = sum(sum(cell.counts.values()) for engine in RUN.values() for cell in engine.cells)
    assert compared > 5000
    assert sum(engine.total("equal") for engine in RUN.values()) > 0.9 * compared


def test_every_adapter_is_there_with_its_requirements() -> None:
    for name, (adapter, presets) in ADAPTERS.items():
        assert (PEERS / "adapters" / adapter).exists()
        assert "==" in (PEERS / "requirements" / f"{name}.txt").read_text()
        assert set(presets) <= set(PRESETS)


def test_a_documented_row_has_its_rule_in_the_presets_differences() -> None:
    for preset, known in KNOWN.items():
        assert {each.rule for each in known} <= {each.rule for each in DIFFERENCES[preset]}
    for engine in RUN.values():
        for cell in engine.cells:
            assert set(cell.rules) <= {each.rule for each in PRESETS[cell.preset].differences}


# Rows.


def test_rows_are_the_same_every_time_and_of_every_shape() -> None:
    first, again = list(rows_of("vllm-v1")), list(rows_of("vllm-v1"))
    assert first == again
    assert {each.shape for each in first} == set(SHAPES)
    assert len({each.id for each in first}) == len(first)
    assert json.loads(json.dumps(first[0].to_dict()))["logits"] == first[0].logits


def test_an_engine_is_asked_for_every_operator_that_it_has() -> None:
    assert set(operators_of(PRESETS["mlx"])) == {
        *("temperature", "top_k", "top_p", "min_p", "xtc", "repetition", "frequency", "presence", "logit_bias"),
    }
    assert "dynatemp" in operators_of(PRESETS["llamacpp"])


# The classifier, with planted differences.

MASSES = [0.4, 0.25, 0.15, 0.1, 0.06, 0.04]
LOGITS = [float(v) for v in np.log(np.array(MASSES, np.float32))]


def test_the_same_law_is_equal_up_to_the_noise_of_binary32() -> None:
    case = row(LOGITS, top_p=0.7)
    assert classify(case, our_law(case).tolist()).kind == "equal"
    assert classify(case, (our_law(case) * (1 + 2e-6)).tolist()).kind == "equal"


@pytest.mark.parametrize("shift", [2e-5, 1e-4, 0.01])
def test_a_law_that_is_off_by_more_is_wrong(shift: float) -> None:
    case = row(LOGITS, top_p=0.7)
    planted = our_law(case) + np.array([shift, -shift, 0, 0, 0, 0])
    assert classify(case, planted.tolist()).kind == "wrong"


def test_another_of_two_equal_tokens_is_a_tie_but_another_number_of_them_is_wrong() -> None:
    case = row([1.0, 0.0, 0.0, -3.0], top_k=2)
    kept = our_law(case)
    assert classify(case, kept[[0, 2, 1, 3]].tolist()).kind == "tie"
    both = our_law(row([1.0, 0.0, 0.0, -3.0], top_k=3))
    assert classify(case, both.tolist()).kind == "wrong"


def test_tokens_that_a_bias_or_a_penalty_makes_unequal_are_no_tie() -> None:
    case = row([1.0, 0.0, 0.0, -3.0], top_k=2, logit_bias={1: 0.5})
    assert classify(case, our_law(case)[[0, 2, 1, 3]].tolist()).kind == "wrong"
    past = Row(**{**case.to_dict(), "params": {"top_k": 2, "presence_penalty": 0.5}, "output": [1]})
    assert classify(past, our_law(past)[[0, 2, 1, 3]].tolist()).kind == "wrong"


def test_a_threshold_that_is_met_exactly_may_fall_either_way() -> None:
    halves = [float(v) for v in np.log(np.array([0.5, 0.25, 0.25], np.float32))]
    case = row(halves, top_p=0.75)
    other = our_law(row(halves, top_p=0.7501))
    assert classify(case, other.tolist()).kind in {"equal", "threshold"}
    assert classify(row(halves, top_p=0.74), our_law(row(halves, top_p=0.76)).tolist()).kind == "wrong"


def test_another_rule_for_ties_is_no_threshold() -> None:
    logits = [1.0, 1.0, 0.0, -3.0]
    case = row(logits, preset="vllm", top_p=0.1)
    assert classify(case, our_law(row(logits, preset="vllm-flashinfer", top_p=0.1)).tolist()).kind == "wrong"


@pytest.mark.parametrize(
    ("ours", "theirs", "params"),
    [
        ("vllm", "sglang", {"top_k": 3, "top_p": 0.45}),
        ("mlx", "canonical", {"temperature": 0.5, "top_p": 0.6}),
        ("fastdeploy-base", "canonical", {"top_p": 0.6}),
        ("fastdeploy-base", "fastdeploy-air", {"top_p": 0.5, "min_p": 0.3}),
        ("vllm", "canonical", {"temperature": 0.005}),
        ("easydel-strict", "easydel", {"min_p": 0.2}),
    ],
)
def test_the_law_of_another_preset_is_found_wrong(ours: str, theirs: str, params: dict[str, float]) -> None:
    logits = [3.0, 1.0, 0.98, 0.96, -1.0] if "min_p" in params and "top_p" not in params else LOGITS
    logits = [0.02, 0.0, -0.03, -0.5, -1.0] if list(params) == ["temperature"] else logits
    planted = our_law(row(logits, preset=theirs, **params))
    assert classify(row(logits, preset=ours, **params), planted.tolist(), known={}).kind == "wrong"


def test_an_engine_that_gives_no_number_is_wrong() -> None:
    assert classify(row(LOGITS), [float("nan")] * 6).kind == "wrong"


def test_a_known_difference_counts_only_where_it_applies() -> None:
    case = row(LOGITS, top_p=0.7)
    known = {"canonical": (Known("S-O2", lambda each: "top_p" in each.params),)}
    assert classify(case, [1 / 6] * 6, known=known).rule == "S-O2"
    assert classify(row(LOGITS, top_k=2), [1 / 6] * 6, known=known).kind == "wrong"


def test_a_newer_release_tells_what_has_changed() -> None:
    cell = Cell(preset="mlx", operator="top_p")
    cell.count("equal", "a", None)
    before = Engine(engine="mlx", package="mlx-lm", version="1", cells=[cell])
    changed = Cell(preset="mlx", operator="top_p")
    changed.count("wrong", "a", None)
    after = Engine(engine="mlx", package="mlx-lm", version="2", cells=[changed])
    assert after.changes(before) == ["mlx-lm 2: mlx top_p: **wrong in 1**, was equal"]
    assert before.changes(before) == []
