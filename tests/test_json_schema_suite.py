"""Published schemas: no value that is invalid is ever allowed, and no schema fares worse than it did before.

The published JSON-Schema-Test-Suite is part of the tests (tests/data/json_schema_suite), with its optional files. A
thousand schemas in use, from jsonschemabench, are read where `real_file` finds them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from itertools import islice

import numpy as np
import pytest
from schema_outcomes import DRAFTS, Group, compiled, known, outcome, real, real_file, suite, takes, written

import tirage
from tirage.guided import BYTES, Compiler, Grammar, Vocabulary

LEAST_RIGHT = {"draft4": 500, "draft6": 690, "draft7": 780, "draft2019-09": 1060, "draft2020-12": 1040}
"""Values of the required files that are judged rightly."""
WIDTH = 100_000


def worse(groups: Iterable[Group], before: dict[str, str], counts: Counter[str]) -> list[str]:
    """What is wrong, or worse than before, of some groups."""
    found: list[str] = []
    for group in groups:
        now = outcome(group)
        found += now.wrong
        most = before.get(group.name, "0")
        counts["refused" if now.is_refused else "taken"] += 1
        counts[group.name.split()[0] if "optional/" not in group.name else "optional"] += now.right
        if most != "refused" and (now.is_refused or now.missed > int(most)):
            found.append(f"{group.name}: {'refused' if now.is_refused else f'{now.missed} values missed'}, was {most}")
    return found


def groups_of(draft: str) -> list[Group]:
    return [group for group in suite() if group.name.startswith(f"{draft} ")]


BETWEEN = {"draft6", "draft2019-09"}
"""Drafts of which nearly everything stands in the one before or after as well."""


@pytest.mark.slow
@pytest.mark.parametrize("draft", [pytest.param(d, marks=[pytest.mark.exhaustive] * (d in BETWEEN)) for d in DRAFTS])
def test_the_published_suite_is_judged_rightly(draft: str) -> None:
    counts = Counter[str]()
    assert worse(groups_of(draft), known("outcomes.csv"), counts) == []
    assert counts[draft] >= LEAST_RIGHT[draft], counts


@pytest.mark.slow
@pytest.mark.parametrize("draft", sorted(BETWEEN))
def test_every_fifth_group_of_the_drafts_between_is_judged_rightly(draft: str) -> None:
    groups = groups_of(draft)[::5] + [group for group in groups_of(draft) if "ecursive" in group.name]
    assert worse(groups, known("outcomes.csv"), Counter()) == []
    assert len(groups) > 50


def schemas_in_use() -> list[Group]:
    path = real_file()
    assert path is not None
    return list(real(path))


needs_real = pytest.mark.skipif(
    real_file() is None, reason="TIRAGE_REAL_SCHEMAS must name the schemas of jsonschemabench, one JSON object per line"
)


@pytest.mark.slow
@needs_real
def test_every_fifth_schema_in_use_is_judged_rightly() -> None:
    assert worse(schemas_in_use()[::5], known("real.csv"), Counter()) == []


@pytest.mark.exhaustive
@needs_real
def test_schemas_in_use_are_judged_rightly() -> None:
    counts, groups = Counter[str](), schemas_in_use()
    assert worse(groups, known("real.csv"), counts) == []
    assert counts["taken"] >= 0.92 * len(groups), counts


# --- token by token --------------------------------------------------------------------------------------------------


def many_tokens(groups: list[Group]) -> Vocabulary:
    """A vocabulary of 100,000 tokens: bytes, and what stands most often in JSON texts, up to eight bytes of it."""
    found = Counter[bytes]()
    for group in groups:
        for part in re.findall(rb"[^\W\d_]+|[\W\d_]+", written([group.schema, group.values])):
            found.update(part[i : i + size] for i in range(len(part)) for size in range(2, 9) if i + size <= len(part))
    common = [token for token, _ in found.most_common(WIDTH - 256)]
    extra = [f"{i:x}".encode() for i in range(1 << 20, (1 << 20) + WIDTH - 256 - len(common))]
    return Vocabulary((*(bytes([b]) for b in range(256)), *common, *extra, b""), {})


def cut(data: bytes, vocabulary: Vocabulary, ids: dict[bytes, int]) -> list[int]:
    """A text as the longest tokens, from left to right."""
    found, at = [], 0
    while at < len(data):
        size = next(n for n in range(min(16, len(data) - at), 0, -1) if data[at : at + n] in ids)
        found.append(ids[data[at : at + size]])
        at += size
    return found


def follows(grammar: Grammar, tokens: list[int]) -> bool:
    """Whether each token is in the mask before it, is accepted then, and the text is complete at the end."""
    matcher = grammar.matcher()
    mask = np.zeros(matcher.vocabulary.words, np.int32)
    for token in tokens:
        matcher.fill_mask(mask)
        is_allowed = bool(mask[token // 32] >> token % 32 & 1)
        assert matcher.accept(token) == is_allowed
        if not is_allowed:
            return False
    return matcher.complete


@cache
def vocabularies() -> dict[str, Vocabulary]:
    llm = tirage.LLM("tiny")
    own = Vocabulary.of(llm.tokenizer, llm.model.vocab_size)
    return {"tiny": own, "many": many_tokens(list(islice(suite(), 0, None, 7)))}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny", "many"])
def test_masks_say_of_every_token_what_the_bytes_say(name: str) -> None:
    check_masks(name, [*islice(suite(), 3, None, 29)])


@pytest.mark.exhaustive
@needs_real
@pytest.mark.parametrize("name", ["tiny", "many"])
def test_masks_of_all_schemas_say_what_the_bytes_say(name: str) -> None:
    check_masks(name, [*suite(), *schemas_in_use()])


def check_masks(name: str, groups: list[Group]) -> None:
    """Walks the values of some groups token by token, and byte by byte: both find the same."""
    vocabulary = vocabularies()[name]
    ids: dict[bytes, int] = {token: i for i, token in reversed([*enumerate(vocabulary.tokens)]) if token}
    compiler, bytewise, walked = Compiler(vocabulary), Compiler(BYTES), 0
    for group in groups:
        grammar, by_bytes = compiled(compiler, group.schema), compiled(bytewise, group.schema)
        assert (grammar is None) == (by_bytes is None)
        if grammar is None or by_bytes is None:
            continue
        for value, is_valid in group.values:
            data = written(value)
            found = takes(by_bytes, data)
            walked += 1
            # Valid texts that are missed are counted above. The library bounds its work, which is more over bytes.
            if found or not is_valid:
                assert follows(grammar, cut(data, vocabulary, ids)) == found, (group.name, value)
    assert walked > len(groups)


def test_the_outcomes_name_what_is_there() -> None:
    names = {group.name for group in suite()}
    listed = known("outcomes.csv")
    assert set(listed) <= names
    assert all(each == "refused" or int(each) > 0 for each in listed.values())
