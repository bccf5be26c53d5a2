"""Constraints compiled without a trial: the worst that count as small are cheap, and what multiplies is not small."""

from __future__ import annotations

import time
from typing import Any

import pytest
from guided_cases import GRAMMARS, PATTERNS, PERSON

from tirage import GrammarError, GuidedDecodingParams
from tirage.guided import BYTES, Compiler
from tirage.guided.constraint import Constraint, read_constraint
from tirage.guided.json_schema.formats import FORMATS
from tirage.guided.llguidance_backend import lark_of
from tirage.guided.small_constraints import SCHEMA_CHARS, is_small
from tirage.guided.trial_compile import TRIALS


def small(**mode: Any) -> bool:
    constraint = read_constraint(GuidedDecodingParams(**mode))
    return is_small(constraint, lark_of(constraint))


def nested(depth: int, **keys: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {"format": "uri"}
    for _ in range(depth):
        schema = {"items": schema, **keys}
    return schema


def forms(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"format": "uri"}
    for i in range(depth):
        schema = {"anyOf": [schema, {"format": [*FORMATS][i % len(FORMATS)]}]}
    return schema


def members(count: int, schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {f"{i:x}": schema for i in range(count)}}


WORST: dict[str, dict[str, Any]] = {
    "many formats": {"json": members(120, {"format": "uri"})},
    "many emails": {"json": members(120, {"format": "email"})},
    "many bounds": {"json": members(80, {"minimum": -0.37, "maximum": 97.125})},
    "many integers": {"json": members(50, {"type": "integer", "minimum": -(2**53) + 1, "maximum": 2**53 - 1})},
    "many lengths": {"json": members(60, {"type": "string", "minLength": 900, "maxLength": 1000})},
    "many lists": {"json": members(60, {"minItems": 900, "items": {"format": "uri"}})},
    "deep lists": {"json": nested(30, minItems=1000)},
    "deep choices": {"json": forms(25)},
    "long enum": {"json": {"enum": [f"{i:x}" * 6 for i in range(250)]}},
    "chain of references": {"json": {"$defs": {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(100)}
                                     | {"a100": {"type": "null"}}, "$ref": "#/$defs/a0"}},
    "automaton": {"regex": "(a|b)*a(a|b){300}"},
    "optionals": {"regex": "a?" * 400 + "a" * 400},
    "dots": {"regex": "(" + "|".join(f".*{a}{b}" for a in "abcdefghij" for b in "abcdefgh") + ").*"},
    "case": {"regex": "(?i)" + "ab" * 400},
    "nullable rules": {"grammar": "root ::= " + " ".join(f"r{i}" for i in range(60)) + "\n"
                       + "\n".join(f'r{i} ::= "a"? root?' for i in range(60))},
    "ambiguous rules": {"grammar": 'r0 ::= "x"\n' + "\n".join(f"r{i} ::= r{i - 1} r{i - 1} root?" for i in range(1, 60))
                        + "\nroot ::= r59"},
    "recursion": {"grammar": 'root ::= root root root | "a"?'},
}  # fmt: skip


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    made = Compiler(BYTES)
    made.compile(GuidedDecodingParams(regex="warm"))
    return made


@pytest.mark.parametrize("name", WORST)
def test_the_worst_small_constraints_compile_at_once(name: str, compiler: Compiler) -> None:
    assert small(**WORST[name])
    asked = GuidedDecodingParams(**WORST[name])
    start = time.thread_time()
    try:
        grammar = compiler.compile(asked)
    except GrammarError as error:
        assert "cannot be enforced" in str(error)  # noqa: PT017  # some of them the compiler refuses, as quickly
    else:
        grammar.matcher().forced(8)
    # Measured at 2 to 70 ms of this thread's processor time.
    assert time.thread_time() - start < 1


def test_what_is_usual_is_small_and_takes_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_trial(*_: Any, **__: Any) -> None:
        raise AssertionError("a trial")

    monkeypatch.setattr(TRIALS, "compile", no_trial)
    compiler = Compiler(BYTES)
    usual = [{"json": PERSON}, {"json": {}}, {"json_object": True}, {"choice": ["yes", "no"]},
             *({"regex": pattern} for pattern in PATTERNS), *({"grammar": cfg.gbnf} for cfg in GRAMMARS)]  # fmt: skip
    for mode in usual:
        assert compiler.compile(GuidedDecodingParams(**mode)).matcher().error == ""


def test_what_makes_work_of_other_parts_is_never_small() -> None:
    assert not is_small(Constraint(kind="json"), "x" * (SCHEMA_CHARS + 1))
    assert small(json=members(900, {"maxLength": 1 << 20}))
    assert not small(regex="a{1025}")
    assert not small(grammar='root ::= x{300}\nx ::= "a" root? "b"')
    assert not small(grammar='start: "a"')
