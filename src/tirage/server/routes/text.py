"""Text to tokens and back."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from tirage.engine import check_ids
from tirage.errors import ParamsError
from tirage.fields.rules import Bool, shown
from tirage.server.admission import longest_text, too_many_characters
from tirage.server.errors import Refusal
from tirage.server.http_request import check_names, manager_of, read_json, tenant_of
from tirage.server.options import check_limit
from tirage.server.request_manager import RequestManager
from tirage.server.routes.fields import ANYTHING, Field, json_body, object_schema, read_fields, structured, table

router = APIRouter(tags=["text"])

_TEXTS = structured({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_TOKENS = structured({"anyOf": [_IDS, {"type": "array", "items": _IDS}]})
_SOURCES = table([
    Field("prompt", _TEXTS, None, "a text, or a list of texts"),
    Field("text", _TEXTS, None, "the same"),
    Field("content", _TEXTS, None, "the same"),
])


def on(name: str, meaning: str) -> Field:
    """A field that is true by default."""
    return Field(name, Bool(), True, meaning, remedy="leave it out for true")


_MODEL = Field("model", ANYTHING, None, "any name, as this server has one model")
TOKENIZE = {**_SOURCES, **table([_MODEL, on("add_special_tokens", "begin with the tokenizer's special tokens")])}
DETOKENIZE = table([
    _MODEL,
    Field("tokens", _TOKENS, None, "token ids, or a list of such lists"),
    on("skip_special_tokens", "leave special tokens out of the text"),
])
_TOKENIZE_BODY = json_body(object_schema(TOKENIZE))
_DETOKENIZE_BODY = json_body(object_schema(DETOKENIZE, required=["tokens"]))


@router.post("/tokenize", openapi_extra=_TOKENIZE_BODY)
@router.post("/v1/tokenize", openapi_extra=_TOKENIZE_BODY)
async def tokenize(request: Request) -> Response:
    """The token ids of a text, `prompt` (or `text`, or `content`), or of each of a list of texts."""
    manager, body = manager_of(request), await read_json(request)
    check_names(body, TOKENIZE)
    texts = one_of(body, tuple(_SOURCES))
    special, encode = read_fields(TOKENIZE, body)["add_special_tokens"], manager.llm.tokenizer.encode
    batch = isinstance(texts, list)
    if batch:
        check_limit(manager.options.limits, "max_prompts", len(texts), "prompt")
    many = [checked_text(each, manager) for each in (texts if batch else [texts])]
    tenant = tenant_of(request)
    ids = [await manager.in_pool(lambda t=text: encode(t, add_special_tokens=special), tenant=tenant) for text in many]
    counts = [len(each) for each in ids]
    return JSONResponse({
        "tokens": ids if batch else ids[0],
        "count": counts if batch else counts[0],
        "max_model_len": manager.llm.model.max_length,
    })


@router.post("/detokenize", openapi_extra=_DETOKENIZE_BODY)
@router.post("/v1/detokenize", openapi_extra=_DETOKENIZE_BODY)
async def detokenize(request: Request) -> Response:
    """The text of token ids, as `text`, `prompt` and `content`, the names that clients of the engines expect.

    A list of lists gives a list of texts. Raises Refusal for anything else.
    """
    manager, body = manager_of(request), await read_json(request)
    check_names(body, DETOKENIZE)
    fields = read_fields(DETOKENIZE, body)
    tokens, skip = fields["tokens"], fields["skip_special_tokens"]
    if not isinstance(tokens, list):
        raise Refusal(400, f"tokens must be a list of token ids, or of such lists, got {shown(tokens)}", param="tokens")
    batch = bool(tokens) and isinstance(tokens[0], list)
    if batch:
        check_limit(manager.options.limits, "max_prompts", len(tokens), "tokens")
    lists, tenant = tokens if batch else [tokens], tenant_of(request)
    texts = [await manager.in_pool(lambda ids=ids: decoded(ids, manager, skip), tenant=tenant) for ids in lists]
    text = texts if batch else texts[0]
    return JSONResponse({"text": text, "prompt": text, "content": text})


def decoded(tokens: Any, manager: RequestManager, skip: bool) -> str:
    """The text of token ids; raises Refusal for anything else, and for too many."""
    if not isinstance(tokens, list):
        raise Refusal(400, f"tokens must be lists of token ids, got {shown(tokens)} among them", param="tokens")
    most = longest_text(manager.llm, manager.options.limits)
    if len(tokens) > most:
        raise Refusal(400, f"tokens must be at most {most}, got {len(tokens)}; send fewer", param="tokens")
    try:
        ids = check_ids(tokens, manager.llm.model.vocab_size)
    except ParamsError as error:
        raise Refusal(400, str(error).replace("prompt token ids", "tokens", 1), param="tokens") from None
    return manager.llm.tokenizer.decode(ids, skip_special_tokens=skip)


def one_of(body: dict[str, Any], names: tuple[str, ...]) -> Any:
    """The value of the one name that is given; raises Refusal for none or several."""
    given = [name for name in names if body.get(name) is not None]
    if len(given) != 1:
        raise Refusal(400, f"exactly one of {', '.join(names)} must be given, got {len(given)}", param=names[0])
    return body[given[0]]


def checked_text(text: Any, manager: RequestManager) -> str:
    """The text; raises Refusal for anything else, and for one that is too long to tokenise."""
    if not isinstance(text, str):
        raise Refusal(400, f"prompt must be a text or a list of texts, got {shown(text)}; send text", param="prompt")
    most = longest_text(manager.llm, manager.options.limits)
    if len(text) > most:
        raise too_many_characters(len(text), most)
    return text
