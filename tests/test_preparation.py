"""What a request costs before it runs: searched once for all of it, cancelled at any step, in nobody's way."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from chaos.maxima import NAMED
from servers import Server

from tirage import LLM, GrammarError, GuidedDecodingParams, Prompt, SamplingParams
from tirage.engine import Tenant
from tirage.guided import BYTES, ClosingPath, Compiler, CompletionFinder
from tirage.guided.closing import budgets, path, shortest_completion, token_search
from tirage.server.client import CLIENT, Client
from tirage.server.engine_input import EngineInput
from tirage.server.errors import Refusal
from tirage.server.metrics import Metrics
from tirage.server.options import Options
from tirage.server.replay import model_info_of
from tirage.server.request_manager import RequestManager
from tirage.workers.cancel import cancellable, checkpoint, holding

HOSTILE = "((a|b)*a(a|b){11}c|.*x.{9}q){3}end"


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("tiny") as opened:
        yield opened


class Stopped(Exception):  # noqa: N818  (what a cancelled work ends with)
    """The work was cancelled."""


def closed(pattern: str, **params: Any) -> SamplingParams:
    guided = GuidedDecodingParams(regex=pattern)
    return SamplingParams(seed=1, max_tokens=22, close_grammar=True, guided_decoding=guided, **params)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The searches that were made, by the name of their function."""
    made: list[str] = []

    def counted(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            made.append(name)
            return function(*arguments, **options)

        monkeypatch.setattr(owner, name, call)

    counted(path, "straight")
    counted(path, "shortest")
    counted(token_search.CompletionSearch, "run")
    return made


@pytest.mark.slow
def test_the_samples_and_prompts_of_a_request_share_the_searches_for_a_closing_path(
    llm: LLM, searches: list[str]
) -> None:
    llm.request("a", closed(f"{HOSTILE}1"))
    alone = list(searches)
    assert alone.count("run") > 0
    for prompt in ("a", "a b c", "Once upon a time"):
        llm.request(prompt, closed(f"{HOSTILE}1", n=64))
    assert searches == alone
    llm.request("a", closed(f"{HOSTILE}2", n=64))
    assert searches == alone * 2


@pytest.mark.slow
def test_texts_that_share_a_search_write_what_each_writes_alone(llm: LLM) -> None:
    pattern = "[a-z]{3,30}( [a-z]{2,9}){1,4}!"
    params = [closed(pattern, temperature=1.5).replace(seed=seed, max_tokens=14) for seed in range(4)]
    alone = []
    for each in params:
        with LLM("tiny") as fresh:
            alone += [sample.text for sample in fresh.generate("a", each.replace(n=2))[0].samples]
    together = [
        sample.text for each in llm.generate(["a"] * 4, [p.replace(n=2) for p in params]) for sample in each.samples
    ]
    assert together == alone
    assert all(text.endswith("!") for text in alone)


def cancelled_at(count: int, work: Callable[[], Any]) -> int:
    """Runs work that is cancelled when it asks for the `count`-th time; how often it asked."""
    asked = 0

    def check() -> None:
        nonlocal asked
        asked += 1
        if asked >= count:
            raise Stopped

    with cancellable(check), pytest.raises(Stopped):
        work()
    return asked


@pytest.mark.slow
def test_preparation_is_cancelled_at_any_step_and_leaves_nothing_broken(llm: LLM) -> None:
    params = closed(f"{HOSTILE}3", n=4)
    asked = 0

    def count() -> None:
        nonlocal asked
        asked += 1

    with cancellable(count):
        fresh = llm.request("a", closed(f"{HOSTILE}4", n=4))
    assert asked > 100
    for step in (1, 2, 3, 10, asked // 4, asked // 2):
        assert cancelled_at(step, lambda: llm.request("a", params)) == step
    prepared = llm.request("a", params)
    assert [sample.grammar is None for sample in prepared.samples] == [
        sample.grammar is None for sample in fresh.samples
    ]
    checkpoint()  # nothing is cancelled outside of the block


CALLS = 100_000
"""Most calls of Python functions between two looks at a cancellation: less than a tenth of a second."""
LARGE: tuple[tuple[str, str, int], ...] = (
    ("json_schema", "properties", 8704),
    ("json_schema", "properties", 4096),
    ("json_schema", "required", 6000),
    ("json_schema", "choices", 5000),
    ("json_schema", "multiple", 4096),
    ("guided_json", "depth", 20),
    ("ebnf", "ambiguous", 4000),
    ("ebnf", "rules", 900),
    ("structural_tag", "tags", 1200),
)
"""Constraints at about the most that a server accepts; the fields and ways are those of the chaos gate."""


def longest_without_a_look(work: Callable[[], Any]) -> int:
    """The most Python functions that work calls between two looks at its cancellation."""
    calls = most = 0

    def look() -> None:
        nonlocal calls
        calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls, most
        calls += event == "call"
        most = max(most, calls)

    with cancellable(look):
        before = sys.getprofile()
        sys.setprofile(count)
        try:
            work()
        finally:
            sys.setprofile(before)
    return most


@pytest.mark.slow
@pytest.mark.parametrize(("field", "way", "size"), LARGE, ids=lambda value: str(value))
def test_no_step_of_preparation_goes_on_for_long_without_a_look_at_its_cancellation(
    field: str, way: str, size: int
) -> None:
    value, compiler = NAMED[field][way](size), Compiler(BYTES)
    mode = {"json_schema": "json", "guided_json": "json", "ebnf": "grammar"}.get(field, field)
    guided = GuidedDecodingParams(**{mode: value})

    def compiled() -> None:
        # The largest ones are refused by the trial, which runs last.
        with contextlib.suppress(GrammarError):
            compiler.compile(guided)

    assert longest_without_a_look(compiled) < CALLS


@pytest.mark.parametrize("level", ["sequence", "text"])
def test_every_bad_word_is_a_step_of_its_own(llm: LLM, level: str) -> None:
    words = [f"{level}{number}" for number in range(64)]
    params = SamplingParams(bad_words=words, bad_words_level=level)
    assert cancelled_at(60, lambda: llm.request("a", params)) == 60


def test_a_compilation_that_is_cancelled_is_no_answer_to_those_that_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiler, begun, go = Compiler(BYTES), threading.Event(), threading.Event()
    compile_once = compiler._compile
    found: list[Any] = []

    def slow(guided: GuidedDecodingParams) -> Any:
        if not begun.is_set():
            begun.set()
            assert go.wait(60)
            raise Stopped
        return compile_once(guided)

    def ask() -> None:
        try:
            found.append(compiler.compile(GuidedDecodingParams(regex="ab")))
        except Stopped as error:
            found.append(error)

    monkeypatch.setattr(compiler, "_compile", slow)
    first, second = threading.Thread(target=ask), threading.Thread(target=ask)
    first.start()
    assert begun.wait(60)
    second.start()
    go.set()
    first.join(60)
    second.join(60)
    assert sorted(type(each).__name__ for each in found) == ["Grammar", "Stopped"]
    with pytest.raises(GrammarError, match="regex"):
        compiler.compile(GuidedDecodingParams(regex="("))


def test_a_wait_for_a_lock_can_be_cancelled() -> None:
    lock = threading.Lock()
    with lock:
        assert cancelled_at(2, lambda: holding(lock).__enter__()) == 2
    with holding(lock):
        assert lock.locked()
    assert not lock.locked()


def test_a_search_is_bounded_by_steps_and_not_by_time() -> None:
    deep = "\n".join(f"r{i} ::= r{i - 1} r{i - 1} root?" for i in range(1, 60))
    matcher = Compiler(BYTES).compile(GuidedDecodingParams(grammar=f'r0 ::= "x"\n{deep}\nroot ::= r59')).matcher()
    budget = budgets.StepBudget(500)
    with pytest.raises(budgets.StepLimitError):
        path.shortest(matcher, lambda text: True, budget)
    assert budget.spent == 501


@pytest.mark.slow
def test_a_long_text_stays_closable_however_often_its_way_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    # Only searches that find nothing are charged.
    monkeypatch.setattr(path, "TEXT_WORK", 300)
    item = {
        "type": "object",
        "properties": {"a": {"enum": ["x", "y"]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    guided = GuidedDecodingParams(json={"type": "array", "items": item}, disable_any_whitespace=True)
    long = ClosingPath(Compiler(BYTES).compile(guided).matcher(), BYTES)
    searched = 0
    for byte in b"[" + b'{"a":"y"},' * 300:
        before = long.tokens
        long.advance(byte)
        assert long.tokens is not None
        searched += before is None or long.tokens != before[1:]
    assert searched > 300


@pytest.mark.slow
def test_texts_inside_a_search_go_before_those_that_have_not_begun() -> None:
    guided = GuidedDecodingParams(regex=HOSTILE)
    shared, order = CompletionFinder(guided, BYTES), list[str]()
    matcher = Compiler(BYTES).compile(guided).matcher()
    inside = shortest_completion.CompletionState(shared, frozenset())
    inside.prepare()
    inside.advance(b"a")
    running = threading.Event()

    def begin() -> None:
        with cancellable(running.set):
            ClosingPath(matcher, BYTES, finder=shared, excluded=frozenset(b"z"))
        order.append("first")

    def go_on() -> None:
        assert running.wait(60)
        inside._work.left = 1
        with pytest.raises(budgets.WorkLimitError):
            inside.fewest(400)
        order.append("inside")

    threads = [threading.Thread(target=begin), threading.Thread(target=go_on)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert order == ["inside", "first"]


# --- at the server -----------------------------------------------------------------------------------------------


class Blocked:
    """Preparation of constraints that does not end by itself, only when it is cancelled."""

    def __init__(self, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
        self.running = 0
        self._compile = llm.constraints.compile
        monkeypatch.setattr(llm.constraints, "compile", self.constrain)

    def constrain(self, params: SamplingParams, *context: Any) -> Any:
        if params.guided_decoding is None:
            return self._compile(params, *context)
        self.running += 1
        try:
            while True:
                checkpoint()
                threading.Event().wait(0.005)
        finally:
            self.running -= 1


def manager_of(llm: LLM, **options: Any) -> RequestManager:
    return RequestManager(llm, Options.of(**options), metrics=Metrics(), model_info=model_info_of(llm, "tiny"))


def call(rid: str, **params: Any) -> EngineInput:
    return EngineInput(prompt=Prompt(text="Once"), params=SamplingParams(max_tokens=3, **params), rid=rid)


def test_a_request_that_is_over_is_freed_without_a_search_for_cycles(llm: LLM) -> None:
    manager = manager_of(llm)

    async def answered() -> weakref.ref[Any]:
        client = Client(lambda: False)
        CLIENT.set(client)
        async with await manager.submit([call("plain")], tenant=Tenant("one")) as group:
            await group.completions()
        client.finish()
        return weakref.ref(group)

    async def session() -> None:
        # In a task of its own, as a server runs each request: its context goes with it.
        group = await asyncio.create_task(answered())
        for _ in range(500):
            if group() is None:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("the request is still held")

    gc.disable()
    try:
        asyncio.run(session())
    finally:
        gc.enable()
        manager.close()


def test_plain_requests_and_other_tenants_do_not_wait_behind_constraints(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = Blocked(llm, monkeypatch)
    manager = manager_of(llm)

    async def session() -> None:
        hard = [call(f"hard {i}", guided_decoding=GuidedDecodingParams(regex=f"a{i}")) for i in range(6)]
        tasks = [asyncio.create_task(manager.submit([each], tenant=Tenant("one"))) for each in hard]
        while blocked.running < 3:
            await asyncio.sleep(0.005)
        async with await manager.submit([call("plain")], tenant=Tenant("one")) as group:
            [completion] = await group.completions()
        assert completion.usage.completion_tokens == 3
        other = asyncio.create_task(
            manager.submit([call("other", guided_decoding=GuidedDecodingParams(regex="b"))], tenant=Tenant("two"))
        )
        while blocked.running < 4:
            await asyncio.sleep(0.005)
        assert not any(task.done() for task in (*tasks, other))
        for each in hard:
            assert manager.abort(each.rid or "", tenant=Tenant("one"))
        assert manager.abort("other", tenant=Tenant("two"))
        ended = await asyncio.gather(*tasks, other, return_exceptions=True)
        assert {(type(each), getattr(each, "code", "")) for each in ended} == {(Refusal, "aborted")}
        assert blocked.running == 0

    asyncio.run(asyncio.wait_for(session(), 120))
    manager.close()


def test_the_time_of_a_request_covers_its_preparation(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = Blocked(llm, monkeypatch)
    manager = manager_of(llm, request_timeout=0.3)

    async def session() -> None:
        many = [call(f"{i}", guided_decoding=GuidedDecodingParams(regex="a")) for i in range(8)]
        with pytest.raises(Refusal) as refused:
            await manager.submit(many, tenant=Tenant())
        assert (refused.value.status, refused.value.code) == (504, "timeout")
        while blocked.running:
            await asyncio.sleep(0.005)
        assert manager._in_flight() == 0

    asyncio.run(asyncio.wait_for(session(), 120))
    manager.close()


@pytest.mark.slow
def test_six_hard_requests_stop_nobody() -> None:
    with Server("tiny") as server:
        over: list[int] = []

        def hard(number: int) -> None:
            params = {"n": 128, "max_new_tokens": 4, "close_grammar": True, "regex": HOSTILE + "z" * number}
            server.post("/generate", {"text": "a", "sampling_params": params}, timeout=300)
            over.append(number)

        threads = [threading.Thread(target=hard, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        while server.metric("tirage_requests_in_flight") < 4:
            assert not over
        plain = server.post("/generate", {"text": "Once", "sampling_params": {"max_new_tokens": 8}})
        waited = len(over)
        assert plain.json()["meta_info"]["completion_tokens"] == 8
        for thread in threads:
            thread.join(300)
        assert sorted(over) == list(range(6))
        # It came last; behind the six, as before, it would have been answered last.
        assert waited < 6
