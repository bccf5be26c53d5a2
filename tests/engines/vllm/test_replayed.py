"""Seeded tokens of vLLM drawn again by `tirage.replay_engine`: of requests to its engine, and of its functions."""

from __future__ import annotations

from pathlib import Path

from replayed import drawn_and_recorded, lines_of

HERE = Path(__file__).parent


def test_requests_to_the_engine_are_drawn_again(tmp_path: Path) -> None:
    found = lines_of(HERE / "requests_replayed.py", tmp_path / "llama")
    assert found == [{"tokens": 120, "same": 120, "certain": 120}]


def test_what_its_functions_draw_is_what_was_recorded() -> None:
    drawn, recorded = drawn_and_recorded(HERE)
    assert len(drawn) == 45
    assert drawn == recorded
