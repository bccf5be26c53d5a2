"""A headless Chromium for tests of pages: one that is installed, driven by Playwright."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
CHROMIUM = os.environ.get("TIRAGE_TEST_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
"""The browser that TIRAGE_TEST_CHROMIUM names, or one on the path."""

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("playwright") is None,
    reason="needs Playwright (pip install playwright) and a Chromium (make browser, or TIRAGE_TEST_CHROMIUM)",
)


@contextmanager
def open_browser() -> Iterator[Any]:
    """The browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        # Chromium's own sandbox does not start as root or in most containers; the pages are our own.
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()
