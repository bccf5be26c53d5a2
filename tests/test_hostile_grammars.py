"""Constraints that mean harm, on three endpoints of a real server: refused in time, with nothing left running."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile import NORMAL, ROUTES, Client, Reply, check, memory
from servers import Server, shared

KINDS = {
    "json_schema": {"/generate": "json_schema", "other": "guided_json"},
    "regex": {"/generate": "regex", "other": "guided_regex"},
    "ebnf": {"/generate": "ebnf", "other": "guided_grammar"},
}
WITHIN_S = 60.0
"""The limit of a compilation is 2 s; the rest is for a busy machine."""


@pytest.fixture
def server() -> Server:
    return shared("tiny")


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    made = Client(server)
    yield made
    made.close()


def constrained(route: str, kind: str, text: Any) -> dict[str, Any]:
    """The normal request of a route under a constraint."""
    name = KINDS[kind].get(route, KINDS[kind]["other"])
    if route != "/generate":
        return {**NORMAL[route], name: text}
    return {**NORMAL[route], "sampling_params": {**NORMAL[route]["sampling_params"], name: text}}


def asked(client: Client, route: str, kind: str, text: Any) -> Reply:
    """The answer under a constraint: in time, sound, and the next normal request is served."""
    reply = client.send(route, constrained(route, kind, text))
    check(reply, f"{route} {kind} {str(text)[:100]}")
    assert reply.seconds < WITHIN_S, f"{kind} {str(text)[:100]}: {reply.seconds:.1f} s"
    assert client.send(route, NORMAL[route]).status == 200
    return reply


def nested(depth: int) -> str:
    schema = '{"type": "integer"}'
    return '{"type": "array", "items": ' * depth + schema + "}" * depth


INVALID = {
    "unclosed group": ("regex", "(a"),
    "nothing to repeat": ("regex", "*a"),
    "bad range": ("regex", "[z-a]"),
    "bad count": ("regex", "a{3,1}"),
    "look behind": ("regex", "(?<=a)b"),
    "back reference": ("regex", r"(a)\1"),
    "NUL": ("regex", "a\0b"),
    "a book": ("regex", "a" * (17 << 10)),
    "no JSON": ("json_schema", "{"),
    "a number": ("json_schema", "7"),
    "unknown type": ("json_schema", '{"type": "whatever"}'),
    "impossible": ("json_schema", '{"type": "integer", "minimum": 5, "maximum": 4}'),
    "remote reference": ("json_schema", '{"$ref": "http://127.0.0.1:9/schema.json"}'),
    "file reference": ("json_schema", '{"$ref": "file:///etc/passwd"}'),
    "endless reference": ("json_schema", '{"$ref": "#"}'),
    "NaN": ("json_schema", '{"type": "number", "minimum": NaN}'),
    "a large schema": ("json_schema", json.dumps({"enum": ["x" * 100] * 1 + [str(i) * 20 for i in range(30_000)]})),
    "deep schema": ("json_schema", nested(1000)),
    "deep groups": ("regex", "(" * 5000 + "a" + ")" * 5000),
    "no rule": ("ebnf", "hello"),
    "unknown rule": ("ebnf", "root ::= missing"),
    "unclosed text": ("ebnf", 'root ::= "a'),
    "deep grammar": ("ebnf", "root ::= " + "(" * 5000 + '"a"' + ")" * 5000),
    "rule of itself": ("ebnf", "root ::= root"),
    "a large grammar": ("ebnf", 'root ::= "' + "a" * (17 << 10) + '"'),
}
HARD = {
    "nested quantifiers": ("regex", "(a+)+$"),
    "quantifiers of quantifiers": ("regex", "((((a*)*)*)*)*b"),
    "overlapping choices": ("regex", "(a|a|aa)+b"),
    "states that double": ("regex", "(a|b)*a(a|b){30}"),
    "a hundred thousand": ("regex", "a{1,100000}"),
    "counts of counts": ("regex", "((a{1,100}){1,100}){1,100}"),
    "129": ("regex", "a{129}"),
    "a long string": ("json_schema", '{"type": "string", "maxLength": 1000000000}'),
    "many items": ("json_schema", '{"type": "array", "minItems": 1000000}'),
    "a large maximum": ("json_schema", '{"type": "integer", "maximum": 20000000000}'),
    "beyond 64 bits": ("json_schema", '{"type": "integer", "minimum": -1e30, "maximum": 1e30}'),
    "multiples": ("json_schema", '{"type": "integer", "multipleOf": 999983}'),
    "many values": ("json_schema", json.dumps({"enum": [f"value {i}" for i in range(10_000)]})),
    "many properties": ("json_schema", json.dumps({"properties": {f"p{i}": {"type": "null"} for i in range(2_000)}})),
    "pattern in a schema": ("json_schema", '{"type": "string", "pattern": "^(a+)+$"}'),
    "left recursion": ("ebnf", 'root ::= root "a" | "b"'),
    "ambiguity": ("ebnf", "root ::= s\ns ::= s s | \"a\""),
    "empty loop": ("ebnf", 'root ::= (""*)* "a"'),
    "many rules": ("ebnf", "root ::= r0\n" + "".join(f'r{i} ::= "a" r{i + 1}\n' for i in range(500)) + 'r500 ::= "b"'),
}  # fmt: skip


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_constraint_is_refused(client: Client, name: str) -> None:
    kind, text = INVALID[name]
    for route in ROUTES:
        reply = asked(client, route, kind, text)
        assert reply.status == 400, f"{route} {name}: {reply.body[:300]!r}"
        assert len(reply.json["error"]["message"]) < 600


@pytest.mark.parametrize("name", HARD)
def test_a_hard_constraint_is_kept_or_refused_in_time(client: Client, name: str) -> None:
    kind, text = HARD[name]
    asked(client, "/generate", kind, text)


@pytest.mark.slow
def test_the_server_rests_after_hard_constraints(client: Client, server: Server) -> None:
    for kind, text in HARD.values():
        asked(client, "/generate", kind, text)
    # A compilation whose time is up must have ended, and not go on unseen.
    deadline = time.monotonic() + WITHIN_S
    while busy(server) > 0.2:
        assert time.monotonic() < deadline, "something still computes"


def busy(server: Server, seconds: float = 0.5) -> float:
    """The share of a processor that a server and its children use."""
    before = ticks(server)
    time.sleep(seconds)
    return (ticks(server) - before) / 100 / seconds


def ticks(server: Server) -> int:
    found = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(path.parent.name) == server.pid or int(words[1]) == server.pid:
            found += int(words[11]) + int(words[12])
    return found


def test_two_constraints_are_refused_and_empty_ones_have_one_meaning(client: Client) -> None:
    pairs = (("json_schema", '{"type": "object"}'), ("regex", "a+"), ("ebnf", 'root ::= "a"'))
    for i, (first, text) in enumerate(pairs):
        for second, other in pairs[i + 1 :]:
            for route in ROUTES:
                body = constrained(route, first, text)
                more = constrained(route, second, other)
                body = {**body, **more}
                if route == "/generate":
                    both = constrained(route, first, text)["sampling_params"] | more["sampling_params"]
                    body["sampling_params"] = both
                reply = client.send(route, body)
                check(reply, f"{route} {first} and {second}")
                assert reply.status == 400, f"{route} {first} and {second}: {reply.body[:200]!r}"
    for kind, _ in pairs:
        answers = [client.send("/generate", constrained("/generate", kind, empty)) for empty in ("", None)]
        for reply in answers:
            check(reply, f"empty {kind}")


def test_what_a_constraint_promises_is_kept(client: Client) -> None:
    body = constrained("/generate", "regex", "[0-9]{3}")
    body["sampling_params"] |= {"max_new_tokens": 20, "n": 4, "temperature": 5.0}
    for entry in client.send("/generate", body).json:
        assert len(entry["text"]) == 3
        assert entry["text"].isdigit()
        assert entry["meta_info"]["grammar_complete"] is True


def test_equal_constraints_at_once_are_all_served(client: Client, server: Server) -> None:
    schema = json.dumps({"enum": [f"one of {i}" for i in range(3_000)]})
    found: list[int] = []

    def ask() -> None:
        other = Client(server)
        found.append(other.send("/generate", constrained("/generate", "json_schema", schema)).status)
        other.close()

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [200] * 16


SEEDS = (
    ("regex", r"(ab|[c-f]{2,5})+\d*"),
    ("json_schema", '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'),
    ("ebnf", 'root ::= item ("," item)*\nitem ::= [a-z]+ | "(" root ")"'),
)
PIECES = (*'()[]{}*+?|^$,:#é\0\\"\n', "::=", "9" * 12)


def mutant(draw: random.Random) -> tuple[str, str]:
    """A constraint with a few pieces put in, taken out or doubled."""
    kind, text = draw.choice(SEEDS)
    for _ in range(draw.randrange(1, 4)):
        place = draw.randrange(len(text) + 1)
        end = min(len(text), place + draw.randrange(4))
        text = draw.choice((text[:place] + draw.choice(PIECES) + text[place:], text[:place] + text[end:]))
    return kind, text


def mutate(client: Client, count: int) -> None:
    draw = random.Random(20260)
    for number in range(count):
        kind, text = mutant(draw)
        route = ROUTES[number % len(ROUTES)]
        reply = client.send(route, constrained(route, kind, text))
        check(reply, f"{route} {kind} {text!r}")
        assert reply.seconds < WITHIN_S
    assert client.send("/generate", NORMAL["/generate"]).status == 200


def test_a_hundred_mutants_are_kept_or_refused(client: Client) -> None:
    mutate(client, 100)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_two_thousand_mutants_are_kept_or_refused(client: Client) -> None:
    mutate(client, 2000)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_thousands_of_constraints_do_not_fill_the_memory(client: Client, server: Server) -> None:
    def send(start: int) -> None:
        for number in range(start, start + 500):
            schema = json.dumps({"enum": [f"{number} {i}" for i in range(40)]})
            assert client.send("/generate", constrained("/generate", "json_schema", schema)).status == 200

    send(0)
    before = memory(server)
    send(10_000)
    assert memory(server) - before < 64 << 20
