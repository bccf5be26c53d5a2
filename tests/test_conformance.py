"""The golden vectors asked of programs: one written from SPEC.md alone, and programs that are broken."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tirage.cli import main
from tirage.conformance import (
    ConformanceReport,
    SamplerProgram,
    Vector,
    check_program,
    differences,
    read_vectors,
    schema,
)
from tirage.conformance.report import MOST_FAILURES, judged
from tirage.conformance.vectors import FOLDER
from tirage.errors import ParamsError

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "from_the_spec.py"
VECTORS = read_vectors()
SCHEMA = jsonschema.Draft202012Validator(schema())


def part(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": schema()["$defs"]})


def right(vector: Vector) -> dict[str, Any]:
    """The answer that says what the vector says."""
    return {"id": vector.id, **vector.outcome}


# --- the files ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_vector_is_as_the_schema_says_and_so_is_its_request() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    assert [vector.id for vector in VECTORS if not SCHEMA.is_valid(vector.data)] == []
    assert [vector.id for vector in VECTORS if not part("request").is_valid(vector.request)] == []
    assert [vector.id for vector in VECTORS if not part("answer").is_valid(right(vector))] == []
    assert len(VECTORS) > 1000
    assert len({vector.id for vector in VECTORS}) == len(VECTORS)


@pytest.mark.parametrize(
    "change",
    [
        {"rule": "top-p"},
        {"logits": ["1.5"]},
        {"token": -2},
        {"new": 1},
        {"mask": [2]},
        {"seed": 2**63},
        {"weights": {"a": 1}},
        {"logprob": None},
    ],
)
def test_the_schema_refuses_what_no_vector_may_say(change: dict[str, Any]) -> None:
    data = dict(read_vectors(topics=["draws"])[0].data)
    assert SCHEMA.is_valid(data)
    assert not SCHEMA.is_valid(data | change)


def test_a_vector_without_its_outcome_is_refused_unless_it_was_worked_out_by_hand() -> None:
    data = dict(read_vectors(topics=["draws"])[0].data)
    assert not SCHEMA.is_valid({name: value for name, value in data.items() if name != "W"})
    by_hand = dict(read_vectors(topics=["by_hand"])[0].data)
    assert not SCHEMA.is_valid({name: value for name, value in by_hand.items() if name != "why"})


def test_vectors_are_chosen_by_file_rule_and_preset() -> None:
    chosen = read_vectors(topics=["by_hand", "presets"], rules=["S-O2", "S-P6"], presets=["sglang"])
    assert {vector.topic for vector in chosen} == {"by_hand", "presets"}
    assert {vector.rule for vector in chosen} == {"S-O2", "S-P6"}
    assert {vector.preset for vector in chosen} == {"sglang"}
    with pytest.raises(ParamsError, match=r"rule must be one of .*, got 'S-O99'"):
        read_vectors(rules=["S-O99"])
    with pytest.raises(ParamsError, match=r"topic must be one of .*; did you mean 'draws'"):
        read_vectors(topics=["draw"])


def test_a_folder_that_holds_no_vectors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParamsError, match="vectors must be a folder of"):
        read_vectors(tmp_path)
    for line in ("{", "[]", '{"id": "a", "rule": "S-O1"}', '{"id": "a", "logits": ["x"], "params": {}}', "\udc80"):
        (tmp_path / "own.jsonl").write_bytes(line.encode("utf-8", "surrogateescape"))
        with pytest.raises(ParamsError, match="vectors must be"):
            read_vectors(tmp_path)
    (tmp_path / "own.jsonl").unlink()
    (tmp_path / "own.jsonl").symlink_to("/dev/zero")
    with pytest.raises(ParamsError, match=r"vectors must be regular files, got .*own\.jsonl"):
        read_vectors(tmp_path)


def test_a_request_leaves_nothing_out() -> None:
    request = next(vector.request for vector in VECTORS if vector.id == "masks/min_tokens")
    assert request["bits"][:2] == ["3fa00000", "bf000000"]
    assert (request["step"], request["seed"], request["sample_index"], request["mask"]) == (1, 0, 0, None)
    assert request["params"]["semantics"] == "canonical"


# --- comparing ---------------------------------------------------------------------------------------------------


def test_the_vectors_own_answers_pass() -> None:
    assert {judged(vector, right(vector)).kind for vector in VECTORS} == {"passed"}


WRONG: dict[str, Any] = {
    "status": 1,
    "token": 1,
    "support": [0],
    "weights": {"0": 1},
    "W": 3,
    "sampled_logprob": -0.5,
    "logprob": "nan",
    "rank": 7,
    "top": [[0, 0.0]],
    "given": [0.0],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("kind", ["another", "text", "list", "bool", "mapping"])
def test_every_field_of_an_answer_is_compared(name: str, kind: str) -> None:
    vector = read_vectors(topics=["draws"])[0]
    value = {"another": WRONG[name], "text": "x", "list": [[]], "bool": True, "mapping": {"x": None}}[kind]
    found = differences(vector, right(vector) | {name: value})
    assert [each.field for each in found] == [name]
    assert judged(vector, right(vector) | {name: value}).kind == "wrong"


def test_exact_numbers_are_compared_in_every_bit_and_those_by_hand_nearly() -> None:
    vector = read_vectors(topics=["draws"])[0]
    known = float.fromhex(vector.data["logprob"])
    for same in (known, repr(known), known.hex(), known * (1 + 1e-9)):
        assert judged(vector, right(vector) | {"logprob": same}).kind == "passed"
    assert judged(vector, right(vector) | {"logprob": known * (1 + 2e-7)}).kind == "wrong"
    by_hand = next(v for v in VECTORS if v.id == "by_hand/nucleus")
    assert judged(by_hand, {"law": [0.6250004, 0.3749996, 0.0, 0.0]}).kind == "passed"
    assert judged(by_hand, {"law": [0.62501, 0.37499, 0.0, 0.0]}).kind == "wrong"
    assert judged(by_hand, {"law": [0.6249999, 0.375, 1e-7, 0.0]}).kind == "wrong", (
        "a token of the support is no rounding"
    )


def test_an_answer_must_say_something_that_the_vector_knows() -> None:
    vector = read_vectors(topics=["draws"])[0]
    for answer in ({}, {"status": 0}, {"token": 1, "status": None}, {"unsupported": ""}):
        assert judged(vector, answer).kind == "invalid"
    assert judged(vector, {"unsupported": "top_h"}).kind == "unsupported"
    assert judged(vector, {"status": 0, "token": vector.data["token"], "W": None, "more": 1}).kind == "passed"


def test_nothing_but_unsupported_is_no_success() -> None:
    assert not ConformanceReport([judged(VECTORS[0], {"unsupported": "all"})]).conforms
    assert not ConformanceReport().conforms
    assert ConformanceReport([
        judged(VECTORS[0], {"unsupported": "all"}),
        judged(VECTORS[0], right(VECTORS[0])),
    ]).conforms


def test_the_page_shows_a_request_its_answer_and_a_refusal() -> None:
    text = (ROOT / "docs" / "vectors.md").read_text(encoding="utf-8")
    request, answer, refusal = map(json.loads, re.findall(r"^```json\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    vector = next(vector for vector in VECTORS if vector.id == request["id"])
    assert request == vector.request
    assert judged(vector, answer).kind == "passed"
    assert judged(vector, refusal).kind == "unsupported"
    assert all(part("answer").is_valid(each) for each in (answer, refusal))
    assert all(f"`{topic}`" in text for topic in {vector.topic for vector in VECTORS})


# --- programs ----------------------------------------------------------------------------------------------------


def asked(source: str, tmp_path: Path, vectors: list[Vector], **limits: float) -> ConformanceReport:
    """The report on a Python program."""
    path = tmp_path / "program.py"
    path.write_text(source, encoding="utf-8")
    with SamplerProgram([sys.executable, str(path)], **limits) as program:
        return check_program(program, vectors)


def test_a_program_written_from_the_spec_alone_passes_every_vector_that_it_supports() -> None:
    assert "import tirage" not in EXAMPLE.read_text(encoding="utf-8")
    with SamplerProgram([sys.executable, str(EXAMPLE)]) as program:
        report = check_program(program, VECTORS)
    assert report.failures == []
    assert report.conforms
    assert report.counts["passed"] >= 248
    assert {"token", "status", "support", "weights", "W", "law"} == set(report.compared)
    passed = {rule for rule, counts in report.by_rule().items() if counts["passed"]}
    assert passed >= {"S-N2", "S-N3", "S-N4", "S-N5", "S-N6", "S-W7", "S-P2", "S-P5", "S-P6", "S-H1"}
    assert passed >= {f"S-O{n}" for n in (1, 2, 3)}


def test_it_takes_every_vector_of_the_rule_on_the_page_and_no_other() -> None:
    """docs/vectors.md: `canonical` or `openai`, with no parameters but these."""
    page = (ROOT / "docs" / "vectors.md").read_text(encoding="utf-8")
    listed = {*re.findall(r"`(\w+)`", page.partition("no parameter but ")[2].partition(".")[0])}
    with SamplerProgram([sys.executable, str(EXAMPLE)]) as program:
        taken = {verdict.id for verdict in check_program(program, VECTORS).verdicts if verdict.kind == "passed"}
    assert {"temperature", "top_k", "top_p", "min_p", "logit_bias"} <= listed
    assert taken == {
        vector.id
        for vector in read_vectors(presets=["canonical", "openai"])
        if set(vector.request["params"]) <= listed | {"semantics"}
    }


MISTAKES = {
    "S-O1": ('p["top_k"] or None', 'p["top_k"] + 1 if p["top_k"] else None'),
    "S-O2": ("before < bound", "before <= bound"),
    "S-O3": ("each <= floor(", "each < floor("),
    "S-W7": ("0x9E3779B9", "0x9E3779B8"),
    "S-H1": ("+ settled(bias[token])", "- settled(bias[token])"),
    "S-P2": ("bias.get(token) == -inf or ", ""),
    "S-P5": ('(ask["mask"] and not ask["mask"][token])', "False"),
    "S-N3": ("np.argsort(-x,", "np.argsort(x,"),
}


@pytest.mark.slow
@pytest.mark.parametrize("rule", MISTAKES)
def test_a_mistake_in_a_rule_is_named_by_vector_and_rule(rule: str, tmp_path: Path) -> None:
    before, after = MISTAKES[rule]
    source = EXAMPLE.read_text(encoding="utf-8")
    assert before in source
    report = asked(source.replace(before, after), tmp_path, read_vectors(rules=[rule]))
    assert not report.conforms
    assert rule == report.failures[0].rule
    assert str(report.failures[0]).startswith(f"wrong: {report.failures[0].id} (S-")


FEW = read_vectors(topics=["draws"])[:4]


def program(body: str) -> str:
    """A program that knows the right answers, and does `body` before each."""
    known = json.dumps({vector.id: right(vector) for vector in FEW})
    return f"""
import json, os, subprocess, sys, time
known = json.loads({known!r})
ids = list(known)
for line in sys.stdin:
    name = json.loads(line)["id"]
    answer = json.dumps(known[name])
    {body}
    print(answer, flush=True)
"""


def kinds(report: ConformanceReport) -> list[str]:
    return [verdict.kind for verdict in report.verdicts]


@pytest.mark.parametrize(
    ("body", "expected", "words"),
    [
        ("pass", ["passed"] * 4, ""),
        ("if name == ids[1]: sys.exit(3)", ["passed", "crashed", "passed", "passed"], "ended with status 3"),
        ("if name == ids[1]: os.abort()", ["passed", "crashed", "passed", "passed"], "ended with SIGABRT"),
        ("if name == ids[2]: 1 / 0", ["passed", "passed", "crashed", "passed"], "ZeroDivisionError: division by zero"),
        ("if name == ids[0]: time.sleep(9)", ["timed_out", "passed", "passed", "passed"], "no line within 1 s"),
        ("if name == ids[1]: print('hello')", ["passed", "invalid", "passed", "passed"], "a JSON object, got 'hello"),
        ("if name == ids[1]: answer = '[1]'", ["passed", "invalid", "passed", "passed"], "a JSON object, got '[1]"),
        (
            "if name == ids[1]: answer = '{}'",
            ["passed", "invalid", "passed", "passed"],
            "id must be that of the request",
        ),
        ("if name == ids[1]: answer = '[' * 9999", ["passed", "invalid", "passed", "passed"], "a JSON object"),
        ("if name == ids[3]: print(answer)", ["passed"] * 4, ""),
        (
            "if name == ids[1]: os.close(1); time.sleep(9)",
            ["passed", "crashed", "passed", "passed"],
            "closed its output",
        ),
    ],
)
def test_a_broken_program_fails_the_vector_that_it_broke_at_and_no_other(
    body: str, expected: list[str], words: str, tmp_path: Path
) -> None:
    report = asked(program(body), tmp_path, FEW, timeout_s=1.0, start_timeout_s=1.0)
    assert kinds(report) == expected
    assert all(words in verdict.reason for verdict in report.failures)
    assert report.conforms == (expected == ["passed"] * 4)


def test_a_program_that_never_answers_is_left_alone_after_some_failures(tmp_path: Path) -> None:
    report = asked("import sys; sys.exit('no licence')", tmp_path, VECTORS[:20])
    assert kinds(report) == ["crashed"] * MOST_FAILURES + ["not_asked"] * (20 - MOST_FAILURES)
    assert "its stderr ends with 'no licence'" in report.failures[0].reason
    assert not report.conforms


def test_a_flood_without_an_end_of_line_is_cut(tmp_path: Path) -> None:
    flood = "import sys\nfor line in sys.stdin:\n    while True: sys.stdout.write('x' * 65536)"
    report = asked(flood, tmp_path, FEW[:1], timeout_s=20.0)
    assert kinds(report) == ["invalid"]


@pytest.mark.skipif(os.name != "posix", reason="process groups are POSIX's")
def test_what_a_program_started_ends_with_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    body = f"child = subprocess.Popen(['sleep', '60']); open({str(note)!r}, 'w').write(str(child.pid)); time.sleep(60)"
    report = asked(program(body), tmp_path, FEW[:1], timeout_s=1.0, start_timeout_s=1.0)
    assert kinds(report) == ["timed_out"]
    pid = int(note.read_text())
    for _ in range(100):
        status = Path(f"/proc/{pid}/stat")
        if not status.exists() or status.read_text().split()[2] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError("the child still runs")


def test_a_program_that_cannot_be_started_is_an_error_of_ours() -> None:
    for command, message in (
        (["no-such-program"], "the program must be one that starts, got 'no-such-program'"),
        ([], "nothing"),
    ):
        with pytest.raises(ParamsError, match=message), SamplerProgram(command) as running:
            running.ask(FEW[0].request)
    with pytest.raises(ParamsError, match="timeout_s must be a number of seconds > 0, got 0"):
        SamplerProgram(["true"], timeout_s=0)


# --- the command -------------------------------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The exit status, stdout and stderr of `tirage conformance`."""
    with pytest.raises(SystemExit) as exit_:
        main(["conformance", *arguments])
    printed = capsys.readouterr()
    return int(exit_.value.code or 0), printed.out, printed.err


def test_the_command_reports_by_rule_and_ends_with_status_0(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--rule", "S-O3", "--", sys.executable, str(EXAMPLE))
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "S-O3    37 passed, 7 unsupported",
        "compared: law 1, status 36, token 36, support 36, weights 36, W 36",
        "44 vectors: 37 passed, 7 unsupported",
    ]


def test_the_command_ends_with_status_1_for_a_wrong_program(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(EXAMPLE.read_text(encoding="utf-8").replace(*MISTAKES["S-O2"]), encoding="utf-8")
    code, out, err = run(capsys, "--topic", "by_hand", "--preset", "canonical", "--", sys.executable, str(path))
    assert code == 1
    assert out.startswith("wrong: by_hand/")
    assert "(S-O2): law must be [" in out
    assert err == "it does not conform\n"
    code, out, _ = run(capsys, "--topic", "by_hand", "--json", "--quiet", "--", sys.executable, str(path))
    assert code == 1
    report = json.loads(out)
    assert not report["conforms"]
    assert report["counts"]["wrong"] == report["rules"]["S-O2"]["wrong"]
    wrong = [verdict for verdict in report["verdicts"] if verdict["kind"] == "wrong"]
    assert {each["field"] for verdict in wrong for each in verdict["differences"]} >= {"law"}


def test_the_command_ends_with_status_1_where_nothing_was_tested(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "--rule", "S-O7", "--", sys.executable, str(EXAMPLE))
    assert (code, err) == (1, "nothing was tested: it supports none of the vectors\n")


def test_the_command_refuses_what_it_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        ([], "PROGRAM must be a command after --, got nothing"),
        (["--rule", "S-O98", "--", "true"], "rule must be one of"),
        (["--timeout", "0", "--", "true"], "timeout_s must be a number of seconds > 0"),
        (["--vectors", "no-such-folder", "--", "true"], "vectors must be a folder of .jsonl files"),
        (["--print", "--print-schema"], "--print must not go with --print-schema; give one"),
        (["--print", "--print-requests"], "--print must not go with --print-requests; give one"),
        (["--", "no-such-program"], "the program must be one that starts"),
    ):
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (2, "")
        assert message in err


def test_the_command_prints_vectors_requests_and_schema(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--print-schema")
    assert json.loads(out) == schema()
    _, out, _ = run(capsys, "--topic", "xtc", "--print")
    assert out.splitlines() == (FOLDER / "xtc.jsonl").read_text(encoding="utf-8").splitlines()
    _, out, _ = run(capsys, "--topic", "xtc", "--print-requests")
    assert [json.loads(line) for line in out.splitlines()] == [v.request for v in read_vectors(topics=["xtc"])]
