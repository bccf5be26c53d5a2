"""The table of what servers honour: `python -m tirage.remote.reference docs/remote.md` writes it anew."""

from __future__ import annotations

import sys
from pathlib import Path

from tirage.params import FIELDS
from tirage.remote.routes import REMOTE_DIALECTS, honoured

HEAD = "| parameter |"


def table() -> str:
    """Every parameter with what each dialect's server can be asked for, in Markdown."""
    names = [*REMOTE_DIALECTS]
    lines = [f"{HEAD} {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for name, spec in FIELDS.items():
        if spec.public:
            lines.append(f"| `{name}` | {' | '.join(_said(name, dialect) for dialect in names)} |")
    return "\n".join(lines) + "\n"


def filled(page: str) -> str:
    """The page with its table up to date; ValueError for one without the table."""
    before, head, after = page.partition(f"\n{HEAD}")
    if not head:
        raise ValueError("the page has no table of what servers honour")
    return f"{before}\n{table()}{after[after.index(chr(10) * 2) + 1 :]}"


def _said(name: str, dialect: str) -> str:
    """Whether the routes of a dialect honour a parameter: both, that for prompts, that for chats, or neither."""
    found = REMOTE_DIALECTS[dialect]
    if name == "semantics" and dialect != "tirage":
        return f"`{found.prompts.dialect.preset}`"
    prompts, chats = name in honoured(found.prompts), name in honoured(found.chats)
    return {(True, True): "yes", (True, False): "not in chats", (False, True): "in chats"}.get((prompts, chats), "")


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
