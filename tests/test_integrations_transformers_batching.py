"""transformers' continuous batching with tirage inside: each request as `tirage.sample` alone would draw it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import small_torch
import torch
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.requests import RequestState

import tirage
from tirage import ParamsError, SamplingParams
from tirage.integrations.transformers_batching import draw_with_tirage

PROMPTS = [[5, 9, 14, 9, 5, 9, 14], [7, 7, 21], list(range(60, 20, -1)), [100]]
ASKED: list[dict[str, Any]] = [
    {"seed": 3, "top_p": 0.9, "repetition_penalty": 1.3, "temperature": 1.4},
    {"seed": 4, "min_p": 0.02, "no_repeat_ngram_size": 2, "mirostat": 2, "mirostat_tau": 3.0},
    {"seed": 5, "dry_multiplier": 0.8, "dry_allowed_length": 1, "semantics": "llamacpp"},
    {"temperature": 0.0},
]
SMALL = {"num_blocks": 8, "page_size": 32, "max_batch_tokens": 16, "max_memory_percent": 0.01}


@pytest.fixture
def model() -> Any:
    module = small_torch.build("llama", initializer_range=0.2)
    module.set_attn_implementation("eager")
    return module


def manager_of(model: Any, *, copies: int = 1, config: dict[str, Any] | None = None, **fields: Any) -> Any:
    if copies > 1:
        fields |= {"num_return_sequences": copies, "do_sample": True, "top_k": 0}
    asked = GenerationConfig(max_new_tokens=10, eos_token_id=-1, **fields)
    batching = ContinuousBatchingConfig(**{**SMALL, **(config or {})})
    return model.init_continuous_batching(generation_config=asked, continuous_batching_config=batching)


def results(manager: Any, asked: list[dict[str, Any]], count: int) -> dict[str, Any]:
    manager.start()
    try:
        for prompt, fields in zip(PROMPTS, asked, strict=True):
            manager.add_request(prompt, **fields)
        found = {}
        while len(found) < count:
            if result := manager.get_result(timeout=60):
                found[result.request_id] = result
        return found
    finally:
        manager.stop(block=True)


def redrawn(model: Any, prompt: list[int], params: SamplingParams, sample_index: int = 0) -> list[int]:
    output, state = list[int](), None
    for _ in range(10):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *output]])).logits[0, -1]
        draw = tirage.sample(logits, params, history=[(prompt, output)], sample_index=sample_index, state=state)
        output.append(int(draw.token_ids[0]))
        state = draw.states
    return output


@pytest.mark.slow
@pytest.mark.parametrize("copies", [1, 3])
def test_each_request_draws_what_it_draws_alone(model: Any, copies: int) -> None:
    manager = manager_of(model, copies=copies)
    draw_with_tirage(manager)
    found = results(manager, [{"tirage": fields} for fields in ASKED], copies * len(ASKED))
    model.set_attn_implementation("eager")
    for at, (prompt, fields) in enumerate(zip(PROMPTS, ASKED, strict=True)):
        for index in range(copies):
            result = found[f"req_{at}" + (f"__child#{index - 1}" if index else "")]
            assert result.error is None
            assert result.generated_tokens == redrawn(model, prompt, SamplingParams(**fields), index)


@pytest.mark.slow
def test_wrong_parameters_fail_their_own_request(model: Any) -> None:
    manager = manager_of(model)
    draw_with_tirage(manager, ASKED[0])
    asked = [{}, {"tirage": {"top_pp": 1}}, {"tirage": {"logit_bias": {"200": 1.0}}}, {"temperature": 0.5}]
    found = results(manager, asked, 4)
    model.set_attn_implementation("eager")
    assert found["req_0"].generated_tokens == redrawn(model, PROMPTS[0], SamplingParams(**ASKED[0]))
    assert "did you mean 'top_p'" in found["req_1"].error
    assert "logit_bias" in found["req_2"].error
    assert "Unknown logit_processor_kwargs" in found["req_3"].error


def test_a_row_that_cannot_be_drawn_fails_alone(model: Any) -> None:
    manager = manager_of(model)
    draw_with_tirage(manager)
    processor = manager.logit_processor.logits_processor[0]
    states = [RequestState(f"r{i}", list(prompt)) for i, prompt in enumerate(PROMPTS[:2])]
    processor.prepare_tensor_args([SimpleNamespace(state=state) for state in states])
    scores = torch.zeros(3, 200)
    scores[1, 7] = torch.nan
    left = processor(scores, torch.zeros(3))
    assert states[0].error is None
    assert states[1].error == "the row cannot be drawn: non_finite_logits"
    states[1].status = type(states[1].status)(2)
    assert states[1].update_and_check_completion(0, None)
    assert left.isfinite().sum(dim=1).tolist() == [1, 1, 1]


def test_a_preempted_request_goes_on_where_it_was(model: Any) -> None:
    manager = manager_of(model)
    draw_with_tirage(manager)
    processor = manager.logit_processor.logits_processor[0]
    kwargs: dict[str, Any] = {"tirage": {"temperature": 2.0, "repetition_penalty": 1.2}}
    manager.logit_processor.check_kwargs(kwargs)
    state = RequestState("r", PROMPTS[0], logit_processor_kwargs=kwargs, generated_tokens=[4, 4])
    after = state.create_equivalent_initial_request()
    scores = torch.randn(1, 200, generator=torch.Generator().manual_seed(1))
    drawn = []
    for step in ([SimpleNamespace(state=state)], [], [SimpleNamespace(state=after)]):
        processor.prepare_tensor_args(step)
        drawn.append(processor(scores[: len(step)], torch.zeros(1)).isfinite().nonzero().tolist())
    params = kwargs["tirage"]
    assert drawn[0] == drawn[2] == [[0, int(tirage.sample(scores, params, history=[(PROMPTS[0], [4, 4])]).token_ids)]]


def test_a_request_whose_state_nobody_knows_fails_alone(model: Any) -> None:
    manager = manager_of(model)
    draw_with_tirage(manager)
    processor = manager.logit_processor.logits_processor[0]
    asked: list[dict[str, Any]] = [{"tirage": {"mirostat": 2}}, {"tirage": {"seed": 3}}]
    for kwargs in asked:
        manager.logit_processor.check_kwargs(kwargs)
    states = [
        RequestState(f"r{at}", PROMPTS[at], logit_processor_kwargs=kwargs, generated_tokens=[4, 4])
        for at, kwargs in enumerate(asked)
    ]
    scores = torch.randn(2, 200, generator=torch.Generator().manual_seed(1))
    processor.prepare_tensor_args([SimpleNamespace(state=state) for state in states])
    tokens = processor(scores, torch.zeros(2)).argmax(-1).tolist()
    assert "mirostat must have drawn each token of its request" in states[0].error
    assert states[1].error is None
    expected = tirage.sample(scores[1], SamplingParams(seed=3), history=[(PROMPTS[1], [4, 4])])
    assert tokens[1:] == expected.token_ids.tolist()


@pytest.mark.parametrize("fields", [{"mirostat": 2, "mirostat_tau": 2.0}, {"adaptive_target": 0.3}], ids=str)
def test_a_preempted_request_keeps_its_state(model: Any, fields: dict[str, Any]) -> None:
    manager = manager_of(model)
    draw_with_tirage(manager)
    processor = manager.logit_processor.logits_processor[0]
    kwargs: dict[str, Any] = {"tirage": fields}
    manager.logit_processor.check_kwargs(kwargs)
    request = RequestState("r", PROMPTS[0], logit_processor_kwargs=kwargs)
    random, output, state = torch.Generator().manual_seed(1), list[int](), None
    for step in range(9):
        if step in {3, 4, 7}:
            processor.prepare_tensor_args([])
            request = request.create_equivalent_initial_request()
        scores = torch.randn(1, 200, generator=random) * 3
        processor.prepare_tensor_args([SimpleNamespace(state=request)])
        token = int(processor(scores, torch.zeros(1)).argmax())
        drawn = tirage.sample(scores, kwargs["tirage"], history=[(PROMPTS[0], output)], state=state)
        assert drawn.token_ids.tolist() == [token]
        state = drawn.states
        output.append(token)
        request.generated_tokens.append(token)


@pytest.mark.parametrize(
    ("fields", "config", "says"),
    [
        ({"do_sample": True, "temperature": 0.7}, {}, "must leave sampling to tirage, got .*Temperature"),
        ({}, {"use_async_batching": True}, "use_async_batching must be off"),
        ({}, {"use_cuda_graph": True}, "use_cuda_graph must be False"),
    ],
)
def test_a_manager_that_does_otherwise_is_refused(model: Any, fields: Any, config: Any, says: str) -> None:
    manager = manager_of(model, **fields)
    for name, value in config.items():
        setattr(manager.continuous_batching_config, name, value)
    with pytest.raises(ParamsError, match=says):
        draw_with_tirage(manager)


def test_what_is_no_manager_or_runs_already_is_refused(model: Any) -> None:
    with pytest.raises(ParamsError, match=r"transformers must be 5\.23 .* got \d"):
        draw_with_tirage(object())
    manager = manager_of(model)
    manager.batch_processor = object()
    with pytest.raises(ParamsError, match="must not have started"):
        draw_with_tirage(manager)
