"""The code of SGLang's own page, run as printed against a real server but for host, port and model."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from field_answers import answer_of, body_of, tokens_of
from field_effects import CHAT, COMPLETIONS, GENERATE, MESSAGES, RESPONSES
from peft import LoraConfig, get_peft_model
from PIL import Image
from published import publish
from servers import Server, shared
from sglang_examples import CUSTOM, IMPORT, MULTIMODAL, NORMAL, PROCESSOR, STREAMING, STRUCTURED, run
from small_media import tokenizer_with
from transformers import LlamaConfig, LlamaForCausalLM

from tirage import LLM, Prompt
from tirage.dialects import from_sglang

# peft asks transformers 5 for a name that it has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
PROMPT = "The capital of France is"
GREEDY = {"temperature": 0, "max_new_tokens": 32}


@pytest.fixture(scope="module")
def server() -> Server:
    return shared("tiny")


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("tiny")


def test_the_request_works(server: Server, llm: LLM) -> None:
    printed, _ = run(NORMAL, server.port)
    assert ast.literal_eval(printed)["text"] == llm.generate(PROMPT, from_sglang(GREEDY))[0].text


def test_the_streaming_loop_prints_the_text(server: Server, llm: LLM) -> None:
    printed, names = run(STREAMING, server.port)
    assert printed == llm.generate(PROMPT, from_sglang(GREEDY))[0].text.strip() + "\n"
    assert names["data"]["meta_info"]["finish_reason"] is not None


def test_structured_outputs_follow_their_constraints(server: Server) -> None:
    printed, names = run(STRUCTURED, server.port)
    by_schema, by_regex, by_grammar = [ast.literal_eval(line) for line in printed.splitlines()]
    if by_schema["meta_info"]["finish_reason"]["type"] == "stop":
        jsonschema.validate(json.loads(by_schema["text"]), json.loads(names["json_schema"]))
    assert by_schema["text"].lstrip().startswith("{")
    assert by_schema["meta_info"]["grammar_complete"] == (by_schema["meta_info"]["finish_reason"]["type"] == "stop")
    assert by_regex["text"] in {"France", "England"}
    assert by_grammar["text"] in {"Hello", "Hi", "Hey"}


@pytest.mark.slow
def test_the_custom_processor_works_with_its_import_line_changed() -> None:
    flags = ("--enable-custom-logit-processor",)
    flags += ("--logits-processor=DeterministicLogitProcessor=operator_processors:DeterministicLogitProcessor",)
    code = PROCESSOR.replace(IMPORT, "from tirage.compat.sglang import CustomLogitProcessor") + CUSTOM
    with Server("tiny", *flags, folders=(Path(__file__).parent,)) as running:
        printed, names = run(code, running.port)
    assert ast.literal_eval(printed)["output_ids"] == [5] * 32
    assert names["response"].status_code == 200


# --- pictures ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LLaVA-OneVision, which SGLang's page names, as published, and beside it the picture of the example."""
    where = tmp_path_factory.mktemp("llava")
    publish("llava_onevision", where / "model")
    pixels = np.random.default_rng(0).integers(0, 255, (40, 52, 3), np.uint8)
    Image.fromarray(pixels).save(where / "example_image.png")
    return where


@pytest.fixture(scope="module")
def seeing(folder: Path) -> Iterator[Server]:
    with Server(folder / "model", "--media-root", str(folder)) as running:
        yield running


@pytest.mark.slow
def test_the_multimodal_request_reads_its_picture(seeing: Server, folder: Path) -> None:
    printed, names = run(MULTIMODAL, seeing.port)
    body = json.loads(names["response"].request.body)
    prompt = Prompt(text=body["text"], images=[Image.open(folder / "example_image.png").convert("RGB")])
    expected = LLM(folder / "model").generate(prompt, from_sglang(body["sampling_params"]))[0]
    answer = ast.literal_eval(printed)
    assert answer["output_ids"] == list(expected.token_ids)
    assert answer["meta_info"]["prompt_tokens"] == expected.usage.prompt_tokens
    assert tokens_of(seeing, GENERATE, {**body, "stream": True}) == answer["output_ids"]
    blind = seeing.post("/generate", {**body, "image_data": None}).json()
    assert blind["meta_info"]["prompt_tokens"] < expected.usage.prompt_tokens


@pytest.mark.slow
def test_a_batch_has_a_picture_for_each_prompt_or_none(seeing: Server, folder: Path) -> None:
    prompts, sampling = ["<image> one", "two", "<image>"], {"temperature": 0, "max_new_tokens": 5}
    images = ["example_image.png", None, ["example_image.png"]]
    body = {"text": prompts, "image_data": images, "sampling_params": sampling}
    answers = seeing.post("/generate", body).json()
    alone = [
        seeing.post("/generate", {"text": text, "image_data": image, "sampling_params": sampling}).json()
        for text, image in zip(prompts, images, strict=True)
    ]
    assert [one["output_ids"] for one in answers] == [one["output_ids"] for one in alone]
    wrong = seeing.post("/generate", {**body, "image_data": ["example_image.png"]})
    assert wrong.json()["error"]["param"] == "image_data"


@pytest.mark.slow
def test_hidden_states_have_sglangs_ragged_form(seeing: Server, folder: Path) -> None:
    sampling = {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}
    body = {"text": "hello there", "return_hidden_states": True, "sampling_params": sampling}
    expected = LLM(folder / "model").generate("hello there", from_sglang(sampling), return_hidden_states=True)[0]
    assert expected.hidden_states is not None
    answer = seeing.post("/generate", body).json()
    states = answer["meta_info"]["hidden_states"]
    prompt = answer["meta_info"]["prompt_tokens"]
    assert len(states) == 1 + 3
    assert np.shape(states[0]) == (prompt, 64)
    assert np.allclose([*states[0], *states[1:]], expected.hidden_states, atol=1e-5)
    [*_, last] = answer_of(seeing, GENERATE, {**body, "stream": True})
    assert last["meta_info"]["hidden_states"] == states
    batch = seeing.post("/generate", {**body, "text": ["a b", "c"], "return_hidden_states": [True, False]}).json()
    assert ["hidden_states" in one["meta_info"] for one in batch] == [True, False]


@pytest.mark.slow
def test_embeddings_stand_for_a_prompt(seeing: Server, folder: Path) -> None:
    vectors = np.random.default_rng(1).normal(size=(5, 64)).astype(np.float32)
    sampling = {"temperature": 0, "max_new_tokens": 5}
    answer = seeing.post("/generate", {"input_embeds": vectors.tolist(), "sampling_params": sampling}).json()
    expected = LLM(folder / "model").generate(Prompt(embeds=vectors), from_sglang(sampling))[0]
    assert answer["output_ids"] == list(expected.token_ids)
    assert answer["meta_info"]["prompt_tokens"] == 5
    streamed = {"input_embeds": vectors.tolist(), "sampling_params": sampling, "stream": True}
    assert tokens_of(seeing, GENERATE, streamed) == answer["output_ids"]
    both = seeing.post("/generate", {"input_embeds": [vectors.tolist()] * 2, "sampling_params": sampling}).json()
    assert [one["output_ids"] for one in both] == [list(expected.token_ids)] * 2
    scored = {"input_embeds": vectors.tolist(), "return_logprob": True, "logprob_start_len": 0}
    assert seeing.post("/generate", scored).json()["error"]["param"] == "logprob_start_len"
    narrow = seeing.post("/generate", {"input_embeds": vectors[:, :8].tolist()})
    assert narrow.status_code == 400


# --- adapters ------------------------------------------------------------------------------------------------------


def small_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=280, max_position_embeddings=128, eos_token_id=260)).eval()


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a tokenizer, and two adapters that change it a lot."""
    where = tmp_path_factory.mktemp("adapted")
    small_llama().save_pretrained(where / "base")
    tokenizer_with().save_pretrained(where / "base")
    for seed, name in enumerate(("first", "second")):
        config = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], lora_alpha=64, task_type="CAUSAL_LM")
        adapter: Any = get_peft_model(small_llama(), config)
        torch.manual_seed(seed)
        for weight_name, weight in adapter.named_parameters():
            if "lora_B" in weight_name:
                torch.nn.init.normal_(weight, std=0.3)
        adapter.save_pretrained(where / name)
    return where


@pytest.fixture(scope="module")
def adapters(adapted: Path) -> Iterator[Server]:
    with Server(adapted / "base", *(f"--lora={name}={adapted / name}" for name in ("first", "second"))) as running:
        yield running


@pytest.mark.slow
def test_each_prompt_has_the_adapter_that_it_names(adapted: Path, adapters: Server) -> None:
    names = ["first", None, "second", "first"]
    sampling = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
    places = {name: adapted / name for name in ("first", "second")}
    prompts = [Prompt(text=f"hello {number}", adapter=name) for number, name in enumerate(names)]
    expected = LLM(adapted / "base", adapters=places).generate(prompts, from_sglang(sampling))
    body = {"text": [prompt.text for prompt in prompts], "lora_path": names, "sampling_params": sampling}
    answers = adapters.post("/generate", body).json()
    refused = [
        adapters.post("/generate", {"text": "a", "lora_path": name})
        for name in ("frist", str(adapted / "first"), "../first", "first/", "a\u2024b", "first\x00")
    ]
    assert [one["output_ids"] for one in answers] == [list(one.token_ids) for one in expected]
    assert [response.status_code for response in refused] == [400] * 6
    assert {response.json()["error"]["param"] for response in refused} == {"lora_path"}
    assert "did you mean 'first'" in refused[0].json()["error"]["message"]
    assert str(adapted) not in refused[1].text


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("place", "name"),
    [
        (GENERATE, "lora_path"),
        *((place, name) for place in (COMPLETIONS, MESSAGES, RESPONSES) for name in ("lora_path", "model")),
        (CHAT, "model"),
    ],
)
def test_an_adapter_is_named_on_every_route(adapters: Server, place: str, name: str, stream: bool) -> None:
    sampling: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
    if place == GENERATE:
        sampling = {"sampling_params": {**sampling, "max_new_tokens": 6}}
    found = set()
    for given in ({}, {name: "first"}, {name: "second"}):
        found.add(tuple(tokens_of(adapters, place, body_of(place, {**sampling, **given}, stream=stream))))
    assert len(found) == 3
