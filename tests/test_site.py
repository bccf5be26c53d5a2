"""The documentation site: it builds without a warning, its links lead somewhere, nothing is loaded from other hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from browser import needs_chromium, open_browser

import tirage
from tirage.params import BeamSearchParams, GuidedDecodingParams, SamplingParams, reference

ROOT = Path(__file__).parents[1]
PLOTS = ROOT / "docs" / "plots"
LOADED = {"script": "src", "img": "src", "source": "src", "iframe": "src", "video": "src", "audio": "src"}
"""The attribute by which an element loads something."""


class Page(HTMLParser):
    """What a page links to, loads, and can be linked to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.anchors = {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.add(found["href"])
        if tag == "link" and found.get("rel") not in {"canonical", "next", "prev"}:
            self.loads.add(found.get("href", ""))
        if tag in LOADED and LOADED[tag] in found:
            self.loads.add(found[LOADED[tag]])


def path_in(site: Path, page: Path, target: str) -> Path:
    """The file that a page means; a path from the root is one in the site."""
    if not target:
        return page
    return (site / target.lstrip("/") if target.startswith("/") else page.parent / target).resolve()


def broken(site: Path) -> list[str]:
    """Links and loads of a site that lead nowhere, or loads from elsewhere."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        for link in sorted(page.links | page.loads):
            target, problem = urlsplit(link), f"{path.relative_to(site)}: {link}"
            if target.scheme in {"http", "https"} or target.netloc:
                found += [f"{problem} is loaded from another host"] * (link in page.loads)
            elif not target.scheme:
                led = path_in(site, path, unquote(target.path))
                if not led.is_file():
                    found.append(f"{problem} leads nowhere")
                elif led in pages and unquote(target.fragment) not in pages[led].anchors:
                    found.append(f"{problem} has no such place")
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make site` builds it: a warning, such as a page that is not in the navigation, ends the build."""
    pytest.importorskip("mkdocs", reason="needs mkdocs; the dependency group docs has it")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=600)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.mark.slow
def test_every_page_is_in_the_site_its_links_lead_somewhere_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    docs = ROOT / "docs"
    pages = [path.relative_to(docs).with_suffix(".html") for kind in ("*.md", "*.ipynb") for path in docs.rglob(kind)]
    assert [str(page) for page in pages if not (site / page).is_file()] == []
    assert broken(site) == []
    for style in site.rglob("*.css"):
        assert re.findall(r"url\([\"']?(?:https?:)?//[^)]*", style.read_text(encoding="utf-8")) == []


def test_a_broken_link_and_a_foreign_script_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there">x</a><a href="c.html">y</a><a href="https://example.org">z</a>'
    )
    (tmp_path / "b.html").write_text('<p id="here"></p><script src="https://example.org/x.js"></script>')
    assert broken(tmp_path) == [
        "a.html: b.html#there has no such place",
        "a.html: c.html leads nowhere",
        "b.html: https://example.org/x.js is loaded from another host",
    ]


@needs_chromium
@pytest.mark.slow
def test_a_browser_asks_no_host_and_pages_fit_the_width_of_a_phone(site: Path) -> None:
    names = ("index.html", "parameters.html", "serving.html", "gallery.html")
    asked: list[str] = []
    widths = {}
    with open_browser() as browser:
        page: Any = browser.new_page(viewport={"width": 390, "height": 844})
        page.on("request", lambda request: asked.append(request.url))
        for name in names:
            page.goto((site / name).as_uri())
            widths[name] = page.evaluate("document.documentElement.scrollWidth")
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert any(url.endswith("plots/top_p.svg") for url in asked)
    assert widths == dict.fromkeys(names, 390)


@pytest.mark.slow
def test_every_plot_is_what_the_program_draws_now() -> None:
    from scripts import parameter_plots

    wrong = [path.name for path, text in parameter_plots.figures() if path.read_text(encoding="utf-8") != text]
    assert wrong == [], "run make docs"


def test_every_public_name_is_on_the_page_of_the_api() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^(?::::|###) (?:[\w.]+\.)?(\w+)$", page, re.MULTILINE))
    assert set(tirage.__all__) - listed == set()


def test_every_parameter_has_a_plot_or_a_reason_to_have_none() -> None:
    prefixes = {SamplingParams: "", GuidedDecodingParams: "guided_", BeamSearchParams: "beam_"}
    names = {prefix + name for kind, prefix in prefixes.items() for name in reference.specs(kind)}
    assert set(reference.plots()) == {path.stem for path in PLOTS.iterdir()} == names - set(reference.WITHOUT_PLOT)
    assert set(reference.WITHOUT_PLOT) <= names


def test_plots_are_small_and_load_nothing() -> None:
    for path in [*PLOTS.iterdir(), *(ROOT / "docs" / "pictures").glob("*.svg")]:
        text = path.read_text(encoding="utf-8")
        assert len(text) < 12_000, path.name
        assert "href" not in text
        assert "prefers-color-scheme:dark" in text
