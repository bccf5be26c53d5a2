"""Patterns, choices, grammars and tags: what they match is what their notation says, whoever else reads it."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from guided_cases import GRAMMARS, PATTERNS, SCHEMAS, Cfg, compiled, derives, matches, satisfies, texts
from test_guided import over_bytes, takes

from tirage import GrammarError
from tirage.guided.gbnf import read_gbnf
from tirage.guided.gbnf_to_lark import to_lark
from tirage.guided.reduction import reduced
from tirage.guided.regular.charset import EVERY, common, complement, first_bytes, fold_ascii, holds, merged
from tirage.guided.regular.expression import Alternatives, Chars, LiteralText, Repeat, RuleReference, Sequence, to_regex
from tirage.guided.regular.position_automaton import PositionAutomaton, extensions
from tirage.guided.regular.python_regex import read_pattern

CHECKS: list[tuple[dict[str, Any], Callable[[str], bool]]] = [
    *(({"json": schema}, satisfies(schema)) for schema in SCHEMAS),
    *(({"regex": pattern}, matches(pattern)) for pattern in PATTERNS),
    *(({"grammar": cfg.gbnf}, derives(cfg)) for cfg in GRAMMARS),
]

# --- patterns ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_takes_the_texts_that_python_matches(pattern: str) -> None:
    grammar, check = over_bytes(regex=pattern), matches(pattern)
    rng = random.Random(pattern)
    letters = sorted(set(pattern) | set("abx01 .!\n☃é日"))
    drawn = [text for text, ended in texts(compiled(regex=pattern), 6) if ended]
    changed = [text[:i] + rng.choice(letters) + text[i + 1 :] for text in drawn for i in range(len(text))]
    short = ["".join(rng.choices(letters, k=n)) for n in (1, 2, 3) for _ in range(20)]
    assert drawn
    assert all(map(check, drawn))
    for text in [*drawn, *changed[:60], *short]:
        assert takes(grammar, text) == check(text), text


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "missing ), unterminated subpattern at character 0"),
        ("ab[", "unterminated character set at character 2"),
        ("a(?=b)", "must not use a lookahead or lookbehind"),
        ("a(?!b)", "must not use a negative lookahead"),
        (r"(a)\1", "must not use a back-reference"),
        ("a^b", "must not use a anchor inside the pattern"),
        (r"\bfoo", "must not use a anchor"),
        ("a{3,1}", "min repeat greater than max repeat"),
        ("x{1,99999999999}", "the repetition number is too large"),
        ("(" * 101 + "a" + ")" * 101, "nested at most 100 levels deep, got more at character 100"),
        ("[^\\W\\w]", "class match some character"),
        ("^$", "only the empty text matches"),
        (r"\p{L}", r"bad escape \p at character 0"),
    ],
)
def test_a_pattern_that_cannot_be_enforced_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(GrammarError) as caught:
        over_bytes(regex=pattern)
    assert message in str(caught.value)


def test_reading_a_pattern_leaves_no_warning_and_no_other_meaning() -> None:
    assert to_regex(read_pattern("[a&&b]")) == "[&a-b]"
    assert takes(over_bytes(regex="[a&&b]"), "&")
    assert to_regex(read_pattern("(?i)k")) == "[Kk]"
    assert not takes(over_bytes(regex="(?i)k"), "\u212a")


# --- choices -----------------------------------------------------------------------------------------------------


def test_a_choice_takes_its_texts_and_no_other() -> None:
    options = ["yes", "no", "yesterday", "a.c", "(", "é☃", 'q"\\', "line\nline", " x", "no"]
    grammar = over_bytes(choice=options)
    assert all(takes(grammar, text) for text in options)
    assert not any(takes(grammar, text) for text in ["", "y", "yesno", "abc", "é", "x", "yest", "NO"])


def test_a_choice_of_thousands_is_fine() -> None:
    options = [f"option {i}" for i in range(4096)]
    grammar = over_bytes(choice=options)
    assert takes(grammar, "option 4095")
    assert not takes(grammar, "option 4096")


# --- grammars ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cfg", GRAMMARS, ids=lambda cfg: cfg.gbnf[:40])
def test_a_grammar_takes_the_texts_that_its_rules_derive(cfg: Cfg) -> None:
    grammar, check = over_bytes(grammar=cfg.gbnf), derives(cfg)
    rng = random.Random(1)
    drawn = [text for text, ended in texts(compiled(grammar=cfg.gbnf), 24, limit=60) if ended]
    letters = sorted(set("".join(drawn)) | {"a", "1"})
    changed = ["".join(rng.sample(text, len(text))) for text in drawn] + [text[1:] for text in drawn]
    short = ["".join(rng.choices(letters, k=n)) for n in (1, 2, 3, 4) for _ in range(40)]
    tried = [text for text in [*drawn, *changed, *short] if len(text) < 120]
    accepted = [text for text in tried if takes(grammar, text)]
    assert accepted == [text for text in tried if check(text)]
    assert 0 < len(accepted) < len(tried)


@pytest.mark.parametrize("seed", range(12))
def test_random_grammars_take_what_they_derive(seed: int) -> None:
    """Grammars made at random, with lexemes that overlap on purpose."""
    rng = random.Random(seed)
    atoms = ['"a"', '"b"', '"ab"', '"aba"', "[ab]", "[a-c]", '"c"', "[ab]+", '"b"*', "[bc]{1,2}", '"é"', '"ê"?']
    names = ["root", "x", "y"]
    lines = []
    for name in names:
        bodies = [" ".join(rng.choice([*atoms, *names]) for _ in range(rng.randint(1, 3))) for _ in range(2)]
        lines.append(f"{name} ::= {' | '.join([*bodies, rng.choice(atoms)])}")
    source = "\n".join(lines)
    cfg = Cfg(source, plain_rules(source))
    grammar, check = over_bytes(grammar=source), derives(cfg)
    short = ["".join(t) for n in range(1, 6) for t in itertools.product("abc", repeat=n)]
    short += ["".join(t) for t in itertools.product("aéê", repeat=3)]
    assert [t for t in short if takes(grammar, t)] == [t for t in short if check(t)], source


def plain_rules(source: str) -> dict[str, list[list[str | frozenset[str]]]]:
    """The rules of such a grammar for the recogniser, read by splitting words."""
    rules: dict[str, list[list[str | frozenset[str]]]] = {}
    kinds = {
        "[ab]": ("ab", "{1}"), "[a-c]": ("abc", "{1}"), "[ab]+": ("ab", "+"), '"b"*': ("b", "*"),
        "[bc]{1,2}": ("bc", "{1,2}"), '"ê"?': ("ê", "?"),
    }  # fmt: skip
    for line in source.splitlines():
        name, bodies = line.split(" ::= ")
        rules[name] = [[] for _ in bodies.split(" | ")]
        for out, body in zip(rules[name], bodies.split(" | "), strict=True):
            for item in body.split():
                if item in kinds:
                    rules.setdefault(item, repeated(item, *kinds[item]))
                    out.append(item)
                elif item.startswith('"'):
                    out.extend(frozenset(c) for c in item.strip('"'))
                else:
                    out.append(item)
    return rules


def repeated(name: str, letters: str, sign: str) -> list[list[str | frozenset[str]]]:
    one: frozenset[str] = frozenset(letters)
    many: dict[str, list[list[str | frozenset[str]]]] = {
        "{1}": [[one]], "?": [[], [one]], "+": [[one], [name, one]], "*": [[], [name, one]],
        "{1,2}": [[one], [one, one]],
    }  # fmt: skip
    return many[sign]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("root ::= (", "this group is never closed (line 1, column 10)"),
        ('root ::= "a', "expected '\"' (line 1, column 10)"),
        ("root ::= [a", "expected ']' (line 1, column 10)"),
        ('root ::= "a"\nroot ::= "b"', "rule 'root' is defined twice (line 2, column 1)"),
        ("root ::= itm\nitem ::= [a]", "rule 'itm' is not defined; did you mean 'item'? (line 1, column 10)"),
        ('x ::= "a"', "there must be a rule named root"),
        ("root = 1", "expected '::=', got '=' (line 1, column 6)"),
        ('root ::= "a" }', "expected the end of the rule, got '}' (line 1, column 14)"),
        ("root ::= [z-a]", "a range must go upward, got z-a"),
        ("root ::= []", "a class must hold some character"),
        ('root ::= "\\q"', "unknown escape \\q (line 1, column 11)"),
        ('root ::= "\\x0"', "expected 2 hexadecimal digits"),
        ('root ::= "\\ud800"', "U+D800 is not a character"),
        ('root ::= "a"{2,1}', "a repetition's end must not be below its start"),
        ('root ::= "a"{x}', "expected a number"),
        ('root ::= "a"{1', "expected '}'"),
        ("root ::= <[12]>", "tokens are not supported"),
        ("root ::= " + "(" * 65 + "[a]" + ")" * 65, "nested at most 64 levels deep"),
        ("root ::= x\nx ::= [a] x", "must lead to some text, got a rule 'root' that never ends"),
        ('start: "a" foo', 'line 1, column 8: unknown name: "foo"'),
        ("start: /(/", 'invalid regex "("'),
        ("start: x\nx: x", "no text satisfies it"),
        ('%llguidance {"x": }\nstart: "a"', "valid options after %llguidance"),
    ],
)
def test_a_grammar_that_cannot_be_enforced_is_refused_with_its_place(source: str, message: str) -> None:
    with pytest.raises(GrammarError) as caught:
        over_bytes(grammar=source)
    assert message in str(caught.value)


def test_gbnf_escapes_comments_and_groups_mean_what_llama_cpp_documents() -> None:
    source = """# first
root ::= ( "\\x41" | "\\u00e9\\n" )  ws [^a-c\\]-]{2} tail # last
ws ::= [ \\t]?
tail ::=
  "." |
  ";"
"""
    cases = {"Axy.": True, "é\n de;": True, "A-d.": False, "Aad.": False, "A]d.": False, "A☃☃;": True, "Axy": False}
    assert {text: takes(over_bytes(grammar=source), text) for text in cases} == cases


def test_a_lark_grammar_keeps_its_own_options_and_gets_exact_masks() -> None:
    for header in ("", "%llguidance {}\n", '%llguidance {"allow_initial_skip": true}\n'):
        matcher = compiled(grammar=header + 'start: "hello" | "hell no"').matcher()
        assert matcher.fork().accept(ord("h"))


def test_alternatives_that_never_end_are_left_out() -> None:
    rules = read_gbnf('root ::= "a" | "b" x | y\nx ::= "c" x\ny ::= "d" z*\nz ::= "e" z')
    assert reduced(rules, "root") == {"root": Alternatives((LiteralText("a"), LiteralText("d")))}


def test_lexemes_are_cut_only_where_a_greedy_lexer_would_go_wrong() -> None:
    safe = to_lark(read_gbnf('root ::= "(" root ")" | [0-9]+ ("+" root)?'))
    assert "[0-9]+/" in safe
    risky = to_lark(read_gbnf('root ::= x "b" root | "."\nx ::= [a-b] x | [a-b]'))
    assert "+/" not in risky


def test_extensions_are_the_bytes_with_which_another_lexeme_reads_on() -> None:
    word, keyword = PositionAutomaton.of(Repeat(Chars(((97, 122),)), 1, None)), PositionAutomaton.of(LiteralText("if"))
    letters = sum(1 << b for b in range(97, 123))
    assert extensions(keyword, word, 10_000)[0] == letters
    assert extensions(word, keyword, 10_000)[0] == 1 << ord("f")
    assert extensions(keyword, keyword, 10_000)[0] == 0
    assert extensions(word, word, 0)[0] == (1 << 256) - 1
    bounded = PositionAutomaton.of(Repeat(LiteralText("ab"), 2, 3))
    assert (len(bounded.sets), bounded.first, bounded.last, bounded.empty) == (6, {0}, {3, 5}, False)


def test_sets_of_characters_are_sets() -> None:
    assert merged([(5, 9), (1, 3), (4, 4), (20, 30)]) == ((1, 9), (20, 30))
    assert complement(complement(((65, 90),))) == ((65, 90),)
    assert not holds(complement(()), 0xD800)
    assert common(((1, 5), (8, 9)), ((4, 8),)) == ((4, 5), (8, 8))
    assert fold_ascii(((65, 66), (0xC9, 0xC9))) == ((65, 66), (97, 98), (0xC9, 0xC9))
    for char in "aé☃😀":
        assert first_bytes(((ord(char),) * 2,)) == 1 << char.encode()[0]
    assert first_bytes(EVERY).bit_count() == 128 + 30 + 16 + 5


def test_an_expression_with_rules_is_no_regular_expression() -> None:
    with pytest.raises(ValueError, match="rule x"):
        to_regex(Sequence((LiteralText("a"), RuleReference("x"))))


# --- tags --------------------------------------------------------------------------------------------------------

TAGS = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<fn=a>", "schema": {"type": "integer", "minimum": 0}, "end": "</fn>"},
        {"begin": "<fn=b>", "schema": {"type": "null"}, "end": "</fn>"},
    ],
    "triggers": ["<fn"],
}


def test_a_trigger_binds_what_follows_to_a_tag_and_leaves_other_text_free() -> None:
    grammar = over_bytes(structural_tag=json.dumps(TAGS))
    right = ["", "any <b>text", "x<fn=a>12</fn>y<fn=b>null</fn>", "<f", "<fn=a>1</fn><fn=a>2</fn>", "é\n"]
    wrong = ["<fn", "<fn=c>", "x<fn=a>y</fn>", "<fn=b>1</fn>", "<fn=a>1", "<fn=a>1</f>", "a <fn b"]
    assert [takes(grammar, text) for text in right] == [True] * len(right)
    assert [takes(grammar, text) for text in wrong] == [False] * len(wrong)


def test_formats_can_be_put_together() -> None:
    number = {"type": "json_schema", "json_schema": {"type": "integer", "minimum": 1, "maximum": 3}}
    parts = [
        {"type": "const_string", "value": "n="},
        {"type": "or", "elements": [number, {"type": "regex", "pattern": "[xy]+"}]},
        {"type": "tag", "begin": "<", "content": {"type": "const_string", "value": "b"}, "end": ">"},
    ]
    tag = {"type": "structural_tag", "format": {"type": "sequence", "elements": parts}}
    grammar = over_bytes(structural_tag=json.dumps(tag))
    cases = {"n=1<b>": True, "n=xyx<b>": True, "n=4<b>": False, "n=<b>": False, "n=1<c>": False, "n=1": False}
    assert {text: takes(grammar, text) for text in cases} == cases


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type": "tag"}, 'must be an object with "type": "structural_tag"'),
        ({"triggers": ["<x"]}, "#/format/tags/0/begin must begin with exactly one of the triggers"),
        ({"triggers": ["<fn", "<x"]}, '#/format/triggers must each begin some tag, got "<x"'),
        ({"triggers": []}, "#/format/triggers must be a non-empty list"),
        ({"structures": []}, "#/format/tags must not be empty"),
        (
            {"structures": [{"begin": "<fn", "schema": {"not": {}}, "end": ""}]},
            "schema cannot be enforced: no value satisfies it",
        ),
        ({"structures": [{"begin": "<fn", "end": ""}]}, "#/structures/0 must have a field schema"),
        ({"trigers": []}, "#/trigers is not supported; did you mean 'triggers'?"),
        ({"structures": 3}, "#/structures must be a list, got 3"),
    ],
)
def test_tags_that_cannot_be_enforced_are_refused_with_their_path(change: dict[str, Any], message: str) -> None:
    with pytest.raises(GrammarError) as caught:
        over_bytes(structural_tag=json.dumps(TAGS | change))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"type": "gramar"}, "must be one of the formats const_string"),
        ({"type": "any_text"}, "#/format must be the content of a tag, whose end ends it"),
        ({"type": "tag", "begin": "<", "content": {"type": "any_text"}, "end": ""}, "#/format/end must not be empty"),
        ({"type": "tags_with_separator", "tags": [], "separator": ","}, "#/format/tags must not be empty"),
        (
            {"type": "triggered_tags", "tags": [], "triggers": [], "at_least_one": 1},
            "at_least_one must be true or false",
        ),
        ({"type": "tags"}, "did you mean 'tag'?"),
        ({"type": "const_string", "value": ""}, "#/format/value must not be empty"),
        ({"type": "or", "elements": [{"type": "regex"}]}, "#/format/elements/0 must have a field pattern"),
        ({"type": "regex", "pattern": "(", "style": "x"}, "#/format/style is not supported"),
        ({"type": "regex", "pattern": "("}, "regex must be a valid pattern"),
    ],
)
def test_formats_that_cannot_be_enforced_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(GrammarError) as caught:
        over_bytes(structural_tag=json.dumps({"type": "structural_tag", "format": given}))
    assert message in str(caught.value)


# --- many --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "each", [pytest.param(25, marks=pytest.mark.slow), pytest.param(430, marks=pytest.mark.exhaustive)]
)
def test_none_of_thousands_of_random_texts_is_invalid(each: int) -> None:
    written = ended = 0
    invalid: list[tuple[dict[str, Any], str]] = []
    for number, (guided, check) in enumerate(CHECKS):
        limit = 30 if "grammar" in guided else 120
        for text, complete in texts(compiled(**guided), each, limit=limit, seed=number + 1):
            written, ended = written + 1, ended + complete
            if complete and not check(text):
                invalid.append((guided, text))
    assert invalid == []
    assert written >= 46 * each
    assert ended >= 0.95 * written


def test_the_checks_can_fail() -> None:
    assert not satisfies(SCHEMAS[1])("400")
    assert not matches("ab")("abc")
    assert re.fullmatch("a", "b") is None
    assert [derives(GRAMMARS[2])(t) for t in ("a=[b];", "a=;", "a=1;b=a;\n")] == [True, False, True]
    assert [derives(GRAMMARS[3])(t) for t in ("ab", "aabb", "aab", "")] == [True, True, False, False]
