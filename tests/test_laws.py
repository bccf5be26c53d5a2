"""The draw follows the law: by an exact sweep of the uniform, by chi-square, and by float64 formulas of each filter."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import reference
from numpy.typing import NDArray
from scipy import stats
from strategies import logits_of

import tirage
from tirage import SamplingParams
from tirage.backends.numpy import distribution
from tirage.exact.philox import Domain, uniform64
from tirage.history import History
from tirage.sampling import outcomes
from tirage.sampling_batch import SamplingBatch, SamplingRow
from tirage.semantics import PRESETS

MIXES: dict[str, dict[str, Any]] = {
    "all": {},
    "hot": {"temperature": 1.7},
    "nucleus": {"temperature": 0.8, "top_k": 6, "top_p": 0.9, "min_p": 0.05},
    "truncated": {"top_p": 0.6, "semantics": "trtllm-legacy"},
    "joint": {"top_k": 5, "top_p": 0.7, "semantics": "sglang"},
    "typical": {"typical_p": 0.7},
    "xtc_on": {"xtc_probability": 1.0, "xtc_threshold": 0.1},
}


@pytest.mark.parametrize("name", MIXES)
@pytest.mark.parametrize("shape", ["medium", "coarse"])
def test_a_sweep_of_the_uniform_meets_each_probability_within_one(
    name: str, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, n, params = logits_of(shape, 9, 5), 2000, SamplingParams(**MIXES[name])
    (result,) = _outcomes(x, params)
    chain = result.on or result.off
    counts: Counter[int] = Counter()
    for i in range(n):
        u = (2 * i + 1) * 2**64 // (2 * n)
        monkeypatch.setattr(distribution, "uniform64", lambda *key, u=u: u)
        counts[chain.draw(0, 0, 0)] += 1
    law = reference.law(x.tolist(), params)
    assert law is not None
    assert all(abs(Fraction(counts[t]) - n * p) <= 1 for t, p in enumerate(law))


def _outcomes(
    x: NDArray[np.float32], params: SamplingParams, mask: NDArray[np.int32] | None = None
) -> list[distribution.Distribution]:
    state = SamplingRow.of(params, History.of((), (), vocab_size=x.size))
    return outcomes(x[None], SamplingBatch.of([state], x.size), mask)


MIXTURES: dict[str, dict[str, Any]] = MIXES | {
    "xtc_half": {"xtc_probability": 0.5, "xtc_threshold": 0.1},
    "xtc_then_cold": {"xtc_probability": 0.4, "xtc_threshold": 0.1, "temperature": 0.3, "semantics": "llamacpp"},
    "resample": {"top_k": 4, "semantics": "llamacpp"},
}


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("vary", ["seed", "step", "sample_index"])
def test_tokens_of_many_keys_follow_the_law(name: str, vary: str) -> None:
    """Chi-square at 1e-4 over fixed keys, so the verdict is the same on every run."""
    n, x, params = 1500, logits_of("normal", 8, 11), SamplingParams(**MIXTURES[name])
    mask = np.array([[0b11010111]], np.int32) if name == "resample" else None
    (result,) = _outcomes(x, params, mask)
    place = ("seed", "step", "sample_index").index(vary)
    keys = [tuple(i if at == place else 5 for at in range(3)) for i in range(n)]
    counts = np.bincount([result.chain(*key).draw(*key) for key in keys], minlength=x.size)
    law = tirage.law(x, params, mask=mask)[0]
    assert counts[law == 0].sum() == 0
    kept = law * n >= 5
    expected, found = law[kept] * n, counts[kept]
    if found.size > 1:
        assert stats.chisquare(found, expected * found.sum() / expected.sum()).pvalue > 1e-4


@pytest.mark.parametrize("name", MIXTURES)
def test_sample_draws_the_tokens_of_its_law(name: str) -> None:
    n, x, params = 40, logits_of("normal", 8, 11), SamplingParams(**MIXTURES[name])
    mask = np.array([[0b11010111]], np.int32) if name == "resample" else None
    (result,) = _outcomes(x, params, mask)
    drawn = tirage.sample(
        np.broadcast_to(x, (n, x.size)),
        params.replace(seed=9),
        step=range(n),
        mask=None if mask is None else np.repeat(mask, n, axis=0),
    )
    assert [result.chain(9, step, 0).draw(9, step, 0) for step in range(n)] == drawn.token_ids.tolist()


def test_uniform_bits_of_consecutive_keys_are_balanced() -> None:
    words = [uniform64(3, step, sample, Domain.DRAW) for step in range(64) for sample in range(64)]
    ones = np.array([[(u >> bit) & 1 for bit in range(64)] for u in words]).sum(axis=0)
    assert np.abs(ones - 2048).max() < 5 * 32
    assert len(set(words)) == 4096


def test_two_samples_of_one_seed_are_not_two_seeds() -> None:
    """n = 2 with seed 7 must not give what n = 1 gives with seed 8 (vector 16 of the conformance list)."""
    assert uniform64(7, 0, 1) == 0x2EC4F55D249EF5F4
    assert uniform64(7, 0, 1) != uniform64(8, 0, 0)


def test_near_uniform_nucleus_of_a_large_vocabulary_is_exact() -> None:
    """Serial float32 sums lose a token here (vector 13): ceil(0.95 as binary32 * 150000) = 142500."""
    drawn = tirage.sample(np.zeros(150_000, np.float32), SamplingParams(top_p=0.95, seed=0))
    assert drawn.support_sizes.tolist() == [142_500]


def test_the_largest_vocabulary_of_equal_logits_draws_by_position() -> None:
    size = 1 << 20
    drawn = tirage.sample(np.zeros(size, np.float32), SamplingParams(seed=7))
    assert [uniform64(7, 0) >> 44] == drawn.token_ids.tolist()
    assert [size] == drawn.support_sizes.tolist()


# --- each filter against its usual float64 formula, written with sorts and softmax ---------------------------------


def softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    e = np.exp(x - x.max())
    return e / e.sum()


def _prefix(x: NDArray[np.float64], p: float) -> NDArray[np.bool_]:
    order = np.argsort(-x, kind="stable")
    mass = np.cumsum(softmax(x)[order])
    kept = np.zeros(x.size, bool)
    kept[order[: int(np.searchsorted(mass, p)) + 1]] = True
    return kept


def _typical(x: NDArray[np.float64], p: float) -> NDArray[np.bool_]:
    logp = np.log(softmax(x))
    far = np.abs(-logp - (-(softmax(x) * logp).sum()))
    order = np.argsort(far, kind="stable")
    last = int(np.searchsorted(np.cumsum(softmax(x)[order]), p))
    return far <= far[order[min(last, x.size - 1)]]


def _eta(x: NDArray[np.float64], eps: float) -> NDArray[np.bool_]:
    p = softmax(x)
    return (p >= min(eps, np.sqrt(eps) * np.exp((p * np.log(p)).sum()))) | (x == x.max())


def _top_h(x: NDArray[np.float64], h: float) -> NDArray[np.bool_]:
    order = np.argsort(-x, kind="stable")[:100]
    p = softmax(x[order])
    entropy = np.cumsum(-p * np.log(p))
    kept = np.zeros(x.size, bool)
    kept[order[: max(1, int((entropy <= h * entropy[-1]).sum()))]] = True
    return kept


def _p_less(x: NDArray[np.float64], kind: str) -> NDArray[np.bool_]:
    """github.com/ryttry/p-less: p_less_decode and p_less_norm_decode."""
    p = softmax(x)
    same = (p * p).sum()
    return p >= (same if kind == "plain" else (p.size * same - 1) / (p.size - 1))


def _tail_free(x: NDArray[np.float64], z: float) -> NDArray[np.bool_]:
    """text-generation-webui, TailFreeLogitsWarper: the last token goes, the first stays, the others by the sum."""
    order = np.argsort(-x, kind="stable")
    bends = np.abs(np.diff(softmax(x)[order], n=2))
    removed = np.concatenate([[False], np.cumsum(bends / bends.sum()) > z, [True]])
    kept = np.zeros(x.size, bool)
    kept[order[~removed]] = True
    return kept


FORMULAS = {
    "top_k": (lambda x, k: x >= np.sort(x)[-k], [1, 5, 40]),
    "top_p": (_prefix, [0.1, 0.5, 0.9, 0.99]),
    "min_p": (lambda x, m: softmax(x) >= m * softmax(x).max(), [0.01, 0.1, 0.5]),
    "top_a": (lambda x, a: softmax(x) >= a * softmax(x).max() ** 2, [0.05, 0.3, 1.0]),
    "p_less": (_p_less, ["plain", "norm"]),
    "tfs": (_tail_free, [0.3, 0.8, 0.95]),
    "typical_p": (_typical, [0.2, 0.9]),
    "epsilon_cutoff": (lambda x, e: (softmax(x) >= e) | (x == x.max()), [3e-4, 0.02]),
    "eta_cutoff": (_eta, [3e-4, 0.02]),
    "top_n_sigma": (lambda x, n: x >= x.max() - n * x.std(), [0.7, 1.0, 2.3]),
    "top_h": (_top_h, [0.4, 0.8]),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_each_filter_keeps_what_its_float64_formula_keeps(name: str) -> None:
    """On fixed rows without ties, none of whose tokens lies within 1e-7 of a boundary."""
    formula, values = FORMULAS[name]
    for value in values:
        for shape in ("normal", "medium", "peaked"):
            for seed in range(4):
                x = logits_of(shape, 400, seed)
                law = tirage.law(x, SamplingParams(**{name: value}))[0]
                kept = formula(x.astype(np.float64), value)
                light = softmax(x.astype(np.float64)) < 2.0**-40
                assert np.flatnonzero(kept & ~light).tolist() == np.flatnonzero((law > 0) & ~light).tolist()
                np.testing.assert_allclose(
                    law[kept], softmax(np.where(kept, x, -np.inf).astype(np.float64))[kept], atol=2e-7
                )


@pytest.mark.parametrize("temperature", [0.05, 0.3, 0.7, 1.0, 1.9, 50.0])
@pytest.mark.parametrize("shape", ["normal", "medium", "peaked", "flat", "holes"])
def test_the_law_is_softmax_to_one_part_in_ten_million(shape: str, temperature: float) -> None:
    x = logits_of(shape, 1000, 2)
    law = tirage.law(x, SamplingParams(temperature=temperature))[0]
    expected = softmax(x.astype(np.float64) / float(np.float32(temperature)))
    assert np.abs(law - expected).sum() / 2 < 2e-7


def test_dynamic_temperature_follows_the_entropy_between_its_bounds() -> None:
    """llama.cpp's formula in float64: T = low + (high - low) * (H / ln n) ^ exponent."""
    for shape in ("normal", "medium", "flat", "peaked"):
        x = logits_of(shape, 300, 6).astype(np.float64)
        p = softmax(x)
        share = -(p[p > 0] * np.log(p[p > 0])).sum() / np.log(x.size)
        for exponent in (0.5, 1.0, 2.0):
            params = SamplingParams(temperature=1.0, dynatemp_range=0.5, dynatemp_exponent=exponent)
            t = 0.5 + min(share, 1.0) ** exponent
            law = tirage.law(x.astype(np.float32), params)[0]
            assert np.abs(law - softmax(x / t)).sum() / 2 < 3e-6


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
@pytest.mark.parametrize(("factor", "curve"), [(0.05, 1.0), (0.3, 1.0), (0.3, 2.5), (2.0, 3.0), (0.7, 7.5)])
def test_smoothing_is_the_formula_on_what_the_temperature_has_divided(
    factor: float, curve: float, temperature: float
) -> None:
    """text-generation-webui, QuadraticSamplingLogitsWarper, and koboldcpp, sample_temperature, in float64."""
    for shape in ("normal", "medium", "flat", "ties", "holes"):
        x = logits_of(shape, 300, 6)
        params = SamplingParams(smoothing_factor=factor, smoothing_curve=curve, temperature=temperature)
        z = x.astype(np.float64) / float(np.float32(temperature))
        d = z - z.max()
        with np.errstate(invalid="ignore"):
            cubic = -((3 - curve) / 2 * factor * d**2) + (curve - 1) / 2 * factor * d**3
        law = tirage.law(x, params)[0]
        assert np.abs(law - softmax(np.where(np.isfinite(z), cubic, -np.inf))).sum() / 2 < 1e-6


def test_xtc_law_is_the_mixture_of_its_two_branches() -> None:
    x = np.log(np.array([0.5, 0.3, 0.15, 0.05])).astype(np.float32)
    law = tirage.law(x, SamplingParams(xtc_probability=0.25, xtc_threshold=0.1))[0]
    np.testing.assert_allclose(
        law, 0.75 * np.array([0.5, 0.3, 0.15, 0.05]) + 0.25 * np.array([0, 0, 0.75, 0.25]), atol=1e-6
    )


def test_each_preset_without_parameters_is_softmax() -> None:
    x = logits_of("medium", 200, 8)
    for name in PRESETS:
        law = tirage.law(x, SamplingParams(semantics=name))[0]
        assert np.abs(law - softmax(x.astype(np.float64))).sum() / 2 < 2e-7
