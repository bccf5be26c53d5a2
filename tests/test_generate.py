"""`/generate` over real HTTP: SGLang's fields, answers and event streams, down to the set of keys."""

from __future__ import annotations

import itertools
import json
import math
import re
from typing import Any

import httpx
import pytest
from servers import Server, shared

from tirage import LLM, SamplingParams
from tirage.dialects import from_sglang

PROMPT = "The capital of France is"
RUNNING = {
    "id",
    "finish_reason",
    "prompt_tokens",
    "weight_version",
    "num_retractions",
    "reasoning_tokens",
    "completion_tokens",
    "cached_tokens",
    "cached_tokens_details",
    "dp_rank",
    "seed",
}
"""Keys of `meta_info` while a text grows."""
DONE = RUNNING | {"weight_versions", "e2e_latency", "response_sent_to_client_ts"}
TOKEN_SCORES = {"input_token_logprobs", "output_token_logprobs", "output_token_logprobs_length"}
TOP_SCORES = {"input_top_logprobs", "output_top_logprobs"}
ID_SCORES = {"input_token_ids_logprobs", "output_token_ids_logprobs"}


def near(expected: Any) -> Any:
    """Scores of another process: its matrix products may differ in their last bits."""
    return pytest.approx(expected, abs=1e-4)


@pytest.fixture(scope="module")
def server() -> Server:
    return shared("tiny")


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("tiny")


def ask(server: Server, **body: Any) -> Any:
    response = server.post("/generate", {"text": PROMPT, **body} if not {"input_ids", "text"} & set(body) else body)
    assert response.status_code == 200, response.text
    return response.json()


def refused(server: Server, body: dict[str, Any], status: int = 400) -> dict[str, Any]:
    response = server.post("/generate", body)
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    return response.json()["error"]


def events(server: Server, method: str = "POST", **body: Any) -> list[dict[str, Any]]:
    """The events of a stream; its last line is [DONE], which comes once."""
    asked = {"text": PROMPT, "stream": True, **body}
    with httpx.stream(method, f"{server.url}/generate", json=asked, timeout=60) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert [line for line in lines if "[DONE]" in line] == lines[-1:] == ["data: [DONE]"]
    return [json.loads(line[6:]) for line in lines[:-1]]


# --- one answer --------------------------------------------------------------------------------------------------


def test_an_answer_has_exactly_these_keys(server: Server, llm: LLM) -> None:
    answer = ask(server, sampling_params={"temperature": 0, "max_new_tokens": 4})
    expected = llm.generate(PROMPT, from_sglang({"temperature": 0, "max_new_tokens": 4}))[0]
    assert set(answer) == {"text", "output_ids", "meta_info"}
    assert (answer["text"], answer["output_ids"]) == (expected.text, list(expected.token_ids))
    meta = answer["meta_info"]
    assert set(meta) == DONE
    assert meta["finish_reason"] == {"type": "length", "length": 4}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (len(expected.prompt_token_ids), 4)
    assert set(meta["cached_tokens_details"]) == {"device", "host"}
    assert meta["weight_versions"] == [{"version": "default", "start": 0, "end": 4}]
    assert re.fullmatch("[0-9a-f]{32}", meta["id"])
    assert 0 < meta["e2e_latency"] < 60


def test_put_is_post(server: Server) -> None:
    body = {"text": PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": 4}}
    put = httpx.put(f"{server.url}/generate", json=body, timeout=60).json()
    assert put["output_ids"] == ask(server, **body)["output_ids"]
    assert events(server, "PUT", sampling_params={"max_new_tokens": 2})


def test_the_default_is_128_new_tokens_drawn_at_temperature_one(server: Server, llm: LLM) -> None:
    answer = ask(server)
    seed = answer["meta_info"]["seed"]
    expected = llm.generate(PROMPT, SamplingParams(max_tokens=128, seed=seed, semantics="sglang"))[0]
    assert answer["output_ids"] == list(expected.token_ids)


def test_ids_say_the_same_as_their_text(server: Server, llm: LLM) -> None:
    greedy = {"temperature": 0, "max_new_tokens": 4}
    ids = llm.tokenizer.encode(PROMPT)
    by_ids = ask(server, input_ids=ids, sampling_params=greedy)
    assert by_ids["output_ids"] == ask(server, sampling_params=greedy)["output_ids"]
    assert ask(server, input_ids=[ids], sampling_params=greedy)[0]["output_ids"] == by_ids["output_ids"]
    shown = ask(server, input_ids=ids, sampling_params=greedy, return_prompt_token_ids=True)
    assert shown["prompt_token_ids"] == ids


def test_no_new_tokens_are_an_empty_text(server: Server) -> None:
    answer = ask(server, sampling_params={"max_new_tokens": 0})
    assert (answer["text"], answer["output_ids"]) == ("", [])
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 0}


def test_without_a_limit_a_text_may_fill_the_context(server: Server, llm: LLM) -> None:
    sampling = {"max_new_tokens": None, "temperature": 0, "ignore_eos": True}
    answer = ask(server, sampling_params=sampling)
    room = llm.model.max_length - answer["meta_info"]["prompt_tokens"]
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": room}
    assert len(answer["output_ids"]) == room


STOPS = [
    ({"stop": "."}, {"matched": ".", "kind": "string", "matched_text": "."}),
    ({"stop_regex": ["[0-9]{3}", "ris"]}, {"matched": "ris", "kind": "regex", "matched_text": "ris"}),
    ({"stop_token_ids": [277]}, {"matched": 277, "kind": "token", "matched_text": "."}),
    ({}, {"matched": 6, "kind": "eos", "matched_text": "<|end|>"}),
]


@pytest.mark.parametrize(("sampling", "end"), STOPS)
def test_a_stop_names_what_was_asked_and_what_it_matched(
    server: Server, sampling: dict[str, Any], end: dict[str, Any]
) -> None:
    prompt = {"text": ""} if not sampling else {}
    answer = ask(server, **prompt, sampling_params={"temperature": 0, "max_new_tokens": 20, **sampling})
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", **end}
    kept = ask(
        server, **prompt, sampling_params={"temperature": 0, "max_new_tokens": 20, "no_stop_trim": True, **sampling}
    )
    shown = "" if end["kind"] == "eos" else end["matched_text"]
    assert kept["text"] == answer["text"] + shown
    assert kept["output_ids"] == answer["output_ids"]


def test_a_constraint_that_is_complete_stops_at_its_last_token(server: Server) -> None:
    answer = ask(server, sampling_params={"regex": "(France|England)", "temperature": 0})
    assert answer["text"] in {"France", "England"}
    assert answer["meta_info"]["finish_reason"]["type"] == "stop"
    assert answer["meta_info"]["finish_reason"]["matched"] == answer["output_ids"][-1]
    assert answer["meta_info"]["grammar_complete"] is True
    cut = ask(server, sampling_params={"regex": "(France|England)", "max_new_tokens": 1})
    assert cut["meta_info"]["grammar_complete"] is False


# --- several prompts and samples -----------------------------------------------------------------------------------


def test_a_batch_is_a_list_in_the_order_of_its_prompts(server: Server, llm: LLM) -> None:
    prompts, params = ["One day", "The dog"], [{"temperature": 0}, {"sampling_seed": 3, "max_new_tokens": 5}]
    answers = ask(server, text=prompts, sampling_params=[{**p, "max_new_tokens": 5} for p in params])
    expected = llm.generate(prompts, [from_sglang({**p, "max_new_tokens": 5}) for p in params])
    assert [answer["output_ids"] for answer in answers] == [list(one.token_ids) for one in expected]
    assert len(ask(server, text=["One day"], sampling_params={"max_new_tokens": 1})) == 1


def test_several_samples_are_a_flat_list_prompt_by_prompt(server: Server, llm: LLM) -> None:
    sampling = {"n": 2, "sampling_seed": 5, "max_new_tokens": 6}
    answers = ask(server, text=["One day", "The dog"], sampling_params=sampling, rid=["a", "b"])
    expected = llm.generate(["One day", "The dog"], from_sglang(sampling))
    flat = [list(sample.token_ids) for one in expected for sample in one.samples]
    assert [answer["output_ids"] for answer in answers] == flat
    assert len({tuple(ids) for ids in flat}) == 4
    assert [answer["meta_info"]["id"] for answer in answers] == ["a/0", "a/1", "b/0", "b/1"]
    assert len(ask(server, sampling_params=sampling)) == 2
    mixed = ask(server, text=["One day", "The dog"], sampling_params=[{"n": 1}, {"n": 2}])
    assert len(mixed) == 3


def test_ids_of_a_request_are_the_clients(server: Server) -> None:
    one = {"max_new_tokens": 1}
    assert ask(server, rid="mine", sampling_params=one)["meta_info"]["id"] == "mine"
    two = ask(server, text=["a", "b"], rid="mine", sampling_params=one)
    assert [answer["meta_info"]["id"] for answer in two] == ["mine_0", "mine_1"]
    assert "twice" in refused(server, {"text": ["a", "b"], "rid": ["x", "x"]})["message"]
    assert refused(server, {"text": "a", "rid": "x" * 129})["message"].endswith("--max-rid")
    assert refused(server, {"text": "a", "rid": 5})["param"] == "rid"


# --- log-probabilities ---------------------------------------------------------------------------------------------


def test_logprobs_are_triples_of_the_law_after_the_temperature(server: Server, llm: LLM) -> None:
    sampling = {"temperature": 0.5, "sampling_seed": 1, "max_new_tokens": 5}
    meta = ask(server, return_logprob=True, sampling_params=sampling)["meta_info"]
    params = from_sglang(sampling).replace(logprobs=0, logprobs_mode="processed")
    expected = llm.generate(PROMPT, params)[0].logprobs or ()
    assert set(meta) == DONE | TOKEN_SCORES
    assert meta["input_token_logprobs"] == []
    assert meta["output_token_logprobs"] == [[near(e.logprob), e.token_id, None] for e in expected]
    assert meta["output_token_logprobs_length"] == 5


def test_prompt_logprobs_begin_where_they_are_asked_to(server: Server, llm: LLM) -> None:
    sampling, ids = {"temperature": 0, "max_new_tokens": 2}, llm.tokenizer.encode(PROMPT)
    whole = ask(server, return_logprob=True, logprob_start_len=0, sampling_params=sampling)["meta_info"]
    scored = whole["input_token_logprobs"]
    assert [entry[1] for entry in scored] == ids
    assert scored[0][0] is None
    assert all(isinstance(entry[0], float) and entry[0] < 0 for entry in scored[1:])
    later = ask(server, return_logprob=True, logprob_start_len=3, sampling_params=sampling)["meta_info"]
    assert later["input_token_logprobs"] == [[near(score), token, text] for score, token, text in scored[3:]]
    end = ask(server, return_logprob=True, logprob_start_len=len(ids), sampling_params=sampling)["meta_info"]
    assert end["input_token_logprobs"] == []
    error = refused(server, {"text": PROMPT, "return_logprob": True, "logprob_start_len": len(ids) + 1})
    assert error["param"] == "logprob_start_len"


def test_top_and_chosen_logprobs_stand_beside(server: Server) -> None:
    body = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2, "token_ids_logprob": [5, 408, 1]}
    sampling = {"temperature": 0, "max_new_tokens": 3}
    meta = ask(server, **body, return_text_in_logprobs=True, sampling_params=sampling)["meta_info"]
    assert set(meta) == DONE | TOKEN_SCORES | TOP_SCORES | ID_SCORES
    for side, count in (("input", meta["prompt_tokens"]), ("output", 3)):
        tops, chosen = meta[f"{side}_top_logprobs"], meta[f"{side}_token_ids_logprobs"]
        assert len(tops) == len(chosen) == count
        known = [pair for pair in zip(tops, chosen, strict=True) if pair[0] is not None]
        assert len(known) == count - (side == "input")
        for top, ids in known:
            assert all(len(entry) == 3 and isinstance(entry[2], str) for entry in (*top, *ids))
            assert len(top) == 2
            assert top[0][0] >= top[1][0]
            assert [entry[1] for entry in ids] == [5, 408, 1]
    best = [top[0][:2] for top in meta["output_top_logprobs"]]
    assert [[entry[0], entry[1]] for entry in meta["output_token_logprobs"]] == best
    drawn = {entry[1]: entry[0] for entry in meta["input_top_logprobs"][1]}
    first = meta["input_token_ids_logprobs"][1][1]
    assert first[1] == 408
    assert first[2] == " The"
    assert drawn.get(408, first[0]) == first[0]
    flat = ask(server, text=["a", "b"], return_logprob=True, token_ids_logprob=[[5], [6, 7]], sampling_params=sampling)
    assert [len(one["meta_info"]["output_token_ids_logprobs"][0]) for one in flat] == [1, 2]


def test_what_cannot_be_is_a_number_that_json_has(server: Server) -> None:
    sampling = {"regex": "(France|England)", "max_new_tokens": 1}
    meta = ask(server, return_logprob=True, token_ids_logprob=[5], sampling_params=sampling)["meta_info"]
    assert meta["output_token_ids_logprobs"] == [[[-3.4028235e38, 5, None]]]


# --- streams -----------------------------------------------------------------------------------------------------


def test_events_hold_all_the_text_so_far(server: Server) -> None:
    sampling = {"temperature": 0, "max_new_tokens": 8}
    whole, chunks = ask(server, sampling_params=sampling), events(server, sampling_params=sampling)
    assert chunks[-1]["text"] == whole["text"]
    assert chunks[-1]["output_ids"] == whole["output_ids"]
    assert set(chunks[-1]["meta_info"]) == DONE
    for chunk, later in itertools.pairwise(chunks):
        assert set(chunk) == {"text", "output_ids", "meta_info"}
        assert set(chunk["meta_info"]) == RUNNING
        assert chunk["meta_info"]["finish_reason"] is None
        assert later["text"].startswith(chunk["text"])
        assert later["output_ids"][: len(chunk["output_ids"])] == chunk["output_ids"]
    assert len(chunks) > 3


def test_deltas_by_choice_add_up_to_the_text(server: Server) -> None:
    sampling = {"sampling_seed": 7, "max_new_tokens": 12}
    body = {"return_logprob": True, "sampling_params": sampling}
    whole = ask(server, **body)
    chunks = events(server, stream_options={"mode": "delta"}, **body)
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
    assert [token for chunk in chunks for token in chunk["output_ids"]] == whole["output_ids"]
    scores = [entry for chunk in chunks for entry in chunk["meta_info"]["output_token_logprobs"]]
    assert scores == whole["meta_info"]["output_token_logprobs"]
    assert chunks[-1]["meta_info"]["completion_tokens"] == len(whole["output_ids"])
    cumulative = events(server, stream_options={"mode": "cumulative"}, **body)
    assert cumulative[-1]["text"] == whole["text"]
    assert cumulative[-1]["meta_info"]["output_token_logprobs"] == scores


def test_deltas_tell_what_is_known_of_the_prompt_once(server: Server) -> None:
    sampling = {"sampling_seed": 7, "max_new_tokens": 6, "n": 2, "ignore_eos": True}
    asked = {"top_logprobs_num": 2, "token_ids_logprob": [5, 408], "return_prompt_token_ids": True}
    body = {"return_logprob": True, "logprob_start_len": 1, "sampling_params": sampling, **asked}
    whole = ask(server, **body)
    chunks = events(server, stream_options={"mode": "delta"}, **body)
    for index, one in enumerate(whole):
        own = [chunk for chunk in chunks if chunk["index"] == index]
        assert len(own) > 2
        for name in ("token", "top", "token_ids"):
            lists = [chunk["meta_info"][f"input_{name}_logprobs"] for chunk in own]
            assert lists == [one["meta_info"][f"input_{name}_logprobs"], *([[]] * (len(own) - 1))]
            assert lists[0]
        assert [chunk.get("prompt_token_ids") for chunk in own] == [one["prompt_token_ids"], *[None] * (len(own) - 1)]
    told = events(server, stream_options={"mode": "cumulative"}, **body)
    assert all(chunk["meta_info"]["input_token_logprobs"] and chunk["prompt_token_ids"] for chunk in told)


def test_events_of_several_samples_say_whose_they_are(server: Server) -> None:
    sampling = {"n": 2, "sampling_seed": 7, "max_new_tokens": 6}
    whole = ask(server, text=["One day", "The dog"], sampling_params=sampling)
    chunks = events(server, text=["One day", "The dog"], sampling_params=sampling)
    last = {chunk["index"]: chunk for chunk in chunks if chunk["meta_info"]["finish_reason"]}
    assert sorted(last) == [0, 1, 2, 3]
    assert [last[index]["text"] for index in range(4)] == [one["text"] for one in whole]
    assert len([chunk for chunk in chunks if chunk["meta_info"]["finish_reason"]]) == 4


def test_an_interval_makes_fewer_events(server: Server) -> None:
    sampling = {"temperature": 0, "max_new_tokens": 9, "ignore_eos": True, "stream_interval": 4}
    chunks = events(server, sampling_params=sampling)
    sizes = [len(chunk["output_ids"]) for chunk in chunks]
    assert sizes[-1] == 9
    assert all(later - size >= 4 for size, later in itertools.pairwise([0, *sizes[:-1]]))
    whole = ask(server, sampling_params={"temperature": 0, "max_new_tokens": 9, "ignore_eos": True})
    assert chunks[-1]["text"] == whole["text"]
    error = refused(server, {"text": "a", "sampling_params": {"stream_interval": 0}})
    assert error["param"] == "sampling_params.stream_interval"


def test_a_stream_is_refused_before_it_begins(server: Server) -> None:
    error = refused(server, {"text": "a", "stream": True, "sampling_params": {"top_p": 2}})
    assert error["param"] == "sampling_params.top_p"
    assert refused(server, {"text": "a", "stream_options": {"mode": "delta"}})["param"] == "stream_options"
    assert refused(server, {"text": "a", "stream": True, "stream_options": {"mode": "x"}})["param"].startswith("stream")


# --- beams -------------------------------------------------------------------------------------------------------


def test_a_beam_search_answers_with_its_hypotheses(server: Server, llm: LLM) -> None:
    from tirage import BeamSearchParams

    beams = BeamSearchParams(beam_width=3, max_tokens=5, early_stopping="never")
    expected = llm.beam_search(PROMPT, beams, sampling=SamplingParams(semantics="sglang"))[0]
    answer = ask(server, sampling_params={"beam_width": 3, "max_new_tokens": 5})
    assert set(answer) == {"text", "output_ids", "meta_info"}
    assert set(answer["meta_info"]) == DONE | {"beam_results"}
    results = answer["meta_info"]["beam_results"]
    assert [one["text"] for one in results] == [sample.text for sample in expected.samples]
    assert all(set(one) == {"output_ids", "text", "meta_info"} for one in results)
    assert all(set(one["meta_info"]) == {"finish_reason", "sequence_score"} for one in results)
    scores = [one["meta_info"]["sequence_score"] for one in results]
    assert scores == near([sample.score for sample in expected.samples])
    assert answer["text"] == results[0]["text"]
    total = sum(len(one["output_ids"]) for one in results)
    assert answer["meta_info"]["completion_tokens"] == total
    best = ask(server, sampling_params={"beam_width": 3, "n": 2, "max_new_tokens": 5})
    assert [one["output_ids"] for one in best["meta_info"]["beam_results"]] == [
        one["output_ids"] for one in results[:2]
    ]
    chunks = events(server, sampling_params={"beam_width": 3, "max_new_tokens": 5})
    assert [chunk["text"] for chunk in chunks] == [answer["text"]]


def test_a_streamed_beam_search_that_fails_says_so_as_other_streams_do(server: Server) -> None:
    impossible = {"regex": "abc", "bad_words": ["a"]}
    [plain] = events(server, sampling_params=impossible)
    [searched] = events(server, sampling_params={**impossible, "beam_width": 2})
    assert searched["error"] == plain["error"]
    assert searched["error"]["code"] == "no_allowed_token"
    whole = {**impossible, "beam_width": 2, "max_new_tokens": 2}
    assert refused(server, {"text": "a", "sampling_params": whole}) == searched["error"]


def test_what_a_beam_search_cannot_use_is_refused(server: Server) -> None:
    for name, value in (("top_p", 0.5), ("sampling_seed", 3), ("top_k", 5)):
        assert refused(server, {"text": "a", "sampling_params": {"beam_width": 2, name: value}})["param"] is not None
    assert refused(server, {"text": "a", "sampling_params": {"beam_width": 2, "n": 3}})["param"].endswith(".n")
    assert refused(server, {"text": "a", "sampling_params": {"beam_width": 0}})["param"].endswith("beam_width")


# --- meanings ----------------------------------------------------------------------------------------------------


def test_another_meaning_is_one_field_away(server: Server, llm: LLM) -> None:
    sampling = {"top_k": 5, "top_p": 0.7, "repetition_penalty": 1.4, "sampling_seed": 11, "max_new_tokens": 12}
    for name in ("sglang", "vllm", "hf"):
        expected = llm.generate(PROMPT, from_sglang(sampling).replace(semantics=name))[0]
        assert ask(server, semantics=name, sampling_params=sampling)["output_ids"] == list(expected.token_ids)
        inner = ask(server, sampling_params={**sampling, "semantics": name})
        assert inner["output_ids"] == list(expected.token_ids)
    assert refused(server, {"text": "a", "semantics": "vlm"})["param"] == "semantics"


def test_our_own_parameters_are_taken_too(server: Server, llm: LLM) -> None:
    own = {"typical_p": 0.5, "xtc_probability": 1.0, "xtc_threshold": 0.05, "bad_words": [" a"]}
    params = from_sglang({"max_new_tokens": 8, "sampling_seed": 2}).replace(semantics="canonical", **own)
    sampling = {"max_new_tokens": 8, "sampling_seed": 2, "semantics": "canonical", **own}
    assert ask(server, sampling_params=sampling)["output_ids"] == list(llm.generate(PROMPT, params)[0].token_ids)
    error = refused(server, {"text": "a", "sampling_params": {"typical_p": 0.5}})
    assert "under semantics 'sglang'" in error["message"]


# --- refusals ----------------------------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"temperature": 0}, "did you mean sampling_params.temperature?", "temperature"),
    ({"input_id": [1]}, "did you mean 'input_ids'?", "input_id"),
    (
        {"text": "a", "sampling_params": {"return_logprob": True}},
        "return_logprob must stand beside sampling_params, at the top level of the body, got it in sampling_params;",
        "sampling_params.return_logprob",
    ),
    (
        {"text": ["a"], "sampling_params": [{"max_thinking_tokens": 3}]},
        "max_thinking_tokens must stand beside sampling_params, at the top level of the body, got it in sampling_par",
        "sampling_params[0].max_thinking_tokens",
    ),
    ({}, "got none of them", "text"),
    ({"text": "a", "input_ids": [1]}, "got text and input_ids", "text"),
    ({"text": 5}, "text must be a text", "text"),
    ({"text": []}, "at least one prompt", "text"),
    ({"text": ["a", 5]}, "text[1] must be a text", "text[1]"),
    ({"text": ["a"] * 129}, "--max-prompts", "prompts"),
    ({"input_ids": []}, "input_ids must be a list that is not empty", "input_ids"),
    ({"input_ids": [1, -1]}, "must be integers in [0, 1536), got -1", "input_ids"),
    ({"input_ids": [1, 99999]}, "must be integers in [0, 1536), got 99999", "input_ids"),
    ({"input_ids": [1, True]}, "input_ids[1] must be a token id", "input_ids[1]"),
    ({"input_ids": [1.0]}, "input_ids[0] must be a token id", "input_ids[0]"),
    ({"input_embeds": [[0.5, 1.0]]}, "input_embeds must not be given", "input_embeds"),
    ({"input_embeds": [[0.5], [1.0, 2.0]]}, "input_embeds[1] must be a list of as many numbers", "input_embeds[1]"),
    ({"text": "a", "sampling_params": 5}, "sampling_params must be an object", "sampling_params"),
    ({"text": "a", "sampling_params": [{}]}, "one object, or in a batch one per prompt", "sampling_params"),
    ({"text": "a", "sampling_params": {"foo": 1}}, "known name, got 'foo'", "sampling_params.foo"),
    ({"text": ["a", "b"], "sampling_params": [{}, {"top_k": -3}]}, "top_k must be", "sampling_params[1].top_k"),
    (
        {"text": "a", "sampling_params": {"max_new_tokens": 600}},
        "the model's context",
        "sampling_params.max_new_tokens",
    ),
    ({"text": "a", "sampling_params": {"stop": ["x"] * 2 + [str(i) for i in range(40)]}}, "--max-stop", None),
    ({"text": "a", "sampling_params": {"stop": "x" * 257}}, "--max-stop-chars", None),
    ({"text": "a", "sampling_params": {"bad_words": [str(i) for i in range(129)]}}, "--max-bad-words", None),
    ({"text": "a", "sampling_params": {"logit_bias": {str(i): 1 for i in range(1025)}}}, "--max-logit-bias", None),
    ({"text": "a", "sampling_params": {"stop_token_ids": [9999]}}, "[0, 1536)", "sampling_params.stop_token_ids"),
    ({"text": "a", "sampling_params": {"logit_bias": {"9999": 1}}}, "[0, 1536)", "sampling_params.logit_bias"),
    ({"text": "a", "sampling_params": {"regex": "("}}, "regex must be", "sampling_params.regex"),
    ({"text": "a", "sampling_params": {"ebnf": "root ::= x"}}, "ebnf", "sampling_params.ebnf"),
    ({"text": "a", "sampling_params": {"n": 129}}, "--max-n", "sampling_params.n"),
    ({"text": ["a", "b", "c"], "sampling_params": {"n": 100}}, "--max-samples", None),
    ({"text": "a", "sampling_params": {"beam_width": 129}}, "--max-beams", "sampling_params.beam_width"),
    ({"text": "a", "return_logprob": 1}, "return_logprob must be true or false", "return_logprob"),
    ({"text": "a", "return_logprob": [True]}, "one value, or in a batch one per prompt", "return_logprob"),
    ({"text": "a", "top_logprobs_num": 2}, "must go with return_logprob=true", "top_logprobs_num"),
    ({"text": "a", "return_logprob": True, "top_logprobs_num": 21}, "--max-top-logprobs", "top_logprobs_num"),
    ({"text": "a", "return_logprob": True, "logprob_start_len": -2}, "logprob_start_len must be", "logprob_start_len"),
    ({"text": "a", "return_logprob": True, "token_ids_logprob": [9999]}, "[0, 1536)", "token_ids_logprob"),
    ({"text": "a", "lora_path": "nobody"}, "lora_path must", "lora_path"),
    ({"text": "a", "lora_path": "../nobody"}, "got a path or the like", "lora_path"),
    (
        {"text": "a", "return_hidden_states": "last"},
        "return_hidden_states must be true or false",
        "return_hidden_states",
    ),
    ({"text": "a", "return_hidden_states": True}, "return_hidden_states must not be given", "return_hidden_states"),
    ({"text": "a", "image_data": "x.png"}, "this model takes no images", "image_data"),
    ({"input_ids": [1], "image_data": "x.png"}, "image_data must come with text", "image_data"),
    ({"text": "a", "custom_logit_processor": "forced_token"}, "--enable-custom-logit-processor", None),
    ({"text": "a", "stream": "yes"}, "stream must be true or false", "stream"),
]


@pytest.mark.parametrize(("body", "message", "param"), REFUSED)
def test_what_breaks_a_rule_is_refused_by_its_name(
    server: Server, body: dict[str, Any], message: str, param: str | None
) -> None:
    error = refused(server, body)
    assert message in error["message"]
    assert param is None or error["param"] == param
    assert error["type"] == "invalid_request_error"


def test_unknown_fields_are_ignored_on_demand_and_listed(server: Server) -> None:
    body = {"text": "a", "urgency": 3, "sampling_params": {"max_new_tokens": 1, "sparkle": True}}
    assert refused(server, body)["param"] == "urgency"
    response = server.post("/generate", body, headers={"x-tirage-unknown-fields": "ignore"})
    assert response.status_code == 200
    assert response.headers["x-tirage-ignored-fields"] == "urgency, sampling_params.sparkle"


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_ignored_in_a_schema_is_listed(server: Server, stream: bool) -> None:
    schema = json.dumps({"const": 1, "nullable": True, "not": {"format": "colour", "type": "null"}})
    body = {"text": "a", "stream": stream, "sampling_params": {"max_new_tokens": 3, "json_schema": schema}}
    response = server.post("/generate", body)
    assert response.status_code == 200
    assert response.headers["x-tirage-ignored-in-schema"] == "#/nullable, #/not/format"


def test_null_is_as_absent(server: Server) -> None:
    names = [
        "rid",
        "return_logprob",
        "logprob_start_len",
        "top_logprobs_num",
        "token_ids_logprob",
        "lora_path",
        "stream",
    ]
    names += ["image_data", "audio_data", "custom_logit_processor", "return_hidden_states", "return_text_in_logprobs"]
    answer = ask(server, **dict.fromkeys(names), input_ids=None, text=PROMPT, sampling_params={"max_new_tokens": 1})
    assert set(answer["meta_info"]) == DONE


def test_every_answer_is_strict_json(server: Server) -> None:
    body = {"text": PROMPT, "return_logprob": True, "top_logprobs_num": 20, "sampling_params": {"regex": "[ab]{2}"}}

    def no_constant(word: str) -> Any:
        raise AssertionError(word)

    answer = json.loads(server.post("/generate", body).text, parse_constant=no_constant)
    values = [entry[0] for top in answer["meta_info"]["output_top_logprobs"] for entry in top]
    assert all(math.isfinite(value) for value in values)


# --- parameters in force -------------------------------------------------------------------------------------------


def test_the_parameters_in_force_come_along_once_per_prompt(server: Server) -> None:
    body = {"text": ["One day", "The dog"], "sampling_params": {"n": 2, "max_new_tokens": 3}}
    answers = ask(server, **body, return_effective_params=True)
    records = [answer["effective_params"] for answer in answers if "effective_params" in answer]
    assert [index for index, answer in enumerate(answers) if "effective_params" in answer] == [0, 2]
    assert [record["params"]["semantics"] for record in records] == ["sglang"] * 2
    assert [record["params"]["seed"] for record in records] == [answers[i]["meta_info"]["seed"] for i in (0, 2)]
    chunks = events(server, **body, return_effective_params=True)
    streamed = [chunk["effective_params"] for chunk in chunks if "effective_params" in chunk]
    assert len(streamed) == 2
    assert all(record["params"]["max_tokens"] == 3 for record in streamed)
    single = events(server, sampling_params={"beam_width": 2, "max_new_tokens": 3}, return_effective_params=True)
    assert single[-1]["effective_params"]["beams"]["beam_width"] == 2


def test_the_document_describes_the_body(server: Server) -> None:
    paths = server.get("/openapi.json").json()["paths"]["/generate"]
    assert set(paths) == {"post", "put"}
    for method in paths.values():
        schema = method["requestBody"]["content"]["application/json"]["schema"]
        assert {"text", "input_ids", "sampling_params", "rid", "return_logprob", "stream"} <= set(schema["properties"])
        sampling = schema["properties"]["sampling_params"]["anyOf"][0]
        assert {"max_new_tokens", "top_p", "json_schema", "beam_width", "stream_interval"} <= set(
            sampling["properties"]
        )


def test_of_two_patterns_the_one_that_matched_is_named(server: Server) -> None:
    for pattern, text in (("P.r", "Par"), (r"i\w", "is")):
        sampling = {"temperature": 0, "stop_regex": ["[0-9]{3}", pattern, "zz+"]}
        answer = ask(server, sampling_params=sampling)
        end = answer["meta_info"]["finish_reason"]
        assert (end["matched"], end["matched_text"]) == (pattern, text)
        assert events(server, sampling_params=sampling)[-1]["meta_info"]["finish_reason"] == end


def test_hostile_stop_patterns_hold_nobody_up(server: Server) -> None:
    hostile = ["(a|a)*$b", "(x+x+)+y", "([a-z ]+)+[0-9]", "(.*)*#"]
    sampling = {"max_new_tokens": 200, "ignore_eos": True, "temperature": 1.5}
    plain = ask(server, sampling_params={**sampling, "sampling_seed": 5})
    answer = ask(server, sampling_params={**sampling, "sampling_seed": 5, "stop_regex": hostile})
    assert plain["text"].startswith(answer["text"])
    # Orders of magnitude above what it takes; a backtracking engine would need years.
    assert answer["meta_info"]["e2e_latency"] < 60


def test_an_aborted_request_ends_with_sglangs_abort_object(server: Server) -> None:
    sampling = {"n": 8, "ignore_eos": True, "max_new_tokens": None}
    body = {"text": PROMPT, "rid": "job1", "stream": True, "sampling_params": sampling}
    last: dict[int, Any] = {}
    with httpx.stream("POST", f"{server.url}/generate", json=body, timeout=60) as response:
        lines = (line for line in response.iter_lines() if line.startswith("data: {"))
        next(lines)
        assert server.post("/abort_request", {"rid": "job"}).json()["not_found"] == ["job"]
        assert server.post("/abort_request", {"rid": "job1"}).json()["aborted"] == ["job1"]
        for line in lines:
            event = json.loads(line[6:])
            last[event["index"]] = event["meta_info"]["finish_reason"]
    aborted = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    assert [last[index] for index in range(8)] == [aborted] * 8
