"""What a long-lived engine keeps: what it was asked to keep, within a budget, and nothing of a request that is over."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from small_models import Script
from small_tokenizers import Letters
from small_torch import Numbers, build

from tirage import LLM, BeamSearchParams, GuidedDecodingParams, Prompt, SamplingParams, warmup
from tirage.engine import EngineRequest
from tirage.models.huggingface import wrap_module
from tirage.text.detokenizer import PieceDetokenizer

PARAMS = SamplingParams(max_tokens=4, seed=1)
LONG = PARAMS.replace(max_tokens=100, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("tiny") as made:
        made.generate("warm", PARAMS)
        yield made


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[weakref.ref[EngineRequest]]]:
    """Every request that is made, weakly, while the collector rests."""
    made: list[weakref.ref[EngineRequest]] = []
    init = EngineRequest.__init__

    def noted(self: EngineRequest, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        made.append(weakref.ref(self))

    monkeypatch.setattr(EngineRequest, "__init__", noted)
    gc.collect()
    gc.disable()
    yield made
    gc.enable()


def abandon(llm: LLM) -> None:
    deltas = llm.stream("a", LONG)
    next(deltas)
    del deltas


async def read(llm: LLM) -> None:
    async for _ in llm.astream("a", PARAMS):
        pass


WAYS: dict[str, Callable[[LLM], object]] = {
    "generate": lambda llm: llm.generate(["a", "b"], PARAMS),
    "samples": lambda llm: llm.generate("a", PARAMS.replace(n=2, best_of=3)),
    "scores": lambda llm: llm.generate("a", PARAMS.replace(logprobs=2, prompt_logprobs=2)),
    "constraint": lambda llm: llm.generate("a", PARAMS.replace(guided_decoding=GuidedDecodingParams(regex="[a-z]+"))),
    "beams": lambda llm: llm.beam_search("a", BeamSearchParams(beam_width=2, max_tokens=4)),
    "stream": lambda llm: list(llm.stream("a", PARAMS)),
    "astream": lambda llm: asyncio.run(read(llm)),
    "abandoned": abandon,
    "nothing to write": lambda llm: llm.generate("a", PARAMS.replace(max_tokens=0)),
}


def test_samples_of_a_long_prompt_share_its_cache(llm: LLM) -> None:
    tracemalloc.start()
    llm.generate(Prompt(token_ids=[5] * 428), PARAMS.replace(n=128, ignore_eos=True, max_tokens=2))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # 128 copies of the prompt's keys and values were 180 MB.
    assert peak < 24 << 20


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_request_that_is_over_is_freed_without_a_collector(
    llm: LLM, requests: list[weakref.ref[EngineRequest]], way: str
) -> None:
    WAYS[way](llm)
    assert requests
    for _ in range(1000):
        # The engine's thread may still be on its way out of the last step.
        llm.engine.call(lambda: None)
        if all(request() is None for request in requests):
            return
        time.sleep(0.01)
    raise AssertionError("a request is still referred to")


class Wide(Script):
    """Logits of 1.2 MB."""

    vocab_size = 300_000


@pytest.mark.slow
def test_streams_that_are_kept_keep_no_logits() -> None:
    with LLM(Wide("abcdef", max_length=50), tokenizer=Letters()) as llm:
        params = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=0)
        llm.engine.submit(llm.request("pqr", params)).wait(60)
        tracemalloc.start()
        streams = [llm.engine.submit(llm.request("pqr", params)) for _ in range(30)]
        assert all(stream.wait(120).finish_reason == "length" for stream in streams)
        llm.engine.call(lambda: None)
        # Of arrays alone: kernels may be loaded meanwhile, in a thread of their own.
        arrays = tracemalloc.take_snapshot().filter_traces([tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)])
        tracemalloc.stop()
    assert sum(trace.size for trace in arrays.traces) < 24 << 20


def test_hidden_states_hold_no_step_of_other_rows() -> None:
    model = wrap_module(build(), prefix_bytes=0)
    from tirage.models import Inputs

    rows = [model.open(Inputs(token_ids=(5, 6, 7), hidden_states=asks)) for asks in (True, False, False)]
    for row in rows:
        model.prefill_chunk(row)
    model.decode([8, 9, 10], rows)
    hidden = rows[0].hidden
    assert hidden is not None
    assert hidden.base is None
    assert rows[1].hidden is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma2", "mamba"])
def test_what_is_kept_for_reuse_fits_its_budget(name: str) -> None:
    budget = 300_000
    model = wrap_module(build(name), prefix_bytes=budget)
    rng = np.random.default_rng(0)
    histories = [rng.integers(4, 190, 40).tolist() for _ in range(4)]
    reused = 0
    with LLM(model, tokenizer=Numbers(), max_running=4) as llm:
        for turn in range(12):
            prompts = [each + rng.integers(4, 190, int(rng.integers(1, 60))).tolist() for each in histories]
            done = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
            reused += sum(one.usage.cached_tokens for one in done)
            histories[turn % 4] = (prompts[0] + list(done[0].token_ids))[:120]
            assert held_by(model) <= model.prefixes.used <= budget
        assert len(model.prefixes) > 0
        assert reused > 0 or name != "llama"
        assert model._groups == {}
        llm.engine.flush()
        assert (held_by(model), model.prefixes.used, len(model.prefixes)) == (0, 0, 0)
        assert not model.prefixes._blocks
        assert not model.prefixes._whole


def held_by(model: Any) -> int:
    """Bytes of all tensors in the store, each storage once."""
    found: dict[int, int] = {}
    for entry in model.prefixes._entries.values():
        stack: list[Any] = [layer.__dict__ for layer in entry.cache.layers]
        while stack:
            each = stack.pop()
            if isinstance(each, torch.Tensor) and each.ndim > 1:
                found[each.untyped_storage().data_ptr()] = each.untyped_storage().nbytes()
            elif isinstance(each, (dict, list, tuple)):
                stack += each.values() if isinstance(each, dict) else each
    return sum(found.values())


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_an_engine_that_lives_long_does_not_grow(kind: str) -> None:
    model: Any = wrap_module(build(), prefix_bytes=100_000) if kind == "torch" else Script("abcdef")
    tokenizer: Any = Numbers() if kind == "torch" else Letters()
    rng = np.random.default_rng(0)
    warmup()

    def some(count: int) -> None:
        for _ in range(count // 20):
            prompts = [Prompt(token_ids=rng.integers(60, 120, 8).tolist()) for _ in range(20)]
            llm.generate(prompts, SamplingParams(seed=1, max_tokens=3, n=2, bad_words_token_ids=[(5, 6)]))

    with LLM(model, tokenizer=tokenizer) as llm:
        some(500)
        tracemalloc.start()
        some(500)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        some(2000)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert llm.engine._unfinished == set()
    # Not 50 bytes a request.
    assert grown < 100_000


def test_long_parameters_are_remembered_by_nobody_else() -> None:
    from tirage.compiled_params import _compiled, compiled

    before = _compiled.cache_info().currsize
    long = [
        SamplingParams(logit_bias=dict.fromkeys(range(1000), 1.0), seed=987),
        SamplingParams(guided_decoding=GuidedDecodingParams(regex="a" * 10_000), seed=987),
        SamplingParams(bad_words_token_ids=[(i,) for i in range(100)], seed=987),
        SamplingParams(stop=[f"stop {i}" for i in range(100)], seed=987),
        SamplingParams(stop_token_ids=range(100), seed=987),
        SamplingParams(xtc_protected_ids=range(100), seed=987),
        SamplingParams(dry_breaker_token_ids=range(100), seed=987),
        SamplingParams(dry_sequence_breakers=[f"breaker {i}" for i in range(100)], seed=987),
        SamplingParams(dry_sequence_breakers=["a" * 10_000], seed=987),
        SamplingParams(bad_words_token_ids=[tuple(range(100))], seed=987),
    ]
    plans = [compiled(params) for params in long]
    assert _compiled.cache_info().currsize == before
    assert [compiled(params) for params in long] == plans
    assert compiled(SamplingParams(seed=987, top_p=0.123)) is compiled(SamplingParams(seed=987, top_p=0.123))
    assert _compiled.cache_info().currsize > before or before == _compiled.cache_info().maxsize


LEAVES = """
import sys
from tirage import LLM, SamplingParams
llm = LLM("tiny")
deltas = llm.stream("Once upon a time", SamplingParams(max_tokens=2000, ignore_eos=True))
next(deltas)
params = SamplingParams(max_tokens=2000, ignore_eos=True)
streams = llm.engine.submit_all([llm.request("The", params) for _ in range(4)])
print("left")
if sys.argv[1] == "raise":
    raise SystemExit(3)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("way", "code"), [("end", 0), ("raise", 3)])
def test_a_program_that_leaves_while_the_engine_writes_ends_in_peace(way: str, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", LEAVES, way], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "left\n", "")


# --- many samples of one prompt ------------------------------------------------------------------------------------


def test_a_prompt_is_read_once_whatever_the_number_of_its_samples(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed: list[int] = []
    push = PieceDetokenizer.push
    monkeypatch.setattr(
        PieceDetokenizer, "push", lambda self, token_id: pushed.append(token_id) or push(self, token_id)
    )
    prompt = Prompt(token_ids=range(10, 90))
    counts = []
    for params in (PARAMS, PARAMS.replace(n=128), PARAMS.replace(best_of=20)):
        pushed.clear()
        llm.request(prompt, params)
        counts.append(len(pushed))
    assert counts == [80, 80, 80]


def test_samples_that_wait_take_no_memory(llm: LLM) -> None:
    def held(n: int) -> int:
        gc.collect()
        tracemalloc.start()
        request = llm.request("Once upon a time", PARAMS.replace(n=n, stop=["abc"], bad_words=["cat"]))
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert request.sample_count == n
        return size

    held(128)
    assert held(128) - held(1) < 1000
