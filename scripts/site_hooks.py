"""What the documentation site needs beyond mkdocs: pages outside docs/, notebooks.

mkdocs calls these functions by their names; mkdocs.yml lists this file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ROOT_PAGES = ("SPEC.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""Pages that stand at the root of the repository and are pages of the site too."""

LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The configuration without the entries of the navigation whose page is not there.

    A page that such an entry misspells has no place then, which ends the build.
    """
    config.nav = list(_existing(config.nav or []))
    return config


def _existing(entries: list[Any]) -> Iterator[Any]:
    for entry in entries:
        title, value = next(iter(entry.items()))
        if isinstance(value, list):
            yield {title: list(_existing(value))}
        elif value in ROOT_PAGES or any((DOCS / value).with_suffix(kind).exists() for kind in (".md", ".ipynb")):
            yield entry


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files of docs/, the pages of the root, each notebook as a page, and what pages link to outside docs/."""
    for path in DOCS.rglob("*.ipynb"):
        name = path.relative_to(DOCS).with_suffix(".md").as_posix()
        files.append(File.generated(config, name, content=notebook_page(path)))
    for name in ROOT_PAGES:
        files.append(File.generated(config, name, content=linked(ROOT / name, PurePosixPath(name))))
    pages = [*DOCS.rglob("*.md"), *(ROOT / name for name in ROOT_PAGES)]
    for outside in sorted({target for page in pages for target in targets(page) if is_outside(target)}):
        files.append(File.generated(config, place(outside), abs_src_path=str(outside)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with its links to files outside docs/ leading to their places in the site."""
    if page.parent is None:
        # Beside a page without neighbours the navigation would have one entry.
        page.meta["hide"] = ["navigation"]
    source = DOCS / page.file.src_uri
    return linked(source, PurePosixPath(page.file.src_uri), markdown) if source.exists() else markdown


def linked(source: Path, uri: PurePosixPath, text: str | None = None) -> str:
    """The text of a page whose links are relative to `uri`, its place in the site, instead of to its file."""

    def moved(found: re.Match[str]) -> str:
        target = (source.parent / found[1]).resolve()
        if not target.exists():
            return found[0]
        return f"]({os.path.relpath(place(target), uri.parent.as_posix())}"

    return LINK.sub(moved, source.read_text(encoding="utf-8") if text is None else text)


def targets(page: Path) -> list[Path]:
    """The files that a page links to."""
    found = [(page.parent / target).resolve() for target in LINK.findall(page.read_text(encoding="utf-8"))]
    return [target for target in found if target.is_file()]


def is_outside(target: Path) -> bool:
    """Whether a file is neither in docs/ nor one of the pages of the root."""
    return not target.is_relative_to(DOCS) and target.relative_to(ROOT).as_posix() not in ROOT_PAGES


def place(target: Path) -> str:
    """Where a file of the repository stands in the site; a notebook is a page there."""
    if target.suffix == ".ipynb":
        target = target.with_suffix(".md")
    if target.is_relative_to(DOCS):
        return target.relative_to(DOCS).as_posix()
    name = target.relative_to(ROOT).as_posix()
    return name if name in ROOT_PAGES else f"repository/{name}"


def notebook_page(path: Path) -> str:
    """A notebook with its stored outputs, as Markdown."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join(part for cell in cells for part in _cell(cell))


def _cell(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] != "code":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        data = output.get("data", {})
        text = "".join(output.get("text", data.get("text/plain", "")))
        if "image/png" in data:
            yield f"![]({'data:image/png;base64,' + ''.join(data['image/png']).replace(chr(10), '')})"
        elif text:
            yield f"```text\n{text.rstrip()}\n```"
