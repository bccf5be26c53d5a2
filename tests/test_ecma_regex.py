"""Patterns of ECMA-262, against what Node found and against Python's `re` for what both read alike."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from expression_texts import Texts

from tirage import GrammarError
from tirage.guided.json_schema.json_strings import json_string, string_literal
from tirage.guided.regular.ecma_regex import read_ecma
from tirage.guided.regular.expression import NOTHING

CASES = json.loads((Path(__file__).parent / "data" / "ecma_patterns.json").read_text(encoding="utf-8"))["cases"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["pattern"])
def test_a_pattern_is_found_where_node_finds_it(case: dict[str, list[str]]) -> None:
    texts = Texts(read_ecma(str(case["pattern"])))
    wrong = [text for text in case["found"] if text not in texts] + [text for text in case["missing"] if text in texts]
    assert wrong == []


@pytest.mark.slow
def test_a_pattern_is_found_in_the_same_strings_when_they_are_written_as_json() -> None:
    for case in CASES:
        spelled = Texts(json_string(read_ecma(str(case["pattern"]))))
        for text in case["found"]:
            assert json.dumps(text, ensure_ascii=False) in spelled, (case["pattern"], text)
        for text in case["missing"]:
            assert json.dumps(text, ensure_ascii=False) not in spelled, (case["pattern"], text)


ASSERTIONS = ["^", r"\b", r"\B", "(?=a)", "(?!b)", "(?!ab|c)"]


def random_pattern(rng: random.Random, depth: int) -> str:
    """A pattern that means the same to Python, with the flag ASCII, and to ECMA-262."""
    kind = rng.randrange(9) if depth else rng.randrange(4)
    if kind < 4:
        return rng.choice(["a", "b", "c", "[ab]", "[^a]", r"\w", r"\W", "-"])
    inner = random_pattern(rng, depth - 1)
    match kind:
        case 4:
            return f"(?:{inner}|{random_pattern(rng, depth - 1)})"
        case 5:
            return f"(?:{inner}){rng.choice(['*', '+', '?', '{2}', '{1,2}'])}"
        case 6:
            return inner + rng.choice(ASSERTIONS) + random_pattern(rng, depth - 1)
        case 7:
            return f"(?{rng.choice('=!')}{inner}){random_pattern(rng, depth - 1)}"
    return inner + random_pattern(rng, depth - 1)


@pytest.mark.slow
def test_random_patterns_mean_what_they_mean_to_python() -> None:
    rng, judged, refused = random.Random(7), 0, 0
    while judged < 120:
        pattern = random_pattern(rng, 4)
        pattern = rng.choice(["", "^"]) + pattern + rng.choice(["", r"(?:$|a)", "$"])
        try:
            node = read_ecma(pattern)
        except GrammarError:
            # A look-ahead in a repetition; see below.
            refused += 1
            continue
        texts, search = Texts(node), re.compile(pattern.replace("$", r"\Z"), re.ASCII)
        for _ in range(25):
            text = "".join(rng.choices("abc- ", k=rng.randrange(6)))
            assert (text in texts) == bool(search.search(text)), (pattern, text)
        judged += 1
    assert refused < judged / 4


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (r"(a)\1", "pattern must not use a back-reference (character 3)"),
        (r"(?<n>a)\k<n>", "pattern must not use a back-reference (character 7)"),
        (r"(?<=a)b", "pattern must not use a look-behind (character 0)"),
        (r"(?<!a)b", "pattern must not use a look-behind (character 0)"),
        (r"^(?:(?!--)[a-z]+\.)+$", "pattern must not use a look-ahead in a repetition (followed by more than $)"),
        (r"((?!foo).)*bar", "pattern must not use a look-ahead in a repetition (followed by more than $)"),
        (r"(?i)a", "(?:, (?=, (?! or (?<name> (character 0)"),
        (r"a(b", "this group is never closed (character 1)"),
        (r"a)", "this parenthesis closes no group (character 1)"),
        (r"[b-a]", "a range must go upward, got b-a (character 0)"),
        (r"a**", "there is nothing to repeat (character 2)"),
        (r"\p{Script=Greek}\p{Greek}", r"\p{Script=Greek} is not known here"),
        ("(" * 101, "groups must be nested at most 100 levels deep (character 100)"),
        (r"(?:(?:(?:^a|b){50}){50}){50}$", "its repetitions and assertions multiply"),
        (r"(((^a|b){2,9}){2,9}){2,9}", "its repetitions and assertions multiply"),
        ("(" * 60 + "a$|^b" + ")*" * 60, "its repetitions and assertions multiply"),
        (r"(\b\w+\b ?)*" * 200, "its repetitions and assertions multiply"),
        ("^a" * 10_001, "pattern must have at most 20000 characters, got 20002"),
    ],
)
def test_what_cannot_be_exact_is_refused_by_name(pattern: str, reason: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(reason)):
        read_ecma(pattern)


def test_a_property_is_read_with_the_flag_only_if_it_is_known() -> None:
    """Without the flag u, \\p{Greek} is five letters p{Greek}: reading it so would be wrong, not lenient."""
    assert "p{L}" not in Texts(read_ecma(r"^\p{L}$"))


def test_a_class_that_matches_nothing_makes_a_pattern_that_is_found_nowhere() -> None:
    assert read_ecma("[]") == NOTHING
    assert "b" in Texts(read_ecma("^(?:[]|b)$"))


def test_every_character_has_its_json_spelling() -> None:
    points = [*range(0x80), 0xA0, 0x2028, 0xFEFF, 0x1F600]
    texts = Texts(json_string(read_ecma("^[^]$")))
    for point in points:
        assert json.dumps(chr(point), ensure_ascii=False) in texts, hex(point)
    assert '"""' not in texts
    assert '"\\"' not in texts
    assert '"\n"' not in texts
    assert '"\\u0041"' not in texts
    assert json.dumps('a"\\\0\x1f\n') in Texts(string_literal('a"\\\0\x1f\n'))
    assert '""' in Texts(string_literal(""))
    for text in ("plain text", "é😀\x7f", 'a "quoted" \\ one', "\ue000\ud7ff"):
        assert json.dumps(text, ensure_ascii=False) in Texts(string_literal(text))
        assert json.dumps(text + "a", ensure_ascii=False) not in Texts(string_literal(text))
