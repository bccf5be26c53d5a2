"""The comparison of presets with their engines: its page is its data, nothing is wrong, and its classifier bites."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.peers import __main__ as command
from scripts.peers import masks
from scripts.peers.__main__ import PEERS, ask, main, rows_for
from scripts.peers.classify import classify
from scripts.peers.engines import AROUND, ENGINES, OWN, SOURCES, WRITTEN, Peer
from scripts.peers.known import KNOWN, Known, _sorted_by_nothing
from scripts.peers.masks import DIFFERENCES as MASKED
from scripts.peers.ours import our_law
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


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_the_results_are_of_the_rows_that_are_made_now(name: str) -> None:
    made: dict[tuple[str, str], int] = {}
    for each in rows_for(name):
        made[each.preset, each.operator] = made.get((each.preset, each.operator), 0) + 1
    for question, _ in list(masks.questions())[1:] if not made else ():
        made[name, question["mode"]] = made.get((name, question["mode"]), 0) + 1
    assert {(cell.preset, cell.operator): sum(cell.counts.values()) for cell in RUN[name].cells} == made


def test_thousands_of_rows_were_compared() -> None:
    compared = sum(sum(cell.counts.values()) for engine in RUN.values() for cell in engine.cells)
    assert compared > 5000
    assert sum(engine.total("equal") for engine in RUN.values()) > 0.9 * compared


def test_every_engine_has_an_adapter_and_pinned_requirements() -> None:
    assert set(RUN) == set(ENGINES)
    for name, peer in ENGINES.items():
        assert (PEERS / "adapters" / peer.adapter).exists()
        for listed in PEERS.glob(f"requirements/{name}*.txt"):
            assert all("==" in line for line in listed.read_text().splitlines())
        assert (PEERS / "requirements" / f"{name}.txt").exists()


def test_every_preset_of_an_engine_is_compared_once_and_says_what_ran() -> None:
    asked = [preset for peer in ENGINES.values() for preset in peer.presets]
    assert sorted(asked) == sorted(SOURCES) == sorted(set(PRESETS) - {"canonical", "openai"})
    for preset, source in SOURCES.items():
        assert source.runs in {OWN, AROUND, WRITTEN}
        assert bool(source.missing) == (source.runs != OWN), preset
        assert source.runs != WRITTEN or preset in ENGINES["written"].presets
        # A written law names the file that it was read from, and the commit.
        assert source.runs == OWN or re.search(r"\([0-9a-f]{8}", source.code), preset


def test_written_laws_say_one_law_for_every_row_that_they_are_asked() -> None:
    rows = rows_for("written")[::60]
    about, *answers = map(
        json.loads, ask("written", Path(sys.executable), [each.to_dict() for each in rows]).splitlines()
    )
    assert sorted(about["presets"]) == sorted(ENGINES["written"].presets)
    for each, answer in zip(rows, answers, strict=True):
        assert answer["id"] == each.id
        assert sum(answer["law"]) == pytest.approx(1.0)
        assert classify(each, answer["law"]).kind != "wrong"


def test_a_documented_row_has_its_rule_in_the_presets_differences() -> None:
    for preset, known in KNOWN.items():
        assert {each.rule for each in known} <= {each.rule for each in DIFFERENCES[preset]}
    for engine in RUN.values():
        for cell in engine.cells:
            preset = PRESETS.get(cell.preset)
            known = {each.rule for each in preset.differences} if preset is not None else set(MASKED[cell.preset])
            assert set(cell.rules) <= known


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
    assert classify(case, our_law(row(logits, preset="vllm-flashinfer", top_p=0.1)).tolist(), known={}).kind == "wrong"


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
    known = {"canonical": (Known("S-O2", lambda each: [np.full(6, 1 / 6)] * ("top_p" in each.params)),)}
    assert classify(case, [1 / 6] * 6, known=known).rule == "S-O2"
    assert classify(case, [1 / 5] * 5 + [0.0], known=known).kind == "wrong"
    assert classify(row(LOGITS, top_k=2), [1 / 6] * 6, known=known).kind == "wrong"


# The documented differences: each has its law and excuses no other. The laws are worked out here by hand.

NEG = float("-inf")
EVEN = [0.0] * 4


def shares(*logits: float) -> list[float]:
    e = np.exp(np.array(logits, np.float64) - max(logits))
    return (e / e.sum()).tolist()


SHOWN = {
    # The largest is 1; with min_p 0.5 what is below 0.5 is cut, though its probability is above half of the largest.
    "min_p of logits": ("easydel", "S-O3", [1.0, 0.45, 0.6], {"min_p": 0.5}, shares(1.0, NEG, 0.6)),
    "min_p of negative logits": ("easydel-strict", "S-O3", [-1.0, -2.0, NEG], {"min_p": 0.5}, [1 / 3] * 3),
    "no bias": ("easydel", "S-N7", [0.0, 1.0], {"logit_bias": {0: 3.0}}, shares(0.0, 1.0)),
    "the smallest by top-k": ("vllm", "S-O1", [2.0, 1.0, 0.0, 0.0], {"top_k": 3}, shares(2.0, 1.0, NEG, NEG)),
    "the smallest by top-p": ("vllm", "S-O2", [2.0, 1.0, 0.0, 0.0], {"top_p": 0.99}, shares(2.0, 1.0, NEG, NEG)),
    "all ties by top-p": ("vllm", "S-O2", [2.0, 1.0, 1.0, 1.0, -3.0], {"top_p": 0.5}, shares(2.0, 1.0, 1.0, 1.0, NEG)),
    "underflow": ("vllm", "S-O2", [60.0, 58.0, -60.0, -60.0], {"top_p": 0.5}, shares(60.0, 58.0, -60.0, -60.0)),
    "the rest to the largest": (
        *("fastdeploy-base", "S-O2", LOGITS, {"min_p": 0.3, "top_p": 0.9}),
        [0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9, 0, 0, 0],
    ),
    "the rest to the last": (
        *("fastdeploy-rejection", "S-O2", LOGITS, {"min_p": 0.3}),
        [0.4, 0.25, 0.35, 0, 0, 0],
    ),
    # The first two of the list have more than half of the mass; the typical one is the second.
    "no entropy": ("llamacpp", "S-O4", [*LOGITS[:5], NEG], {"typical_p": 0.5}, [0.4 / 0.65, 0.25 / 0.65, 0, 0, 0, 0]),
    # Four even tokens: the entropy is the largest, and so is the temperature, 0 + 0.5.
    "a temperature that moves": (
        *("llamacpp", "S-P3", EVEN, {"temperature": 0.0, "dynatemp_range": 0.5}),
        [0.25] * 4,
    ),
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_documented_difference_excuses_its_own_law_and_no_other(name: str) -> None:
    preset, rule, logits, params, law = SHOWN[name]
    case = row(logits, preset=preset, **params)
    engines = np.array(law)
    verdict = classify(case, engines.tolist())
    assert (verdict.kind, verdict.rule) == ("documented", rule)
    assert classify(case, engines.tolist(), known={}).kind == "wrong"
    for planted in planted_laws(engines):
        assert classify(case, planted.tolist()).kind == "wrong", planted


def planted_laws(law: np.ndarray) -> list[np.ndarray]:
    """Laws that no rule gives: some mass moved, one token less, all tokens alike but the last."""
    moved = law.copy()
    moved[[0, -1]] += [0.01, -0.01] if law[-1] > 0.01 else [-0.01, 0.01]
    fewer = np.where(np.arange(law.size) == np.flatnonzero(law)[0], 0.0, law)
    alike = np.append(np.arange(1.0, law.size), 0.0)
    return [moved, fewer / fewer.sum(), alike / alike.sum()]


@pytest.mark.parametrize(
    ("name", "kept"),
    [("together/52", [0]), ("together/125", [2, 3, 7, 8, 9, 12, 15, 16, 17, 18, 21, 23])],
)
def test_what_llamacpp_was_seen_to_keep_of_a_long_list_without_an_entropy(name: str, kept: list[int]) -> None:
    case = next(each for each in rows_for("llamacpp") if each.id == f"llamacpp/{name}")
    e = np.exp(np.array(case.logits)) * np.isin(np.arange(len(case.logits)), kept)
    assert classify(case, (e / e.sum()).tolist()).rule == "S-O4"
    others = np.roll(e, 1)
    assert classify(case, (others / others.sum()).tolist()).kind == "wrong"


def test_every_documented_difference_is_shown() -> None:
    assert {(preset, rule) for preset, rule, *_ in SHOWN.values()} >= {
        (preset, each.rule) for preset, known in KNOWN.items() for each in known if preset != "easydel-strict"
    }


def test_rows_in_which_a_difference_does_not_show_have_no_other_law() -> None:
    for preset, params in {
        "vllm": {"top_k": 2},
        "easydel": {"top_p": 0.5},
        "fastdeploy-base": {"top_p": 0.5},
        "fastdeploy-rejection": {"top_k": 3, "min_p": 0.3},
        "llamacpp": {"typical_p": 0.5},
    }.items():
        case = row(LOGITS, preset=preset, **params)
        laws = [law for each in KNOWN[preset] for law in each.laws(case)]
        assert all(np.allclose(law, our_law(case)) for law in laws), preset


def test_a_list_that_is_sorted_by_nothing_is_left_as_libstdcpp_leaves_it() -> None:
    assert _sorted_by_nothing(16) == list(range(16))
    assert sorted(_sorted_by_nothing(400)) == list(range(400))
    assert _sorted_by_nothing(17) != list(range(17))


def test_an_engine_whose_python_is_missing_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "ENVIRONMENTS", tmp_path)
    monkeypatch.setitem(command.ENGINES, "gemma", Peer(adapter="gemma_laws.py", presets=(), python="python0.1"))
    monkeypatch.setattr(command, "PAGE", tmp_path / "page.md")
    assert main(["gemma"]) == 1
    said = capsys.readouterr()
    assert said.out == "failed: gemma\n"
    assert "gemma: it needs python0.1 on the PATH" in said.err


def test_an_engine_that_is_compiled_leaves_out_what_its_settings_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its wheel stays out of pip's cache, and other settings make the environment anew; others know of neither."""
    run: list[tuple[list[str], str | None]] = []

    def record(arguments: list[Any], *, env: Mapping[str, str] | None = None, **_: Any) -> None:
        run.append(([str(each) for each in arguments], None if env is None else env.get("CMAKE_ARGS")))
        if "venv" in run[-1][0]:
            Path(arguments[-1]).mkdir(exist_ok=True)

    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    monkeypatch.setattr(command, "ENVIRONMENTS", tmp_path / "environments")
    monkeypatch.setattr(command, "PEERS", tmp_path)
    monkeypatch.setattr(command.subprocess, "run", record)
    lists = tmp_path / "requirements"
    for folder in (lists, tmp_path / "environments"):
        folder.mkdir()
    for engine in ("llamacpp", "mlx"):
        (lists / f"{engine}.txt").write_text("package==1\n")
    (lists / "llamacpp.cmake").write_text("set(GGML_CPU OFF)\n")
    command.build("llamacpp", None)
    command.build("mlx", None)
    _, compiled, _, plain = run
    assert compiled[0][-1] == "--no-cache-dir"
    assert compiled[1] == f"-DCMAKE_PROJECT_INCLUDE={lists / 'llamacpp.cmake'}"
    assert "--no-cache-dir" not in plain[0]
    assert plain[1] is None
    command.build("llamacpp", None)
    assert len(run) == 4
    (lists / "llamacpp.cmake").write_text("set(GGML_CPU ON)\n")
    command.build("llamacpp", None)
    assert len(run) == 6


def test_a_newer_release_tells_what_has_changed() -> None:
    cell = Cell(preset="mlx", operator="top_p")
    cell.count("equal", "a", None)
    before = Engine(engine="mlx", package="mlx-lm", version="1", cells=[cell])
    changed = Cell(preset="mlx", operator="top_p")
    changed.count("wrong", "a", None)
    after = Engine(engine="mlx", package="mlx-lm", version="2", cells=[changed])
    assert after.changes(before) == ["mlx-lm 1 -> 2: mlx top_p: **wrong in 1** (wrong 1), was equal"]
    assert before.changes(before) == []


def result(path: Path, version: str, **counts: dict[str, int]) -> Path:
    cells = [Cell(preset="mlx", operator=operator, counts=given) for operator, given in counts.items()]
    path.write_text(Engine(engine="mlx", package="mlx-lm", version=version, cells=cells).to_json())
    return path


def test_two_result_files_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = result(tmp_path / "old.json", "1", top_k={"equal": 4}, top_p={"equal": 3, "tie": 1}, min_p={"equal": 2})
    new = result(tmp_path / "new.json", "2", top_k={"equal": 4}, top_p={"equal": 2, "tie": 2}, xtc={"wrong": 1})
    assert main(["--changes", str(old), str(new)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "mlx-lm 1 -> 2: mlx top_p: equal up to ties (tie 2), was equal up to ties (tie 1)",
        "mlx-lm 1 -> 2: mlx xtc: **wrong in 1** (wrong 1), was not compared",
        "mlx-lm 1 -> 2: mlx min_p: not compared, was equal",
    ]
    assert main(["--changes", str(old), str(old)]) == 0
    assert capsys.readouterr().out == "nothing has changed\n"


# Masks.


def test_a_mask_that_allows_other_tokens_is_wrong() -> None:
    spelled = {masks.vocabulary().tokens[token]: token for token in range(masks.vocabulary().width)}
    a, b, dot = (spelled[text] for text in (b"a", b"b", b"."))
    assert masks.classify_mask("xgrammar", "json", [a, b], [b, a]) == ("equal", None)
    assert masks.classify_mask("xgrammar", "json", [a, b], [a]) == ("wrong", None)
    assert masks.classify_mask("llguidance", "json", [a], [a, b]) == ("wrong", None)
    assert masks.classify_mask("llguidance", "json", [a, b], [a]) == ("wrong", None)
    assert masks.classify_mask("llguidance", "json", [a], []) == ("wrong", None)
    assert masks.classify_mask("xgrammar", "json", sorted([a, dot]), [a]) == ("documented", "S-G11")
    assert masks.classify_mask("xgrammar", "regex", sorted([a, dot]), [a]) == ("wrong", None)


def test_a_library_whose_next_byte_is_determined_may_allow_one_token() -> None:
    tokens = masks.vocabulary().tokens
    ours = [token for token, text in enumerate(tokens) if text in {b"t", b"th", b"the"}]
    one = [token for token in ours if tokens[token] == b"t"][-1:]
    assert masks.classify_mask("llguidance", "json", ours, one) == ("documented", "S-G2")
    assert masks.classify_mask("xgrammar", "json", ours, one) == ("wrong", None)
    longer = next(token for token in ours if tokens[token] == b"th")
    assert masks.classify_mask("llguidance", "json", ours, [longer]) == ("wrong", None)
    assert masks.classify_mask("llguidance", "json", ours, [*one, longer]) == ("wrong", None)
    another = next(token for token, text in enumerate(tokens) if text == b"q")
    assert masks.classify_mask("llguidance", "json", sorted([*ours, another]), one) == ("wrong", None)
