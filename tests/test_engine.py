"""The engine: requests come and go at any moment, long prompts take turns, and a failure stays one request's own."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from small_llama import CONFIG, random_tensors
from small_models import Script
from small_tokenizers import Letters

import tirage
from tirage import LLM, ParamsError, RequestOutputKind, SamplingParams
from tirage.engine import Engine, EngineRequest, SchedulerConfig, SequenceGroup
from tirage.engine.plain_model import CHUNK, PlainModel, as_step_model
from tirage.engine.scheduler import Scheduler
from tirage.models import Inputs
from tirage.models.checkpoint import build_llama
from tirage.models.config import parse_config
from tirage.text import Stop, wrap_tokenizer

GREEDY = SamplingParams(temperature=0, max_tokens=20)
TOKENIZER = wrap_tokenizer(Letters())


class Pieces(Script):
    """A script that is read piece by piece; `log` holds the pieces read and the rows of every step."""

    def __init__(self, text: str, **options: Any) -> None:
        super().__init__(text, **options)
        self.log: list[tuple[str, int]] = []

    def extend(self, token_ids: Sequence[int], cache: list[int] | None) -> tuple[NDArray[np.float32], list[int]]:
        self.log.append((chr(token_ids[0]), len(token_ids)))
        return self._logits(0), [0]

    def decode(self, token_ids: Sequence[int], caches: Sequence[list[int]]) -> NDArray[np.float32]:
        self.log.append(("step", len(caches)))
        return super().decode(token_ids, caches)


def group_of(text: str, params: SamplingParams = GREEDY, heard: list[Any] | None = None) -> SequenceGroup:
    ids = TOKENIZER.encode(text)
    request = EngineRequest(params, TOKENIZER, ids, vocab_size=Script.vocab_size, max_length=100_000, prompt=text)
    return SequenceGroup(request, (heard if heard is not None else []).append)


def run_out(scheduler: Scheduler) -> None:
    while scheduler.busy:
        scheduler.step()


# Fairness.


def test_rows_that_run_move_on_while_a_long_prompt_is_read() -> None:
    model = Pieces("abcdefghij" * 3)
    scheduler = Scheduler(PlainModel(model), TOKENIZER, config=SchedulerConfig(max_running=4))
    scheduler.add(group_of("s"))
    scheduler.step()
    scheduler.add(group_of("L" * (5 * CHUNK)))
    for _ in range(5):
        scheduler.step()
    assert [entry for entry in model.log if entry[0] == "L"] == [("L", CHUNK)] * 5
    between = model.log[model.log.index(("L", CHUNK)) :]
    assert between == [("L", CHUNK), ("step", 1)] * 4 + [("L", CHUNK), ("step", 2)]


def test_a_short_prompt_does_not_wait_for_a_long_one_before_it() -> None:
    model = Pieces("abc")
    scheduler = Scheduler(PlainModel(model), TOKENIZER, config=SchedulerConfig(max_running=4))
    scheduler.add(group_of("L" * (50 * CHUNK)))
    scheduler.add(short := group_of("s", GREEDY.replace(max_tokens=1)))
    for _ in range(3):
        scheduler.step()
    assert short.request.finished
    assert len([entry for entry in model.log if entry[0] == "L"]) <= 3


def test_short_prompts_are_read_together_between_two_steps() -> None:
    model = Pieces("abc")
    scheduler = Scheduler(PlainModel(model), TOKENIZER, config=SchedulerConfig(max_running=8))
    for _ in range(6):
        scheduler.add(group_of("x" * 20))
    scheduler.step()
    assert model.log == [("x", 20)] * 6 + [("step", 6)]


def test_a_model_that_cannot_continue_a_prompt_reads_it_in_one_call() -> None:
    model = Script("ab")
    scheduler = Scheduler(PlainModel(model), TOKENIZER, config=SchedulerConfig(max_running=1))
    scheduler.add(group_of("x" * 700))
    run_out(scheduler)
    assert model.calls == [700]


@pytest.mark.parametrize("score", [False, True])
def test_the_bundled_models_pieces_give_its_own_logits_bit_for_bit(score: bool) -> None:
    raw = {**CONFIG, "max_position_embeddings": 2000}
    llama = build_llama(parse_config(raw, "config"), random_tensors(raw), "folder")  # type: ignore[arg-type]
    ids = np.random.default_rng(0).integers(0, 50, 2 * CHUNK + 7).tolist()
    step = as_step_model(llama)
    row = step.open(Inputs(token_ids=tuple(ids), score=score))
    sizes, logits = [], []
    while row.left:
        before = row.left
        logits.append(step.prefill_chunk(row))
        sizes.append(before - row.left)
    assert sizes == [CHUNK, CHUNK, 7]
    expected = llama.score(ids) if score else llama.prefill(ids)[0][None]
    assert np.concatenate(logits).tobytes() == expected.tobytes()


def test_slots_are_not_exceeded_and_all_requests_end() -> None:
    model = Pieces("abcdef")
    scheduler = Scheduler(PlainModel(model), TOKENIZER, config=SchedulerConfig(max_running=3))
    groups = [group_of("p", GREEDY.replace(max_tokens=1 + i % 5, n=1 + i % 2)) for i in range(9)]
    for one in groups:
        scheduler.add(one)
    run_out(scheduler)
    assert max(rows for what, rows in model.log if what == "step") == 3
    texts = [[sample.text for sample in one.request.completion().samples] for one in groups]
    assert texts == [["abcdef"[: 1 + i % 5]] * (1 + i % 2) for i in range(9)]


# Ends.


def test_an_aborted_request_keeps_its_text_and_others_go_on() -> None:
    scheduler = Scheduler(PlainModel(Script("abcdefghij")), TOKENIZER, config=SchedulerConfig(max_running=2))
    running, waiting, other = (group_of("p", GREEDY.replace(max_tokens=10)) for _ in range(3))
    for one in (running, other, waiting):
        scheduler.add(one)
    scheduler.step()
    scheduler.step()
    scheduler.abort(running)
    scheduler.abort(waiting)
    scheduler.abort(running)
    run_out(scheduler)
    done = [one.request.completion() for one in (running, waiting, other)]
    assert [d.text for d in done] == ["ab", "", "abcdefghij"]
    assert [d.finish_reason for d in done] == ["abort", "abort", "length"]
    assert done[0].stop == Stop(kind="abort")


class Fails(Script):
    """Raises when it reads a prompt that begins with `!`."""

    def prefill(self, token_ids: Sequence[int]) -> tuple[NDArray[np.float32], list[int]]:
        if token_ids[0] == ord("!"):
            raise RuntimeError("the prompt is bad")
        return self._logits(0), [0]


def test_a_prompt_that_the_model_cannot_read_ends_its_own_request(caplog: pytest.LogCaptureFixture) -> None:
    good, bad, other = LLM(Fails("abcd"), tokenizer=Letters()).generate(["p", "!", "q"], GREEDY.replace(max_tokens=4))
    assert [good.text, bad.text, other.text] == ["abcd", "", "abcd"]
    assert (bad.finish_reason, bad.stop and bad.stop.kind) == ("error", "model_failed")
    assert bad.stop is not None
    assert bad.stop.matched_text == "RuntimeError: the prompt is bad"
    assert "the prompt is bad" in caplog.text


def test_a_processor_that_fails_ends_its_own_request() -> None:
    def breaks(logits: NDArray[Any], args: list[dict[str, Any]]) -> NDArray[Any]:
        raise ValueError("no")

    tirage.register_processor("breaks", breaks, replace=True)
    llm = LLM(Script("abcd"), tokenizer=Letters())
    bad, good = llm.generate(
        ["p", "q"], [GREEDY.replace(logits_processors=[("breaks", {})]), GREEDY.replace(max_tokens=4)]
    )
    assert (bad.finish_reason, bad.stop and bad.stop.kind) == ("error", "processor_failed")
    assert (bad.token_ids, good.text) == ((), "abcd")


def test_a_listener_that_fails_aborts_its_own_request(caplog: pytest.LogCaptureFixture) -> None:
    def bad(_: Any) -> None:
        raise KeyError("listener")

    scheduler = Scheduler(PlainModel(Script("abcd")), TOKENIZER, config=SchedulerConfig(max_running=2))
    first, other = group_of("p"), group_of("q", GREEDY.replace(max_tokens=3))
    first.listener = bad
    scheduler.add(first)
    scheduler.add(other)
    run_out(scheduler)
    assert other.request.completion().text == "abc"
    assert first.request.completion().finish_reason == "abort"
    assert "listener" in caplog.text


def test_closing_a_stream_aborts_its_request() -> None:
    model = Pieces("a" * 50_000, max_length=100_000)
    llm = LLM(model, tokenizer=Letters())
    deltas = llm.stream("p", SamplingParams(temperature=0, max_tokens=50_000))
    assert next(deltas).text == "a"
    deltas.close()  # type: ignore[attr-defined]
    # A call into the engine's thread comes back after the abort was performed.
    llm.engine.call(lambda: None)
    steps = len(model.log)
    llm.engine.call(lambda: None)
    assert len(model.log) == steps
    assert steps < 50_000


def test_a_call_runs_in_the_engines_thread_and_its_error_comes_back() -> None:
    engine = Engine(Script("a"), TOKENIZER, config=SchedulerConfig(max_running=1))
    assert engine.call(lambda: threading.current_thread().name) == "tirage-engine"
    assert engine.call(lambda: engine.call(lambda: 3)) == 3
    with pytest.raises(ZeroDivisionError):
        engine.call(lambda: 1 // 0)


def test_ctrl_c_aborts_what_generate_was_waiting_for() -> None:
    model = Pieces("a" * 50_000, max_length=100_000)
    llm = LLM(model, tokenizer=Letters())
    main = threading.get_ident()

    def interrupt() -> None:
        while not model.log:
            time.sleep(0.01)
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["p", "q"], SamplingParams(temperature=0, max_tokens=50_000))
    assert not llm.engine.call(lambda: llm.engine._scheduler.busy)


def test_progress_changes_nothing_in_what_comes_back() -> None:
    llm = LLM(Script("abcdef"), tokenizer=Letters())
    params = GREEDY.replace(max_tokens=4, n=2)
    done = llm.generate(["p", "q"], params, progress=True)
    assert [sample.text for one in done for sample in one.samples] == ["abcd"] * 4


def test_running_requests_count_as_the_share_of_their_tokens() -> None:
    llm = LLM(Script("abcdef"), tokenizer=Letters())
    request = llm.request("p", GREEDY.replace(max_tokens=4, n=2))
    assert (request.done_share, llm.engine.running_share()) == (0.0, 0.0)
    first = request.start_next()
    first.accept(0, 0.0)
    assert request.done_share == 1 / 8
    for _ in range(3):
        first.accept(0, 0.0)
    assert request.done_share == 1 / 2


# Many at once.


def test_many_threads_and_tasks_stream_at_once_and_each_gets_its_own_text() -> None:
    llm = LLM(Script("abcdefghijklmnopqrstuvwxyz"), tokenizer=Letters(), max_running=8)
    params = [SamplingParams(temperature=0, max_tokens=1 + i % 26) for i in range(24)]
    expected = ["abcdefghijklmnopqrstuvwxyz"[: 1 + i % 26] for i in range(24)]
    found: dict[int, str] = {}

    def work(i: int) -> None:
        found[i] = "".join(delta.text for delta in llm.stream("p", params[i]))

    async def task(i: int) -> str:
        return "".join([delta.text async for delta in llm.astream("p", params[i])])

    async def tasks() -> list[str]:
        return await asyncio.gather(*(task(i) for i in range(24)))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(24)]
    for thread in threads:
        thread.start()
    assert asyncio.run(tasks()) == expected
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(24)] == expected


def test_a_cancelled_task_aborts_its_request() -> None:
    model = Pieces("a" * 50_000, max_length=100_000)
    llm = LLM(model, tokenizer=Letters())

    async def cancel() -> None:
        async def read() -> None:
            async for _ in llm.astream("p", SamplingParams(temperature=0, max_tokens=50_000, output_kind="FINAL_ONLY")):
                pass

        task = asyncio.create_task(read())
        while not model.log and not task.done():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    llm.engine.call(lambda: None)
    assert not llm.engine.call(lambda: llm.engine._scheduler.busy)


def test_the_engines_thread_ends_when_there_is_nothing_to_do_and_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tirage.engine.engine._LINGER_S", 0.01)
    llm = LLM(Script("abc"), tokenizer=Letters())
    for _ in range(3):
        assert llm.generate("p", GREEDY.replace(max_tokens=3))[0].text == "abc"
        deadline = time.monotonic() + 60
        while llm.engine._thread is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert llm.engine._thread is None


# Timings and usage.


def test_timings_and_usage_count_the_prompt_once() -> None:
    done = LLM(Script("abcdef"), tokenizer=Letters()).generate("prompt", GREEDY.replace(n=3, max_tokens=4))[0]
    assert (done.usage.prompt_tokens, done.usage.completion_tokens, done.usage.total_tokens) == (6, 12, 18)
    assert done.timings.first_token_s is not None
    assert 0 < done.timings.first_token_s <= done.timings.total_s


def test_a_request_for_no_tokens_ends_at_once() -> None:
    llm = LLM(Script("abc"), tokenizer=Letters())
    for kind in RequestOutputKind:
        parts = list(llm.stream("p", GREEDY.replace(max_tokens=0, output_kind=kind)))
        assert [(part.text, part.finish_reason) for part in parts] == [("", "length")]


@pytest.mark.parametrize("option", ["dtype", "device", "adapters", "prefix_bytes", "prefill_batch_tokens"])
def test_options_of_torch_are_refused_by_the_numpy_model(option: str) -> None:
    values = {"dtype": "int8", "prefix_bytes": 1, "prefill_batch_tokens": 0}
    with pytest.raises(ParamsError, match=f"{option} must not be given on the NumPy backend"):
        LLM("tiny", backend="numpy", **{option: values.get(option, {"a": "b"})})
