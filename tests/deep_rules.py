"""Compiles constraints whose rules lead deep on a thread with little stack, and says how each follows its text."""

from __future__ import annotations

import json
import threading
from typing import Any

from tirage import GrammarError, GuidedDecodingParams
from tirage.guided import BYTES, Compiler

STACK = 1 << 20
"""A thread has twice as much by default where the stack of processes has no limit."""


def name(number: int) -> str:
    """A name of three letters."""
    return "".join(chr(97 + number // 26**k % 26) for k in range(3))


def references(count: int) -> dict[str, Any]:
    """Arrays whose items are another schema, and so on."""
    each = {f"a{i}": {"type": "array", "items": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(count)}
    return {"$ref": "#/$defs/a0", "$defs": {**each, f"a{count}": {"type": "null"}}}


MEMBERS = {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(1500)}}
TAG = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": references(2400)}}
GBNF = (
    "root ::= aaa\n" + "".join(f'{name(i)} ::= "x" {name(i + 1)} | "y"\n' for i in range(600)) + f'{name(600)} ::= "z"'
)
LARK = "start: aaa\n" + "".join(f"{name(i)}:{name(i + 1)}\n" for i in range(1800)) + f"{name(1800)}: /y/\n"
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "members": ({"json": MEMBERS}, '{"p0": null, "p749": null, "p1499": null}'),
    "items": ({"json": {"type": "array", "prefixItems": [{"type": "null"}] * 1500}}, json.dumps([None] * 1400)),
    "references": ({"json": references(2400)}, "[" * 50),
    "more references": ({"json": references(3000)}, ""),
    "tag": ({"structural_tag": json.dumps(TAG)}, "[" * 50),
    "gbnf": ({"grammar": GBNF}, "x" * 600 + "z"),
    "groups": ({"grammar": "root ::= " + '("a" ' * 60 + "root" + ")?" * 60 + ' "b"'}, "a" * 20 + "b"),
    "lark": ({"grammar": LARK}, "y"),
}


def outcomes() -> None:
    """Prints for each case whether its text is followed, or why it is refused."""
    compiler = Compiler(BYTES)
    for case, (mode, text) in CASES.items():
        try:
            matcher = compiler.compile(GuidedDecodingParams(**mode)).matcher()
        except GrammarError as error:
            print(f"{case}: {str(error).split(', got')[0]}")
        else:
            print(f"{case}: {all(map(matcher.fork().accept, text.encode()))}{matcher.error}")


if __name__ == "__main__":
    threading.stack_size(STACK)
    thread = threading.Thread(target=outcomes)
    thread.start()
    thread.join()
