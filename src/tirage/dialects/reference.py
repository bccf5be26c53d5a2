"""The table of dialects in docs/dialects.md: `python -m tirage.dialects.reference docs/dialects.md` writes it anew."""

from __future__ import annotations

import sys
from pathlib import Path

from tirage.dialects.registry import DIALECTS, RegisteredDialect

HEAD = "| functions | fields of | meaning (`semantics`) | tokens without a limit |\n|---|---|---|---|\n"


def table() -> str:
    """Every dialect with its functions, its preset and its default length, in Markdown."""
    return HEAD + "".join(map(_row, DIALECTS.values()))


def filled(page: str) -> str:
    """The page with its table up to date; ValueError for one without the table."""
    before, head, after = page.partition(HEAD)
    if not head:
        raise ValueError("the page has no table of dialects")
    return before + table() + after[after.index("\n\n") + 1 :]


def _row(each: RegisteredDialect) -> str:
    options = "".join(f", `{name}={value!r}`" for name, value in each.options.items())
    functions = f"`{each.reader.__name__}`, `{each.writer.__name__}`{options}"
    limit = each.read({}).max_tokens
    return f"| {functions} | {each.request} | `{each.dialect.preset}` | {'context' if limit is None else limit} |\n"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
