"""Text to tokens and back."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from tirage.engine import check_ids
from tirage.errors import ParamsError
from tirage.fields.rules import shown
from tirage.server.errors import Refusal
from tirage.server.http_request import check_names, flag_of, manager_of, read_json
from tirage.server.openapi import IDS, TEXT, TRUE_OR_FALSE, fields_of, json_body
from tirage.server.options import check_limit
from tirage.server.request_manager import RequestManager, longest_text

router = APIRouter(tags=["text"])

_TEXTS = {"anyOf": [TEXT, {"type": "array", "items": TEXT}]}
_TOKENIZE = json_body({
    "model": TEXT, "prompt": _TEXTS, "text": _TEXTS, "content": _TEXTS, "add_special_tokens": TRUE_OR_FALSE,
})  # fmt: skip
_TOKENS = {"anyOf": [IDS, {"type": "array", "items": IDS}]}
_DETOKENIZE = json_body({"model": TEXT, "tokens": _TOKENS, "skip_special_tokens": TRUE_OR_FALSE}, required=["tokens"])


@router.post("/tokenize", openapi_extra=_TOKENIZE)
@router.post("/v1/tokenize", openapi_extra=_TOKENIZE)
async def tokenize(request: Request) -> Response:
    """The token ids of a text, `prompt` (or `text`, or `content`), or of each of a list of texts."""
    desk, body = manager_of(request), await read_json(request)
    check_names(body, fields_of(_TOKENIZE))
    texts = one_of(body, ("prompt", "text", "content"))
    special = flag_of(body, "add_special_tokens", default=True)
    if isinstance(texts, list):
        check_limit(desk.options.limits, "max_prompts", len(texts), "prompt")
    many = [checked_text(each, desk) for each in (texts if isinstance(texts, list) else [texts])]
    ids = [await desk.apart(lambda t=text: desk.llm.tokenizer.encode(t, add_special_tokens=special)) for text in many]
    counts = [len(each) for each in ids]
    batch = isinstance(texts, list)
    return JSONResponse({
        "tokens": ids if batch else ids[0],
        "count": counts if batch else counts[0],
        "max_model_len": desk.llm.model.max_length,
    })


@router.post("/detokenize", openapi_extra=_DETOKENIZE)
@router.post("/v1/detokenize", openapi_extra=_DETOKENIZE)
async def detokenize(request: Request) -> Response:
    """The text of token ids, under the names that the engines' clients know: `text`, `prompt` and `content`.

    A list of lists has a list of texts.
    """
    desk, body = manager_of(request), await read_json(request)
    check_names(body, fields_of(_DETOKENIZE))
    tokens, skip = body.get("tokens"), flag_of(body, "skip_special_tokens", default=True)
    if not isinstance(tokens, list):
        raise Refusal(400, f"tokens must be a list of token ids, or of such lists, got {shown(tokens)}", param="tokens")
    batch = bool(tokens) and isinstance(tokens[0], list)
    if batch:
        check_limit(desk.options.limits, "max_prompts", len(tokens), "tokens")
    texts = [await desk.apart(spelled, each, desk, skip) for each in (tokens if batch else [tokens])]
    text = texts if batch else texts[0]
    return JSONResponse({"text": text, "prompt": text, "content": text})


def spelled(tokens: Any, desk: RequestManager, skip: bool) -> str:
    """The text of token ids."""
    if not isinstance(tokens, list):
        raise Refusal(400, f"tokens must be lists of token ids, got {shown(tokens)} among them", param="tokens")
    most = longest_text(desk.llm, desk.options.limits)
    if len(tokens) > most:
        raise Refusal(400, f"tokens must be at most {most}, got {len(tokens)}; send fewer", param="tokens")
    try:
        ids = check_ids(tokens, desk.llm.model.vocab_size)
    except ParamsError as error:
        raise Refusal(400, str(error).replace("prompt token ids", "tokens", 1), param="tokens") from None
    return desk.llm.tokenizer.decode(ids, skip_special_tokens=skip)


def one_of(body: dict[str, Any], names: tuple[str, ...]) -> Any:
    """The value of the one name that is given."""
    given = [name for name in names if body.get(name) is not None]
    if len(given) != 1:
        raise Refusal(400, f"exactly one of {', '.join(names)} must be given, got {len(given)}", param=names[0])
    return body[given[0]]


def checked_text(text: Any, desk: RequestManager) -> str:
    """A text that is worth tokenising."""
    if not isinstance(text, str):
        raise Refusal(400, f"prompt must be a text or a list of texts, got {shown(text)}; send text", param="prompt")
    most = longest_text(desk.llm, desk.options.limits)
    if len(text) > most:
        raise Refusal(
            400,
            f"prompt must hold at most {most} characters, got {len(text)}; the operator can raise it with "
            "--max-chars-per-token",
            param="prompt",
        )
    return text
