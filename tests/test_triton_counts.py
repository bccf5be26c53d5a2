"""What the Triton kernels read, launch and allocate, counted under the interpreter, and what they compile to.

Nothing here is measured on a GPU: bytes, turns of loops and registers follow from the kernels alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from platforms import needs_newest_triton, needs_triton
from test_triton_hostile import started

pytestmark = [needs_triton, needs_newest_triton]

KERNELS = (
    *("measure", "weigh", "bound", "split", "resolve", "log_masses"),
    *("measure_slots", "edit", "append", "view_ends", "view_weigh"),
)
MOST_REGISTERS = 96
LONG_LISTS = {"rough plateaus, top-p": 18.5, "rough plateaus, half": 16.2, "tie, top-p": 9.4}
"""What is read where a bin holds so many different logits that the cut is looked for in a long list."""
FAR_APART = {"one far below": 6.1, "two plateaus": 41.2, "rough plateaus": 17.7, "ramp": 14.9}
"""What is read where top-n-sigma cuts far below top-p: all that stands between is listed."""

LISTED_TO_THE_CUT = {"medium": 4.7, "ramp": 5.3, "rough plateaus": 20.4, "tie": 10.2}
"""What XTC with a top-p reads: where it may remove something, or bins hold much, all from the top to the cut."""
UNCERTAIN = {"medium": 6.1, "ramp": 4.6, "rough plateaus": 19.4, "tie": 9.9}
"""What a top-p reads behind a dynamic temperature, under which the mass of the row is not known when bins are cut."""


def counted(kind: str, rows: int, number: int) -> Iterator[tuple[str, dict[str, float]]]:
    """So many rows of counts by their names; what holds for all of them is asserted here."""
    done = started(kind, [], rows)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert len(found) == number
    for name, counts in found.items():
        assert counts["longest loop"] <= 64, name
        assert counts["launches"] <= 5, name
        assert counts["differences"] == 0, name
        yield name, counts


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, pytest.param(32, marks=pytest.mark.exhaustive)])
def test_no_shape_of_logits_makes_the_kernels_read_much_more_than_three_times(rows: int) -> None:
    for name, counts in counted("counts", rows, 70):
        shape, params = name.split(", ", 1)
        # Sums of blocks are a fiftieth of the logits; a search of an open range, in eighths of it, is the rest.
        most = 1.02 if params == "greedy" else 2.05 if params == "plain" else 2.35 if shape == "peaked" else 3.3
        most = LONG_LISTS.get(name, 3.12 if params == "temperature last" else most)
        assert counts["reads"] <= most, name
        assert counts["additions"] <= (0.1 if rows == 32 and name not in LONG_LISTS else 0.5), name
        assert counts["scratch"] <= (0.02 if params == "greedy" else 1.04), name


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, pytest.param(32, marks=pytest.mark.exhaustive)])
def test_thresholds_read_no_more(rows: int) -> None:
    for name, counts in counted("counted thresholds", rows, 100):
        shape, params = name.split(", ", 1)
        most = FAR_APART.get(shape, 3.31) if params == "sigma, top-p and epsilon" else 3.12
        assert counts["reads"] <= most, name
        assert counts["scratch"] <= 1.04, name


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, pytest.param(32, marks=pytest.mark.exhaustive)])
def test_a_temperature_that_follows_from_a_set_reads_the_row_once_more_or_the_set_three_times(rows: int) -> None:
    for name, counts in counted("counted temperatures", rows, 40):
        shape, params = name.split(", ", 1)
        # The whole row is weighed again; behind a filter the list of the set is read three times, at two numbers each.
        most = {"dynamic": 3.1, "dynamic, top-p": 3.4, "behind top-k": 3.12, "behind min-p": 9.1}[params]
        most = UNCERTAIN.get(shape, most) if params == "dynamic, top-p" else most
        assert counts["reads"] <= most, name
        assert counts["scratch"] <= 1.04, name


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, pytest.param(32, marks=pytest.mark.exhaustive)])
def test_xtc_reads_the_row_twice_and_what_stands_before_another_cut(rows: int) -> None:
    for name, counts in counted("counted exclusions", rows, 30):
        shape, params = name.split(", ", 1)
        most = LISTED_TO_THE_CUT.get(shape, 3.31) if params == "top-p and XTC" else 2.6
        assert counts["reads"] <= most, name
        assert counts["scratch"] <= 1.04, name


@pytest.mark.slow
@pytest.mark.parametrize(
    "capability", [pytest.param(each, marks=pytest.mark.exhaustive) if each != 90 else each for each in (80, 90, 100)]
)
def test_kernels_fit_into_registers(capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from ptx import assembled

    for name in KERNELS:
        told = assembled(name, capability, tmp_path)
        assert int(re.findall(r"Used (\d+) registers", told)[0]) <= MOST_REGISTERS, name
        assert re.findall(r"(\d+) bytes spill", told) == ["0", "0"], name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["measure", "measure_slots", "edit", "view_weigh"])
def test_the_last_program_of_a_row_reads_what_the_others_stored(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from ptx import as_launched

    before, after = re.split(r"atom\.global\.gpu\.acq_rel\.add\.\w+", as_launched(name, 90))
    # All threads store before the one that counts releases it, and wait for it before they read.
    assert "bar.sync" in before[before.rindex("st.global") :]
    assert "bar.sync" in after[: after.index("ld.global")]
    assert len(re.findall(r"ld\.global\.cg", after)) >= 2


@pytest.mark.slow
def test_nothing_is_fused_or_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from ptx import as_launched

    for name in KERNELS:
        assert not re.findall(r"\bfma\.rn\.f32|\.ftz", as_launched(name, 90)), name
