"""docs/engines/transformers.md and docs/coming_from/huggingface.md do what they show."""

from __future__ import annotations

from pathlib import Path

import pages
import pytest
from llama_folder import write_folder


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    assert pages.run("transformers") == 2
    assert capsys.readouterr().out
    assert pages.run("huggingface", folder="coming_from", fence="py") == 1
    assert "Once upon a time" in capsys.readouterr().out
