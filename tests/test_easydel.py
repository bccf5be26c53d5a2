"""The EasyDeL door: argument orders, and the parameters as a pytree whose rows stay apart, eager and compiled."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tirage
from tirage import ParamsError
from tirage.compat.easydel import (
    BeamSearchParams,
    GuidedDecodingParams,
    JitableSamplingParams,
    LogitsProcessorList,
    MinPLogitsWarper,
    RequestOutputKind,
    SamplingParams,
    SamplingType,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from tirage.errors import TirageError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("plain_programs")]

WIDTHS = {"stop_ids": 4, "bad_words": 3, "bad_word_len": 3, "allowed_ids": 5}
V = 12
NO_IDS = np.zeros((1, 0), np.int32)


def row(array: Any) -> Any:
    """Plain numbers of an array."""
    return np.asarray(array).tolist()


def logits(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, (rows, V)).astype(np.float32)


def batch_of(*params: tirage.SamplingParams) -> JitableSamplingParams:
    """The requests as one batch, built on the host without `insert`."""
    each = [JitableSamplingParams.from_host_params(p, **WIDTHS) for p in params]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)


def softmax(scores: Any) -> np.ndarray:
    wide = np.asarray(scores, np.float64)
    powers = np.exp(wide - wide.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


# --- host classes -----------------------------------------------------------------------------------------------


def test_beams_take_the_documented_positional_order() -> None:
    assert BeamSearchParams(4, 64, True, 0.5) == tirage.BeamSearchParams(
        beam_width=4, max_tokens=64, ignore_eos=True, temperature=0.5
    )
    assert GuidedDecodingParams(None, "a+").mode == "regex"
    params = SamplingParams(2, 3, 0.1, 0.2, 1.3, 0.4, 0.5, 0.6, 7, 8)
    assert (params.n, params.best_of, params.presence_penalty, params.frequency_penalty) == (2, 3, 0.1, 0.2)
    assert (params.repetition_penalty, params.temperature, params.top_p) == (1.3, 0.4, 0.5)
    assert (params.min_p, params.top_k, params.seed) == (0.6, 7, 8)


def test_a_host_object_is_tirages_own_in_value_hash_and_kind() -> None:
    ours, theirs = SamplingParams(temperature=0.5, stop=["x"]), tirage.SamplingParams(temperature=0.5, stop=["x"])
    assert (ours == theirs, theirs == ours, hash(ours) == hash(theirs)) == (True, True, True)
    assert ours != theirs.replace(temperature=0.6)
    assert ours != "x"
    assert isinstance(ours, tirage.SamplingParams)
    assert SamplingParams.from_json(ours.to_json()) == ours
    assert ours.clone() == ours
    assert (tirage.SamplingType(0), tirage.RequestOutputKind(1)) == (SamplingType.GREEDY, RequestOutputKind.DELTA)


def test_seed_minus_one_is_no_seed_at_this_door_only() -> None:
    assert SamplingParams(seed=-1).seed is None
    assert SamplingParams(seed=3).replace(seed=-1).seed is None
    assert tirage.SamplingParams(seed=-1).seed == -1
    with pytest.raises(ParamsError, match="seed must be"):
        SamplingParams(seed=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BeamSearchParams(4, 64, False, 0.0, 1.0, False, True), "at most 6 values by position, got 7"),
        (lambda: BeamSearchParams(4, 64, beam_width=4), "beam_width must be given once, got 4 by position and by name"),
        (lambda: BeamSearchParams(4), "must be given max_tokens, got no value"),
        (lambda: BeamSearchParams(4, 64, beam_widht=2), "did you mean 'beam_width'"),
        (lambda: SamplingParams(allowed_token_ids=[]), "allowed_token_ids must be"),
    ],
)
def test_a_wrong_call_is_refused_by_name(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        make()


# --- from the host ----------------------------------------------------------------------------------------------


def test_every_array_has_its_documented_dtype_shape_and_value() -> None:
    params = SamplingParams(
        temperature=0.7,
        top_k=5,
        top_p=0.9,
        min_p=0.25,
        repetition_penalty=1.5,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        max_tokens=None,
        min_tokens=2,
        stop_token_ids=[9, 3],
        bad_words_token_ids=[[1, 2, 3], 4],
        allowed_token_ids=[6, 7],
    )
    jitable = params.make_jitable()
    leaves = {name: getattr(jitable, name) for name in jitable.to_dict()}
    assert {name: (leaf.dtype.name, leaf.shape) for name, leaf in leaves.items()} == {
        "random_sampling": ("bool", ()),
        **dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty"), ("float32", ())),
        **dict.fromkeys(("frequency_penalty", "presence_penalty"), ("float32", ())),
        **dict.fromkeys(("top_k", "max_tokens", "min_tokens"), ("int32", ())),
        "all_stop_token_ids": ("int32", (2,)),
        "bad_words_token_ids": ("int32", (2, 3)),
        "bad_words_lengths": ("int32", (2,)),
        "allowed_token_ids": ("int32", (2,)),
    }
    assert {name: row(leaf) for name, leaf in leaves.items()} == {
        "random_sampling": True,
        "temperature": float(np.float32(0.7)),
        "top_k": 5,
        "top_p": float(np.float32(0.9)),
        "min_p": 0.25,
        "repetition_penalty": 1.5,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "max_tokens": -1,
        "min_tokens": 2,
        "all_stop_token_ids": [3, 9],
        "bad_words_token_ids": [[1, 2, 3], [4, -100, -100]],
        "bad_words_lengths": [3, 1],
        "allowed_token_ids": [6, 7],
    }


def test_a_request_without_ids_has_the_widths_of_a_batch_without_room() -> None:
    one = SamplingParams(temperature=0).make_jitable()
    assert (row(one.random_sampling), one.allowed_token_ids) == (False, None)
    none = JitableSamplingParams.init_empty(1, stop_ids=0, bad_words=0, bad_word_len=0)
    for name in ("all_stop_token_ids", "bad_words_token_ids", "bad_words_lengths"):
        assert getattr(none, name).shape == (1, *getattr(one, name).shape)


def test_stop_ids_are_those_that_end_the_text() -> None:
    params = SamplingParams(stop_token_ids=[4]).update_with_generation_config({"eos_token_id": [2, 7]})
    assert row(params.make_jitable().all_stop_token_ids) == [2, 4, 7]
    ignoring = SamplingParams(stop_token_ids=[4], ignore_eos=True).update_with_generation_config({}, 2)
    assert row(ignoring.make_jitable().all_stop_token_ids) == [4]


@pytest.mark.parametrize(
    "options",
    [
        {"logit_bias": {1: 2.0}},
        {"guided_decoding": tirage.GuidedDecodingParams(regex="a")},
        {"typical_p": 0.5},
        {"top_n_sigma": 1.0},
        {"no_repeat_ngram_size": 2},
        {"dynatemp_range": 0.5},
        {"semantics": "vllm"},
    ],
)
def test_what_changes_logits_and_has_no_array_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ParamsError, match=rf"{next(iter(options))} must be .*use tirage\.Batch"):
        SamplingParams(**options).make_jitable()


def test_what_belongs_to_the_loop_or_names_this_door_is_accepted() -> None:
    params = SamplingParams(n=2, stop=["\n"], logprobs=2)
    assert params.make_jitable() == SamplingParams().make_jitable()
    assert SamplingParams(semantics="easydel").make_jitable().semantics == "easydel"


def test_an_error_shows_the_items_of_a_list() -> None:
    with pytest.raises(ParamsError, match=r"bad_words must be tokenised first, got \['x'\]; call update_with_tok"):
        SamplingParams(bad_words=["x"]).make_jitable()
    with pytest.raises(ParamsError, match=r"logit_bias must be off in .*, got \{1: 2\.0\}; use tirage\.Batch"):
        SamplingParams(logit_bias={1: 2.0}).make_jitable()


def test_words_must_be_tokenised_and_widths_must_suffice() -> None:
    with pytest.raises(ParamsError, match="bad_words must be tokenised first"):
        JitableSamplingParams.from_host_params(SamplingParams(bad_words=["x"]))
    with pytest.raises(ParamsError, match="stop_ids must be an integer >= 2"):
        JitableSamplingParams.from_host_params(SamplingParams(stop_token_ids=[1, 2]), stop_ids=1)
    with pytest.raises(ParamsError, match="params must be a SamplingParams"):
        JitableSamplingParams.from_host_params({"temperature": 1})  # pyright: ignore[reportArgumentType]


def test_without_jax_the_refusal_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("tirage.compat")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(TirageError, match=r"make_jitable needs jax; install tirage\[jax\]"):
        SamplingParams().make_jitable()


def test_json_gives_back_the_same_arrays() -> None:
    for jitable in (
        SamplingParams(temperature=0.1, bad_words_token_ids=[[1, 2], 3], stop_token_ids=[4]).make_jitable(),
        SamplingParams(allowed_token_ids=[2]).make_jitable().view_2d(),
        JitableSamplingParams.init_empty(2, stop_ids=0),
    ):
        again = JitableSamplingParams.from_json(jitable.to_json())
        assert again == jitable
        assert jax.tree.map(lambda leaf: leaf.dtype, again) == jax.tree.map(lambda leaf: leaf.dtype, jitable)
    plain = SamplingParams().make_jitable().to_dict()
    for wrong in ({**plain, "top_k": "5"}, {**plain, "top_k": {"shape": [], "data": [1.5]}}, {**plain, "topk": 1}):
        with pytest.raises(ParamsError, match=r"top_k must be an object|did you mean 'top_k'"):
            JitableSamplingParams.from_dict(wrong)
    for text in ("[1]", "{", "{}"):
        with pytest.raises(ParamsError, match=r"must be read from JSON|must be read from a JSON|random_sampling must"):
            JitableSamplingParams.from_json(text)


def test_make_jitable_again_is_the_same_object_and_it_cannot_be_a_key() -> None:
    jitable = SamplingParams().make_jitable()
    assert jitable.make_jitable() is jitable
    assert jitable != SamplingParams(top_k=3).make_jitable()
    assert jitable.replace(top_k=jnp.int32(3)) == SamplingParams(top_k=3).make_jitable()
    with pytest.raises(ParamsError, match="did you mean 'top_k'"):
        jitable.replace(topk=3)
    with pytest.raises(TypeError, match="unhashable"):
        hash(jitable)


# --- a batch ----------------------------------------------------------------------------------------------------


def test_an_empty_batch_changes_no_logits_and_ends_nothing() -> None:
    empty = JitableSamplingParams.init_empty(3)
    scores, ids = logits(3), np.full((3, 4), 2)
    assert np.array_equal(empty.logits_warper(ids, empty.logits_processor(ids, scores, 4), 4), scores)
    assert row(empty.max_tokens) == [-1, -1, -1]
    assert row(empty.min_tokens) == [0, 0, 0]
    assert bool((empty.all_stop_token_ids < 0).all())
    assert row(empty.random_sampling) == [True] * 3
    assert empty.allowed_token_ids is None


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"batch_size": 2.5}, {"batch_size": 1, "stop_ids": -1}])
def test_a_batch_without_a_size_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ParamsError, match="must be an integer >= "):
        JitableSamplingParams.init_empty(**options)


@st.composite
def requests(draw: st.DrawFn) -> SamplingParams:
    ids = st.integers(0, V - 1)
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.5, 1.0, 2.0])),
        top_k=draw(st.integers(0, V)),
        top_p=draw(st.sampled_from([0.3, 0.9, 1.0])),
        min_p=draw(st.sampled_from([0.0, 0.1])),
        presence_penalty=draw(st.sampled_from([0.0, 1.5])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3])),
        max_tokens=draw(st.none() | st.integers(0, 99)),
        stop_token_ids=draw(st.lists(ids, max_size=4)),
        bad_words_token_ids=draw(st.lists(st.lists(ids, min_size=1, max_size=3), max_size=3)),
        allowed_token_ids=draw(st.none() | st.lists(ids, min_size=1, max_size=5)),
    )


JITTED_INSERT = jax.jit(lambda batch, second, slot: batch.insert(second, slot))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(requests(), st.integers(0, 2)), min_size=1, max_size=4))
def test_inserting_eagerly_or_jitted_gives_what_the_host_would_build(steps: list[tuple[SamplingParams, int]]) -> None:
    eager = jitted = JitableSamplingParams.init_empty(3, **WIDTHS)
    rows = [SamplingParams(max_tokens=None)] * 3
    for at, (params, slot) in enumerate(steps):
        second = JitableSamplingParams.from_host_params(params, **WIDTHS)
        eager = eager.insert(second.view_2d() if at % 2 else second.view_1d(), slot)
        jitted = JITTED_INSERT(jitted, second, slot)
        rows[slot] = params
    assert eager == batch_of(*rows)
    assert jitted == eager


def test_a_second_of_no_or_one_axis_is_inserted_eagerly_and_jitted() -> None:
    one = SamplingParams(temperature=0.5, stop_token_ids=[3]).make_jitable()
    batch = JitableSamplingParams.init_empty(3)
    for second in (one, one.view_1d(), one.view_2d()):
        assert row(batch.insert(second, 2).temperature) == [1.0, 1.0, 0.5]
        assert JITTED_INSERT(batch, second, 2) == batch.insert(second, 2)
    assert batch.view_2d().insert(one, 2) == batch.insert(one, 2).view_2d()
    assert batch.insert(one, np.int64(2)) == batch.insert(one, jnp.int32(2))
    assert row(one.insert(SamplingParams(top_k=3).make_jitable(), 0).top_k) == [3]


def test_several_slots_are_inserted_at_once() -> None:
    two = batch_of(SamplingParams(top_k=1, stop_token_ids=[7]), SamplingParams(top_k=2, allowed_token_ids=[5]))
    batch = JitableSamplingParams.init_empty(4, **WIDTHS).insert(two, 1)
    assert row(batch.top_k) == [0, 1, 2, 0]
    assert row(batch.all_stop_token_ids[:, 0]) == [-100, 7, -100, -100]
    assert row(batch.allowed_token_ids[:, 0]) == [-100, -100, 5, -100]
    with pytest.raises(ParamsError, match=r"slot must be in \[0, 2\], got 3"):
        batch.insert(two, 3)


@pytest.mark.parametrize("slot", [3, -1, 1.0, True, "1", [0, 1]])
def test_a_slot_that_is_none_is_refused(slot: Any) -> None:
    with pytest.raises(ParamsError, match="slot must be"):
        JitableSamplingParams.init_empty(3).insert(SamplingParams().make_jitable(), slot)


@pytest.mark.parametrize("slot", [-1, 3, 100])
def test_a_traced_slot_outside_the_batch_writes_into_no_neighbour(slot: int) -> None:
    batch = JitableSamplingParams.init_empty(3, **WIDTHS)
    second = JitableSamplingParams.from_host_params(SamplingParams(temperature=0.5, stop_token_ids=[1]), **WIDTHS)
    assert JITTED_INSERT(batch, second, slot) == batch


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("all_stop_token_ids", SamplingParams(stop_token_ids=[1, 2, 3])),
        ("bad_words_token_ids", SamplingParams(bad_words_token_ids=[1, 2, 3])),
        ("bad_words_token_ids", SamplingParams(bad_words_token_ids=[[1, 2, 3]])),
        ("allowed_token_ids", SamplingParams(allowed_token_ids=[4])),
    ],
)
def test_a_table_beyond_its_width_grows_eagerly_and_is_an_error_when_traced(name: str, params: SamplingParams) -> None:
    batch = JitableSamplingParams.init_empty(2, stop_ids=2, bad_words=2, bad_word_len=2)
    batch = batch.insert(SamplingParams(stop_token_ids=[9], bad_words_token_ids=[[8, 9]]).make_jitable(), 0)
    second = params.make_jitable()
    grown = batch.insert(second, 1)
    assert [t for t in np.asarray(getattr(grown, name)[1]).ravel() if t >= 0] == row(getattr(second, name).ravel())
    assert row(grown.all_stop_token_ids[0])[:2] == [9, -100]
    assert row(grown.bad_words_token_ids[0, 0])[:2] == [8, 9]
    with pytest.raises(ParamsError, match=rf"{name} must fit into .* when traced"):
        JITTED_INSERT(batch, second, 1)


def test_a_freed_slot_keeps_nothing_of_its_last_request() -> None:
    full = SamplingParams(
        stop_token_ids=[1, 2, 3], bad_words_token_ids=[[1, 2], 3], allowed_token_ids=[4, 5]
    ).make_jitable()
    batch = JitableSamplingParams.init_empty(2, **WIDTHS)
    neutral = SamplingParams(max_tokens=None).make_jitable()
    assert batch.insert(full, 1).insert(neutral, 1) == batch


def test_the_views_undo_each_other_and_leave_tables_alone() -> None:
    batch = batch_of(SamplingParams(bad_words_token_ids=[[1, 2], 3]), SamplingParams(temperature=0.5))
    flat, tall = batch.view_1d(), batch.view_2d()
    assert flat == batch
    assert (tall.temperature.shape, tall.random_sampling.shape) == ((2, 1), (2, 1))
    assert tall.view_1d() == flat
    assert flat.view_2d() == tall
    assert tall.view_2d() == tall
    one = SamplingParams(bad_words_token_ids=[[1, 2], 3]).make_jitable()
    assert one.view_1d().temperature.shape == (1,)
    assert row(one.view_2d().bad_words_token_ids) == row(one.view_1d().bad_words_token_ids) == [[1, 2], [3, -100]]


# --- what the lists do ------------------------------------------------------------------------------------------

MIXED = (
    SamplingParams(temperature=0.7, top_k=6, top_p=0.8, min_p=0.05),
    SamplingParams(temperature=0.0, top_k=1, presence_penalty=1.0),
    SamplingParams(temperature=1.4, top_p=0.5, repetition_penalty=1.4, frequency_penalty=0.6),
    SamplingParams(min_p=0.3, bad_words_token_ids=[[2, 5], 7]),
    SamplingParams(top_k=3, allowed_token_ids=[1, 4, 8, 9]),
)
IDS = np.array([[1, 2, 2, 0, 0]] * 5, np.int32)
LENGTHS = np.array([3, 2, 3, 3, 1], np.int32)


def shaped(params: JitableSamplingParams, ids: Any, scores: Any, cur_len: Any) -> Any:
    return params.logits_warper(ids, params.logits_processor(ids, scores, cur_len), cur_len)


def test_the_lists_have_easydels_order() -> None:
    one = SamplingParams().make_jitable()
    assert [type(p).__name__ for p in one.get_logits_processor()] == [
        "PresencePenaltyLogitsProcessor",
        "FrequencyPenaltyLogitsProcessor",
        "RepetitionPenaltyLogitsProcessor",
    ]
    assert [type(p).__name__ for p in one.get_logits_warper()] == [
        "TemperatureLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "MinPLogitsWarper",
    ]
    ids, scores = [[0, 0, 1]], [[3.0, -1.0, 1.0]]
    edited = SamplingParams(presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=2.0).make_jitable()
    # (3 - 1 - 2 * 0.5) / 2 and (-1 - 1 - 0.5) * 2
    assert row(edited.logits_processor(ids, scores, 3)) == [[0.5, -5.0, 1.0]]


def test_a_row_of_a_batch_is_the_row_alone_and_the_row_of_one_request() -> None:
    together = row(shaped(batch_of(*MIXED), IDS, logits(5), LENGTHS))
    for i, params in enumerate(MIXED):
        one = JitableSamplingParams.from_host_params(params, **WIDTHS)
        alone = shaped(one, IDS[i : i + 1], logits(5)[i : i + 1], LENGTHS[i])
        np.testing.assert_allclose(alone[0], together[i], rtol=1e-6)
        unbatched = shaped(one, IDS[i], logits(5)[i], LENGTHS[i])
        np.testing.assert_allclose(unbatched, together[i], rtol=1e-6)
    tall = shaped(batch_of(*MIXED).view_2d(), IDS, logits(5), LENGTHS)
    assert row(tall) == together


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.7, top_k=6, top_p=0.8, min_p=0.05),
        SamplingParams(temperature=2.5, top_p=0.6),
        SamplingParams(temperature=0.3, min_p=0.2),
        SamplingParams(bad_words_token_ids=[[2, 5], 7, [1, 2, 2, 9], [2, 2, 2]], allowed_token_ids=[3, 5, 7, 9, 11]),
        SamplingParams(
            presence_penalty=0.7, frequency_penalty=-0.4, repetition_penalty=1.3, temperature=0.8, semantics="easydel"
        ),
    ],
)
def test_the_law_of_the_lists_is_the_law_of_tirage(params: SamplingParams) -> None:
    scores = logits(4, seed=9)
    ids = np.array([[1, 2, 2, 6]] * 4)
    expected = tirage.law(scores, params, history=[([], [1, 2, 2])] * 4)
    np.testing.assert_allclose(softmax(shaped(params.make_jitable(), ids, scores, 3)), expected, atol=3e-7)


def test_padding_behind_cur_len_is_not_counted() -> None:
    params = SamplingParams(frequency_penalty=1.0, presence_penalty=0.5, repetition_penalty=2.0).make_jitable()
    ids, scores = [[3, 0, 0, 0]], np.ones((1, V), np.float32)
    counted = row(params.logits_processor(ids, scores, 1))[0]
    assert counted == [1.0, 1.0, 1.0, -1.0] + [1.0] * (V - 4)
    assert row(params.logits_processor([[3, -100, V, -1]], scores, 4))[0] == counted


@pytest.mark.parametrize("wide", ["float16", "bfloat16", "float32"])
def test_scores_of_any_width_are_worked_on_in_float32(wide: str) -> None:
    params = SamplingParams(temperature=0.7, top_p=0.999, frequency_penalty=0.001).make_jitable()
    scores = jnp.asarray(logits(1)).astype(wide)
    many = np.zeros((1, 1000), np.int32)
    expected = np.asarray(scores.astype(jnp.float32))[0, 0] - np.float32(0.001) * np.float32(1000)
    processed = params.logits_processor(many, scores, 1000)
    assert processed.dtype == jnp.float32
    assert math.isclose(float(processed[0, 0]), float(expected), rel_tol=1e-6)


def test_a_greedy_row_passes_the_warpers_bit_for_bit_beside_random_rows() -> None:
    params = batch_of(SamplingParams(temperature=0, top_k=1, top_p=0.1, min_p=1.0), SamplingParams(temperature=2.0))
    scores = logits(2)
    warped = params.logits_warper(NO_IDS.repeat(2, 0), scores, 0)
    assert row(warped[0]) == row(scores[0])
    np.testing.assert_allclose(warped[1], scores[1] / 2)


def test_top_k_keeps_exactly_k_of_equal_scores_and_top_p_the_token_that_crosses() -> None:
    equal = np.zeros((1, 4), np.float32)
    assert row(jnp.isfinite(TopKLogitsWarper(jnp.int32(2))(NO_IDS, equal, 0))) == [[True, True, False, False]]
    assert row(jnp.isfinite(TopPLogitsWarper(jnp.float32(0.5))(NO_IDS, equal, 0))) == [[True, True, False, False]]
    assert row(jnp.isfinite(TopPLogitsWarper(jnp.float32(0.51))(NO_IDS, equal, 0))) == [[True, True, True, False]]
    peaked = np.array([[0.0, 9.0, 1.0, -np.inf]], np.float32)
    assert row(jnp.isfinite(TopPLogitsWarper(jnp.float32(1e-9))(NO_IDS, peaked, 0))) == [[False, True, False, False]]
    assert row(TopKLogitsWarper(jnp.int32(9))(NO_IDS, peaked, 0)) == row(peaked)


def test_min_p_compares_likelihoods_and_one_keeps_the_largest() -> None:
    scores = np.array([[5.0, 4.5, 3.0, 2.0, 1.0]], np.float32)
    for shift in (0.0, 10.0, -10.0):
        kept = MinPLogitsWarper(jnp.float32(0.5))(NO_IDS, scores + np.float32(shift), 0)
        assert row(jnp.isfinite(kept)) == [[True, True, False, False, False]]
    one = MinPLogitsWarper(jnp.float32(1.0))(NO_IDS, scores, 0)
    assert row(one) == [[5.0] + [-math.inf] * 4]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_non_finite_score_is_still_seen_after_the_warpers(bad: float) -> None:
    params = batch_of(SamplingParams(temperature=0.5, top_k=2, top_p=0.5, min_p=0.5), SamplingParams(top_k=1))
    scores = logits(2)
    scores[0, 3] = bad
    warped = np.asarray(params.logits_warper(NO_IDS.repeat(2, 0), scores, 0))
    assert np.array_equal(warped[0, 3], bad, equal_nan=True)
    assert np.isfinite(warped[1]).sum() == 1


def test_a_bad_word_is_banned_only_after_its_beginning() -> None:
    params = SamplingParams(bad_words_token_ids=[[1, 2, 3], [4]]).make_jitable()

    def banned(ids: list[int], cur_len: int) -> list[int]:
        edited = params.logits_processor([ids + [0] * (4 - len(ids))], np.zeros((1, 6)), cur_len)
        return row(jnp.flatnonzero(jnp.isneginf(edited[0])))

    assert banned([1, 2], 2) == [3, 4]
    assert banned([0, 1, 2, 5], 3) == [3, 4]
    assert banned([0, 1, 2, 5], 4) == [4]
    assert banned([2], 1) == [4]
    assert banned([2, 1, 2], 1) == [4]
    assert banned([1, 2, 1, 2], 0) == [4]
    assert row(params.logits_processor(NO_IDS, np.ones((1, 6)), 0)) == [[1.0, 1.0, 1.0, 1.0, -math.inf, 1.0]]


def test_wrong_shapes_are_refused() -> None:
    two = batch_of(SamplingParams(bad_words_token_ids=[1]), SamplingParams())
    for call in (
        lambda: two.logits_warper(IDS[:3], logits(3), 1),
        lambda: two.logits_processor(IDS[:3], logits(2), 1),
        lambda: two.logits_processor(IDS[:2], logits(2), [1, 2, 3]),
        lambda: two.get_logits_processor()[3](IDS[:3], logits(3), 1),
    ):
        with pytest.raises(ParamsError, match="must"):
            call()


# --- the list of processors -------------------------------------------------------------------------------------


def test_a_processor_with_an_extra_argument_gets_it_by_name() -> None:
    calls: list[Any] = []

    def scaled(input_ids: Any, scores: Any, cur_len: Any, factor: float, offset: float = 1.0) -> Any:
        calls.append(cur_len)
        return scores * factor + offset

    def plus_one(input_ids: Any, scores: Any, cur_len: Any) -> Any:
        return scores + 1

    def any_name(input_ids: Any, scores: Any, cur_len: Any, **kwargs: Any) -> Any:
        return scores + kwargs["factor"]

    processors = LogitsProcessorList([plus_one, scaled])
    assert row(processors(NO_IDS, jnp.ones((1, 2)), 5, factor=3.0)) == [[7.0, 7.0]]
    assert row(processors(NO_IDS, jnp.ones((1, 2)), 5, factor=3.0, offset=0.0)) == [[6.0, 6.0]]
    assert calls == [5, 5]
    assert row(LogitsProcessorList([plus_one, any_name])(NO_IDS, jnp.ones((1, 2)), 5, factor=3.0)) == [[5.0, 5.0]]
    with pytest.raises(ParamsError, match="factor must be given for scaled"):
        processors(NO_IDS, jnp.ones((1, 2)), 5)
    with pytest.raises(ParamsError, match="did you mean 'factor'"):
        processors(NO_IDS, jnp.ones((1, 2)), 5, factro=3.0)


def test_an_empty_list_gives_the_scores_back() -> None:
    scores = jnp.ones((1, 2))
    assert LogitsProcessorList()(NO_IDS, scores, 0) is scores


# --- compiled ---------------------------------------------------------------------------------------------------


def test_new_values_compile_nothing_anew_and_give_the_eager_result() -> None:
    traces = []

    @jax.jit
    def step(params: JitableSamplingParams, ids: Any, scores: Any, cur_len: Any) -> Any:
        traces.append(1)
        return shaped(params, ids, scores, cur_len)

    batch = batch_of(*MIXED)
    for at, temperature in enumerate((0.5, 0.0, 1.7, 1e-5)):
        second = JitableSamplingParams.from_host_params(SamplingParams(temperature=temperature, top_k=at), **WIDTHS)
        batch = JITTED_INSERT(batch, second, at)
        compiled = step(batch, IDS, logits(5), LENGTHS)
        np.testing.assert_allclose(compiled, shaped(batch, IDS, logits(5), LENGTHS), rtol=1e-5)
    assert len(traces) == 1


def test_vmap_over_slots_is_the_batch() -> None:
    batch = batch_of(*MIXED)
    mapped = jax.vmap(shaped)(batch, IDS, logits(5), LENGTHS)
    np.testing.assert_allclose(mapped, shaped(batch, IDS, logits(5), LENGTHS), rtol=1e-6)


def test_a_scan_carries_the_batch_through_inserts() -> None:
    batch = JitableSamplingParams.init_empty(3, **WIDTHS)
    requests_in_turn = batch_of(*MIXED[:3])

    def body(carry: JitableSamplingParams, turn: Any) -> tuple[JitableSamplingParams, Any]:
        second, slot = turn
        carry = carry.insert(second, slot)
        return carry, carry.temperature[slot]

    final, seen = jax.lax.scan(body, batch, (requests_in_turn, jnp.array([2, 0, 1])))
    assert final == batch_of(MIXED[1], MIXED[2], MIXED[0])
    assert row(seen) == row(requests_in_turn.temperature)
