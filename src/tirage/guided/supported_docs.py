"""Writes the list of what is enforced into docs/guided.md: `python -m tirage.guided.supported_docs docs/guided.md`."""

from __future__ import annotations

import sys
from pathlib import Path

from tirage.guided.supported import supported

START, END = "<!-- supported -->\n", "<!-- /supported -->\n"


def listing() -> str:
    """The list as Markdown."""
    found = supported()
    refused = ", ".join(f"`{name}` {what}" for name, what in found["refused"].items())
    return "\n".join((
        "* **keywords**: " + quoted(found["keywords"]),
        "* **string formats**: " + quoted(found["formats"]),
        "* **annotations**, which decide nothing: " + quoted(found["annotations"]) + " and all that begin with `x-`",
        "* **refused**: " + refused,
        "* **structural tags**: " + quoted(found["structural_tags"]),
        "* **xgrammar** is given only: " + quoted(found["xgrammar"]),
    ))


def quoted(names: list[str]) -> str:
    """The names as inline code, separated by commas."""
    return ", ".join(f"`{name}`" for name in names)


def renewed(page: str) -> str:
    """The page with an up-to-date list."""
    before, rest = page.split(START, 1)
    return f"{before}{START}{listing()}\n{END}{rest.split(END, 1)[1]}"


def main() -> None:
    """Rewrites the page that the command line names."""
    path = Path(sys.argv[1])
    path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
