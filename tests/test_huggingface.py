"""Folders on PyTorch: what is read, what is refused, and how rows share a step."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_llama import CONFIG, random_tensors, write_folder
from small_tokenizers import byte_level_tokenizer
from small_torch import Numbers, alone, build
from transformers import AutoConfig

import tirage
from tirage import LLM, ModelError, ParamsError, Prompt, SamplingParams
from tirage.models import Inputs, find_folder
from tirage.models.huggingface import HuggingFaceModel, open_folder, wrap_module
from tirage.models.huggingface.probe import choose_path

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama over bytes, with its tokenizer."""
    config = {**CONFIG, "vocab_size": 264, "max_position_embeddings": 1500}
    path = write_folder(tmp_path_factory.mktemp("llama"), random_tensors(config), **config)
    byte_level_tokenizer().raw.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder)


def read_all(model: HuggingFaceModel, ids: list[int], **inputs: Any) -> Any:
    row = model.open(Inputs(token_ids=tuple(ids), **inputs))
    while row.left:
        model.prefill_chunk(row)
    return row


# What runs where.


@pytest.mark.slow
def test_auto_is_torch_for_folders_and_numpy_for_the_bundled_model(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "tirage"):
        LLM(folder)
        LLM("tiny")
    assert f"{folder.name} runs on PyTorch, float32 on cpu" in caplog.text
    assert f"{folder.name} decodes rows joined" in caplog.text
    assert "tiny runs on the NumPy backend" in caplog.text


@pytest.mark.slow
def test_torch_and_numpy_write_the_same_text(folder: Path, llm: LLM) -> None:
    other = LLM(folder, backend="numpy")
    params = [SamplingParams(seed=seed, temperature=0.9, top_p=0.95, max_tokens=25) for seed in range(4)]
    prompts = ["Once", "a b", "日本", "x" * 60]
    expected = [done.token_ids for done in other.generate(prompts, params)]
    assert [done.token_ids for done in llm.generate(prompts, params)] == expected


def test_without_torch_the_error_names_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("tirage.models.huggingface")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        ModelError, match=r"needs torch and transformers, torch is missing: pip install 'tirage\[torch\]'"
    ):
        LLM(folder, backend="torch")


def test_without_torch_auto_runs_llamas_on_numpy_and_names_the_extra_for_others(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tirage.models.folder.importlib.util.find_spec", lambda _: None)
    assert type(LLM(folder).model).__name__ == "LlamaNumpy"
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ModelError, match=r"other architectures need the torch extra: pip install 'tirage\[torch\]'"):
        LLM(tmp_path)


@pytest.mark.parametrize(
    ("dtype", "stored"), [("bfloat16", torch.bfloat16), ("float16", torch.float16), ("auto", torch.float32)]
)
def test_the_dtype_is_the_one_asked_for(folder: Path, dtype: str, stored: torch.dtype) -> None:
    model = open_folder(folder, dtype=dtype)
    assert model.module.dtype == stored
    logits, _ = model.prefill([5, 6, 7])
    assert (logits.dtype, np.isfinite(logits).all()) == (np.float32, True)


@pytest.mark.slow
def test_bfloat16_rows_in_company_stay_near_those_alone(folder: Path) -> None:
    model = open_folder(folder, dtype="bfloat16")
    prompts = [[5, 6, 7, 8], list(range(20, 60))]
    lone = [model.decode([9], [read_all(model, ids)])[0] for ids in prompts]
    joined = model.decode([9, 9], [read_all(model, ids) for ids in prompts])
    assert np.abs(joined - np.stack(lone)).max() < 0.05 * np.abs(joined).max()


@pytest.mark.slow
def test_int8_is_near_float32_and_a_row_does_not_depend_on_those_beside_it(folder: Path) -> None:
    exact, rough = open_folder(folder), open_folder(folder, dtype="int8")
    assert not any(type(layer) is torch.nn.Linear for layer in rough.module.modules())
    want, got = exact.prefill([5, 6, 7])[0], rough.prefill([5, 6, 7])[0]
    assert 0 < np.abs(want - got).max() < 0.1 * np.abs(want).max()
    layer = rough.module.lm_head
    x = torch.randn(5, layer.in_features)
    x[3] *= 1000
    assert torch.equal(layer(x)[1], layer(x[1:2])[0])


@pytest.mark.parametrize("name", ["whisper", "bart", "t5"])
def test_an_encoder_with_a_decoder_is_refused_rather_than_cut_in_two(name: str, tmp_path: Path, folder: Path) -> None:
    AutoConfig.for_model(name).save_pretrained(copy_of(folder, tmp_path))
    with pytest.raises(ModelError, match=f"must be a decoder that goes on from a prompt, got '{name}'"):
        open_folder(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mamba", "mamba2", pytest.param("jamba", marks=pytest.mark.slow)])
def test_int8_runs_layers_whose_code_reads_a_weight(name: str, tmp_path: Path) -> None:
    build(name).save_pretrained(tmp_path)
    want, got = (open_folder(tmp_path, dtype=dtype).prefill(list(range(5, 25)))[0] for dtype in ("float32", "int8"))
    assert 0 < np.abs(want - got).max() < 0.1 * np.abs(want).max()


def test_an_unknown_dtype_is_refused_with_the_nearest(folder: Path) -> None:
    with pytest.raises(ParamsError, match=r"dtype must be one of .* got 'bfloat'; did you mean 'bfloat16'"):
        LLM(folder, dtype="bfloat")


@pytest.mark.parametrize(
    "name", ["foo", "", "cpu:x", "meta", *([] if torch.cuda.is_available() else ["cuda", "cuda:1"])]
)
def test_a_device_that_cannot_be_used_is_refused_before_weights_are_read(
    folder: Path, tmp_path: Path, name: str
) -> None:
    empty = copy_of(folder, tmp_path)
    (empty / "model.safetensors").unlink()
    for path in (empty, "tiny"):
        with pytest.raises(ParamsError, match=rf"device must be one of this machine, .*got '{name}' \(.*; use 'cpu'"):
            LLM(path, device=name)


@pytest.mark.parametrize("count", [-1, 2.5, True, "256"])
def test_a_size_of_the_prefix_cache_below_0_is_refused(folder: Path, count: Any) -> None:
    for path in (folder, "tiny"):
        with pytest.raises(ParamsError, match=r"prefix_bytes must be an integer of at least 0, got .*; 0 keeps no"):
            LLM(path, prefix_bytes=count)
    with pytest.raises(ParamsError, match="prefix_bytes must be an integer"):
        wrap_module(build(), prefix_bytes=count)


# Broken folders.


def copy_of(folder: Path, to: Path) -> Path:
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "processor_config.json"])
def test_code_in_a_folder_is_refused_and_never_run(folder: Path, tmp_path: Path, name: str) -> None:
    path = copy_of(folder, tmp_path) / name
    settings = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**settings, "auto_map": {"AutoModelForCausalLM": "evil.Model"}}))
    (tmp_path / "evil.py").write_text("import pathlib\npathlib.Path(__file__).with_name('ran').touch()\n")
    with pytest.raises(ModelError, match=f"{name}: auto_map must be absent"):
        LLM(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_weights_that_are_not_safetensors_are_not_opened(folder: Path, tmp_path: Path) -> None:
    copy_of(folder, tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="tirage reads safetensors weights only"):
        LLM(tmp_path)


def test_a_missing_tensor_is_named_and_not_made_up(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    write_folder(tmp_path, tensors)
    with pytest.raises(ModelError, match=r"1 tensors are missing, first model\.layers\.1\.mlp\.up_proj\.weight"):
        open_folder(tmp_path)


def test_a_damaged_file_is_named(folder: Path, tmp_path: Path) -> None:
    copy_of(folder, tmp_path)
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match=r"model\.safetensors is not a complete safetensors file"):
        open_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json is not valid JSON"):
        open_folder(tmp_path)


@pytest.mark.parametrize(
    ("kind", "message"), [("no_such_model", "cannot be loaded"), ("vit", "can generate text with, got 'vit'")]
)
def test_a_model_that_writes_no_text_is_refused(folder: Path, tmp_path: Path, kind: str, message: str) -> None:
    copy_of(folder, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(ModelError, match=message):
        open_folder(tmp_path)


def test_a_model_that_cannot_run_is_refused_when_it_is_loaded() -> None:
    module = build()
    module.model.layers[0].self_attn.q_proj = torch.nn.Linear(3, 3)
    with pytest.raises(ModelError, match="LlamaForCausalLM cannot be run"):
        wrap_module(module)


# Paths: a probe decides, it does not trust.


@pytest.mark.slow
def test_a_model_that_mixes_up_its_rows_is_found_out_and_steps_alone(caplog: pytest.LogCaptureFixture) -> None:
    module = build()
    plain = module.model.layers[0].mlp.forward
    module.model.layers[0].mlp.forward = lambda x: plain(x + x.mean(0, keepdim=True))
    with caplog.at_level(logging.INFO, "tirage"):
        model = wrap_module(module)
    assert model.path == "alone"
    assert "decodes rows alone (not joined: logits differ by" in caplog.text
    assert same_as_alone(model, module)


def test_a_model_that_keeps_state_between_calls_is_found_out_and_reads_again() -> None:
    module = build()
    layer = module.model.layers[0].mlp
    plain, kept = layer.forward, {}

    def forward(x: torch.Tensor) -> torch.Tensor:
        before = kept.get("last", torch.zeros(1, 1, x.shape[-1])) if x.shape[1] == 1 else 0 * x[:, :1]
        kept["last"] = x[:1, -1:]
        return plain(torch.cat([before.expand(x.shape[0], 1, -1), x], 1).cumsum(1)[:, 1:])

    layer.forward = forward
    assert wrap_module(module).path == "recomputed"


@pytest.mark.slow
def test_a_cache_of_unknown_layers_is_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.cache_utils import DynamicLayer

    from tirage.models.huggingface.forward import ForwardPass

    class Odd(DynamicLayer):
        """A layer that tirage has never heard of."""

    def odd_cache(self: ForwardPass) -> Any:
        from transformers.cache_utils import DynamicCache

        cache = DynamicCache(config=self.config)
        cache.layers = [Odd() for _ in cache.layers]
        return cache

    monkeypatch.setattr(ForwardPass, "new_cache", odd_cache)
    module = build()
    model = wrap_module(module)
    assert model.path == "alone"
    assert same_as_alone(model, module)


def same_as_alone(model: HuggingFaceModel, module: Any) -> bool:
    prompts = [[5, 9, 13], [70, 60, 50, 40, 30], [100] * 9]
    llm = LLM(model, tokenizer=Numbers())
    expected = [alone(module, prompt, 12) for prompt in prompts]
    return [list(done.token_ids) for done in llm.generate(prompts, GREEDY)] == expected


# Rows.


@pytest.mark.slow
def test_rows_far_apart_in_length_step_in_groups_of_their_own_and_stay_exact() -> None:
    module = build(max_position_embeddings=4096)
    model = wrap_module(module, prefix_bytes=0)
    rng = np.random.default_rng(3)
    # The middle row crosses from one group to the next while it writes.
    prompts = [rng.integers(4, 196, n).tolist() for n in (5, 1018, 1400)]
    done = LLM(model, tokenizer=Numbers()).generate(prompts, GREEDY)
    assert [list(d.token_ids) for d in done] == [alone(module, prompt, 12) for prompt in prompts]


def test_a_forked_row_goes_its_own_way() -> None:
    model = wrap_module(build())
    row = read_all(model, [5, 6, 7, 8])
    twin = model.fork(row)
    first = model.decode([9, 10], [row, twin])
    assert not np.array_equal(first[0], first[1])
    third = model.fork(twin)
    again = model.decode([11, 11], [row, third])
    expected = model.prefill([5, 6, 7, 8, 9, 11])[0], model.prefill([5, 6, 7, 8, 10, 11])[0]
    assert np.allclose(again, np.stack(expected), atol=1e-4)


def test_forks_are_on_the_tensors_of_their_prompt_until_they_join_a_batch() -> None:
    model = wrap_module(build())
    row = read_all(model, [5, 6, 7, 8])
    forks = [model.fork(row) for _ in range(3)]
    assert len({each.cache.layers[0].keys.data_ptr() for each in [row, *forks]}) == 1
    expected = [read_all(model, [5, 6, 7, 8]) for _ in range(4)]
    for token_id, one, own in zip((9, 10, 11, 12), [*forks, row], expected, strict=True):
        # Each alone, which writes behind the prompt.
        assert np.array_equal(model.decode([token_id], [one]), model.decode([token_id], [own]))
    last = model.decode([13] * 4, [*forks, row])
    assert np.array_equal(last, model.decode([13] * 4, expected))


@pytest.mark.slow
def test_score_and_prefill_agree_over_pieces() -> None:
    module = build(max_position_embeddings=1024)
    model = wrap_module(module, prefix_bytes=0)
    ids = np.random.default_rng(0).integers(4, 196, 600).tolist()
    scores = model.score(ids)
    with torch.inference_mode():
        expected = module(torch.tensor([ids])).logits[0].numpy()
    assert scores.shape == expected.shape
    assert np.allclose(scores, expected, atol=1e-4)
    assert np.allclose(model.prefill(ids)[0], expected[-1], atol=1e-4)


def test_prompt_logprobs_are_those_of_the_modules_logits(llm: LLM) -> None:
    prompt = "The sun and the moon. " * 20
    done = llm.generate(prompt, GREEDY.replace(max_tokens=2, prompt_logprobs=2, logprobs=1))[0]
    ids = torch.tensor([done.prompt_token_ids])
    with torch.inference_mode():
        law = torch.log_softmax(llm.model.module(ids).logits[0].double(), -1)  # type: ignore[attr-defined]
    assert done.prompt_logprobs is not None
    got = [entry.logprob for entry in done.prompt_logprobs[1:] if entry is not None]
    expected = law[:-1].gather(1, ids[0, 1:, None])[:, 0].tolist()
    assert got == pytest.approx(expected, abs=1e-4)
    assert done.logprobs is not None
    assert done.logprobs[0].logprob == pytest.approx(float(law[-1].max()), abs=1e-4)


def test_an_id_that_has_no_embedding_is_refused_before_anything_runs() -> None:
    module = build()
    module.lm_head = torch.nn.Linear(64, 256, bias=False)
    llm = LLM(wrap_module(module), tokenizer=Numbers())
    with pytest.raises(ParamsError, match="prompt token ids must be below 200, got 255"):
        llm.generate([[5, 6], [5, 255]], GREEDY)


# Embeddings and hidden states.


@pytest.mark.slow
def test_embeddings_in_the_place_of_ids_give_the_same_text(llm: LLM) -> None:
    module: Any = llm.model.module  # type: ignore[attr-defined]
    ids = llm.tokenizer.encode("A long story " * 30)
    embeds = module.get_input_embeddings()(torch.tensor(ids)).detach().numpy()
    plain = llm.generate(ids, GREEDY)[0]
    given = llm.generate([Prompt(embeds=embeds), "beside it", Prompt(embeds=embeds[:7])], GREEDY)
    assert given[0].token_ids == plain.token_ids
    assert given[2].token_ids == llm.generate(ids[:7], GREEDY)[0].token_ids
    assert (given[0].usage.prompt_tokens, given[0].prompt_token_ids) == (len(ids), ())
    assert llm.explain(Prompt(embeds=embeds), GREEDY).token_id == plain.token_ids[0]
    assert [each.drawn for each in llm.explain_text(Prompt(embeds=embeds), GREEDY).tokens] == [True] * len(
        plain.token_ids
    )


@pytest.mark.parametrize(
    ("embeds", "message"),
    [
        (np.zeros((3, 5), np.float32), r"must have shape \[T, 24\], got \[3, 5\]"),
        (np.zeros(24, np.float32), r"must be floats of shape \[T, hidden\]"),
        (np.zeros((2, 24), np.int64), "must be floats"),
        (np.full((2, 24), np.nan, np.float32), "must be finite"),
        (np.zeros((0, 24), np.float32), "at least one token"),
    ],
)
def test_bad_embeddings_are_refused(llm: LLM, embeds: Any, message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        llm.generate(Prompt(embeds=embeds), GREEDY)


def test_hidden_states_are_the_modules_own_for_prompt_and_output(llm: LLM) -> None:
    module: Any = llm.model.module  # type: ignore[attr-defined]
    prompts = ["Once", "a somewhat longer prompt " * 15, "end"]
    done = llm.generate(prompts, GREEDY, return_hidden_states=True)
    for one in done:
        read = [*one.prompt_token_ids, *one.token_ids[:-1]]
        with torch.inference_mode():
            expected = module(torch.tensor([read]), output_hidden_states=True).hidden_states[-1][0].numpy()
        assert one.hidden_states is not None
        assert one.hidden_states.shape == expected.shape
        assert np.allclose(one.hidden_states, expected, atol=1e-4)
    assert llm.generate("Once", GREEDY)[0].hidden_states is None


def test_each_sample_has_hidden_states_of_its_own(llm: LLM) -> None:
    params = SamplingParams(seed=1, n=3, max_tokens=5, ignore_eos=True, temperature=1.5)
    done = llm.generate("Once", params, return_hidden_states=True)[0]
    states = [sample.hidden_states for sample in done.samples]
    assert all(s is not None and len(s) == len(done.prompt_token_ids) + 4 for s in states)
    assert not np.array_equal(states[0][-1], states[1][-1])  # type: ignore[index]
    assert np.array_equal(states[0][:4], states[1][:4])  # type: ignore[index]


def test_the_numpy_model_refuses_hidden_states() -> None:
    with pytest.raises(ParamsError, match="return_hidden_states must not be given"):
        LLM("tiny").generate("a", GREEDY, return_hidden_states=True)


@pytest.mark.slow
def test_a_module_in_memory_needs_no_folder() -> None:
    module = build("gpt2")
    assert same_as_alone(wrap_module(module), module)


@pytest.mark.slow
def test_the_bundled_models_compact_weights_are_read_for_torch() -> None:
    model = open_folder(find_folder("tiny"))
    expected = tirage.models.load("tiny").prefill([1, 50, 60])[0]
    assert np.allclose(model.prefill([1, 50, 60])[0], expected, atol=1e-3)
    choose_path(model, "again")
    assert model.path == "joined"
