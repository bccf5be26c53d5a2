"""The Numba kernels draw, bit for bit, what the plain path draws, whatever the program, row shape or thread count."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import types
from numba.core import caching, config
from numpy.typing import NDArray

from tirage.backends import Drawn, Rows, View
from tirage.backends.numpy import kernels, outcome
from tirage.backends.numpy.kernels import passes
from tirage.backends.numpy.kernels import rows as rows_module
from tirage.errors import ParamsError
from tirage.exact import numbers
from tirage.stages import Op

Rng = np.random.Generator
Program = list[tuple[int, ...]]

SIZES = (1, 2, 33, 255, 256, 257, 1000, 5000)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    assert kernels.wait()


# --- random rows --------------------------------------------------------------------------------------------------


def _spoiled(x: NDArray[np.float32], r: Rng, pattern: int) -> NDArray[np.float32]:
    bits = x.view(np.uint32).copy()
    bits[r.integers(x.size)] = pattern
    return bits.view(np.float32)


def _zipf(n: NDArray[np.float32], r: Rng, power: float) -> NDArray[np.float32]:
    return 12 - r.permutation(np.float32(power) * np.log(np.arange(1, n.size + 1)).astype(np.float32) + n)


def _holes(n: NDArray[np.float32], r: Rng) -> NDArray[np.float32]:
    x = np.where(r.random(n.size) < 0.9, np.float32(-np.inf), 3 * n)
    x[r.integers(n.size)] = 1
    return x


SHAPES: dict[str, Callable[[NDArray[np.float32], Rng], NDArray]] = {
    "peaked": lambda n, r: _zipf(n, r, 1.9),
    "medium": lambda n, r: _zipf(n, r, 1.2),
    "normal": lambda n, r: 3 * n,
    "flat": lambda n, r: np.float32(0.02) * n,
    "ties": lambda n, r: np.round(2 * n),
    "constant": lambda n, r: np.full(n.size, 1.5),
    "ascending": lambda n, r: np.sort(3 * n),
    "descending": lambda n, r: np.sort(3 * n)[::-1],
    "holes": _holes,
    "bfloat16": lambda n, r: (n.view(np.uint32) & 0xFFFF0000).view(np.float32),
    "signed zeros": lambda n, r: r.choice(np.array([0.0, -0.0, -1.0]), n.size),
    "subnormal": lambda n, r: r.choice(np.array([1e-40, -1e-40, 2e-40, 1.2e-38, -0.0]), n.size),
    "huge": lambda n, r: n * np.float32(1e38),
    "spike": lambda n, r: n + 40 * (np.arange(n.size) == r.integers(n.size)),
    "nan": lambda n, r: _spoiled(n, r, 0x7FC00000),
    "negative nan": lambda n, r: _spoiled(n, r, 0xFFC00000),
    "infinity": lambda n, r: _spoiled(n, r, 0x7F800000),
    "nothing": lambda n, r: np.full(n.size, -np.inf),
}


def _logits(r: Rng, b: int, v: int) -> NDArray[np.float32]:
    names = list(SHAPES)
    picked = [SHAPES[names[int(i)]] for i in r.integers(len(names), size=b)]
    with np.errstate(all="ignore"):
        rows = [shape(r.standard_normal(v).astype(np.float32), r) for shape in picked]
    return np.stack(rows).astype(np.float32)


# --- random programs ----------------------------------------------------------------------------------------------


def _temperature(t: float) -> tuple[int, ...]:
    return numbers.bits(numbers.temperature_constant(t)), numbers.bits(numbers.reciprocal(t))


def _scaled(r: Rng, *values: float) -> tuple[int, ...]:
    return numbers.scaled_fraction(float(r.choice(values)))


def _eta(r: Rng) -> tuple[int, ...]:
    value = float(r.choice([3e-4, 0.02, 1e-6]))
    return *numbers.scaled_fraction(value), numbers.half_neglog2(value)


def _dynamic(r: Rng) -> tuple[int, ...]:
    low, high = ((0.5, 1.5), (0.0, 2.0))[int(r.integers(2))]
    return *_temperature(high), numbers.ratio_32(low, high), *_scaled(r, 0.5, 1.0, 2.0)


def _mass(r: Rng) -> int:
    return numbers.mass_fraction(float(r.choice([1e-12, 0.1, 0.5, 0.9, 0.95, 0.99, 0.9999])))


def _flag(r: Rng) -> int:
    return int(r.integers(2))


FILTERS: dict[Op, Callable[[Rng], tuple[int, ...]]] = {
    Op.TEMPERATURE: lambda r: _temperature(float(r.choice([0.05, 0.3, 0.7, 1.0, 1.3, 10.0]))),
    Op.TOP_K: lambda r: (int(r.choice([1, 2, 5, 50, 200, 1000, 20000])), _flag(r)),
    Op.TOP_P: lambda r: (_mass(r), _flag(r), _flag(r), int(r.random() < 0.3)),
    Op.MIN_P: lambda r: (numbers.ratio_threshold(float(r.choice([1.0, 0.5, 0.05, 1e-6]))),),
    Op.MIN_P_LOGIT: lambda r: (numbers.bits(np.float32(r.choice([0.1, 0.5, 0.9]))),),
    Op.TYPICAL: lambda r: (_mass(r), _flag(r)),
    Op.EPSILON: lambda r: _scaled(r, 3e-4, 0.02, 1e-6, 0.5),
    Op.ETA: _eta,
    Op.TOP_N_SIGMA: lambda r: _scaled(r, 0.5, 1.0, 2.3, 4.0),
    Op.TOP_H: lambda r: (numbers.mass_fraction(float(r.choice([0.1, 0.4, 0.9]))),),
    Op.XTC: lambda r: (int(r.choice([1 << 32, 1 << 31, 1 << 20])), *_scaled(r, 0.5, 0.1, 0.02, 1e-4), _flag(r)),
    Op.DYNAMIC_TEMPERATURE: _dynamic,
}


def _filters(r: Rng) -> Program:
    order = r.permutation(np.array(list(FILTERS)))[: int(r.integers(0, 6))]
    steps: Program = [(int(op), *FILTERS[Op(int(op))](r)) for op in order]
    if r.random() < 0.15:
        steps.append((Op.GREEDY,))
    elif r.random() < 0.1:
        steps.append((Op.TOP_P, _mass(r), 2, _flag(r), 0))
    return steps


class _Pile:
    """Random edits of several rows, and the tables that they refer to."""

    def __init__(self, v: int) -> None:
        self.v = v
        self.ids: list[int] = []
        self.values: list[float] = []
        self.counts: list[NDArray] = []
        self.start = [0]

    def some(self, r: Rng) -> NDArray[np.int64]:
        return np.sort(r.choice(self.v, int(r.integers(1, min(self.v, 40) + 1)), replace=False))

    def take(self, op: Op, r: Rng, values: tuple[float, ...]) -> tuple[int, ...]:
        ids, start = self.some(r), len(self.ids)
        self.ids += ids.tolist()
        self.values += r.choice(values, ids.size).tolist()
        return op, start, len(self.ids)

    def edits(self, r: Rng) -> Program:
        steps: Program = []
        if r.random() < 0.4:
            steps.append(self.take(Op.BAN, r, (0.0,)))
        if r.random() < 0.4:
            steps.append(self.take(Op.ADD, r, (-100.0, 100.0, -1e38, 3.4e38, 0.3, 1e-39)))
        ratio, scope = float(r.choice([1.3, 0.5])), int(r.integers(3))
        bits = [numbers.bits(np.float32(value)) for value in (ratio, 1 / ratio, 0.7, 1e38)]
        penalties = [
            (Op.REPETITION, scope, bits[0], numbers.bits(numbers.reciprocal(ratio))),
            (Op.FREQUENCY, scope, bits[int(r.integers(2, 4))]),
            (Op.PRESENCE, scope, bits[2]),
            (Op.SCALE, bits[2]),
        ]
        return steps + [p for p in penalties if r.random() < 0.25]

    def history(self, r: Rng) -> None:
        ids = self.some(r)
        self.counts.append(np.stack([ids, *r.integers(0, 5, (2, ids.size))]))
        self.start.append(self.start[-1] + ids.size)


def _rows(programs: list[Program], r: Rng, pile: _Pile | None = None, **given: Any) -> Rows:
    b = len(programs)
    packed = np.zeros((b, max(map(len, programs)) + 1, 6), np.int64)
    for row, steps in zip(packed, programs, strict=True):
        for at, step in enumerate(steps):
            row[at, : len(step)] = step
    pile = pile or _Pile(1)
    counts = np.concatenate(pile.counts, axis=1).astype(np.int32) if pile.counts else np.zeros((3, 0), np.int32)
    none, start = np.zeros(0, np.int32), np.zeros(b + 1, np.int64)
    arrays: dict[str, Any] = {
        "edit_ids": np.array(pile.ids, np.int32),
        "edit_values": np.array(pile.values, np.float32),
        "count_start": np.array(pile.start, np.int64) if pile.counts else start,
        "count_ids": counts[0],
        "prompt_counts": counts[1],
        "output_counts": counts[2],
        "masks": np.zeros((0, 0), np.int32),
        "checks": np.zeros((0, 0), np.int32),
        "seeds": r.integers(-(2**63), 2**63 - 1, b),
        "steps": r.integers(0, 2**32, b),
        "samples": r.integers(0, 2**32, b),
        "views": np.zeros(b, np.int8),
        "top_n": np.zeros(b, np.int32),
        "asked_start": start,
        "asked_ids": none,
        "protected_start": start,
        "protected_ids": none,
        "resample": np.zeros(b, bool),
    }
    return Rows(programs=packed, **{**arrays, **given})


def _case(seed: int, v: int, b: int = 8) -> tuple[NDArray[np.float32], Rows]:
    r = np.random.default_rng(seed)
    logits, pile, programs = _logits(r, b, v), _Pile(v), []
    for _ in range(b):
        pile.history(r)
        programs.append((pile.edits(r) if r.random() < 0.5 else []) + _filters(r))
    given: dict[str, NDArray] = {}
    if r.random() < 0.3:
        given["masks"] = r.integers(-(2**31), 2**31, (b, -(-v // 32))).astype(np.int32)
        given["masks"][r.random(b) < 0.3] = -1
    views = r.integers(0, 4, b).astype(np.int8)
    views[[any(step[0] == Op.XTC for step in p) for p in programs]] = View.PROCESSED
    start = np.concatenate([[0], np.cumsum(np.where(views > 0, r.integers(0, 4, b), 0))])
    given |= {"views": views, "top_n": np.where(views > 0, r.integers(0, 8, b), 0).astype(np.int32)}
    given |= {"asked_start": start, "asked_ids": r.integers(0, v, int(start[-1])).astype(np.int32)}
    return logits, _rows(programs, r, pile, **given)


def _expected(logits: NDArray[np.float32], rows: Rows) -> Drawn:
    out = Drawn.empty(rows)
    for r in range(rows.count):
        outcome.draw_row(outcome.outcome(outcome.request_of(logits, rows, r)), rows, r, out)
    return out


def _assert_same(expected: Drawn, actual: Drawn) -> None:
    for field in fields(Drawn):
        np.testing.assert_array_equal(getattr(actual, field.name), getattr(expected, field.name), field.name)


# --- tests --------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("v", SIZES)
def test_random_programs_draw_what_the_plain_path_draws(v: int):
    for seed in range(40):
        logits, rows = _case(1000 * v + seed, v)

        _assert_same(_expected(logits, rows), kernels.draw(logits, rows, threads=1))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_random_programs_over_a_whole_vocabulary_draw_what_the_plain_path_draws():
    for seed in range(12):
        logits, rows = _case(seed, 32000)

        _assert_same(_expected(logits, rows), kernels.draw(logits, rows, threads=1))


MISLEADING = {
    "heavy tokens unseen": (-2.0, 0.0),
    "light tokens unseen": (0.0, -2.0),
    "nearly nothing seen": (-25.0, 0.0),
}


@pytest.mark.parametrize(("seen", "unseen"), MISLEADING.values(), ids=MISLEADING.keys())
def test_a_sample_that_misleads_the_search_for_a_nucleus_changes_no_draw(seen: float, unseen: float):
    r = np.random.default_rng(3)
    ids = np.arange(20_000)
    sampled = (ids % 64) == 2 * ((ids // passes.BLOCK) % 32)
    logits = np.where(sampled, seen, unseen) + 0.3 * r.standard_normal((6, ids.size))
    programs: list[Program] = [[(Op.TOP_P, _mass(r), rule, ties, 0)] for rule, ties in ((0, 0), (1, 1), (2, 0), (0, 1))]
    programs += [[(Op.TYPICAL, numbers.mass_fraction(p), 0)] for p in (0.2, 0.9)]
    logits, rows = logits.astype(np.float32), _rows(programs, r)

    _assert_same(_expected(logits, rows), kernels.draw(logits, rows, threads=1))


def test_the_number_of_threads_changes_nothing():
    logits, rows = _case(5, 5000, b=23)

    _assert_same(kernels.draw(logits, rows, threads=1), kernels.draw(logits, rows, threads=3))


def test_a_row_alone_draws_what_it_draws_in_a_batch():
    r = np.random.default_rng(8)
    logits = _logits(r, 16, 1000)
    programs = [_filters(r) for _ in range(16)]
    rows = _rows(programs, r)
    together = kernels.draw(logits, rows, threads=1)
    for i, program in enumerate(programs):
        keys = {name: getattr(rows, name)[i : i + 1] for name in ("seeds", "steps", "samples")}
        alone = kernels.draw(logits[i : i + 1], _rows([program], r, **keys), threads=1)

        assert together.token_ids[i] == alone.token_ids[0]
        assert together.sampled_logprobs[i].tobytes() == alone.sampled_logprobs[0].tobytes()


def test_read_only_logits_are_drawn_from_and_left_as_they_were():
    logits, rows = _case(11, 1000)
    before = logits.tobytes()
    logits.flags.writeable = False

    _assert_same(_expected(logits, rows), kernels.draw(logits, rows, threads=1))
    assert logits.tobytes() == before


def test_a_mask_makes_nan_harmless_and_a_bare_nan_is_reported():
    r = np.random.default_rng(2)
    logits = r.standard_normal((2, 64)).astype(np.float32)
    logits[:, 3] = np.nan
    masks = np.full((2, 2), -1, np.int32)
    masks[0, 0] = ~(1 << 3)

    drawn = kernels.draw(logits, _rows([[], []], r, masks=masks), threads=1)

    assert drawn.status.tolist() == [0, 1]
    assert drawn.token_ids[1] == -1


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

    monkeypatch.setattr(rows_module, "dispatcher", lambda *, cache=True: Made(cache))

    made = rows_module.compiled()

    assert made.cache is False
    assert len(made.signatures) == 2


def test_rows_that_need_python_or_a_second_draw_are_left_to_the_plain_path():
    r = np.random.default_rng(0)
    xtc = (Op.XTC, 1 << 31, *numbers.scaled_fraction(0.1), 0)
    rows = _rows([[], [(Op.PROCESS,)], [], [xtc], [xtc], [xtc]], r)
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
