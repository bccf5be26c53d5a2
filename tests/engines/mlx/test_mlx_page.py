"""docs/engines/mlx.md and docs/coming_from/mlx.md do what they show."""

from __future__ import annotations

from pathlib import Path

import pages
import pytest
from llama_folder import write_folder


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    assert pages.run("mlx") == 4
    assert capsys.readouterr().out
    assert pages.run("mlx", folder="coming_from", fence="py") == 2
    assert len(capsys.readouterr().out) > 20
