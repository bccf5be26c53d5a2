"""The table of flags in docs/serving.md: `python -m tirage.server.reference docs/serving.md` updates it."""

from __future__ import annotations

import sys
from pathlib import Path

from tirage.server.options import FLAGS, Flag

HEAD = "| flag | default | meaning |\n|---|---|---|\n"


def table() -> str:
    """Every flag with its default and meaning, in Markdown."""
    return HEAD + "".join(f"| `{flag.flag}` | {shown(flag)} | {flag.help} |\n" for flag in FLAGS.values())


def shown(flag: Flag) -> str:
    """A default as shown in the table."""
    if flag.default in (None, ()):
        return ""
    return "off" if flag.default is False else str(flag.default)


def filled(text: str) -> str:
    """The page with the table updated; raises ValueError for a page without one."""
    before, head, after = text.partition(HEAD)
    if not head:
        raise ValueError("the page has no table of flags")
    while after.startswith("|"):
        after = after.partition("\n")[2]
    return before + table() + after


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
