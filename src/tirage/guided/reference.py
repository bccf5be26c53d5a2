"""The part of docs/guided.md that lists what is enforced: `python -m tirage.guided.reference docs/guided.md`."""

from __future__ import annotations

import sys
from pathlib import Path

from tirage.guided.supported import supported

START, END = "<!-- supported -->\n", "<!-- /supported -->\n"


def listing() -> str:
    """The list as Markdown."""
    found = supported()
    refused = ", ".join(f"`{name}` ({remedy})" for name, remedy in found["refused"].items())
    return "\n".join((
        "* **keywords**: " + quoted(found["keywords"]),
        "* **string formats**: " + quoted(found["formats"]),
        "* **annotations**, which decide nothing: " + quoted(found["annotations"]) + " and all that begin with `x-`",
        "* **refused**: " + refused,
        "* **structural tags**: " + quoted(found["structural_tags"]),
        "* **xgrammar** is given only: " + quoted(found["xgrammar"]),
    ))


def quoted(names: list[str]) -> str:
    """Names as code, with commas."""
    return ", ".join(f"`{name}`" for name in names)


def renewed(page: str) -> str:
    """The page with its list brought up to date."""
    before, rest = page.split(START, 1)
    return f"{before}{START}{listing()}\n{END}{rest.split(END, 1)[1]}"


def main() -> None:
    """Rewrites the page that is named."""
    path = Path(sys.argv[1])
    path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
