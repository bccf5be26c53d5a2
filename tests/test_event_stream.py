"""Streams make the JSON of events that hold much in a thread, so that no other stream waits for it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tirage import SamplingParams
from tirage.engine import Delta, LogprobEntry
from tirage.server.sse import DONE, EventStream

MANY = 2000
"""Values of an event that are made where the deltas come."""


def entry(named: int) -> LogprobEntry:
    """A logprob with those of so many named tokens."""
    given = tuple((index, -1.0) for index in range(named))
    return LogprobEntry(token_id=1, logprob=-1.0, rank=1, text="a", bytes=b"a", given=given)


def delta(named: int, *, index: int = 0) -> Delta:
    """A token with the logprobs of so many named ones."""
    return Delta(text="a", token_ids=(1,), index=index, logprobs=(entry(named),))


class Formatter:
    """An event for every `interval` deltas of a sample, which names the thread that made it."""

    def __init__(self, interval: int) -> None:
        self._interval, self._waiting = interval, dict[tuple[int, int], int]()

    def begin(self) -> Iterator[Any]:
        return iter(())

    def end(self) -> Iterator[Any]:
        return iter(())

    def format(self, number: int, each: Delta) -> Iterator[Any]:
        key = number, each.index
        self._waiting[key] = self._waiting.get(key, 0) + 1
        if self._waiting[key] == self._interval:
            self._waiting[key] = 0
            yield {"index": each.index, "main": threading.current_thread() is threading.main_thread()}


class Group:
    """A request with these deltas and so many logprobs of its prompt."""

    def __init__(self, deltas: list[Delta], prompt: int) -> None:
        self._deltas = deltas
        params = SamplingParams(logprobs=0, prompt_logprobs=0)
        self.requests = [SimpleNamespace(request=SimpleNamespace(params=params, prompt_logprobs=(None, entry(prompt))))]

    async def deltas(self) -> AsyncIterator[tuple[int, Delta]]:
        for each in self._deltas:
            yield 0, each

    async def completions(self) -> list[Any]:
        return []


def events(deltas: list[Delta], *, interval: int = 1, prompt: int = 0) -> list[dict[str, Any]]:
    """The events of a stream."""
    stream = EventStream(Group(deltas, prompt), Formatter(interval))  # type: ignore[arg-type]
    asyncio.run(stream._pump())
    body = bytes(stream._unsent)
    assert body.endswith(DONE)
    return [json.loads(line[6:]) for line in body.removesuffix(DONE).splitlines() if line]


@pytest.mark.parametrize(("named", "main"), [(MANY - 5, True), (MANY - 1, False)])
def test_the_events_of_a_delta_of_many_values_are_made_in_a_thread(named: int, main: bool) -> None:
    # The prompt has four values, of two tokens.
    assert events([delta(named)], prompt=1) == [{"index": 0, "main": main}]


def test_what_no_event_has_shown_yet_counts_for_the_sample_whose_it_is() -> None:
    waiting = [delta(MANY // 4, index=index) for _ in range(4) for index in (0, 1)]
    assert events(waiting, interval=4) == [{"index": index, "main": False} for index in (0, 1)]
    assert events(waiting) == [{"index": index, "main": True} for _ in range(4) for index in (0, 1)]


@pytest.mark.parametrize(("prompt", "main"), [(MANY // 2 - 3, True), (MANY // 2, False)])
def test_the_logprobs_of_the_prompt_count_for_the_first_event(prompt: int, main: bool) -> None:
    assert [each["main"] for each in events([delta(1), delta(1)], prompt=prompt)] == [main, True]


def test_what_was_sent_while_an_event_is_made_in_a_thread_is_not_sent_again() -> None:
    sent, first = bytearray(), threading.Event()

    class Waits(Formatter):
        """Makes the second event once the first has been sent."""

        def format(self, number: int, each: Delta) -> Iterator[Any]:
            if each.index:
                assert first.wait(60)
            yield from super().format(number, each)

    async def send(message: Any) -> None:
        sent.extend(message.get("body", b""))
        if sent:
            first.set()

    async def both() -> None:
        stream = EventStream(Group([delta(1), delta(MANY, index=1)], 0), Waits(1))  # type: ignore[arg-type]
        await asyncio.gather(stream._pump(), stream._write(send))

    asyncio.run(both())
    lines = bytes(sent).removesuffix(DONE).splitlines()
    assert [json.loads(line[6:])["index"] for line in lines if line] == [0, 1]


def test_a_long_event_is_made_while_it_is_sent() -> None:
    made, ahead, sent = [0], [0], bytearray()

    def elements() -> Iterator[dict[str, Any]]:
        for number in range(5000):
            made[0] += 1
            yield {"number": number, "text": "x" * 1000}

    class Long(Formatter):
        """Ends with an event of 5 MB."""

        def end(self) -> Iterator[Any]:
            yield {"elements": elements()}

    class Weighty(Group):
        """A request whose answer has many tokens."""

        async def completions(self) -> list[Any]:
            usage = SimpleNamespace(total_tokens=2 * MANY)
            return [SimpleNamespace(prompt_logprobs=None, logprobs=None, hidden_states=None, usage=usage)]

    async def send(message: Any) -> None:
        await asyncio.sleep(0.001)
        sent.extend(message.get("body", b""))
        ahead.append(made[0] - sent.count(b"number"))

    async def both() -> None:
        stream = EventStream(Weighty([], 0), Long(1))  # type: ignore[arg-type]
        await asyncio.gather(stream._pump(), stream._write(send))

    asyncio.run(both())
    event = json.loads(bytes(sent).removesuffix(DONE)[6:])
    assert [each["number"] for each in event["elements"]] == [*range(5000)]
    assert max(ahead) < 1000
