"""Seeded tokens of SGLang's own functions: those recorded, which `tirage.replay_engine` draws again."""

from __future__ import annotations

from pathlib import Path

from replayed import drawn_and_recorded


def test_what_its_functions_draw_is_what_was_recorded() -> None:
    drawn, recorded = drawn_and_recorded(Path(__file__).parent)
    assert drawn == recorded
