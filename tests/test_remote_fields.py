"""What is sent to other engines' servers: fields that they have, each of them stated, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from peer_contract import read_rows

from tirage import GuidedDecodingParams, ParamsError, RequestOutputKind, SamplingParams
from tirage.operators import OPERATORS
from tirage.params import FIELDS
from tirage.remote.formats import FORMATS
from tirage.remote.inside_vllm import inside_fields
from tirage.remote.reference import filled
from tirage.remote.request import RemoteRequest, checked_messages, prompt_parts
from tirage.remote.routes import BESIDE, REMOTE_DIALECTS, RemoteRoute, engine_defaults, fields_of, honoured

ROUTES = [
    pytest.param(route, id=f"{name}-{kind}")
    for name, dialect in REMOTE_DIALECTS.items()
    for kind, route in (("prompts", dialect.prompts), ("chats", dialect.chats))
]
FOREIGN = [each for each in ROUTES if not str(each.id).startswith("tirage")]
KINDS = {
    "vllm-prompts": [("vllm", "CompletionRequest")],
    "vllm-chats": [("vllm", "ChatCompletionRequest")],
    "sglang-prompts": [("sglang", "GenerateReqInput"), ("sglang", "SamplingParams")],
    "sglang-chats": [("sglang", "ChatCompletionRequest")],
    "openai-prompts": [("openai", "completions.create")],
    "openai-chats": [("openai", "chat.completions.create")],
    "llamacpp-prompts": [("llamacpp", "/completion")],
    "llamacpp-chats": [("llamacpp", "/completion")],
}
"""The requests of the routes, as tests/peers/fields lists their fields."""

VALUES: dict[str, Any] = {
    "n": 2, "best_of": 3, "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2,
    "temperature": 0.7, "top_p": 0.8, "min_p": 0.1, "top_k": 7, "seed": 5, "stop": ["a"], "stop_token_ids": [3],
    "stop_pattern": "a+b", "bad_words": ["x"], "ignore_eos": True, "max_tokens": 9, "min_tokens": 2, "logprobs": 2,
    "prompt_logprobs": 1, "detokenize": False, "skip_special_tokens": False, "spaces_between_special_tokens": False,
    "include_stop_str_in_output": True, "output_kind": RequestOutputKind.DELTA, "truncate_prompt_tokens": 4,
    "guided_decoding": GuidedDecodingParams(json={"type": "object"}), "logit_bias": {3: 1.5},
    "allowed_token_ids": [1, 2], "bad_words_token_ids": [[4, 5]], "bad_words_level": "text",
    "logprob_token_ids": [6], "logprobs_mode": "sampled",
    "return_kept": True, "max_kept_ids": 50, "watermark": {"scheme": "gumbel", "key": 5},
    "logits_processors": [("disallowed_tokens", {"token_ids": [1]})],
    "close_grammar": True, "reasoning_parser": "qwen3", "thinking_budget": 5, "forcing": "canonical",
    "semantics": "mlx", "top_a": 0.1, "typical_p": 0.9, "epsilon_cutoff": 0.01,
    "eta_cutoff": 0.01, "top_n_sigma": 1.5, "top_h": 0.5, "mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.2,
    "adaptive_target": 0.4, "adaptive_decay": 0.5, "xtc_probability": 0.5, "xtc_threshold": 0.2,
    "xtc_protected_ids": [1], "dry_multiplier": 0.8, "dry_base": 2.0, "dry_allowed_length": 3, "dry_last_n": 50,
    "dry_sequence_breakers": ["x"], "dry_breaker_token_ids": [1], "no_repeat_ngram_size": 3, "dynatemp_range": 0.3,
    "dynatemp_exponent": 2.0, "smoothing_factor": 0.3, "smoothing_curve": 2.0, "min_keep": 3, "p_less": "norm",
    "tfs": 0.9, "sequence_bias": [[[1, 2], 1.5]],
}  # fmt: skip
for _operator in OPERATORS.values():
    for _name, _examples in _operator.examples.items():
        VALUES.setdefault(_name, _examples[0])
WITH: dict[str, dict[str, Any]] = {
    "close_grammar": {"guided_decoding": VALUES["guided_decoding"]},
    "forcing": {"guided_decoding": VALUES["guided_decoding"]},
    "logprobs_mode": {"logprobs": 2},
    "logprob_token_ids": {"logprobs": 2},
    "prompt_logprobs": {"logprobs": 1},
    "xtc_threshold": {"xtc_probability": 0.5},
}
"""What a parameter needs beside it to have an effect."""


def request(route: RemoteRoute, params: SamplingParams, *, stream: bool = False, **more: Any) -> RemoteRequest:
    given = {"text": "Once"} if "chat" not in route.path else {"messages": [{"role": "user", "content": "hi"}]}
    return RemoteRequest(params=params, seed=1, fields=fields_of(route, params), stream=stream, **{**given, **more})


def body(route: RemoteRoute, params: SamplingParams, **more: Any) -> dict[str, Any]:
    return FORMATS[route.form](route, request(route, params, **more)).body("small")


def named(route: RemoteRoute, params: SamplingParams, **more: Any) -> set[str]:
    """The names of all fields in a request, those of `sampling_params` among them."""
    sent = body(route, params, **more)
    return {*sent, *sent.get("sampling_params", {})} - {"sampling_params"}


def in_meaning(route: RemoteRoute, **given: Any) -> SamplingParams:
    """Parameters in the meaning of a route's server."""
    scored = route.dialect.name == "SGLang" and "logprobs" in given
    return SamplingParams(**{
        "semantics": route.dialect.preset,
        "logprobs_mode": "processed" if scored else "raw",
        **given,
    })


def test_every_parameter_has_a_value_here() -> None:
    # extra_args go with a processor that declares them, and are refused with it.
    assert set(VALUES) == {name for name, spec in FIELDS.items() if spec.public} - {"extra_args"}
    assert [name for name, value in VALUES.items() if value == FIELDS[name].default] == []


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("route", ROUTES)
def test_a_parameter_is_said_and_read_back_or_refused_by_name(route: RemoteRoute, name: str) -> None:
    given = {**WITH.get(name, {}), name: VALUES[name]}
    try:
        params = SamplingParams(**given) if name == "semantics" else in_meaning(route, **given)
    except ParamsError:
        # The server's own meaning has no such stage; under the default one the field is refused as it has no place.
        params = SamplingParams(**given)
    if name in honoured(route) and (name != "semantics" or route.dialect.name == "tirage"):
        back = route.dialect.read(fields_of(route, params)).params
        if name not in {"guided_decoding", "output_kind"}:
            assert getattr(back, name) == getattr(params, name)
    elif name == "semantics":
        # Without parameters that differ, the meaning is the same.
        assert fields_of(route, params)
        with pytest.raises(ParamsError, match=r"^semantics must be"):
            fields_of(route, params.replace(temperature=0.5, top_p=0.5, frequency_penalty=0.5))
    else:
        with pytest.raises(ParamsError, match=r"^\w+ must be") as caught:
            fields_of(route, params)
        assert name in str(caught.value)


@pytest.mark.parametrize("route", FOREIGN)
def test_a_server_is_sent_only_fields_that_it_has(route: RemoteRoute, request: pytest.FixtureRequest) -> None:
    kind = request.node.callspec.id
    known = {row.field for row in read_rows() if (row.peer, row.kind) in KINDS[kind]}
    # What llama.cpp's list has no row for: the prompt itself, the model, and what its chats add.
    more = {"llamacpp-prompts": {"prompt", "model"}, "llamacpp-chats": {"messages", "model", "stream_options"}}
    single = [{name: VALUES[name], **WITH.get(name, {})} for name in honoured(route)]
    for given in ({}, *single):
        for stream in (False, True):
            params = SamplingParams(**given) if "semantics" in given else in_meaning(route, **given)
            assert named(route, params, stream=stream) - known <= more.get(kind, set())


def test_every_sampling_field_is_stated_even_at_its_default() -> None:
    for route in (each.values[0] for each in ROUTES):
        sent = fields_of(route, in_meaning(route, seed=3))
        silent = {
            entry.name
            for entry in route.dialect.entries.values()
            if entry.name not in sent and entry.default is not None and FIELDS.get(entry.ours[0]) is not None
        }
        assert silent <= {"max_tokens", "top_logprobs", "best_of"}, route.path
        assert sent[next(name for name in ("temperature",) if name in sent)] == 1.0


@pytest.mark.parametrize("route", ROUTES)
def test_without_parameters_only_a_limit_and_a_seed_are_sent(route: RemoteRoute) -> None:
    _, fields = engine_defaults(route, max_tokens=16, seed=5)
    assert set(fields) <= {
        "seed",
        "sampling_seed",
        "max_tokens",
        "max_completion_tokens",
        "n_predict",
        "max_new_tokens",
    }
    assert 5 in fields.values()


@pytest.mark.parametrize(
    ("given", "alike"),
    [
        ({}, {"vllm", "sglang", "openai", "llamacpp"}),
        ({"temperature": 0.0, "top_p": 0.5}, {"vllm", "sglang", "openai", "llamacpp"}),
        ({"top_p": 0.9}, {"vllm", "openai"}),
        ({"top_k": 4, "temperature": 0.5}, {"vllm"}),
        ({"min_p": 0.1, "top_p": 0.9}, set()),
        ({"repetition_penalty": 1.2}, {"vllm"}),
        ({"frequency_penalty": 0.5}, {"vllm", "sglang", "openai"}),
    ],
)
def test_another_meaning_is_refused_where_it_makes_a_difference(given: dict[str, Any], alike: set[str]) -> None:
    for name in ("vllm", "sglang", "openai", "llamacpp"):
        route = REMOTE_DIALECTS[name].prompts
        if name in alike:
            assert fields_of(route, SamplingParams(**given))
        else:
            with pytest.raises(ParamsError, match=r"^semantics must be|for OpenAI, whose /v1/completions has no field"):
                fields_of(route, SamplingParams(**given))


def test_a_value_out_of_range_names_the_range() -> None:
    for given, says in (
        ({"temperature": 3.0}, "temperature must be a value that vLLM takes: temperature must be"),
        ({"stop": list("abcde")}, "stop must be a value that vLLM takes: stop must hold at most 4 strings, got 5"),
        ({"logprobs": 50}, "logprobs must be a value that vLLM takes: logprobs must be"),
        ({"logit_bias": {1: -float("inf")}}, "logit_bias must be another value for vLLM, .* cannot express this one"),
    ):
        with pytest.raises(ParamsError, match=says):
            fields_of(REMOTE_DIALECTS["vllm"].prompts, SamplingParams(**given))


def test_the_bodies_of_each_form() -> None:
    params = SamplingParams(seed=1, max_tokens=3, temperature=0.0)
    vllm = REMOTE_DIALECTS["vllm"]
    sent = body(vllm.prompts, params, text=None, token_ids=(1, 2), salt="me", adapter="mine", stream=True)
    assert (sent["prompt"], sent["model"], sent["cache_salt"]) == ([1, 2], "mine", "me")
    assert (sent["stream"], sent["stream_options"]) == (True, {"include_usage": True})
    chat = body(vllm.chats, params)
    assert (chat["messages"], chat["max_completion_tokens"]) == ([{"role": "user", "content": "hi"}], 3)
    sglang = body(REMOTE_DIALECTS["sglang"].prompts, params, adapter="mine", salt="me", stream=True)
    assert (sglang["text"], sglang["lora_path"], sglang["cache_salt"], sglang["stream"]) == ("Once", "mine", "me", True)
    assert (sglang["sampling_params"]["max_new_tokens"], BESIDE & sglang["sampling_params"].keys()) == (3, set())
    llamacpp = body(REMOTE_DIALECTS["llamacpp"].prompts, params, text=None, token_ids=(1, 2))
    assert (llamacpp["prompt"], llamacpp["n_predict"], llamacpp["mirostat"]) == ([1, 2], 3, 0)
    assert llamacpp["samplers"][-1] == "temperature"


# --- tirage inside vLLM ----------------------------------------------------------------------------------------------


def test_inside_vllm_the_draw_goes_to_tirage_and_the_rest_to_vllm() -> None:
    route = REMOTE_DIALECTS["vllm"].prompts
    params = SamplingParams(
        seed=7, temperature=0.8, top_p=0.9, dry_multiplier=0.8, semantics="llamacpp", max_tokens=9, stop=["x"],
        logprobs=2, n=3,
    )  # fmt: skip
    fields = inside_fields(route, params)
    own = json.loads(fields.pop("vllm_xargs")["tirage"])
    assert own == {"seed": 7, "temperature": 0.8, "top_p": 0.9, "dry_multiplier": 0.8, "semantics": "llamacpp"}
    assert (fields["temperature"], fields["seed"], fields["n"], fields["max_tokens"]) == (1.0, 7, 3, 9)
    off = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0}
    assert {name: fields[name] for name in off} == off
    assert inside_fields(route, params.replace(n=1))["temperature"] == 0.0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"bad_words": ["x"]}, "bad_words"),
        ({"dry_multiplier": 0.8, "dry_sequence_breakers": ["x"]}, "dry_sequence_breakers"),
        ({"stop_pattern": "a+"}, "stop_pattern must be None for vLLM"),
        ({"best_of": 3}, "best_of must be None for vLLM"),
    ],
)
def test_inside_vllm_what_needs_a_tokenizer_or_what_vllm_lacks_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ParamsError, match=says):
        inside_fields(REMOTE_DIALECTS["vllm"].prompts, SamplingParams(seed=1, **given))


# --- prompts and messages --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [[], [-1], [True], [1.5], 5, None, b"x"])
def test_a_prompt_that_is_none_is_refused(prompt: Any) -> None:
    with pytest.raises(ParamsError, match=r"^prompt"):
        prompt_parts(prompt)


@pytest.mark.parametrize(
    "messages", [[], "hi", {"role": "user"}, ["hi"], [{"content": "x"}], [{"role": "user", "content": object()}]]
)
def test_messages_that_json_cannot_carry_are_refused(messages: Any) -> None:
    with pytest.raises(ParamsError, match=r"^messages"):
        checked_messages(messages)


def test_the_page_says_what_is_honoured() -> None:
    page = (Path(__file__).parents[1] / "docs" / "remote.md").read_text(encoding="utf-8")
    assert filled(page) == page
    assert page.count("| yes |") > 20
