"""Beam searches among other requests: their slots, their ends, and texts that are empty."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from small_models import Script
from small_tokenizers import Letters
from small_torch import Numbers, build

from tirage import LLM, BeamSearchParams, Completion, GuidedDecodingParams, SamplingParams
from tirage.draw import Status
from tirage.engine import beams, scheduler, scorer
from tirage.engine.sample import GrowingSample
from tirage.engine.step_rows import StepRows
from tirage.engine.step_time import StepTime
from tirage.models.huggingface import wrap_module

EOS = ord("e")


class Counted(Script):
    """Notes how many rows each step has; any letter of a to d may follow."""

    def __init__(self, **options: Any) -> None:
        super().__init__("", **options)
        self.steps: list[int] = []

    def decode(self, token_ids: Sequence[int], caches: Sequence[list[int]]) -> NDArray[np.float32]:
        self.steps.append(len(caches))
        return super().decode(token_ids, caches)

    def _logits(self, place: int) -> NDArray[np.float32]:
        row = np.full(self.vocab_size, -np.inf, np.float32)
        row[ord("a") : ord("e")] = np.random.default_rng(place).normal(size=4)
        return row


def counted(**options: Any) -> tuple[LLM, Counted]:
    model = Counted()
    return LLM(model, tokenizer=Letters(), **options), model


def search(llm: LLM, width: int, tokens: int = 12, **sampling: Any) -> Completion:
    return llm.beam_search("a", BeamSearchParams(beam_width=width, max_tokens=tokens), sampling=of(sampling))[0]


def of(sampling: dict[str, Any]) -> SamplingParams | None:
    return SamplingParams(**sampling) if sampling else None


# Places.


def test_searches_and_samples_share_the_slots_and_none_is_exceeded() -> None:
    llm, model = counted(max_running=5)
    with llm:
        searches = [llm.beam_request("a", BeamSearchParams(beam_width=w, max_tokens=9)) for w in (2, 3, 2, 4)]
        texts = [llm.request("b", SamplingParams(temperature=0, max_tokens=7, n=n)) for n in (1, 3, 2)]
        mixed = [searches[0], texts[0], searches[1], texts[1], searches[2], searches[3], texts[2]]
        done = [running.wait(60) for running in llm.engine.submit_all(mixed, buffer=0)]
        assert llm.engine.progress().running == 0
    assert {one.finish_reason for one in done} == {"length"}
    assert max(model.steps) == 5
    alone, _ = counted()
    with alone:
        for request, one in zip(mixed, done, strict=True):
            if request.beams is not None:
                assert one.samples == search(alone, request.beams.beam_width, 9).samples


def test_a_search_wider_than_all_slots_runs_alone() -> None:
    llm, model = counted(max_running=3)
    with llm:
        wide = llm.beam_request("a", BeamSearchParams(beam_width=8, max_tokens=6))
        before, after = (llm.request("b", SamplingParams(temperature=0, max_tokens=4)) for _ in range(2))
        done = [running.wait(60) for running in llm.engine.submit_all([before, wide, after], buffer=0)]
    assert [len(one.samples) for one in done] == [1, 8, 1]
    assert {count for count in model.steps if count > 3} <= {4, 8}
    # The text before has ended when the search begins, and the one after begins when it has ended.
    assert model.steps[:3] == [1, 1, 1]
    assert model.steps[-3:] == [1, 1, 1]


def test_an_aborted_search_gives_the_text_of_its_best_beam() -> None:
    llm, _ = counted()
    with llm:
        running = llm.engine.submit(llm.beam_request("a", BeamSearchParams(beam_width=2, max_tokens=900)))
        while not running.request.completion().timings.first_token_s:
            llm.engine.call(lambda: None)
        running.abort()
        done = running.wait(60)
        assert llm.engine.progress().aborted == 1
    (sample,) = done.samples
    assert (sample.finish_reason, 0 < len(sample.token_ids) < 900, sample.text != "") == ("abort", True, True)
    assert sample.score == pytest.approx(sample.cumulative_logprob / len(sample.token_ids), abs=1e-5)


def test_a_waiting_search_can_be_aborted() -> None:
    llm, _ = counted(max_running=1)
    with llm:
        text = llm.engine.submit(llm.request("b", SamplingParams(temperature=0, max_tokens=900)))
        waiting = llm.engine.submit(llm.beam_request("a", BeamSearchParams(beam_width=1, max_tokens=9)))
        waiting.abort()
        assert [(s.text, s.finish_reason) for s in waiting.wait(60).samples] == [("", "abort")]
        text.abort()


# Empty texts.


class Ends(Counted):
    """Likes to end at once."""

    def _logits(self, place: int) -> NDArray[np.float32]:
        row = super()._logits(place)
        row[EOS] = 9.0
        return row


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, {"logprobs": 2}, {"semantics": "hf"}], ids=repr)
def test_a_best_text_that_is_empty_is_a_text(width: int, options: dict[str, Any]) -> None:
    with LLM(Ends(), tokenizer=Letters(), generation_config={"eos_token_id": EOS}) as llm:
        found = search(llm, width, **options)
    first = found.samples[0]
    assert (first.text, first.token_ids, first.finish_reason) == ("", (EOS,), "stop")
    assert first.stop is not None
    assert first.stop.kind == "eos"
    assert len(found.samples) == width
    assert found.text == ""


@pytest.mark.parametrize("stream", [False, True])
def test_an_empty_text_of_a_real_model_is_the_best(stream: bool) -> None:
    with LLM(wrap_module(build()), tokenizer=Numbers(), generation_config={"eos_token_id": 2}) as llm:
        sampling = SamplingParams(logit_bias={2: 60.0})
        request = llm.beam_request([5, 6, 7], BeamSearchParams(beam_width=3, max_tokens=8), sampling=sampling)
        running = llm.engine.submit(request)
        completion = list(running)[-1].completion if stream else running.wait(60)
    assert completion is not None
    assert (completion.text, completion.token_ids, completion.finish_reason) == ("", (2,), "stop")


def test_a_constraint_that_takes_the_empty_text_may_end_at_once() -> None:
    with LLM("tiny") as llm:
        sampling = SamplingParams(guided_decoding=GuidedDecodingParams(regex="(no)?"))
        found = llm.beam_search("Once", BeamSearchParams(beam_width=4, max_tokens=5), sampling=sampling)[0]
    texts = {sample.text for sample in found.samples}
    assert texts <= {"", "no"}
    assert {sample.grammar_complete for sample in found.samples} == {True}
    assert {sample.finish_reason for sample in found.samples} == {"stop"}


# Constraints that are to be closed before the limit.

CLOSED = SamplingParams(guided_decoding=GuidedDecodingParams(regex="[a-z ]{5,200}[0-9]{2}"), close_grammar=True)


Texts = list[tuple[Any, ...]]


def closed(width: int = 12, tokens: int = 9) -> Texts:
    return closed_at(("Once upon",), width, tokens)[0][0]


def closed_at(
    prompts: Sequence[str], width: int = 12, tokens: int = 9, sampling: SamplingParams = CLOSED
) -> tuple[list[Texts], int]:
    with LLM("tiny") as llm:
        params = BeamSearchParams(beam_width=width, max_tokens=tokens, num_return_sequences=width)
        found = llm.beam_search([*prompts], params, sampling=sampling)
        steps = llm.engine.progress().steps
    return [[(each.text, each.cumulative_logprob, each.logprobs) for each in one.samples] for one in found], steps


@pytest.mark.parametrize("prompts", [("Once upon",), ("Once upon", "The dog", "A")])
def test_searches_that_have_time_for_one_token_in_a_step_find_the_same_texts(
    prompts: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = CLOSED.replace(logprobs=2)
    expected, _ = closed_at(prompts, sampling=sampling)
    assert [len(each) for each in expected] == [12] * len(prompts)
    texts = [text for each in expected for text, *_ in each]
    assert all(len(entries) == 9 for each in expected for *_, entries in each)
    assert all(re.fullmatch("[a-z ]{5,200}[0-9]{2}", text.strip("\n")) for text in texts)
    made: list[StepTime] = []

    def one() -> StepTime:
        made.append(StepTime(-1.0))
        return made[-1]

    monkeypatch.setattr(scheduler, "StepTime", one)
    monkeypatch.setattr(beams, "ENTRIES_AT_ONCE", 5)
    found, steps = closed_at(prompts, sampling=sampling)
    assert found == expected
    # However many searches there are, a step has its time once.
    assert 9 * 12 * len(prompts) < len(made) <= steps


def test_tokens_after_which_nothing_can_be_closed_are_left_out_as_if_all_had_been_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = closed()

    def eager(sample: GrowingSample, token_ids: Any, logprobs: Any, status: Status) -> scorer.NextTokens:
        found = listed(sample, token_ids, logprobs, status)
        kept = np.array([sample.can_close_after(token) for token in found.token_ids.tolist()], np.bool_)
        ids, logprobs = found.token_ids[kept], found.logprobs[kept]
        return scorer.NextTokens(ids, logprobs, status, np.ones(ids.size, np.int8))

    listed = scorer.next_tokens
    monkeypatch.setattr(scorer, "next_tokens", eager)
    assert closed() == expected


def test_few_tokens_are_asked_whether_the_constraint_can_be_closed_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    before = GrowingSample.can_close_after

    def counting(sample: GrowingSample, token_id: int) -> bool:
        nonlocal asked
        asked += 1
        return before(sample, token_id)

    monkeypatch.setattr(GrowingSample, "can_close_after", counting)
    closed(width=16, tokens=30)
    # Each beam lists 32 tokens; asked are the best of all and the best of each beam, and more where the end is near.
    assert 30 * 16 < asked < 30 * 16 * 32 / 4


def test_more_candidates_are_made_where_many_hypotheses_end(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    before = scorer.Scorer.candidates

    def all_at_once(self: scorer.Scorer, parents: Any, most: int, checks: Any) -> Any:
        asked.append(most)
        return before(self, parents, self.limit if wants_all else most, checks)

    class Ending(Counted):
        """The letters that do not end a text are the unlikeliest."""

        def _logits(self, place: int) -> NDArray[np.float32]:
            row = super()._logits(place)
            row[ord("a")], row[ord("d")] = -9.0, -9.5
            return row

    def found() -> list[tuple[str, float | None]]:
        llm = LLM(Ending(), tokenizer=Letters())
        stops = SamplingParams(stop_token_ids=list(b"bc"))
        params = BeamSearchParams(beam_width=3, max_tokens=6, num_return_sequences=3, length_penalty=0.0)
        with llm:
            texts = llm.beam_search("a", params, sampling=stops)[0]
        return [(each.text, each.cumulative_logprob) for each in texts.samples]

    monkeypatch.setattr(scorer.Scorer, "candidates", all_at_once)
    wants_all = True
    expected = found()
    wants_all, asked = False, []
    assert found() == expected
    assert {*asked} == {2 * 3, 8 * 3}


def test_where_others_wait_a_search_decodes_in_the_step_after_it_became_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> tuple[Completion, int, list[int]]:
        llm, model = counted()
        with llm:
            completion = search(llm, 3, 6)
        return completion, llm.engine.progress().steps, model.steps

    alone, steps, rows = found()
    monkeypatch.setattr(StepRows, "beams_of", lambda self, group: 100)
    shared, more_steps, same_rows = found()
    assert shared.samples == alone.samples
    assert same_rows == rows
    # Each pass over the beams has a step of its own.
    assert more_steps == steps + len(rows)


def test_a_step_has_time_for_one_piece_of_work_at_least_and_then_until_its_end() -> None:
    now = iter([10.0, 10.5, 10.6])
    step = StepTime(0.5, clock=lambda: next(now))
    assert [step.is_left() for _ in range(3)] == [True, True, False]
