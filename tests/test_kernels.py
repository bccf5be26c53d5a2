"""The Numba kernels draw, bit for bit, what the plain path draws, whatever the program, row shape or thread count."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import njit, types
from numba.core import caching, config
from numpy.typing import NDArray
from random_rows import (
    ON_NUMPY,
    Program,
    assert_same,
    expected_drawn,
    logits_rows,
    random_case,
    random_filters,
    random_mass,
    rows_of,
)

from tirage.backends.numpy import distribution, kernels
from tirage.backends.numpy.kernels import kept_ids, passes, steps
from tirage.backends.numpy.kernels import rows as rows_module
from tirage.errors import ParamsError
from tirage.exact import numbers
from tirage.operators import Operation
from tirage.operators.min_keep import FLOORED
from tirage.operators.min_p import MIN_P
from tirage.operators.mirostat import MIROSTAT_V2
from tirage.operators.processors import PROCESS
from tirage.operators.temperature import GREEDY, TEMPERATURE
from tirage.operators.tfs import TFS
from tirage.operators.top_k import TOP_K
from tirage.operators.top_p import TOP_P
from tirage.operators.typical import TYPICAL
from tirage.operators.xtc import XTC
from tirage.sampling_metadata import Drawn, SamplingMetadata
from tirage.token_records import TokenRecords

SIZES = (1, 2, 33, 255, 256, 257, 1000, 5000)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    assert kernels.wait()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("v", SIZES)
def test_random_programs_draw_what_the_plain_path_draws(v: int):
    for seed in range(40):
        logits, rows = random_case(1000 * v + seed, v)

        assert_same(expected_drawn(logits, rows), kernels.draw(logits, rows, threads=1))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_random_programs_over_a_whole_vocabulary_draw_what_the_plain_path_draws():
    for seed in range(12):
        logits, rows = random_case(seed, 32000)

        assert_same(expected_drawn(logits, rows), kernels.draw(logits, rows, threads=1))


def test_every_filter_of_the_kernels_is_among_the_random_ones() -> None:
    assert set(steps.STEPS) == {*ON_NUMPY, GREEDY}


@pytest.mark.parametrize("after", [(TOP_K, 1, 0), (MIN_P, 1 << 31), (TEMPERATURE, 1 << 23, 1 << 23)])
def test_a_filter_behind_a_top_p_that_cuts_a_weight_is_refused_by_the_plain_path(after: tuple[int, ...]) -> None:
    r = np.random.default_rng(1)
    rows = rows_of([[(TOP_P, int(0.8 * 2**32), 2, 0, 0), after]], r)
    with pytest.raises(ParamsError, match="a truncated TOP_P must be the last filter of a program, got "):
        expected_drawn(np.array([[2, 1, 0, -1]], np.float32), rows)
    ended = rows_of([[(TOP_P, int(0.8 * 2**32), 2, 0, 0), (GREEDY,)]], r)
    assert expected_drawn(np.array([[2, 1, 0, -1]], np.float32), ended).token_ids.tolist() == [0]


RARE = (TFS, MIROSTAT_V2, *(op for op in ON_NUMPY if op in FLOORED.values()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("v", SIZES)
def test_random_programs_with_rare_filters_draw_what_the_plain_path_draws(v: int) -> None:
    for seed in range(30):
        logits, rows = random_case(1000 * v + seed, v, ops=ON_NUMPY if seed % 2 else RARE)

        assert_same(expected_drawn(logits, rows), kernels.draw(logits, rows, threads=1))


def recorded(rows: SamplingMetadata, v: int) -> SamplingMetadata:
    return replace(rows, records=TokenRecords.of(np.full(rows.count, v)), memo={})


def assert_same_records(logits: NDArray[np.float32], rows: SamplingMetadata) -> None:
    """The kernels record, in one thread and in three, what the plain path does."""
    plain, ours, shared = (recorded(rows, logits.shape[1]) for _ in range(3))
    distribution.draw(logits, plain, Drawn.empty(plain))
    kernels.draw(logits, ours, threads=1)
    kernels.draw(logits, shared, threads=3)
    assert plain.records is not None
    for name in ("ids", "offsets", "logmass", "raw", "processed"):
        expected = getattr(plain.records, name)
        np.testing.assert_array_equal(getattr(ours.records, name), expected, err_msg=name)
        np.testing.assert_array_equal(getattr(shared.records, name), expected, err_msg=name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("v", [1, 33, 257, 1000, 5000])
def test_the_records_of_random_programs_are_those_of_the_plain_path(v: int) -> None:
    for seed in range(16):
        logits, rows = random_case(7000 * v + seed, v, ops=[op for op in ON_NUMPY if op is not XTC])
        assert_same_records(logits, rows)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("after", [[], [MIN_P], [TOP_K], [TOP_P], [TEMPERATURE], [TYPICAL], [FLOORED[TOP_P]]])
@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
def test_what_a_wide_cut_by_mass_keeps_is_recorded_whatever_comes_after_it(
    after: list[Operation], scale: float
) -> None:
    r = np.random.default_rng(21)
    logits = (scale * r.standard_normal((12, 20_000))).astype(np.float32)
    # A truncated top-p, rule 2, is the last filter of a row.
    rules = [(0, 0), (1, 1), (0, 1), (0, 0) if after else (2, 0)]
    first: list[tuple[int, ...]] = [(TOP_P, random_mass(r), rule, ties, 0) for rule, ties in rules]
    rows = rows_of([[step, *random_filters(r, after)] for step in first * 3], r)
    assert_same_records(logits, rows)


@pytest.mark.parametrize("room", [0, 1, 63, 64, 65, 192])
@pytest.mark.parametrize("density", [0.0, 0.02, 0.08, 0.5, 0.97, 1.0])
def test_the_ids_of_noted_tokens_are_written_up_to_the_last_place(density: float, room: int) -> None:
    run = njit(lambda kept, support, ids: kept_ids.write_noted(kept, support, ids))
    bits = np.random.default_rng(4).random(192) < density
    expected = np.flatnonzero(bits)
    ids = np.full(expected.size + room + 8, -1, np.int32)
    run(np.packbits(bits, bitorder="little").view(np.uint64), expected.size, ids[: expected.size + room])
    assert ids[: expected.size].tolist() == expected.tolist()
    assert (ids[expected.size + room :] == -1).all()


MISLEADING = {
    "heavy tokens unseen": (-2.0, 0.0),
    "light tokens unseen": (0.0, -2.0),
    "nearly nothing seen": (-25.0, 0.0),
}


@pytest.mark.slow
@pytest.mark.parametrize(("seen", "unseen"), MISLEADING.values(), ids=MISLEADING.keys())
def test_a_sample_that_misleads_the_search_for_a_nucleus_changes_no_draw(seen: float, unseen: float):
    r = np.random.default_rng(3)
    ids = np.arange(20_000)
    runs = passes.BLOCK // 8
    sampled = (ids % passes.BLOCK) // 8 == (13 * (ids // passes.BLOCK)) % runs
    logits = np.where(sampled, seen, unseen) + 0.3 * r.standard_normal((6, ids.size))
    programs: list[Program] = [
        [(TOP_P, random_mass(r), rule, ties, 0)] for rule, ties in ((0, 0), (1, 1), (2, 0), (0, 1))
    ]
    programs += [[(TYPICAL, numbers.mass_fraction(p), 0)] for p in (0.2, 0.9)]
    logits, rows = logits.astype(np.float32), rows_of(programs, r)

    assert_same(expected_drawn(logits, rows), kernels.draw(logits, rows, threads=1))
    assert_same_records(logits, rows)


def test_the_number_of_threads_changes_nothing():
    logits, rows = random_case(5, 5000, b=23)

    assert_same(kernels.draw(logits, rows, threads=1), kernels.draw(logits, rows, threads=3))


def test_a_row_alone_draws_what_it_draws_in_a_batch():
    r = np.random.default_rng(8)
    logits = logits_rows(r, 16, 1000)
    programs = [random_filters(r) for _ in range(16)]
    rows = rows_of(programs, r)
    together = kernels.draw(logits, rows, threads=1)
    for i, program in enumerate(programs):
        keys = {name: getattr(rows, name)[i : i + 1] for name in ("seeds", "steps", "samples")}
        alone = kernels.draw(logits[i : i + 1], rows_of([program], r, **keys), threads=1)

        assert together.token_ids[i] == alone.token_ids[0]
        assert together.sampled_logprobs[i].tobytes() == alone.sampled_logprobs[0].tobytes()


def test_read_only_logits_are_drawn_from_and_left_as_they_were():
    logits, rows = random_case(11, 1000)
    before = logits.tobytes()
    logits.flags.writeable = False

    assert_same(expected_drawn(logits, rows), kernels.draw(logits, rows, threads=1))
    assert logits.tobytes() == before


def test_a_mask_makes_nan_harmless_and_a_bare_nan_is_reported():
    r = np.random.default_rng(2)
    logits = r.standard_normal((2, 64)).astype(np.float32)
    logits[:, 3] = np.nan
    masks = np.full((2, 2), -1, np.int32)
    masks[0, 0] = ~(1 << 3)

    drawn = kernels.draw(logits, rows_of([[], []], r, masks=masks), threads=1)

    assert drawn.status.tolist() == [0, 1]
    assert drawn.token_ids[1] == -1


@pytest.mark.slow
def test_weights_are_computed_without_fused_multiply_add():
    code: Any = passes.block_mass_of
    row = types.Array(types.float32, 1, "C", readonly=True)
    code.compile((row, types.int64, types.int32, types.float32, types.float32))
    machine = "\n".join(code.inspect_asm().values())

    assert "tirage_fold_heavy:" in machine
    assert "mul" in machine
    assert re.findall(r"vfn?m(?:add|sub)\d*[ps]s|\bfn?m(?:add|sub)\b|\bfml[as]\b", machine) == []


@pytest.fixture
def lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Callable[[Path], bool]], None]:
    """Makes Numba believe that the folders it is told of cannot be written; the user's own is below `tmp_path`."""
    monkeypatch.setattr(config, "CACHE_DIR", "")
    for name in ("HOME", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path))

    def refuse(refused: Callable[[Path], bool]) -> None:
        def ensure(locator: Any) -> None:
            if refused(Path(locator.get_cache_path())):
                raise OSError("read-only file system")

        monkeypatch.setattr(caching._CacheLocator, "ensure_cache_path", ensure)

    return refuse


def test_in_a_read_only_installation_the_kernels_are_cached_for_the_user(lock: Any):
    package = Path(rows_module.__file__).parent
    lock(lambda path: path.is_relative_to(package))

    found = rows_module.dispatcher().stats.cache_path

    assert found is not None
    assert not Path(found).is_relative_to(package)


def test_without_any_folder_to_write_to_the_kernels_go_uncached(lock: Any):
    lock(lambda path: True)

    assert rows_module.dispatcher().stats.cache_path is None


def test_a_cache_that_cannot_be_written_in_the_end_is_done_without(monkeypatch: pytest.MonkeyPatch):
    class Made:
        def __init__(self, cache: bool) -> None:
            self.cache, self.signatures = cache, []

        def compile(self, signature: Any) -> None:
            if self.cache:
                raise OSError("no space left on device")
            self.signatures.append(signature)

        def disable_compile(self) -> None:
            self.signatures.append("closed")

    monkeypatch.setattr(rows_module, "dispatcher", lambda make, *, cache=True: Made(cache))

    made = rows_module.compiled(rows_module.draw_entry, rows_module.draw_signature())

    assert made.cache is False
    assert len(made.signatures) == 2


def test_rows_that_need_python_or_a_second_draw_are_left_to_the_plain_path():
    r = np.random.default_rng(0)
    xtc = (XTC, 1 << 31, *numbers.scaled_fraction(0.1), 0)
    rows = rows_of([[], [(PROCESS,)], [], [xtc], [xtc], [xtc]], r)
    rows = replace(
        rows,
        resample=np.array([0, 0, 1, 0, 0, 0], bool),
        protected_start=np.array([0, 0, 0, 0, 1, 1, 1]),
        protected_ids=np.array([7], np.int32),
        views=np.array([3, 3, 0, 0, 3, 1], np.int8),
    )

    assert kernels.supports(rows).tolist() == [True, False, False, False, False, True]


def test_a_thread_count_below_one_is_refused():
    with pytest.raises(ParamsError, match="threads must be an integer >= 1, got 0"):
        kernels.set_threads(0)
