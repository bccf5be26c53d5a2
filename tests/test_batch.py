"""`Batch`: slots, what goes in and out of them, and that no schedule changes what a request draws."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from every_stage import bitmask, hashed_logits
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from numpy.typing import NDArray
from schedules import EVERY, LIBRARIES, REPORTED, Pick, V, World, finish, live

import tirage
from tirage import Batch, ParamsError, SamplingParams, Status
from tirage.backends.numpy import kernels
from tirage.sampling_batch import SamplingRow

SEEDED = SamplingParams(seed=1)


def logits(rows: int, name: str = "batch") -> NDArray[np.float32]:
    return np.stack([hashed_logits(name, row, size=V) for row in range(rows)])


def filled(count: int, capacity: int) -> Batch:
    """A Batch whose first slots hold requests with seeds 0, 1, ... and prompts [0], [1], ..."""
    batch = Batch(V, capacity)
    for seed in range(count):
        batch.add(SamplingParams(seed=seed), [seed])
    return batch


# --- slots -------------------------------------------------------------------------------------------------------


def test_add_takes_the_lowest_free_slot() -> None:
    batch = filled(3, 4)
    batch.remove(1)
    batch.remove(0)
    assert (len(batch), batch.slots) == (1, (2,))
    assert [batch.add(SEEDED, [slot]) for slot in (7, 8, 9)] == [0, 1, 3]
    assert [batch.history(slot)[0] for slot in batch.slots] == [[7], [8], [2], [9]]


def test_steps_are_lowered_once_per_draw_and_only_where_the_history_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered, lower = [], SamplingRow.lower
    monkeypatch.setattr(SamplingRow, "lower", lambda row: lowered.append(row.seed) or lower(row))
    batch = Batch(V, 2)
    for seed in (1, 2):
        batch.add(SamplingParams(seed=seed, no_repeat_ngram_size=2), [3, 4, 3])
    for count in (1, 2, 3):
        batch.sample(logits(2), mask=bitmask([1, 2], [3, 4], size=V))
        batch.advance(batch.sample(logits(2)))
        assert lowered == [1, 2] * count
    batch.insert(SamplingParams(seed=5), slot=0)
    batch.remove(1)
    del lowered[:]
    for _ in range(3):
        batch.advance(batch.sample(logits(1)))
    assert lowered == [5]


def test_a_full_batch_says_so() -> None:
    with pytest.raises(ParamsError) as error:
        filled(2, 2).add(SEEDED)
    assert str(error.value) == "batch must have a free slot, got 2 requests in 2 slots"


def test_insert_replaces_what_was_in_the_slot() -> None:
    batch = filled(3, 3)
    assert batch.insert(SEEDED.replace(seed=99), [5], slot=1, output_ids=[6, 7]) == 1
    assert [batch.seed(slot) for slot in range(3)] == [0, 99, 2]
    assert batch.history(1) == ([5], [6, 7])


@pytest.mark.parametrize(
    ("order", "prompts"),
    [
        ([2, 0, 1], {0: [2], 1: [0], 2: [1]}),
        ([1, 1, -1], {0: [1], 1: [1]}),
        ([-1, 2], {1: [2]}),
        (np.array([0, 1, 2]), {0: [0], 1: [1], 2: [2]}),
        ([], {}),
    ],
)
def test_reorder_moves_copies_and_empties_slots(order: Any, prompts: dict[int, list[int]]) -> None:
    batch = filled(3, 3)
    batch.reorder(order)
    assert {slot: batch.history(slot)[0] for slot in batch.slots} == prompts
    assert {slot: batch.seed(slot) for slot in batch.slots} == {slot: prompt[0] for slot, prompt in prompts.items()}


def test_copies_of_a_slot_go_their_own_ways() -> None:
    batch = filled(1, 2)
    batch.reorder([0, 0])
    batch.advance([3, 4])
    assert [batch.history(slot) for slot in (0, 1)] == [([0], [3]), ([0], [4])]


def test_a_refused_request_leaves_the_batch_as_it_was() -> None:
    batch = filled(2, 3)
    for bad in (
        lambda: batch.add(SEEDED, [V]),
        lambda: batch.insert(SEEDED, [-1], slot=0),
        lambda: batch.advance([1, V]),
    ):
        with pytest.raises(ParamsError):
            bad()
    with pytest.raises(ParamsError):
        batch.reorder([1, 2])
    assert [batch.history(slot) for slot in batch.slots] == [([0], []), ([1], [])]


# --- sample and advance ------------------------------------------------------------------------------------------


def test_an_empty_batch_samples_nothing() -> None:
    batch = Batch(V, 2)
    assert len(batch.sample(np.zeros((0, V)))) == 0
    drawn = batch.sample(np.zeros((2, V)))
    assert drawn.status.tolist() == [Status.empty_slot] * 2
    assert drawn.token_ids.tolist() == [-1, -1]
    batch.advance(drawn)
    assert batch.slots == ()


def test_rows_may_be_one_per_slot_or_one_per_request() -> None:
    batch = filled(4, 5)
    batch.remove(1)
    wide = logits(5)
    by_slot, by_request = batch.sample(wide), batch.sample(wide[[0, 2, 3]])
    assert by_slot.status.tolist() == [Status.ok, Status.empty_slot, Status.ok, Status.ok, Status.empty_slot]
    for name in EVERY:
        assert getattr(by_slot, name)[[0, 2, 3]].tobytes() == getattr(by_request, name).tobytes()
    assert [by_slot.token_ids[1], by_slot.support_sizes[1], by_slot.seeds[1]] == [-1, 0, 0]
    assert np.isnan(by_slot.sampled_logprobs[[1, 4]]).all()


def test_what_stands_in_the_row_of_an_empty_slot_is_not_looked_at() -> None:
    batch = filled(2, 3)
    x = logits(3)
    x[2] = np.nan
    assert batch.sample(x).status.tolist() == [Status.ok, Status.ok, Status.empty_slot]


def test_a_mask_has_as_many_rows_as_the_logits() -> None:
    batch = filled(2, 3)
    mask = bitmask([5], [6], [7], size=V)
    assert batch.sample(logits(3), mask).token_ids.tolist() == [5, 6, -1]
    assert batch.sample(logits(2), mask[:2]).token_ids.tolist() == [5, 6]
    with pytest.raises(ParamsError, match=r"^mask must have shape \[3, 1\]"):
        batch.sample(logits(3), mask[:2])


def test_a_mask_counts_for_one_call_only() -> None:
    batch = filled(2, 2)
    before = batch.sample(logits(2)).token_ids.tolist()
    assert batch.sample(logits(2), bitmask([5], [6], size=V)).token_ids.tolist() == [5, 6]
    assert batch.sample(logits(2)).token_ids.tolist() == before


def test_a_request_may_report_logprobs_beside_empty_slots() -> None:
    batch = Batch(V, 3)
    batch.insert(SEEDED.replace(logprobs=2, logprob_token_ids=[4]), slot=1)
    drawn, alone = (
        batch.sample(logits(3)),
        tirage.sample(logits(3)[1], SEEDED.replace(logprobs=2, logprob_token_ids=[4])),
    )
    for name in REPORTED:
        assert getattr(drawn, name)[1].tobytes() == getattr(alone, name)[0].tobytes()
    assert drawn.given_logprobs == ((), (alone.given_logprobs or ((),))[0], ())
    assert [drawn.top_token_ids[0].tolist(), drawn.ranks[0]] == [[-1, -1], 0]


def test_sampling_twice_without_advancing_draws_the_same() -> None:
    batch = filled(2, 2)
    first, second = batch.sample(logits(2)), batch.sample(logits(2))
    assert [getattr(first, name).tobytes() for name in EVERY] == [getattr(second, name).tobytes() for name in EVERY]


def test_an_earlier_draw_is_not_overwritten_by_a_later_one() -> None:
    batch = filled(3, 3)
    first = batch.sample(logits(3))
    kept = {name: getattr(first, name).copy() for name in EVERY}
    batch.advance(first)
    batch.insert(SEEDED.replace(seed=77), slot=0)
    batch.sample(logits(3, "other"))
    assert {name: getattr(first, name).tobytes() for name in EVERY} == {k: v.tobytes() for k, v in kept.items()}


def test_advance_takes_a_draw_or_ids_and_skips_rows_without_a_token() -> None:
    batch = filled(2, 3)
    drawn = batch.sample(logits(3))
    batch.advance(drawn)
    batch.advance([5, -1])
    batch.advance(np.array([6, 7, -1], np.int32))
    first, second = (int(token) for token in drawn.token_ids[:2])
    assert [batch.history(slot)[1] for slot in (0, 1)] == [[first, 5, 6], [second, 7]]


def test_the_step_of_a_request_is_its_own() -> None:
    batch = filled(1, 3)
    for _ in range(3):
        batch.advance([1])
    batch.add(SamplingParams(seed=0), [9], output_ids=[1, 1, 1])
    batch.add(SamplingParams(seed=0), [9])
    same = np.tile(np.zeros(V, np.float32), (3, 1))
    expected = tirage.sample(same, SamplingParams(seed=0), step=[3, 3, 0]).token_ids.tolist()
    assert batch.sample(same).token_ids.tolist() == expected


def test_an_unseeded_request_keeps_the_seed_it_was_given() -> None:
    batch = Batch(V, 2)
    batch.add(SamplingParams())
    batch.add(SamplingParams())
    seeds = [batch.seed(0), batch.seed(1)]
    assert seeds[0] != seeds[1]
    for _ in range(3):
        drawn = batch.sample(logits(2))
        assert drawn.seeds.tolist() == seeds
        batch.advance(drawn)
    again = [tirage.sample(logits(2)[s], SamplingParams(seed=seeds[s]), step=3).token_ids[0] for s in (0, 1)]
    assert batch.sample(logits(2)).token_ids.tolist() == again


def test_sample_indices_separate_the_samples_of_one_request() -> None:
    batch = Batch(V, 8)
    for index in range(8):
        batch.add(SEEDED, sample_index=index)
    flat = np.zeros((8, V), np.float32)
    assert (
        batch.sample(flat).token_ids.tolist() == tirage.sample(flat, SEEDED, sample_index=range(8)).token_ids.tolist()
    )
    assert len(set(batch.sample(flat).token_ids.tolist())) > 2


def test_a_history_at_its_longest_takes_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tirage.history, "MAX_HISTORY", 3)
    batch = Batch(V, 2)
    batch.add(SEEDED, [1])
    batch.add(SEEDED, [1, 2], output_ids=[3])
    with pytest.raises(ParamsError) as error:
        batch.advance([4, 5])
    assert str(error.value) == "history must hold at most 3 tokens, got 4; truncate it"
    assert [batch.history(slot)[1] for slot in (0, 1)] == [[], [3]]
    batch.advance([4, -1])
    assert batch.history(0)[1] == [4]


# --- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Batch(0, 1), "vocab_size must be an integer in [1, 1048576], got 0"),
        (lambda: Batch((1 << 20) + 1, 1), "vocab_size must be an integer in [1, 1048576], got 1048577"),
        (lambda: Batch(V, 0), "capacity must be an integer in [1, 1048576], got 0"),
        (lambda: Batch(V, True), "capacity must be an integer in [1, 1048576], got True"),
        (lambda: Batch(V, 2).remove(0), "slot must hold a request, got 0; in use: []"),
        (lambda: filled(1, 2).remove(-1), "slot must be an integer in [0, 1], got -1"),
        (lambda: filled(1, 2).seed(1), "slot must hold a request, got 1; in use: [0]"),
        (lambda: filled(1, 2).history(2), "slot must be an integer in [0, 1], got 2"),
        (lambda: filled(1, 2).insert(SEEDED, slot=2), "slot must be an integer in [0, 1], got 2"),
        (lambda: filled(1, 2).insert(SEEDED, slot=True), "slot must be an integer in [0, 1], got True"),
        (lambda: filled(1, 2).add("greedy"), "params must be a SamplingParams, got str"),  # pyright: ignore
        (
            lambda: filled(1, 2).add(SEEDED, sample_index=-1),
            "sample_index must be an integer in [0, 4294967295], got -1",
        ),
        (
            lambda: filled(1, 2).add(SEEDED, [V]),
            "history prompt ids must lie in [0, 24), got 24; drop padding before the call",
        ),
        (
            lambda: filled(1, 2).add(SamplingParams(logit_bias={V: 1.0})),
            "logit_bias must lie in [0, 24), got 24; the logits have 24 columns",
        ),
        (lambda: filled(1, 2).reorder([0, 1]), "slot must hold a request, got 1; in use: [0]"),
        (lambda: filled(1, 2).reorder([0, 0, 0]), "order must name at most 2 slots, got 3"),
        (lambda: filled(1, 2).reorder([-2]), "slot must be an integer in [0, 1], got -2"),
        (lambda: filled(1, 3).sample(logits(2)), "rows must be 3 (one per slot) or 1 (one per request), got 2"),
        (lambda: filled(1, 2).sample(logits(1)[:, :-1]), "logits must have 24 columns, got 23"),
        (lambda: filled(1, 3).advance([1, 2]), "rows must be 3 (one per slot) or 1 (one per request), got 2"),
        (lambda: filled(1, 2).advance([V]), "token must be an integer in [-1, 23], got 24"),
        (lambda: filled(1, 2).advance([-2]), "token must be an integer in [-1, 23], got -2"),
        (lambda: filled(1, 2).advance([1.0]), "token must be an integer in [-1, 23], got 1.0"),  # pyright: ignore
        (lambda: filled(1, 2).advance([True]), "token must be an integer in [-1, 23], got True"),
        (lambda: filled(1, 2).advance([3, 4]), "slot must hold a request, got 1; in use: [0]"),
    ],
)
def test_a_mistake_is_named(make: Any, message: str) -> None:
    with pytest.raises(ParamsError) as error:
        make()
    assert str(error.value) == message


@pytest.mark.parametrize("tokens", [None, 3, np.array(3), "12", [[1], [2, 3]]], ids=repr)
def test_advance_refuses_what_are_no_tokens(tokens: Any) -> None:
    with pytest.raises(ParamsError):
        filled(2, 2).advance(tokens)


@pytest.mark.parametrize("order", [None, 3, "01", {0: 1}, np.array(1), np.array([[0, 1]])], ids=repr)
@pytest.mark.parametrize("like", [None, jnp.zeros(V)], ids=["host", "jax"])
def test_reorder_refuses_what_is_no_order(order: Any, like: Any) -> None:
    batch = Batch(V, 2, like=like)
    batch.add(SamplingParams(seed=1))
    with pytest.raises(ParamsError, match=r"^order must be a sequence of slots"):
        batch.reorder(order)


@pytest.mark.parametrize("like", [[0.0], "numpy", np.zeros(3, int)], ids=repr)
def test_like_must_be_an_array_of_logits(like: Any) -> None:
    with pytest.raises(ParamsError, match=r"^logits must be"):
        Batch(V, 2, like=like)
    assert len(Batch(V, 2, like=np.zeros((1, V), np.float16))) == 0


# --- any schedule ------------------------------------------------------------------------------------------------


class Schedules(RuleBasedStateMachine):
    """Requests come, go, move and are copied; each must draw what it draws alone."""

    library = "numpy"

    @initialize(capacity=st.integers(2, 6), data=st.data())
    def start(self, capacity: int, data: st.DataObject) -> None:
        self.world = World(self.library, capacity)
        for _ in range(data.draw(st.integers(1, capacity))):
            self.world.add(picking(data))

    @precondition(lambda self: len(self.world.held) < self.world.capacity)
    @rule(data=st.data())
    def add(self, data: st.DataObject) -> None:
        self.world.add(picking(data))

    @rule(data=st.data())
    def insert(self, data: st.DataObject) -> None:
        self.world.insert(picking(data))

    @precondition(lambda self: self.world.held)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        self.world.remove(picking(data))

    @precondition(lambda self: self.world.held)
    @rule(data=st.data())
    def reorder(self, data: st.DataObject) -> None:
        self.world.reorder(picking(data))

    @precondition(lambda self: self.world.held)
    @rule(wide=st.booleans(), by_ids=st.booleans(), steps=st.integers(1, 4))
    def step(self, wide: bool, by_ids: bool, steps: int) -> None:
        for _ in range(steps):
            self.world.step(wide=wide, by_ids=by_ids)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            finish(self.world)

    @invariant()
    def the_batch_holds_what_was_put_in(self) -> None:
        self.world.holds_what_was_put_in()


def picking(data: st.DataObject) -> Pick:
    return lambda options: data.draw(st.sampled_from(options))


def check_schedules(library: str, count: int, machine: type[Schedules] = Schedules) -> None:
    quiet = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    run_state_machine_as_test(
        type("Schedules", (machine,), {"library": library}),
        settings=settings(
            max_examples=count, stateful_step_count=12, deadline=None, derandomize=True, suppress_health_check=quiet
        ),
    )


LIVES = {"numpy": 30, "torch": 30, "jax": 2}
"""Lives tried first; JAX compiles for every new shape."""
MORE_LIVES = {"numpy": 4800, "torch": 4800, "jax": 400}
SCHEDULES = {"numpy": 400, "torch": 400, "jax": 100}
"""Ten thousand lives and 900 schedules in all; each takes ten times as long through JAX."""


@pytest.mark.slow
@pytest.mark.parametrize("library", ["numpy", "torch", pytest.param("jax", marks=pytest.mark.exhaustive)])
def test_any_schedule_gives_each_request_what_it_draws_alone(library: str) -> None:
    check_schedules(library, 25)


@pytest.mark.exhaustive
@pytest.mark.parametrize("library", LIBRARIES)
def test_many_schedules_give_each_request_what_it_draws_alone(library: str) -> None:
    check_schedules(library, SCHEDULES[library])


@pytest.mark.slow
@pytest.mark.parametrize("library", ["numpy", "torch", pytest.param("jax", marks=pytest.mark.slow)])
def test_many_lives_give_each_request_what_it_draws_alone(library: str) -> None:
    for seed in range(LIVES[library]):
        live(library, seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("library", LIBRARIES)
def test_ten_thousand_lives_in_all_give_each_request_what_it_draws_alone(library: str) -> None:
    assert kernels.wait()
    assert sum(MORE_LIVES.values()) == 10_000
    for seed in range(1000, 1000 + MORE_LIVES[library]):
        live(library, seed)
