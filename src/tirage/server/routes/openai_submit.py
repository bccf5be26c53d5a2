"""From a request of OpenAI's routes to the engine: adapters, submission, and errors with the client's field names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastapi import Request

from tirage.dialects import DialectError
from tirage.errors import GrammarError, ParamsError, nearest
from tirage.server import errors
from tirage.server.engine_input import EngineInput
from tirage.server.errors import Refusal
from tirage.server.http_request import tenant_of
from tirage.server.request_group import RequestGroup
from tirage.server.request_manager import RequestManager
from tirage.server.routes.models import adapters_of
from tirage.server.routes.openai_request import OpenAIRequest

_ANY_MODEL = frozenset({"null", "default"})
"""What clients of FastDeploy and SGLang send when they do not know the model's name."""

_MOST_TOKENS = ("max_completion_tokens", "max_output_tokens", "max_tokens")


def adapter_of(request: OpenAIRequest, manager: RequestManager) -> str | None:
    """The adapter that a request names: by `lora_path`, or as the model, also after a colon as in SGLang.

    Raises DialectError for a `lora_path` that is no adapter. A server with adapters also raises Refusal for a model
    that is neither an adapter nor the base model: it may be a misspelt adapter.
    """
    return adapter_named(request.fields["model"], request.fields["lora_path"], manager)


def adapter_named(model: str | None, lora_path: str | None, manager: RequestManager) -> str | None:
    """The adapter of these two fields; raises DialectError and Refusal as `adapter_of` does."""
    known, path = adapters_of(manager), lora_path
    if path is not None:
        if path not in known:
            raise DialectError(f"lora_path must name an adapter of this server, got {path!r:.80}", "lora_path")
        return path
    name, base = model or "", manager.options.model_name
    # Where adapters come and go, an unknown name may be that of an unloaded one, and so does not mean the base.
    answers_to_all = not known and manager.options.lora_root is None
    if answers_to_all or name in {"", base, *known}:
        return name if name in known else None
    before, _, after = name.partition(":")
    if before == base and after in known:
        return after
    if name in _ANY_MODEL:
        return None
    raise unknown_model(name, [base, *known])


def unknown_model(name: str, known: Sequence[str]) -> Refusal:
    """OpenAI's answer to the name of a model that does not exist."""
    rule = f"model must be one of this server's ({', '.join(known)})"
    text = f"{rule:.600}, got {name!r:.80}{nearest(name, known) or '; GET /v1/models lists them'}"
    return Refusal(404, text, type="invalid_request_error", param="model", code="model_not_found")


async def submit(
    inputs: Sequence[EngineInput],
    request: OpenAIRequest,
    manager: RequestManager,
    raw_request: Request,
    *,
    prompt: str,
    reworded: Callable[[str], str] = str,
    must_fit: bool = True,
) -> RequestGroup:
    """The running requests; raises Refusal, which names the field that the client sent.

    `prompt` is the field that held the prompt. `reworded` changes what an error says about a constraint that the
    client did not send itself. Without `must_fit`, texts end where the context does, however many tokens are wanted.
    """
    try:
        group = await manager.submit(
            inputs, tenant=tenant_of(raw_request), rid=request.rid, stream=request.fields["stream"]
        )
    except (ParamsError, GrammarError) as error:
        refusal = refusal_of(error, request, prompt)
        if isinstance(error, GrammarError):
            refusal.message = reworded(refusal.message)
        raise refusal from error
    except Refusal as refusal:
        if refusal.param == "prompt":
            refusal.param = prompt
        raise
    if must_fit:
        check_fit(group, request)
    return group


def check_fit(group: RequestGroup, request: OpenAIRequest) -> None:
    """Aborts the group and raises Refusal if the request itself wants more tokens than the context has room for.

    FastDeploy lowers such a number to what fits.
    """
    name = next((name for name in _MOST_TOKENS if name in request.sources), None)
    if request.fastdeploy or name is None:
        return
    for running in group.requests:
        wanted, most = running.request.params.max_tokens, running.request.limit
        if wanted is not None and wanted > most:
            group.abort()
            raise Refusal(
                400,
                f"{name} must be at most {most}, what a prompt of {running.request.inputs.length} tokens leaves of the "
                f"context, got {wanted}; ask for fewer or shorten the prompt",
                param=name,
                code="context_length_exceeded",
            )


def refusal_of(error: ParamsError | GrammarError, request: OpenAIRequest, prompt: str) -> Refusal:
    """The refusal for an error about one of our parameters, with the name of the client's field that set it."""
    refusal = errors.of(error)
    place = refusal.param or ""
    name = place.partition("[")[0]
    if isinstance(error, GrammarError):
        name, place = "guided_decoding", "tools" if request.fields.get("tools") else place
    sources = [theirs for theirs, ours in request.sources.items() if name in ours]
    if sources:
        # Of `logprobs` and `top_logprobs` the latter says how many.
        found = max(sources, key=lambda theirs: len(request.sources[theirs]))
        place = found + (f"[{place.partition('[')[2]}" if "[" in place else "")
    too_long = name == "prompt" and "must hold at most" in refusal.message
    code = "context_length_exceeded" if too_long else refusal.code
    param = prompt if name in {"prompt", "prompts"} else place or None
    return Refusal(refusal.status, refusal.message, param=param, code=code)
