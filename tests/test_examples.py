"""Each file of examples/ runs and prints what docs/gallery.md shows under it."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import runpy
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from servers import Server

from tirage.processors import unregister_processor

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
import gallery

SHOWN = gallery.outputs_on(gallery.PAGE.read_text(encoding="utf-8"))
NAMES = [name for names in gallery.GROUPS.values() for name in names]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Server("tiny") as server:
        yield server.url


def case(name: str) -> Any:
    """The name of an example, skipped where a package that it needs is not installed."""
    packages = gallery.read(name).packages
    missing = next((package for package in packages if importlib.util.find_spec(package) is None), None)
    return pytest.param(name, marks=pytest.mark.skipif(missing is not None, reason=f"{missing} is not installed"))


def printed(name: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        left = runpy.run_path(str(gallery.EXAMPLES / f"{name}.py"), run_name="__main__")
    if "client" in left:
        left["client"].close()  # a program's end does it otherwise
    return out.getvalue()


# tests/engines/llamacpp runs the one that takes a file.
@pytest.mark.slow
@pytest.mark.parametrize("name", [case(name) for name in NAMES if name not in gallery.WITH_FILES])
def test_an_example_prints_what_the_gallery_shows(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in gallery.SERVED:
        monkeypatch.setenv("TIRAGE_URL", request.getfixturevalue("url"))
    if name == "custom_processor":
        request.addfinalizer(partial(unregister_processor, "prefer"))
    assert printed(name) == SHOWN[name]


def test_the_gallery_holds_every_example_as_it_is() -> None:
    assert sorted(NAMES) == sorted(path.stem for path in gallery.EXAMPLES.glob("*.py"))
    text = gallery.PAGE.read_text(encoding="utf-8")
    assert gallery.page(gallery.outputs_on(text)) == text
    assert set(SHOWN) == set(NAMES) - set(gallery.WITH_FILES)


def test_an_example_is_short_and_says_what_it_shows() -> None:
    for name in NAMES:
        lines = (gallery.EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()
        assert len(lines) <= gallery.LINES.get(name, 40), name
        assert gallery.read(name).title[-1] != ".", name


def test_a_changed_output_on_the_page_is_noticed() -> None:
    text = gallery.page({**SHOWN, "bad_words": "other words\n"})
    assert gallery.outputs_on(text)["bad_words"] == "other words\n"
    assert gallery.outputs_on(text)["beams"] == SHOWN["beams"]
