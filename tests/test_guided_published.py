"""The published JSON-Schema-Test-Suite: no value that it calls invalid is ever allowed.

Runs where TIRAGE_JSON_SCHEMA_SUITE names the `tests` folder of a copy; the source archive of the `jsonschema` package
holds one as `json/tests`. Cases stated by hand from the specification are in test_guided_schema.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_guided import over_bytes, takes

from tirage import GrammarError

SUITE = os.environ.get("TIRAGE_JSON_SCHEMA_SUITE", "")
DRAFTS = {
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
# Valid values that may be refused: numbers and properties have one spelling and one order, formats are enforced.
STRICTER = {"allOf.json", "const.json", "enum.json", "format.json", "type.json"}


def groups(draft: str) -> Iterator[tuple[str, Any, list[dict[str, Any]]]]:
    """Name of the file, schema and tests of every group."""
    for path in sorted((Path(SUITE) / draft).glob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            schema = group["schema"]
            named = schema if isinstance(schema, bool) else {"$schema": DRAFTS[draft], **schema}
            yield path.name, named, group["tests"]


@pytest.mark.skipif(not SUITE, reason="TIRAGE_JSON_SCHEMA_SUITE must name the tests folder of JSON-Schema-Test-Suite")
@pytest.mark.parametrize("draft", DRAFTS)
def test_no_value_that_the_suite_calls_invalid_is_allowed(draft: str) -> None:
    counts, wrong, stricter = Counter[str](), list[str](), set[str]()
    for name, schema, tests in groups(draft):
        try:
            grammar = over_bytes(json=json.dumps(schema))
        except GrammarError:
            counts["refused"] += 1
            continue
        for test in tests:
            allowed = takes(grammar, json.dumps(test["data"], ensure_ascii=False, separators=(",", ":")))
            counts["judged"] += 1
            if allowed and not test["valid"]:
                wrong.append(f"{name}: {test['description']}")
            if test["valid"] and not allowed:
                stricter.add(name)
    assert wrong == []
    assert stricter <= STRICTER
    assert counts["judged"] > 400
    assert counts["refused"] > 50
