"""The V2 model runner's own loader and types; the runner itself needs Triton, which this environment's CPU lacks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.v1.worker.gpu.sample.logits_processor import (
    LogitsContext,
    LogitsProcRequestState,
    build_custom_logits_processors,
    build_custom_logits_processors_params_validator,
)

import tirage
from tirage.integrations.vllm import versions

V = 64
PROMPT = [3, 5, 8]
FIELDS: dict[str, Any] = {"seed": 2, "repetition_penalty": 1.5, "presence_penalty": 0.4, "top_k": 9}
NAME = "tirage.integrations.vllm:TirageLogitsProcessor"


def asking(fields: Any, **own: Any) -> SamplingParams:
    return SamplingParams(temperature=0, extra_args={"tirage": fields}, **own)


def test_the_adapter_knows_this_vllm() -> None:
    assert versions.unknown() == ""
    assert len(versions.interfaces()) == 2


def test_its_loader_validates_by_the_adapter() -> None:
    validate = build_custom_logits_processors_params_validator([NAME])
    validate(asking(FIELDS))
    validate(SamplingParams(top_p=0.5))
    with pytest.raises(VLLMValidationError, match="did you mean 'top_p'"):
        validate(asking({"top_pp": 1}))


def test_its_types_carry_a_request_through_drafts() -> None:
    tokens = torch.zeros(4, 64, dtype=torch.int32)
    lengths = [SimpleNamespace(np=np.full(4, len(PROMPT), np.int32)) for _ in range(2)]
    state = SimpleNamespace(
        device=torch.device("cpu"),
        max_num_reqs=4,
        vocab_size=V,
        all_token_ids=SimpleNamespace(gpu=tokens),
        prompt_len=lengths[0],
        prefill_len=lengths[1],
        total_len=None,
    )
    assert isinstance(LogitsProcRequestState.from_request_state(state), LogitsProcRequestState)
    config: Any = SimpleNamespace(
        model_config=SimpleNamespace(get_vocab_size=lambda: V),
        parallel_config=SimpleNamespace(world_size=1),
    )
    made = build_custom_logits_processors(config, state, False, [NAME])[-1]
    tokens[2, :4] = torch.tensor([*PROMPT, 11])
    assert made.add_request(2, asking(FIELDS))
    assert not made.add_request(1, SamplingParams())
    made.apply_staged_writes()
    logits = torch.from_numpy(np.random.default_rng(0).standard_normal((3, V)).astype(np.float32) * 3)
    context = LogitsContext(
        expanded_idx_mapping=torch.tensor([1, 2, 2]),
        idx_mapping=torch.tensor([1, 2]),
        idx_mapping_np=np.array([1, 2]),
        expanded_local_pos=torch.tensor([0, 0, 1]),
        input_ids=torch.tensor([9, 11, 13]),
        pos=torch.tensor([7, 3, 4]),
        seq_lens_upper_bound_np=np.array([8, 5]),
    )
    left = made.apply(logits.clone(), context)
    assert torch.equal(left[0], logits[0])
    params = tirage.SamplingParams(**FIELDS)
    expected = tirage.sample(logits[1:], [params] * 2, history=[(PROMPT, [11]), (PROMPT, [11, 13])]).token_ids
    assert left[1:].argmax(-1).tolist() == expected.tolist()
