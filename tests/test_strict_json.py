"""Bodies as values: what is JSON arrives unchanged, and everything else is a ParamsError."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tries import tries

from tirage.errors import ParamsError
from tirage.server.strict_json import MAX_DEPTH, MAX_PARTS, MAX_VALUES, parse, parse_object

BAD: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "Expecting value at line 1, column 1"),
    "spaces": (b" \n", "Expecting value"),
    "cut short": (b'{"a": ', "Expecting value at line 1, column 7"),
    "trailing": (b"{} {}", "Extra data"),
    "trailing comma": (b"[1,]", "Illegal trailing comma|Expecting value"),
    "single quotes": (b"{'a': 1}", "property name"),
    "comment": (b"[1] // one", "Extra data"),
    "NaN": (b'{"temperature": NaN}', "got NaN; use null or a finite number"),
    "Infinity": (b"[Infinity]", "got Infinity"),
    "-Infinity": (b"-Infinity", "got -Infinity"),
    "1e999": (b"[1e999]", "fit binary64, got 1e999"),
    "-1e999": (b"[-1e999]", "fit binary64, got -1e999"),
    "leading zero": (b"[01]", "Expecting|Extra"),
    "hexadecimal": (b"[0x10]", "Expecting|Extra"),
    "long integer": (b"[" + b"9" * 4301 + b"]", "at most 4300 digits, got 4301"),
    "very long integer": (b"-" + b"1" * 100_000, "at most 4300 digits"),
    "two keys": (b'{"seed": 1, "seed": 2}', "name each key once, got 'seed' twice"),
    "two keys, spelled apart": (b'[{"a": {"\\u0061": 1, "a": 2}}]', "got 'a' twice"),
    "control character": (b'["\x01"]', "Invalid control character"),
    "bad escape": (b'["\\x41"]', "Invalid \\\\escape"),
    "high surrogate": (b'["\\ud83d"]', "lone surrogates, got .ud83d at position 2"),
    "low surrogate": (b'["\\uDE00"]', "lone surrogates, got .uDE00"),
    "surrogates swapped": (b'["\\ude00\\ud83d"]', "lone surrogates, got .ude00"),
    "high, high, low": (b'["\\ud83d\\ud83d\\ude00"]', "lone surrogates, got .ud83d at position 2"),
    "high surrogate in a key": (b'{"\\ud800": 1}', "lone surrogates"),
    "high surrogate after a backslash": (b'["\\\\\\ud800"]', "lone surrogates"),
    "surrogate as bytes": (b'["\xed\xa0\x80"]', "UTF-8, got byte 0xed at position 2"),
    "overlong": (b'["\xc0\xaf"]', "UTF-8, got byte 0xc0"),
    "beyond Unicode": (b'["\xf4\x90\x80\x80"]', "UTF-8"),
    "cut character": (b'["\xf0\x9f"]', "UTF-8"),
    "Latin-1": ('["é"]'.encode("latin-1"), "UTF-8, got byte 0xe9"),
    "UTF-16": ("{}".encode("utf-16-le"), "property name|Expecting"),
    "UTF-16 with mark": ("{}".encode("utf-16"), "UTF-8"),
    "byte order mark": (b"\xef\xbb\xbf{}", "byte order mark"),
    "deep arrays": (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "at most 64 levels deep"),
    "deep objects": (b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), "at most 64 levels deep"),
    "deep behind a string": (b'["\\"[",' + b"[" * MAX_DEPTH, "at most 64 levels deep"),
    "very deep": (b"[" * 1_000_000, "at most 64 levels deep"),
    "many arrays": (b"[" + b"[]," * MAX_PARTS + b"1]", f"at most {MAX_PARTS} objects"),
    "many keys": (b"{" + b",".join(b'"%d":1' % i for i in range(MAX_PARTS)) + b"}", "objects, arrays and keys"),
    "quotes that never end": (b'"' + b'\\"' * 100_000, "Unterminated string"),
}  # fmt: skip
GOOD: dict[str, tuple[bytes, Any]] = {
    "white space": (b' \t\r\n{"a" : [ 1 ] } \n', {"a": [1]}),
    "numbers": (b"[0, -0, 1.5, -2e3, 1E-400]", [0, 0, 1.5, -2000.0, 0.0]),
    "beyond int64": (b"[9223372036854775808, 1180591620717411303424]", [2**63, 2**70]),
    "constants": (b"[true, false, null]", [True, False, None]),
    "pair": (b'["\\ud83d\\ude00"]', ["😀"]),
    "raw": ('["😀\u007f"]'.encode(), ["😀\u007f"]),
    "a backslash before the letters of a surrogate": (b'["\\\\ud800"]', ["\\ud800"]),
    "NUL": (b'["\\u0000"]', ["\0"]),
    "the same key in two objects": (b'[{"a": 1}, {"a": {"a": 2}}]', [{"a": 1}, {"a": {"a": 2}}]),
    "brackets in text": (b'["' + b"[" * 10_000 + b'"]', ["[" * 10_000]),
    "brackets behind a quote in text": (b'["\\"' + b"{" * 10_000 + b'"]', ['"' + "{" * 10_000]),
    "a long text": (b'"' + b"a," * 1_000_000 + b'"', "a," * 1_000_000),
    "as deep as may be": (b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, json.loads("[" * 64 + "]" * 64)),
    "as many digits as may be": (b"1" * 4300, int("1" * 4300)),
}  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=30,
)


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_strict_json_is_refused_with_its_reason(name: str) -> None:
    body, message = BAD[name]
    with pytest.raises(ParamsError, match=message) as caught:
        parse(body)
    assert str(caught.value).startswith("body must be ")
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("name", GOOD)
def test_json_arrives_as_it_was_written(name: str) -> None:
    body, expected = GOOD[name]
    assert parse(body) == expected


@pytest.mark.slow
@tries()
@given(VALUES, st.booleans())
def test_values_go_there_and_back(value: Any, ascii_only: bool) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8")
    found = parse(body)
    assert found == value
    assert json.dumps(found) == json.dumps(value)


@pytest.mark.slow
@tries(150)
@given(VALUES, st.data())
@example(value=[1], data=None)
def test_a_body_with_a_changed_byte_is_refused_or_is_what_python_reads(value: Any, data: Any) -> None:
    body = bytearray(json.dumps(value).encode())
    if data is not None:
        place = data.draw(st.integers(0, len(body) - 1))
        body[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    try:
        found = parse(bytes(body))
    except ParamsError:
        return
    assert found == json.loads(bytes(body).decode("utf-8"))
    json.dumps(found, allow_nan=False, ensure_ascii=False).encode("utf-8")


def test_depth_is_counted_without_recursion() -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(200)
    try:
        with pytest.raises(ParamsError, match="levels deep"):
            parse(b'{"a":[' * 500_000)
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.slow
def test_values_are_counted_before_they_are_made() -> None:
    body = b"[" + b"1," * (MAX_VALUES - 1) + b"1]"
    assert len(parse(body)) == MAX_VALUES
    with pytest.raises(ParamsError, match=f"{MAX_VALUES} values"):
        parse(b"[1," + body[1:])


def test_a_request_is_an_object() -> None:
    assert parse_object(b'{"text": "a"}') == {"text": "a"}
    for body, kind in ((b"[]", "an array"), (b'"a"', "a string"), (b"1", "a number"), (b"true", "a boolean")):
        with pytest.raises(ParamsError, match=f"body must be a JSON object, got {kind}"):
            parse_object(body)
    with pytest.raises(ParamsError, match="got null"):
        parse_object(b"null")


def test_floats_keep_every_bit() -> None:
    for value in (0.1, 5e-324, 1.7976931348623157e308, -0.0, math.pi):
        found = parse(repr(value).encode())
        assert math.copysign(1, found) == math.copysign(1, value)
        assert found == value
