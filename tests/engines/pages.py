"""The Python blocks of a page, run one after the other in one namespace."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def blocks_of(page: str, fence: str) -> list[str]:
    """The blocks of docs/PAGE.md that begin with this fence."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{fence}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def run(name: str, *, folder: str = "engines", fence: str = "python") -> int:
    """Runs the blocks of docs/FOLDER/NAME.md in the current folder; the number of blocks.

    The engine's own code on the pages of docs/coming_from has the fence "py": `make test` has no engine to run it.
    """
    blocks = blocks_of(f"{folder}/{name}", fence)
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, f"{name}.md", "exec"), namespace)
    return len(blocks)
