"""Request streams: deltas in event loops and threads, slow readers, aborts, full queues, ends."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from small_models import Script
from small_tokenizers import Letters

from tirage import LLM, Delta, ParamsError, Prompt, RequestOutputKind, SamplingParams
from tirage.engine import LogprobEntry, RequestStream, TokenRecord
from tirage.engine.notifier import Notifier
from tirage.engine.plain_model import PlainModel
from tirage.engine.request_stream import merged
from tirage.errors import TirageError, UnavailableError
from tirage.text import Stop

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
LONG = SamplingParams(temperature=0, max_tokens=5000)


class Slow(Script):
    """A script that waits `pause` seconds before each step; with `gate` closed it does not move at all."""

    def __init__(self, text: str, *, pause: float = 0.0, **options: Any) -> None:
        super().__init__(text, **options)
        self.pause, self.gate = pause, threading.Event()
        self.gate.set()

    def decode(self, token_ids: Sequence[int], caches: Sequence[list[int]]) -> NDArray[np.float32]:
        self.gate.wait(60)
        time.sleep(self.pause)
        return super().decode(token_ids, caches)


def slow_llm(text: str = "a" * 5000, *, pause: float = 0.001, **options: Any) -> LLM:
    return LLM(Slow(text, pause=pause, max_length=10_000), tokenizer=Letters(), **options)


def letters(count: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count)


def run(llm: LLM, task: Any) -> Any:
    with llm:
        return asyncio.run(task)


# Reading.


def test_deltas_in_an_event_loop_make_up_the_text() -> None:
    llm = slow_llm(ALPHABET)

    async def read() -> list[Delta]:
        async with llm.engine.submit(llm.request("p", letters(20))) as stream:
            return [delta async for delta in stream]

    deltas = run(llm, read())
    assert "".join(delta.text for delta in deltas) == ALPHABET[:20]
    assert [token for delta in deltas for token in delta.token_ids] == [ord(letter) for letter in ALPHABET[:20]]
    assert deltas[-1].completion is not None
    assert deltas[-1].completion.finish_reason == "length"


def test_deltas_in_a_thread_make_up_the_texts_of_every_sample() -> None:
    with slow_llm(ALPHABET) as llm, llm.engine.submit(llm.request("p", letters(9).replace(n=3))) as stream:
        deltas = list(stream)
    for index in range(3):
        assert "".join(delta.text for delta in deltas if delta.index == index) == ALPHABET[:9]


def test_a_result_comes_without_reading_deltas() -> None:
    llm = slow_llm(ALPHABET)

    async def results() -> list[str]:
        requests = [llm.request("p", letters(count)) for count in (3, 5, 8)]
        streams = llm.engine.submit_all(requests, buffer=0)
        return [(await stream.result()).text for stream in streams]

    assert run(llm, results()) == [ALPHABET[:3], ALPHABET[:5], ALPHABET[:8]]


def test_waiting_in_a_thread_has_a_limit() -> None:
    with slow_llm() as llm:
        stream = llm.engine.submit(llm.request("p", LONG))
        with pytest.raises(TimeoutError, match=r"must end within 0\.01 seconds"):
            stream.wait(0.01)
        stream.abort()
        assert stream.wait(60).finish_reason == "abort"


# Slow readers.


def test_a_slow_reader_gets_larger_deltas_and_never_more_than_its_buffer() -> None:
    with slow_llm(ALPHABET, pause=0) as llm:
        params = letters(26).replace(n=2, logprobs=0)
        stream = llm.engine.submit(llm.request("p", params), buffer=5)
        done = stream.wait(60)
        # The last delta of a sample that has none unread comes on top.
        assert len(stream._unread) <= 6
        deltas = list(stream)
    for sample in done.samples:
        mine = [delta for delta in deltas if delta.index == sample.index]
        assert "".join(delta.text for delta in mine) == sample.text == ALPHABET
        assert tuple(token for delta in mine for token in delta.token_ids) == sample.token_ids
        assert tuple(entry for delta in mine for entry in delta.logprobs or ()) == sample.logprobs
        assert [delta.finish_reason for delta in mine if delta.finish_reason] == ["length"]
    assert deltas[-1].completion == done


def test_the_last_delta_stays_the_last_however_deltas_are_merged() -> None:
    with slow_llm(ALPHABET, pause=0) as llm:
        stream = llm.engine.submit(llm.request("p", letters(3).replace(n=2)), buffer=2)
        done, notifier = stream.wait(60), Notifier()
        stream._unread.clear()
        for index, completion in ((0, None), (1, None), (0, done)):
            stream.put(Delta(text="x", index=index, completion=completion), notifier)
        assert [(delta.index, delta.text, delta.completion) for delta in stream] == [(1, "x", None), (0, "xx", done)]


def test_a_slow_reader_does_not_slow_the_others() -> None:
    with slow_llm(ALPHABET, pause=0) as llm:
        unread = llm.engine.submit(llm.request("p", letters(26)), buffer=1)
        others = llm.generate(["p"] * 4, letters(26))
        assert [done.text for done in others] == [ALPHABET] * 4
        assert unread.wait(60).text == ALPHABET
        (delta,) = unread
        assert (delta.text, delta.finish_reason) == (ALPHABET, "length")


def test_without_a_buffer_there_is_one_delta_at_the_end() -> None:
    with slow_llm(ALPHABET, pause=0) as llm:
        (delta,) = llm.engine.submit(llm.request("p", letters(9)), buffer=0)
    assert delta.text == ALPHABET[:9]
    assert delta.completion is not None


def test_a_reader_who_leaves_deltas_lying_loses_its_request() -> None:
    with slow_llm(pause=0.002) as llm:
        stream = llm.engine.submit(llm.request("p", LONG), patience_s=0.05)
        done = stream.wait(60)
        assert done.finish_reason == "abort"
        assert 0 < len(done.token_ids) < 5000


def test_a_reader_who_keeps_up_keeps_its_request() -> None:
    with slow_llm(ALPHABET) as llm:
        stream = llm.engine.submit(llm.request("p", letters(26)), patience_s=30)
        assert "".join(delta.text for delta in stream) == ALPHABET


def entry(token_id: int) -> LogprobEntry:
    return LogprobEntry(token_id=token_id, logprob=-1.0, rank=1, text="a", bytes=b"a")


def record(token_id: int) -> TokenRecord:
    return TokenRecord(
        kept_ids=np.array([token_id], np.int32),
        kept_logmass=0.0,
        raw_logprob=-1.0,
        processed_logprob=-1.0,
        sampled_logprob=0.0,
    )


ENTRIES, RECORDS = (entry(1), entry(2)), (record(1), record(2))
MERGED: dict[str, tuple[Any, Any, Any]] = {
    # Of each field of a delta: the value of the first, of the second, and of both as one.
    "text": ("a", "b", "ab"),
    "token_ids": ((1,), (2, 3), (1, 2, 3)),
    "index": (4, 4, 4),
    "logprobs": (ENTRIES[:1], ENTRIES[1:], ENTRIES),
    "records": (RECORDS[:1], RECORDS[1:], RECORDS),
    "finish_reason": (None, "stop", "stop"),
    "stop": (None, Stop(kind="eos", matched=3), Stop(kind="eos", matched=3)),
    "completion": (None, "the answer", "the answer"),
}


def test_merging_keeps_what_each_delta_had() -> None:
    # A field that is new in deltas belongs into this table, and into what is merged.
    assert list(MERGED) == [field.name for field in fields(Delta)]
    first, second, both = ({name: each[at] for name, each in MERGED.items()} for at in range(3))
    assert merged(Delta(**first), Delta(**second)) == Delta(**both)


@pytest.mark.parametrize("name", ["logprobs", "records"])
def test_merging_keeps_lists_that_one_of_two_deltas_has(name: str) -> None:
    first, second, _ = MERGED[name]
    assert getattr(merged(Delta(text="", **{name: first}), Delta(text="")), name) == first
    assert getattr(merged(Delta(text=""), Delta(text="", **{name: second})), name) == second
    assert getattr(merged(Delta(text=""), Delta(text="")), name) is None


def test_a_slow_reader_gets_a_record_for_each_token() -> None:
    with slow_llm(ALPHABET, pause=0) as llm:
        stream = llm.engine.submit(llm.request("p", letters(12).replace(return_kept=True)), buffer=2)
        done = stream.wait(60)
        deltas = list(stream)
    assert len(deltas) == 2
    assert [len(delta.records or ()) for delta in deltas] == [len(delta.token_ids) for delta in deltas]
    assert tuple(record for delta in deltas for record in delta.records or ()) == done.records


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buffer": -1}, "buffer must be an integer of at least 0, got -1"),
        ({"buffer": 1.5}, "buffer must be an integer"),
        ({"patience_s": 0}, "patience_s must be a positive number of seconds or None, got 0"),
    ],
)
def test_a_bad_reader_is_refused(options: dict[str, Any], message: str) -> None:
    with slow_llm() as llm, pytest.raises(ParamsError, match=message):
        llm.engine.submit(llm.request("p", LONG), **options)


def test_readers_of_one_loop_are_woken_by_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait_for_three() -> int:
        loop, calls = asyncio.get_running_loop(), []
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda fn, *args: calls.append(loop.call_soon(fn, *args)))
        waiters = [loop.create_future() for _ in range(3)]
        notifier = Notifier()
        for waiter in waiters:
            notifier.add(waiter)
        notifier.flush()
        notifier.flush()
        await asyncio.gather(*waiters)
        return len(calls)

    assert asyncio.run(wait_for_three()) == 1


def test_no_delta_is_merged_beside_a_model_that_takes_no_time() -> None:
    class Quick(Script):
        def decode(self, token_ids: Sequence[int], caches: Sequence[list[int]]) -> NDArray[np.float32]:
            return np.eye(1, self.vocab_size, ord("a"), dtype=np.float32).repeat(len(token_ids), axis=0)

    async def read(llm: LLM, null: int) -> int:
        count = 0
        async for delta in llm.engine.submit(llm.request("p", letters(300)), buffer=16):
            # Another thread may run meanwhile, as it may while a server sends.
            os.write(null, b"event")
            count += bool(delta.token_ids)
        return count

    async def read_many(llm: LLM) -> list[int]:
        with open(os.devnull, "wb") as null:
            return await asyncio.gather(*(read(llm, null.fileno()) for _ in range(64)))

    with LLM(Quick("a"), tokenizer=Letters(), max_running=64) as llm:
        assert sum(asyncio.run(read_many(llm))) > 64 * 300 * 0.9


def test_a_loop_that_is_busy_with_something_else_delays_the_engine_once() -> None:
    waits = []

    class Ended(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return super().wait(timeout)

    async def flush_unread() -> None:
        notifier, waiter = Notifier(), asyncio.get_running_loop().create_future()
        notifier.add(waiter)
        monkeypatch.setattr(threading, "Event", Ended)
        for _ in range(40):
            notifier.flush()
        monkeypatch.undo()
        await waiter

    with pytest.MonkeyPatch.context() as monkeypatch:
        asyncio.run(flush_unread())
    assert [each for each in waits if each] == [0.05]


def test_a_loop_that_was_late_is_waited_for_again_once_it_has_come_back() -> None:
    async def flush_twice() -> list[bool]:
        notifier, found = Notifier(), []
        for _ in range(2):
            waiter = asyncio.get_running_loop().create_future()
            notifier.add(waiter)
            began = time.monotonic()
            for _ in range(40):
                notifier.flush()
            found.append(time.monotonic() - began > 0.04)
            await waiter
            await asyncio.sleep(0.01)
        return found

    assert asyncio.run(flush_twice()) == [True, True]


def test_a_loop_that_is_gone_harms_nobody() -> None:
    with slow_llm() as llm:

        async def leave() -> RequestStream:
            stream = llm.engine.submit(llm.request("p", LONG))
            waiting = asyncio.ensure_future(anext(aiter(stream)))
            await asyncio.sleep(0)
            waiting.cancel()
            return stream

        stream = asyncio.run(leave())
        assert stream.wait(60).finish_reason == "abort"
        assert llm.generate("p", letters(3))[0].text == "aaa"


def test_a_loop_that_closes_while_it_is_woken_harms_no_other() -> None:
    class Closing:
        """A loop that is open when asked, and closed when called."""

        def is_closed(self) -> bool:
            return False

        def call_soon_threadsafe(self, *_: object) -> None:
            raise RuntimeError("Event loop is closed")

    class Waiter:
        def get_loop(self) -> Closing:
            return Closing()

    async def woken() -> bool:
        notifier, waiter = Notifier(), asyncio.get_running_loop().create_future()
        notifier.add(Waiter())  # type: ignore[arg-type]
        notifier.add(waiter)
        notifier.flush()
        await asyncio.wait_for(waiter, 30)
        return waiter.done()

    assert asyncio.run(woken())


# Aborts.


def test_an_abort_works_in_every_phase() -> None:
    with slow_llm("a" * 300, max_running=1) as llm:
        running = llm.engine.submit(llm.request("p", LONG))
        waiting = llm.engine.submit(llm.request("p", LONG))
        deltas = iter(running)
        assert next(deltas).text.startswith("a")
        waiting.abort()
        assert (waiting.wait(60).text, waiting.wait().finish_reason) == ("", "abort")
        running.abort()
        assert running.wait(60).finish_reason == "abort"
        over = llm.engine.submit(llm.request("p", letters(2)))
        assert over.wait(60).finish_reason == "length"
        over.abort()
        assert over.wait().finish_reason == "length"


def test_an_abort_while_the_prompt_is_read_ends_the_request() -> None:
    class Reads(Script):
        reached, go_on = threading.Event(), threading.Event()

        def extend(self, token_ids: Sequence[int], cache: Any) -> tuple[NDArray[np.float32], list[int]]:
            self.reached.set()
            self.go_on.wait(60)
            return self._logits(0), [0]

    model = Reads("abc", max_length=10_000)
    with LLM(model, tokenizer=Letters()) as llm:
        stream = llm.engine.submit(llm.request("p" * 2000, letters(3)))
        model.reached.wait(60)
        stream.abort()
        model.go_on.set()
        assert (stream.wait(60).text, stream.wait().finish_reason) == ("", "abort")
        assert llm.engine.progress().reading == 0


def test_a_cancelled_result_and_a_left_iteration_abort() -> None:
    llm = slow_llm()

    async def leave() -> list[Any]:
        cancelled, left = llm.engine.submit_all([llm.request("p", LONG), llm.request("p", LONG)])
        waiting = asyncio.ensure_future(cancelled.result())
        async with left:
            async for _ in left:
                break
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return [await asyncio.to_thread(stream.wait, 60) for stream in (cancelled, left)]

    assert [done.finish_reason for done in run(llm, leave())] == ["abort", "abort"]


class Counted(PlainModel):
    """Counts the rows that are open."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.rows: set[int] = set()

    def open(self, inputs: Any) -> Any:
        row = super().open(inputs)
        self.rows.add(id(row))
        return row

    def fork(self, cache: Any) -> Any:
        twin = super().fork(cache)
        self.rows.add(id(twin))
        return twin

    def close(self, row: Any, *, reuse: bool = False) -> None:
        self.rows.remove(id(row))
        super().close(row)


@pytest.mark.slow
def test_two_hundred_requests_with_random_aborts_leave_nothing_behind() -> None:
    before = set(threading.enumerate())
    model = Counted(Slow("abcdefghij" * 30, pause=0.0005))
    llm = LLM(model, tokenizer=Letters(), max_running=16)
    rng = random.Random(5)
    whole = "abcdefghij" * 30

    async def one(count: int, samples: int, patience: float | None) -> bool:
        request = llm.request("p" * (1 + count), letters(count).replace(n=samples))
        stream = llm.engine.submit(request, buffer=rng.choice((0, 1, 8)))
        reader = asyncio.ensure_future(collect(stream))
        if patience is not None:
            await asyncio.sleep(patience)
            stream.abort()
        deltas = await reader
        done = deltas[-1].completion
        assert done is not None
        for sample in done.samples:
            assert sample.text == whole[: len(sample.token_ids)]
            assert sample.finish_reason == ("length" if len(sample.token_ids) == count else "abort")
        return done.finish_reason == "length"

    async def collect(stream: RequestStream) -> list[Delta]:
        return [delta async for delta in stream]

    async def everyone() -> list[bool]:
        patience = [None if rng.random() < 0.5 else rng.random() * 0.5 for _ in range(200)]
        return await asyncio.gather(*(one(rng.randint(1, 40), rng.randint(1, 3), each) for each in patience))

    whole_ones = asyncio.run(everyone())
    now = llm.engine.progress()
    assert sum(whole_ones) >= 50
    assert (now.waiting, now.reading, now.running, now.busy) == (0, 0, 0, False)
    assert now.completed + now.aborted == 200
    assert now.failed == 0
    assert llm.engine._scheduler._running == []
    assert llm.engine.call(lambda: model.rows) == set()
    llm.close()
    assert set(threading.enumerate()) <= before


# Full queues.


def test_a_full_queue_refuses_by_name_and_takes_more_later() -> None:
    with slow_llm(max_running=2, max_waiting=3) as llm:
        llm.model.gate.clear()  # type: ignore[attr-defined]
        requests = [llm.request("p", letters(4)) for _ in range(7)]
        streams = llm.engine.submit_all(requests[:5])
        with pytest.raises(UnavailableError, match=r"at most 3 requests \(max_waiting\), got 1 more") as error:
            llm.engine.submit(requests[5])
        assert isinstance(error.value, TirageError)
        assert not error.value.closing
        llm.model.gate.set()  # type: ignore[attr-defined]
        assert [stream.wait(60).text for stream in streams] == ["aaaa"] * 5
        assert llm.engine.submit(requests[5]).wait(60).text == "aaaa"


def test_requests_submitted_together_are_taken_together_or_not_at_all() -> None:
    with slow_llm(max_running=1, max_waiting=2) as llm:
        with pytest.raises(UnavailableError):
            llm.engine.submit_all([llm.request("p", LONG) for _ in range(4)])
        assert not llm.engine.progress().busy
        assert len(llm.engine.submit_all([llm.request("p", letters(1)) for _ in range(3)])) == 3


@pytest.mark.parametrize("value", [-1, 1.5, True])
def test_a_bad_bound_of_the_queue_is_refused(value: Any) -> None:
    with pytest.raises(ParamsError, match="max_waiting must be an integer of at least 0 or None"):
        slow_llm(max_waiting=value)


# Watching.


def test_progress_counts_what_happened() -> None:
    with slow_llm("abc{", pause=0.0) as llm:
        params = [letters(2), letters(3).replace(n=2), letters(9)]
        llm.generate(["12345", "123", "1"], params)
        llm.engine.call(lambda: None)
        now = llm.engine.progress()
    assert (now.started, now.completed, now.failed, now.aborted) == (3, 2, 1, 0)
    assert (now.prompt_tokens, now.cached_tokens, now.output_tokens) == (9, 0, 2 + 6 + 4)
    assert now.steps >= 4
    assert min(now.read_s, now.sample_s, now.text_s, now.decode_s, now.last_step_s) > 0
    assert 0 < now.sampling_share < 1


def test_a_loop_that_hangs_is_seen_and_an_idle_one_is_not() -> None:
    with slow_llm() as llm:
        assert llm.engine.progress().stalled_s() == 0
        llm.model.gate.clear()  # type: ignore[attr-defined]
        stream = llm.engine.submit(llm.request("p", letters(3)))
        deltas = iter(stream)
        next(deltas)
        now = llm.engine.progress()
        assert (now.busy, now.running) == (True, 1)
        assert now.stalled_s(now.last_tick + 7.5) == 7.5
        llm.model.gate.set()  # type: ignore[attr-defined]
        stream.wait(60)
        assert llm.engine.progress().stalled_s(now.last_tick + 100) == 0


# The end.


def test_closing_lets_requests_finish_and_takes_no_more() -> None:
    llm = slow_llm()
    stream = llm.engine.submit(llm.request("p", letters(50)))
    llm.close(drain_s=60)
    assert (stream.wait().text, stream.wait().finish_reason) == ("a" * 50, "length")
    for use in (lambda: llm.generate("p"), lambda: llm.engine.submit(llm.request("p"))):
        with pytest.raises(UnavailableError, match="the engine is closing") as error:
            use()
        assert error.value.closing
    with pytest.raises(UnavailableError, match="the engine is closed"):
        llm.engine.call(lambda: None)
    stream.abort()
    llm.close()


def test_closing_aborts_those_that_take_too_long() -> None:
    llm = slow_llm(max_running=1)
    streams = llm.engine.submit_all([llm.request("p", LONG), llm.request("p", LONG)])
    deltas = iter(streams[0])
    next(deltas)
    llm.close(drain_s=0.01)
    assert [stream.wait(60).finish_reason for stream in streams] == ["abort", "abort"]
    assert llm.engine._thread is None


def test_closing_an_engine_that_never_ran_returns_at_once() -> None:
    llm = slow_llm()
    llm.close()
    assert llm.engine.progress().closing


def test_flushing_a_model_that_keeps_nothing_does_nothing() -> None:
    with slow_llm(ALPHABET) as llm:
        llm.engine.flush()
        assert llm.generate("p", letters(3))[0].text == "abc"


@pytest.mark.parametrize("kind", list(RequestOutputKind))
def test_every_output_kind_ends_with_the_completion(kind: RequestOutputKind) -> None:
    llm = slow_llm(ALPHABET, pause=0)

    async def read() -> list[Delta]:
        stream = llm.engine.submit(llm.request(Prompt(text="p", salt="s"), letters(4).replace(output_kind=kind)))
        return [delta async for delta in stream]

    deltas = run(llm, read())
    assert deltas[-1].completion is not None
    assert deltas[-1].completion.text == "".join(delta.text for delta in deltas) == ALPHABET[:4]
    # CUMULATIVE shows the completion with each, the others with the last.
    shown = [delta.completion is not None for delta in deltas]
    assert shown == [kind is RequestOutputKind.CUMULATIVE] * (len(deltas) - 1) + [True]
