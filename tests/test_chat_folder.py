"""The printed examples of SGLang and FastDeploy on a chat model's folder in its published form, run by PyTorch."""

from __future__ import annotations

import ast
import contextlib
import io
import itertools
import json
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import torch
from fastapi.testclient import TestClient
from fastdeploy_examples import PROGRAMS
from published import publish
from servers import Server
from sglang_examples import CUSTOM, IMPORT, NORMAL, PROCESSOR, STREAMING, STRUCTURED, run
from transformers.models.auto import AutoModelForCausalLM, AutoTokenizer

from tirage import LLM, SamplingParams
from tirage.dialects import from_sglang
from tirage.server import create_app

CURL = re.findall(
    r"^```bash\n(curl.*?)^```",
    (Path(__file__).parent.parent / "docs" / "fastdeploy.md").read_text(encoding="utf-8"),
    re.DOTALL | re.MULTILINE,
)
WORDS = {" well": 1622, " Today": 25_062}
"""The words of FastDeploy's page with the ids that it gives them."""
USER = [{"role": "user", "content": "Hello, how are you?"}]
CONTEXT = 160
FLAGS = ("--enable-custom-logit-processor",)
FLAGS += ("--logits-processor=DeterministicLogitProcessor=operator_processors:DeterministicLogitProcessor",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish("chat", tmp_path_factory.mktemp("chat") / "model", context=CONTEXT, words=WORDS)


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    """As FastDeploy's page starts its own; SGLang's examples name no method."""
    environ = {"FD_SAMPLING_CLASS": "rejection"}
    with Server(folder, *FLAGS, environ=environ, folders=(Path(__file__).parent,)) as running:
        yield running


@pytest.mark.slow
def test_a_chat_is_that_of_the_published_template_and_defaults(folder: Path, llm: LLM) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(USER, add_generation_prompt=True, return_dict=True, return_tensors="pt")
    module: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.inference_mode():
        # Greedy, with the repetition penalty of generation_config.json.
        written = module.generate(**prompt, do_sample=False, max_new_tokens=24)[0]
    done = llm.chat(USER, SamplingParams(temperature=0, repetition_penalty=1.1, max_tokens=24))
    assert list(done.prompt_token_ids) == prompt["input_ids"][0].tolist()
    assert list(done.token_ids) == written[len(done.prompt_token_ids) :].tolist()
    assert done.text == tokenizer.decode(done.token_ids, skip_special_tokens=True)
    params = llm.request("a").params
    assert (params.temperature, params.top_p, params.top_k, params.repetition_penalty) == (0.7, 0.8, 20, 1.1)


# --- SGLang ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sglangs_request_and_streaming_loop_print_the_text(server: Server, llm: LLM) -> None:
    greedy = from_sglang({"temperature": 0, "max_new_tokens": 32})
    expected = llm.generate("The capital of France is", greedy)[0]
    answer = ast.literal_eval(run(NORMAL, server.port)[0])
    assert (answer["text"], answer["output_ids"]) == (expected.text, list(expected.token_ids))
    assert run(STREAMING, server.port)[0] == expected.text.strip() + "\n"


@pytest.mark.slow
def test_sglangs_constraints_hold(server: Server) -> None:
    printed, names = run(STRUCTURED, server.port)
    by_schema, by_regex, by_grammar = [ast.literal_eval(line) for line in printed.splitlines()]
    ended = by_schema["meta_info"]["finish_reason"]["type"] == "stop"
    assert by_schema["meta_info"]["grammar_complete"] == ended
    if ended:
        jsonschema.validate(json.loads(by_schema["text"]), json.loads(names["json_schema"]))
    assert by_schema["text"].lstrip().startswith("{")
    assert by_regex["text"] in {"France", "England"}
    assert by_grammar["text"] in {"Hello", "Hi", "Hey"}


@pytest.mark.slow
def test_sglangs_processor_forces_its_token(server: Server) -> None:
    code = PROCESSOR.replace(IMPORT, "from tirage.compat.sglang import CustomLogitProcessor") + CUSTOM
    assert ast.literal_eval(run(code, server.port)[0])["output_ids"] == [5] * 32


# --- FastDeploy: no example sets max_tokens, so each runs to an EOS token or to the end of the context ----------------


def printed_options(command: str) -> dict[str, str]:
    """What follows each word of a printed command."""
    return dict(itertools.pairwise(shlex.split(command.replace("\\\n", " "))))


def ask(command: str, server: Server) -> dict[str, Any]:
    """The answer to a printed curl command."""
    given = printed_options(command)
    url = given["POST"].replace("0.0.0.0:9222", f"127.0.0.1:{server.port}")
    name, _, value = given["-H"].partition(": ")
    answer = httpx.post(url, content=given["-d"], headers={name: value}, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def said(program: str, server: Server) -> str:
    """What a printed program prints."""
    moved = re.sub(r'port = "\d+"', f'port = "{server.port}"', program.replace('"0.0.0.0"', '"127.0.0.1"'))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(moved, "example", "exec"), {})
    return out.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("command", CURL)
def test_fastdeploys_commands_are_answered_to_the_end(command: str, server: Server) -> None:
    answer = ask(command, server)
    assert answer["choices"][0]["finish_reason"] in {"stop", "length"}
    assert answer["choices"][0]["finish_reason"] == "stop" or answer["usage"]["total_tokens"] == CONTEXT
    assert isinstance(answer["choices"][0]["message"]["content"], str)


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_fastdeploys_programs_print_text_and_never_none(program: str, server: Server) -> None:
    printed = said(program, server)
    assert printed.strip()
    assert "None" not in printed


@pytest.mark.slow
def test_fastdeploys_words_and_ids_are_never_written(server: Server) -> None:
    favoured = {"logit_bias": {str(index): 90 for index in WORDS.values()}, "max_tokens": 8, "return_token_ids": True}
    for body in ({}, {"bad_words": list(WORDS)}, {"bad_words_token_ids": list(WORDS.values())}):
        answer = server.post("/v1/chat/completions", {"messages": USER, **favoured, **body}).json()
        written = set(answer["choices"][0]["token_ids"])
        assert bool(written & set(WORDS.values())) == (not body)


@pytest.mark.slow
def test_an_answer_without_a_limit_goes_on_beyond_1024_tokens(tmp_path: Path) -> None:
    context = 1080
    # The first printed request, from which an EOS token takes nothing away.
    body = {**json.loads(printed_options(CURL[0])["-d"]), "ignore_eos": True}
    # In this process, where PyTorch runs already.
    folder = publish("chat", tmp_path / "model", context=context)
    with LLM(folder) as wide, TestClient(create_app(wide), base_url="http://127.0.0.1") as client:
        while client.get("/ready").status_code != 200:
            time.sleep(0.05)
        answer = client.post("/v1/chat/completions", json=body).json()
    assert (answer["choices"][0]["finish_reason"], answer["usage"]["total_tokens"]) == ("length", context)
    assert answer["usage"]["completion_tokens"] > 1024
