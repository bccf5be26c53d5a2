"""Scores of labels: how likely each of some tokens is after a query and an item, as SGLang and vLLM tell it.

One token is drawn for each item, and only its log-probabilities are used.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from tirage.dialects import DialectError
from tirage.engine import Completion, Prompt
from tirage.errors import ParamsError
from tirage.fields.rules import Bool, Float, shown
from tirage.params import SamplingParams
from tirage.server import errors
from tirage.server.engine_input import EngineInput
from tirage.server.errors import Refusal
from tirage.server.http_request import manager_of, read_known, tenant_of, unknown_header
from tirage.server.options import check_limit
from tirage.server.request_group import RequestGroup
from tirage.server.routes.fields import (
    ANY_TEXT,
    CACHE_SALT,
    NOTED,
    SHORT_TEXT,
    Field,
    json_body,
    object_schema,
    only,
    read_fields,
    structured,
    table,
)
from tirage.server.routes.openai_answer import model_of
from tirage.server.routes.openai_shapes import raise_failed
from tirage.server.routes.openai_submit import adapter_named
from tirage.server.routes.text import checked_text
from tirage.server.sse import JsonAnswer

router = APIRouter(tags=["text"])

_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TEXTS = {"type": "array", "items": {"type": "string"}, "minItems": 1}
_LISTS = {"type": "array", "items": _IDS, "minItems": 1}
_QUERY = structured({"anyOf": [{"type": "string"}, _IDS]})
_NO_CROSS_ENCODER = "the model writes texts and is no cross-encoder: send query, items and label_token_ids"
_PAIRS = ("text_1", "text_2", "queries", "documents", "data_1", "data_2")

_COMMON = (
    Field("query", _QUERY, None, "what stands before each item: a text, or token ids"),
    Field("items", structured({"anyOf": [{"type": "string"}, _TEXTS, _LISTS]}), None, "texts, or lists of token ids"),
    Field("label_token_ids", structured({"anyOf": [_IDS, _LISTS]}), None, "the tokens to score"),
    Field("item_first", Bool(), False, "the item stands before the query"),
    Field("model", ANY_TEXT, None, "the base model or an adapter, as on /v1/completions"),
    Field("lora_path", SHORT_TEXT, None, "an adapter's name"),
    Field("cache_salt", CACHE_SALT, None, "only requests with the same text share cached prefixes"),
    Field("priority", only(0, because="requests have equal shares, and none goes before another"), 0),
    Field("request_id", SHORT_TEXT, None, "the client's name for the request, for /abort_request"),
    Field("user", SHORT_TEXT, None, NOTED),
    *(Field(name, only(because=_NO_CROSS_ENCODER)) for name in _PAIRS),
)
_NO_OVERRIDES = only(because="embeddings are given to /generate, as input_embeds")
SCORE = table([
    *_COMMON,
    Field("apply_softmax", Bool(), False, "scores of an item add up to 1, instead of probabilities in the vocabulary"),
    Field("temperature", Float(low=1e-6, high=1e6), 1.0, "divides the log-probabilities before the softmax"),
    Field("return_token_logprobs", Bool(), False, "the answer holds the log-probabilities"),
    Field("score_extraction_token", only(because="scores are read at the end of the text"), None),
    Field("return_pooled_hidden_states", only(False, because="the model has no pooling head"), False),
    *(Field(name, _NO_OVERRIDES) for name in ("embed_override_token_id", "query_embed_overrides")),
    Field("item_embed_overrides", _NO_OVERRIDES),
])
"""SGLang's fields."""
GENERATIVE_SCORING = table([
    *_COMMON,
    Field("apply_softmax", Bool(), True, "the score is relative to the labels, instead of to the vocabulary"),
    Field("add_special_tokens", Bool(), True, "the query begins with the tokenizer's special tokens"),
])
"""vLLM's fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The labels of each item, and how their log-probabilities become scores."""

    of_items: Sequence[Sequence[int]]
    softmax: bool
    temperature: float = 1.0

    def logprobs(self, completions: Sequence[Completion]) -> list[list[float]]:
        """The log-probabilities of the labels of each item, in the order of the labels."""
        found = []
        for labels, completion in zip(self.of_items, completions, strict=True):
            given = dict(first_entry(completion))
            found.append([given[label] for label in labels])
        return found

    def scores(self, completions: Sequence[Completion]) -> list[list[float]]:
        """The score of each label of each item."""
        return [self._scores(row) for row in self.logprobs(completions)]

    def _scores(self, logprobs: Sequence[float]) -> list[float]:
        best = max(logprobs)
        if not self.softmax or best == -math.inf:
            return [math.exp(each) for each in logprobs]
        weights = [math.exp((each - best) / self.temperature) for each in logprobs]
        return [weight / sum(weights) for weight in weights]


def first_entry(completion: Completion) -> Sequence[tuple[int, float]]:
    """The (token id, log-probability) pairs of the first token; raises Refusal where the context had no room for it."""
    entries = completion.samples[0].logprobs
    if not entries:
        text = f"items must leave room for one token in the context, got {completion.usage.prompt_tokens} tokens"
        raise Refusal(400, f"{text}; shorten them", param="items", code="context_length_exceeded")
    return entries[0].given


@router.post("/score", openapi_extra=json_body(object_schema(SCORE, required=["items", "label_token_ids"])))
@router.post("/v1/score", openapi_extra=json_body(object_schema(SCORE, required=["items", "label_token_ids"])))
async def score(request: Request) -> Response:
    """SGLang's scores: for each item the probabilities of its labels as the next token.

    Raises DialectError and Refusal, which name the field at fault.
    """
    manager = manager_of(request)
    body, unknown = await read_known(request, SCORE)
    fields = read_fields(SCORE, body)
    if fields["temperature"] != 1.0 and not fields["apply_softmax"]:
        raise DialectError(f"temperature must go with apply_softmax, got {fields['temperature']}", "temperature")
    labels = Labels(of_items=read_labels(fields), softmax=fields["apply_softmax"], temperature=fields["temperature"])
    prompts = joined_prompts(fields["query"], read_items(fields["items"]), item_first=fields["item_first"])
    group = await submit_items(prompts, labels, fields, request)

    def whole(completions: Sequence[Completion]) -> dict[str, Any]:
        raise_failed(completions)
        return {
            "scores": labels.scores(completions),
            "token_logprobs": labels.logprobs(completions) if fields["return_token_logprobs"] else None,
            "model": model_of(group, manager),
            "usage": usage_of(completions),
            "object": "scoring",
        }

    return JsonAnswer(group, whole, headers=unknown_header(unknown))


@router.post(
    "/generative_scoring",
    openapi_extra=json_body(object_schema(GENERATIVE_SCORING, required=["query", "items", "label_token_ids"])),
)
async def generative_scoring(request: Request) -> Response:
    """vLLM's scores: for each item the probability of the first label as the next token.

    Raises DialectError and Refusal, which name the field at fault.
    """
    manager = manager_of(request)
    body, unknown = await read_known(request, GENERATIVE_SCORING)
    fields = read_fields(GENERATIVE_SCORING, body)
    if fields["query"] is None:
        raise DialectError("query must be given, got none; send an empty text for items alone", "query")
    labels = Labels(of_items=read_labels(fields), softmax=fields["apply_softmax"])
    prompts = await encoded_prompts(fields, request)
    group = await submit_items(prompts, labels, fields, request)

    def whole(completions: Sequence[Completion]) -> dict[str, Any]:
        raise_failed(completions)
        firsts = [row[0] for row in labels.scores(completions)]
        return {
            "id": f"generative-scoring-{group.requests[0].id}",
            "object": "list",
            "created": int(time.time()),
            "model": model_of(group, manager),
            "data": [{"index": index, "object": "score", "score": first} for index, first in enumerate(firsts)],
            "usage": usage_of(completions, drawn=True),
        }

    return JsonAnswer(group, whole, headers=unknown_header(unknown))


async def submit_items(
    prompts: Sequence[Prompt], labels: Labels, fields: Mapping[str, Any], request: Request
) -> RequestGroup:
    """The running requests, one for each item; raises Refusal, which names the field that the client sent."""
    manager = manager_of(request)
    adapter = adapter_named(fields["model"], fields["lora_path"], manager)

    def input_of(prompt: Prompt, own: Sequence[int]) -> EngineInput:
        given = {"logprobs": 0, "logprob_token_ids": tuple(own), "detokenize": False}
        return EngineInput(
            prompt=Prompt(text=prompt.text, token_ids=prompt.token_ids, adapter=adapter),
            params=SamplingParams(max_tokens=1, temperature=0.0, **given),
            cache_salt=fields["cache_salt"],
        )

    try:
        inputs = [input_of(*pair) for pair in zip(prompts, labels.of_items, strict=True)]
        return await manager.submit(inputs, tenant=tenant_of(request), rid=fields["request_id"])
    except ParamsError as error:
        refusal = errors.of(error)
        if refusal.param is not None:
            of_labels = refusal.param.startswith("logprob_token_ids")
            refusal.param = "label_token_ids" if of_labels else "items"
            refusal.message = refusal.message.replace("logprob_token_ids", "label_token_ids")
        raise refusal from None


def read_items(items: Any) -> list[str] | list[list[int]]:
    """The items, all texts or all lists of ids; raises DialectError for anything else."""
    found = [items] if isinstance(items, str) else items
    if isinstance(found, list) and found:
        if all(isinstance(each, str) for each in found):
            return found
        if all(is_ids(each) for each in found):
            return found
    raise DialectError(
        f"items must be a text, a list of texts or a list of lists of token ids, got {shown(items)}", "items"
    )


def read_labels(fields: Mapping[str, Any]) -> list[list[int]]:
    """The labels of each item; raises DialectError for anything but ids that differ, for all items or for each."""
    items, given = fields["items"], fields["label_token_ids"]
    count = 1 if isinstance(items, str) else len(read_items(items))
    lists = [given] * count if is_ids(given) else given
    if not isinstance(lists, list) or not lists or not all(is_ids(each) for each in lists):
        rule = "a list of token ids, or a list of such lists"
        raise DialectError(f"label_token_ids must be {rule}, got {shown(given)}; name the tokens", "label_token_ids")
    if len(lists) != count:
        text = f"label_token_ids must have a list for each of {count} items, got {len(lists)}"
        raise DialectError(f"{text}; send one list for all", "label_token_ids")
    if any(len(set(each)) != len(each) for each in lists):
        raise DialectError("label_token_ids must differ, got one twice; leave it out", "label_token_ids")
    return lists


def is_ids(value: Any) -> bool:
    """Whether a value is a non-empty list of integers."""
    return isinstance(value, list) and bool(value) and all(type(each) is int for each in value)


def joined_prompts(query: Any, items: Sequence[Any], *, item_first: bool) -> list[Prompt]:
    """The prompt of each item, with texts joined before they are tokenised, as in SGLang.

    Raises DialectError for a query and items of which one has texts and the other ids.
    """
    texts = isinstance(items[0], str)
    own = ("" if texts else []) if query is None else query
    check_query(own, texts=texts)
    pairs: list[tuple[Any, Any]] = [(item, own) if item_first else (own, item) for item in items]
    return [Prompt(text=before + after) if texts else Prompt(token_ids=before + after) for before, after in pairs]


def check_query(query: Any, *, texts: bool) -> None:
    """Raises DialectError for a query that is no text where the items are, or no list of ids where they are."""
    wanted = isinstance(query, str) if texts else query == [] or is_ids(query)
    if not wanted:
        kind = "a text where the items are texts" if texts else "token ids where the items are"
        raise DialectError(f"query must be {kind}, got {shown(query)}; send both in one form", "query")


async def encoded_prompts(fields: Mapping[str, Any], request: Request) -> list[Prompt]:
    """The prompt of each item, with query and item tokenised one by one, as in vLLM."""
    manager, items = manager_of(request), read_items(fields["items"])
    check_limit(manager.options.limits, "max_prompts", len(items), "items")
    check_query(fields["query"], texts=isinstance(fields["query"], str))
    special = fields["add_special_tokens"]
    query = await encoded(fields["query"], request, special=special)
    each = [await encoded(item, request, special=False) for item in items]
    return [Prompt(token_ids=item + query if fields["item_first"] else query + item) for item in each]


async def encoded(value: str | list[int], request: Request, *, special: bool) -> list[int]:
    """The ids of a text, or the ids themselves."""
    manager = manager_of(request)
    if not isinstance(value, str):
        return value
    checked = checked_text(value, manager)
    return await manager.in_pool(
        lambda: manager.llm.tokenizer.encode(checked, add_special_tokens=special), tenant=tenant_of(request)
    )


def usage_of(completions: Sequence[Completion], *, drawn: bool = False) -> dict[str, int]:
    """The token counts of an answer; SGLang counts the prompts alone."""
    prompt = sum(completion.usage.prompt_tokens for completion in completions)
    own = sum(completion.usage.completion_tokens for completion in completions) if drawn else 0
    return {"prompt_tokens": prompt, "completion_tokens": own, "total_tokens": prompt + own}
