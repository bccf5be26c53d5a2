"""Records over HTTP and in the engine: the draw's own, whole and streamed, on every route that has them."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import numpy as np
import pytest
from field_answers import ask, body_of, route_of, together
from field_effects import CHAT, COMPLETIONS, GENERATE, MESSAGES, RESPONSES, SAMPLING
from numpy.typing import NDArray
from servers import Server, shared

import tirage
from tirage import ParamsError, SamplingParams

_FIELDS = {"temperature": 0.8, "top_p": 0.9, "seed": 7, "return_kept": True}
_DTYPES = {"ids": "<i4", "offsets": "<i4"}


def decoded(kept: dict[str, str]) -> dict[str, NDArray[Any]]:
    return {name: np.frombuffer(b64decode(text), _DTYPES.get(name, "<f4")) for name, text in kept.items()}


def answered(place: str, fields: dict[str, Any], *, stream: bool) -> tuple[dict[str, NDArray[Any]], list[int]]:
    """The decoded record of an answer, and its token ids."""
    if place != SAMPLING:
        fields = {**fields, "return_token_ids": True}
    answer = ask(place, fields, stream=stream)
    answer = together(place, answer) if stream else answer
    if place == SAMPLING:
        return decoded(answer["meta_info"]["kept"]), answer["output_ids"]
    [choice] = answer["choices"]
    return decoded(choice["kept"]), choice["token_ids"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("place", [SAMPLING, CHAT, COMPLETIONS])
def test_an_answer_holds_the_records_of_its_draws(place: str, stream: bool) -> None:
    kept, ids = answered(place, _FIELDS, stream=stream)
    assert kept["offsets"].size == len(ids) + 1
    assert kept["offsets"][-1] == kept["ids"].size
    for token, start, stop in zip(ids, kept["offsets"], kept["offsets"][1:], strict=False):
        assert token in kept["ids"][start:stop]
    close = kept["processed_logprobs"] - kept["logmass"]
    np.testing.assert_allclose(kept["sampled_logprobs"], close, atol=1e-5)


def test_an_answer_holds_what_the_library_records() -> None:
    kept, ids = answered(SAMPLING, _FIELDS, stream=False)
    prompt = body_of(SAMPLING, {}, stream=False)["text"]
    params = SamplingParams(**_FIELDS, max_tokens=len(ids))
    [completion] = tirage.LLM("tiny").generate([prompt], params)
    assert completion.records is not None
    assert list(completion.token_ids) == ids
    np.testing.assert_array_equal(np.concatenate([each.kept_ids for each in completion.records]), kept["ids"])
    for name, own in (("logmass", "kept_logmass"), ("raw_logprobs", "raw_logprob")):
        own_values = [getattr(each, own) for each in completion.records]
        np.testing.assert_array_equal(np.array(own_values, np.float32), kept[name])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("place", [SAMPLING, CHAT, COMPLETIONS])
def test_a_law_too_wide_to_record_is_named_on_every_route(place: str, stream: bool) -> None:
    fields = {**_FIELDS, "temperature": 2.0, "max_kept_ids": 1}
    reply = shared().post(route_of(place), body_of(place, fields, stream=stream))
    assert "more than max_kept_ids = 1 tokens could have been drawn; raise max_kept_ids" in reply.text
    assert "kept_too_wide" in reply.text


@pytest.mark.parametrize("place", [MESSAGES, RESPONSES])
def test_routes_without_log_probabilities_refuse_a_record(place: str) -> None:
    reply = shared().post(place, body_of(place, {"return_kept": True}, stream=False))
    assert reply.status_code == 400
    assert "return_kept" in reply.text


def test_the_operator_limits_what_records_may_hold() -> None:
    with Server("tiny", "--max-kept-ids", "1000") as server:
        body = {"text": "Once", "sampling_params": {"max_new_tokens": 4, "return_kept": True}}
        reply = server.post(GENERATE, body)
        assert reply.status_code == 400
        assert "tokens that may be recorded times max_kept_ids must be at most 1000, got 16384" in reply.text
        assert "--max-kept-ids" in reply.text
        body["sampling_params"] |= {"max_kept_ids": 250, "top_k": 20}
        assert server.post(GENERATE, body).status_code == 200


def test_a_stream_of_the_library_has_the_records_of_its_new_tokens() -> None:
    llm, params = tirage.LLM("tiny"), SamplingParams(**_FIELDS, max_tokens=6, output_kind="DELTA")
    deltas = list(llm.stream("Once upon a time", params))
    for delta in deltas:
        assert len(delta.records or ()) == len(delta.token_ids)
    [whole] = llm.generate(["Once upon a time"], params)
    streamed = [each for delta in deltas for each in delta.records or ()]
    for one, other in zip(streamed, whole.records or (), strict=True):
        np.testing.assert_array_equal(one.kept_ids, other.kept_ids)


def test_forced_tokens_and_tokens_before_the_request_keep_themselves() -> None:
    guided = tirage.GuidedDecodingParams(regex="(an old|a red) fox (saw|met) [a-z]{3}")
    params = SamplingParams(seed=3, max_tokens=12, return_kept=True, forcing="canonical", guided_decoding=guided)
    llm = tirage.LLM("tiny")
    [completion] = llm.generate(["Once"], params)
    [sample] = completion.samples
    assert sample.forced_tokens
    assert sample.records is not None
    assert len(sample.records) == len(sample.token_ids)
    for token, record in zip(sample.token_ids, sample.records, strict=True):
        assert token in record.kept_ids
        assert record.sampled_logprob == 0.0 or not np.isnan(record.raw_logprob)
    begun = tirage.Prompt(text="Once", output_ids=[300, 301])
    [completion] = llm.generate([begun], SamplingParams(seed=3, max_tokens=4, return_kept=True))
    assert completion.records is not None
    assert len(completion.records) == len(completion.token_ids)
    assert [each.kept_ids.tolist() for each in completion.records[:2]] == [[300], [301]]


def test_a_beam_search_refuses_a_record() -> None:
    with pytest.raises(ParamsError, match="return_kept must keep its default False in a beam search"):
        tirage.LLM("tiny").beam_search(
            ["Once"], tirage.BeamSearchParams(beam_width=2, max_tokens=2), sampling=SamplingParams(return_kept=True)
        )
