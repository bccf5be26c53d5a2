"""Effective parameters: what an answer says it ran with draws its tokens again."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tirage import LLM, BeamSearchParams, GuidedDecodingParams, ParamsError, Prompt, SamplingParams, cli
from tirage.cli.replay import verdict
from tirage.engine import Tenant
from tirage.processors import register_processor, unregister_processor
from tirage.server.engine_input import EngineInput
from tirage.server.replay import Difference, effective, model_info_of, read_records, replay
from tirage.server.request_group import RunningRequest
from tirage.server.request_manager import make_request

STORIES = Path(
    os.environ.get("TIRAGE_TEST_MODELS", Path(__file__).resolve().parents[2] / "shared" / "models"), "stories260K"
)
PROMPT = "Once upon a time"
MESSAGES = ({"role": "user", "content": "Tell me a story."},)
YES_OR_NO = GuidedDecodingParams(regex="(yes|no)")


def continuing(text: str, **options: Any) -> EngineInput:
    """A chat whose last message, the assistant's, begins with a text; its tags of reasoning are several tokens each."""
    messages = (*MESSAGES, {"role": "assistant", "content": text})
    return EngineInput(messages=messages, continue_final_message=True, **options)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("tiny") as made:
        yield made


def ran(llm: LLM, engine_input: EngineInput) -> tuple[dict[str, Any], list[tuple[int, ...]]]:
    """The record of a call that ran, as it comes out of JSON, and the tokens of its samples."""
    request = make_request(llm, engine_input, Tenant())
    stream = llm.engine.submit(request)
    completion = stream.wait()
    running = RunningRequest.of(engine_input, stream, model_info_of(llm, "tiny"))
    record = json.loads(json.dumps(effective(running), allow_nan=False))
    return record, [sample.token_ids for sample in completion.samples]


CALLS = {
    "unseeded": EngineInput(prompt=Prompt(text=PROMPT), params=SamplingParams(max_tokens=12)),
    "seeded, n = 3": EngineInput(
        prompt=Prompt(text=PROMPT), params=SamplingParams(n=3, seed=-5, max_tokens=12, top_p=0.9)
    ),
    "best of 4": EngineInput(prompt=Prompt(text=PROMPT), params=SamplingParams(n=2, best_of=4, max_tokens=8)),
    "greedy": EngineInput(prompt=Prompt(token_ids=[1, 500, 360]), params=SamplingParams(temperature=0, max_tokens=12)),
    "stops and bad words": EngineInput(
        prompt=Prompt(text=PROMPT),
        params=SamplingParams(stop=[" was", "."], bad_words=["the"], max_tokens=40, include_stop_str_in_output=True),
    ),
    "penalties and another order": EngineInput(
        prompt=Prompt(text=PROMPT),
        params=SamplingParams(
            semantics="sglang", top_k=40, min_p=0.02, frequency_penalty=0.5, repetition_penalty=1.2, max_tokens=20
        ),
    ),
    "truncated prompt": EngineInput(prompt=Prompt(text=PROMPT * 3), params=SamplingParams(truncate_prompt_tokens=4)),
    "constrained": EngineInput(
        prompt=Prompt(text="A number: "),
        params=SamplingParams(n=2, max_tokens=10, guided_decoding=GuidedDecodingParams(regex=r"[0-9]{3,6}")),
    ),
    "chat": EngineInput(messages=MESSAGES, params=SamplingParams(max_tokens=15, stop=["a"])),
    "beams in a chat": EngineInput(
        messages=MESSAGES,
        params=SamplingParams(guided_decoding=GuidedDecodingParams(regex="[ab ]{3,9}")),
        beams=BeamSearchParams(beam_width=2, max_tokens=6),
    ),
    "a message within its reasoning": continuing(
        "<think>a bit of",
        params=SamplingParams(
            seed=3, max_tokens=12, reasoning_parser="qwen3", thinking_budget=4, guided_decoding=YES_OR_NO
        ),
    ),
    "a message within its answer": continuing(
        "so", params=SamplingParams(seed=3, max_tokens=12, reasoning_parser="qwen3", guided_decoding=YES_OR_NO)
    ),
    "beams within an answer": continuing(
        "so",
        params=SamplingParams(reasoning_parser="qwen3", guided_decoding=YES_OR_NO),
        beams=BeamSearchParams(beam_width=2, max_tokens=6),
    ),
    "-inf bias": EngineInput(
        prompt=Prompt(text=PROMPT), params=SamplingParams(logit_bias={261: -float("inf")}, logprobs=2)
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_record_draws_the_tokens_again(llm: LLM, name: str) -> None:
    record, tokens = ran(llm, CALLS[name])
    again = replay(llm, record)
    assert [sample.token_ids for sample in again.completion.samples] == tokens
    assert (again.difference, again.same_model) == (None, True)
    assert [sample["token_ids"] for sample in record["samples"]] == [list(ids) for ids in tokens]


def test_the_record_says_what_was_filled_in(llm: LLM) -> None:
    record, _ = ran(llm, CALLS["unseeded"])
    seed = record["params"]["seed"]
    assert [sample["seed"] for sample in record["samples"]] == [seed]
    assert seed is not None
    assert record["params"]["semantics"] == "canonical"
    assert record["params"]["eos_token_ids"] == llm.generation_config["eos_token_id"]
    assert record["prompt_token_ids"] == llm.tokenizer.encode(PROMPT)
    assert record["model"]["name"] == "tiny"
    assert SamplingParams.from_dict(record["params"]).seed == seed


def test_two_unseeded_requests_differ_and_each_record_draws_its_own(llm: LLM) -> None:
    (first, a), (second, b) = ran(llm, CALLS["unseeded"]), ran(llm, CALLS["unseeded"])
    assert a != b
    assert replay(llm, first).completion.token_ids == a[0]
    assert replay(llm, second).completion.token_ids == b[0]


def test_a_beam_search_is_replayed(llm: LLM) -> None:
    beams = BeamSearchParams(beam_width=3, max_tokens=8)
    engine_input = EngineInput(prompt=Prompt(text=PROMPT), params=SamplingParams(repetition_penalty=1.2), beams=beams)
    completion = llm.beam_search(PROMPT, beams, sampling=engine_input.params)[0]
    request = llm.request(PROMPT, engine_input.params)
    running = RunningRequest.of(engine_input, llm.engine.submit(request), model_info_of(llm, "tiny"))
    record = json.loads(json.dumps(effective(running, completion)))
    again = replay(llm, record)
    assert again.difference is None
    assert [s.token_ids for s in again.completion.samples] == [s.token_ids for s in completion.samples]
    assert len(again.completion.samples) == 3


@pytest.mark.slow
def test_a_replay_that_differs_says_what_the_model_ran_on_then(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm.model, "numerics", lambda: {"threads": 2}, raising=False)
    record, tokens = ran(llm, CALLS["seeded, n = 3"])
    own = type(llm.model).__name__
    assert record["model"]["numerics"] == {"class": own, "threads": 2}
    assert replay(llm, record).changed == ()
    record["model"]["numerics"] = {"threads": 1234, "class": "Other", "unknown": 1}
    again = replay(llm, record)
    assert again.difference is None
    assert again.changed == (("class", "Other", own), ("threads", 1234, 2))
    record["samples"][0]["token_ids"] = [7, *tokens[0][1:]]
    line = verdict(replay(llm, record), llm.tokenizer)
    assert line.endswith(f"; class was 'Other', is {own!r}; threads was 1234, is 2")


@pytest.mark.parametrize("numerics", [None, 7, "text", [1], {}])
def test_a_record_need_not_say_what_the_model_ran_on(llm: LLM, numerics: Any) -> None:
    record, _ = ran(llm, CALLS["greedy"])
    record["model"]["numerics"] = numerics
    assert replay(llm, record).changed == ()


def test_processors_are_found_by_their_names(llm: LLM) -> None:
    def force(logits: np.ndarray, args: list[dict[str, Any]]) -> np.ndarray:
        forced = np.full_like(logits, -np.inf)
        for row, arg in zip(forced, args, strict=True):
            row[arg["token"]] = 0.0
        return forced

    register_processor("force_for_replay", force, arg_names=["token"])
    try:
        params = SamplingParams(max_tokens=3, logits_processors=(("force_for_replay", {"token": 300}),))
        record, tokens = ran(llm, EngineInput(prompt=Prompt(text=PROMPT), params=params))
        assert tokens == [(300, 300, 300)]
        assert replay(llm, record).difference is None
    finally:
        unregister_processor("force_for_replay")
    with pytest.raises(ParamsError, match="force_for_replay"):
        replay(llm, record)


def test_an_aborted_answer_is_compared_as_far_as_it_came(llm: LLM) -> None:
    record, tokens = ran(llm, CALLS["greedy"])
    record["samples"][0] |= {"token_ids": list(tokens[0][:5]), "finish_reason": "abort"}
    again = replay(llm, record)
    assert (again.difference, again.completion.token_ids) == (None, tokens[0])
    record["samples"][0]["finish_reason"] = "length"
    assert replay(llm, record).difference == Difference(sample=0, position=5, was=None, now=tokens[0][5])


def test_the_first_token_that_differs_is_named(llm: LLM) -> None:
    record, tokens = ran(llm, CALLS["seeded, n = 3"])
    record["samples"][2]["token_ids"][4] += 1
    record["samples"][0]["token_ids"][7] += 1
    found = replay(llm, record).difference
    assert found == Difference(sample=2, position=4, was=tokens[2][4] + 1, now=tokens[2][4])
    record, tokens = ran(llm, CALLS["greedy"])
    last = record["samples"][0]["token_ids"].pop()
    assert replay(llm, record).difference == Difference(sample=0, position=11, was=None, now=last)


def test_a_hypothesis_that_is_not_there_is_a_difference(llm: LLM) -> None:
    beams = BeamSearchParams(beam_width=3, max_tokens=4)
    engine_input = EngineInput(prompt=Prompt(text=PROMPT), params=SamplingParams(), beams=beams)
    completion = llm.beam_search(PROMPT, beams)[0]
    running = RunningRequest.of(
        engine_input, llm.engine.submit(llm.request(PROMPT, engine_input.params)), model_info_of(llm, "tiny")
    )
    record = json.loads(json.dumps(effective(running, completion)))
    gone = record["samples"].pop()
    found = replay(llm, record).difference
    assert found == Difference(sample=2, position=0, was=None, now=gone["token_ids"][0])


@pytest.mark.skipif(not STORIES.is_dir(), reason=f"needs the model folder {STORIES.name}; set TIRAGE_TEST_MODELS")
def test_another_model_is_told_from_this_one(llm: LLM) -> None:
    record, tokens = ran(
        llm, EngineInput(prompt=Prompt(token_ids=[1, 300]), params=SamplingParams(seed=1, max_tokens=20))
    )
    with LLM(STORIES, backend="numpy") as stories:
        again = replay(stories, record)
    assert not again.same_model
    assert again.difference is not None
    position = again.difference.position
    assert again.completion.token_ids[:position] == tokens[0][:position]
    assert again.difference.was == tokens[0][position]


@pytest.mark.slow
def test_the_fingerprint_is_that_of_the_folder(llm: LLM, tmp_path: Path) -> None:
    assert llm.folder is not None
    for path in llm.folder.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    assert model_info_of(LLM(tmp_path, backend="numpy"), "copy").fingerprint == model_info_of(llm, "tiny").fingerprint
    config = tmp_path / "generation_config.json"
    config.write_text(json.dumps({"eos_token_id": 5}))
    assert model_info_of(LLM(tmp_path, backend="numpy"), "copy").fingerprint != model_info_of(llm, "tiny").fingerprint


# --- reading records ---------------------------------------------------------------------------------------------


def test_records_are_found_wherever_an_answer_has_them(llm: LLM) -> None:
    record, _ = ran(llm, CALLS["greedy"])
    for value in (record, [record], {"effective_params": record}, [{"text": "", "effective_params": [record]}]):
        assert read_records(json.dumps(value).encode()) == [record]
    assert len(read_records(json.dumps([record, {"effective_params": record}]).encode())) == 2


def test_a_record_of_before_a_message_was_noted_is_still_read(llm: LLM) -> None:
    record, tokens = ran(llm, CALLS["chat"])
    del record["begun"]
    [again] = read_records(json.dumps(record).encode())
    assert replay(llm, again).completion.token_ids == tokens[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"replay": 2}, "must have the version 1, got 2"),
        ({"prompt_token_ids": "abc"}, "as an answer gives them"),
        ({"prompt_token_ids": [1.5]}, "as an answer gives them"),
        ({"samples": []}, "as an answer gives them"),
        ({"samples": [{"token_ids": [True]}]}, "as an answer gives them"),
        ({"params": None}, "as an answer gives them"),
        ({"adapter": 3}, "as an answer gives them"),
        ({"more": 3}, "as an answer gives them"),
        ({"begun": None}, "as an answer gives them"),
        ({"standalone": 1}, "as an answer gives them"),
        ({"unrepeatable": 5}, "as an answer gives them"),
        ({"model": {"name": {}, "fingerprint": "x"}}, "as an answer gives them"),
        ({"params": {"n": 2}}, "must be given all 2 samples of a request, got 1"),
        ({"params": {"n": 10**8}}, "must draw at most 65536 samples, got 100000000"),
        ({"unrepeatable": "media"}, "must be of text and token ids alone, got a request with media"),
        ({"params": {"temperature": -1}}, "temperature must be"),
        ({"prompt_token_ids": [10**9]}, "prompt token ids must be"),
    ],
)
def test_a_record_that_is_none_is_refused(llm: LLM, change: dict[str, Any], message: str) -> None:
    record, _ = ran(llm, CALLS["greedy"])
    with pytest.raises(ParamsError, match=message):
        [replay(llm, each) for each in read_records(json.dumps(record | change).encode())]


def test_a_text_without_records_is_refused() -> None:
    for text in (b"{}", b'{"choices": [{"text": "a"}]}', b"[]", b"7"):
        with pytest.raises(ParamsError, match="an answer with effective_params, got a text without"):
            read_records(text)


# --- the command -------------------------------------------------------------------------------------------------


def command(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(["replay", *words])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


@pytest.mark.slow
def test_the_command_prints_the_text_and_says_that_it_is_the_same(
    llm: LLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record, tokens = ran(llm, CALLS["seeded, n = 3"])
    file = tmp_path / "answer.json"
    file.write_text(json.dumps({"choices": [], "effective_params": [record]}))
    status, out, err = command(str(file), capsys=capsys)
    texts = [sample.text for sample in replay(llm, record).completion.samples]
    assert (status, out) == (0, "".join(f"{text}\n" for text in texts))
    assert f"0: the same {sum(map(len, tokens))} tokens on the same model" in err


def test_the_command_says_which_token_differs_first(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record, tokens = ran(llm, CALLS["greedy"])
    record["samples"][0]["token_ids"][2] = 300
    record["model"]["fingerprint"] = "sha256:0"

    class Stdin:
        buffer = io.BytesIO(json.dumps(record).encode())

    monkeypatch.setattr(sys, "stdin", Stdin)
    status, _, err = command("-", capsys=capsys)
    was, now = llm.tokenizer.decode([300]), llm.tokenizer.decode([tokens[0][2]])
    assert status == 1
    assert (
        f"another model differs first at sample 0, token 2: it was 300 {was!r} and is now {tokens[0][2]} {now!r}" in err
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"name": "gone", "fingerprint": ""}}, "--model must be given, the answer came from 'gone'"),
        (None, "readable"),
    ],
)
def test_the_command_refuses_what_it_cannot_replay(
    llm: LLM, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Any, message: str
) -> None:
    file = tmp_path / "answer.json"
    if change is not None:
        file.write_text(json.dumps(ran(llm, CALLS["greedy"])[0] | change))
    status, _, err = command(str(file), capsys=capsys)
    assert status == 2
    assert message in err


@pytest.mark.slow
def test_an_int8_answer_is_replayed_in_int8_unless_told_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine_input = EngineInput(prompt=Prompt(text=PROMPT), params=SamplingParams(seed=5, max_tokens=40))
    with LLM("tiny", dtype="int8") as rough:
        record, tokens = ran(rough, engine_input)
    assert record["model"]["numerics"]["dtype"] == "int8"
    file = tmp_path / "answer.json"
    file.write_text(json.dumps(record))
    for words in ((), ("--dtype", "int8", "--device", "cpu")):
        status, _, err = command(str(file), *words, capsys=capsys)
        assert (status, f"the same {len(tokens[0])} tokens on the same model" in err) == (0, True)
    # In float32 some draw of forty falls elsewhere; the line names what is otherwise.
    status, _, err = command(str(file), "--dtype", "float32", capsys=capsys)
    assert (status, "dtype was 'int8', is 'float32'" in err) == (1, True)
    status, _, err = command(str(file), "--backend", "numpy", capsys=capsys)
    assert (status, "class was 'HuggingFaceModel', is 'LlamaNumpy'" in err) == (1, True)


def test_a_dtype_that_a_record_makes_up_is_refused(
    llm: LLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record, _ = ran(llm, CALLS["greedy"])
    record["model"]["numerics"]["dtype"] = "int9"
    file = tmp_path / "answer.json"
    file.write_text(json.dumps(record))
    status, _, err = command(str(file), capsys=capsys)
    assert (status, "dtype must be one of" in err) == (2, True)
