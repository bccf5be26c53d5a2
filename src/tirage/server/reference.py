"""The tables in docs/serving.md: `python -m tirage.server.reference docs/serving.md` updates them."""

from __future__ import annotations

import sys
from pathlib import Path

from tirage.server.admission import PROMPT_RULES, REQUEST_RULES
from tirage.server.options import FLAGS, Flag

HEAD = "| flag | default | meaning |\n|---|---|---|\n"
ADMISSION = "| counted | of each | at most | flag |\n|---|---|---|---|\n"


def admission() -> str:
    """Every rule of admission with its limit, in Markdown."""
    rules = [*((rule, "prompt") for rule in PROMPT_RULES), *((rule, "request") for rule in REQUEST_RULES)]
    rows = [(rule.what, of, shown(FLAGS[rule.limit]), FLAGS[rule.limit].flag) for rule, of in rules]
    return ADMISSION + "".join(f"| {what} | {of} | {most} | `{flag}` |\n" for what, of, most, flag in rows)


def flags() -> str:
    """Every flag with its default and meaning, in Markdown."""
    return HEAD + "".join(f"| `{flag.flag}` | {shown(flag)} | {flag.help} |\n" for flag in FLAGS.values())


def shown(flag: Flag) -> str:
    """A default as shown in the table."""
    if flag.default in (None, ()):
        return ""
    return "off" if flag.default is False else str(flag.default)


def filled(text: str) -> str:
    """The page with its tables updated; raises ValueError for a page without one of them."""
    for head, table in ((HEAD, flags()), (ADMISSION, admission())):
        before, found, after = text.partition(head)
        if not found:
            raise ValueError(f"the page has no table {head.splitlines()[0]}")
        while after.startswith("|"):
            after = after.partition("\n")[2]
        text = before + table + after
    return text


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
