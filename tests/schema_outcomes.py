"""What becomes of published schemas: refused, or how many values are judged rightly, missed, or wrongly allowed.

`python tests/schema_outcomes.py` writes the lists that tests/test_json_schema_suite.py holds the compiler to.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tirage import GrammarError, GuidedDecodingParams
from tirage.guided import BYTES, Compiler, Grammar

FOLDER = Path(__file__).parent / "data" / "json_schema_suite"
DRAFTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
OPTIONAL_BY_CHOICE = ("draft7 optional/content.json",)
"""What a validator of draft 7 may assert and later ones may not: the content of a string. It is an annotation here."""


@dataclass(frozen=True)
class Group:
    """A schema with values that it allows (True) or forbids."""

    name: str
    schema: Any
    values: tuple[tuple[Any, bool], ...]


@dataclass(frozen=True)
class Outcome:
    """What became of a group; `wrong` are values that are allowed and must not be."""

    is_refused: bool
    right: int = 0
    missed: int = 0
    wrong: tuple[str, ...] = ()


def lines(path: Path) -> Iterator[str]:
    """The lines of a compressed file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from file


def suite() -> Iterator[Group]:
    """The groups of the published suite, each schema with the draft it is for."""
    counts: dict[str, int] = {}
    for line in lines(FOLDER / "suite.jsonl.gz"):
        found = json.loads(line)
        place = f"{found['draft']} {found['file']}"
        counts[place] = counts.get(place, 0) + 1
        schema = found["schema"]
        named = {"$schema": DRAFTS[found["draft"]]} | schema if isinstance(schema, dict) else schema
        values = tuple((test["data"], test["valid"]) for test in found["tests"])
        yield Group(f"{place} {counts[place]}", named, values)


def real_file() -> Path | None:
    """The file of schemas in use: TIRAGE_REAL_SCHEMAS names it, or it lies in `shared/data` beside the project."""
    named = [Path(os.environ["TIRAGE_REAL_SCHEMAS"])] if "TIRAGE_REAL_SCHEMAS" in os.environ else []
    beside = [folder / "shared" / "data" / "schemas_real.jsonl.gz" for folder in Path(__file__).resolve().parents]
    return next((path for path in (*named, *beside) if path.exists()), None)


def real(path: Path) -> Iterator[Group]:
    """The schemas in use."""
    for line in lines(path):
        found = json.loads(line)
        yield Group(found["name"], found["schema"], tuple((test["data"], test["valid"]) for test in found["tests"]))


def written(value: Any) -> bytes:
    """A value as compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def takes(grammar: Grammar, data: bytes) -> bool:
    """Whether a whole text, byte by byte, satisfies a grammar over BYTES."""
    matcher = grammar.matcher()
    return all(map(matcher.accept, data)) and matcher.complete


def compiled(compiler: Compiler, schema: Any) -> Grammar | None:
    """The grammar of a schema; None if it is refused."""
    try:
        return compiler.compile(GuidedDecodingParams(json=json.dumps(schema)))
    except GrammarError:
        return None


def outcome(group: Group) -> Outcome:
    """What becomes of one group."""
    grammar = compiled(Compiler(BYTES), group.schema)
    if grammar is None:
        return Outcome(is_refused=True)
    allowed = [(takes(grammar, written(value)), is_valid, value) for value, is_valid in group.values]
    wrong = [f"{group.name}: {value!r:.100}" for is_allowed, is_valid, value in allowed if is_allowed and not is_valid]
    return Outcome(
        is_refused=False,
        right=sum(is_allowed == is_valid for is_allowed, is_valid, _ in allowed),
        missed=sum(is_valid and not is_allowed for is_allowed, is_valid, _ in allowed),
        wrong=() if group.name.startswith(OPTIONAL_BY_CHOICE) else tuple(wrong),
    )


def known(name: str) -> dict[str, str]:
    """What was found of the groups that are not judged rightly as a whole: `refused`, or how many values are missed."""
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        return {row["group"]: row["outcome"] for row in csv.DictReader(file)}


def save(name: str, groups: Iterator[Group]) -> None:
    """Writes what is found of the groups that are not judged rightly as a whole."""
    with (FOLDER / name).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["group", "outcome"])
        for group in groups:
            found = outcome(group)
            if found.is_refused or found.missed:
                writer.writerow([group.name, "refused" if found.is_refused else found.missed])


if __name__ == "__main__":
    save("outcomes.csv", suite())
    if (path := real_file()) is not None:
        save("real.csv", real(path))
