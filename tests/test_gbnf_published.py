"""llama.cpp's own grammars, as it publishes them: each is taken, and means what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from expression_texts import Texts
from test_guided import over_bytes, takes

from tirage.guided.gbnf import read_gbnf
from tirage.guided.reduction import reduced

GRAMMARS = Path(__file__).parent / "data" / "llama_cpp"
TAKEN = {
    "arithmetic": ["a*(b +1)=x\n", "1=1\na-b=c1 \n"],
    "c": ["", "int main(int x){return 1+x;}", "int f(){while(a<1){b =1;}}".replace("=1", " = 1").replace("  ", " ")],
    "chess": ["1. e4 e5\n2. Nf3 Nc6\n", "1. e4 e5\n2. O-O exd8=Q+\n"],
    "english": ["Hello, world!", "a b\n[c]^\\"],
    "japanese": ["こんにちは、世界", "カナ\n一"],
    "json": ['{}', '{"a": [1, -2.5e3, "x\\n\\u00e9", true], "b": {"c": null}}', '{"日": " "}'],
    "json_arr": ["[\n]", '[\n1,\n"a",\n{"b": []}]'],
    "list": ["- one\n", "- one\n- 二, two\n"],
}  # fmt: skip
REFUSED = {
    "arithmetic": ["a+=b\n", "a=b"],
    "c": ["int main", "main(){}"],
    "chess": ["1. e4 e5\n", "1. e9 e5\n2. a1 a1\n"],
    "english": ["é", "a  b", ""],
    "japanese": ["abc"],
    "json": ["[1]", '{"a": "\x01"}', '{"a": "\x7f"}', '{"a": "\x00"}', "{\"a\": 'b'}"],
    "json_arr": ["[1]", "[\n1,2]"],
    "list": ["- one\r\n", "- one\u2028\n", "one\n"],
}


def test_every_published_grammar_is_judged() -> None:
    assert {path.stem for path in GRAMMARS.glob("*.gbnf")} == set(TAKEN) == set(REFUSED)


@pytest.mark.parametrize("name", TAKEN)
def test_a_published_grammar_takes_its_texts_and_no_others(name: str) -> None:
    grammar = over_bytes(grammar=(GRAMMARS / f"{name}.gbnf").read_text(encoding="utf-8"))
    assert [text for text in TAKEN[name] if not takes(grammar, text)] == []
    assert [text for text in REFUSED[name] if takes(grammar, text)] == []


def test_escapes_of_single_characters_are_those_of_c() -> None:
    source = r'root ::= "\f\v\0\'\"\\\n\r\t" [\0-\x01\]\-\^\'] "\x41\u00e9\U0001F600"'
    texts = Texts(reduced(read_gbnf(source), "root")["root"])
    assert "\f\v\0'\"\\\n\r\t" + "\x00" + "Aé😀" in texts
    assert "\f\v\0'\"\\\n\r\t" + "'" + "Aé😀" in texts
    assert "\f\v\0'\"\\\n\r\t" + "\x02" + "Aé😀" not in texts
