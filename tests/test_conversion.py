"""A request in another engine's words: nothing is lost or changed in meaning without being told."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dialect_cases import CASES
from hypothesis import given
from hypothesis import strategies as st
from tries import tries

import tirage
from tirage import ParamsError, SamplingParams
from tirage.cli import main
from tirage.conformance import Vector, read_vectors
from tirage.dialects import DIALECTS, DialectError, convert
from tirage.dialects.law_change import law_change
from tirage.dialects.meaning import active_stages, meaning_changes
from tirage.dialects.option_words import OPTIONS
from tirage.dialects.table import lost_fields
from tirage.semantics import PRESETS

EVERY = [(name, field) for name, case in CASES.items() for field in case.dialect.entries]
REFUSED = {("sglang", "custom_params")}
FIVE = np.log(np.array([0.4, 0.2, 0.2, 0.15, 0.05], np.float32))
REQUEST = {
    "temperature": 0.7,
    "top_k": 3,
    "top_p": 0.6,
    "repetition_penalty": 1.2,
    "max_new_tokens": 64,
    "stop_regex": "a+",
    "sampling_seed": 5,
}


# --- both ways ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "field"), EVERY)
def test_every_value_of_every_field_is_written_back(name: str, field: str) -> None:
    case = CASES[name]
    for value in case.values[field]:
        if (name, field) in REFUSED:
            continue
        request = {**case.needs.get(field, {}), field: value}
        same = convert(request, name, name)
        assert (same.lost, same.changes) == ((), ())
        assert same.before.semantics == same.after.semantics
        assert lost_fields(same.before, same.after) == []
        json.dumps(same.request)


@pytest.mark.parametrize("source", CASES)
@pytest.mark.parametrize("target", CASES)
def test_between_any_two_dialects_exactly_what_differs_is_named_as_lost(source: str, target: str) -> None:
    case = CASES[source]
    for field in case.dialect.entries:
        if (source, field) in REFUSED:
            continue
        found = convert({**case.needs.get(field, {}), field: case.values[field][0]}, source, target)
        assert [each.name for each in found.lost] == lost_fields(found.before, found.after)
        assert found.after == DIALECTS[target].read(found.request)
        assert all(str(each) and each.reason for each in found.lost)
        json.dumps(found.to_dict())


# --- meaning -----------------------------------------------------------------------------------------------------


def changes(request: dict[str, Any], source: str, target: str) -> list[tuple[str, str, str]]:
    return [(each.what, each.before, each.after) for each in convert(request, source, target).changes]


def test_what_means_something_else_is_said_of_the_parameters_that_are_on() -> None:
    assert changes(REQUEST, "sglang", "vllm") == [
        ("equal logits at the cut of `top_k`", "all stay", "the lowest ids stay"),
        ("equal logits at the cut of `top_p`", "all stay", "the lowest ids stay"),
        (
            "`top_p` judges the mass of",
            "all tokens; with `min_p`, what earlier filters left",
            "what earlier filters left",
        ),
        ("`repetition_penalty` counts", "output", "prompt and output"),
    ]
    assert changes({"temperature": 0.7}, "sglang", "vllm") == []
    assert changes({"temperature": 0.7, "top_p": 0.5}, "sglang", "vllm") == [
        ("equal logits at the cut of `top_p`", "all stay", "the lowest ids stay")
    ]


def test_a_body_of_anthropics_is_read_without_what_is_no_parameter() -> None:
    about = {"model": "m", "system": "Be brief.", "messages": [], "tools": [], "metadata": {}}
    asked = {"max_tokens": 300, "temperature": 0.5, "stop_sequences": ["END"], "service_tier": "auto"}
    found = convert(about | asked, "anthropic", "vllm")
    assert found.request == {"temperature": 0.5, "max_tokens": 300, "stop": ["END"]}
    assert (found.lost, set(found.carried)) == ((), set(about))
    back = convert({**found.request, "temperature": 1.5, "min_p": 0.1}, "vllm", "anthropic")
    assert back.request == {"max_tokens": 300, "stop_sequences": ["END"]}
    assert [str(each).partition(":")[0] for each in back.lost] == [
        "temperature = 1.5 cannot be said",
        "min_p = 0.1 cannot be said",
    ]


def test_an_order_is_told_where_two_stages_that_are_on_change_places() -> None:
    request = {"temperature": 0.7, "min_p": 0.1, "top_p": 1.0, "top_k": 0}
    assert changes(request, "vllm", "llamacpp") == [
        ("order of the filters", "temperature, min_p", "min_p, temperature")
    ]
    assert changes({**request, "temperature": 1.0}, "vllm", "llamacpp") == []
    penalties = {"frequency_penalty": 0.5, "repetition_penalty": 1.1}
    assert ("order of what changes logits", "frequency, repetition", "repetition, frequency") in changes(
        penalties, "sglang", "vllm"
    )


def test_a_greedy_request_has_no_filters_to_differ_in() -> None:
    assert changes({"temperature": 0, "top_k": 3, "top_p": 0.5}, "sglang", "vllm") == []
    greedy = SamplingParams(temperature=0, xtc_probability=1.0, semantics="llamacpp")
    assert active_stages(greedy) == {"xtc", "temperature"}


def test_other_presets_of_an_engine_can_be_meant() -> None:
    found = convert({"top_p": 0.5}, "sglang", "vllm", source_semantics="sglang-pytorch", target_semantics="vllm-v1")
    assert (found.before.semantics, found.after.semantics) == ("sglang-pytorch", "vllm-v1")
    assert [each.what for each in found.changes] == ["`top_p` keeps a token while the mass before it is"]
    with pytest.raises(ParamsError, match="repetition_penalty"):
        convert({"repetition_penalty": 1.5}, "vllm", "sglang", target_semantics="flashinfer")


VALUES: dict[str, list[Any]] = {
    "temperature": [0.0, 0.5, 1.0, 2.0],
    "top_k": [0, 1, 2, 4],
    "top_p": [1.0, 0.5, 0.625, 0.9],
    "min_p": [0.0, 0.25, 0.5],
    "repetition_penalty": [1.0, 1.5],
    "frequency_penalty": [0.0, 0.5],
    "presence_penalty": [0.0, 0.5],
    "logit_bias": [None, {1: 0.5}],
}
LOGITS = st.lists(st.sampled_from([-1.0, 0.0, 0.5, 0.6931472, 1.0, 2.0]), min_size=6, max_size=6)


@tries(300)
@given(
    fields=st.fixed_dictionaries({name: st.sampled_from(values) for name, values in VALUES.items()}),
    logits=LOGITS,
    pair=st.tuples(st.sampled_from(sorted(PRESETS)), st.sampled_from(sorted(PRESETS))),
    prompt=st.lists(st.integers(0, 5), max_size=3),
    output=st.lists(st.integers(0, 5), max_size=3),
)
def test_where_no_change_is_told_the_law_is_the_same(
    fields: dict[str, Any], logits: list[float], pair: tuple[str, str], prompt: list[int], output: list[int]
) -> None:
    try:
        before, after = (SamplingParams(**fields, semantics=name) for name in pair)
    except ParamsError:
        return
    if meaning_changes(before, after):
        return
    change = law_change(np.array(logits, np.float32), before, after, history=[(prompt, output)])
    assert change.total_variation.tolist() == [0.0]


def worked_out_by_hand() -> list[tuple[str, str, Vector, Vector]]:
    """Pairs of the vectors that show how engines differ: the same row under two presets, with two laws."""
    rows: dict[str, list[Vector]] = {}
    for vector in read_vectors(topics=["by_hand"]):
        row = {**vector.request, "id": "", "params": {**vector.data["params"], "semantics": ""}}
        rows.setdefault(json.dumps(row, sort_keys=True), []).append(vector)
    return [
        (first.preset, second.preset, first, second)
        for same in rows.values()
        for first in same
        for second in same
        if first.data.get("law") != second.data.get("law") and "mask" not in first.data
    ]


@pytest.mark.parametrize(
    ("first", "second", "before", "after"), worked_out_by_hand(), ids=lambda value: getattr(value, "id", value)
)
def test_every_difference_that_was_worked_out_by_hand_is_told(
    first: str, second: str, before: Vector, after: Vector
) -> None:
    names = {"semantics": first}, {"semantics": second}
    one, other = (
        SamplingParams.from_dict({**vector.data["params"], **name})
        for vector, name in zip((before, after), names, strict=True)
    )
    assert meaning_changes(one, other) != ()


def test_there_are_differences_worked_out_by_hand() -> None:
    assert len(worked_out_by_hand()) > 50


@pytest.mark.parametrize("option", ["top_k_ties", "top_p_rule", "top_p_scope", "min_p_rule", "repetition_history"])
def test_an_option_that_is_not_told_is_noticed(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pairs above fail once an option has no words."""
    monkeypatch.setattr("tirage.dialects.meaning.OPTIONS", {k: v for k, v in OPTIONS.items() if k != option})
    silent = [
        (before.id, after.id)
        for first, second, before, after in worked_out_by_hand()
        if not meaning_changes(*(SamplingParams.from_dict(vector.data["params"]) for vector in (before, after)))
    ]
    assert silent


# --- the law -----------------------------------------------------------------------------------------------------


def test_the_change_of_the_law_is_that_of_the_two_laws() -> None:
    found = convert(REQUEST, "sglang", "vllm")
    rows = np.stack([FIVE, FIVE[::-1]])
    change = found.law_change(rows, history=[([0, 1], []), ([], [4])])
    laws = [tirage.law(rows, params, history=[([0, 1], []), ([], [4])]) for params in (found.before, found.after)]
    assert np.array_equal(change.before, laws[0])
    assert np.array_equal(change.after, laws[1])
    by_hand = [sum(abs(p - q) for p, q in zip(*pair, strict=True)) / 2 for pair in zip(*laws, strict=True)]
    assert change.total_variation.tolist() == pytest.approx(by_hand)
    for row in range(2):
        assert change.gained(row) == [t for t in range(5) if laws[1][row, t] > 0 == laws[0][row, t]]
        assert set(change.lost(row)) == {t for t in range(5) if laws[0][row, t] > 0 == laws[1][row, t]}
    assert change.to_dict()[0] == {"total_variation": by_hand[0], "gained": [], "lost": [1]}


def test_tokens_gained_and_lost_come_the_likeliest_first() -> None:
    loose, tight = SamplingParams(), SamplingParams(top_k=1)
    change = law_change(FIVE, loose, tight)
    assert change.lost(0) == [1, 2, 3, 4]
    assert change.gained(0) == []
    assert law_change(FIVE, tight, loose).gained(0) == [1, 2, 3, 4]
    assert change.total_variation[0] == pytest.approx(0.6)
    [line] = change.lines()
    assert line == "row 0: total variation 0.600000, no token gained, 4 lost: 1 (0.2), 2 (0.2), 3 (0.15), 4 (0.05)"


def test_a_row_that_only_one_of_them_draws_has_changed_wholly() -> None:
    bad = np.full(3, -np.inf, np.float32)
    assert law_change(bad, SamplingParams(), SamplingParams(top_k=1)).total_variation.tolist() == [0.0]
    banned = SamplingParams(allowed_token_ids=[0])
    row = np.array([-np.inf, 0, 0], np.float32)
    assert law_change(row, SamplingParams(), banned).total_variation.tolist() == [1.0]


def test_words_and_constraints_need_no_tokenizer_for_the_law() -> None:
    found = convert(
        {"bad_words": ["x"], "temperature": 0.5, "structured_outputs": {"regex": "a+"}}, "vllm", "fastdeploy"
    )
    assert found.law_change(FIVE).total_variation.tolist() == [0.0]
    with pytest.raises(ParamsError, match=r"logits must have the shape \[V\] or \[B, V\], got \[1, 1, 5\]"):
        found.law_change(FIVE[None, None])


# --- bodies ------------------------------------------------------------------------------------------------------


def test_a_whole_body_keeps_what_is_no_sampling_parameter() -> None:
    found = convert({"text": "hello", "stream": True, "sampling_params": {"temperature": 0.5}}, "sglang", "openai")
    assert found.carried == ("text", "stream")
    assert found.request == {"temperature": 0.5, "max_completion_tokens": 128}
    chat = convert({"model": "m", "messages": [], "temperature": 0.5, "max_tokens": 7}, "openai", "sglang")
    assert chat.carried == ("model", "messages")
    assert chat.request == {"temperature": 0.5, "max_new_tokens": 7}


def test_what_the_source_refuses_is_refused_with_its_name() -> None:
    with pytest.raises(DialectError, match="SGLang field must be a known name, got 'temprature'"):
        convert({"temprature": 0.5}, "sglang", "vllm")
    with pytest.raises(DialectError, match="SGLang must be a mapping of fields, got 3"):
        convert(3, "sglang", "vllm")  # pyright: ignore[reportArgumentType]
    with pytest.raises(DialectError, match="return_logprob must be left out beside sampling_params"):
        convert({"return_logprob": True, "sampling_params": {}}, "sglang", "vllm")
    with pytest.raises(ParamsError, match=r"source must be one of sglang, .*, got 'sglan'; did you mean 'sglang'"):
        convert({}, "sglan", "vllm")
    with pytest.raises(ParamsError, match="target must be one of"):
        convert({}, "sglang", "vlm")


# --- the command -------------------------------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_:
        main(["convert", *arguments])
    return int(exit_.value.code or 0), *capsys.readouterr()


@pytest.fixture
def request_file(tmp_path: Path) -> str:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(REQUEST), encoding="utf-8")
    return str(path)


def test_the_command_prints_the_request_alone_and_tells_the_rest(
    capsys: pytest.CaptureFixture[str], request_file: str, tmp_path: Path
) -> None:
    logits = tmp_path / "logits.npy"
    np.save(logits, FIVE)
    arguments = [request_file, "--from", "sglang", "--to", "vllm", "--logits", str(logits), "--prompt-ids", "0,1"]
    code, out, err = run(capsys, *arguments)
    found = convert(REQUEST, "sglang", "vllm")
    assert (code, json.loads(out)) == (0, found.request)
    lines = err.splitlines()
    assert lines[: len(found.lines())] == found.lines()
    assert lines[-1] == "row 0: total variation 0.213138, no token gained, 1 lost: 1 (0.2131)"
    assert "  stop_regex = 'a+' cannot be said: vLLM has no such field; there it is None" in lines
    code, out, err = run(capsys, *arguments, "--json")
    law = found.law_change(FIVE, history=[([0, 1], [])])
    assert (code, err, json.loads(out)) == (0, "", {**found.to_dict(), "law": law.to_dict()})


def test_the_command_reads_stdin_and_is_strict_on_demand(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, request_file: str
) -> None:
    assert run(capsys, request_file, "--from", "sglang", "--to", "vllm", "--strict", "--quiet")[::2] == (1, "")
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"temperature": 0.5}'))
    code, out, err = run(capsys, "-", "--from", "vllm", "--to", "mlx", "--strict")
    assert (code, json.loads(out)) == (0, {"max_tokens": 16, "temp": 0.5})
    assert "  nothing that these parameters read" in err.splitlines()


def spoiled_array(folder: Path, header: str) -> Path:
    """A .npy file with this text for its header, and no data."""
    path, text = folder / f"{len(header)}.npy", header.encode()
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(32))
    return path


def test_the_command_refuses_what_it_cannot_read(
    capsys: pytest.CaptureFixture[str], request_file: str, tmp_path: Path
) -> None:
    (tmp_path / "no.json").write_text("{", encoding="utf-8")
    (tmp_path / "list.json").write_text("[1]", encoding="utf-8")
    (tmp_path / "no.npy").write_bytes(b"no array")
    (tmp_path / "cut.npy").write_bytes(b"PK\x03\x04 of a .npz file that is cut off")
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    both = ["--from", "sglang", "--to", "vllm"]
    for arguments, message in (
        ([str(tmp_path / "none.json"), *both], "REQUEST must be readable"),
        ([str(tmp_path / "no.json"), *both], "REQUEST must be JSON"),
        ([request_file, *both, "--logits", str(tmp_path / "no.npy")], "--logits must be a .npy file"),
        ([request_file, *both, "--logits", str(tmp_path / "none.npy")], "--logits must be a .npy file"),
        ([request_file, *both, "--logits", str(tmp_path / "objects.npy")], "--logits must be a .npy file"),
        *(
            ([request_file, *both, "--logits", str(spoiled_array(tmp_path, text))], "--logits must be a .npy file")
            for text in (
                "{'descr': (",
                "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000, 8)}",
                "{'descr': '<f4', 'fortran_order': False, 'shape': (True, 8)}",
            )
        ),
        ([request_file, *both, "--logits", str(tmp_path / "cut.npy")], "--logits must be a .npy file of one array"),
        ([request_file, *both, "--prompt-ids", "1"], "--prompt-ids and --output-ids must go with --logits"),
        ([str(tmp_path / "list.json"), *both], "REQUEST must be a JSON object, got [1]"),
        ([request_file, "--from", "sglng", "--to", "vllm"], "--from must be one of"),
        ([request_file, "--from", "sglng", "--to", "vllm"], "did you mean 'sglang'"),
        ([request_file, "--from", "sglang", "--to", "vlm"], "--to must be one of"),
        ([request_file, *both, "--from-semantics", "x"], "--from-semantics must name a preset"),
        ([request_file, *both, "--to-semantics", "vllm@0.1"], "--to-semantics 'vllm' is known in version"),
        ([request_file, "--from", "vllm", "--to", "sglang"], "vLLM field must be a known name, got 'max_new_tokens'"),
    ):
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (2, ""), arguments
        assert message in err
