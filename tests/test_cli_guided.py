"""Constraints on the command line: every field an option, text or file, and mistakes in one line."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tirage.cli import main
from tirage.cli.guided import NAMES, OPTIONS, parse_guided
from tirage.fields.record import specs
from tirage.params import GuidedDecodingParams

Run = Callable[..., tuple[int, str, str]]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TAG = {"type": "structural_tag", "format": {"type": "tag", "begin": "<", "end": ">", "content": {
    "type": "regex", "pattern": "[a-z]{1,4}"}}}  # fmt: skip


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def call(command: str, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as exit_:
            main([command, *(["The fox: "] if command == "generate" else []), *arguments, "--seed", "3"])
        out, err = capsys.readouterr()
        return int(exit_.value.code or 0), out, err

    return call


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (["--regex", r"[ab]{3}\d"], r"[ab]{3}\d"),
        (["--choice", "red", "--choice", "deep blue"], "red|deep blue"),
        (["--json-object", "--close-grammar"], r"(?s)\{.*\}"),
        (["--grammar", 'root ::= "(" [xy] ")"'], r"\([xy]\)"),
        (["--grammar", 'start: "(" /[xy]/ ")"'], r"\([xy]\)"),
        (["--structural-tag", json.dumps(TAG)], "<[a-z]{1,4}>"),
        (
            ["--json-schema", '{"enum": [1, "a"]}', "--guided-backend", "llguidance", "--disable-fallback"],
            r'1(\.0)?|"a"',
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_text_satisfies_what_is_asked_for(run: Run, arguments: list[str], pattern: str) -> None:
    code, out, err = run("generate", *arguments)
    assert code == 0, err
    assert re.fullmatch(pattern, out[:-1])
    assert "constraint" not in err


@pytest.mark.parametrize("from_file", [False, True])
def test_a_schema_is_text_or_a_file(run: Run, tmp_path: Path, from_file: bool) -> None:
    text = json.dumps(SCHEMA)
    (tmp_path / "person.json").write_text(text, encoding="utf-8")
    given = str(tmp_path / "person.json") if from_file else text
    _, out, err = run("generate", "--json-schema", given, "--disable-any-whitespace", "--close-grammar")
    assert set(json.loads(out)) == {"name", "age"}
    assert not re.search(r"\s[:{,]|[:{,]\s", re.sub('"[^"]*"', '""', out[:-1]))
    assert "| stop: " in err


def test_a_grammar_is_text_or_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "g.gbnf").write_text('root ::= "yes" | "no"\n', encoding="utf-8")
    assert run("generate", "--grammar", str(tmp_path / "g.gbnf"))[1] in {"yes\n", "no\n"}


def test_a_text_that_was_cut_is_said_to_break_its_constraint(run: Run) -> None:
    code, _, err = run("generate", "--regex", "[a-z]{50}", "--max-tokens", "3")
    assert code == 0
    assert err.endswith("| length: max_tokens | the text does not satisfy its constraint\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--regex", "("], "error: regex must be a valid pattern, got '(': missing ), unterminated subpattern at "),
        (["--regex", "a", "--choice", "b"], "error: guided decoding must have exactly one of json, regex, "),
        (["--disable-fallback"], "error: guided decoding must have exactly one of json, regex, "),
        (["--json-schema", "{"], "error: schema must be valid JSON: "),
        (["--json-schema", '{"not": {}}'], "error: schema cannot be enforced: no value satisfies it"),
        (
            ["--json-schema", "nowhere.json"],
            "error: json_schema must be text or the name of a file, got 'nowhere.json'",
        ),
        (["--json-schema", "."], "error: json_schema must be text or the name of a file, got '.': Is a directory"),
        (["--json-schema", "a\0b"], "error: json_schema must be text or the name of a file, got "),
        (["--grammar", "x" * 9999], "error: grammar must be text or the name of a file, got "),
        (["--grammar", "root ::= ("], "error: grammar must be valid GBNF: "),
        (["--grammar", "start: ("], "error: grammar cannot be enforced: line 1, column "),
        (["--structural-tag", "{}"], "error: structural_tag must be an object with "),
        (["--structural-tag", "{x"], "error: structural_tag must be valid JSON: "),
        (["--regex", "a", "--guided-backend", "outlines"], "error: backend must be one of "),
        (["--regex", "a", "--whitespace-pattern", " "], "error: whitespace_pattern must go with a JSON mode"),
        (["--close-grammar"], "error: close_grammar must go with guided_decoding, "),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_constraint_ends_with_status_2_and_one_line(run: Run, arguments: list[str], message: str) -> None:
    code, out, err = run("generate", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(message), err
    assert err.count("\n") == 1


def test_a_file_that_is_no_text_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe{")
    code, _, err = run("generate", "--json-schema", str(tmp_path / "bytes"))
    assert code == 2
    assert err.endswith(": it is not UTF-8\n")


def test_a_chat_follows_the_constraint_in_every_reply(run: Run) -> None:
    code, out, _ = run("chat", "--choice", "yes", "--choice", "no", "--quiet", stdin="one\ntwo\n")
    assert code == 0
    assert set(out.split()) <= {"yes", "no"}
    assert len(out.split()) == 2


def test_a_chat_survives_a_constraint_that_cannot_be_enforced(run: Run) -> None:
    code, out, err = run("chat", "--json-schema", '{"not": {}}', "--quiet", stdin="one\n")
    assert (code, out) == (0, "")
    assert "error: schema cannot be enforced: no value satisfies it" in err


def test_an_explanation_shows_what_the_constraint_leaves(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["explain", "The fox: ", "--choice", "xylophone", "--json", "--seed", "1"])
    assert not exit_.value.code
    drawn = json.loads(capsys.readouterr().out)
    assert drawn["token"]["text"]
    assert "xylophone".startswith(drawn["token"]["text"])
    assert drawn["support_size"] < 9


def test_every_field_has_an_option() -> None:
    assert {NAMES.get(name, name) for name in specs(GuidedDecodingParams)} - set(OPTIONS) == {"backend_was_auto"}
    given = {"json_schema": "{}", "whitespace_pattern": " ?", "disable_additional_properties": True,
             "disable_fallback": True, "guided_backend": "xgrammar", "disable_any_whitespace": False}  # fmt: skip
    assert parse_guided(dict.fromkeys(OPTIONS) | given) == GuidedDecodingParams(
        json="{}",
        whitespace_pattern=" ?",
        disable_additional_properties=True,
        disable_fallback=True,
        backend="xgrammar",
    )
    assert parse_guided(dict.fromkeys(OPTIONS)) is None


@pytest.mark.slow
def test_the_command_itself_takes_constraints() -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tirage", "generate", "The fox: ", "--regex", r"\d{2}", "--seed", "1", "--quiet"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, check=True)
    assert re.fullmatch(r"\d{2}\n", done.stdout)
    assert done.stderr == ""
