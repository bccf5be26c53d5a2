"""Texts that must close within a budget, in the engine: they do exactly when some completion fits."""

from __future__ import annotations

import gc
import json
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from test_guided_fewest import BY_BYTE, DEPTH, TASKS, Task, fewest
from test_guided_libraries import LIBRARIES

from tirage import LLM, BeamSearchParams, Completion, GuidedDecodingParams, SamplingParams
from tirage.guided import BYTES, ClosingPath, CompletionFinder, Vocabulary, json_schema
from tirage.guided.closing.budgets import WorkLimitError
from tirage.guided.closing.shortest_completion import _BEFORE_TEXT, CompletionState
from tirage.text import Stop


class Cut:
    """A user's own tokenizer: the tokens of a task, and an end."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._tokens = [*tokens, b""]

    def encode(self, text: str) -> list[int]:
        return [0]

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self._tokens[i] for i in ids).decode("utf-8", "replace")


class Noise:
    """Random logits, other ones after every text, as arrays of one library."""

    max_length = 64

    def __init__(self, vocab_size: int, library: str) -> None:
        self.vocab_size, self._as = vocab_size, LIBRARIES[library]

    def prefill(self, token_ids: Sequence[int]) -> tuple[Any, list[int]]:
        return self._as(self._logits(list(token_ids))), list(token_ids)

    def decode(self, token_ids: Sequence[int], caches: Sequence[list[int]]) -> Any:
        for cache, token in zip(caches, token_ids, strict=True):
            cache.append(token)
        return self._as(np.stack([self._logits(cache) for cache in caches]))

    def fork(self, cache: list[int]) -> list[int]:
        return list(cache)

    def _logits(self, tokens: list[int]) -> NDArray[np.float32]:
        return (np.random.default_rng(tokens).normal(size=self.vocab_size) * 2).astype(np.float32)


def ascii_task(kind: str, rng: random.Random) -> tuple[Task, int]:
    """A task of single-byte characters that some completion ends, and the fewest tokens of all."""
    while True:
        task = TASKS[kind](rng)
        task = Task(task.mode, tuple(token for token in task.tokens if token.isascii()), task.accepts)
        least = fewest(task, b"", BY_BYTE.compile(task.guided).matcher(), frozenset())
        if least is not None and 1 <= least <= DEPTH:
            return task, least


def open_llm(task: Task, library: str) -> LLM:
    width = len(task.tokens) + 1
    end = {"eos_token_id": width - 1}
    model: Any = Noise(width, library)
    return LLM(model, tokenizer=Cut(task.tokens), generation_config=end)


def asked(task: Task, limit: int, seed: int, **params: Any) -> SamplingParams:
    return SamplingParams(seed=seed, max_tokens=limit, close_grammar=True, guided_decoding=task.guided, **params)


def check(task: Task, done: Completion, fits: bool) -> None:
    for sample in done.samples:
        text = b"".join((*task.tokens, b"")[i] for i in sample.token_ids)
        assert sample.grammar_complete is fits, (task.mode, task.tokens, text)
        assert task.accepts(text) is fits
        assert fits or sample.finish_reason in {"length", "error"}


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("kind", TASKS)
def test_a_text_closes_exactly_when_its_tokens_allow_it(kind: str, library: str) -> None:
    rng = random.Random(f"{kind} {library}")
    for _ in range(4 if library == "numpy" else 1):
        task, least = ascii_task(kind, rng)
        llm = open_llm(task, library)
        limits = [limit for limit in range(least - 2, least + 4) if limit > 0]
        requests = [asked(task, limit, seed) for limit in limits for seed in range(3 if library == "numpy" else 1)]
        for params, done in zip(requests, llm.generate(["p"] * len(requests), requests), strict=True):
            check(task, done, (params.max_tokens or 0) >= least)
        lone = [llm.generate("p", params)[0].token_ids for params in requests[::4]]
        assert lone == [done.token_ids for done in llm.generate(["p"] * len(requests[::4]), requests[::4])]


@pytest.mark.slow
@pytest.mark.parametrize("kind", TASKS)
def test_every_sample_and_every_beam_closes_too(kind: str) -> None:
    rng = random.Random(f"{kind} beams")
    for _ in range(3):
        task, least = ascii_task(kind, rng)
        llm = open_llm(task, "numpy")
        for limit in range(least, least + 3):
            check(task, llm.generate("p", asked(task, limit, 1, n=3))[0], True)
            check(task, llm.generate("p", asked(task, limit, 1, temperature=0))[0], True)
            sampling = SamplingParams(close_grammar=True, guided_decoding=task.guided)
            beams = BeamSearchParams(beam_width=2, max_tokens=limit)
            check(task, llm.beam_search("p", beams, sampling=sampling)[0], True)


def test_the_completion_of_fewest_tokens_is_taken_where_fewer_bytes_take_more() -> None:
    tokens = (b"a", b"b", b"1", b"bcxya")
    task = Task({"regex": "b1|bcxy(a|b)"}, tokens, lambda text: text in {b"b1", b"bcxya", b"bcxyb"})
    done = open_llm(task, "numpy").generate("p", asked(task, 1, 1))[0]
    assert (done.text, done.stop) == ("bcxya", Stop(kind="grammar", matched="close_grammar"))


def test_far_from_the_end_of_the_budget_nothing_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: ClosingPath, most: int) -> bool:
        raise AssertionError("searched")

    monkeypatch.setattr("tirage.guided.closing.shortest_completion.CompletionState.fewest", never)
    task = Task({"json": {"enum": ["a", "b"]}}, BYTES.tokens[:128], lambda text: json.loads(text) in {"a", "b"})
    check(task, open_llm(task, "numpy").generate("p", asked(task, 40, 1))[0], True)


def test_few_grammars_and_searches_of_long_schemas_are_kept() -> None:
    def closed(number: int, length: int) -> SamplingParams:
        schema = {"type": "integer", "title": str(number), "description": "x" * length}
        return SamplingParams(max_tokens=9, guided_decoding=GuidedDecodingParams(json=schema), close_grammar=True)

    json_schema.forget_schemas()
    with LLM("tiny") as llm:
        for number in range(10):
            llm.request("a", closed(number, 10))
        assert len(llm.constraints._finders) == 8
        assert len(json_schema._KEPT) == 10
        for number in range(3):
            llm.request("a", closed(number, 50_000))
        assert len(llm.constraints._finders) == 1
        assert len(json_schema._KEPT) == 2
        llm.request("a", closed(3, 140_000))
        assert len(json_schema._KEPT) == 1


def test_garbage_collection_passes_over_most_of_a_search() -> None:
    schema = {"type": "object", "properties": {f"w{index}": {"type": "integer"} for index in range(400)}}
    with LLM("tiny") as llm:
        vocabulary = Vocabulary.of(llm.tokenizer, llm.model.vocab_size)
        gc.collect()
        before = len(gc.get_objects())
        finder = CompletionFinder(GuidedDecodingParams(json=schema), vocabulary)
        assert CompletionState(finder, frozenset()).fewest(40)
        gc.collect()
        # Seventy where what is left of an expression is an object of its own.
        assert len(gc.get_objects()) - before < 20 * 400


@pytest.mark.parametrize(("count", "searched"), [(205, False), (204, True)])
def test_a_search_over_bytes_is_not_made_where_the_rules_say_that_it_finds_nothing(
    monkeypatch: pytest.MonkeyPatch, count: int, searched: bool
) -> None:
    def fail(self: CompletionState, most: int, *_: object) -> None:
        raise WorkLimitError

    asked = list[object]()
    for name in ("fewest", "shortest"):
        monkeypatch.setattr(CompletionState, name, fail)
    for name in ("shortest", "straight"):
        monkeypatch.setattr(f"tirage.guided.closing.path.{name}", lambda *given: asked.append(given))
    names = [f"w{index:04}" for index in range(count)]
    # A member takes 10 bytes at least, with its comma, and the braces one more: 205 take 2,051, and 204 take 2,041.
    schema = {"properties": {name: {"type": "integer"} for name in names}, "required": names, "type": "object"}
    guided = GuidedDecodingParams(json=schema)
    with LLM("tiny") as llm:
        llm.request("a", SamplingParams(max_tokens=400, guided_decoding=guided, close_grammar=True))
    assert bool(asked) is searched


def test_an_answer_before_a_text_is_searched_once_in_turn_and_then_known_without_one() -> None:
    finder = CompletionFinder(GuidedDecodingParams(regex="a{3}b"), BYTES)
    _BEFORE_TEXT.begin()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(CompletionState(finder, frozenset()).fewest, 9)
        while not _BEFORE_TEXT.is_wanted:
            time.sleep(0.001)
        assert not asked.done()
        _BEFORE_TEXT.end()
        assert asked.result(60) == [*b"aaab"]
        _BEFORE_TEXT.begin()
        try:
            assert pool.submit(CompletionState(finder, frozenset()).fewest, 9).result(60) == [*b"aaab"]
        finally:
            _BEFORE_TEXT.end()
    assert not _BEFORE_TEXT.is_wanted


LISTED = {"type": "array", "items": {"type": "string", "minLength": 3, "maxLength": 30}, "minItems": 1, "maxItems": 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prompt", "params"),
    [
        # A sample's own paths and work decide when it must close, whatever another one with the same tokens has found.
        (
            "<think>",
            {
                "seed": 24,
                "n": 3,
                "max_tokens": 2,
                "top_k": 40,
                "reasoning_parser": "qwen3",
                "guided_regex": "[ab ]{3,9}",
            },
        ),
        ("a a", {"seed": 30, "n": 24, "max_tokens": 8, "temperature": 3.0, "guided_json": LISTED}),
    ],
    ids=["reasoning", "work"],
)
def test_samples_close_alike_one_after_another_and_together(prompt: str, params: dict[str, Any]) -> None:
    modes = {name: params[f"guided_{name}"] for name in ("regex", "json") if f"guided_{name}" in params}
    rest = {name: value for name, value in params.items() if not name.startswith("guided_")}
    asked = SamplingParams(close_grammar=True, guided_decoding=GuidedDecodingParams(**modes), **rest)
    found = []
    for running in (1, 3, 24):
        with LLM("tiny", max_running=running, prefix_bytes=0) as llm:
            found.append([sample.token_ids for sample in llm.generate(prompt, asked)[0].samples])
    assert found[0] == found[1] == found[2]
