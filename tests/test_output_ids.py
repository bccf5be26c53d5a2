"""`output_ids`: an answer goes on after its first tokens as if it had been drawn from its beginning."""

from __future__ import annotations

import math
from typing import Any

import pytest
from servers import shared

from tirage import LLM, BeamSearchParams, GuidedDecodingParams, ParamsError, Prompt, SamplingParams

PROMPT = "Once upon a time"
SCHEMA = (
    '{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, '
    '"required": ["name", "age"]}'
)
ASKED: dict[str, dict[str, Any]] = {
    "plain": {},
    "penalties": {"frequency_penalty": 1.5, "repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "temperature": 1.3},
    "schema": {"guided_decoding": GuidedDecodingParams(json=SCHEMA), "close_grammar": True, "max_tokens": 40},
    "forced": {"guided_decoding": GuidedDecodingParams(json=SCHEMA), "forcing": "canonical", "max_tokens": 60},
    "words": {"bad_words": ["the", "a"], "bad_words_level": "text"},
    "stops": {"stop": ["."], "min_tokens": 5},
    "samples": {"n": 3, "seed": 8},
}


@pytest.fixture(scope="module")
def tiny() -> LLM:
    return LLM("tiny")


@pytest.mark.slow
@pytest.mark.parametrize("name", ASKED)
def test_an_answer_goes_on_after_any_of_its_tokens(tiny: LLM, name: str) -> None:
    params = SamplingParams(**{"seed": 7, "max_tokens": 16, **ASKED[name]})
    whole = tiny.generate(PROMPT, params)[0]
    for sample in whole.samples:
        for cut in {1, len(sample.token_ids) // 2, len(sample.token_ids) - 1}:
            begun = Prompt(text=PROMPT, output_ids=sample.token_ids[:cut])
            again = tiny.generate(begun, params)[0]
            found = again.samples[sample.index]
            assert (found.token_ids, found.text, found.stop) == (sample.token_ids, sample.text, sample.stop)
            assert again.usage.prompt_tokens == whole.usage.prompt_tokens


def test_a_stream_begins_with_the_tokens_that_stood_before(tiny: LLM) -> None:
    params = SamplingParams(seed=7, max_tokens=16, logprobs=2, logprob_token_ids=[5])
    whole = tiny.generate(PROMPT, params)[0]
    deltas = list(tiny.stream(Prompt(text=PROMPT, output_ids=whole.token_ids[:6]), params))
    assert len(deltas[0].token_ids) >= 7
    assert "".join(delta.text for delta in deltas) == whole.text
    entries = [entry for delta in deltas for entry in delta.logprobs or ()]
    assert [entry.token_id for entry in entries] == list(whole.token_ids)
    assert all(math.isnan(entry.logprob) and entry.rank == 0 for entry in entries[:6])
    # A pass over several tokens rounds logits in other places than one for each.
    expected = [entry.logprob for entry in (whole.logprobs or ())[6:]]
    assert [entry.logprob for entry in entries[6:]] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("output_ids", "params", "message"),
    [
        ([5000], {}, r"output_ids must be integers in \[0, 1536\), got 5000"),
        ([500, 600], {"max_tokens": 2}, "output_ids must leave a token to draw, got a text that ends: max_tokens"),
        ([2], {}, "output_ids must leave a token to draw, got a text that ends: eos"),
        ([300], {"guided_decoding": GuidedDecodingParams(regex="[0-9]+")}, "text that ends: grammar_failed"),
        ([5], {"best_of": 2}, "output_ids must come without best_of"),
        ([5], {"prompt_logprobs": 1}, "output_ids must come without prompt_logprobs"),
    ],
)
def test_what_cannot_go_on_is_refused(tiny: LLM, output_ids: list[int], params: dict[str, Any], message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        tiny.generate(Prompt(text=PROMPT, output_ids=output_ids), SamplingParams(**params))


def test_a_beam_search_begins_at_its_prompt(tiny: LLM) -> None:
    with pytest.raises(ParamsError, match="output_ids must come without beams"):
        tiny.beam_search(Prompt(text=PROMPT, output_ids=[5]), BeamSearchParams(beam_width=2, max_tokens=4))


def test_the_route_takes_them_and_names_what_is_wrong() -> None:
    server = shared("tiny")
    body = {"text": PROMPT, "sampling_params": {"max_new_tokens": 12, "seed": 3}, "return_logprob": True}
    whole = server.post("/generate", body).json()
    again = server.post("/generate", {**body, "output_ids": whole["output_ids"][:5]}).json()
    assert (again["text"], again["output_ids"]) == (whole["text"], whole["output_ids"])
    assert again["meta_info"]["prompt_tokens"] == whole["meta_info"]["prompt_tokens"]
    logprobs = [entry[0] for entry in again["meta_info"]["output_token_logprobs"]]
    assert logprobs[:5] == [None] * 5
    expected = [entry[0] for entry in whole["meta_info"]["output_token_logprobs"][5:]]
    assert logprobs[5:] == pytest.approx(expected, abs=1e-5)
    for wrong, more in (([99999], {}), ([2], {}), ("x", {}), ([5], {"return_effective_params": True})):
        refused = server.post("/generate", {**body, **more, "output_ids": wrong})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "output_ids")
