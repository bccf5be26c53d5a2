"""Shares of the engine: who waits, who takes part in a step, and that nothing of it changes a token."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from small_models import Script
from small_tokenizers import Letters

from tirage import LLM, BeamSearchParams, Completion, SamplingParams
from tirage.engine import Engine, EngineRequest, SchedulerConfig, SequenceGroup, prefill_queue
from tirage.engine.fairness import (
    ALONE_S,
    STEP_S,
    TURN_STEPS,
    FairnessKey,
    StepPace,
    Tenant,
    Turns,
    has_room,
    interleaved,
    max_min,
    share_of,
    shares,
)
from tirage.engine.plain_model import CHUNK, as_step_model
from tirage.engine.request_queue import RequestQueue
from tirage.engine.scheduler import Scheduler
from tirage.errors import UnavailableError
from tirage.text import wrap_tokenizer

TOKENIZER = wrap_tokenizer(Letters())
GREEDY = SamplingParams(temperature=0, max_tokens=20)
A1, A2, B1, C1 = (FairnessKey(Tenant(tenant), number) for tenant, number in (("a", 1), ("a", 2), ("b", 1), ("c", 1)))


class Counted(Script):
    """Notes the prompts of every step and of every chunk; any letter of a to d may follow."""

    def __init__(self, **options: Any) -> None:
        super().__init__("", **options)
        self.steps: list[str] = []
        self.chunks: list[str] = []

    def prefill(self, token_ids: Sequence[int]) -> tuple[NDArray[np.float32], list[Any]]:
        return self.extend(token_ids, None)

    def extend(self, token_ids: Sequence[int], cache: list[Any] | None) -> tuple[NDArray[np.float32], list[Any]]:
        name = chr(token_ids[0])
        self.chunks.append(name)
        return self._logits(0), [0, name]

    def decode(self, token_ids: Sequence[int], caches: Sequence[list[Any]]) -> NDArray[np.float32]:
        self.steps.append("".join(cache[1] for cache in caches))
        return super().decode(token_ids, caches)

    def _logits(self, place: int) -> NDArray[np.float32]:
        row = np.full(self.vocab_size, -np.inf, np.float32)
        row[ord("a") : ord("e")] = np.random.default_rng(place).normal(size=4)
        return row


def group_of(text: str, params: SamplingParams = GREEDY, *, tenant: str = "", number: int = 0) -> SequenceGroup:
    ids = TOKENIZER.encode(text)
    request = EngineRequest(params, TOKENIZER, ids, vocab_size=Script.vocab_size, max_length=100_000, prompt=text)
    request.tenant = Tenant(tenant)
    return SequenceGroup(request, lambda _: None, number=number)


class Pace(StepPace):
    """Steps that may have so many rows, however long they take."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self._most = rows

    @property
    def most_rows(self) -> int:
        return self._most

    @property
    def most_rows_alone(self) -> int:
        return 1 << 20


def scheduler_of(model: Script, max_running: int, *, rows: int = 1 << 20, **given: Any) -> Scheduler:
    """A scheduler whose steps with several requests have so many rows, and never more than there are slots."""
    scheduler = Scheduler(as_step_model(model), TOKENIZER, config=SchedulerConfig(max_running=max_running), **given)
    scheduler._rows._pace = Pace(rows)
    return scheduler


def run_out(scheduler: Scheduler) -> None:
    while scheduler.busy:
        scheduler.step()


# Shares.


@pytest.mark.parametrize(
    ("demands", "capacity", "given"),
    [
        ({"a": 300, "b": 1}, 256, {"a": 255, "b": 1}),
        ({"a": 300, "b": 300}, 256, {"a": 128, "b": 128}),
        ({"a": 1, "b": 9, "c": 9}, 10, {"a": 1, "b": 5, "c": 4}),
        ({"a": 1, "b": 1, "c": 1}, 2, {"a": 1, "b": 1, "c": 0}),
        ({"a": 2}, 9, {"a": 2}),
        ({}, 9, {}),
    ],
)
def test_what_one_does_not_want_goes_to_the_others(
    demands: dict[str, int], capacity: int, given: dict[str, int]
) -> None:
    assert max_min(demands, capacity) == given


def test_tenants_have_equal_shares_however_many_requests_they_have() -> None:
    assert shares({A1: 50, A2: 50, B1: 50}, 40) == {A1: 10, A2: 10, B1: 20}
    assert shares({A1: 50, A2: 2, B1: 3}, 40) == {A1: 35, A2: 2, B1: 3}


def test_shares_of_tenants_are_as_their_weights() -> None:
    heavy, light = FairnessKey(Tenant("h", 3), 1), FairnessKey(Tenant("l"), 2)
    assert shares({heavy: 50, light: 50}, 40) == {heavy: 30, light: 10}
    assert shares({heavy: 5, light: 50}, 40) == {heavy: 5, light: 35}
    # Nobody is left out, however light.
    assert shares({FairnessKey(Tenant("h", 1000), 1): 50, light: 50}, 4)[light] == 1
    assert has_room({heavy: 5, light: 3}, heavy, 1, capacity=8)
    assert not has_room({heavy: 6, light: 2}, heavy, 1, capacity=8)
    assert share_of(light.tenant, [heavy.tenant], 40) == 10
    items = [(key, number) for key in (heavy, light) for number in range(5)]
    order = interleaved(items, lambda item: item[0], Turns())
    assert [key.tenant.name for key, _ in order] == [*"hhhlhhllll"]


def test_room_beyond_the_slots_is_for_those_below_their_share() -> None:
    held = {A1: 8}
    assert has_room({A1: 7}, A1, 1, capacity=8)
    assert not has_room(held, A1, 1, capacity=8)
    assert has_room(held, A2, 1, capacity=8)
    assert has_room({A1: 8, B1: 3}, B1, 1, capacity=8)
    assert not has_room({A1: 8, B1: 4}, B1, 1, capacity=8)
    # The last rows are for the first of a request.
    assert not has_room({A1: 11, B1: 2, C1: 1}, C1, 1, capacity=8)
    assert has_room({A1: 12, B1: 2}, C1, 1, capacity=8)
    assert not has_room({A1: 12, B1: 4}, C1, 1, capacity=8)


def test_a_search_gets_room_for_all_its_beams_at_once_or_none() -> None:
    assert has_room({A1: 8}, B1, 6, capacity=8)
    assert not has_room({A1: 8}, B1, 7, capacity=8)
    assert not has_room({A1: 8, B1: 1}, B1, 2, capacity=8)


def test_turns_go_to_those_that_had_the_fewest_and_last_some_steps() -> None:
    turns, seen = Turns(2), []
    for _ in range(8):
        first = turns.order("abc")[0]
        seen.append(first)
        turns.take(first)
    assert "".join(seen) == "aabbccaa"
    # One that comes later has not been missing its turns.
    assert turns.order("abcd")[0] == "b"


def test_prompts_of_a_large_request_alternate_with_those_of_others() -> None:
    items = [(A1, 1), (A1, 2), (A1, 3), (A2, 1), (B1, 1)]
    assert interleaved(items, lambda item: item[0], Turns()) == [(A1, 1), (B1, 1), (A2, 1), (A1, 2), (A1, 3)]
    assert interleaved(items[:3], lambda item: item[0], Turns()) == items[:3]


# The length of a step.


def test_rows_that_cost_nothing_are_tried_four_times_as_many_at_a_time() -> None:
    pace, tried = StepPace(), list[int]()
    for _ in range(5):
        tried.append(pace.most_rows)
        pace.record(pace.most_rows, 0.001)
    assert tried == [32, 128, 512, 2048, 8192]


def test_steps_that_are_the_longer_the_fewer_rows_they_have_do_not_let_all_take_part() -> None:
    # The machine was busy: as fewer rows took part, each took longer.
    pace = StepPace(0.05)
    for _ in range(40):
        pace.record(1, 0.01)
        pace.record(10, 0.05)
        pace.record(30, 0.04)
    assert pace.most_rows == 23


def test_where_rows_make_the_step_long_fewer_take_part() -> None:
    pace = StepPace(0.05)
    pace.record(256, 0.512)
    assert pace.most_rows == 25


def test_rows_that_are_slower_than_those_before_show_in_the_next_step() -> None:
    pace = StepPace(0.05)
    for _ in range(50):
        pace.record(200, 0.04)
        pace.record(1, 0.003)
    pace.record(128, 1.28)
    assert pace.most_rows <= 5
    assert pace.most_rows_alone <= 20
    pace.record(5, 0.05)
    assert pace.most_rows <= 5
    # A step that was long for another reason is made up for by the next one.
    pace = StepPace(0.05)
    for _ in range(100):
        pace.record(200, 0.04)
    pace.record(200, 0.4)
    assert pace.most_rows < 50
    pace.record(25, 0.005)
    assert pace.most_rows > 170


def test_a_request_that_is_alone_may_have_longer_steps() -> None:
    pace = StepPace(0.05)
    for _ in range(20):
        pace.record(40, 0.1999)
    assert (pace.most_rows, pace.most_rows_alone) == (10, 40)
    # Where the pass itself is long, rows are nearly free.
    pace = StepPace(0.05)
    for rows in (256, 8, 256, 8, 64, 64, 64, 64):
        pace.record(rows, 0.5 + rows * 0.004)
    assert pace.most_rows_alone == pytest.approx(375, abs=3)


def test_the_steps_of_a_lone_request_have_no_more_rows_than_fit() -> None:
    scheduler = scheduler_of(Script("a" * 40), 64)
    pace = StepPace()
    scheduler._rows._pace = pace
    for _ in range(50):
        pace.record(64, 0.64)
    scheduler.add(group_of("p", GREEDY.replace(max_tokens=30, n=60)))
    sizes, choose = list[int](), scheduler._rows.choose

    def noted(*given: Any, **more: Any) -> None:
        choose(*given, **more)
        sizes.append(len(scheduler._rows.drawing))

    scheduler._rows.choose = noted  # type: ignore[method-assign]
    for _ in range(12):
        scheduler.step()
    assert 0 < sizes[next(i for i, size in enumerate(sizes) if size)] <= 20


def test_where_the_pass_itself_is_long_a_step_may_take_twice_as_long() -> None:
    pace = StepPace(0.05)
    for rows in (256, 8, 256, 8, 64, 64, 64, 64):
        pace.record(rows, 0.5 + rows * 0.004)
    assert pace.most_rows == pytest.approx(125, abs=1)
    for _ in range(500):
        pace.record(120, 0.5 + 120 * 0.004)
    assert pace.most_rows == pytest.approx(125, abs=1)


# The queue.


def test_the_next_request_is_of_the_tenant_and_of_the_line_with_the_fewest_rows() -> None:
    queue = RequestQueue()
    groups = {
        name: group_of(name, tenant=tenant, number=number)
        for name, tenant, number in (("p", "a", 1), ("q", "a", 1), ("r", "a", 2), ("s", "b", 1))
    }
    for group in groups.values():
        queue.append(group)
    assert len(queue) == 4
    assert queue.counts == {Tenant("a"): 3, Tenant("b"): 1}
    assert queue.next_of({}) is groups["p"]
    assert queue.next_of({A1: 1}) is groups["s"]
    assert queue.next_of({A1: 1, B1: 2}) is groups["r"]
    assert queue.next_of({A1: 1, B1: 2}, {A2}) is groups["p"]
    for group in groups.values():
        queue.remove(group)
    assert (len(queue), queue.counts, queue.next_of({})) == (0, {}, None)


def test_a_full_queue_takes_the_share_of_a_tenant_that_has_none_of_it() -> None:
    engine = Engine(Script("a" * 900), TOKENIZER, config=SchedulerConfig(max_running=1, max_waiting=4))

    def requests(tenant: str, count: int) -> list[EngineRequest]:
        return [group_of("p", GREEDY.replace(max_tokens=900), tenant=tenant).request for _ in range(count)]

    streams = engine.submit_all(requests("a", 5))
    with pytest.raises(UnavailableError, match="max_waiting"):
        engine.submit_all(requests("a", 1))
    streams += engine.submit_all(requests("b", 2))
    with pytest.raises(UnavailableError, match="max_waiting"):
        engine.submit_all(requests("b", 1))
    streams += engine.submit_all(requests("c", 1))
    for stream in streams:
        stream.abort()
    engine.close()


# Steps.


def test_one_request_alone_has_all_slots_and_the_order_of_its_prompts() -> None:
    model = Counted()
    scheduler = scheduler_of(model, 2)
    for name in "pqr":
        scheduler.add(group_of(name, GREEDY.replace(max_tokens=3)))
    run_out(scheduler)
    assert model.steps == ["pq", "pq", "r", "r"]


def test_a_request_that_comes_later_gets_its_token_in_the_next_step() -> None:
    model = Counted()
    scheduler = scheduler_of(model, 4)
    scheduler.add(group_of("p", GREEDY.replace(max_tokens=40, n=4), number=1))
    scheduler.step()
    scheduler.add(late := group_of("q", number=2))
    scheduler.step()
    assert len(late.request.samples[0].token_ids) == 1
    assert sorted(model.steps[-1]) == ["p", "p", "p", "q"]
    while not late.request.finished:
        scheduler.step()
    # All samples of the first had their turn meanwhile, and a step never had more rows than slots.
    assert all(len(step) <= 4 for step in model.steps)
    assert {step.count("q") for step in model.steps[1:20]} == {1}
    run_out(scheduler)
    assert model.steps.count("pppp") > 10


def test_resting_samples_take_turns() -> None:
    scheduler = scheduler_of(Counted(), 4)
    scheduler.add(hog := group_of("p", GREEDY.replace(max_tokens=400, n=4), number=1))
    scheduler.step()
    scheduler.add(group_of("q", GREEDY.replace(max_tokens=400), number=2))
    for _ in range(40):
        scheduler.step()
    lengths = [len(sample.token_ids) for sample in hog.request.samples]
    assert sum(lengths) == 4 + 40 * 3
    assert max(lengths) - min(lengths) <= TURN_STEPS


def test_a_tenant_with_many_requests_leaves_the_other_its_half() -> None:
    model = Counted()
    scheduler = scheduler_of(model, 4)
    for number in range(8):
        scheduler.add(group_of("p", tenant="a", number=number))
    scheduler.step()
    for number in range(8, 16):
        scheduler.add(group_of("q", tenant="b", number=number))
    for _ in range(6):
        scheduler.step()
    assert [step.count("q") for step in model.steps[1:6]] == [2] * 5
    assert all(len(step) == 4 for step in model.steps)


def test_no_more_rows_are_open_than_twice_the_slots() -> None:
    scheduler = scheduler_of(Counted(), 8)
    for number in range(40):
        scheduler.add(group_of("p", GREEDY.replace(n=8, max_tokens=30), tenant=str(number % 5), number=number))
        scheduler.step()
        assert scheduler.running <= 16
    run_out(scheduler)


def test_long_prompts_of_one_request_do_not_hold_up_the_prompt_of_another() -> None:
    model = Counted()
    scheduler = scheduler_of(model, 16)
    for _ in range(8):
        scheduler.add(group_of("L" * (4 * CHUNK), number=1))
    scheduler.step()
    scheduler.add(short := group_of("s", number=2))
    for _ in range(2):
        scheduler.step()
    assert model.chunks.index("s") <= 3
    assert short.request.samples[0].token_ids


class SlowPasses(Counted):
    """A prompt takes a quarter of the time of a step and a little more, however short it is."""

    def extend(self, token_ids: Sequence[int], cache: list[Any] | None) -> tuple[NDArray[np.float32], list[Any]]:
        time.sleep(STEP_S / 3.5)
        return super().extend(token_ids, cache)


def test_many_short_prompts_are_prefilled_between_the_steps_of_another_request() -> None:
    model = SlowPasses()
    scheduler = scheduler_of(model, 64)
    scheduler.add(group_of("z", tenant="other", number=1))
    scheduler.step()
    for _ in range(40):
        scheduler.add(group_of("x", number=2))
    passes: list[int] = []
    while scheduler.busy:
        before = len(model.chunks)
        scheduler.step()
        passes.append(len(model.chunks) - before)
    # Never more than four, and fewer where the machine is busy with something else; each step is one of the other's.
    assert sum(passes) == 40
    assert max(passes) <= 4
    assert all("z" in step for step in model.steps[:10])


def test_a_request_alone_leaves_room_for_one_that_comes_later() -> None:
    model = SlowPasses()
    scheduler = scheduler_of(model, 64)
    for _ in range(40):
        scheduler.add(group_of("x", number=1))
    scheduler.step()
    assert 1 <= len(model.chunks) <= 1 + ALONE_S / STEP_S * 3.5
    before = len(model.chunks)
    scheduler.add(group_of("z", tenant="other", number=2))
    # A step has time for one prompt alone where the machine is busy with something else.
    for _ in range(2):
        scheduler.step()
    assert model.chunks.index("z") <= before + 1


def without_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a step read one pass of prompts beside others, and any number alone."""
    monkeypatch.setattr(prefill_queue, "STEP_S", -1.0)
    monkeypatch.setattr(prefill_queue, "ALONE_S", 1e9)


@pytest.mark.parametrize(
    ("together", "rows"), [([8], [8]), ([1, 1, 1, 1, 4], [1, 2, 3, 4, 5])], ids=["while none draws", "beside others"]
)
def test_short_prompts_that_come_together_are_drawn_together_while_none_draws(
    monkeypatch: pytest.MonkeyPatch, together: list[int], rows: list[int]
) -> None:
    without_time(monkeypatch)
    model, numbers = Counted(), itertools.count()
    scheduler = scheduler_of(model, 16)
    for count in together:
        for number in itertools.islice(numbers, count):
            scheduler.add(group_of("x", number=number))
        scheduler.step()
    assert [len(step) for step in model.steps] == rows


@pytest.mark.parametrize(
    ("late", "rows"),
    [(["x", "y", "z"], "wxyz"), (["x" * 200, "y" * 200], "wx"), (["L" * (4 * CHUNK)], "w")],
    ids=["short prompts", "those that fit", "a long one"],
)
def test_prompts_that_come_while_others_are_read_are_drawn_together_with_them(
    monkeypatch: pytest.MonkeyPatch, late: list[str], rows: str
) -> None:
    without_time(monkeypatch)
    model, coming = Counted(), [group_of(each, number=number) for number, each in enumerate(late, 1)]

    def take_new() -> bool:
        for group in (found := coming[:1]):
            scheduler.add(group)
        del coming[:1]
        return bool(found)

    scheduler = scheduler_of(model, 16, take_new=take_new)
    scheduler.add(group_of("w"))
    scheduler.step()
    assert model.steps == [rows]


def test_prompts_that_come_while_others_draw_wait_for_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    without_time(monkeypatch)
    model, coming = Counted(), [group_of("y", number=3)]

    def take_new() -> bool:
        if not scheduler.running or not coming:
            return False
        scheduler.add(coming.pop())
        return True

    scheduler = scheduler_of(model, 16, take_new=take_new)
    for number, letter in enumerate("wx"):
        scheduler.add(group_of(letter, number=number))
        scheduler.step()
    assert model.steps == ["w", "wx"]


def test_a_short_prompt_beside_a_long_one_is_drawn_from_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    without_time(monkeypatch)
    model = Counted()
    scheduler = scheduler_of(model, 16)
    scheduler.add(short := group_of("s", number=1))
    scheduler.add(group_of("L" * (4 * CHUNK), number=2))
    scheduler.step()
    assert model.chunks == ["s"]
    assert short.request.samples[0].token_ids


def test_a_search_goes_on_in_parts_beside_a_text() -> None:
    with LLM(Counted(), tokenizer=Letters()) as llm:
        beams = BeamSearchParams(beam_width=8, max_tokens=12)
        alone = llm.beam_search("p", beams)[0]
        text = llm.generate("q", GREEDY.replace(max_tokens=60))[0]
        request = llm.beam_request("p", beams)
    model = Counted()
    scheduler = scheduler_of(model, 8)
    scheduler.add(SequenceGroup(request, lambda _: None, number=1))
    scheduler.step()
    scheduler.add(other := group_of("q", GREEDY.replace(max_tokens=60), number=2))
    run_out(scheduler)
    assert request.completion().samples == alone.samples
    assert other.request.completion().samples[0].token_ids == text.samples[0].token_ids
    assert all(len(step) <= 8 for step in model.steps)
    assert {step.count("q") for step in model.steps[1:30]} == {1}


def test_a_wide_search_that_finds_no_room_is_passed_by_others_but_not_forever() -> None:
    scheduler = scheduler_of(Counted(), 4)
    scheduler.add(group_of("p", GREEDY.replace(n=4, max_tokens=900), number=0))
    scheduler.step()
    with LLM(Counted(), tokenizer=Letters()) as llm:
        wide = SequenceGroup(
            llm.beam_request("w", BeamSearchParams(beam_width=4, max_tokens=2)), lambda _: None, number=1
        )
    scheduler.add(wide)
    passing = 0
    for number in range(2, 40):
        scheduler.add(one := group_of("s", GREEDY.replace(max_tokens=1), number=number))
        scheduler.step()
        if not one.request.finished:
            break
        passing += 1
    assert passing == 16


def test_the_clock_limits_the_rows_of_a_step_only_where_several_want_it() -> None:
    model = Counted()
    scheduler = scheduler_of(model, 64, rows=1)
    scheduler.add(group_of("p", GREEDY.replace(n=32, max_tokens=60), number=1))
    for _ in range(3):
        scheduler.step()
    scheduler.add(group_of("q", GREEDY.replace(max_tokens=5), number=2))
    run_out(scheduler)
    assert {len(step) for step in model.steps[:3]} == {32}
    assert {step for step in model.steps if "q" in step} == {"pq"}


# The same tokens.


def answers(llm: LLM, prompts: Sequence[tuple[str, SamplingParams]]) -> list[Completion]:
    return [llm.generate(prompt, params)[0] for prompt, params in prompts]


@pytest.mark.slow
def test_turns_change_no_token_and_no_logprob_of_a_real_model() -> None:
    chance = random.Random(5)
    asked = [
        (f"Once {number}", SamplingParams(seed=number, n=1 + number % 4, max_tokens=6 + number % 9, logprobs=2))
        for number in range(18)
    ]
    with LLM("tiny") as llm:
        alone = answers(llm, asked)
        scheduler = Scheduler(as_step_model(llm.model), llm.tokenizer, config=SchedulerConfig(max_running=5))  # type: ignore[arg-type]
        scheduler._rows._pace = Pace(4)
        requests = [llm.request(prompt, params) for prompt, params in asked]
        for number, request in enumerate(requests):
            request.tenant = Tenant(str(chance.randrange(3)), weight=1 + number % 2)
            scheduler.add(SequenceGroup(request, lambda _: None, number=number))
            for _ in range(chance.randrange(4)):
                scheduler.step()
        run_out(scheduler)
    for one, request in zip(alone, requests, strict=True):
        assert request.completion().samples == one.samples
