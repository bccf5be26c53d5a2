"""What must hold for any row, whatever it asks: independence, symmetry, off values, order, and the law itself."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from paths import PATHS, mask_words
from strategies import SWITCHES, VALUES, Case, applies, cases, logits_of, params_for

import tirage
from tirage import SamplingParams
from tirage.semantics import PRESETS

few = settings(max_examples=20, deadline=None)
SMOOTH = ("peaked", "medium", "normal", "sorted")


def law_of(case: Case, logits: np.ndarray | None = None) -> np.ndarray:
    x = case.logits if logits is None else logits
    mask = mask_words([case.mask], x.size)
    return tirage.law(
        x, case.params, history=[(case.prompt, case.output)], step=[case.at], mask=mask, state=case.carried
    )[0]


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
@few
@given(st.lists(cases(size=33), min_size=2, max_size=5))
def test_a_row_alone_is_the_row_in_any_batch(path: str, rows: list[Case]) -> None:
    together = PATHS[path](rows)
    assert together == [PATHS[path]([row])[0] for row in rows]
    assert together[::-1] == PATHS[path](rows[::-1])


def renamed(params: SamplingParams, order: np.ndarray) -> SamplingParams:
    """`params` after token `order[i]` was renamed to i."""
    to = {int(old): new for new, old in enumerate(order)}
    bias = params.logit_bias
    return params.replace(
        logit_bias=None if bias is None else {to[t]: b for t, b in dict(bias).items()},
        allowed_token_ids=None if params.allowed_token_ids is None else [to[t] for t in params.allowed_token_ids],
        bad_words_token_ids=[[to[t] for t in word] for word in params.bad_words_token_ids],
        stop_token_ids=[to[t] for t in params.stop_token_ids],
        logprob_token_ids=[to[t] for t in params.logprob_token_ids],
        xtc_protected_ids=[to[t] for t in params.xtc_protected_ids],
    )


@pytest.mark.slow
@few
@given(cases(shapes=SMOOTH, size=33), st.permutations(range(33)))
def test_renaming_the_tokens_renames_the_law(case: Case, order: list[int]) -> None:
    """Where no two logits are equal after the edits: ties are broken by id, on purpose."""
    processed = case.with_params(logprobs=33, logprobs_mode="processed", logprob_token_ids=[])
    values = [v for _, v in PATHS["plain"]([processed])[0].top]
    assume(len(set(values)) == len(values))
    to = np.argsort(order)
    moved = replace(
        case,
        logits=case.logits[order],
        params=renamed(case.params, np.array(order)),
        prompt=tuple(int(to[t]) for t in case.prompt),
        output=tuple(int(to[t]) for t in case.output),
        mask=None if case.mask is None else tuple(case.mask[t] for t in order),
    )
    np.testing.assert_array_equal(law_of(case)[order], law_of(moved))


@pytest.mark.parametrize("shift", [-64.0, 0.5, 1024.0])
@pytest.mark.parametrize("preset", [name for name in PRESETS if name != "easydel-strict"])
def test_adding_a_constant_to_all_logits_changes_nothing(preset: str, shift: float) -> None:
    """For logits whose sums with the constant are exact, and nothing that looks at a logit's sign."""
    x = logits_of("coarse", 40, 3)
    for temperature in (0.7, 1.0):
        for fields in ({"top_k": 7}, {"top_p": 0.8}, {"min_p": 0.05}, {"typical_p": 0.6}, {"top_n_sigma": 1.0}):
            if all(applies(name, PRESETS[preset]) for name in (*fields, "temperature")):
                params = SamplingParams(semantics=preset, temperature=temperature).replace(**fields)
                if "scale" not in PRESETS[preset].stages:
                    np.testing.assert_array_equal(tirage.law(x, params), tirage.law(x + np.float32(shift), params))


@pytest.mark.parametrize("name", VALUES)
def test_the_off_value_of_a_parameter_is_the_same_as_leaving_it_out(name: str) -> None:
    for preset, semantics in PRESETS.items():
        if applies(name, semantics):
            for shape in ("coarse", "medium", "holes"):
                x = logits_of(shape, 50, 4)
                plain, off = (
                    SamplingParams(semantics=preset),
                    SamplingParams(semantics=preset, **{name: VALUES[name][0]}),
                )
                np.testing.assert_array_equal(tirage.law(x, plain), tirage.law(x, off))


@pytest.mark.slow
@few
@given(cases(size=33), st.floats(0.01, 1.0), st.floats(0.01, 1.0))
def test_supports_nest_in_top_p(case: Case, one: float, other: float) -> None:
    low, high = sorted((one, other))
    small, large = (law_of(replace(case, params=SamplingParams(top_p=p, temperature=0.9))) > 0 for p in (low, high))
    assert not (small & ~large).any()


@pytest.mark.parametrize("preset", PRESETS)
def test_top_k_one_draws_the_greedy_token(preset: str) -> None:
    semantics = PRESETS[preset]
    if not applies("top_k", semantics):
        assert "top_k" not in semantics.stages
        return
    for shape in ("medium", "sorted", "huge"):
        for seed in range(3):
            x = logits_of(shape, 60, seed)
            one = tirage.sample(x, SamplingParams(semantics=preset, top_k=1, seed=seed))
            greedy = tirage.sample(x, SamplingParams(semantics=preset, temperature=0.0))
            assert int(np.argmax(x)) == one.token_ids[0] == greedy.token_ids[0]
            assert [
                *one.sampled_logprobs,
                *greedy.sampled_logprobs,
                *one.support_sizes,
                *greedy.support_sizes,
            ] == [0.0, 0.0, 1, 1]


@few
@given(cases())
def test_a_drawn_token_is_allowed_and_has_positive_probability(case: Case) -> None:
    (answer,) = PATHS["sample"]([case])
    law = law_of(case)
    if answer.status:
        assert answer.token == -1
        assert np.isnan(law).all()
        return
    assert law[answer.token] > 0
    assert case.mask is None or case.mask[answer.token]
    assert case.params.allowed_token_ids is None or answer.token in case.params.allowed_token_ids
    assert answer.support == (law > 0).sum()


@few
@given(cases())
def test_a_law_sums_to_one(case: Case) -> None:
    law = law_of(case)
    assert np.isnan(law).all() or abs(law.sum() - 1) < 1e-12


@pytest.mark.slow
@few
@given(cases())
def test_the_sampled_logprob_is_the_logarithm_of_the_law(case: Case) -> None:
    (answer,) = PATHS["sample"]([case])
    if answer.status == 0:
        p = law_of(case)[answer.token]
        found = float(np.uint32(answer.sampled_logprob).view(np.float32))
        assert p < 2.0**-20 or abs(found - np.log(p)) < 4e-6


@few
@given(cases())
def test_the_logits_are_not_modified(case: Case) -> None:
    before = case.logits.tobytes()
    x = case.logits.copy()
    x.flags.writeable = False
    PATHS["sample"]([replace(case, logits=x)])
    assert before == x.tobytes()


@few
@given(params_for("canonical", 50), st.sampled_from([np.float16, ml_dtypes.bfloat16, np.float64]))
def test_other_float_types_are_the_float32_values_they_hold(params: SamplingParams, dtype: type) -> None:
    x = logits_of("medium", 50, 1).astype(dtype)
    given = {"history": [([1, 2], [3])], "state": 3.0}
    expected = tirage.law(x.astype(np.float32), params, **given)
    np.testing.assert_array_equal(expected, tirage.law(x, params, **given))


def test_an_empty_batch_gives_an_empty_draw() -> None:
    drawn = tirage.sample(np.zeros((0, 5), np.float32), [])
    assert [len(drawn), tirage.law(np.zeros((0, 5), np.float32), []).shape] == [0, (0, 5)]


def test_an_unseeded_row_reports_a_seed_that_repeats_it() -> None:
    x = logits_of("flat", 500, 0)
    drawn = tirage.sample(np.stack([x] * 8), SamplingParams())
    again = tirage.sample(np.stack([x] * 8), [SamplingParams(seed=int(seed)) for seed in drawn.seeds])
    assert drawn.token_ids.tolist() == again.token_ids.tolist()
    assert len(set(drawn.seeds.tolist())) == 8


def test_every_filter_of_the_tables_is_under_these_properties() -> None:
    assert {SWITCHES.get(name, name) for name in VALUES} <= {s for p in PRESETS.values() for s in p.stages}
