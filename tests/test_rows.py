"""The tables of what users of other systems rely on, row by row, with the tests that show it or show its refusal."""

from __future__ import annotations

import ast
import csv
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
REQUIRED = {f"E-{number:03}" for number in range(1, 41)} | {"E-030b"}
"""The parameter classes of EasyDeL's `sampling_params` module: fields, methods, and their pytree form."""
REQUIRED |= {f"M{number:02}" for n, m in ((1, 4), (10, 15), (20, 33), (40, 42), (50, 61)) for number in range(n, m + 1)}
"""MindIE's `sample`: its call, arguments, parameters, results, and the defects that it must not share."""
GEMMA = ((1, 31), (40, 45), (50, 53), (60, 65), (70, 73), (75, 75), (80, 80), (85, 90))
REQUIRED |= {f"G-{number:03}" for n, m in GEMMA for number in range(n, m + 1)} | {"G-044b"}
"""Gemma's `gm.text`: samplers, chats and sampling methods."""

REQUIRED |= {"S80", "S81", "S82", "S83", "S84", "F17", "F74"}
"""Guided decoding as SGLang and FastDeploy have it, as far as it is not a matter of their servers."""
REQUIRED |= {"T11", *(f"T{number}" for number in range(13, 21))}
"""Hostile constraints: what has brought other servers down."""

REQUIRED |= {"S100", "S101", "S102", "S103", "S104", "X15", "X17", "T5", "T48"}
"""OpenAI's routes as SGLang serves them, and what their requests may not do."""
FASTDEPLOY = ((1, 20), (21, 23), (30, 40), (50, 58), (60, 67), (70, 75))
REQUIRED |= {f"F{number:02}" for n, m in FASTDEPLOY for number in range(n, m + 1)}
"""FastDeploy's parameters, sampling methods, bad words, stops and answers."""
SGLANG = ((10, 57), (60, 66), (70, 72), (85, 87), (90, 90))
REQUIRED |= {f"S{number}" for n, m in SGLANG for number in range(n, m + 1)} | {f"S4{letter}" for letter in "ABCDEF"}
"""SGLang's `/generate`: fields, parameters, log-probabilities, stops, answers, custom processors, beams."""

SERVER = ((1, 5), (73, 76))
REQUIRED |= {f"S{number:02}" for n, m in SERVER for number in range(n, m + 1)} | {"X08", "X09", "X10", "X14"}
"""What stands around the routes of SGLang: health, errors, aborts; and the rules that all routes share."""

REQUIRED |= {f"T{number}" for number in range(1, 52)} | {"X07", "X20"}
"""Hostile input, faults and load."""

REQUIRED |= {f"D{number}" for number in range(1, 11)}
"""Where presets meant something else than their engines."""


def read(text: str) -> dict[str, list[str]]:
    """Row -> test ids, from the text of a table; a row given twice is an error."""
    lines = list(csv.DictReader(text.splitlines()))
    assert len({line["row"] for line in lines}) == len(lines), "a row is given twice"
    return {line["row"]: [one.strip() for one in line["evidence"].split(";")] for line in lines}


ROWS = read((TESTS / "rows.csv").read_text(encoding="utf-8"))


@cache
def known_tests(name: str) -> dict[str, ast.FunctionDef]:
    """The tests of a file by the part of their id after the file name."""
    found: dict[str, ast.FunctionDef] = {}
    for node in ast.parse((TESTS / name).read_text(encoding="utf-8")).body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        tests = [m for m in members if isinstance(m, ast.FunctionDef) and m.name.startswith("test_")]
        found |= {prefix + test.name: test for test in tests}
    return found


def exists(evidence: str) -> bool:
    shape = re.fullmatch(r"tests/(test_\w+\.py)::(\w+(?:::\w+)?)", evidence)
    return shape is not None and (TESTS / shape[1]).is_file() and shape[2] in known_tests(shape[1])


def test_no_row_is_missing() -> None:
    assert set(ROWS) >= REQUIRED


@pytest.mark.parametrize("row", ROWS)
def test_the_evidence_of_a_row_exists(row: str) -> None:
    assert [evidence for evidence in ROWS[row] if not exists(evidence)] == []


def test_the_check_can_fail() -> None:
    assert exists("tests/test_rows.py::test_the_check_can_fail")
    for wrong in (
        "",
        "tests/test_rows.py",
        "tests/test_rows.py::no_such_test",
        "tests/test_rows.py::exists",
        "tests/test_nowhere.py::test_x",
        "test_rows.py::test_the_check_can_fail",
    ):
        assert not exists(wrong)
    with pytest.raises(AssertionError, match="twice"):
        read("row,evidence\nE-001,a\nE-001,b\n")
