"""Packed linear layers: the same products, one copy of each weight, and a reason where there are none."""

from __future__ import annotations

import logging
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from small_torch import Numbers, alone, build
from torch import nn

from tirage import LLM, Prompt, SamplingParams
from tirage.models.huggingface import HuggingFaceModel, open_folder, wrap_module
from tirage.models.huggingface.int8 import product
from tirage.models.huggingface.packed_linear import PackedLinear, pack

PACKS = torch.backends.mkldnn.is_available()
"""Whether this PyTorch can pack at all; where it cannot, the same tests hold for layers left as they are."""
PACKS_BFLOAT16 = PACKS and torch.ops.mkldnn._is_mkldnn_bf16_supported()
"""Whether this processor multiplies packed bfloat16 weights."""
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = [[5, 9, 13], [70, 60, 50, 40, 30], [100] * 9]


def layers_of(module: nn.Module, kind: type) -> list[Any]:
    return [layer for layer in module.modules() if type(layer) is kind]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", [(7, 5), (64, 172), (288, 1), (1, 33)])
def test_a_packed_layer_multiplies_as_before(dtype: torch.dtype, bias: bool, size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    module: Any = nn.Sequential(nn.Linear(*size, bias=bias, dtype=dtype))
    before, weight = module[0], module[0].weight.detach().clone()
    assert pack(module) is (PACKS_BFLOAT16 if dtype is torch.bfloat16 else PACKS)
    layer: Any = module[0]
    assert torch.equal(layer.weight, weight)
    assert (layer.in_features, layer.out_features) == size
    shapes = [(1,), (4,), (300,), (2, 3), (3, 1), (0,)]
    inputs = [torch.randn(*shape, size[0], dtype=dtype) for shape in shapes]
    inputs += [torch.randn(3, 2, size[0], dtype=dtype).transpose(0, 1), torch.randn(size[0], dtype=dtype)]
    with torch.inference_mode():
        for x in inputs:
            got, want = layer(x), before(x)
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            torch.testing.assert_close(got, want, rtol=2e-2 if dtype is torch.bfloat16 else 1e-4, atol=2e-2)


@pytest.mark.parametrize("name", ["_reorder_linear_weight", "_linear_pointwise"])
def test_without_the_operation_layers_stay_as_they_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = SimpleNamespace(**{
        each: None for each in ("_reorder_linear_weight", "_linear_pointwise") if each != name
    })
    monkeypatch.setattr(torch.ops, "mkldnn", missing)
    module: Any = nn.Sequential(nn.Linear(7, 5))
    assert pack(module) is False
    assert type(module[0]) is nn.Linear


def test_int8_sums_are_the_same_without_torchs_own_product(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x, weight = (torch.randint(-127, 128, size, dtype=torch.int8) for size in ((20, 4096), (4096, 24)))
    x[0], weight[:, 0] = 127, 127
    own = product(x, weight)
    monkeypatch.delattr(torch, "_int_mm", raising=False)
    assert torch.equal(product(x, weight), own)
    assert own[0, 0] == 127 * 127 * 4096


def test_a_packed_module_frees_the_weights_that_it_replaces_but_a_tied_one() -> None:
    module: Any = build(tie_word_embeddings=True)
    head, embedding = module.lm_head.weight, module.get_input_embeddings().weight
    assert head is embedding
    gone = weakref.ref(module.model.layers[0].mlp.up_proj.weight)
    names = {name for name, _ in module.named_parameters() if "proj" in name}
    assert pack(module) is PACKS
    assert module.get_input_embeddings().weight is embedding
    assert torch.equal(module.lm_head.weight, embedding)
    assert (module.lm_head.weight.data_ptr() == embedding.data_ptr()) is not PACKS
    assert (gone() is None) is PACKS
    assert names
    assert [name for name, _ in module.named_parameters() if "proj" in name] == ([] if PACKS else sorted(names))


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Sequential(nn.ReLU()), "no linear layers"),
        (nn.Sequential(nn.Linear(3, 4, dtype=torch.float64)), "float64 on cpu is multiplied well enough"),
        (nn.Sequential(nn.Linear(3, 4, device="meta")), "float32 on meta is multiplied well enough"),
    ],
)
def test_what_cannot_be_packed_stays_and_the_log_says_why(
    module: nn.Module, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    layers = list(module.modules())
    with caplog.at_level(logging.INFO, "tirage"):
        assert pack(module) is False
    assert reason in caplog.text
    assert all(a is b for a, b in zip(module.modules(), layers, strict=True))


@pytest.mark.parametrize(
    ("broken", "reason"), [(RuntimeError("no such kernel"), "no such kernel"), (None, "results differ by 1.0e+00")]
)
def test_a_library_that_fails_or_is_wrong_is_found_out(
    broken: Exception | None, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forward(self: PackedLinear, x: torch.Tensor) -> torch.Tensor:
        if broken is not None:
            raise broken
        return torch.zeros(*x.shape[:-1], self.out_features)

    monkeypatch.setattr(PackedLinear, "forward", forward)
    module = nn.Sequential(nn.Linear(3, 4))
    with caplog.at_level(logging.INFO, "tirage"):
        assert pack(module) is False
    assert type(module[0]) is nn.Linear
    assert reason in caplog.text or not PACKS


@pytest.mark.slow
def test_a_folder_is_packed_and_writes_what_generate_writes_alone(tmp_path: Path) -> None:
    module = build()
    module.save_pretrained(tmp_path)
    model = open_folder(tmp_path)
    assert model.packed is PACKS
    assert bool(layers_of(model.module, PackedLinear)) is PACKS
    with LLM(model, tokenizer=Numbers()) as llm:
        done = llm.generate(PROMPTS, GREEDY)
    assert [list(one.token_ids) for one in done] == [alone(module, prompt, 12) for prompt in PROMPTS]
    assert not layers_of(open_folder(tmp_path, dtype="int8").module, PackedLinear)


def test_a_module_in_memory_is_packed_when_asked() -> None:
    module = build()
    assert not wrap_module(module).packed
    assert not layers_of(module, PackedLinear)
    model = wrap_module(module, packed=True)
    assert model.packed is PACKS
    numerics = model.numerics()
    assert (numerics["packed"], numerics["dtype"], numerics["device"]) == (PACKS, "float32", "cpu")
    assert numerics["threads"] == torch.get_num_threads()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_adapters_run_over_packed_layers(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, target_modules=["q_proj", "up_proj"], lora_alpha=64, task_type="CAUSAL_LM")
    adapted: Any = get_peft_model(build(), config)
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.3)
    adapted.save_pretrained(tmp_path)
    prompts = [Prompt(token_ids=ids, adapter=name) for ids, name in zip(PROMPTS, ["a", None, "a"], strict=True)]
    found = []
    for packed in (False, True):
        model = HuggingFaceModel(build(), adapters={"a": tmp_path}, packed=packed)
        assert bool(layers_of(model.module, PackedLinear)) is (packed and PACKS)
        with LLM(model, tokenizer=Numbers()) as llm:
            found.append([one.token_ids for one in llm.generate(prompts, GREEDY)])
    assert found[0] == found[1]
    assert found[0][0] != tuple(alone(build(), PROMPTS[0], 12))
    assert np.size(found) == 2 * 3 * 12
