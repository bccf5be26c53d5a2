"""LoRA adapters: a different one, or none, for every row of a batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from small_torch import Numbers, alone, build

from tirage import LLM, BeamSearchParams, ModelError, ParamsError, Prompt, SamplingParams

# peft asks transformers 5 for a name that it has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A base model and two adapters that change it a lot."""
    root = tmp_path_factory.mktemp("lora")
    build().save_pretrained(root / "base")
    for seed, name in enumerate(("first", "second")):
        config = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], lora_alpha=64, task_type="CAUSAL_LM")
        adapted: Any = get_peft_model(build(), config)
        torch.manual_seed(seed)
        for weight_name, weight in adapted.named_parameters():
            if "lora_B" in weight_name:
                torch.nn.init.normal_(weight, std=0.3)
        adapted.save_pretrained(root / name)
    return {name: root / name for name in ("base", "first", "second")}


@pytest.fixture(scope="module")
def llm(folders: dict[str, Path]) -> LLM:
    adapters = {name: folders[name] for name in ("first", "second")}
    return LLM(folders["base"], tokenizer=Numbers(), adapters=adapters)


def expected(folders: dict[str, Path], prompt: list[int], adapter: str | None) -> list[int]:
    """What the base with that adapter alone writes by `generate`."""
    module = build()
    if adapter is not None:
        module = PeftModel.from_pretrained(module, str(folders[adapter])).merge_and_unload()
    return alone(module, prompt, 12)


@pytest.mark.slow
def test_rows_with_different_adapters_and_none_write_what_each_writes_alone(llm: LLM, folders: dict[str, Path]) -> None:
    rng = np.random.default_rng(0)
    cases = [(rng.integers(4, 196, n).tolist(), adapter) for n, adapter in [
        (20, "first"), (7, None), (33, "second"), (20, None), (12, "first"), (5, "second"),
    ]]  # fmt: skip
    done = llm.generate([Prompt(token_ids=ids, adapter=adapter) for ids, adapter in cases], GREEDY)
    wanted = [expected(folders, ids, adapter) for ids, adapter in cases]
    assert [list(one.token_ids) for one in done] == wanted
    assert len({tuple(expected(folders, cases[0][0], adapter)) for adapter in (None, "first", "second")}) == 3


@pytest.mark.slow
def test_one_adapters_cache_does_not_serve_another(llm: LLM, folders: dict[str, Path]) -> None:
    ids = np.random.default_rng(1).integers(4, 196, 40).tolist()
    for adapter in ("first", "second", None, "first"):
        done = llm.generate(Prompt(token_ids=ids, adapter=adapter), GREEDY)[0]
        assert list(done.token_ids) == expected(folders, ids, adapter)
    assert done.usage.cached_tokens == 39


@pytest.mark.slow
def test_a_beam_search_reads_its_prompt_with_the_prompts_adapter(llm: LLM, folders: dict[str, Path]) -> None:
    ids = np.random.default_rng(1).integers(4, 196, 9).tolist()
    lone = BeamSearchParams(beam_width=1, max_tokens=12, ignore_eos=True)
    for adapter in ("first", None):
        found = llm.beam_search(Prompt(token_ids=ids, adapter=adapter), lone)[0]
        assert expected(folders, ids, adapter) == list(found.token_ids)


def test_an_unknown_adapter_is_refused_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(
        ParamsError, match=r"adapter must be a loaded one \(first, second\), got 'frist'; did you mean 'first'"
    ):
        llm.generate(["5 6", Prompt(text="5 6", adapter="frist")], GREEDY)


def test_a_model_without_adapters_says_so(folders: dict[str, Path]) -> None:
    with pytest.raises(ParamsError, match=r"adapter must be a loaded one \(none\), got 'first'"):
        LLM(folders["base"], tokenizer=Numbers()).generate(Prompt(text="5 6", adapter="first"), GREEDY)


def test_a_folder_that_is_no_lora_in_safetensors_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    def opened() -> LLM:
        return LLM(folders["base"], tokenizer=Numbers(), adapters={"odd": tmp_path})

    with pytest.raises(ModelError, match=r"adapter 'odd' must be a folder with adapter_config\.json and"):
        opened()
    config = json.loads((folders["first"] / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**config, "peft_type": "IA3"}))
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="peft_type must be 'LORA'"):
        opened()
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"adapter 'odd' in .* does not fit the model"):
        opened()
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"adapter_config\.json is not valid JSON"):
        opened()


@pytest.mark.slow
@pytest.mark.parametrize("bounds", [(20, 25, 40), (10, 30)])
def test_rows_with_adapters_cross_buckets_alone_and_in_company(
    llm: LLM, folders: dict[str, Path], bounds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tirage.models.huggingface.model._BUCKETS", bounds)
    rng = np.random.default_rng(1)
    cases = [(rng.integers(4, 196, n).tolist(), adapter) for n, adapter in [
        (18, "first"), (18, None), (18, "second"), (33, "first"), (4, None),
    ]]  # fmt: skip
    wanted = [expected(folders, ids, adapter) for ids, adapter in cases]
    prompts = [Prompt(token_ids=ids, adapter=adapter) for ids, adapter in cases]
    assert [list(one.token_ids) for one in llm.generate(prompts, GREEDY)] == wanted
    assert [list(llm.generate([prompt], GREEDY)[0].token_ids) for prompt in prompts] == wanted


@pytest.mark.slow
def test_explanations_are_of_the_logits_of_the_prompts_adapter(llm: LLM) -> None:
    ids = np.random.default_rng(0).integers(4, 196, 20).tolist()
    firsts = set[int]()
    for adapter in (None, "first", "second"):
        prompt = Prompt(token_ids=ids, adapter=adapter)
        drawn = llm.generate(prompt, GREEDY)[0].token_ids
        firsts.add(drawn[0])
        assert llm.explain(prompt, GREEDY).token_id == drawn[0]
        assert [each.token_id for each in llm.compare(prompt, [GREEDY, GREEDY]).explanations] == [drawn[0]] * 2
        text = llm.explain_text(prompt, GREEDY)
        assert [(each.token.token_id, each.drawn) for each in text.tokens] == [(each, True) for each in drawn]
        earlier = Prompt(token_ids=ids[:9], adapter=adapter)
        assert llm.explain(prompt, GREEDY, position=8).token_id == llm.generate(earlier, GREEDY)[0].token_ids[0]
    assert len(firsts) > 1
