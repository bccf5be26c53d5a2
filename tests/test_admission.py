"""Requests are admitted by what they may cost: at every limit, and one above it refused with number, limit and flag."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from servers import shared

from tirage import BeamSearchParams, GuidedDecodingParams, ParamsError, Prompt, SamplingParams
from tirage.patterns import compile_pattern
from tirage.server.admission import PROMPT_RULES, REQUEST_RULES, AdmissionRule, Cost, check_cost
from tirage.server.engine_input import EngineInput
from tirage.server.options import FLAGS, LIMIT_FLAGS, Limits

CONTEXT = 1 << 17
ROOMY: dict[str, Any] = {name: flag.high for name, flag in LIMIT_FLAGS.items()}


def one(**params: Any) -> EngineInput:
    given: dict[str, Any] = {"max_tokens": 5} | params
    return EngineInput(prompt=Prompt(text="Once"), params=SamplingParams(**given))


def words(count: int, length: int = 4) -> tuple[str, ...]:
    return tuple(f"{i:0{length}}" for i in range(count))


def guided(text: str, **params: Any) -> EngineInput:
    return one(guided_decoding=GuidedDecodingParams(regex=text), **params)


LARGEST: dict[str, Callable[[int], list[EngineInput]]] = {
    "n": lambda most: [one(n=most)],
    "best_of": lambda most: [one(best_of=most)],
    "beam_width": lambda most: [
        EngineInput(
            prompt=Prompt(text="a"),
            params=SamplingParams(max_tokens=1),
            beams=BeamSearchParams(beam_width=most, max_tokens=1, num_return_sequences=1),
        )
    ],
    "logprobs": lambda most: [one(logprobs=most)],
    "prompt_logprobs": lambda most: [one(prompt_logprobs=most)],
    "number of logprob_token_ids": lambda most: [one(logprob_token_ids=tuple(range(most)))],
    "stop strings": lambda most: [one(stop=words(most))],
    "stop characters": lambda most: [one(stop=["x" * most])],
    "number of bad_words": lambda most: [one(bad_words=words(most))],
    "number of bad_words_token_ids": lambda most: [one(bad_words_token_ids=tuple((i,) for i in range(most)))],
    "bad_words characters": lambda most: [one(bad_words=["x" * most])],
    "number of dry_sequence_breakers": lambda most: [one(dry_sequence_breakers=words(most))],
    "dry_sequence_breakers characters": lambda most: [one(dry_sequence_breakers=["x" * most])],
    "number of logit_bias entries": lambda most: [one(logit_bias=dict.fromkeys(range(most), 1.0))],
    "number of sequence_bias entries": lambda most: [one(sequence_bias={(i,): 1.0 for i in range(most)})],
    "rid": lambda most: [EngineInput(prompt=Prompt(text="a"), params=SamplingParams(max_tokens=1), rid="x" * most)],
    "prompts": lambda most: [one()] * most,
    "n times the number of prompts": lambda most: [one(n=128)] * (most // 128) + [one()] * (most % 128),
    "prompt tokens of the request": lambda most: [
        EngineInput(prompt=Prompt(token_ids=np.zeros(length, np.int32)), params=SamplingParams(max_tokens=1))
        for length in [CONTEXT] * (most // CONTEXT) + [1] * (most % CONTEXT)
    ],
    "max_tokens times the number of samples": lambda most: (
        [one(max_tokens=most // 128, n=128)] + [one(max_tokens=1)] * (most % 128)
    ),
    "logprob entries of the answer besides one sample's own": lambda most: [
        one(logprobs=0, max_tokens=most // 100, n=101),
        *[one(logprobs=0, max_tokens=1)] * (most % 100),
    ],
    "tokens that may be recorded times max_kept_ids": lambda most: [
        one(return_kept=True, n=4, max_tokens=most // (4 * 4096), max_kept_ids=4096),
        *[one(return_kept=True, max_tokens=1, max_kept_ids=1)] * (most % (4 * 4096)),
    ],
    "characters of all stops and bad_words": lambda most: [
        one(stop=words(most // 64, 64), bad_words=words(1, most % 64) if most % 64 else ())
    ],
    "states of the stop patterns of all samples": lambda most: [
        one(stop_pattern=pattern_of(64), n=most // 64),
        *[one(stop_pattern=pattern_of(2))] * (most % 64),
    ],
    "different constraints of the request": lambda most: [guided(f"a{i}") for i in range(most)],
    "characters of all constraints": lambda most: [guided(text) for text in texts(most)],
    "characters of constraints times the samples that follow them": lambda most: [
        *[guided("a" * 16_000, n=128)] * (most // (128 * 16_000)),
        *[guided(text) for text in texts(most % (128 * 16_000))],
    ],
}
"""By the name in its refusal, a request that has as many as the limit."""


def pattern_of(states: int) -> str:
    """A pattern of so many states, its end included."""
    pattern = "a" * (states - 1)
    assert compile_pattern(pattern).size == states
    return pattern


def texts(most: int) -> list[str]:
    """Different patterns with so many characters together."""
    whole = [f"{i:016000}" for i in range(most // 16000)]
    return [*whole, "b" * (most % 16000)] if most % 16000 else whole


def limits_but(name: str, most: int) -> Limits:
    """No limits but one."""
    return Limits(**ROOMY | {name: most})


RULES: dict[str, AdmissionRule[Any]] = {rule.what: rule for rule in (*PROMPT_RULES, *REQUEST_RULES)}
SMALL = {"max_tokens times the number of samples": 128 * 9, "characters of all stops and bad_words": 64 * 9}
"""Where a request at the default limit would take long to make: a smaller limit."""


@pytest.mark.parametrize("what", RULES)
def test_a_request_at_a_limit_is_admitted_and_one_above_it_refused_by_number_limit_and_flag(what: str) -> None:
    rule = RULES[what]
    most: int = SMALL.get(what) or FLAGS[rule.limit].default
    limits = limits_but(rule.limit, most)
    at, above = LARGEST[what](most), LARGEST[what](most + 1)
    check_cost(at, limits, context=CONTEXT)
    with pytest.raises(ParamsError) as refused:
        check_cost(above, limits, context=CONTEXT)
    message = str(refused.value)
    assert message.startswith(f"{what} must be at most {most}, got ")
    assert message.endswith(f"; the operator can raise it with {FLAGS[rule.limit].flag}")
    assert int(message.partition("got ")[2].partition(";")[0]) > most


def cost(*inputs: EngineInput, context: int = 100) -> Cost:
    return Cost.of(inputs, context=context)


def test_equal_phrases_and_constraints_count_once() -> None:
    params: dict[str, Any] = {
        "stop": ["stop"],
        "bad_words": ["bad"],
        "guided_decoding": GuidedDecodingParams(regex="ab+"),
    }
    found = cost(*(one(**params) for _ in range(8)), one(stop=["stop"]))
    assert (found.phrase_chars, found.constraints, found.constraint_chars) == (4 + 3 + 4, 1, 3)
    assert found.followed_chars == 8 * 3


def test_constraints_count_for_every_sample_that_follows_them_and_twice_for_a_beam() -> None:
    assert cost(guided("abc", n=4), guided("ab")).followed_chars == 4 * 3 + 2
    searched = EngineInput(
        prompt=Prompt(text="Once"), params=guided("abc").params, beams=BeamSearchParams(beam_width=5, max_tokens=4)
    )
    assert cost(searched).followed_chars == 2 * 5 * 3


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {f"w{i}": {"type": "integer"} for i in range(300)}, "required": ["w1"]},
        {"enum": [f"w{i}" for i in range(300)]},
        {"anyOf": [{"const": f"w{i}"} for i in range(300)]},
    ],
)
def test_an_object_counts_nearly_as_much_as_its_text(schema: dict[str, Any]) -> None:
    as_object, as_text = (
        cost(one(guided_decoding=GuidedDecodingParams(json=given))).constraint_chars
        for given in (schema, json.dumps(schema, separators=(",", ":")))
    )
    assert as_text <= as_object <= 1.2 * as_text


def test_tokens_are_counted_up_to_the_context() -> None:
    ids = EngineInput(prompt=Prompt(token_ids=[1] * 30), params=SamplingParams(max_tokens=None, n=3))
    assert (cost(ids).prompt_tokens, cost(ids).output_tokens) == (30, 3 * 70)
    text = EngineInput(prompt=Prompt(text="é" * 30), params=SamplingParams(max_tokens=200))
    assert (cost(text).prompt_tokens, cost(text).output_tokens) == (62, 100)
    cut = EngineInput(prompt=Prompt(text="a" * 500), params=SamplingParams(truncate_prompt_tokens=7, max_tokens=1))
    assert (cost(cut).prompt_tokens, cost(cut).output_tokens) == (7, 1)
    chat = EngineInput(messages=[{"role": "user", "content": "a"}], params=SamplingParams(max_tokens=9))
    assert (cost(chat).prompt_tokens, cost(chat).output_tokens) == (100, 9)
    embeds = EngineInput(prompt=Prompt(embeds=np.zeros((8, 4), np.float32)), params=SamplingParams(max_tokens=9))
    assert (cost(embeds).prompt_tokens, cost(embeds).output_tokens) == (8, 9)


def test_beams_count_as_samples_with_their_own_limit() -> None:
    beams = BeamSearchParams(beam_width=6, max_tokens=20)
    found = cost(EngineInput(prompt=Prompt(text="a"), params=SamplingParams(max_tokens=99), beams=beams))
    assert (found.samples, found.output_tokens) == (6, 120)


def test_logprobs_of_prompt_output_and_named_tokens_count() -> None:
    ids = Prompt(token_ids=[1] * 10)
    params = SamplingParams(prompt_logprobs=3, logprobs=2, logprob_token_ids=(4, 5), max_tokens=7, n=2)
    assert cost(EngineInput(prompt=ids, params=params)).logprobs == 10 * (1 + 3 + 2) + 2 * 7 * (1 + 2 + 2) - 7 * 3
    repeats = EngineInput(prompt=ids, params=params, repeats_logprobs=True)
    assert cost(repeats).logprobs == 10 * (1 + 3 + 2) + 2 * (2 * 7 * (1 + 2 + 2) - 7 * 3)
    ranked = SamplingParams(best_of=4, max_tokens=7)
    assert cost(EngineInput(prompt=ids, params=ranked)).logprobs == 0


def test_one_sample_of_a_long_context_may_have_all_its_logprobs() -> None:
    chat = EngineInput(messages=[{"role": "user", "content": "a"}], params=SamplingParams(max_tokens=None, logprobs=20))
    check_cost([chat], Limits(), context=CONTEXT)
    for repeats in (False, True):
        own = EngineInput(messages=chat.messages, params=chat.params, repeats_logprobs=repeats)
        check_cost([own], Limits(), context=1 << 20)
    for more in ({"n": 2}, {"logprob_token_ids": tuple(range(100))}):
        with pytest.raises(ParamsError, match="logprob entries"):
            check_cost(
                [EngineInput(messages=chat.messages, params=chat.params.replace(**more))], Limits(), context=CONTEXT
            )


def test_the_samples_of_best_of_count_all() -> None:
    assert cost(one(n=2, best_of=5)).samples == 5


@pytest.mark.parametrize(
    ("route", "field", "value", "what"),
    [
        ("/generate", "sampling_params", {"n": 2, "max_new_tokens": 400, "stop_regex": pattern_of(70)}, "states of"),
        ("/generate", "sampling_params", {"n": 101, "max_new_tokens": 400}, "max_new_tokens times the number"),
        ("/v1/completions", "prompt", [[5] * 400] * 3, "prompt tokens of the request"),
    ],
)
def test_a_server_refuses_what_costs_too_much_before_anything_is_built(
    route: str, field: str, value: Any, what: str
) -> None:
    flags = ("--max-prompt-tokens", "1100", "--max-output-tokens", "40000", "--max-stop-states", "100")
    server = shared("tiny", *flags)
    small: dict[str, Any] = {"text": "a"} if route == "/generate" else {"prompt": "a", "model": "tiny", "max_tokens": 2}
    answer = server.post(route, small | {field: value})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(what)
    assert server.post(route, small).status_code == 200
