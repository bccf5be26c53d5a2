"""The numeric rule in single steps, and every path at the edges of what a logit can be."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import PATHS, by_reference
from strategies import Case, logits_of

from tirage import SamplingParams
from tirage.exact import ilog2, keys, neglog2_floor, numbers, values, weights
from tirage.exact.keys import FLT_MAX, NEG_INF_KEY, POS_INF_KEY, clamped, cleaned, descending
from tirage.exact.logs import OCTAVE, ln_fixed, log_mass

floats = st.floats(width=32, allow_nan=False)


def array(*bits: int) -> np.ndarray:
    return np.array(bits, np.uint32).view(np.float32)


@given(floats, floats)
def test_keys_order_floats_as_real_numbers_do(a: float, b: float) -> None:
    ka, kb = keys(np.array([a, b], np.float32)).tolist()
    assert (a < b, a == b) == (ka < kb, ka == kb)


@given(floats)
def test_the_key_of_the_negative_is_the_negative_key(a: float) -> None:
    assert keys(np.array([-a], np.float32))[0] == -keys(np.array([a], np.float32))[0]


@given(floats)
def test_a_key_gives_its_logit_back(a: float) -> None:
    x = np.array([a], np.float32)
    assert [a + 0.0] == values(keys(x)).tolist()
    assert np.signbit(values(keys(x)))[0] == (a < 0)


def test_every_bit_pattern_has_the_key_of_its_definition() -> None:
    edges = [0, 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FFFFFFF]
    random = np.random.default_rng(5).integers(0, 1 << 32, 20_000, dtype=np.uint32)
    bits = np.concatenate([np.array([*edges, *(edge | 0x80000000 for edge in edges)], np.uint32), random])
    expected = [int(b) if b < 1 << 31 else -(int(b) & 0x7FFFFFFF) for b in bits]
    assert keys(bits.view(np.float32)).tolist() == expected


def test_descending_ranks_larger_keys_first_and_equal_ones_by_position() -> None:
    rng = np.random.default_rng(6)
    extremes = np.array([2**31 - 1, -(2**31 - 1), 0, 0, 2**31 - 1, NEG_INF_KEY, POS_INF_KEY], np.int32)
    for key in (extremes, rng.integers(-3, 4, 5_000).astype(np.int32), np.zeros(0, np.int32), np.zeros(1, np.int32)):
        expected = sorted(range(key.size), key=lambda at, key=key: (-int(key[at]), at))
        assert descending(key).tolist() == expected


def test_every_nan_lies_beyond_the_infinity_of_its_sign() -> None:
    positive = keys(array(0x7F800001, 0x7FC00000, 0x7FFFFFFF))
    negative = keys(array(0xFF800001, 0xFFC00000, 0xFFFFFFFF))
    assert (positive > POS_INF_KEY).all()
    assert (negative < NEG_INF_KEY).all()


def test_magnitudes_up_to_two_to_the_minus_126_become_plus_zero() -> None:
    x = array(0x00800000, 0x80800000, 0x00800001, 0x80800001, 0x00000001, 0x80000000)
    found = cleaned(x)
    assert [0.0, 0.0, float(x[2]), float(x[3]), 0.0, 0.0] == found.tolist()
    assert not np.signbit(found[[0, 1, 4, 5]]).any()


def test_results_of_edits_stay_finite() -> None:
    assert clamped(np.array([np.inf, -np.inf], np.float32)).tolist() == [FLT_MAX, -FLT_MAX]


def test_a_whole_number_of_octaves_halves_the_weight_exactly() -> None:
    q = np.arange(41, dtype=np.int32) << 23
    assert [2 ** (40 - i) for i in range(41)] == weights(q).tolist()


def test_weights_do_not_rise_across_any_octave_boundary() -> None:
    q = (np.arange(1, 42)[:, None] * 2**23 + np.arange(-50, 1)).astype(np.int32)
    assert np.diff(weights(q).astype(np.int64), axis=1).max() <= 0


def test_weights_of_a_whole_octave_do_not_rise() -> None:
    w = weights(np.arange(0, 1 << 23, 3, dtype=np.int32)).astype(np.int64)
    assert np.diff(w).max() <= 0


@given(st.floats(2.0**-140, 2.0**66, width=32) | st.just(2.0**-149))
def test_a_scaled_fraction_is_the_parameter_exactly(value: float) -> None:
    e, s = numbers.scaled_fraction(value)
    if value < 2.0**31:
        assert Fraction(e) / Fraction(2) ** s == Fraction(value)
        assert 2**31 <= e < 2**32


@pytest.mark.parametrize(("p", "expected"), [(1.0, 2**32), (0.5, 2**31), (0.9, 3865470464), (1e-12, 0), (2.0**-33, 0)])
def test_a_share_is_counted_in_two_to_the_minus_32(p: float, expected: int) -> None:
    assert expected == numbers.mass_fraction(p)


@pytest.mark.parametrize("t", [1e-20, 0.1, 1.0, 1e20])
def test_the_temperature_constant_is_finite_and_not_zero(t: float) -> None:
    assert 2.0**-44 < float(numbers.temperature_constant(t)) < 2.0**91


@pytest.mark.parametrize("n", range(93))
def test_logarithms_of_powers_of_two_are_exact(n: int) -> None:
    assert n * OCTAVE == ilog2(2**n)
    assert n * OCTAVE == neglog2_floor(2.0**-n)


def test_the_mass_of_one_maximum_has_logarithm_zero() -> None:
    assert log_mass(2**40) == 0.0
    assert pytest.approx([math.log(2), -math.log(2)], rel=2e-7) == [log_mass(2**41), ln_fixed(-OCTAVE)]


def rows_at_the_edges() -> dict[str, np.ndarray]:
    """Rows that broke some sampler once."""
    subnormal = array(0x80000047, 0x00000001, 0x00000002, 0x007FFFFF, 0x00800000, 0x00800001)
    return {
        "signed zeros": np.array([-0.0, 0.0, -0.0, 0.0, -0.0], np.float32),
        "subnormals": subnormal,
        "both ends": np.array([FLT_MAX, -FLT_MAX, 1e30, -3e38, 0.0, np.inf * -1], np.float32),
        "nan": np.array([0.0, np.nan, 1.0], np.float32),
        "negative nan": array(0x00000000, 0xFFC00000, 0x3F800000),
        "infinite": np.array([0.0, np.inf, 1.0], np.float32),
        "nothing": np.full(40, -np.inf, np.float32),
        "one candidate": np.array([-np.inf] * 39 + [-5.0], np.float32),
        "one token": np.array([-7.0], np.float32),
        "holes": logits_of("holes", 257, 1),
        "all equal": logits_of("constant", 256, 1),
        "ties": logits_of("ties", 255, 1),
        "bfloat16 ties": (logits_of("medium", 300, 2).view(np.uint32) & 0xFFFF0000).view(np.float32),
        "far tail": np.array([0.0, -28.0, -28.5, -60.0, -1e10, -1e10], np.float32),
        "masked by finite numbers": np.array([-1e10, 1.0, -1e10, 0.5, -1e10], np.float32),
    }


ASKED = {
    "greedy": {"temperature": 0.0},
    "plain": {},
    "coldest": {"temperature": 1e-20},
    "hottest": {"temperature": 1e20},
    "tiny top_p": {"top_p": 1e-12},
    "whole min_p": {"min_p": 1.0},
    "all filters": {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.9, "eta_cutoff": 3e-4},
    "sigma": {"top_n_sigma": 1.0},
    "top_h": {"top_h": 0.5},
    "xtc": {"xtc_probability": 0.5},
    "dynamic": {"dynatemp_range": 0.9, "dynatemp_exponent": 0.5},
    "penalised": {"repetition_penalty": 1e30, "frequency_penalty": 1.1, "presence_penalty": -0.3},
    "biased": {"logit_bias": {0: 1e-40}, "presence_penalty": 1e-40},
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("edge", rows_at_the_edges())
def test_every_path_equals_the_reference_at_the_edges(edge: str, path: str) -> None:
    x = rows_at_the_edges()[edge]
    output = tuple(range(min(3, x.size)))
    cases = [
        Case(logits=x, params=SamplingParams(logprobs=4, logprobs_mode=mode, **fields), output=output, seed=seed)
        for seed, (fields, mode) in enumerate(zip(ASKED.values(), cycle(("sampled", "processed", "raw"))))
    ]
    assert by_reference(cases) == PATHS[path](cases)


@pytest.mark.parametrize("path", PATHS)
def test_a_masked_nan_is_harmless_and_an_unmasked_one_is_not(path: str) -> None:
    x = array(0x00000000, 0xFFC00000, 0x7F800000, 0x3F800000)
    asked = SamplingParams(logprobs=4)
    masked, open_ = Case(logits=x, params=asked, mask=(True, False, False, True)), Case(logits=x, params=asked)
    assert [answer.status for answer in PATHS[path]([masked, open_])] == [0, 1]
    assert by_reference([masked, open_]) == PATHS[path]([masked, open_])


@pytest.mark.parametrize("path", PATHS)
def test_masses_beyond_53_bits_are_compared_as_integers(path: str) -> None:
    """16384 equal tokens and one of weight 1: half of the mass is 2^53 + 1/2, so 8193 tokens are needed."""
    x = np.append(np.zeros(16384), -40 * np.log(2.0)).astype(np.float32)
    (answer,) = PATHS[path]([Case(logits=x, params=SamplingParams(top_p=0.5))])
    assert answer.support == 8193


def wide_cases(shape: str) -> list[Case]:
    x = logits_of(shape, 1500, 1)
    return [Case(logits=x, params=SamplingParams(logprobs=2, **fields), seed=3) for fields in ASKED.values()]


@cache
def wide_reference(shape: str) -> list[Any]:
    """The reference's answers, worked out once for all paths."""
    return by_reference(wide_cases(shape))


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", ["flat", "medium", "ties", "holes"])
def test_every_path_equals_the_reference_on_wide_rows(shape: str, path: str) -> None:
    assert wide_reference(shape) == PATHS[path](wide_cases(shape))


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_the_largest_vocabulary_draws_by_position_on_every_path(path: str) -> None:
    x = np.zeros(1 << 20, np.float32)
    (answer,) = PATHS[path]([Case(logits=x, params=SamplingParams(), seed=7)])
    assert (answer.token, answer.support) == (0xF4607A2DC009F9DC >> 44, 1 << 20)
