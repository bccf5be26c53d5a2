"""The playground's files: what they may load, what they may do with text, who may ask for them."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest
from servers import Server, shared

import tirage.server.playground as package
from tirage.server.playground.page import bundled

FOLDER = Path(package.__path__[0])
PAGE = (FOLDER / "index.html").read_text(encoding="utf-8")
SCRIPTS = sorted(FOLDER.glob("*.js"))
MARKUP = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|\beval\b|new Function|srcdoc"
INLINE = r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=|javascript:"
ELSEWHERE = r"(?:https?:)?//[\w.-]+"


@pytest.fixture
def server() -> Server:
    return shared("tiny")


def test_the_page_comes_with_a_policy_that_forbids_all_but_its_own_files(server: Server) -> None:
    answer = server.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert {policy[name] for name in ("img-src", "connect-src")} == {"'self'"}
    for kind, tag in (("script-src", "script"), ("style-src", "style")):
        (inline,) = re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", answer.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert policy[kind] == f"'sha256-{digest}'"
    assert {policy[name] for name in ("base-uri", "form-action", "frame-ancestors")} == {"'none'"}
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_page_has_everything_inside_but_its_icon(server: Server) -> None:
    text = server.get("/").text
    assert re.findall(r'(?:src|href)="(?!#)([^"]+)"', text) == ["playground/icon.svg"]
    assert server.get("/playground/icon.svg").headers["content-type"].startswith("image/svg+xml")
    for path in (*SCRIPTS, *FOLDER.glob("*.css")):
        longest = max(path.read_text(encoding="utf-8").splitlines(), key=len)
        assert longest in text, path.name
    assert re.search(r"^(import|export) ", text, re.MULTILINE) is None


def test_modules_become_one_script_in_the_order_of_their_imports() -> None:
    found = bundled({
        "b.js": 'import { one } from "./a.js";\nexport const two = one + 1;\n',
        "a.js": "export const one = 1;\nexport function f() {}\n",
    })
    assert found == (
        "const a_js = (() => {\nconst one = 1;\nfunction f() {}\n\nreturn { one, f };\n})();\n"
        "const b_js = (() => {\nconst { one } = a_js;\nconst two = one + 1;\n\nreturn { two };\n})();"
    )


def test_a_page_that_a_browser_has_is_not_sent_again(server: Server) -> None:
    first = server.get("/")
    again = server.get("/", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert server.get("/playground/icon.svg", headers={"if-none-match": first.headers["etag"]}).status_code == 200


@pytest.mark.parametrize(
    "name", ["nothing.js", "app.js", "..%2Foptions.py", "%2e%2e/options.py", "__init__.py", "../options.py"]
)
def test_no_other_file_is_sent(server: Server, name: str) -> None:
    assert server.get(f"/playground/{name}").status_code == 404


def test_nothing_is_loaded_from_elsewhere_and_nothing_stands_inline() -> None:
    assert re.search(INLINE, PAGE) is None
    for path in filter(Path.is_file, FOLDER.iterdir()):
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        comments = re.sub(r"^\s*(//|/?\*).*", "", text, flags=re.MULTILINE)
        assert re.search(ELSEWHERE, comments) is None, path.name


def test_text_never_becomes_markup_or_code() -> None:
    assert [path.name for path in SCRIPTS if re.search(MARKUP, path.read_text(encoding="utf-8"))] == []


def test_scripts_are_short_and_import_in_one_direction() -> None:
    imports = {path.name: set(re.findall(r'from "\./(\w+\.js)"', path.read_text(encoding="utf-8"))) for path in SCRIPTS}
    assert all(len(path.read_text(encoding="utf-8").splitlines()) < 300 for path in SCRIPTS)
    done: set[str] = set()
    while ready := {name for name, needs in imports.items() if name not in done and needs <= done}:
        done |= ready
    assert done == imports.keys()


@pytest.mark.slow
def test_the_page_needs_no_key_and_what_it_asks_does() -> None:
    guarded = shared("tiny", "--api-key", "the-key")
    statuses = [guarded.get(path).status_code for path in ("/", "/playground/icon.svg", "/model_info", "/version")]
    assert statuses == [200, 200, 401, 401]
    assert guarded.post("/explain", {"text": "a"}).status_code == 401


@pytest.mark.slow
def test_an_operator_can_leave_the_page_out_and_bound_what_it_asks() -> None:
    with Server("tiny", "--no-playground", "--requests-per-minute", "1") as server:
        statuses = [server.get(path).status_code for path in ("/", "/playground/icon.svg")]
        explained = [server.post("/explain", {"text": "a"}).status_code for _ in range(2)]
    assert (statuses, explained) == ([404, 404], [200, 429])
