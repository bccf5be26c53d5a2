"""What `sample` and `law` give back: tokens, seeds, statuses, logprobs; what masks and histories do to them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from every_stage import bitmask, full_params, hashed_logits, octaves
from numpy.typing import NDArray

import tirage
from tirage import Draw, SamplingParams, Status
from tirage.semantics import PRESETS

V = 40
SEEDED = SamplingParams(seed=1)
FLAT = np.zeros(64, np.float32)
REPORTED = ("logprobs", "ranks", "top_token_ids", "top_logprobs", "given_logprobs")


def row_bits(drawn: Draw, row: int) -> list[Any]:
    """Everything a Draw says about one row, comparable bit for bit."""
    arrays = (drawn.token_ids, drawn.sampled_logprobs, drawn.support_sizes, drawn.status, drawn.seeds)
    reported = [drawn.logprobs, drawn.ranks, drawn.top_token_ids, drawn.top_logprobs]
    given = None if drawn.given_logprobs is None else drawn.given_logprobs[row]
    return [None if a is None else a[row].tobytes() for a in (*arrays, *reported)] + [given]


def near(expected: Any, actual: Any, tolerance: float = 1e-6) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


def odds(law: NDArray[np.float64], token: int) -> float:
    """ln(p / (1 - p)): the token's final logit when all others sum to weight 1."""
    return math.log(law[token] / (1 - law[token]))


# --- shapes and law ----------------------------------------------------------------------------------------------


def test_one_row_without_a_batch_axis_is_a_batch_of_one() -> None:
    x = hashed_logits("one", size=V)
    params = full_params("canonical", seed=4, logprobs=2)
    history = [([1, 2], [3])]
    flat, batched = tirage.sample(x, params, history=history), tirage.sample(x[None], params, history=history)
    assert [len(flat), len(batched)] == [1, 1]
    assert row_bits(batched, 0) == row_bits(flat, 0)
    np.testing.assert_array_equal(tirage.law(x[None], params, history=history), tirage.law(x, params, history=history))


def test_the_results_have_the_documented_types() -> None:
    x = hashed_logits("types", size=3 * V).reshape(3, V)
    drawn = tirage.sample(x, SamplingParams(seed=1, logprobs=5, logprob_token_ids=[7, 2]))
    fields = ("token_ids", "sampled_logprobs", "support_sizes", "status", "seeds", *REPORTED[:4])
    expected = {
        "token_ids": ("int64", (3,)),
        "sampled_logprobs": ("float32", (3,)),
        "support_sizes": ("int64", (3,)),
        "status": ("int8", (3,)),
        "seeds": ("int64", (3,)),
        "logprobs": ("float32", (3,)),
        "ranks": ("int64", (3,)),
        "top_token_ids": ("int64", (3, 5)),
        "top_logprobs": ("float32", (3, 5)),
    }
    assert expected == {name: (str(getattr(drawn, name).dtype), getattr(drawn, name).shape) for name in fields}
    assert np.float64 == tirage.law(x, SEEDED).dtype


def test_the_law_is_the_softmax_when_nothing_is_asked() -> None:
    x = hashed_logits("softmax", size=3 * V).reshape(3, V).astype(np.float64)
    weights = np.exp(x - x.max(axis=1, keepdims=True))
    near(weights / weights.sum(axis=1, keepdims=True), tirage.law(x, SamplingParams()))


def test_the_law_follows_the_temperature() -> None:
    near([[0.8, 0.2]], tirage.law(octaves(0, 1), SamplingParams(temperature=0.5)))
    near([[2 / 3, 1 / 3]], tirage.law(octaves(0, 2), SamplingParams(temperature=2)))


def test_the_law_is_the_same_for_every_seed_and_adds_up_to_one() -> None:
    x = hashed_logits("sum", size=V)
    params = full_params("canonical", seed=1)
    history = [([1, 2], [3])]
    law = tirage.law(x, params, history=history)
    assert abs(1 - law.sum()) < 1e-12
    np.testing.assert_array_equal(law, tirage.law(x, params.replace(seed=2), history=history, step=9))


def test_the_support_size_counts_the_tokens_that_can_be_drawn() -> None:
    x = hashed_logits("support", size=V)
    for preset in PRESETS:
        params = full_params(preset, seed=1, **({"xtc_probability": 0.0} if "xtc" in PRESETS[preset].stages else {}))
        drawn = tirage.sample(x, params, history=[([1, 2], [3, 3])])
        assert [np.count_nonzero(tirage.law(x, params, history=[([1, 2], [3, 3])]))] == drawn.support_sizes.tolist()


def test_greedy_takes_the_lowest_id_of_the_largest_and_its_logprob_is_zero() -> None:
    drawn = tirage.sample(np.array([1.0, 5.0, 5.0, -1.0]), SamplingParams(temperature=0, top_p=0.1, top_k=3))
    assert (drawn.token_ids.tolist(), drawn.support_sizes.tolist()) == ([1], [1])
    assert np.zeros(1, np.float32).tobytes() == drawn.sampled_logprobs.tobytes()
    assert tirage.law(np.array([1.0, 5.0, 5.0, -1.0]), SamplingParams(temperature=0)).tolist() == [[0, 1, 0, 0]]


def test_minus_zero_ties_with_zero() -> None:
    assert tirage.sample(np.array([-0.0, 0.0]), SamplingParams(temperature=0)).token_ids.tolist() == [0]


# --- randomness --------------------------------------------------------------------------------------------------


def tokens(**options: Any) -> list[int]:
    """Forty draws from 64 equal tokens, at steps 0..39 unless given."""
    options = {"seed": 5, "step": range(40), **options}
    params = SamplingParams(seed=options.pop("seed"))
    return tirage.sample(np.tile(FLAT, (40, 1)), params, **options).token_ids.tolist()


def test_the_same_seed_and_step_give_the_same_token() -> None:
    assert tokens() == tokens()
    assert len(set(tokens(step=[7] * 40))) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 6},
        {"seed": -5},
        {"seed": 5 + 2**32},
        {"step": range(1, 41)},
        {"step": range(2**31, 2**31 + 40)},
        {"sample_index": 1},
        {"sample_index": 2**32 - 1},
    ],
    ids=str,
)
def test_another_seed_step_or_sample_index_is_another_stream(other: dict[str, Any]) -> None:
    # Two unrelated streams agree in each place with chance 1/64: 12 of 40 has chance below 1e-11.
    assert sum(a == b for a, b in zip(tokens(), tokens(**other), strict=True)) < 12


def test_a_stream_is_the_same_stream_one_step_later() -> None:
    assert tokens()[1:] == tokens(step=range(1, 41))[:-1]


@pytest.mark.parametrize("seed", [-(2**63), -1, 0, 1, 2**63 - 1])
def test_every_int64_is_a_seed_and_is_reported(seed: int) -> None:
    drawn = tirage.sample(np.tile(FLAT, (2, 1)), SamplingParams(seed=seed))
    assert [seed, seed] == drawn.seeds.tolist()
    assert drawn.token_ids[0] == drawn.token_ids[1]


def test_an_unseeded_row_gets_a_fresh_seed_that_repeats_its_draw() -> None:
    x = hashed_logits("fresh", size=64 * V).reshape(64, V)
    drawn = tirage.sample(x, SamplingParams(), step=3)
    assert len(set(drawn.seeds.tolist())) == 64
    again = tirage.sample(x, [SamplingParams(seed=int(seed)) for seed in drawn.seeds], step=3)
    assert [row_bits(drawn, r) for r in range(64)] == [row_bits(again, r) for r in range(64)]


def test_two_unseeded_calls_differ() -> None:
    first, second = (tirage.sample(np.tile(FLAT, (40, 1)), SamplingParams()) for _ in range(2))
    assert first.seeds.tolist() != second.seeds.tolist()
    assert first.token_ids.tolist() != second.token_ids.tolist()


def test_the_step_is_the_number_of_output_ids_unless_given() -> None:
    x = np.tile(FLAT, (20, 1))
    grown = [([9] * 3, [1] * n) for n in range(20)]
    by_history = tirage.sample(x, SEEDED, history=grown).token_ids.tolist()
    assert tirage.sample(x, SEEDED, step=range(20)).token_ids.tolist() == by_history
    overridden = tirage.sample(x, SEEDED, history=grown, step=5).token_ids.tolist()
    assert [by_history[5]] * 20 == overridden


def test_the_prompt_does_not_move_the_stream() -> None:
    prompts = [(list(range(n)), []) for n in range(20)]
    assert len(set(tirage.sample(np.tile(FLAT, (20, 1)), SEEDED, history=prompts).token_ids.tolist())) == 1


def test_the_last_step_and_sample_index_are_2_to_the_32_less_one() -> None:
    drawn = tirage.sample(FLAT, SEEDED, step=2**32 - 1, sample_index=2**32 - 1)
    assert [Status.ok] == drawn.status.tolist()


# --- rows are independent ----------------------------------------------------------------------------------------


def mixed_rows() -> tuple[NDArray[np.float32], list[SamplingParams], list[tuple[list[int], list[int]]]]:
    """One busy row for each preset, and a plain, a greedy and a penalised one."""
    params = [full_params(name, seed=i, logprobs=i % 4) for i, name in enumerate(PRESETS)]
    params += [SEEDED, SamplingParams(temperature=0, seed=8), SamplingParams(seed=9, min_p=0.3, frequency_penalty=2.0)]
    x = np.stack([hashed_logits("mixed", i, size=V) for i in range(len(params))])
    return x, params, [([i % V, 2, 3], [3, 5, i % 7]) for i in range(len(params))]


def test_a_row_alone_draws_what_it_draws_among_all_presets_in_any_order() -> None:
    x, params, history = mixed_rows()
    together = tirage.sample(x, params, history=history)
    order = np.random.default_rng(0).permutation(len(params))
    shuffled = tirage.sample(x[order], [params[i] for i in order], history=[history[i] for i in order])
    for place, row in enumerate(order):
        alone = tirage.sample(x[row], params[row], history=[history[row]])
        assert row_bits(alone, 0)[:5] == row_bits(together, row)[:5] == row_bits(shuffled, place)[:5]
        if params[row].logprobs is not None:
            assert alone.logprobs is not None
            assert alone.logprobs[0].tobytes() == together.logprobs[row].tobytes()


def test_a_row_has_the_law_alone_that_it_has_in_a_batch() -> None:
    x, params, history = mixed_rows()
    alone = [tirage.law(x[i], params[i], history=[history[i]])[0] for i in range(len(params))]
    np.testing.assert_array_equal(np.stack(alone), tirage.law(x, params, history=history))


BAD_ROWS = {
    "nan": (np.full(V, np.nan), Status.non_finite_logits),
    "one nan": (np.where(np.arange(V) == 3, np.nan, 0), Status.non_finite_logits),
    "one negative nan": (np.where(np.arange(V) == 3, -np.nan, 0), Status.non_finite_logits),
    "+inf": (np.where(np.arange(V) == 3, np.inf, 0), Status.non_finite_logits),
    "all -inf": (np.full(V, -np.inf), Status.no_allowed_token),
}


@pytest.mark.parametrize("kind", BAD_ROWS)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_bad_row_reports_its_status_and_leaves_its_neighbours_alone(kind: str, temperature: float) -> None:
    bad, status = BAD_ROWS[kind]
    x = hashed_logits("neighbours", size=4 * V).reshape(4, V)
    params = SamplingParams(seed=3, temperature=temperature, top_p=0.9, logprobs=2, repetition_penalty=1.1)
    history = [([1], [2])] * 4
    healthy, law = tirage.sample(x, params, history=history), tirage.law(x, params, history=history)
    for place in range(4):
        planted = x.copy()
        planted[place] = bad
        drawn = tirage.sample(planted, params, history=history)
        planted_law = tirage.law(planted, params, history=history)
        assert (status, -1, 0) == (drawn.status[place], drawn.token_ids[place], drawn.support_sizes[place])
        assert np.isnan([drawn.sampled_logprobs[place], drawn.logprobs[place], *drawn.top_logprobs[place]]).all()
        assert (drawn.ranks[place], drawn.top_token_ids[place].tolist()) == (0, [-1, -1])
        assert np.isnan(planted_law[place]).all()
        others = [r for r in range(4) if r != place]
        assert [row_bits(healthy, r) for r in others] == [row_bits(drawn, r) for r in others]
        np.testing.assert_array_equal(law[others], planted_law[others])


# --- logprobs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_the_sampled_logprob_is_the_logarithm_of_the_law(preset: str) -> None:
    x = np.tile(hashed_logits("logprob", preset, size=V), (50, 1))
    params = full_params(preset, seed=7)
    history = [([1, 2, 3], [4, 5, 4])] * 50
    drawn = tirage.sample(x, params, history=history, step=range(50))
    law = tirage.law(x[:1], params, history=history[:1])[0]
    near(np.log(law[drawn.token_ids]), drawn.sampled_logprobs, 3e-6)
    assert len(set(drawn.token_ids.tolist())) > 2


def test_nothing_is_reported_unless_asked() -> None:
    drawn = tirage.sample(np.zeros((2, 4)), SEEDED)
    assert [getattr(drawn, name) for name in REPORTED] == [None] * 5


def test_rows_that_did_not_ask_hold_fillers() -> None:
    x = np.stack([octaves(1, 0, 2), octaves(1, 0, 2), octaves(1, 0, 2)])
    asks = [SamplingParams(seed=1), SamplingParams(seed=1, logprobs=2), SamplingParams(seed=1, logprob_token_ids=[2])]
    drawn = tirage.sample(x, asks)
    assert np.isnan(drawn.logprobs).tolist() == [True, False, False]
    assert [0, drawn.ranks[1], drawn.ranks[1]] == drawn.ranks.tolist()
    assert drawn.ranks[1] > 0
    assert drawn.top_token_ids.tolist() == [[-1, -1], [1, 0], [-1, -1]]
    assert np.isneginf(drawn.top_logprobs).ravel().tolist() == [True, True, False, False, True, True]
    assert drawn.given_logprobs is not None
    assert [len(given) for given in drawn.given_logprobs] == [0, 0, 1]


def test_no_top_entries_may_be_asked_for() -> None:
    drawn = tirage.sample(octaves(0, 1), SamplingParams(seed=1, logprobs=0))
    assert (1, 0) == drawn.top_token_ids.shape == drawn.top_logprobs.shape
    near([math.log([2 / 3, 1 / 3][drawn.token_ids[0]])], drawn.logprobs, 3e-6)


def test_the_top_lists_are_never_wider_than_the_vocabulary() -> None:
    drawn = tirage.sample(octaves(0, 1, 3), SamplingParams(seed=1, logprobs=1_000_000))
    assert drawn.top_token_ids.tolist() == [[0, 1, 2]]


def test_ranks_and_top_lists_order_by_logit_then_id_and_equal_logits_share_a_rank() -> None:
    x = np.tile(np.array([1.0, 3.0, 1.0, 3.0, -np.inf, 2.0]), (60, 1))
    drawn = tirage.sample(x, SamplingParams(seed=1, logprobs=6), step=range(60))
    assert drawn.top_token_ids[0].tolist() == [1, 3, 5, 0, 2, -1]
    assert np.isneginf(drawn.top_logprobs[0]).tolist() == [False] * 5 + [True]
    rank_of = {1: 1, 3: 1, 5: 3, 0: 4, 2: 4}
    assert [rank_of[token] for token in drawn.token_ids.tolist()] == drawn.ranks.tolist()
    assert set(rank_of) == set(drawn.token_ids.tolist())


def reported(mode: str, **options: Any) -> NDArray[np.float64]:
    """The logprobs of tokens 0..3, in a mode, of p = [.5, .25, .125, .125] under `options`."""
    params = SamplingParams(seed=1, logprobs_mode=mode, logprob_token_ids=[0, 1, 2, 3], **options)
    given = tirage.sample(octaves(0, 1, 2, 2), params, history=[([], [0])]).given_logprobs
    assert given is not None
    return np.array(given[0])


def test_raw_logprobs_are_the_models_own() -> None:
    busy = {
        "temperature": 2.0,
        "top_k": 2,
        "presence_penalty": 1.0,
        "logit_bias": {1: 5.0},
        "allowed_token_ids": [0, 1],
    }
    near(np.log([0.5, 0.25, 0.125, 0.125]), reported("raw", **busy), 3e-6)


def test_processed_logprobs_count_edits_masks_and_temperature_but_no_filter() -> None:
    near(
        np.log([0.4, 0.2, 0.2, 0.2]),
        reported("processed", top_k=1, logit_bias={2: math.log(2), 3: math.log(2)}),
        3e-6,
    )
    roots = np.sqrt([0.5, 0.25, 0.125, 0.125])
    near(np.log(roots / roots.sum()), reported("processed", temperature=2.0, top_k=1), 3e-6)
    masked = reported("processed", allowed_token_ids=[0, 2])
    near(np.log([0.8, 0.2]), masked[[0, 2]], 3e-6)
    assert np.isneginf(masked[[1, 3]]).all()


def test_sampled_logprobs_are_those_of_the_law() -> None:
    kept = reported("sampled", top_k=2)
    near(np.log([2 / 3, 1 / 3]), kept[:2], 3e-6)
    assert np.isneginf(kept[2:]).all()


def test_greedy_rows_report_the_model_at_temperature_one() -> None:
    for mode in ("raw", "processed"):
        near(np.log([0.5, 0.25, 0.125, 0.125]), reported(mode, temperature=0), 3e-6)
    assert [0.0, -math.inf, -math.inf, -math.inf] == reported("sampled", temperature=0).tolist()


def test_given_logprobs_come_in_the_order_asked() -> None:
    params = SamplingParams(seed=1, logprob_token_ids=[2, 0])
    given = tirage.sample(octaves(0, 1, 1), params).given_logprobs
    assert given is not None
    near(np.log([0.25, 0.5]), given[0], 3e-6)


def test_raw_logprobs_pass_over_a_nan_that_a_mask_made_harmless() -> None:
    x = octaves(0, 1, 1)
    x[1] = np.nan
    params = SamplingParams(seed=1, allowed_token_ids=[0, 2], logprob_token_ids=[0, 1, 2])
    drawn = tirage.sample(x, params)
    assert drawn.given_logprobs is not None
    assert [-math.inf] == [drawn.given_logprobs[0][1]]
    near(np.log([2 / 3, 1 / 3]), np.array(drawn.given_logprobs[0])[[0, 2]], 3e-6)


# --- masks always win --------------------------------------------------------------------------------------------


def drawable(x: NDArray[Any], params: SamplingParams, **options: Any) -> list[int]:
    return np.flatnonzero(tirage.law(x, params, **options)[0]).tolist()


def test_a_token_outside_the_mask_is_never_drawn_and_the_rest_share_its_mass() -> None:
    mask = bitmask([0, 2], size=3)
    near([[2 / 3, 0, 1 / 3]], tirage.law(octaves(0, 0, 1), SamplingParams(), mask=mask))
    drawn = tirage.sample(np.tile(octaves(0, 0, 1), (50, 1)), SEEDED, mask=np.tile(mask, (50, 1)), step=range(50))
    assert {0, 2} == set(drawn.token_ids.tolist())


@pytest.mark.parametrize("preset", PRESETS)
def test_masks_hold_under_every_preset(preset: str) -> None:
    params = full_params(preset, allowed_token_ids=range(0, V, 3), bad_words_token_ids=[6, (4, 9)])
    allowed = [token for token in range(V) if token % 2]
    kept = drawable(hashed_logits("mask", size=V), params, mask=bitmask(allowed, size=V), history=[([1, 2], [3, 4])])
    assert kept
    assert set(kept) <= set(range(0, V, 3)) & set(allowed) - {6, 9}


def test_allowed_ids_and_the_mask_intersect() -> None:
    params = SamplingParams(allowed_token_ids=[1, 2, 33])
    assert drawable(np.zeros(V), params, mask=bitmask([0, 2, 33, 34], size=V)) == [2, 33]


@pytest.mark.parametrize(
    "options",
    [{"allowed_token_ids": [0]}, {"logit_bias": {0: 5.0, 1: -math.inf}}, {"bad_words_token_ids": [1]}],
    ids=["allowed ids", "bias of -inf", "bad word"],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_bias_revives_a_forbidden_token(options: dict[str, Any], temperature: float) -> None:
    bias: dict[str, Any] = {"logit_bias": {1: 1e30}} if "logit_bias" not in options else {}
    assert drawable(np.zeros(2), SamplingParams(temperature=temperature, **options, **bias)) == [0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_forbidden_non_finite_logit_is_harmless(temperature: float) -> None:
    x = np.array([1.0, np.nan, np.inf, -np.nan, 0.0])
    mask = bitmask([0, 4], size=5)
    params = SamplingParams(seed=1, temperature=temperature)
    assert [Status.ok] == tirage.sample(x, params, mask=mask).status.tolist()
    allowed = SamplingParams(seed=1, temperature=temperature, allowed_token_ids=[0, 4])
    assert [Status.ok] == tirage.sample(x, allowed).status.tolist()
    assert [Status.non_finite_logits] == tirage.sample(x, params).status.tolist()


@pytest.mark.parametrize(
    ("params", "mask"),
    [
        (SEEDED, bitmask([], size=3)),
        (SamplingParams(allowed_token_ids=[1]), bitmask([0, 2], size=3)),
        (SamplingParams(logit_bias=dict.fromkeys(range(3), -math.inf)), None),
        (SamplingParams(bad_words_token_ids=[0, 1, 2]), None),
    ],
    ids=["empty mask", "disjoint", "all biased", "all bad words"],
)
def test_a_row_with_nothing_allowed_says_so(params: SamplingParams, mask: Any) -> None:
    drawn = tirage.sample(np.zeros(3), params, mask=mask)
    assert ([-1], [Status.no_allowed_token]) == (drawn.token_ids.tolist(), drawn.status.tolist())
    assert np.isnan(tirage.law(np.zeros(3), params, mask=mask)).all()


def test_min_tokens_holds_back_stop_and_eos_ids_whatever_their_bias() -> None:
    params = SamplingParams(
        min_tokens=2, stop_token_ids=[1], eos_token_ids=[2], logit_bias={1: 100.0, 2: 100.0}, temperature=0
    )
    kept = [drawable(np.zeros(4), params, history=[([1, 2], [3] * n)]) for n in range(4)]
    assert kept == [[0], [0], [1], [1]]


def test_min_tokens_counts_the_step_when_one_is_given() -> None:
    params = SamplingParams(min_tokens=2, stop_token_ids=[1])
    assert drawable(np.zeros(3), params, step=1) == [0, 2]
    assert drawable(np.zeros(3), params, step=2) == [0, 1, 2]


def test_min_tokens_holds_eos_back_even_when_eos_is_ignored() -> None:
    params = SamplingParams(min_tokens=1, eos_token_ids=[1], stop_token_ids=[2], ignore_eos=True)
    assert 2 not in drawable(np.zeros(3), params)


# --- histories ---------------------------------------------------------------------------------------------------


def test_a_bad_word_is_completed_over_the_output_alone_except_under_hf() -> None:
    words = SamplingParams(bad_words_token_ids=[(1, 2), 4])
    assert drawable(np.zeros(5), words, history=[([0, 1], [])]) == [0, 1, 2, 3]
    assert drawable(np.zeros(5), words, history=[([0], [3, 1])]) == [0, 1, 3]
    both = words.replace(semantics="hf")
    assert drawable(np.zeros(5), both, history=[([0, 1], [])]) == [0, 1, 3]


def final_logit(preset: str, history: tuple[list[int], list[int]], **options: Any) -> float:
    """What becomes of logit 3 of token 0 against a logit of 0."""
    params = SamplingParams(semantics=preset, **options)
    return odds(tirage.law(np.array([3.0, 0.0]), params, history=[history])[0], 0)


PROMPT, OUTPUT, TWICE = ([0], []), ([], [0]), ([0], [0])


@pytest.mark.parametrize(
    ("preset", "history", "options", "expected"),
    [
        ("canonical", PROMPT, {"repetition_penalty": 1.5}, 2.0),
        ("sglang", PROMPT, {"repetition_penalty": 1.5}, 3.0),
        ("sglang", OUTPUT, {"repetition_penalty": 1.5}, 2.0),
        ("canonical", PROMPT, {"frequency_penalty": 1.0}, 3.0),
        ("canonical", TWICE, {"frequency_penalty": 1.0}, 2.0),
        ("mlx", TWICE, {"frequency_penalty": 1.0}, 1.0),
        ("easydel", PROMPT, {"presence_penalty": 1.0}, 2.0),
        ("llamacpp", ([0], [0, 0]), {"presence_penalty": 1.0}, 2.0),
        ("tgi", ([1, 1], [0, 1]), {"frequency_penalty": 2.0}, 3.0 - 0.5 + 1.5),
        ("canonical", OUTPUT, {"repetition_penalty": 1.5, "presence_penalty": 1.0}, 1.0),
        ("sglang", OUTPUT, {"repetition_penalty": 1.5, "presence_penalty": 1.0}, 4 / 3),
    ],
)
def test_penalties_count_what_their_engine_counts_in_its_order(
    preset: str, history: tuple[list[int], list[int]], options: dict[str, float], expected: float
) -> None:
    assert abs(expected - final_logit(preset, history, **options)) < 2e-6


def test_a_repetition_penalty_multiplies_a_negative_logit() -> None:
    law = tirage.law(np.array([-2.0, 0.0]), SamplingParams(repetition_penalty=1.5), history=[([0], [])])[0]
    assert abs(-3.0 - odds(law, 0)) < 2e-6


def test_a_penalised_token_that_was_impossible_stays_impossible() -> None:
    params = SamplingParams(repetition_penalty=1.5, frequency_penalty=-2.0, presence_penalty=-2.0)
    assert drawable(np.array([-np.inf, 0.0]), params, history=[([0], [0, 0])]) == [1]
