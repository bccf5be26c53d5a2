"""What the Triton kernels read, launch and allocate, counted under the interpreter, and what they compile to.

Nothing here is measured on a GPU: bytes, turns of loops and registers follow from the kernels alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from platforms import needs_newest_triton, needs_triton
from test_triton_hostile import started
from typical_rows import LEVELS

pytestmark = [needs_triton, needs_newest_triton]

KERNELS = (
    *("measure", "weigh", "bound", "split", "split_first", "resolve", "resolve LEVELED"),
    *("general", "log_masses"),
    *("measure_slots", "edit", "append", "view_ends", "view_weigh"),
)
MOST_REGISTERS = 96
SOME_OTHERS, SOME_OF_SETS = (0, 3, 7, 12, 16, 20), (0, 1, 2, 3)
"""Shapes that every run counts: of those that came later, and of rows drawn as sets the first four:
peaked, medium, flat and constant."""
ROUGH = {"top-k, top-p and min-p": 2.4, "temperature last": 2.4, "half": 2.4}
"""What is read of `rough plateaus`, where all of the first tokens are within a lane, or those at a cut."""
LOCAL = {"top-k": 1.4, "top-k, top-p and min-p": 1.4, "temperature last": 1.4, "top-h": 1.6}
"""What is read by requests that need no more of a row than its first tokens, of top-h a hundred."""
FLAT_TOPS = ("constant", "two plateaus", "rough plateaus")
"""Shapes whose first tokens lie in every block."""
FAR_APART = {"one far below": 2.45, "rough plateaus": 2.45}
"""What is read where the bounds of top-n-sigma's threshold enclose many tokens: it is looked for where it likely is."""
SUMMED_FIRST = ("sigma, top-p and epsilon", *LEVELS)
"""Requests whose rows are split by another launch, which tells whether their sums say more than their bounds."""
ROUGH_LEVELS = {"low typical": 3.4}
"""What is read of `rough plateaus`, where a typical does not end where it likely does."""
OF_OTHERS = {
    "typical": 3.35,
    "low typical": 3.6,
    "typical behind others": 2.6,
    "sigma, top-p and epsilon": 2.6,
    "dynamic, top-p": 3.6,
    "top-p and XTC": 2.5,
}
"""What is read of other shapes by requests for which a row may be bounded again, or is weighed first."""
OF_CLUSTERS = {"five plateaus, half": 2.6, "five plateaus, low typical": 4.6}
"""What is read where more clusters lie apart than the sample has knots for."""
AS_SETS_READ = {
    "tail-free": 5.45,
    "tail-free behind top-p": 6.7,
    "top-p and typical": 3.65,
    "smoothing, top-p and min-p": 3.4,
    "smoothing, min-p and XTC": 4.3,
    "Mirostat 1": 2.2,
    "adaptive-p": 3.2,
}
"""What is read of rows that are drawn as sets."""
OF_TIES = {
    "constant, tail-free": 2.2,
    "constant, tail-free behind top-p": 2.3,
    "constant, top-p and typical": 2.3,
    "two plateaus, top-p and typical": 2.3,
    "five plateaus, top-p and typical": 3.9,
    "rough plateaus, smoothing, top-p and min-p": 5.4,
    "constant, Mirostat 1": 3.3,
    "two plateaus, Mirostat 1": 3.3,
}
"""The same where many tokens tie, or are in a lane."""
FALLING = {"peaked, tail-free": 2.3, "medium, tail-free": 2.6}
"""The same of rows whose first tokens tell where they are cut."""


def counted(kind: str, rows: int, number: int, which: Sequence[int] = ()) -> Iterator[tuple[str, dict[str, float]]]:
    """So many rows of counts by their names, of all shapes or of `which`; what holds for all is asserted here."""
    done = started(kind, which, rows)
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
def test_no_shape_of_logits_makes_the_kernels_read_much_more_than_twice(rows: int) -> None:
    for name, counts in counted("counts", rows, 90):
        shape, params = name.split(", ", 1)
        # Sums of blocks, and what their programs share, are a twentieth of the logits; a search of an open range, in
        # eighths of it, is the rest.
        most = {"greedy": 1.02, "plain": 2.09}.get(params, 2.3)
        if shape not in FLAT_TOPS:
            most = LOCAL.get(params, most)
        if shape == "rough plateaus":
            most = ROUGH.get(params, most)
        # Now and then no knot is at the tie.
        most = 2.6 if name == "tie, top-p" else most
        assert counts["reads"] <= most, name
        assert counts["launches"] <= 4, name
        assert counts["additions"] <= 0.11, name
        assert counts["scratch"] <= (0.02 if params == "greedy" else 1.04), name


@pytest.mark.slow
@pytest.mark.parametrize("rows", [128, pytest.param(512, marks=pytest.mark.exhaustive)])  # 512 take 8 GB
def test_large_batches_of_unlike_rows_are_read_no_oftener(rows: int) -> None:
    for name, counts in counted("mixed counts", rows, 2):
        is_greedy = name == "all, greedy"
        assert counts["reads"] <= (1.02 if is_greedy else 2.0), name
        assert counts["launches"] <= (2 if is_greedy else 5), name
        assert counts["scratch"] <= (0.02 if is_greedy else 1.04), name


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, pytest.param(32, marks=pytest.mark.exhaustive)])
def test_thresholds_read_no_more(rows: int) -> None:
    for name, counts in counted("counted thresholds", rows, 100):
        shape, params = name.split(", ", 1)
        most = FAR_APART.get(shape, 2.35) if params == "sigma, top-p and epsilon" else 2.2
        most = 2.35 if name in ("rough plateaus, top-k and eta", "one far below, sigma") else most
        assert counts["reads"] <= most, name
        assert counts["launches"] == 4 + (params in SUMMED_FIRST), name
        assert counts["scratch"] <= 1.04, name


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, pytest.param(32, marks=pytest.mark.exhaustive)])
def test_thresholds_of_large_sets_read_no_more(rows: int) -> None:
    for name, counts in counted("counted behind", rows, 50):
        # A set of up to 4,096 tokens is listed for its sums, which is read some 18 times.
        assert counts["reads"] <= 2.35, name
        assert counts["longest loop"] <= 3, name
        assert counts["launches"] == 5, name
        assert counts["scratch"] <= 1.04, name


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, pytest.param(32, marks=pytest.mark.exhaustive)])
def test_a_temperature_that_follows_from_a_set_reads_the_row_once_more_or_the_set_three_times(rows: int) -> None:
    for name, counts in counted("counted temperatures", rows, 40):
        _, params = name.split(", ", 1)
        # The whole row is weighed again, and what thresholds by keys leave of it with it. Behind a top-k only the list
        # of the set is weighed, three times, at two numbers each. A top-p is looked for where it likely ends.
        most = {"dynamic": 3.13, "dynamic, top-p": 3.35, "behind top-k": 2.2, "behind min-p": 3.16}[params]
        most = 2.4 if name == "rough plateaus, behind top-k" else most
        assert counts["reads"] <= most, name
        assert counts["scratch"] <= 1.04, name


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, pytest.param(32, marks=pytest.mark.exhaustive)])
def test_xtc_reads_the_row_twice_and_once_more_before_a_temperature_where_nothing_else_cuts(rows: int) -> None:
    for name, counts in counted("counted exclusions", rows, 80):
        _, params = name.split(", ", 1)
        most = 2.5 if name.startswith("rough plateaus, its") else 2.3
        # Now and then no knot is at the tie.
        most = 2.6 if name == "tie, top-p and XTC" else most
        # What XTC leaves of a row that nothing else cuts is weighed anew: its weights count from another logit.
        assert counts["reads"] <= (3.13 if params == "only XTC before a temperature" else most), name
        assert counts["launches"] == 4, name
        assert counts["scratch"] <= 1.04, name


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, pytest.param(32, marks=pytest.mark.exhaustive)])
def test_typical_reads_the_row_twice_or_what_a_top_k_lists(rows: int) -> None:
    for name, counts in counted("counted levels", rows, 40):
        shape, params = name.split(", ", 1)
        assert counts["reads"] <= (ROUGH_LEVELS.get(params, 2.4) if shape == "rough plateaus" else 2.4), name
        assert counts["launches"] == 4 + (params in SUMMED_FIRST), name
        assert counts["scratch"] <= 1.04, name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "which"), [(1, SOME_OTHERS), *(pytest.param(rows, (), marks=pytest.mark.exhaustive) for rows in (1, 8))]
)
def test_shapes_that_the_kernels_were_not_written_for_are_read_no_oftener(rows: int, which: tuple[int, ...]) -> None:
    for name, counts in counted("counts of others", rows, 14 * (len(which) or 21), which):
        most = next((most for params, most in OF_OTHERS.items() if name.endswith(f", {params}")), 2.35)
        assert counts["reads"] <= OF_CLUSTERS.get(name, most), name
        assert counts["scratch"] <= 1.04, name


@pytest.mark.slow
@pytest.mark.parametrize("which", [SOME_OF_SETS, pytest.param((), marks=pytest.mark.exhaustive)])
def test_rows_that_are_drawn_as_sets_are_read_a_few_times_by_two_launches(which: tuple[int, ...]) -> None:
    for name, counts in counted("counted sets", 1, 7 * (len(which) or 8), which):
        _, params = name.split(", ", 1)
        # The first pass is one. Mirostat lists the first tokens, and weighs a row of which all stay. Adaptive-p weighs
        # the set twice, and reads blocks with a token that is likelier than its target once more.
        # Tail-free counts what is in its buckets, deals the row out to them, sorts them, and lists what stays; or it
        # lists the first tokens while it counts, and reads no others from then on. A top-p lists what is about its cut
        # while it sums the row, and so does a typical behind it; the histogram tells of both where that is. Ties at a
        # cut are counted in the same reading.
        assert counts["reads"] <= (FALLING | OF_TIES).get(name, AS_SETS_READ[params]), name
        assert counts["launches"] == 2, name
        # A bit tells of each token whether it is in the set that tail-free is given; with XTC there are two.
        bits = {"tail-free": 1.07, "tail-free behind top-p": 1.1, "smoothing, min-p and XTC": 1.09}
        assert counts["scratch"] <= bits.get(params, 1.03), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "capability", [pytest.param(each, marks=pytest.mark.exhaustive) if each != 90 else each for each in (80, 90, 100)]
)
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_fits_into_registers_and_nothing_is_fused_or_flushed(
    name: str, capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from ptx import as_launched, assembled

    told = assembled(name, capability, tmp_path)
    assert int(re.findall(r"Used (\d+) registers", told)[0]) <= MOST_REGISTERS
    # Nor does a function that it calls.
    assert max(map(int, re.findall(r"(\d+) bytes spill", told))) == 0
    # It is compiled already.
    assert not re.findall(r"\bfma\.rn\.f32|\.ftz", as_launched(name, capability))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["measure", "measure_slots", "edit", "split_first", "view_weigh"])
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
