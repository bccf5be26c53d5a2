"""tirage inside vLLM: what it draws is what `tirage.sample` draws from the same rows, whatever the engine does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import entry_points
from typing import Any

import pytest
import torch
from captured import CapturingProcessor, Row, captured, differing, engine, preemptions
from every_parameter import company, operators_own, requests
from llama_folder import PROMPTS
from vllm import LLM, SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams

import tirage
from tirage.integrations.vllm import TirageLogitsProcessor, versions

SEEDED = company()


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """128 tokens to a block, 14 blocks: 16 requests that grow past one block do not fit."""
    made = engine(tmp_path_factory.mktemp("llama"), num_gpu_blocks_override=14)
    yield made
    made.llm_engine.engine_core.shutdown()


def asking(fields: Any, **own: Any) -> SamplingParams:
    return SamplingParams(
        **{"max_tokens": 8, "temperature": 0, "ignore_eos": True, **own}, extra_args={"tirage": fields}
    )


def run(llm: LLM, params: Sequence[SamplingParams], prompts: Sequence[str] = PROMPTS) -> list[list[int]]:
    given = [prompts[at % len(prompts)] for at in range(len(params))]
    return [list(out.outputs[0].token_ids) for out in llm.generate(given, list(params), use_tqdm=False)]


def rows_of(call: Callable[[], Any]) -> list[Row]:
    return list(captured(call))


def test_the_installed_package_is_found_by_its_entry_point() -> None:
    found = [each for each in entry_points(group="vllm.logits_processors") if each.name == "tirage"]
    assert [each.load() for each in found] == [TirageLogitsProcessor]


@pytest.mark.parametrize("temperature", [0, 1])
def test_every_parameter_draws_what_it_draws_alone(llm: LLM, temperature: int) -> None:
    given = [*requests(), *operators_own()]
    texts: list[list[int]] = []
    own = [asking(fields, temperature=temperature, max_tokens=4) for fields in given]
    neighbours = [SamplingParams(max_tokens=4, top_p=0.5, presence_penalty=0.5, min_p=0.1) for _ in range(8)]
    rows = rows_of(lambda: texts.extend(run(llm, [*own, *neighbours])))
    assert differing(rows) == []
    assert {row.request.params.seed for row in rows} == {fields["seed"] for fields in given}
    spoken = {row.request.params.seed: [] for row in rows}
    for row in rows:
        spoken[row.request.params.seed] = [*row.output, row.token]
    assert [spoken[fields["seed"]] for fields in given] == texts[: len(given)]


def test_what_is_left_in_a_row_is_the_drawn_token(llm: LLM) -> None:
    rows = rows_of(lambda: run(llm, [asking({"seed": 1}, temperature=1), asking({"seed": 1}, temperature=0)]))
    assert [int((row.left > -torch.inf).sum()) for row in rows if row.request.alone] == [1] * 8
    assert all(int(row.left.argmax()) == row.token for row in rows)


def test_alone_is_as_in_a_batch_and_as_beside_a_neighbour_that_is_aborted(llm: LLM) -> None:
    params = [asking(fields, max_tokens=12) for fields in SEEDED]
    together = run(llm, params)
    assert [run(llm, [one], [PROMPTS[at % 8]])[0] for at, one in enumerate(params)] == together
    running = llm.llm_engine
    for at, one in enumerate(params):
        running.add_request(str(at), PROMPTS[at % 8], one)
    finished: dict[str, list[int]] = {}
    for step in range(40):
        if step == 3:
            running.abort_request([str(at) for at in range(0, 16, 2)])
        for out in running.step():
            if out.finished:
                finished[out.request_id] = list(out.outputs[0].token_ids)
    assert {key: finished[key] for key in map(str, range(1, 16, 2))} == {
        str(at): together[at] for at in range(1, 16, 2)
    }


def test_preempted_requests_go_on_as_if_they_had_not_been(llm: LLM) -> None:
    params = [asking(fields, max_tokens=130) for fields in SEEDED]
    before, texts = preemptions(llm), []
    rows = rows_of(lambda: texts.extend(run(llm, params)))
    assert preemptions(llm) > before
    assert differing(rows) == []
    assert texts[-4:] == [run(llm, [one], [PROMPTS[at % 8]])[0] for at, one in list(enumerate(params))[-4:]]


def test_prompts_in_chunks_and_cached_prefixes_change_nothing(llm: LLM) -> None:
    prompt = "the cat sat on the mat and said: " * 6
    texts: list[list[int]] = []
    rows = rows_of(lambda: texts.extend(run(llm, [asking(SEEDED[3])] * 2, [prompt])))
    rows += rows_of(lambda: texts.extend(run(llm, [asking(SEEDED[3])], [prompt])))
    assert len(rows[0].prompt) > 128
    assert differing(rows) == []
    assert texts[0] == texts[1] == texts[2]


def test_samples_of_one_request_are_told_apart(llm: LLM) -> None:
    def several(own: SamplingParams) -> list[tuple[int, ...]]:
        return [tuple(out.token_ids) for out in llm.generate(["a"], own, use_tqdm=False)[0].outputs]

    seeded = asking({"seed": 5}, seed=5, n=4, temperature=1)
    rows = rows_of(lambda: several(seeded))
    assert {row.request.sample_index for row in rows} == {0, 1, 2, 3}
    assert differing(rows) == []
    assert several(seeded) == several(seeded)
    assert len({*several(seeded)}) == 4
    assert len({*several(asking({}, n=4, temperature=1))}) == 4


@pytest.mark.parametrize("fields", [{"seed": 1, "temperature": 1.5}, {"seed": 2, "top_k": 3}, {"temperature": 0.0}])
def test_a_structured_output_is_respected(llm: LLM, fields: dict[str, Any]) -> None:
    pattern = r"[a-f]{3}-[0-9]{4}"
    own = asking(fields, max_tokens=24, ignore_eos=False, structured_outputs=StructuredOutputsParams(regex=pattern))
    texts: list[str] = []
    rows = rows_of(lambda: texts.append(llm.generate(["a"], own, use_tqdm=False)[0].outputs[0].text))
    assert re.fullmatch(pattern, texts[0])
    assert any(bool((row.logits == -torch.inf).any()) for row in rows)
    assert differing(rows) == []


def test_masks_of_vllm_hold(llm: LLM) -> None:
    fields = {"seed": 3, "temperature": 2.0}
    allowed = run(llm, [asking(fields, allowed_token_ids=[7, 9], max_tokens=20)])[0]
    assert {*allowed} == {7, 9}
    banned = run(llm, [asking(fields, logit_bias={7: 100.0, 9: 99.0}, max_tokens=20)])[0]
    assert {*banned} == {7, 9}
    late = asking({"seed": 3, "allowed_token_ids": [5, 511]}, min_tokens=9, max_tokens=40, ignore_eos=False)
    said = run(llm, [late])[0]
    assert said[:9] == [5] * 9
    assert said[-1] == 511


def test_logprobs_of_vllm_are_those_of_the_model(llm: LLM) -> None:
    rows: list[Row] = []
    own = asking({"seed": 3, "top_k": 2}, logprobs=2, prompt_logprobs=1, max_tokens=3)
    out: list[Any] = []
    rows = rows_of(lambda: out.extend(llm.generate(["a b c"], own, use_tqdm=False)))
    for row, told in zip(rows, out[0].outputs[0].logprobs, strict=True):
        expected = float(row.logits.log_softmax(-1)[row.token])
        assert told[row.token].logprob == pytest.approx(expected, abs=1e-4)
    assert len(out[0].prompt_logprobs) == len(rows[0].prompt)


def test_a_row_that_cannot_be_drawn_ends_its_own_request(llm: LLM) -> None:
    bad = asking({"seed": 1, "allowed_token_ids": [5]}, allowed_token_ids=[6], ignore_eos=False)
    endless = asking({"seed": 1, "allowed_token_ids": [5]}, allowed_token_ids=[6])
    good = [asking(fields) for fields in SEEDED[:3]]
    texts = run(llm, [good[0], bad, good[1], endless, good[2]])
    assert texts[1] == [511]
    assert len(texts[3]) == 8
    assert [texts[0], texts[2], texts[4]] == run(llm, [good[0], bad, good[1], bad, good[2]])[::2]


def test_a_processor_that_fails_ends_its_own_request(llm: LLM) -> None:
    def fail(logits: Any, args: Any) -> Any:
        raise RuntimeError("no")

    tirage.register_processor("fails", fail, replace=True)
    bad = asking({"seed": 1, "logits_processors": [["fails", {}]]}, ignore_eos=False)
    good = [asking(fields) for fields in SEEDED[:3]]
    texts = run(llm, [good[0], bad, good[1], bad, good[2]])
    assert texts[1] == texts[3] == [511]
    assert texts[::2] == run(llm, [good[0], good[0], good[1], good[1], good[2]])[::2]


def test_a_vllm_that_is_not_known_refuses_requests_that_ask(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_version", lambda: "0.34.1")
    versions.unknown.cache_clear()
    try:
        with pytest.raises(VLLMValidationError, match=r"must run in vLLM 0\.32 or 0\.33, got 0\.34\.1"):
            run(llm, [asking({"seed": 1})])
        assert len(run(llm, [SamplingParams(max_tokens=8, ignore_eos=True)])[0]) == 8
    finally:
        versions.unknown.cache_clear()


@pytest.mark.parametrize(
    ("fields", "own", "says"),
    [
        ({"top_pp": 1}, {}, "did you mean 'top_p'"),
        ({"top_p": 2}, {}, "top_p must be"),
        ({"max_tokens": 3}, {}, "give it to vLLM itself"),
        ({"bad_words": ["x"]}, {}, "tokeniz"),
        ({"allowed_token_ids": [512]}, {}, "512 columns"),
        ("{", {}, "JSON"),
        ({}, {"temperature": 0.7}, "temperature of vLLM must be 0 or 1"),
        ({}, {"temperature": 1, "top_p": 0.9}, "top_p of vLLM must be 1.0"),
        ({}, {"repetition_penalty": 1.2}, "repetition_penalty of vLLM must be 1.0"),
        ({"seed": 4}, {"seed": 5}, "seed of vLLM must be that of tirage"),
        ({"seed": 4}, {"n": 2, "temperature": 1}, "give vLLM the same seed, 4"),
    ],
)
def test_what_is_wrong_is_refused_before_it_runs(llm: LLM, fields: Any, own: dict[str, Any], says: str) -> None:
    with pytest.raises(VLLMValidationError, match=says):
        run(llm, [asking(fields, **own)])


def test_requests_that_do_not_ask_are_left_to_vllm(llm: LLM) -> None:
    own = SamplingParams(max_tokens=8, seed=3, top_p=0.9, extra_args={"another": 1})
    assert rows_of(lambda: run(llm, [own])) == []
    assert CapturingProcessor.rows == []
