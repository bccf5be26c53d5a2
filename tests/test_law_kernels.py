"""`law` by the kernels gives, bit for bit, the float64 numbers of the plain path."""

from __future__ import annotations

import numpy as np
import pytest
from every_stage import bitmask, full_params
from numpy.typing import NDArray
from preset_rows import requests, states
from random_rows import random_case
from strategies import logits_of

import tirage
from tirage import SamplingParams
from tirage.backends.numpy import dispatch, distribution, kernels
from tirage.sampling_batch import SamplingBatch
from tirage.sampling_metadata import SamplingMetadata
from tirage.semantics import PRESETS


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    assert kernels.wait()
    assert kernels.law_ready()


def assert_laws_equal(logits: NDArray[np.float32], rows: SamplingMetadata) -> None:
    with np.errstate(all="ignore"):
        expected = [distribution.outcome(distribution.request_of(logits, rows, r)).law() for r in range(rows.count)]
    assert np.array(expected).tobytes() == dispatch.law_rows(logits, rows).tobytes()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("size", [1, 2, 33, 63, 64, 65, 255, 256, 257, 1000, 5000])
def test_random_programs_have_the_law_of_the_plain_path(size: int) -> None:
    for seed in range(25):
        assert_laws_equal(*random_case(900_000 + 1000 * size + seed, size))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_operator_of_every_preset_has_the_law_of_the_plain_path(preset: str) -> None:
    params = [p for p in requests(PRESETS[preset]) if not p.logits_processors]
    rng = np.random.default_rng(5)
    logits = np.round(rng.standard_normal((len(params), 300)) * 8).astype(np.float32) / 4
    frame = SamplingBatch.of(states(params, 300), 300)
    mask = bitmask(*([sorted(rng.permutation(300)[:200].tolist())] * len(params)), size=300)
    assert_laws_equal(logits, frame.metadata(None))
    assert_laws_equal(logits, frame.metadata(mask))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_mixture_has_both_branches_whichever_the_seed_takes(share: float) -> None:
    x = logits_of("medium", 400, 3)
    params = SamplingParams(xtc_probability=share, xtc_threshold=0.02, top_k=60)
    laws = {tirage.law(x, params.replace(seed=seed)).tobytes() for seed in range(8)}
    assert len(laws) == 1
    assert abs(1 - tirage.law(x, params).sum()) < 1e-12


@pytest.mark.slow
def test_rows_are_written_by_several_threads_as_by_one() -> None:
    x = np.stack([logits_of(shape, 70_000, 1) for shape in ("peaked", "medium", "flat", "ties")] * 8)
    params = [
        full_params("canonical", seed=1),
        SamplingParams(top_p=0.9),
        SamplingParams(temperature=0),
        SamplingParams(),
    ]
    history = [([1, 2], [3])] * 32
    before = kernels.threads()
    try:
        found = []
        for threads in (1, 3):
            kernels.set_threads(threads)
            found.append(tirage.law(x, params * 8, history=history).tobytes())
    finally:
        kernels.set_threads(before)
    assert found[0] == found[1]


def test_a_bad_row_is_nan_and_its_neighbours_are_not() -> None:
    x = np.zeros((3, 500), np.float32)
    x[1, 9] = np.nan
    law = tirage.law(x, SamplingParams(top_k=2))
    assert np.isnan(law).all(axis=1).tolist() == [False, True, False]
    assert law[0, :3].tolist() == [0.5, 0.5, 0.0]
