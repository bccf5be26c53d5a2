"""Configurations that declare more than their weights hold: refused before memory is taken, on every backend."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from small_torch import Numbers, build

import tirage
from tirage import LLM, SamplingParams
from tirage.errors import ModelError
from tirage.models import load
from tirage.models.folder import open_model
from tirage.models.huggingface import declared_size, open_folder
from tirage.models.huggingface.declared_size import check_declared_size, declared_numbers, stored_numbers
from tirage.models.json_file import MAX_LABELS, MAX_LAYERS

TINY = Path(tirage.__file__).parent / "models" / "tiny"
TWO = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)


def edit(folder: Path, name: str = "config.json", **changes: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """Saves a small model of an architecture; its folder."""

    def save(name: str = "llama", **changes: Any) -> Path:
        build(name, **changes).save_pretrained(tmp_path / name)
        return tmp_path / name

    return save


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama", {"vocab_size": 10**8}),
        ("llama", {"hidden_size": 10**6}),
        ("llama", {"num_hidden_layers": MAX_LAYERS, "hidden_size": 256}),
        ("llama", {"head_dim": 10**8}),
        ("gpt2", {"n_positions": 10**7}),
        ("gpt_neo", {"max_position_embeddings": 10**5}),
        ("mixtral", {"num_local_experts": MAX_LAYERS}),
    ],
    ids=str,
)
def test_a_config_far_larger_than_its_weights_is_refused_before_it_is_loaded(
    saved: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, name: str, changes: dict[str, Any]
) -> None:
    folder, kind = edit(saved(name), **changes), type(build(name))

    def loaded(*_: Any, **__: Any) -> None:
        raise AssertionError("memory would be taken")

    monkeypatch.setattr(kind, "from_pretrained", loaded)
    with pytest.raises(ModelError, match=r"config\.json must declare at most 1[78],\d+,\d+ numbers, 4 times .* got \d"):
        open_folder(folder)


@pytest.mark.parametrize(
    ("name", "value", "most"),
    [
        ("num_local_experts", MAX_LAYERS + 1, MAX_LAYERS),
        ("num_labels", MAX_LABELS + 1, MAX_LABELS),
        ("attention_types", [[["global", "local"], 10**9]], MAX_LAYERS),
    ],
)
def test_counts_that_libraries_repeat_are_refused_by_name(
    saved: Callable[..., Path], name: str, value: Any, most: int
) -> None:
    with pytest.raises(ModelError, match=rf"config\.json: {name} must be at most {most}, got \d+"):
        open_folder(edit(saved(), **{name: value}))


@pytest.mark.slow
def test_both_sides_of_the_declared_size(saved: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, module = saved(), build()
    stored = stored_numbers(folder, is_quantised=False)
    assert stored == sum(each.numel() for each in module.state_dict().values())
    declared = declared_numbers(type(module), module.config)
    for slack, is_right in ((declared - 4 * stored, True), (declared - 4 * stored - 1, False)):
        monkeypatch.setattr(declared_size, "SLACK", slack)
        if is_right:
            check_declared_size(type(module), module.config, folder)
        else:
            with pytest.raises(ModelError, match=f"must declare at most {declared - 1:,} numbers.*got {declared:,};"):
                check_declared_size(type(module), module.config, folder)


def test_words_of_quantised_weights_count_as_several_numbers(saved: Callable[..., Path]) -> None:
    folder = saved()
    weights = folder / "model.safetensors"
    packed = {name: torch.zeros((*each.shape[:-1], -(-each.shape[-1] // 8)), dtype=torch.int32)
              for name, each in load_file(weights).items()}  # fmt: skip
    save_file(packed, weights)
    declared = declared_numbers(type(build()), build().config)
    # Eight numbers of four bits in each word of four bytes.
    assert 4 * stored_numbers(folder, is_quantised=True) > declared > 4 * stored_numbers(folder, is_quantised=False)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_tied_weights_and_every_dtype_still_load(
    saved: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    monkeypatch.setattr(declared_size, "SLACK", 0)
    folder = saved("llama", tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    assert open_folder(folder, dtype=dtype).vocab_size


@pytest.mark.slow
def test_the_compact_form_still_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declared_size, "SLACK", 0)
    assert open_folder(TINY).vocab_size == load(TINY).vocab_size


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_adapters_load_and_ranks_above_their_weights_are_refused(saved: Callable[..., Path], tmp_path: Path) -> None:
    base, adapter = saved(), tmp_path / "adapter"
    made: Any = get_peft_model(build(), LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    made.save_pretrained(adapter)
    most = max(size for each in load_file(adapter / "adapter_model.safetensors").values() for size in each.shape)
    with LLM(base, tokenizer=Numbers(), adapters={"a": adapter}) as llm:
        assert llm.generate([[5, 6]], TWO)[0].finish_reason == "length"
    for changes in ({"r": most + 1}, {"rank_pattern": {"q_proj": 10**9}}):
        edit(adapter, "adapter_config.json", **{"r": 4, "rank_pattern": {}, **changes})
        with pytest.raises(ModelError, match=rf"adapter_config\.json: r must be at most {most}, the largest dim"):
            open_folder(base, adapters={"a": adapter})


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{"hidden_size": 10**6}, {"head_dim": 10**8}, {"num_hidden_layers": 10**9}, {"vocab_size": 10**8}],
    ids=str,
)
def test_the_models_of_our_own_compare_before_they_take_memory(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = edit(Path(shutil.copytree(TINY, tmp_path / "model")), **changes)
    for backend in ("numpy", "jax"):
        with pytest.raises(ModelError, match=r"tensor '.*' (is missing|must have shape .* by config\.json)"):
            open_model(folder, backend=backend)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numpy", "jax"])
def test_a_context_of_any_length_takes_no_memory(tmp_path: Path, backend: str) -> None:
    folder = edit(Path(shutil.copytree(TINY, tmp_path / "model")), max_position_embeddings=10**12)
    with LLM(folder, backend=backend) as llm, LLM(TINY, backend=backend) as usual:
        found, wanted = (each.generate("Once", TWO)[0].token_ids for each in (llm, usual))
    assert found == wanted
