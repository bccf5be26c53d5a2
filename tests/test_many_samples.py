"""Many samples of one prompt: what a waiting request holds of them, and how those end that never start."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from small_models import Script
from small_tokenizers import Letters

from tirage import LLM, BeamSearchParams, GuidedDecodingParams, Prompt, RequestOutputKind, SamplingParams
from tirage.engine import EngineRequest
from tirage.engine.deltas import listener_of
from tirage.engine.sample import GrowingSample
from tirage.engine.sequence import SequenceGroup

PARAMS = SamplingParams(max_tokens=4, seed=1, ignore_eos=True)
MANY = PARAMS.replace(n=128)
GREEDY = SamplingParams(temperature=0, max_tokens=4)
LONG = GREEDY.replace(max_tokens=500, ignore_eos=True, n=128)
KINDS = {
    "plain": PARAMS,
    "stops": PARAMS.replace(stop=["abc", "xyz"], stop_pattern="[0-9]{4}"),
    "bad words": PARAMS.replace(bad_words=["cat", "dog"], bad_words_level="text"),
    "logprobs": PARAMS.replace(logprobs=3),
    "penalties": PARAMS.replace(repetition_penalty=1.2, no_repeat_ngram_size=3),
    "constraint": PARAMS.replace(guided_decoding=GuidedDecodingParams(regex="[a-z ]{4,}")),
    "closed": PARAMS.replace(guided_decoding=GuidedDecodingParams(regex="[a-z]{1,9}!"), close_grammar=True),
    "reasoning": PARAMS.replace(thinking_budget=3),
    "nothing to write": PARAMS.replace(max_tokens=0),
}


@pytest.fixture(scope="module")
def tiny() -> Iterator[LLM]:
    with LLM("tiny", max_running=3) as made:
        yield made


def letters(text: str = "abcdef", **options: Any) -> LLM:
    return LLM(Script(text), tokenizer=Letters(), **options)


# --- what a waiting request holds ------------------------------------------------------------------------------------


def objects_of(llm: LLM, params: SamplingParams, prompt: Prompt) -> int:
    """How many objects the collector finds of a request that is ready for the scheduler."""
    llm.request(prompt, params)
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        request = llm.request(prompt, params)
        group = SequenceGroup(request, listener_of(request, lambda _: None, whole=False))
        count = len(gc.get_objects()) - before
    finally:
        gc.enable()
    assert group.unstarted in (0, request.sample_count)
    return count


@pytest.mark.parametrize("many", [{"n": 128}, {"best_of": 20}])
@pytest.mark.parametrize("kind", KINDS)
def test_many_samples_are_prepared_as_one(tiny: LLM, kind: str, many: dict[str, int]) -> None:
    prompt = Prompt(token_ids=range(10, 90), output_ids=[12, 13] if kind == "plain" and "n" in many else ())
    one = objects_of(tiny, KINDS[kind], prompt)
    assert one > 0
    # `best_of` is ranked by logprobs, which have parameters of their own.
    assert objects_of(tiny, KINDS[kind].replace(**many), prompt) < one + 16


def test_samples_are_made_as_they_start() -> None:
    llm = letters(max_running=3)
    request = llm.request("p", GREEDY.replace(n=8, max_tokens=2))
    scheduler, group = llm.engine._scheduler, SequenceGroup(request, lambda _: None)
    scheduler.add(group)
    made = []
    while scheduler.busy:
        made.append(len(request.samples))
        scheduler.step()
        assert request.sample_count == 8
    # Those that run and the one that stands for the others.
    assert made[:2] == [1, 4]
    assert made == sorted(made)
    assert [sample.index for sample in request.samples] == [*range(8)]
    assert len({id(sample) for sample in request.samples}) == 8


# --- the same answers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_those_of_any_number_of_slots(tiny: LLM, kind: str) -> None:
    params = KINDS[kind].replace(n=11)
    with LLM("tiny", max_running=16) as wide:
        expected = wide.generate("Once upon a time", params)[0].samples
        assert tiny.generate("Once upon a time", params)[0].samples == expected
    assert [sample.index for sample in expected] == [*range(11)]


def test_best_of_takes_the_same_samples_with_few_slots(tiny: LLM) -> None:
    params = PARAMS.replace(n=3, best_of=20)
    with LLM("tiny", max_running=32) as wide:
        expected = wide.generate("Once upon a time", params)[0]
    found = tiny.generate("Once upon a time", params)[0]
    assert found.samples == expected.samples
    assert found.usage == expected.usage
    assert found.usage.completion_tokens == 80


def test_all_samples_begin_with_the_given_tokens(tiny: LLM) -> None:
    given = tiny.tokenizer.encode(" there was")
    prompt = Prompt(text="Once upon a time", output_ids=given)
    request = tiny.request(prompt, PARAMS.replace(n=9, max_tokens=8, logprobs=0))
    assert request.completion().usage.completion_tokens == request.output_tokens == 9 * len(given)
    done = tiny.engine.submit(request).wait(60)
    assert all(sample.token_ids[: len(given)] == tuple(given) for sample in done.samples)
    assert {len(sample.token_ids) for sample in done.samples} == {8}
    assert all(len(sample.logprobs or ()) == 8 for sample in done.samples)


def test_every_answer_so_far_has_all_samples() -> None:
    with letters(max_running=2) as llm:
        stream = llm.stream("p", GREEDY.replace(n=5, output_kind=RequestOutputKind.CUMULATIVE))
        answers = [delta.completion for delta in stream]
    assert [[sample.index for sample in answer.samples] for answer in answers if answer] == [[*range(5)]] * len(answers)
    assert answers[0] is not None
    assert [sample.text for sample in answers[0].samples] == ["a", "a", "", "", ""]
    assert answers[-1] is not None
    assert [sample.text for sample in answers[-1].samples] == ["abcd"] * 5


def test_the_share_of_an_answer_counts_samples_that_are_yet_to_start() -> None:
    request = letters().request("p", GREEDY.replace(n=4))
    for token_id in (0, 0):
        request.start_next().accept(token_id, 0.0)
    assert request.done_share == 2 / 16
    assert request.output_tokens == 2
    assert not request.finished


# --- ends ------------------------------------------------------------------------------------------------------------


class Heard:
    """A listener that notes the samples that have ended."""

    def __init__(self) -> None:
        self.ends: list[tuple[int, str | None, str]] = []

    def __call__(self, sample: GrowingSample) -> None:
        if sample.stop is not None:
            self.ends.append((sample.index, sample.finish_reason, sample.text))


def scheduled(llm: LLM, params: SamplingParams, prompt: Any = "p") -> tuple[Any, EngineRequest, SequenceGroup, Heard]:
    """A request in the scheduler of an engine that has never run, whose steps are made here."""
    request, heard = llm.request(prompt, params), Heard()
    group = SequenceGroup(request, heard)
    llm.engine._scheduler.add(group)
    return llm.engine._scheduler, request, group, heard


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_samples_that_never_start_are_aborted_with_the_others(steps: int) -> None:
    scheduler, request, group, heard = scheduled(letters("a" * 600, max_running=4), LONG)
    for _ in range(steps):
        scheduler.step()
    scheduler.abort(group)
    running = min(steps, 1) * 4
    assert heard.ends == [(index, "abort", "a" * steps if index < running else "") for index in range(128)]
    assert not scheduler.busy
    assert request.finished
    completion = request.completion()
    assert [sample.index for sample in completion.samples] == [*range(128)]
    assert completion.usage.completion_tokens == running * steps
    scheduler.abort(group)
    assert len(heard.ends) == 128


def test_an_aborted_stream_shows_no_sample_as_ended_before_its_turn() -> None:
    llm, shown = letters("a" * 600, max_running=4), list[list[str | None]]()
    request = llm.request("p", LONG.replace(n=9, output_kind=RequestOutputKind.CUMULATIVE))

    def put(delta: Any) -> None:
        if delta is not None and delta.finish_reason is not None:
            shown.append([sample.finish_reason for sample in delta.completion.samples])

    group, scheduler = SequenceGroup(request, listener_of(request, put, whole=False)), llm.engine._scheduler
    scheduler.add(group)
    scheduler.step()
    scheduler.abort(group)
    assert shown == [["abort"] * ended + [None] * (9 - ended) for ended in range(1, 10)]


def test_a_client_that_leaves_early_costs_its_neighbours_nothing(tiny: LLM) -> None:
    alone = tiny.generate("The cat", PARAMS.replace(n=4))[0].samples
    stream = tiny.engine.submit(tiny.request("Once upon a time", MANY.replace(max_tokens=200)))
    beside = tiny.engine.submit(tiny.request("The cat", PARAMS.replace(n=4)), buffer=0)
    next(iter(stream))
    stream.abort()
    done = stream.wait(60)
    assert beside.wait(60).samples == alone
    reasons = [sample.finish_reason for sample in done.samples]
    assert len(reasons) == 128
    assert set(reasons) == {"abort"}
    assert tiny.engine.progress().running == 0


@pytest.mark.parametrize("whole", [False, True])
def test_a_stream_of_samples_that_never_start_ends(whole: bool) -> None:
    llm, deltas = letters(max_running=2), list[Any]()
    request = llm.request("p", GREEDY.replace(n=128, output_kind=RequestOutputKind.DELTA))
    group = SequenceGroup(request, listener_of(request, deltas.append, whole=whole))
    llm.engine._scheduler.add(group)
    llm.engine._scheduler.abort(group)
    assert deltas[-1] is None
    assert [delta.index for delta in deltas[:-1]] == ([0] if whole else [*range(128)])
    assert [delta.completion is not None for delta in deltas[:-1]] == [False] * (len(deltas) - 2) + [True]
    assert len(deltas[-2].completion.samples) == 128


def test_one_sample_of_many_that_fails_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    forks = iter(range(200))

    def fork(self: Script, cache: list[int]) -> list[int]:
        if next(forks) == 70:
            raise MemoryError("full")
        return list(cache)

    monkeypatch.setattr(Script, "fork", fork)
    with letters(max_running=4) as llm:
        done = llm.generate("p", GREEDY.replace(n=128))[0]
    failed = [sample for sample in done.samples if sample.finish_reason == "error"]
    assert [sample.index for sample in failed] == [70]
    assert [sample.text for sample in done.samples if sample.index != 70] == ["abcd"] * 127
    assert failed[0].text == ""


def test_a_request_whose_next_sample_cannot_be_made_ends_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, request, _, heard = scheduled(letters(max_running=4), GREEDY.replace(n=128))
    fork, forks = GrowingSample.fork, iter(range(200))

    def limited(self: GrowingSample) -> GrowingSample:
        if next(forks) == 3:
            raise MemoryError("full")
        return fork(self)

    monkeypatch.setattr(GrowingSample, "fork", limited)
    while scheduler.busy:
        scheduler.step()
    assert heard.ends == [(index, "error", "") for index in range(128)]
    assert request.finished


@pytest.mark.parametrize("bad", [0, 5, 60, 127])
def test_a_listener_that_fails_at_a_sample_that_never_started_has_ended_all(bad: int) -> None:
    heard: list[int] = []

    def listener(sample: GrowingSample) -> None:
        if sample.stop is not None:
            heard.append(sample.index)
            if sample.index == bad:
                raise OSError("gone")

    llm = letters("a" * 600, max_running=4)
    request, scheduler = llm.request("p", LONG), llm.engine._scheduler
    group = SequenceGroup(request, listener)
    scheduler.add(group)
    scheduler.step()
    scheduler.abort(group)
    assert heard == [*range(bad + 1)]
    assert [sample.index for sample in request.samples] == [*range(128)]
    assert request.finished
    assert not scheduler.busy


def test_samples_that_never_start_keep_the_text_that_stood_before() -> None:
    llm = LLM("tiny")
    given = llm.tokenizer.encode(" there was")
    prompt = Prompt(text="Once upon a time", output_ids=given)
    scheduler, _, group, alone = scheduled(llm, PARAMS.replace(max_tokens=40), prompt)
    scheduler.abort(group)
    scheduler, request, group, heard = scheduled(llm, MANY.replace(max_tokens=40), prompt)
    scheduler.abort(group)
    [(_, _, text)] = alone.ends
    assert text.strip() == "there was"
    assert heard.ends == [(index, "abort", text) for index in range(128)]
    assert {sample.token_ids for sample in request.completion().samples} == {tuple(given)}


# --- requests with nothing to write -----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 128])
@pytest.mark.parametrize("scored", [False, True])
def test_a_request_with_nothing_to_write_can_be_aborted_while_it_waits(n: int, scored: bool) -> None:
    params = GREEDY.replace(max_tokens=0, n=n, prompt_logprobs=0 if scored else None)
    scheduler, _, group, heard = scheduled(letters(), params)
    scheduler.abort(group)
    assert heard.ends == [(index, "abort", "") for index in range(n)]
    assert not scheduler.busy


@pytest.mark.parametrize("scored", [False, True])
def test_a_request_with_nothing_to_write_has_all_its_samples(scored: bool) -> None:
    params = GREEDY.replace(max_tokens=0, n=5, prompt_logprobs=0 if scored else None)
    scheduler, request, _, heard = scheduled(letters(), params)
    while scheduler.busy:
        scheduler.step()
    assert heard.ends == [(index, "length", "") for index in range(5)]
    assert (request.prompt_logprobs is not None) == scored
    stops = [sample.stop for sample in request.completion().samples]
    assert [stop.kind for stop in stops if stop] == ["max_tokens"] * 5


def test_a_scored_prompt_that_cannot_be_read_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def score(self: Script, token_ids: Any) -> Any:
        raise MemoryError("full")

    monkeypatch.setattr(Script, "score", score)
    monkeypatch.setattr(Script, "prefill", score)
    with letters() as llm:
        request = llm.request("pq", GREEDY.replace(max_tokens=0, n=2, prompt_logprobs=0))
        done = llm.engine.submit(request).wait(10)
    assert [sample.finish_reason for sample in done.samples] == ["error"] * 2


def test_a_search_has_as_many_samples_as_hypotheses() -> None:
    with letters() as llm:
        request = llm.beam_request("p", BeamSearchParams(beam_width=3, max_tokens=2))
        assert request.sample_count == len(request.samples) == 1
        done = llm.engine.submit(request).wait(60)
        assert request.sample_count == len(done.samples) == 3
