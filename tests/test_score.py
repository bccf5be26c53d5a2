"""`/v1/score` and `/generative_scoring`: the probabilities of labels, against the model's own logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from servers import shared
from test_openai import tiny

from tirage.server.routes.score import GENERATIVE_SCORING, SCORE
from tirage.server.routes.text import TOKENIZE

QUERY, ITEMS, LABELS = "Is it true? ", ["The sun is hot.", "The cat sat"], [417, 5, 300]
BODY: dict[str, Any] = {"query": QUERY, "items": ITEMS, "label_token_ids": LABELS}


def logprobs(ids: list[int]) -> np.ndarray:
    """The model's own law after ids, as logarithms float64 [V]."""
    logits = tiny().engine.next_logits(ids).astype(np.float64)
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


def own(labels: list[int] = LABELS, *, item_first: bool = False) -> np.ndarray:
    texts = [item + QUERY if item_first else QUERY + item for item in ITEMS]
    return np.array([logprobs(tiny().tokenizer.encode(text))[labels] for text in texts])


def score(status: int = 200, *, path: str = "/v1/score", **body: Any) -> Any:
    reply = shared().post(path, {**BODY, **body})
    assert reply.status_code == status, reply.text
    return reply.json()


@pytest.mark.parametrize("item_first", [False, True])
def test_scores_are_the_models_probabilities(item_first: bool) -> None:
    found = score(item_first=item_first, return_token_logprobs=True)
    expected = own(item_first=item_first)
    np.testing.assert_allclose(found["scores"], np.exp(expected), rtol=1e-4)
    np.testing.assert_allclose(found["token_logprobs"], expected, atol=1e-4)
    assert set(found) == {"scores", "token_logprobs", "model", "usage", "object"}
    assert (found["object"], found["model"], found["usage"]["completion_tokens"]) == ("scoring", "tiny", 0)
    assert score(path="/score", item_first=item_first)["scores"] == found["scores"]


def test_a_softmax_is_over_the_labels_alone() -> None:
    for temperature in (1.0, 2.0):
        weights = np.exp(own() / temperature)
        expected = weights / weights.sum(axis=1, keepdims=True)
        found = score(apply_softmax=True, temperature=temperature)["scores"]
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_ids_and_labels_of_each_item_and_one_text_are_taken() -> None:
    encode = tiny().tokenizer.encode
    query, items = encode(QUERY), [encode(item, add_special_tokens=False) for item in ITEMS]
    labels = [[417], [5, 300]]
    found = score(query=query, items=items, label_token_ids=labels)["scores"]
    for row, item, wanted in zip(found, items, labels, strict=True):
        np.testing.assert_allclose(row, np.exp(logprobs([*query, *item])[wanted]), rtol=1e-4)
    alone = score(query=None, items=ITEMS[0])["scores"]
    np.testing.assert_allclose(alone, [np.exp(logprobs(encode(ITEMS[0]))[LABELS])], rtol=1e-4)


def test_vllms_route_gives_the_score_of_the_first_label() -> None:
    encode = tiny().tokenizer.encode
    ids = [encode(QUERY) + encode(item, add_special_tokens=False) for item in ITEMS]
    rows = np.exp([logprobs(each)[LABELS] for each in ids])
    found = score(path="/generative_scoring")
    assert [each["index"] for each in found["data"]] == [0, 1]
    np.testing.assert_allclose([each["score"] for each in found["data"]], rows[:, 0] / rows.sum(axis=1), rtol=1e-4)
    assert (found["object"], found["usage"]["prompt_tokens"]) == ("list", sum(map(len, ids)))
    whole = score(path="/generative_scoring", apply_softmax=False, cache_salt="a")
    np.testing.assert_allclose([each["score"] for each in whole["data"]], rows[:, 0], rtol=1e-4)
    first = score(path="/generative_scoring", item_first=True, add_special_tokens=False, apply_softmax=False)
    ids = [encode(item, add_special_tokens=False) + encode(QUERY, add_special_tokens=False) for item in ITEMS]
    expected = [np.exp(logprobs(each)[LABELS[0]]) for each in ids]
    np.testing.assert_allclose([each["score"] for each in first["data"]], expected, rtol=1e-4)


PUBLISHED = {
    "sglang": (SCORE, """query items embed_override_token_id query_embed_overrides item_embed_overrides label_token_ids
        apply_softmax temperature return_token_logprobs item_first return_pooled_hidden_states score_extraction_token
        model"""),
    "vllm": (GENERATIVE_SCORING, """model query items label_token_ids apply_softmax item_first add_special_tokens
        cache_salt priority request_id"""),
    "vllm, tokens": (TOKENIZE, """model prompt messages add_special_tokens return_token_strs add_generation_prompt tools
        continue_final_message chat_template chat_template_kwargs media_io_kwargs mm_processor_kwargs"""),
}  # fmt: skip
"""The fields of SGLang 0.5.23's ScoringRequest, and of vLLM 0.32's GenerativeScoringRequest and TokenizeRequest."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_field_is_known(name: str) -> None:
    known, fields = PUBLISHED[name]
    assert set(fields.split()) <= set(known)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"items": []}, "items"),
    ({"items": [1, 2]}, "items"),
    ({"items": ["a", [1]]}, "items"),
    ({"items": ["a"] * 129}, "items"),
    ({"items": ["word " * 700]}, "items"),
    ({"label_token_ids": None}, "label_token_ids"),
    ({"label_token_ids": []}, "label_token_ids"),
    ({"label_token_ids": [5, 5]}, "label_token_ids"),
    ({"label_token_ids": [99_999]}, "label_token_ids"),
    ({"label_token_ids": [-1]}, "label_token_ids"),
    ({"label_token_ids": [[1]]}, "label_token_ids"),
    ({"query": [1, 2]}, "query"),
    ({"temperature": 2.0}, "temperature"),
    ({"score_extraction_token": "a"}, "score_extraction_token"),
    ({"return_pooled_hidden_states": True}, "return_pooled_hidden_states"),
    ({"item_embed_overrides": [[0.1]]}, "item_embed_overrides"),
    ({"lora_path": "nobody"}, "lora_path"),
    ({"stream": True}, "stream"),
]


@pytest.mark.parametrize(("body", "param"), WRONG, ids=lambda value: str(value)[:24])
def test_what_cannot_be_scored_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    assert score(400, **body)["error"]["param"] == param


@pytest.mark.parametrize("name", ["text_1", "documents", "data_2"])
@pytest.mark.parametrize("path", ["/score", "/v1/score", "/generative_scoring"])
def test_a_cross_encoders_request_is_told_what_to_send(path: str, name: str) -> None:
    reply = shared().post(path, {name: ["a"]})
    assert reply.status_code == 400
    assert (reply.json()["error"]["param"], "is no cross-encoder" in reply.text) == (name, True)


def test_a_prompt_that_fills_the_context_has_no_room_for_a_label() -> None:
    full = [5] * tiny().model.max_length
    found = score(400, query=[], items=[full])
    assert (found["error"]["param"], found["error"]["code"]) == ("items", "context_length_exceeded")
