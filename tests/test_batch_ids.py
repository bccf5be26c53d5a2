"""Ids of a file's rows: no two rows have one, and the error names both lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tirage import ParamsError
from tirage.cluster import generate, row_ids
from tirage.cluster.input_file import InputFile
from tirage.cluster.row_ids import check_ids


def written(path: Path, rows: list[Any]) -> InputFile:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return InputFile(path)


def own(row_id: Any) -> dict[str, Any]:
    return {"id": row_id, "prompt": "The"}


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([own("a"), own("b"), own("a")], r"'a' on lines 1 and 3; the row's seed follows from it"),
        ([own(7), "", own("7")], r"'7' on lines 1 and 3"),
        ([own("x"), "{broken", {"custom_id": "x", "url": "/v1/completions", "body": {}}], "'x' on lines 1 and 3"),
        ([own(i) for i in range(600)] + [own(300)], "'300' on lines 301 and 601"),
    ],
)
def test_two_rows_with_one_id_are_refused_before_anything_is_drawn(tmp_path: Path, lines: list[Any], told: str) -> None:
    written(tmp_path / "in.jsonl", lines)
    with pytest.raises(ParamsError, match=f"id must be different for each row, got {told}"):
        generate(tmp_path / "in.jsonl", out=tmp_path / "out", model="not opened")
    assert not (tmp_path / "out").exists()


def test_lines_that_are_no_rows_have_no_id(tmp_path: Path) -> None:
    lines = ["[1]", "[1]", "{broken", "{broken", '{"id": null}', '{"id": null}', '{"id": true}', '{"id": true}']
    check_ids(written(tmp_path / "in.jsonl", [*lines, own("a"), own("b")]))


def test_rows_whose_ids_have_one_hash_are_two_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_ids, "hash", lambda text: 1, raising=False)
    check_ids(written(tmp_path / "in.jsonl", [own("a"), own("b")]))
    with pytest.raises(ParamsError, match="'a' on lines 1 and 3"):
        check_ids(written(tmp_path / "in.jsonl", [own("a"), own("b"), own("a")]))
