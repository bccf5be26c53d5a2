"""The rules of SPEC.md: each number stands for one rule, and what is cited exists."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
RULE = r"S-[A-Z]+\d+\b"
CITING = [*ROOT.glob("src/**/*.py"), *ROOT.glob("docs/**/*.md"), ROOT / "CHANGELOG.md", ROOT / "README.md"]


def defined() -> Counter[str]:
    return Counter(re.findall(rf"\*\*({RULE})", (ROOT / "SPEC.md").read_text()))


def test_a_number_stands_for_one_rule():
    assert [rule for rule, count in defined().items() if count > 1] == []


def test_every_rule_that_is_cited_stands_in_the_specification():
    rules = defined()
    cited = {rule for file in CITING for rule in re.findall(RULE, file.read_text())}

    assert len(cited) > 50
    assert sorted(cited - rules.keys()) == []
