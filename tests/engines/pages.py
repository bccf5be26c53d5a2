"""The Python blocks of a page of docs/engines, run one after the other in one namespace."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs" / "engines"


def run(name: str) -> int:
    """Runs the blocks of docs/engines/NAME.md in the current folder; the number of blocks."""
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / f"{name}.md").read_text(encoding="utf-8"), re.DOTALL | re.M)
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, f"{name}.md", "exec"), namespace)
    return len(blocks)
