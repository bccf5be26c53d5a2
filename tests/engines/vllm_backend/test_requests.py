"""Requests through vLLM's engine get what they get in tirage's own: exactly from the same logits, whose model is one.

`assert_same` records the logits of vLLM and lets tirage's own engine answer from them: tokens, texts, stops and every
bit of every logprob agree. The model in NumPy has logits of its own, a few millionths away.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

import every_parameter
import pytest
from llama_folder import PROMPTS
from recorded import own_engine, recording

import tirage
from tirage import LLM, Completion, GuidedDecodingParams, Prompt, SamplingParams

LONG = [7 + at * 13 % 480 for at in range(300)]


def texts(completions: list[Completion]) -> list[Any]:
    """What is drawn, said and why it ended, of each sample."""
    return [
        [(s.token_ids, s.text, s.finish_reason, s.stop, s.grammar_complete) for s in each.samples]
        for each in completions
    ]


def content(completion: Completion) -> Any:
    """All of a completion that does not differ in time or in what was cached."""
    return completion.samples, completion.seed, completion.usage.total_tokens, completion.prompt_token_ids


def assert_same(llm: LLM, prompts: Any, params: Any) -> list[Completion]:
    with recording(llm) as recorded:
        found = llm.generate(prompts, params)
    assert recorded.changed == 0.0
    with own_engine(recorded, llm) as own:
        assert [*map(content, found)] == [*map(content, own.generate(prompts, params))]
    return found


def test_every_parameter_of_a_draw(llm: LLM, own: LLM) -> None:
    asked = [*every_parameter.requests(), *every_parameter.operators_own()]
    given = [SamplingParams.from_dict({**fields, "max_tokens": 10}) for fields in asked]
    prompts = [PROMPTS[at % len(PROMPTS)] for at in range(len(given))]
    found = assert_same(llm, prompts, given)
    assert sum(len(each.token_ids) for each in found) > 1000
    assert texts(found) == texts(own.generate(prompts, given))


GUIDED = GuidedDecodingParams
REQUESTS = {
    "greedy": SamplingParams(seed=1, temperature=0.0, max_tokens=40),
    "stop": SamplingParams(seed=2, max_tokens=60, stop=["e", "ab"], min_tokens=4),
    "stop kept": SamplingParams(seed=2, max_tokens=60, stop=["i"], include_stop_str_in_output=True),
    "stop tokens": SamplingParams(seed=3, max_tokens=60, stop_token_ids=(100, 101, 102, 110, 120), ignore_eos=True),
    "pattern": SamplingParams(seed=4, max_tokens=60, stop_pattern="[aeiou]{2}"),
    "no text": SamplingParams(seed=5, max_tokens=9, detokenize=False),
    "samples": SamplingParams(seed=6, max_tokens=12, n=3, logprobs=2),
    "best of": SamplingParams(seed=7, max_tokens=12, n=2, best_of=4),
    "raw": SamplingParams(seed=8, max_tokens=9, temperature=0.5, top_k=5, logprobs=3),
    "processed": SamplingParams(seed=8, max_tokens=9, temperature=0.5, top_k=5, logprobs=3, logprobs_mode="processed"),
    "sampled": SamplingParams(seed=8, max_tokens=9, temperature=0.5, top_k=5, logprobs=3, logprobs_mode="sampled"),
    "named": SamplingParams(seed=9, max_tokens=9, logprobs=0, logprob_token_ids=(5, 99)),
    "words": SamplingParams(seed=11, max_tokens=40, bad_words=["a", "er"], bad_words_level="text"),
    "regex": SamplingParams(seed=12, max_tokens=20, guided_decoding=GUIDED(regex="[a-d]{3,9}(x|yz)")),
    "choice": SamplingParams(seed=13, max_tokens=20, guided_decoding=GUIDED(choice=("yes", "no", "perhaps"))),
    "closed": SamplingParams(seed=14, max_tokens=12, close_grammar=True, guided_decoding=GUIDED(regex="(ab|ba)+!")),
    "json": SamplingParams(
        seed=15,
        max_tokens=60,
        close_grammar=True,
        guided_decoding=GUIDED(json={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}),
    ),
    "sglang": SamplingParams(seed=16, max_tokens=20, semantics="sglang", top_p=0.8, top_k=20, frequency_penalty=0.3),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_everything_besides_the_draw(llm: LLM, name: str) -> None:
    assert_same(llm, list(PROMPTS), REQUESTS[name])


@pytest.mark.parametrize(("count", "tokens"), [(3, 5), (0, 5), (2, 0)])
def test_logprobs_of_prompts(llm: LLM, own: LLM, count: int, tokens: int) -> None:
    params = SamplingParams(seed=10, max_tokens=tokens, prompt_logprobs=count)
    prompts = [*PROMPTS, LONG]
    found, expected = llm.generate(prompts, params), own.generate(prompts, params)
    assert texts(found) == texts(expected)
    for one, other in zip(found, expected, strict=True):
        mine, others = one.prompt_logprobs or (), other.prompt_logprobs or ()
        assert (len(mine), mine[0]) == (len(one.prompt_token_ids), None)
        for entry, reference in zip(mine[1:], others[1:], strict=True):
            assert (entry.token_id, entry.rank) == (reference.token_id, reference.rank)
            assert [each.token_id for each in entry.top] == [each.token_id for each in reference.top]
            assert [each.rank for each in entry.top] == [*range(1, count + 1)]
            values = [each.logprob for each in (entry, *entry.top)]
            assert values == pytest.approx([each.logprob for each in (reference, *reference.top)], abs=1e-4)


def test_json_is_closed_in_time(llm: LLM) -> None:
    for each in llm.generate(list(PROMPTS), REQUESTS["json"]):
        assert each.grammar_complete


def test_long_prompts_are_read_in_chunks_beside_running_requests(llm: LLM) -> None:
    prompts = [LONG[:length] for length in (300, 3, 150, 64, 65, 1)]
    assert_same(llm, prompts, SamplingParams(seed=3, max_tokens=20, top_p=0.9, repetition_penalty=1.2))


def test_preempted_requests_draw_the_same_tokens(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = llm.model._scheduler  # type: ignore[union-attr]
    preempted: list[Any] = []
    preempt = scheduler._preempt_request
    monkeypatch.setattr(scheduler, "_preempt_request", lambda *a, **k: (preempted.append(a), preempt(*a, **k))[1])
    params = SamplingParams(seed=5, n=2, max_tokens=150, ignore_eos=True, presence_penalty=0.5, logprobs=1)
    assert_same(llm, [[*LONG[at : at + 20]] for at in range(8)], params)
    assert preempted


def test_a_request_alone_is_that_in_a_batch_of_sixteen(llm: LLM) -> None:
    params = [SamplingParams(seed=seed, max_tokens=30, top_p=0.95) for seed in range(16)]
    together = llm.generate([PROMPTS[0]] * 16, params)
    assert texts(together) == [texts(llm.generate(PROMPTS[0], each))[0] for each in params]


def test_a_stream_is_the_whole_in_parts(llm: LLM) -> None:
    params = REQUESTS["samples"].replace(max_tokens=40)
    whole = llm.generate(PROMPTS[0], params)[0]
    deltas = list(llm.stream(PROMPTS[0], params))
    for sample in whole.samples:
        mine = [each for each in deltas if each.index == sample.index]
        assert "".join(each.text for each in mine) == sample.text
        assert [i for each in mine for i in each.token_ids] == list(sample.token_ids)
    assert len(deltas) > 40

    async def collect() -> str:
        return "".join([each.text async for each in llm.astream(PROMPTS[0], params.replace(n=1))])

    assert asyncio.run(collect()) == whole.text


def test_chats_and_explanations(llm: LLM, own: LLM) -> None:
    messages = [{"role": "user", "content": "hello"}]
    params = SamplingParams(seed=4, max_tokens=12)
    assert llm.chat(messages, params).text == own.chat(messages, params).text
    mine, other = (
        each.explain(PROMPTS[1], SamplingParams(seed=4, top_k=7, top_p=0.8)).to_dict() for each in (llm, own)
    )
    assert [each["candidates_after"] for each in mine["stages"]] == [
        each["candidates_after"] for each in other["stages"]
    ]


def test_prefixes_are_shared_within_a_salt_alone(llm: LLM) -> None:
    def cached(salt: str) -> int:
        prompt = Prompt(token_ids=LONG[:100], salt=salt)
        return llm.generate(prompt, SamplingParams(max_tokens=2, seed=1))[0].usage.cached_tokens

    assert cached("a") == 0
    assert cached("a") == 96
    assert cached("b") == 0
    llm.engine.flush()
    assert cached("a") == 0


def test_a_text_may_fill_the_context(llm: LLM) -> None:
    found = llm.generate([LONG[:200] * 5], SamplingParams(seed=1, max_tokens=None, ignore_eos=True))[0]
    assert (found.finish_reason, found.stop and found.stop.kind) == ("length", "context")
    assert found.usage.total_tokens == llm.model.max_length == 1024


def test_logprobs_are_finite_and_sorted(llm: LLM) -> None:
    found = llm.generate(PROMPTS[0], SamplingParams(seed=1, max_tokens=6, logprobs=5))[0]
    for entry in found.logprobs or ():
        tops = [each.logprob for each in entry.top]
        assert tops == sorted(tops, reverse=True)
        assert all(map(math.isfinite, tops))


def test_a_registered_processor_changes_logits(llm: LLM) -> None:
    def forbid(logits: Any, args: Any) -> Any:
        logits[:, args[0]["below"] :] = -math.inf
        return logits

    tirage.register_processor("below", forbid, replace=True)
    params = SamplingParams(seed=1, max_tokens=20, logits_processors=(("below", {"below": 40}),))
    assert max(llm.generate(PROMPTS[0], params)[0].token_ids) < 40
