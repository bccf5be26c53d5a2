"""Every operator under every preset, from the tables: tensor operations and Triton draw what the plain path draws."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  "bfloat16" becomes a dtype name of NumPy
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from paths import PATHS
from platforms import needs_triton
from preset_rows import every_request, requests, states, unused_operations, unused_parameters
from random_rows import NOT_ON_TENSORS, OWN_SEMANTICS_ONLY, assert_same, expected_drawn, random_case
from random_rows import SHAPES as LOGITS
from strategies import SHAPES, VALUES, logits_of

from tirage import backends
from tirage.backends import numpy as numpy_backend
from tirage.backends import torch as torch_backend
from tirage.backends.numpy import distribution, kernels
from tirage.backends.torch import edits, filters, state
from tirage.backends.torch.dispatch import draw_on_device
from tirage.operators import LAST, OPERATIONS
from tirage.operators.eta import ETA
from tirage.operators.processors import PROCESS
from tirage.operators.row import Process
from tirage.sampling_batch import SamplingBatch
from tirage.sampling_metadata import Drawn, SamplingMetadata
from tirage.semantics import PRESETS

ROOT = Path(__file__).resolve().parents[1]
V = 97


def by_tensors(logits: NDArray[np.float32], frame: SamplingBatch) -> Drawn:
    """What plain tensor operations draw, and the host where a row needs Python."""
    return draw_on_device(torch.from_numpy(logits), frame.metadata(None), frame.processes).moved(torch.Tensor.numpy)


def by_plain(logits: NDArray[np.float32], frame: SamplingBatch) -> Drawn:
    rows = frame.metadata(None)
    return distribution.draw(logits, rows, Drawn.empty(rows), processes=frame.processes)


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_parameter_of_every_preset_draws_what_the_plain_path_draws(preset: str) -> None:
    params = requests(PRESETS[preset])
    logits = np.stack([logits_of(SHAPES[r % len(SHAPES)], V, r) for r in range(len(params))])
    frame = SamplingBatch.of(states(params, V), V)
    with np.errstate(all="ignore"):
        assert_same(by_plain(logits, frame), by_tensors(logits, frame))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 33, 1000, 5000])
def test_random_programs_draw_what_the_plain_path_draws(size: int) -> None:
    for seed in range(3):
        logits, rows = random_case(500_000 + 1000 * size + seed, size)
        with np.errstate(all="ignore"):
            actual = draw_on_device(torch.from_numpy(logits), rows).moved(torch.Tensor.numpy)
            assert_same(expected_drawn(logits, rows), actual)


@pytest.mark.slow
def test_a_row_alone_draws_what_it_draws_in_a_batch() -> None:
    params = [p for p in requests(PRESETS["canonical"]) if not p.logits_processors]
    logits = np.stack([logits_of("coarse", V, r) for r in range(len(params))])
    together = by_tensors(logits, SamplingBatch.of(states(params, V), V)).token_ids.tolist()
    alone = [by_tensors(logits[r : r + 1], SamplingBatch.of(states([p], V), V)) for r, p in enumerate(params)]
    assert together == [drawn.token_ids[0] for drawn in alone]


# --- a million draws ------------------------------------------------------------------------------------------------

ROWS = 4096
MANY_SHAPES = ("peaked", "medium", "flat", "ties", "signed zeros", "holes", "normal", "subnormal", "huge", "nan")


@dataclass(slots=True)
class Steps:
    """A SamplingBatch whose rows were packed once; `at` is the step that they draw."""

    packed: SamplingMetadata
    processes: tuple[Process | None, ...] | None
    at: int = 0
    wants_logprobs = True

    @classmethod
    def of_every_request(cls, size: int) -> Steps:
        params = every_request()
        frame = SamplingBatch.of(states([params[r % len(params)] for r in range(ROWS)], size), size)
        packed = frame.metadata(None)
        return cls(replace(packed, seeds=np.arange(ROWS, dtype=np.int64) * -7_777_777_777), frame.processes)

    def metadata(self, mask: NDArray[np.int32] | None) -> SamplingMetadata:
        return replace(self.packed, steps=np.full(ROWS, self.at), memo=self.packed.memo)


def many_logits(size: int) -> NDArray[np.float32]:
    """Logits of all shapes, another shape for each row that runs the same request."""
    r = np.random.default_rng(size)
    shapes = [MANY_SHAPES[(row + row // len(MANY_SHAPES)) % len(MANY_SHAPES)] for row in range(ROWS)]
    with np.errstate(all="ignore"):
        return np.stack(
            [LOGITS[shape](r.standard_normal(size).astype(np.float32), r) for shape in shapes], dtype=np.float32
        )


def drawn_alike(size: int, dtype: str, steps: int, eager_steps: int) -> int:
    """Draws compared: arrays against tensors that share their memory and, for some steps, plain tensor operations."""
    frame = Steps.of_every_request(size)
    with np.errstate(all="ignore"):
        array = many_logits(size).astype(dtype)
    tensor = torch.from_numpy(many_logits(size)).to(getattr(torch, dtype))
    for frame.at in range(steps):
        expected = numpy_backend.draw(numpy_backend.as_logits(array), frame, None)
        x = torch_backend.as_logits(tensor)
        assert_same(expected, torch_backend.draw(x, frame, None).moved(torch_backend.to_numpy))
        if frame.at < eager_steps:
            plain = draw_on_device(x, frame.metadata(None), frame.processes)
            assert_same(expected, plain.moved(torch_backend.to_numpy))
    return ROWS * (steps + eager_steps)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_thousands_of_draws_agree(dtype: str) -> None:
    assert kernels.wait()
    assert drawn_alike(33, dtype, steps=1, eager_steps=0) == ROWS


@pytest.mark.exhaustive
def test_a_million_draws_agree() -> None:
    assert kernels.wait()
    sizes, dtypes = (33, 97), ("float32", "bfloat16", "float16")
    drawn = sum(drawn_alike(size, dtype, steps=40, eager_steps=2) for size in sizes for dtype in dtypes)
    assert drawn >= 1_000_000


# --- nothing is left out ----------------------------------------------------------------------------------------------


def test_tensor_operations_know_every_operation() -> None:
    assert set(OPERATIONS) - {PROCESS} - NOT_ON_TENSORS == set(filters.STEPS) | set(edits.STEPS)


@pytest.mark.slow
def test_every_backend_has_a_conformance_test() -> None:
    """numpy and torch in the table of paths; JAX, which compiles for each shape, shards and MLX in their own files."""
    elsewhere = {
        "jax": "test_jax_conformance.py",
        "sharded": "test_sharded.py",
        "mlx": "engines/mlx/test_mlx_arrays.py",
    }
    assert all((Path(__file__).parent / name).is_file() for name in elsewhere.values())
    libraries = {module.rpartition(".")[2] for module in backends._BACKENDS.values()}
    assert {"numpy", *elsewhere, *(path.split("_")[0] for path in PATHS)} >= libraries


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_parameter_of_a_preset_is_used(preset: str) -> None:
    assert unused_parameters(PRESETS[preset]) == set()


ELSEWHERE = OWN_SEMANTICS_ONLY | {op for each in LAST for op in each.operations}
"""Operations that no request of a preset has: watermarks have tests of their own."""


def test_every_operation_is_used() -> None:
    assert unused_operations() == ELSEWHERE


@pytest.mark.slow
def test_an_operation_or_parameter_that_nobody_uses_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unused_operations([*OPERATIONS, 99]) == {99, *ELSEWHERE}
    monkeypatch.delitem(VALUES, "eta_cutoff")
    assert unused_parameters(PRESETS["canonical"]) == {"eta_cutoff"}
    assert unused_operations() == {ETA, *ELSEWHERE}


def test_a_preset_that_is_new_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(every_request())
    monkeypatch.setitem(PRESETS, "new", PRESETS["canonical"].replace(name="new"))
    assert before + len(requests(PRESETS["canonical"])) == len(every_request())


# --- Triton -----------------------------------------------------------------------------------------------------------


# The interpreter takes about 0.1 s for a row; starting Python with torch and Triton takes 2 s. The next draws a few.
@needs_triton
@pytest.mark.exhaustive
def test_the_triton_kernels_draw_the_same_under_their_interpreter(tmp_path: Path) -> None:
    checked = cuda_check(tmp_path, "--paths triton --no-speed --draws 120 --sizes 5 40 300")
    (part,) = checked["conformance"]
    assert (part["path"], part["differences"]) == ("triton", 0)
    assert part["draws"] >= 120


@needs_triton
@pytest.mark.slow
def test_the_check_for_owners_of_a_gpu_runs_whole(tmp_path: Path) -> None:
    checked = cuda_check(tmp_path, "--draws 4 --sizes 5 --shapes 2x1000 --rounds 1 --lives 1")
    assert [(p["path"], p["differences"]) for p in checked["conformance"]] == [
        ("triton", 0),
        ("shards", 0),
        ("eager", 0),
        ("presets", 0),
    ]
    assert [(part["differences"], part.get("draws", 0) > 0) for part in checked["batch"][:2]] == [(0, True)] * 2
    assert [part["not run"] for part in checked["batch"][2:]] == ["on cpu"] * 3
    assert {row["config"] for row in checked["speed"]} >= {"top_p", "top_k", "greedy"}
    assert all(row["us_tirage"] > 0 and row["us_one_read"] > 0 for row in checked["speed"])
    assert checked["not measured"] == ["speed on a GPU", "FlashInfer"]


@pytest.mark.slow
@needs_triton
def test_the_check_for_owners_of_a_gpu_sees_a_wrong_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    check = import_module("scripts.cuda_check")
    cases, cpu = [random_case(seed, 40) for seed in range(8)], torch.device("cpu")
    jobs = [check.Job(logits=logits, rows=rows) for logits, rows in cases]
    assert [check._differences("eager", job, cpu) for job in jobs] == [0] * 8
    weights = state.weights
    monkeypatch.setattr(state, "weights", lambda q: weights(q) ^ 1)
    assert sum(check._differences("eager", job, cpu) for job in jobs) > 0


def cuda_check(folder: Path, options: str) -> dict[str, Any]:
    """What scripts/cuda_check.py writes when it runs without a GPU."""
    out = folder / "check.json"
    command = [sys.executable, "scripts/cuda_check.py", "--device", "cpu", "--interpret", "--out", str(out)]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder)}
    subprocess.run([*command, *options.split()], cwd=ROOT, env=environment, check=True, capture_output=True)
    return json.loads(out.read_text())


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("name", ["weigh", "resolve"])
def test_the_compiled_kernels_hold_no_fused_multiply_add(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from ptx import compiled

    from tirage.backends.torch import kernels as source

    ptx = compiled(getattr(source, name))
    assert re.findall(r"\bfma\.rn\.f32", ptx) == []
    assert re.findall(r"\bmul(?:\.rn)?\.f32", ptx) != []
    assert ".ftz" not in ptx
