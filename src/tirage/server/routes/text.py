"""Text to tokens and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from tirage.engine import check_ids
from tirage.errors import GrammarError, ParamsError
from tirage.fields.rules import Bool, shown
from tirage.server.admission import longest_text, too_many_characters
from tirage.server.errors import Refusal
from tirage.server.http_request import manager_of, read_known, tenant_of, unknown_header
from tirage.server.options import check_limit
from tirage.server.request_manager import RequestManager
from tirage.server.routes.chat import read_chat
from tirage.server.routes.fields import ANYTHING, Field, json_body, object_schema, only, read_fields, structured, table
from tirage.server.routes.openai_request import CHAT, CHAT_FIELDS, read_request
from tirage.server.routes.openai_submit import refusal_of
from tirage.text import Tokenizer

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
_CHAT = ("tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs", "chat_template")
"""What goes with messages, as on /v1/chat/completions."""
_CHAT_TABLE = {name: CHAT_FIELDS[name] for name in ("messages", *_CHAT)}
_NO_MEDIA_OPTIONS = only(because="the model's own processor reads images and audio")
TOKENIZE = {
    **_SOURCES,
    **_CHAT_TABLE,
    **table([
        _MODEL,
        Field("add_special_tokens", Bool(), None, "begin a text with the tokenizer's special tokens; true for texts"),
        Field("return_token_strs", Bool(), False, "the answer holds the tokens as the vocabulary spells them (vLLM)"),
        Field("media_io_kwargs", _NO_MEDIA_OPTIONS),
        Field("mm_processor_kwargs", _NO_MEDIA_OPTIONS),
    ]),
}
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
    """The token ids of a text, `prompt` (or `text`, or `content`), of each of a list of texts, or of a chat."""
    manager = manager_of(request)
    body, unknown = await read_known(request, TOKENIZE)
    fields = read_fields(TOKENIZE, body)
    texts = one_of(body, (*_SOURCES, "messages"))
    ids: list[Any]
    if is_chat := body.get("messages") is not None:
        ids = await chat_ids(body, fields, request)
    else:
        check_no_chat(body)
        ids = await text_ids(texts, request, special=fields["add_special_tokens"] is not False)
    strs = token_strs(ids, manager.llm.tokenizer) if fields["return_token_strs"] else None
    found = {
        "tokens": ids,
        "count": len(ids) if is_chat or isinstance(texts, str) else [len(each) for each in ids],
        "max_model_len": manager.llm.model.max_length,
        "token_strs": strs,
    }
    return JSONResponse(found, headers=unknown_header(unknown))


async def text_ids(texts: Any, request: Request, *, special: bool) -> list[Any]:
    """The ids of a text, or a list of those of each; raises Refusal for what is neither or too long."""
    manager, tenant = manager_of(request), tenant_of(request)
    encode = manager.llm.tokenizer.encode
    batch = isinstance(texts, list)
    if batch:
        check_limit(manager.options.limits, "max_prompts", len(texts), "number of prompt entries")
    many = [checked_text(each, manager) for each in (texts if batch else [texts])]
    ids = [await manager.in_pool(lambda t=text: encode(t, add_special_tokens=special), tenant=tenant) for text in many]
    return ids if batch else ids[0]


async def chat_ids(body: Mapping[str, Any], fields: Mapping[str, Any], request: Request) -> list[int]:
    """The ids of the prompt that a chat with these fields has; raises Refusal, those of /v1/chat/completions."""
    if fields["add_special_tokens"]:
        raise Refusal(
            400, "add_special_tokens must be false, the chat template writes them", param="add_special_tokens"
        )
    manager = manager_of(request)
    asked = {name: body[name] for name in _CHAT_TABLE if name in body}
    chat = read_request(CHAT, asked, manager.options, manager.llm, lenient=False)
    try:
        found = await read_chat(chat, request)
        [prepared] = await manager.prepare([found.engine_input], tenant=tenant_of(request))
    except (ParamsError, GrammarError) as error:
        raise refusal_of(error, chat, "messages") from error
    return list(prepared.prompt_ids)


def check_no_chat(body: Mapping[str, Any]) -> None:
    """Raises Refusal for a field of a chat without messages."""
    name = next((name for name in _CHAT if body.get(name) is not None), None)
    if name is not None:
        raise Refusal(400, f"{name} must go with messages, got a text; leave it out", param=name)


def token_strs(ids: Sequence[Any], tokenizer: Tokenizer) -> list[Any]:
    """The tokens as the vocabulary spells them, in the form of the ids."""
    if ids and isinstance(ids[0], list):
        return [token_strs(each, tokenizer) for each in ids]
    spell = getattr(tokenizer.raw, "id_to_token", None)
    if spell is None:
        return [tokenizer.token_bytes(each).decode("utf-8", "replace") for each in ids]
    return [spell(each) for each in ids]


@router.post("/detokenize", openapi_extra=_DETOKENIZE_BODY)
@router.post("/v1/detokenize", openapi_extra=_DETOKENIZE_BODY)
async def detokenize(request: Request) -> Response:
    """The text of token ids, as `text`, `prompt` and `content`, the names that clients of the engines expect.

    A list of lists gives a list of texts. Raises Refusal for anything else.
    """
    manager = manager_of(request)
    body, unknown = await read_known(request, DETOKENIZE)
    fields = read_fields(DETOKENIZE, body)
    tokens, skip = fields["tokens"], fields["skip_special_tokens"]
    if not isinstance(tokens, list):
        raise Refusal(400, f"tokens must be a list of token ids, or of such lists, got {shown(tokens)}", param="tokens")
    batch = bool(tokens) and isinstance(tokens[0], list)
    if batch:
        check_limit(manager.options.limits, "max_prompts", len(tokens), "number of tokens entries")
    lists, tenant = tokens if batch else [tokens], tenant_of(request)
    texts = [await manager.in_pool(lambda ids=ids: decoded(ids, manager, skip), tenant=tenant) for ids in lists]
    text = texts if batch else texts[0]
    return JSONResponse({"text": text, "prompt": text, "content": text}, headers=unknown_header(unknown))


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
