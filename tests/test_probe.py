"""How a path is chosen: by the model itself and by a small float32 one of its class, with prompts beyond its bounds."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from published_shapes import SHAPES
from small_torch import ARCHITECTURES, Numbers, alone, build
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM

from tirage import LLM, SamplingParams
from tirage.models.huggingface import probe, wrap_module
from tirage.models.huggingface.small_replica import BOUND, count_parameters, small_config, small_replica

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def loud(name: str, **changes: Any) -> Any:
    module = build(name, **changes)
    for part in module.modules():
        if isinstance(part, torch.nn.Linear):
            torch.nn.init.normal_(part.weight, std=part.in_features**-0.5)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_on_modules_is_found_in_every_precision(dtype: torch.dtype) -> None:
    model = wrap_module(build("recurrent_gemma").to(dtype))
    assert (model.path, model.chunk, model.resumes) == ("recomputed", None, False)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_convolution_that_forgets_between_pieces_is_found_in_every_precision(dtype: torch.dtype) -> None:
    model = wrap_module(build("jamba").to(dtype))
    assert (model.path, model.chunk, model.resumes) == ("joined", None, True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["jamba", "mamba"])
def test_prompts_longer_than_a_piece_and_second_turns_are_read_right(name: str) -> None:
    module, rng = loud(name, max_position_embeddings=2048), np.random.default_rng(0)
    prompts = [rng.integers(4, 196, length).tolist() for length in (300, 20)]
    with LLM(wrap_module(module), tokenizer=Numbers()) as llm:
        for _ in range(2):
            done = llm.generate(prompts, GREEDY)
            assert [list(one.token_ids) for one in done] == [alone(module, prompt, 12) for prompt in prompts]
            prompts = [
                [*prompt, *one.token_ids, *rng.integers(4, 196, 9).tolist()]
                for prompt, one in zip(prompts, done, strict=True)
            ]
        assert all(one.usage.cached_tokens for one in done)


class Leaking(LlamaForCausalLM):
    """Every pass sees a little of the one before it, far below what bfloat16 can tell."""

    before: Any = 0.0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = super().forward(*args, **kwargs)
        leaked, self.before = self.before, out.logits.mean()
        out.logits = out.logits + 0.05 * leaked
        return out


@pytest.mark.slow
def test_a_leak_between_rows_below_the_noise_of_the_weights_is_found() -> None:
    module = Leaking(build().config).to(torch.bfloat16).eval()
    assert wrap_module(module).path != "joined"
    assert wrap_module(build().to(torch.bfloat16)).path == "joined"


@pytest.mark.slow
def test_a_class_is_examined_once_and_leaves_torchs_generator_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Any] = []
    monkeypatch.setattr(probe, "_known", {})
    monkeypatch.setattr(probe, "small_replica", lambda module: built.append(module) or small_replica(module))
    torch.manual_seed(4)
    expected = torch.rand(3)
    module = build(seed=7)
    torch.manual_seed(4)
    wrap_module(module)
    assert torch.equal(torch.rand(3), expected)
    wrap_module(build(seed=8).to(torch.bfloat16))
    assert len(built) == 1
    wrap_module(build("mistral"))
    assert len(built) == 2


def test_a_model_of_which_no_small_one_can_be_built_is_tried_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(probe, "_known", {})
    monkeypatch.setattr("tirage.models.huggingface.small_replica._MOST_PARAMETERS", 10)
    with caplog.at_level(logging.INFO, "tirage"):
        assert wrap_module(build()).path == "joined"
    assert "was tried with short prompts alone: no small model of its class could be tried" in caplog.text


def test_a_model_that_no_path_reproduces_is_named_in_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    module = build()
    plain, calls = module.lm_head.forward, [0]

    def restless(x: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        return plain(x) * (1 + calls[0] % 7)

    module.lm_head.forward = restless
    with caplog.at_level(logging.WARNING, "tirage"):
        assert wrap_module(module).path == "recomputed"
    assert "no path gives the logits of the model's own generation loop" in caplog.text


# The small model.


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(ARCHITECTURES) - {"rwkv"}))
def test_a_small_configuration_of_every_architecture_builds(name: str) -> None:
    config = AutoConfig.for_model(name, **{"vocab_size": 1000, **ARCHITECTURES[name]})
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config)
    small = small_config(module.config, narrow=True)
    assert count_parameters(type(module), small) < 5_000_000
    assert small.get_text_config(decoder=True).vocab_size <= 256


@pytest.mark.parametrize("name", ["Phi-3-mini-128k", "Mistral-7B-v0.1", "Gemma-3", "RecurrentGemma", "Llama-4"])
def test_the_bounds_of_a_small_model_lie_below_its_prompts(name: str) -> None:
    kind, settings, _ = SHAPES[name]
    config = AutoConfig.for_model(kind, **settings)
    small = small_config(config, narrow=True)
    names = ("sliding_window", "attention_window_size", "attention_chunk_size", "original_max_position_embeddings")
    bounds = [value for value in (getattr(small, name, None) for name in names) if value is not None]
    assert bounds
    assert max(bounds) <= BOUND
    assert config.to_dict() == AutoConfig.for_model(kind, **settings).to_dict()


@pytest.mark.slow
def test_a_wide_model_becomes_narrow_and_keeps_its_heads_size() -> None:
    published = {"hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 80}
    config = AutoConfig.for_model("llama", **published, intermediate_size=28672, vocab_size=128256, pad_token_id=128004)
    with torch.device("meta"):
        module = LlamaForCausalLM(config)
    twin = small_replica(module)
    assert twin.config.hidden_size == 512
    assert twin.model.layers[0].self_attn.head_dim == 128
    assert twin.dtype == torch.float32
    assert sum(each.numel() for each in twin.parameters()) < 3_000_000
