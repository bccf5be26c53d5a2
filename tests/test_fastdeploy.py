"""FastDeploy's clients: its documented examples as printed, its defaults, methods, fields and mended defects."""

from __future__ import annotations

import ast
import contextlib
import io
import itertools
import json
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastdeploy_examples import PROGRAMS
from field_answers import tokens_of
from servers import Server, shared
from small_llama import CONFIG, random_tensors, write_folder
from tokenizers import AddedToken, decoders, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import BPE

import tirage
from tirage import LLM, SamplingParams
from tirage.dialects.fastdeploy import METHODS, preset_of
from tirage.semantics import resolve
from tirage.text.decoder_rule import byte_level_alphabet

PAGE = (Path(__file__).parent.parent / "docs" / "fastdeploy.md").read_text(encoding="utf-8")
CURL = re.findall(r"^```bash\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
PYTHON = re.findall(r"^```py\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
USER = [{"role": "user", "content": "How are you"}]
VOCABULARY, WELL, TODAY, THINK = 25_100, 1622, 25_062, 24_000


def write_model(folder: Path) -> Path:
    """A random Llama whose vocabulary has the ids of FastDeploy's page, for the words that the page says."""
    letters = {byte: letter for letter, byte in byte_level_alphabet().items()}
    words = ["".join(letters[byte] for byte in text.encode()) for text in (" well", " Today")]
    parts = list(dict.fromkeys(word[:size] for word in words for size in range(2, len(word))))
    vocab = {letters[byte]: byte for byte in range(256)} | {part: 256 + i for i, part in enumerate(parts)}
    vocab |= {words[0]: WELL, words[1]: TODAY}
    vocab |= {"<think>": THINK, "</think>": THINK + 1}
    vocab |= {f"unused{i}": i for i in range(VOCABULARY) if i not in set(vocab.values())}
    merges = [(word[: size - 1], word[size - 1]) for word in words for size in range(2, len(word) + 1)]
    raw = FastTokenizer(BPE(vocab, list(dict.fromkeys(merges))))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken("unused25099", special=True)])
    raw.add_tokens([AddedToken("<think>", special=False), AddedToken("</think>", special=False)])
    config = {**CONFIG, "vocab_size": VOCABULARY, "max_position_embeddings": 96}
    write_folder(folder, random_tensors(config), vocab_size=VOCABULARY, max_position_embeddings=96)
    raw.save(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 25_099}))
    return folder


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Server(write_model(tmp_path_factory.mktemp("big") / "model"), "--backend", "numpy") as server:
        yield server


@cache
def tiny() -> LLM:
    return LLM("tiny")


def post(body: dict[str, Any], path: str = "/v1/chat/completions", server: Server | None = None) -> Any:
    body = body if "prompt" in body else {"messages": USER, **body}
    answer = (server or shared()).post(path, {"seed": 1, "max_tokens": 8, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def error(body: dict[str, Any], server: Server | None = None) -> Any:
    answer = (server or shared()).post("/v1/chat/completions", {"messages": USER, **body})
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def text(**body: Any) -> str:
    return post(body)["choices"][0]["message"]["content"]


def effective(**body: Any) -> dict[str, Any]:
    """The parameters in force."""
    return post({**body, "return_effective_params": True})["effective_params"][0]["params"]


def expected(**params: Any) -> str:
    """What the library writes with these parameters."""
    return tiny().chat(USER, SamplingParams(**{"seed": 1, "max_tokens": 8, **params})).text


# The documented examples.


@pytest.mark.parametrize("command", CURL)
def test_a_documented_curl_command_is_answered(command: str, big: Server) -> None:
    words = shlex.split(command.replace("\\\n", " "))
    given = dict(itertools.pairwise(words))
    url = given["POST"].replace("0.0.0.0:9222", f"127.0.0.1:{big.port}")
    name, _, value = given["-H"].partition(": ")
    answer = httpx.post(url, content=given["-d"], headers={name: value}, timeout=60)
    assert answer.status_code == 200, answer.text
    assert isinstance(answer.json()["choices"][0]["message"]["content"], str)


@pytest.mark.parametrize("program", [*PYTHON, *PROGRAMS])
def test_a_documented_program_prints_text_and_never_none(program: str, big: Server) -> None:
    moved = re.sub(r'port = "\d+"', f'port = "{big.port}"', program.replace('"0.0.0.0"', '"127.0.0.1"'))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(moved, "example", "exec"), {})
    assert out.getvalue().strip()
    assert "None" not in out.getvalue()


def test_there_are_examples() -> None:
    assert (len(CURL), len(PYTHON)) == (5, 4)
    assert [ast.dump(ast.parse(ours)) for ours in PYTHON] == [ast.dump(ast.parse(theirs)) for theirs in PROGRAMS]


# Defaults and methods.


def test_with_a_method_the_defaults_are_fastdeploys() -> None:
    found = effective(sampling_method="rejection")
    assert (found["top_p"], found["min_tokens"], found["semantics"]) == (0.7, 1, "fastdeploy-rejection")
    plain = effective()
    assert (plain.get("top_p", 1.0), plain.get("min_tokens", 0)) == (1.0, 0)


@pytest.mark.parametrize("method", ["base", "base_non_truncated", "air", "rejection"])
def test_each_method_is_its_preset(method: str) -> None:
    params = {"top_p": 0.6, "min_p": 0.01, "temperature": 1.4, "repetition_penalty": 1.1}
    params |= {"top_k": 20} if method == "rejection" else {}
    ours = expected(**params, min_tokens=1, semantics=f"fastdeploy-{method}")
    assert text(**params, sampling_method=method) == ours


FIVE = [0.5, 0.2, 0.15, 0.1, 0.05]


@pytest.mark.parametrize(
    ("method", "masses", "params", "law"),
    [
        ("base", [0.5, 0.3, 0.2], {"top_p": 0.6}, [0.5 / 0.6, 0.1 / 0.6, 0]),
        ("base_non_truncated", [0.5, 0.3, 0.2], {"top_p": 0.6}, [0.625, 0.375, 0]),
        ("air", [0.5, 0.3, 0.2], {"top_p": 0.6}, [0.5 / 0.6, 0.1 / 0.6, 0]),
        ("air", [0.001] * 1000, {"top_p": 0.7005}, [1 / 700.5] * 700 + [0.5 / 700.5] + [0] * 299),
        ("rejection", FIVE, {"top_p": 0.8, "top_k": 3}, [5 / 7, 2 / 7, 0, 0, 0]),
        ("rejection", [0.4, 0.3, 0.3], {"top_p": 0.6}, [0.4, 0.3, 0.3]),
        ("rejection", FIVE, {"min_p": 0.29}, [0.5 / 0.85, 0.2 / 0.85, 0.15 / 0.85, 0, 0]),
        ("base", FIVE, {"min_p": 0.29, "top_p": 0.8}, [0.5 / 0.8, 0.2 / 0.8, 0.1 / 0.8, 0, 0]),
        ("air", FIVE, {"min_p": 0.29, "top_p": 0.8}, [0.5 / 0.68, 0.18 / 0.68, 0, 0, 0]),
    ],
)
def test_each_method_has_the_law_worked_out_by_hand(
    method: str, masses: list[float], params: dict[str, Any], law: list[float]
) -> None:
    logits = np.log(np.array(masses, np.float32))
    found = tirage.law(logits, SamplingParams(**params, semantics=f"fastdeploy-{method}"))[0]
    assert found == pytest.approx(law, abs=1e-6)


@pytest.mark.slow
def test_the_environment_sets_the_method_of_a_server() -> None:
    with Server("tiny", environ={"FD_SAMPLING_CLASS": "rejection"}) as server:
        found = post({"return_effective_params": True}, server=server)["effective_params"][0]["params"]
        assert (found["semantics"], found["top_p"]) == ("fastdeploy-rejection", 0.7)
        chosen = post({"return_effective_params": True, "sampling_method": "air"}, server=server)
        assert chosen["effective_params"][0]["params"]["semantics"] == "fastdeploy-air"


def test_an_unknown_method_is_refused() -> None:
    assert error({"sampling_method": "rejektion"})["param"] == "sampling_method"


def test_the_context_may_be_filled_and_a_larger_limit_is_what_there_is_room_for() -> None:
    prompt = {"prompt_token_ids": [1] + [5] * 489, "messages": None}
    found = post({"sampling_method": "base", "max_tokens": 10_000, "ignore_eos": True, **prompt})
    assert (found["choices"][0]["finish_reason"], found["usage"]["total_tokens"]) == ("length", 512)
    assert error({"max_tokens": 10_000})["code"] == "context_length_exceeded"


# Fields.


def test_top_p_and_temperature_zero_are_greedy() -> None:
    assert text(top_p=0) == text(temperature=0) == text(top_k=1) == expected(temperature=0)
    assert text(top_p=0, sampling_method="air") == expected(temperature=0)


@pytest.mark.parametrize("off", [0, None, -1])
def test_top_k_has_three_spellings_of_off(off: int | None) -> None:
    assert text(top_k=off, temperature=1.5) == text(temperature=1.5)


def test_top_k_beyond_the_vocabulary_is_cut_to_it() -> None:
    assert effective(top_k=10**6, sampling_method="rejection")["top_k"] == 1536


@pytest.mark.parametrize("method", ["base", "base_non_truncated", "air"])
def test_a_method_that_ignores_top_k_refuses_it_by_name(method: str) -> None:
    found = error({"top_k": 20, "sampling_method": method})
    assert found["message"] == (
        f"top_k must be off with sampling_method '{method}', which has none, got 20; leave it out, or choose "
        "sampling_method 'rejection'"
    )
    assert found["param"] == "top_k"
    assert text(top_k=0, top_p=0.8, sampling_method=method) == text(top_k=-1, top_p=0.8, sampling_method=method)


@pytest.mark.parametrize("method", METHODS)
def test_the_page_says_which_method_has_a_top_k(method: str) -> None:
    [row] = re.findall(rf"^\| `{method}` \|.*\| (.*?) \|$", PAGE, re.MULTILINE)
    assert (row == "refused") is ("top_k" not in resolve(preset_of(method)).stages)


def test_the_examples_are_answered_by_the_method_that_their_page_asks_for() -> None:
    bodies = [json.loads(dict(itertools.pairwise(shlex.split(one.replace("\\\n", " "))))["-d"]) for one in CURL]
    asked = [body for body in bodies if "top_k" in body]
    assert len(asked) == 2
    for body in asked:
        assert post({**body, "sampling_method": "rejection"})["choices"]


def test_min_p_keeps_its_range_and_its_message() -> None:
    assert text(min_p=0.3, temperature=1.5) == expected(min_p=0.3, temperature=1.5, semantics="openai")
    found = error({"min_p": 1.5})
    assert (found["param"], "{" in found["message"]) == ("min_p", False)


def test_penalties_are_those_of_the_library() -> None:
    params = {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.2, "max_tokens": 20}
    assert text(**params, sampling_method="base", top_p=0.9) == expected(
        **params, top_p=0.9, min_tokens=1, semantics="fastdeploy-base"
    )


@pytest.mark.parametrize("seed", [0, -(2**63), 922337203685477581, 2**63 - 1])
def test_every_int64_is_a_seed_on_the_wire(seed: int) -> None:
    assert text(seed=seed, temperature=1.5) == expected(seed=seed, temperature=1.5, semantics="openai")


def test_choices_of_one_seed_differ() -> None:
    choices = post({"n": 3, "temperature": 1.5, "sampling_method": "rejection", "top_p": 1.0})["choices"]
    assert len({choice["message"]["content"] for choice in choices}) > 1


def test_bad_words_are_never_written() -> None:
    word = text(temperature=0, max_tokens=20).split()[1]
    ids = {tuple(tiny().tokenizer.encode(w, add_special_tokens=False)) for w in (word, f" {word}")}
    found = post({"temperature": 0, "max_tokens": 20, "bad_words": [word], "return_token_ids": True})
    drawn = found["choices"][0]["token_ids"]
    assert not any(tuple(drawn[i : i + len(w)]) == w for w in ids for i in range(len(drawn)))
    assert word not in text(temperature=0, max_tokens=20, bad_words=[word], bad_words_level="text")
    token = tiny().chat(USER, SamplingParams(temperature=0)).token_ids[2]
    banned = post({"temperature": 0, "bad_words_token_ids": [token], "return_token_ids": True})
    assert token not in banned["choices"][0]["token_ids"]


def test_bad_words_and_ids_are_one_list_and_leave_no_trace() -> None:
    greedy = text(temperature=0)
    word = greedy.split()[0]
    assert text(temperature=0, bad_words=[word, f" {word}"]) != greedy
    assert text(temperature=0) == greedy
    assert error({"bad_words_token_ids": [1536]})["param"] == "bad_words_token_ids"
    assert error({"bad_words_token_ids": [-1]})["param"].startswith("bad_words_token_ids")
    assert error({"bad_words": ""})["param"].startswith("bad_words")


def test_the_pages_words_and_ids_say_the_same(big: Server) -> None:
    for body in ({"bad_words": [" well", " Today"]}, {"bad_words_token_ids": [WELL, TODAY]}):
        favoured = {"logit_bias": {str(WELL): 90, str(TODAY): 90}, "max_tokens": 4, "return_token_ids": True}
        found = post({**body, **favoured}, server=big)
        assert not {WELL, TODAY} & set(found["choices"][0]["token_ids"])


def test_stops_of_different_lengths_all_work_and_leave_nothing() -> None:
    whole = text(max_tokens=30, temperature=0)
    short, long = whole[6:8], whole[10:20]
    assert text(max_tokens=30, temperature=0, stop=[long, "☃☃☃"]) == whole[: whole.index(long)]
    assert text(max_tokens=30, temperature=0, stop=[long, short]) == whole[: whole.index(short)]
    included = text(max_tokens=30, temperature=0, stop=long, include_stop_str_in_output=True)
    assert included == whole[: whole.index(long) + len(long)]


def test_log_probabilities_can_be_those_of_the_law_drawn_from() -> None:
    options = {"logprobs": True, "top_logprobs": 3, "temperature": 0.5, "top_p": 0.5}
    values = []
    for more in ({}, {"temp_scaled_logprobs": True}, {"top_p_normalized_logprobs": True}):
        content = post({**options, **more})["choices"][0]["logprobs"]["content"]
        values.append([entry["logprob"] for entry in content])
    assert values[0] < values[1] < values[2] or len({tuple(each) for each in values}) == 3
    assert error({"logprobs": True, "top_logprobs": 21})["param"] == "top_logprobs"
    assert "logprobs" in error({"top_logprobs": 2})["message"]


def test_a_bias_may_come_as_an_argument_of_a_processor() -> None:
    token = tiny().tokenizer.encode(" fox", add_special_tokens=False)[0]
    found = post({"logits_processors_args": {"logit_bias": {str(token): 100}}, "return_token_ids": True})
    assert set(found["choices"][0]["token_ids"]) == {token}


def test_only_one_constraint_is_taken() -> None:
    assert "together" in error({"guided_regex": "a+", "guided_choice": ["a"]})["message"]


def test_thinking_and_templates_are_the_operators() -> None:
    assert text(enable_thinking=False) == text()
    assert error({"enable_thinking": True})["param"] == "enable_thinking"
    assert error({"chat_template": "{{ messages }}"})["param"] == "chat_template"
    assert error({"disable_chat_template": True})["param"] == "disable_chat_template"
    assert error({"reasoning_max_tokens": 5, "thinking_budget": 5})["param"] == "reasoning_max_tokens"


def test_reasoning_ends_within_its_budget(big: Server) -> None:
    prompt = {"prompt_token_ids": [10, THINK], "messages": None}
    for name, most in (("reasoning_max_tokens", 0), ("reasoning_max_tokens", 3), ("thinking_token_budget", 3)):
        body = {**prompt, name: most, "return_token_ids": True}
        drawn = post(body, server=big)["choices"][0]["token_ids"]
        assert drawn.index(THINK + 1) == most
        given = {"messages": None, "seed": 1, "max_tokens": 8, **body, "stream": True}
        assert tokens_of(big, "/v1/chat/completions", given)[: most + 1] == drawn[: most + 1]
    free = post({**prompt, "thinking_token_budget": -1, "return_token_ids": True}, server=big)
    assert THINK + 1 not in free["choices"][0]["token_ids"]


def test_messages_have_fastdeploys_keys_where_a_method_is_chosen() -> None:
    found = post({"sampling_method": "base", "return_token_ids": True})["choices"][0]["message"]
    assert set(found) == {
        *("role", "content", "refusal"),
        *("reasoning_content", "tool_calls", "prompt_token_ids", "completion_token_ids"),
    }
    assert len(found["completion_token_ids"]) == 8
    assert set(post({})["choices"][0]["message"]) == {"role", "content", "refusal"}


def test_deltas_and_completions_have_fastdeploys_ids_where_a_method_is_chosen() -> None:
    body = {"sampling_method": "base", "return_token_ids": True}
    whole = post(body)["choices"][0]["message"]
    answer = shared().post(
        "/v1/chat/completions", {"messages": USER, "seed": 1, "max_tokens": 8, "stream": True, **body}
    )
    chunks = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line.startswith("data: {")]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert [i for delta in deltas for i in delta["completion_token_ids"] or []] == whole["completion_token_ids"]
    choice = post({"prompt": "Once", **body}, "/v1/completions")["choices"][0]
    assert choice["completion_token_ids"] == choice["token_ids"]


def test_stream_options_need_a_stream() -> None:
    assert error({"stream_options": {"include_usage": True}})["param"] == "stream_options"


def test_the_reason_of_an_end_is_what_ended_it() -> None:
    done = post({"max_tokens": None, "temperature": 0})
    assert done["choices"][0]["finish_reason"] == "stop"
    exact = post({"max_tokens": done["usage"]["completion_tokens"], "temperature": 0})
    assert exact["choices"][0]["finish_reason"] == "stop"
    short = post({"max_tokens": done["usage"]["completion_tokens"] - 1, "temperature": 0})
    assert short["choices"][0]["finish_reason"] == "length"


def test_tokens_that_are_no_text_have_their_own_bytes() -> None:
    found = post({"guided_regex": "é日", "logprobs": True, "max_tokens": 20})["choices"][0]
    spelled = bytes(byte for entry in found["logprobs"]["content"] for byte in entry["bytes"])
    assert spelled.decode() == found["message"]["content"] == "é日"


@pytest.mark.slow
def test_best_of_is_honoured_and_user_is_noted() -> None:
    found = post({"prompt": "Once", "best_of": 3, "user": "me"}, "/v1/completions")
    assert found["usage"]["completion_tokens"] == 24
