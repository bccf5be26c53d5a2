"""docs/engines/sglang.md does what it shows."""

from __future__ import annotations

from pathlib import Path

import pages
import published
import pytest


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert published
    monkeypatch.chdir(tmp_path)
    assert pages.run("sglang") == 1
    assert capsys.readouterr().out
