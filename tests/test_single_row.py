"""A sample that has the engine to itself takes steps of its own: with the tokens, texts and counts of steps of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from random_rows import EDGES, SHAPES, random_case
from small_models import Script
from small_tokenizers import Letters

from tirage import LLM, Completion, SamplingParams
from tirage.backends.numpy import dispatch, kernels
from tirage.backends.numpy.single_row import SingleDraw, single_draw
from tirage.draw import Status
from tirage.engine import TokenRecord, single_row
from tirage.engine.single_row import SingleRow
from tirage.history import History
from tirage.sampling_batch import SamplingBatch, SamplingRow
from tirage.sampling_metadata import SamplingMetadata
from tirage.token_records import TokenRecords

NEW = 24
V = 300
PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "plain": {"temperature": 1.0},
    "top-p": {"temperature": 0.8, "top_p": 0.9},
    "top-k": {"temperature": 1.5, "top_k": 7},
    "min-p and XTC": {"min_p": 0.01, "xtc_probability": 0.5, "xtc_threshold": 0.1},
    "bias": {"logit_bias": {5: 4.0, 7: -100.0}, "temperature": 0.7},
    "stop string": {"stop": ["e"], "temperature": 1.2},
    "min tokens": {"stop_token_ids": [*range(60, 120)], "min_tokens": 9},
    "ids alone": {"detokenize": False},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.2},
    "logprobs": {"logprobs": 2},
    "allowed": {"allowed_token_ids": [*range(40, 90)]},
    "records": {"return_kept": True, "top_p": 0.9},
    "records of edits": {"return_kept": True, "logit_bias": {5: 4.0, 7: -100.0}, "temperature": 0.7, "min_p": 0.02},
    "records that are too wide": {"return_kept": True, "max_kept_ids": 12, "temperature": 0.6, "top_p": 0.9},
    "records of greedy": {"return_kept": True, "temperature": 0.0},
}
SINGLE = (
    "greedy", "plain", "top-p", "top-k", "min-p and XTC", "bias", "stop string", "ids alone", "records",
    "records of edits", "records that are too wide", "records of greedy",
)  # fmt: skip


class Noise:
    """Logits by the tokens so far, from a hash; `bad` is said in place of those after so many tokens."""

    vocab_size, max_length = V, 1000

    def __init__(self, *, bad: dict[int, Any] | None = None) -> None:
        self.bad = {} if bad is None else bad

    def prefill(self, token_ids: Sequence[int]) -> tuple[NDArray[np.float32], list[int]]:
        return self._logits([*token_ids]), [*token_ids]

    def decode(self, token_ids: Sequence[int], caches: Sequence[list[int]]) -> NDArray[np.float32]:
        for token_id, cache in zip(token_ids, caches, strict=True):
            cache.append(token_id)
        return np.stack([self._logits(cache) for cache in caches])

    def fork(self, cache: list[int]) -> list[int]:
        return [*cache]

    def score(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        return np.stack([self._logits([*token_ids[: end + 1]]) for end in range(len(token_ids))])

    def _logits(self, ids: list[int]) -> NDArray[np.float32]:
        found = self.bad.get(len(ids))
        if isinstance(found, BaseException):
            raise found
        drawn = 3 * np.random.default_rng(ids[-4:]).standard_normal(V).astype(np.float32)
        return drawn if found is None else np.full(V, found, np.float32)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    assert kernels.wait()


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What each step of a single row has returned."""
    found: list[bool] = []
    own = SingleRow.step

    def step(self: SingleRow) -> bool:
        found.append(own(self))
        return found[-1]

    monkeypatch.setattr(SingleRow, "step", step)
    return found


def said(done: Completion) -> Any:
    """What an answer says, without its times; records compare by what they hold."""
    records = [[[*map(float, numbers_of(each))] for each in sample.records or ()] for sample in done.samples]
    return [replace(each, hidden_states=None, records=None) for each in done.samples], records, done.usage, done.seed


def numbers_of(record: TokenRecord) -> tuple[float, ...]:
    """All that a record holds."""
    return (
        *record.kept_ids, record.kept_logmass, record.raw_logprob, record.processed_logprob, record.sampled_logprob,
    )  # fmt: skip


def answer(model: Any, params: SamplingParams, prompt: Sequence[int] = (1, 2, 3)) -> Completion:
    with LLM(model, tokenizer=Letters()) as llm:
        return llm.generate([list(prompt)], params)[0]


def of_all_rows(monkeypatch: pytest.MonkeyPatch, model: Any, params: SamplingParams) -> Completion:
    with monkeypatch.context() as patch:
        patch.setattr(SingleRow, "of", lambda *_, **__: None)
        return answer(model, params)


# The draw.


def one_of(rows: SamplingMetadata, r: int) -> SamplingMetadata:
    """Row `r` alone, without a view."""
    each = {name: getattr(rows, name)[r : r + 1] for name in ("programs", "seeds", "steps", "samples", "resample")}
    starts = {name: getattr(rows, name)[r : r + 2] for name in ("count_start", "protected_start")}
    masks = {name: getattr(rows, name)[r : r + 1] for name in ("masks", "checks") if getattr(rows, name).size}
    none = {"views": np.zeros(1, np.int8), "top_n": np.zeros(1, np.int32), "asked_start": np.zeros(2, np.int64)}
    given = {name: np.ascontiguousarray(array) for name, array in (each | starts | masks | none).items()}
    return replace(rows, **given, asked_ids=np.zeros(0, np.int32), memo={})


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("v", [1, 33, 257, 1000, 5000])
def test_one_row_is_drawn_as_by_the_entry_for_many(v: int) -> None:
    statuses = set()
    for seed in range(6):
        logits, rows = random_case(seed, v)
        for r in np.flatnonzero(kernels.supports(rows)).tolist():
            row, x = one_of(rows, r), np.ascontiguousarray(logits[r : r + 1])
            for limit in (0, max(v // 9, 1), v):
                records = TokenRecords.of(np.array([limit])) if limit else None
                statuses |= compared(replace(row, records=records, memo={}), x)
    assert statuses >= {Status.ok, Status.non_finite_logits} | ({Status.kept_too_wide} if v > 1 else set())


def compared(row: SamplingMetadata, x: NDArray[np.float32]) -> set[int]:
    """The statuses of draws of one row by both entries, which agree in all else; none for one that kernels cannot."""
    if not kernels.supports(row)[0]:
        return set()
    draw, room = kernels.single_draw(row, x.shape[1])
    statuses = set()
    for step in (int(row.steps[0]), 77):
        records = None if row.records is None else row.records.anew()
        wanted = kernels.draw(x, replace(row, steps=np.array([step]), records=records, memo={}), threads=1)
        token, logprob = draw(x, step)
        assert token == wanted.token_ids[0]
        statuses.add(int(wanted.status[0]))
        if wanted.status[0]:
            continue
        assert logprob == float(wanted.sampled_logprobs[0])
        if records is not None:
            assert room.single.kept.tolist() == records.kept[0].tolist()
            assert room.single[1:] == (*map(float, (records.logmass[0], records.raw[0], records.processed[0])),)
    return statuses


@pytest.mark.parametrize("shape", ["ties", "subnormal", "signed zeros", "nan", "infinity", "nothing", "limits"])
def test_greedy_rows_are_drawn_as_by_dispatch_or_left_to_it(shape: str) -> None:
    rng, drawn = np.random.default_rng(3), 0
    for _ in range(50):
        with np.errstate(all="ignore"):
            row = (SHAPES | EDGES)[shape](rng.standard_normal(100).astype(np.float32), rng).astype(np.float32)
        state = SamplingRow.of(SamplingParams(temperature=0), History.of((), (), vocab_size=100))
        batch = SamplingBatch.of([state], 100)
        single = single_draw(batch)
        assert single is not None
        token, logprob = single.draw(row[None], 0)
        wanted = dispatch.draw(row[None], batch, None)
        drawn += token >= 0
        assert token in (-1, wanted.token_ids[0])
        assert logprob == 0.0
    assert drawn == 0 if shape in ("nan", "infinity", "nothing", "signed zeros") else drawn > 10


# The steps.


@pytest.mark.parametrize("name", PARAMS)
def test_an_answer_is_that_of_steps_of_all_rows(name: str, monkeypatch: pytest.MonkeyPatch, steps: list[bool]) -> None:
    for seed in range(2):
        params = SamplingParams(**({"seed": seed, "max_tokens": NEW, "ignore_eos": True} | PARAMS[name]))
        wanted = of_all_rows(monkeypatch, Noise(), params)
        assert steps == []
        assert said(answer(Noise(), params)) == said(wanted)
        assert (len(steps) > 0) == (name in SINGLE) or name == "min tokens"
        steps.clear()


def test_a_stream_has_the_deltas_of_steps_of_all_rows(monkeypatch: pytest.MonkeyPatch, steps: list[bool]) -> None:
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    found = []
    for patched in (False, True):
        with monkeypatch.context() as patch, LLM(Script("some words {"), tokenizer=Letters()) as llm:
            if patched:
                patch.setattr(SingleRow, "of", lambda *_, **__: None)
            deltas = list(llm.stream("x", params))
            found.append([(each.text, each.token_ids, each.finish_reason, each.stop) for each in deltas])
    assert found[0] == found[1]
    assert "".join(text for text, *_ in found[0]) == "some words "
    assert steps.count(True) > 5
    # The last of them found the NaN, which a step of all rows then told.
    assert steps[-1] is False


def test_requests_that_come_and_go_change_nothing(steps: list[bool]) -> None:
    params = [SamplingParams(seed=at, max_tokens=NEW + 9 * at, ignore_eos=True) for at in range(3)]
    alone = [answer(Noise(), each).token_ids for each in params]
    with LLM(Noise(), tokenizer=Letters()) as llm:
        steps.clear()
        streams = []
        for each in params:
            streams.append(iter(llm.stream([1, 2, 3], each)))
            next(streams[-1])
        found = [next(iter(stream)) for stream in reversed(streams)]
        assert found
        texts = [llm.generate([[1, 2, 3]], each)[0].token_ids for each in reversed(params)]
    assert texts == alone[::-1]


def test_the_meter_counts_as_steps_of_all_rows_do(monkeypatch: pytest.MonkeyPatch, steps: list[bool]) -> None:
    counts = []
    for patched in (False, True):
        with monkeypatch.context() as patch, LLM(Noise(), tokenizer=Letters()) as llm:
            if patched:
                patch.setattr(SingleRow, "of", lambda *_, **__: None)
            llm.generate([[1, 2, 3]], SamplingParams(seed=1, max_tokens=NEW, ignore_eos=True))
        # A step is counted once it has ended, which what it passes on does not wait for.
        now = llm.engine.progress()
        counts.append((now.steps, now.output_tokens, sum(now.between.counts), now.completed, now.running))
        assert now.between.total_s > 0
        assert min(now.sample_s, now.text_s, now.decode_s) > 0
    assert counts[0] == counts[1] == (NEW, NEW, NEW - 1, 1, 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, RuntimeError("no"), KeyboardInterrupt()])
def test_what_fails_ends_the_sample_as_in_a_step_of_all_rows(
    bad: Any, monkeypatch: pytest.MonkeyPatch, steps: list[bool]
) -> None:
    params = SamplingParams(seed=4, max_tokens=NEW, ignore_eos=True, top_p=0.9)
    wanted = of_all_rows(monkeypatch, Noise(bad={12: bad}), params)
    found = answer(Noise(bad={12: bad}), params)
    assert said(found) == said(wanted)
    assert (found.finish_reason, len(found.token_ids)) == ("error", 9)
    assert steps.count(True) > 5


def test_a_draw_that_fails_is_repeated(monkeypatch: pytest.MonkeyPatch, steps: list[bool]) -> None:
    params = SamplingParams(seed=4, max_tokens=NEW, ignore_eos=True)
    wanted = answer(Noise(), params)
    steps.clear()

    def fails(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(single_row, "single_draw", lambda _: SingleDraw(fails))
    assert said(answer(Noise(), params)) == said(wanted)
    assert steps == [False] * (NEW - 1)


def test_a_text_that_fails_ends_its_sample(monkeypatch: pytest.MonkeyPatch, steps: list[bool]) -> None:
    class Spoiled(Letters):
        def decode(self, ids: Any) -> str:
            if ord("g") in ids:
                raise ValueError("no text")
            return super().decode(ids)

    params, found = SamplingParams(temperature=0, seed=1, max_tokens=NEW, ignore_eos=True), []
    for patched in (False, True):
        with monkeypatch.context() as patch, LLM(Script("abcdefgh"), tokenizer=Spoiled()) as llm:
            if patched:
                patch.setattr(SingleRow, "of", lambda *_, **__: None)
            found.append(said(llm.generate("x", params)[0]))
    assert found[0] == found[1]
    assert steps.count(True) >= 5
    assert found[0][0][0].stop.kind == "text_failed"


def test_before_the_kernels_are_ready_steps_are_those_of_all_rows(
    monkeypatch: pytest.MonkeyPatch, steps: list[bool]
) -> None:
    params = SamplingParams(seed=4, max_tokens=NEW, ignore_eos=True, top_p=0.9)
    wanted = answer(Noise(), params)
    steps.clear()
    monkeypatch.setattr(kernels, "single_ready", lambda: False)
    assert said(answer(Noise(), params)) == said(wanted)
    assert steps == []
