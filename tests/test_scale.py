"""The page on scale: its table is that of the committed results, and the simulation knows what it must."""

from __future__ import annotations

import json

from benchmarks import scale


def test_the_page_has_the_committed_results() -> None:
    rows = json.loads((scale.RESULTS / "scale.json").read_text())["rows"]
    text = scale.PAGE.read_text(encoding="utf-8")
    assert scale.filled(text, rows) == text
    assert [row["machines"] for row in rows] == [1, 10, 1000]


def test_the_costs_are_those_of_the_committed_measurements() -> None:
    rows = json.loads((scale.RESULTS / "scale.json").read_text())["rows"]
    draw = scale.committed("one_pass", shape="medium", V=scale.VOCAB, B=64, config="top_p")["us_per_row"]
    serve = scale.committed("ray_serve", way="two replicas", streams=16)["more_than_one_server_us"]
    for row in rows:
        assert row["draws_cores"] == round(row["tokens_per_s"] * draw / 1e6, 1)
        assert row["ray_serve_cores"] == round(row["tokens_per_s"] * serve / 1e6, 1)


def test_requests_wait_where_there_is_too_much_to_do() -> None:
    assert max(scale.waits(1, 0.3)) == 0.0
    assert min(scale.waits(1, 1.5)) > 1.0


def test_one_machine_is_never_idle_and_too_many_are() -> None:
    assert scale.file_efficiency(1, 2000) == 1.0
    assert scale.file_efficiency(16, 2000) < scale.file_efficiency(4, 2000) < 1.0
