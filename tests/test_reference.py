"""The executable spec against known answers that do not come from this project, and against the paths in use."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
import reference
from golden import FOLDER
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import PATHS, by_reference, mask_words
from reference import arithmetic
from reference.outcome import evaluate
from strategies import SWITCHES, VALUES, Case, applies, cases, logits_of

from tirage import SamplingParams
from tirage.exact import logs, numbers, philox
from tirage.exact.keys import keys
from tirage.exact.weights import exponents, weights
from tirage.history import History
from tirage.sampling import outcomes
from tirage.sampling_batch import SamplingBatch, SamplingRow
from tirage.semantics import PRESETS

KNOWN = [
    [[int(word, 16) for word in part.split()] for part in line.split("|")]
    for line in (FOLDER / "philox4x32.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
BLOCKS = {
    (0, 0, 0, 0): 0x6627E8D5E169C58D,
    (7, 0, 0, 0): 0xF4607A2DC009F9DC,
    (7, 1, 0, 0): 0x682E8E9BCB97BC13,
    (7, 0, 1, 0): 0x2EC4F55D249EF5F4,
    (7, 0, 0, 1): 0x7EBAED902BF6D9AF,
    (-1, 0, 0, 0): 0x72A4770915474739,
}


def weights_of(row_weights: object) -> dict[int, int]:
    """Weights of a finished row of the plain path, token id -> integer."""
    return {int(t): int(w) for t, w in zip(row_weights.ids, row_weights.w(), strict=True)}  # pyright: ignore


def assert_conforms(case: Case) -> None:
    """Every path and the reference agree on every field, weight and probability of one case."""
    (expected,) = by_reference([case])
    assert dict.fromkeys(PATHS, expected) == {name: path([case])[0] for name, path in PATHS.items()}
    _assert_same_law(case)


def _assert_same_law(case: Case) -> None:
    truth = evaluate(case.logits.tolist(), case.params, case.prompt, case.output, step=case.at, mask=case.mask)
    history = History.of(case.prompt, case.output, vocab_size=case.logits.size)
    state = SamplingRow.of(case.params.replace(seed=0), history, step=case.at)
    frame = SamplingBatch.of([state], case.logits.size)
    (found,) = outcomes(case.logits[None], frame, mask_words([case.mask], case.logits.size))
    assert truth.status == found.status
    if truth.status:
        assert np.isnan(found.law()).all()
        return
    assert truth.off.first.weights() == weights_of(found.off.row)
    if found.on is not None:
        assert truth.on.first.weights() == weights_of(found.on.row)
    exact = truth.law()
    np.testing.assert_allclose(found.law(), [float(exact.get(t, 0)) for t in range(case.logits.size)], rtol=1e-15)


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_gives_the_known_answers_of_its_authors(counter: list[int], key: list[int], words: list[int]) -> None:
    assert tuple(words) == philox.philox4x32(tuple(counter), tuple(key))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("block", BLOCKS)
def test_the_uniform_is_the_known_one_in_both_implementations(block: tuple[int, int, int, int]) -> None:
    assert BLOCKS[block] == philox.uniform64(*block)
    assert BLOCKS[block] == arithmetic.uniform(*block)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 4))
def test_both_philox_implementations_agree(seed: int, step: int, sample: int, domain: int) -> None:
    assert arithmetic.uniform(seed, step, sample, domain) == philox.uniform64(seed, step, sample, domain)


@given(st.floats(width=32))
def test_both_key_functions_agree_on_every_kind_of_float(value: float) -> None:
    if not math.isnan(value):
        assert arithmetic.key(value) == int(keys(np.array([value], np.float32))[0])


@given(st.integers(0, 41 << 23))
def test_both_weight_functions_agree(q: int) -> None:
    assert arithmetic.weight(q) == int(weights(np.array([q], np.int32))[0])


def test_weights_fall_monotonically_from_two_to_the_forty_to_zero() -> None:
    q = np.concatenate([np.arange(0, 41 << 23, 9973), [41 << 23]]).astype(np.int32)
    w = weights(q).astype(np.int64)
    assert (int(w[0]), int(w[-1])) == (2**40, 0)
    assert int(np.diff(w).max()) <= 0
    assert np.abs(w[:-1] / np.exp2(40 - q[:-1] / 2**23) - 1)[w[:-1] > 2**22].max() < 4e-7


@given(st.floats(1e-20, 1e20), st.floats(-(2.0**99), 2.0**99, width=32), st.floats(-(2.0**99), 2.0**99, width=32))
def test_both_exponents_agree_at_every_temperature(t: float, a: float, b: float) -> None:
    c, m, x = numbers.temperature_constant(t), max(a, b), min(a, b)
    assert float(c) == arithmetic.constant(arithmetic.f32(t))
    assert arithmetic.exponent(x, m, float(c)) == int(exponents(np.array([x], np.float32), np.float32(m), c)[0])


@given(st.floats(2.0**-149, 1.0, width=32))
def test_logarithms_by_squaring_agree_with_eighty_digits(value: float) -> None:
    assert arithmetic.neglog2(value) == logs.neglog2_floor(value)
    assert arithmetic.half_neglog2(value) == numbers.half_neglog2(value)


@pytest.mark.parametrize("j", [1, 2, 3, 2**22, 2**23 - 1, 41 << 23])
@pytest.mark.parametrize("nudge", [-1, 0, 1])
def test_logarithms_are_exact_next_to_their_grid(j: int, nudge: int) -> None:
    grid = float(np.exp2(-j / 2**23))
    value = float(np.nextafter(grid, grid * (1 + nudge))) if nudge else grid
    with localcontext() as context:
        context.prec = 60
        true = -Decimal(value).ln() / Decimal(2).ln() * 2**23
    assert math.floor(true) == logs.neglog2_floor(value)


@given(st.integers(1, 2**92))
def test_both_integer_logarithms_agree_and_are_close(n: int) -> None:
    assert arithmetic.log2_of(n) == logs.ilog2(n)
    assert pytest.approx(math.log2(n), abs=2.5e-7) == logs.ilog2(n) / 2**23


@pytest.mark.parametrize("preset", PRESETS)
def test_every_path_conforms_under_every_preset(preset: str) -> None:
    @settings(max_examples=4, deadline=None)
    @given(cases(preset))
    def conform(case: Case) -> None:
        assert_conforms(case)

    conform()


@pytest.mark.exhaustive
@pytest.mark.parametrize("preset", PRESETS)
def test_every_path_conforms_on_many_mixes(preset: str) -> None:
    @settings(max_examples=200, deadline=None)
    @given(cases(preset))
    def conform(case: Case) -> None:
        assert_conforms(case)

    conform()


PAIRS = [(name, preset) for preset, s in PRESETS.items() for name in VALUES if applies(name, s)]


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["coarse", pytest.param("medium", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(("name", "preset"), PAIRS)
def test_every_operator_conforms_under_every_preset_that_has_it(name: str, preset: str, shape: str) -> None:
    past = {"prompt": (0, 1, 2, 0, 1), "output": (2, 0, 1)}
    for number, value in enumerate(VALUES[name][1:]):
        if not (value == 0.0 and PRESETS[preset].greedy == "refused"):
            params = SamplingParams(semantics=preset, logprobs=2, logprobs_mode="sampled", **{name: value})
            assert_conforms(Case(logits=logits_of(shape, 24, number), params=params, seed=number, **past))


def test_every_stage_has_a_parameter_that_the_tables_try() -> None:
    named = {SWITCHES.get(name, name) for name in VALUES}
    without_values = {"logit_bias", "sequence_bias", "processors", "scale"}
    assert {stage for s in PRESETS.values() for stage in s.stages} - without_values == named


def test_a_law_has_no_entries_for_a_row_that_draws_nothing() -> None:
    assert reference.law([math.nan, 0.0], SamplingParams()) is None
