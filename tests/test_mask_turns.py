"""Expensive masks hold up nobody: they are computed in turns, beside the engine's thread, and within a budget."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from servers import Server
from test_compiled_texts import bytes_of, random_words

from tirage import LLM, BeamSearchParams, Completion, GuidedDecodingParams, Prompt, SamplingParams
from tirage.engine import constraint_budget, mask_turns, runner, scheduler
from tirage.engine.constraint_budget import ConstraintBudget, limited
from tirage.engine.grammar_state import GrammarState
from tirage.engine.mask_turns import MaskTurns
from tirage.engine.request import EngineRequest
from tirage.engine.sample import GrowingSample

WORDS = GuidedDecodingParams(regex="([a-z]{2,8} ){3,9}end")
MANY = SamplingParams(seed=3, n=6, max_tokens=12, temperature=1.2, guided_decoding=WORDS, logprobs=2)
CLOSED = MANY.replace(close_grammar=True)
STATEFUL = MANY.replace(mirostat=2, semantics="llamacpp", repetition_penalty=1.2)
PLAIN = SamplingParams(seed=5, max_tokens=30, ignore_eos=True)
AMBIGUOUS = 'root ::= s+\ns ::= s s s | [a-z] | [a-z ] s | s [a-z ] | "(" s ")"'


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM("tiny") as opened:
        yield opened


def drawn(completion: Completion) -> list[Any]:
    return [(each.token_ids, each.logprobs, each.stop, each.grammar_complete) for each in completion.samples]


def alone(params: SamplingParams, prompt: str = "Once upon") -> list[Any]:
    with LLM("tiny") as fresh:
        return drawn(fresh.generate(prompt, params)[0])


def late_clock() -> Callable[[], float]:
    """A clock by which every mask takes longer than a step may spend."""
    ticks = itertools.count()
    return lambda: float(next(ticks))


def turns_of(llm: LLM) -> MaskTurns:
    return llm.engine._scheduler._rows._masks  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("params", [MANY, CLOSED], ids=["open", "closed"])
def test_samples_whose_masks_come_later_draw_the_same_tokens(llm: LLM, params: SamplingParams) -> None:
    expected, plain = alone(params), alone(PLAIN)
    turns_of(llm)._clock = late_clock()
    constrained, neighbour = llm.generate(["Once upon"] * 2, [params, PLAIN])
    assert drawn(constrained) == expected
    assert drawn(neighbour) == plain
    assert llm.engine.progress().steps > 3 * params.max_tokens  # type: ignore[operator]


def test_a_step_has_as_many_slow_tokens_as_there_is_time_for(llm: LLM) -> None:
    def sample_of(request: EngineRequest, *, token_s: float, count: int) -> GrowingSample:
        request.constraint_budget.token_s = token_s
        sample = request.start_next()
        sample.token_ids.extend([1] * count)
        return sample

    first, second = llm.request("Once upon", MANY), llm.request("Once upon", MANY)
    slow = [sample_of(first, token_s=0.02, count=count) for count in (4, 3, 2, 1)]
    quick = sample_of(second, token_s=0.001, count=9)
    plain = llm.request("Once upon", PLAIN).samples[0]
    samples = [plain, *slow, quick]
    assert mask_turns.in_time([True] * 6, samples) == [True, False, False, True, True, True]
    assert mask_turns.in_time([True, True, True, True, False, True], samples) == [True, False, True, True, False, True]
    first.constraint_budget.token_s = 9.0
    assert mask_turns.in_time([True] * 6, samples) == [True, False, False, False, True, True]
    # The next token of a grammar with many derivations may take eight times as long, and one that is unknown as long
    # as it likes.
    first.constraint_budget.token_s, first.constraint_budget.ambiguous = 0.002, True
    assert mask_turns.in_time([True] * 6, samples) == [True, False, True, True, True, True]
    first.constraint_budget.token_s = math.inf
    assert mask_turns.in_time([True] * 6, samples) == [True, False, False, False, True, True]
    # Cheap tokens need no turn, however many there are.
    first.constraint_budget.token_s = 0.00002
    assert mask_turns.in_time([True] * 6, samples) == [True] * 6


def test_the_first_token_of_a_slow_constraint_is_tried_by_one_sample_alone() -> None:
    budget = ConstraintBudget()
    budget.add_mask(0.01)
    assert budget.next_token_s == math.inf
    budget.add_token(0.003)
    budget.add_token(0.0)
    assert budget.next_token_s == pytest.approx(0.003 * 0.98)
    quick = ConstraintBudget()
    quick.add_mask(0.001)
    assert quick.next_token_s == 0


def test_a_sample_that_is_behind_need_not_wait_until_all_others_have_drawn(llm: LLM) -> None:
    request = llm.request("Once upon", MANY)
    ahead, behind = request.start_next(), request.start_next()
    assert ahead.grammar is not None
    assert behind.grammar is not None
    ahead.token_ids.append(1)
    ahead.grammar.prepare()
    request.constraint_budget.is_slow = True
    turns = MaskTurns()
    for _ in range(200):
        turns.ready([ahead, behind])
    assert behind.grammar.is_prepared


@pytest.mark.slow
def test_samples_whose_tokens_take_long_draw_them_one_after_another(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, plain = alone(MANY), alone(PLAIN)
    add = constraint_budget.ConstraintBudget.add_token
    monkeypatch.setattr(constraint_budget.ConstraintBudget, "add_token", lambda self, seconds: add(self, 0.04))
    constrained, neighbour = llm.generate(["Once upon"] * 2, [MANY, PLAIN])
    assert drawn(constrained) == expected
    assert drawn(neighbour) == plain
    assert llm.engine.progress().steps > 4 * MANY.max_tokens  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.parametrize("params", [MANY, CLOSED, STATEFUL], ids=["open", "closed", "with a state"])
def test_samples_draw_the_same_tokens_that_a_step_has_no_time_to_take(
    llm: LLM, params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, plain = alone(params), alone(PLAIN)
    monkeypatch.setattr(scheduler, "SLICE_S", 0.0)
    constrained, neighbour = llm.generate(["Once upon"] * 2, [params, PLAIN])
    assert drawn(constrained) == expected
    assert drawn(neighbour) == plain
    assert llm.engine.progress().steps > 3 * params.max_tokens  # type: ignore[operator]


@pytest.mark.slow
def test_searches_that_are_put_off_find_the_same(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    params = CLOSED.replace(max_tokens=9)
    expected = alone(params)
    put_off = list[int]()
    original = runner.rows_to_close

    def counted(samples: Any, found: Any, late: set[int] | None) -> list[int]:
        rows = original(samples, found, late)
        put_off.append(len(late or ()))
        return rows

    monkeypatch.setattr(runner, "CHECK_S", -1.0)
    monkeypatch.setattr(runner, "rows_to_close", counted)
    assert drawn(llm.generate("Once upon", params)[0]) == expected
    assert sum(put_off) > 0


@pytest.mark.slow
def test_a_beam_search_waits_for_its_masks_and_finds_the_same(llm: LLM) -> None:
    beams, sampling = BeamSearchParams(beam_width=4, max_tokens=8), SamplingParams(guided_decoding=WORDS)
    with LLM("tiny") as fresh:
        expected = fresh.beam_search("Once upon", beams, sampling=sampling)[0]
    turns_of(llm)._clock = late_clock()
    found = llm.beam_search("Once upon", beams, sampling=sampling)[0]
    assert [(each.token_ids, each.score) for each in found.samples] == [
        (each.token_ids, each.score) for each in expected.samples
    ]


@pytest.mark.slow
def test_a_mask_that_takes_forever_stops_no_neighbour(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, plain = alone(MANY), alone(PLAIN)
    go, compute = threading.Event(), GrammarState._fill_allowed

    def waits(state: GrammarState, mask: Any) -> None:
        assert threading.current_thread().name.startswith("tirage-masks")
        assert go.wait(60)
        compute(state, mask)

    monkeypatch.setattr(GrammarState, "_fill_allowed", waits)
    request = llm.request("Once upon", MANY)
    request.constraint_budget.is_slow = True
    stuck = llm.engine.submit(request)
    for _ in range(3):
        assert drawn(llm.generate("Once upon", PLAIN)[0]) == plain
    assert not any(sample.token_ids for sample in request.samples)
    go.set()
    assert drawn(stuck.wait(60)) == expected


@pytest.mark.slow
def test_a_request_is_aborted_while_its_masks_are_computed(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    go, begun, compute = threading.Event(), threading.Event(), GrammarState._fill_allowed

    def waits(state: GrammarState, mask: Any) -> None:
        begun.set()
        assert go.wait(60)
        compute(state, mask)

    monkeypatch.setattr(GrammarState, "_fill_allowed", waits)
    request = llm.request("Once upon", MANY)
    request.constraint_budget.is_slow = True
    stream = llm.engine.submit(request)
    assert begun.wait(60)
    stream.abort()
    assert {sample.finish_reason for sample in stream.wait(60).samples} == {"abort"}
    go.set()
    monkeypatch.undo()
    assert drawn(llm.generate("Once upon", MANY)[0]) == alone(MANY)


@pytest.mark.slow
def test_an_error_of_a_mask_ends_its_own_sample_wherever_it_is_computed(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: Any) -> None:
        raise ValueError("no mask")

    plain = alone(PLAIN)
    monkeypatch.setattr(GrammarState, "_fill_allowed", breaks)
    for slow in (False, True):
        request = llm.request("Once upon", MANY)
        request.constraint_budget.is_slow = slow
        stream = llm.engine.submit(request)
        assert drawn(llm.generate("Once upon", PLAIN)[0]) == plain
        assert {sample.stop.kind for sample in stream.wait(60).samples if sample.stop} == {"model_failed"}


@pytest.mark.slow
def test_samples_with_equal_texts_share_their_masks(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraint_budget, "SLOW_S", -1.0)
    monkeypatch.setattr(mask_turns, "SLICE_S", 60.0)
    computed, compute = list[GrammarState](), GrammarState._fill_allowed

    def counted(state: GrammarState, mask: Any) -> None:
        computed.append(state)
        compute(state, mask)

    monkeypatch.setattr(GrammarState, "_fill_allowed", counted)
    greedy = MANY.replace(temperature=0.0, n=1)
    [one] = llm.generate("Once upon", greedy)[0].samples
    count = len(computed)
    samples = llm.generate("Once upon", greedy.replace(n=6))[0].samples
    assert [each.token_ids for each in samples] == [one.token_ids] * 6
    assert len(computed) < 2 * count + 6


@pytest.mark.slow
def test_the_samples_of_a_request_spend_one_budget(llm: LLM) -> None:
    with limited(total_s=0.0, mask_s=60.0):
        request = llm.request("Once upon", MANY)
    done = llm.engine.submit(request).wait(60)
    assert {each.stop.kind for each in done.samples if each.stop} == {"constraint_budget"}
    assert all(len(each.token_ids) <= 1 for each in done.samples)
    text = done.stop.matched_text if done.stop else None
    assert text == (
        "the constraint took more than 0 s of processor time in all samples; make it simpler or ask for fewer tokens"
    )
    assert request.constraint_budget.total_s > 0
    assert drawn(llm.generate("Once upon", MANY)[0]) == alone(MANY)


@pytest.mark.slow
def test_128_samples_are_prepared_at_the_cost_of_one(llm: LLM) -> None:
    words = random_words(1)
    more: dict[str, Any] = {"stop": random_words(2, count=32), "bad_words": words, "bad_words_level": "text"}
    params = CLOSED.replace(**more)
    llm.request("Once", CLOSED)

    def of(n: int) -> tuple[int, int]:
        pattern = GuidedDecodingParams(regex=f"([a-z]{{2,8}} ){{3,9}}end{n:03}")
        return bytes_of(lambda: llm.request("Once", params.replace(n=n, guided_decoding=pattern)))

    of(2)
    (one, most_of_one), (many, most_of_many) = of(1), of(128)
    assert many < 1.2 * one
    assert most_of_many < 1.2 * most_of_one


@pytest.mark.slow
def test_a_server_ends_a_request_whose_constraint_takes_too_long_and_says_why() -> None:
    flags = ("--max-mask-seconds", "0.02", "--max-constraint-seconds", "1")
    sampling = {"max_new_tokens": 200, "n": 4, "sampling_seed": 1, "ebnf": AMBIGUOUS, "temperature": 1.0}
    with Server("tiny", *flags) as server:
        answer = server.post("/generate", {"text": "Once", "sampling_params": sampling})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["code"] == "constraint_budget"
        assert "of processor time" in error["message"]
        plain = server.post("/generate", {"text": "Once", "sampling_params": {"max_new_tokens": 5}})
        assert plain.status_code == 200


def test_a_beginning_waits_as_long_as_its_slow_tokens_took(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, waits = iter([0.5] + [0.0] * 9), list[float]()
    monkeypatch.setattr(
        ConstraintBudget, "add_token", lambda self, _s: setattr(self, "total_s", self.total_s + next(slow))
    )
    clock = SimpleNamespace(thread_time=time.thread_time, sleep=waits.append)
    monkeypatch.setattr(constraint_budget, "time", clock)
    (token_id,) = llm.tokenizer.encode("a")[-1:]
    params = SamplingParams(max_tokens=9, guided_decoding=GuidedDecodingParams(regex="[a-z ]{3,60}"))
    llm.request(Prompt(text="Once", output_ids=(token_id,) * 6), params)
    assert waits == [0.5]


@pytest.mark.slow
def test_a_server_refuses_a_beginning_that_its_constraint_takes_too_long_to_read() -> None:
    with Server("tiny", "--max-mask-seconds", "0.0002") as server:
        body = {"text": "Once", "output_ids": [360] * 40, "sampling_params": {"max_new_tokens": 60, "ebnf": AMBIGUOUS}}
        for route in ("/generate", "/explain"):
            answer = server.post(route, body)
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["message"] == (
                "output_ids cannot be read under the constraint: one token of the constraint took more than 0.0001 s "
                "of processor time; make it simpler"
            )


def test_a_token_that_takes_too_long_exceeds_the_budget_of_all_samples() -> None:
    with limited(total_s=60.0, mask_s=1.0):
        budget = ConstraintBudget()
    budget.add_token(0.5)
    assert budget.exceeded == ""
    budget.add_token(0.6)
    budget.add_token(0.1)
    assert budget.exceeded == budget.add_mask(0.0)
    assert budget.exceeded == "one token of the constraint took more than 0.5 s of processor time; make it simpler"


def test_a_budget_without_limits_is_never_exceeded() -> None:
    budget = constraint_budget.ConstraintBudget()
    assert budget.add_mask(1e9) == ""
    assert budget.exceeded == ""
    assert np.isinf(budget.max_total_s)


def test_a_mask_that_may_take_a_search_for_the_end_is_computed_beside_the_engine(llm: LLM) -> None:
    request_ = llm.request("a", SamplingParams(max_tokens=40, guided_decoding=WORDS, close_grammar=True))
    state = request_.samples[0].grammar
    assert state is not None
    assert state._path is not None
    shortest = len(state._path.tokens or ())
    assert not state.may_search
    for left, beside in ((shortest + 1, False), (shortest, True)):
        state._left, state.budget.is_slow, turns = left, False, MaskTurns()
        assert state.may_search is beside
        turns.ready(request_.samples)
        assert (turns._threads is not None) is beside
        state._mask = None
