"""A model that schedules its requests itself gives what the same model gives where tirage schedules them."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest

import tirage
from tirage import LLM, BeamSearchParams, Completion, GuidedDecodingParams, ParamsError, Prompt, SamplingParams
from tirage.models import Inputs, RowOutput

PROMPTS = ["Once upon a time", "The cat", "There was a little dog who liked to run in the garden with"]


@dataclass
class Row:
    """A request of the fake engine: its tokens, how many of them are computed, and the most it may have."""

    ids: list[int]
    limit: int
    prompt: int
    computed: int = 0
    scores: Any = None


@dataclass
class FakeEngine:
    """A `BatchingModel` over the bundled model, with an engine's moods.

    It reads prompts in chunks, steps some rows and not others in any order, and takes a row's cache away. `spoil` may
    change what is said of a row.
    """

    seed: int = 0
    most: int = 0
    rows: dict[int, Row] = field(default_factory=dict)
    spoil: Callable[[RowOutput], RowOutput] = lambda output: output
    on_step: Callable[[], None] = lambda: None
    media_marks: Mapping[str, str] = field(default_factory=dict)
    sampling_rate: int | None = None

    def __post_init__(self) -> None:
        self.model, self.random = bundled().model, random.Random(self.seed)
        self.vocab_size, self.max_length = self.model.vocab_size, self.model.max_length

    def check(self, inputs: Inputs) -> None:
        if inputs.hidden_states:
            raise ParamsError("return_hidden_states must not be given")

    def add(self, key: int, inputs: Inputs, *, limit: int, prompt_logprobs: int | None = None) -> None:
        if 13 in inputs.token_ids[-1:]:
            raise tirage.ModelError("thirteen is refused")
        scores = None if prompt_logprobs is None else self._scores(inputs.token_ids, prompt_logprobs)
        self.rows[key] = Row(list(inputs.token_ids), limit, inputs.length, scores=scores)
        self.most = max(self.most, len(self.rows))

    def remove(self, key: int) -> None:
        self.rows.pop(key, None)

    def step(self, draw: Callable[[Sequence[int], Any], Sequence[int]]) -> list[RowOutput]:
        self.on_step()
        chosen = self.random.sample(sorted(self.rows), self.random.randint(1, len(self.rows)))
        ready = [key for key in chosen if self._computes(self.rows[key])]
        if not ready:
            return []
        logits = np.stack([self._logits(self.rows[key]) for key in ready])
        return [self.spoil(self._output(key, token)) for key, token in zip(ready, draw(ready, logits), strict=True)]

    def forget(self) -> None:
        pass

    def close(self) -> None:
        self.rows.clear()

    def _computes(self, row: Row) -> bool:
        """Computes some more of a row's tokens, or takes them all away; whether none is left."""
        row.computed = 0 if self.random.random() < 0.1 else min(row.computed + self.random.randint(1, 9), len(row.ids))
        return row.computed == len(row.ids)

    def _logits(self, row: Row) -> Any:
        logits, cache = bundled().model.prefill(row.ids[: row.prompt])
        for token in row.ids[row.prompt :]:
            logits = bundled().model.decode([token], [cache])[0]
        return logits

    def _output(self, key: int, token: int) -> RowOutput:
        row = self.rows[key]
        row.ids.append(max(token, 0))
        scores, row.scores = row.scores or (), None
        ended = "length" if len(row.ids) - row.prompt == row.limit else None
        return RowOutput(key=key, token_id=row.ids[-1], prompt_logprobs=scores, ended=ended)

    def _scores(self, ids: Sequence[int], count: int) -> list[Any]:
        entries = (
            bundled().generate([list(ids)], SamplingParams(max_tokens=1, prompt_logprobs=count))[0].prompt_logprobs
        )
        assert entries is not None
        return [
            e and [(e.token_id, e.logprob, e.rank), *((t.token_id, t.logprob, t.rank) for t in e.top)] for e in entries
        ]


@cache
def bundled() -> LLM:
    return LLM("tiny")


def opened(engine: FakeEngine, **options: Any) -> LLM:
    own = bundled()
    return LLM(engine, tokenizer=own.tokenizer, generation_config=own.generation_config, **options)  # type: ignore[arg-type]


def content(completion: Completion) -> Any:
    """What two completions share that differ in time alone."""
    return completion.samples, completion.prompt_logprobs, completion.seed, completion.usage.completion_tokens


REQUESTS = {
    "greedy": SamplingParams(seed=2, temperature=0.0, max_tokens=12),
    "seeded": SamplingParams(seed=3, top_p=0.9, max_tokens=12, repetition_penalty=1.2),
    "samples": SamplingParams(seed=4, n=3, max_tokens=6, logprobs=2),
    "best of": SamplingParams(seed=4, n=1, best_of=3, max_tokens=6),
    "stops": SamplingParams(seed=5, max_tokens=20, stop=["e"], min_tokens=3, include_stop_str_in_output=True),
    "given": SamplingParams(seed=6, max_tokens=5, logprobs=0, logprob_token_ids=(3, 4), logprobs_mode="processed"),
    "prompt": SamplingParams(seed=6, max_tokens=3, prompt_logprobs=2),
    "regex": SamplingParams(seed=7, max_tokens=12, guided_decoding=GuidedDecodingParams(regex="[a-c]{2,9}x")),
    "closed": SamplingParams(
        seed=8, max_tokens=9, close_grammar=True, guided_decoding=GuidedDecodingParams(regex="(ab|ba)+!")
    ),
    "words": SamplingParams(seed=9, max_tokens=12, bad_words=["the", "a"], no_repeat_ngram_size=2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_gets_what_it_gets_where_tirage_schedules(name: str) -> None:
    expected = bundled().generate(PROMPTS, REQUESTS[name])
    with opened(FakeEngine(seed=1)) as llm:
        assert [*map(content, llm.generate(PROMPTS, REQUESTS[name]))] == [*map(content, expected)]


@pytest.mark.slow
def test_all_requests_together_get_what_each_gets_alone() -> None:
    prompts, params = PROMPTS[:1] * len(REQUESTS), list(REQUESTS.values())
    engine = FakeEngine(seed=2)
    with opened(engine, max_running=5) as llm:
        assert [*map(content, llm.generate(prompts, params))] == [*map(content, bundled().generate(prompts, params))]
        progress = llm.engine.progress()
    assert engine.most == 5
    assert not engine.rows
    assert (progress.completed, progress.waiting, progress.reading, progress.running) == (len(params), 0, 0, 0)
    assert progress.output_tokens > progress.started == len(params)


def test_a_stream_is_the_whole_in_parts() -> None:
    with opened(FakeEngine(seed=3)) as llm:
        deltas = list(llm.stream(PROMPTS[0], REQUESTS["samples"].replace(output_kind="DELTA")))
    whole = bundled().generate(PROMPTS[0], REQUESTS["samples"])[0]
    assert ["".join(d.text for d in deltas if d.index == i) for i in range(3)] == [each.text for each in whole.samples]
    assert deltas[-1].completion is not None


@pytest.mark.slow
def test_the_logits_of_explain_come_from_the_engine_while_others_run() -> None:
    with opened(FakeEngine(seed=4)) as llm:
        stream = llm.engine.submit(llm.request(PROMPTS[0], REQUESTS["seeded"]))
        explanation = llm.explain(PROMPTS[1], SamplingParams(seed=1, top_p=0.5))
        assert content(stream.wait()) == content(bundled().generate(PROMPTS[0], REQUESTS["seeded"])[0])
    assert explanation.to_dict() == bundled().explain(PROMPTS[1], SamplingParams(seed=1, top_p=0.5)).to_dict()


def test_an_aborted_request_leaves_the_engine() -> None:
    engine = FakeEngine(seed=5)
    with opened(engine, max_running=1) as llm:
        running, waiting = (llm.engine.submit(llm.request(PROMPTS[0], SamplingParams(max_tokens=400))) for _ in "ab")
        next(iter(running))
        waiting.abort()
        assert running.wait().finish_reason == waiting.wait().finish_reason == "abort"
        assert not engine.rows
        assert llm.generate("a", SamplingParams(max_tokens=2, temperature=0.0))[0].finish_reason == "length"


def test_a_prompt_alone_is_scored_without_a_sample() -> None:
    params = SamplingParams(max_tokens=0, prompt_logprobs=1, seed=1)
    with opened(FakeEngine(seed=6)) as llm:
        assert content(llm.generate(PROMPTS[0], params)[0]) == content(bundled().generate(PROMPTS[0], params)[0])
        assert llm.generate(PROMPTS[0], SamplingParams(max_tokens=0, seed=1))[0].token_ids == ()


def only_first(change: Callable[[RowOutput], RowOutput]) -> Callable[[RowOutput], RowOutput]:
    return lambda output: change(output) if output.key == 0 else output


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda o: RowOutput(key=o.key, token_id=(o.token_id or 0) + 1), "went on with token"),
        (lambda o: RowOutput(key=o.key, token_id=o.token_id, ended="error"), "ended the request: error"),
        (lambda o: RowOutput(key=-1), "gave no token"),
    ],
)
def test_an_engine_that_does_otherwise_ends_the_request_alone(change: Any, says: str) -> None:
    with opened(FakeEngine(seed=7, spoil=only_first(change))) as llm:
        first, second = llm.generate(PROMPTS[:2], REQUESTS["greedy"])
    assert first.finish_reason == "error"
    assert first.stop is not None
    assert says in (first.stop.matched_text or "")
    assert second.text == bundled().generate(PROMPTS[1], REQUESTS["greedy"])[0].text


def test_a_request_that_the_engine_refuses_ends_alone() -> None:
    with opened(FakeEngine()) as llm:
        bad, good = llm.generate([[5, 13], [5, 7]], SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True))
    assert (bad.finish_reason, good.finish_reason) == ("error", "length")


def test_a_step_that_fails_ends_what_runs_and_no_more() -> None:
    engine = FakeEngine(seed=8)

    def fail() -> None:
        engine.on_step = lambda: None
        raise RuntimeError("out of memory")

    engine.on_step = fail
    with opened(engine) as llm:
        assert llm.generate(PROMPTS[0], REQUESTS["greedy"])[0].finish_reason == "error"
        assert not engine.rows
        assert llm.generate(PROMPTS[0], REQUESTS["greedy"])[0].finish_reason == "length"


@pytest.mark.slow
def test_a_draw_that_fails_ends_its_own_request() -> None:
    tirage.register_processor("fails", lambda logits, args: logits[:, :0], replace=True)
    with opened(FakeEngine(seed=9)) as llm:
        params = [SamplingParams(logits_processors=(("fails", {}),)), REQUESTS["greedy"]]
        failed, whole = llm.generate(PROMPTS[:2], params)
    assert failed.stop is not None
    assert failed.stop.kind == "processor_failed"
    assert whole.text == bundled().generate(PROMPTS[1], REQUESTS["greedy"])[0].text


class Held:
    """A processor that forbids token 5, after it has waited until it is let go."""

    def __init__(self) -> None:
        self.entered, self.let_go = threading.Event(), threading.Event()

    def __call__(self, logits: np.ndarray, args: Sequence[dict[str, Any]]) -> np.ndarray:
        self.entered.set()
        self.let_go.wait()
        logits[:, 5] = -np.inf
        return logits


def asking() -> SamplingParams:
    """Parameters of a request whose two samples name it."""
    return SamplingParams(seed=4, n=2, max_tokens=6, ignore_eos=True, logits_processors=(("held", {}),))


@pytest.fixture
def slow_one() -> Iterator[Held]:
    processor = Held()
    tirage.register_processor("held", processor, replace=True)
    yield processor
    processor.let_go.set()


def drawn(completion: Completion) -> Any:
    """The tokens of all samples, which end at their limit."""
    assert {sample.finish_reason for sample in completion.samples} == {"length"}
    return [sample.token_ids for sample in completion.samples]


def test_others_go_on_while_a_processor_has_not_returned(slow_one: Held) -> None:
    engine = FakeEngine(seed=10)
    with opened(engine, processor_timeout=3600.0) as llm:
        waiting = llm.engine.submit(llm.request(PROMPTS[0], asking()))
        slow_one.entered.wait()
        neighbour = llm.generate(PROMPTS[1], REQUESTS["seeded"])[0]
        assert not waiting.finished
        # They have left the engine, and count as running all the same.
        assert not engine.rows
        assert llm.engine.progress().running + llm.engine.progress().reading == 2
        slow_one.let_go.set()
        found = waiting.wait()
    assert content(neighbour) == content(bundled().generate(PROMPTS[1], REQUESTS["seeded"])[0])
    assert drawn(found) == drawn(bundled().generate(PROMPTS[0], asking())[0])


def test_a_processor_that_returns_at_once_or_later_draws_what_it_draws_without_a_limit(slow_one: Held) -> None:
    slow_one.let_go.set()
    expected = [drawn(each) for each in bundled().generate(PROMPTS, asking())]
    for timeout in (None, 3600.0):
        engine = FakeEngine(seed=11)
        with opened(engine, processor_timeout=timeout, max_running=4) as llm:
            assert [drawn(each) for each in llm.generate(PROMPTS, asking())] == expected
        assert engine.most <= 4
        assert not engine.rows


def test_a_processor_that_is_late_ends_its_own_request(slow_one: Held) -> None:
    engine = FakeEngine(seed=12)
    with opened(engine, processor_timeout=0.2) as llm:
        late, whole = llm.generate(PROMPTS[:2], [asking(), REQUESTS["greedy"]])
        assert not llm.engine.progress().busy
    assert [sample.stop.kind for sample in late.samples if sample.stop] == ["processor_failed"] * 2
    assert "'held' did not return within 0.2 s" in (late.stop.matched_text or "" if late.stop else "")
    assert whole.text == bundled().generate(PROMPTS[1], REQUESTS["greedy"])[0].text
    assert not engine.rows


def test_a_request_is_aborted_while_its_processor_has_not_returned(slow_one: Held) -> None:
    engine = FakeEngine(seed=13)
    with opened(engine, processor_timeout=3600.0) as llm:
        waiting = llm.engine.submit(llm.request(PROMPTS[0], asking()))
        slow_one.entered.wait()
        waiting.abort()
        assert {sample.finish_reason for sample in waiting.wait().samples} == {"abort"}
        slow_one.let_go.set()
        assert drawn(llm.generate(PROMPTS[0], asking())[0]) == drawn(bundled().generate(PROMPTS[0], asking())[0])
    assert not engine.rows


def test_a_processor_that_fails_beside_the_step_ends_its_own_sample() -> None:
    tirage.register_processor("fails", lambda logits, args: logits[:, :0], replace=True)
    with opened(FakeEngine(seed=14), processor_timeout=3600.0) as llm:
        params = [SamplingParams(logits_processors=(("fails", {}),)), REQUESTS["greedy"]]
        failed, whole = llm.generate(PROMPTS[:2], params)
    assert failed.stop is not None
    assert failed.stop.kind == "processor_failed"
    assert whole.text == bundled().generate(PROMPTS[1], REQUESTS["greedy"])[0].text


def test_what_needs_caches_of_our_own_is_refused_by_name() -> None:
    with opened(FakeEngine()) as llm:
        with pytest.raises(ParamsError, match="beam search"):
            llm.beam_search(PROMPTS[0], BeamSearchParams(beam_width=2, max_tokens=4))
        with pytest.raises(ParamsError, match="logprob_token_ids must be empty with prompt_logprobs"):
            llm.generate(PROMPTS[0], SamplingParams(prompt_logprobs=1, logprob_token_ids=(1,)))
        with pytest.raises(ParamsError, match="return_hidden_states"):
            llm.generate(PROMPTS[0], return_hidden_states=True)


def test_a_prompt_object_keeps_its_salt_and_ids() -> None:
    with opened(FakeEngine()) as llm:
        found = llm.generate(Prompt(token_ids=[1, 5, 9], salt="tenant"), REQUESTS["greedy"])[0]
    assert found.prompt_token_ids == (1, 5, 9)
