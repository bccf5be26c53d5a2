"""Whatever peft's own `generate` can do with a LoRA adapter, rows of a batch do too, beside rows of others and none."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from published import SEEING, publish
from small_torch import Numbers, alone, build
from test_published import PICTURES, SOUND, inputs_of, load_published
from transformers.models.llama import LlamaForCausalLM

from tirage import LLM, ModelError, Prompt, SamplingParams
from tirage.models.huggingface import adapters as adapters_module
from tirage.models.huggingface import wrap_module

# peft asks transformers 5 for a name that it has renamed, and looks for experts where there are none.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys did not match:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers` to `True`:UserWarning"),
]
COUNT = 8
GREEDY = SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True)
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "DoRA": ("llama", {"target_modules": ["q_proj", "v_proj"], "use_dora": True}),
    "biases": ("qwen2", {"target_modules": ["q_proj"], "bias": "all"}),
    "every linear layer of DeepSeek-V3": ("deepseek_v3", {"target_modules": "all-linear"}),
    "every linear layer of Mixtral": ("mixtral", {"target_modules": "all-linear"}),
    "every linear layer of OPT": ("opt", {"target_modules": "all-linear"}),
    "every linear layer of Qwen3-MoE": ("qwen3_moe", {"target_modules": "all-linear"}),
    "every linear layer of Qwen3-Next": ("qwen3_next", {"target_modules": "all-linear"}),
    "experts as parameters": (
        "mixtral",
        {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]},
    ),
    "gate_proj of Qwen2-MoE": ("qwen2_moe", {"target_modules": ["gate_proj"]}),
    "PiSSA": ("llama", {"target_modules": ["q_proj", "v_proj"], "init_lora_weights": "pissa"}),
    "Mamba": ("mamba", {"target_modules": ["in_proj", "x_proj"]}),
    "saved embeddings": ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}),
    "saved head": ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}),
    "saved norm": ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["norm"]}),
    "embeddings and head": ("llama", {"target_modules": ["q_proj", "embed_tokens", "lm_head"]}),
    "some tokens": ("llama", {"target_modules": ["q_proj"], "trainable_token_indices": [5, 6, 7, 50]}),
}
MORE = {f"every linear layer of {name}" for name in ("OPT", "Qwen3-MoE", "Qwen3-Next")}
"""What the linear layers of Mixtral and DeepSeek-V3 show as well."""


def write_adapter(module: Any, folder: Path, *, seed: int = 0, **config: Any) -> Path:
    """A random adapter that changes a module a lot, saved as peft saves it."""
    adapted: Any = get_peft_model(module, LoraConfig(r=4, lora_alpha=64, **config))
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name or "lora_embedding_B" in name or "tokens_delta" in name:
                weight.normal_(std=0.3)
            if "modules_to_save" in name or (config.get("bias") == "all" and name.endswith("bias")):
                weight.add_(torch.randn_like(weight), alpha=0.5)
    adapted.save_pretrained(folder)
    return folder


def rows() -> list[tuple[list[int], str | None]]:
    rng = np.random.default_rng(0)
    names = [(9, "odd"), (5, None), (12, "plain"), (7, "odd"), (9, None), (3, "plain")]
    return [(rng.integers(4, 196, length).tolist(), name) for length, name in names]


def by_peft(name: str, adapters: Mapping[str, Path]) -> list[list[int]]:
    """What peft's own `generate` writes for each row with its adapter alone."""
    modules = {each: adapted(name, folder) for each, folder in {None: None, **adapters}.items()}
    return [written(modules[adapter], ids) for ids, adapter in rows()]


def adapted(name: str, folder: Path | None) -> Any:
    module = build(name)
    return module if folder is None else PeftModel.from_pretrained(module, str(folder)).eval()


def written(module: Any, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    options = {"max_new_tokens": COUNT, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with torch.inference_mode():
        ids = module.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
    return ids[0, len(prompt) :].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.exhaustive] * (k in MORE)) for k in KINDS])
def test_rows_of_every_kind_of_adapter_write_what_peft_writes(kind: str, tmp_path: Path) -> None:
    name, config = KINDS[kind]
    build(name).save_pretrained(tmp_path / "base")
    plain = {"target_modules": config["target_modules"]}
    adapters = {
        "odd": write_adapter(build(name), tmp_path / "odd", seed=1, **config),
        "plain": write_adapter(build(name), tmp_path / "plain", seed=2, **plain),
    }
    expected = by_peft(name, adapters)
    assert len({tuple(written(adapted(name, folder), rows()[0][0])) for folder in (None, *adapters.values())}) == 3
    llm = LLM(tmp_path / "base", tokenizer=Numbers(), adapters=adapters)
    prompts = [Prompt(token_ids=ids, adapter=adapter) for ids, adapter in rows()]
    assert [list(done.token_ids) for done in llm.generate(prompts, GREEDY)] == expected
    assert [list(llm.generate(prompt, GREEDY)[0].token_ids) for prompt in prompts] == expected


@pytest.mark.slow
def test_adapters_that_a_mixed_pass_gets_wrong_have_passes_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build().save_pretrained(tmp_path / "base")
    adapters = {
        name: write_adapter(build(), tmp_path / name, seed=seed, target_modules=["q_proj", "down_proj"])
        for seed, name in enumerate(("odd", "plain"))
    }
    monkeypatch.setattr(adapters_module, "is_close", lambda *_: False)
    llm = LLM(tmp_path / "base", tokenizer=Numbers(), adapters=adapters)
    expected = by_peft("llama", adapters)
    prompts = [Prompt(token_ids=ids, adapter=adapter) for ids, adapter in rows()]
    assert [list(done.token_ids) for done in llm.generate(prompts, GREEDY)] == expected


def test_an_adapter_with_passes_of_its_own_shares_the_weights_of_the_model(tmp_path: Path) -> None:
    folder = write_adapter(build(), tmp_path / "x", target_modules=["q_proj"], use_dora=True)
    model = wrap_module(build(), adapters={"x": folder}, packed=True)
    (tree,) = model.adapters.trees
    base, own = (root.model.layers[0] for root in (model.module, tree))
    assert own.mlp.up_proj is base.mlp.up_proj
    assert own.self_attn.q_proj.base_layer is base.self_attn.q_proj
    assert tree.lm_head is model.module.lm_head


class Strict(LlamaForCausalLM):
    """A model that runs with PyTorch's own layers only."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        kind = type(self.model.layers[0].self_attn.q_proj)
        if kind is not torch.nn.Linear:
            raise RuntimeError(f"cannot read {kind.__name__}")
        return super().forward(*args, **kwargs)


def test_an_adapter_that_cannot_be_run_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    folder = write_adapter(build(), tmp_path / "x", target_modules=["q_proj"])
    message = r"adapter 'x' in .* cannot be run with the model; merge it .* or leave it out: RuntimeError: cannot read"
    with pytest.raises(ModelError, match=message):
        wrap_module(Strict(build().config).eval(), adapters={"x": folder})


@pytest.mark.parametrize("key", ["alora_invocation_tokens", "layer_replication"])
def test_adapters_that_change_more_than_layers_are_refused(key: str, tmp_path: Path) -> None:
    folder = write_adapter(build(), tmp_path / "x", target_modules=["q_proj"])
    path = folder / "adapter_config.json"
    path.write_text(path.read_text().replace(f'"{key}": null', f'"{key}": [1]'))
    with pytest.raises(ModelError, match=rf"{key} must be absent, .* is not supported; merge the adapter"):
        wrap_module(build(), adapters={"x": folder})


@pytest.mark.slow
def test_int8_takes_adapters(tmp_path: Path) -> None:
    build().save_pretrained(tmp_path / "base")
    adapters = {
        "plain": write_adapter(build(), tmp_path / "plain", target_modules=["q_proj"]),
        "dora": write_adapter(build(), tmp_path / "dora", target_modules=["v_proj"], use_dora=True),
    }
    exact, rough = (
        LLM(tmp_path / "base", tokenizer=Numbers(), adapters=adapters, dtype=dtype) for dtype in ("float32", "int8")
    )
    for name in (None, "plain", "dora"):
        prompt = Prompt(token_ids=[5, 6, 7, 8], adapter=name)
        want, got = (llm.generate(prompt, GREEDY.replace(logprobs=1, max_tokens=1))[0] for llm in (exact, rough))
        assert want.logprobs is not None
        assert got.logprobs is not None
        assert 0 < abs(want.logprobs[0].top[0].logprob - got.logprobs[0].top[0].logprob) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llava", pytest.param("qwen2_audio", marks=pytest.mark.slow)])
def test_an_adapter_of_the_eyes_and_ears_takes_several_pictures_and_sounds(name: str, tmp_path: Path) -> None:
    folder = publish(name, tmp_path / "base")
    place = write_adapter(load_published(folder), tmp_path / "x", target_modules=["q_proj", "v_proj"])
    if name == "qwen2_audio":
        mark, given = "<|audio_bos|><|AUDIO|><|audio_eos|>", {"audio": [SOUND, SOUND[:5000]]}
    else:
        mark, given = SEEING[name][1], {"images": PICTURES}
    make = partial(Prompt, text=f"A {mark} and {mark} are what?", **given)
    prompts = [make(adapter="x"), make(), Prompt(text="plain", adapter="x"), Prompt(text="plain words")]
    expected = []
    for prompt in prompts:
        module = load_published(folder)
        module = module if prompt.adapter is None else PeftModel.from_pretrained(module, str(place)).eval()
        inputs = inputs_of(name, folder, prompt)
        expected.append(alone_with(module, inputs))
    assert expected[0] != expected[1]
    llm = LLM(folder, adapters={"x": place})
    assert [list(done.token_ids) for done in llm.generate(prompts, GREEDY)] == expected


def alone_with(module: Any, inputs: dict[str, Any]) -> list[int]:
    ids = inputs.pop("input_ids")
    inputs.pop("attention_mask", None)
    return alone(module, ids[0].tolist(), COUNT, **inputs)
