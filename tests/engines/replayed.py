"""What an engine's own functions draw now, beside what was recorded of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[1] / "data" / "engine_draws.jsonl"
Tokens = dict[tuple[str, str], list[int]]


def lines_of(program: Path, *arguments: object) -> list[dict[str, Any]]:
    """The lines of JSON that a program prints."""
    command = [sys.executable, program, *map(str, arguments)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


def drawn_and_recorded(folder: Path) -> tuple[Tokens, Tokens]:
    """The tokens of each request by `draws.py` of an engine's folder, and those recorded for the same requests."""
    drawn = _by_name(lines_of(folder / "draws.py"))
    recorded = _by_name(map(json.loads, RECORDED.read_text().splitlines()))
    assert drawn
    return drawn, {key: recorded[key] for key in drawn}


def _by_name(lines: Iterable[Mapping[str, Any]]) -> Tokens:
    return {(each["engine"], each["name"]): each["token_ids"] for each in lines}
