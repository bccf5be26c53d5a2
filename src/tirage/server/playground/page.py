"""The playground as one file: what its page names stands inside it, so that a browser asks once."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from importlib.resources import files

_MAIN = "app.js"
_STYLES = re.compile(r'<link rel="stylesheet" href="playground/([\w.]+)">\n')
_SCRIPT = f'<script type="module" src="playground/{_MAIN}"></script>'
_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./([\w.]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*?|class|const|let) (\w+))", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Page:
    """The page, and the sources of its styles and scripts as a Content-Security-Policy names them: by their digests."""

    content: bytes
    style_source: str
    script_source: str


@cache
def page() -> Page:
    """The page of this package. Raises ValueError for files that cannot stand in one."""
    folder = files("tirage.server.playground")
    index = folder.joinpath("index.html").read_text(encoding="utf-8")
    styles = "".join(folder.joinpath(name).read_text(encoding="utf-8") for name in _STYLES.findall(index))
    script = bundled({
        each.name: each.read_text(encoding="utf-8") for each in folder.iterdir() if each.name.endswith(".js")
    })
    for text in (styles, script):
        if re.search(r"</(style|script)|<!--", text, re.IGNORECASE):
            raise ValueError("styles and scripts of the page must not hold marks that end them or begin a comment")
    index = _STYLES.sub("", index)
    index = index.replace(_SCRIPT, f'<style>{styles}</style>\n<script type="module">{script}</script>')
    return Page(index.encode(), source_of(styles), source_of(script))


def source_of(text: str) -> str:
    """The digest of an inline style or script, in the form of a policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def bundled(modules: Mapping[str, str]) -> str:
    """The modules as one script, each a function that gives what it exports, after those that it imports from."""
    needs = {name: {needed for _, needed in _IMPORT.findall(text)} for name, text in modules.items()}
    return "\n".join(wrapped(name, modules[name]) for name in TopologicalSorter(needs).static_order())


def wrapped(name: str, text: str) -> str:
    """A module as a constant that has its exports."""
    body = _IMPORT.sub(lambda found: f"const {found[1]} = {variable(found[2])};\n", text)
    exported = ", ".join(_EXPORT.findall(body))
    return f"const {variable(name)} = (() => {{\n{_EXPORT.sub('', body)}\nreturn {{ {exported} }};\n}})();"


def variable(name: str) -> str:
    """The constant that has the exports of a module."""
    return name.replace(".", "_")
