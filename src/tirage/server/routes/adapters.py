"""LoRA adapters loaded and unloaded while the server runs, as in vLLM and SGLang; only with `--lora-root`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from tirage.fields.rules import Bool
from tirage.server.errors import Refusal
from tirage.server.http_request import manager_of, options_of, read_known, unknown_header
from tirage.server.routes.control import check_admin
from tirage.server.routes.fields import ANY_TEXT, Field, json_body, object_schema, only, read_fields, table

router = APIRouter(tags=["control"])

_NAME = Field("lora_name", ANY_TEXT, None, "the name that requests give")
_PATH = Field("lora_path", ANY_TEXT, None, "the adapter's folder, as seen from --lora-root")
VLLM_LOAD = table([
    _NAME,
    _PATH,
    Field("load_inplace", only(False, because="unload the adapter of that name first"), False),
    Field("is_3d_lora_weight", only(False, because="the layers are those of the adapter's own configuration"), False),
])
VLLM_UNLOAD = table([_NAME, Field("lora_int_id", only(because="adapters go by their names"))])
SGLANG_LOAD = table([
    _NAME,
    _PATH,
    Field("pinned", Bool(), False, "taken; every adapter stays in memory until it is unloaded"),
    Field("lora_id", only(because="adapters go by their names")),
])
SGLANG_UNLOAD = table([_NAME, Field("lora_id", only(because="adapters go by their names"))])
_LOADED, _NAMED = ["lora_name", "lora_path"], ["lora_name"]


@router.post("/v1/load_lora_adapter", openapi_extra=json_body(object_schema(VLLM_LOAD, required=_LOADED)))
async def load_as_vllm(request: Request) -> Response:
    """Loads an adapter, as vLLM's route."""
    name, unknown = await load(request, VLLM_LOAD)
    return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.", headers=unknown_header(unknown))


@router.post("/v1/unload_lora_adapter", openapi_extra=json_body(object_schema(VLLM_UNLOAD, required=_NAMED)))
async def unload_as_vllm(request: Request) -> Response:
    """Unloads an adapter once the requests that use it have ended, as vLLM's route."""
    name, unknown = await unload(request, VLLM_UNLOAD)
    return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.", headers=unknown_header(unknown))


@router.post("/load_lora_adapter", openapi_extra=json_body(object_schema(SGLANG_LOAD, required=_LOADED)))
async def load_as_sglang(request: Request) -> Response:
    """Loads an adapter, as SGLang's route."""
    _, unknown = await load(request, SGLANG_LOAD)
    return update_of(request, unknown)


@router.post("/unload_lora_adapter", openapi_extra=json_body(object_schema(SGLANG_UNLOAD, required=_NAMED)))
async def unload_as_sglang(request: Request) -> Response:
    """Unloads an adapter once the requests that use it have ended, as SGLang's route."""
    _, unknown = await unload(request, SGLANG_UNLOAD)
    return update_of(request, unknown)


async def load(request: Request, known: Mapping[str, Field]) -> tuple[str, tuple[str, ...]]:
    """Loads the adapter of a body, and gives its name and the names of ignored fields.

    Raises Refusal and ParamsError as `LoadedAdapters.load`.
    """
    fields, unknown = await read(request, known)
    await manager_of(request).adapters.load(fields["lora_name"], fields["lora_path"])
    return fields["lora_name"], unknown


async def unload(request: Request, known: Mapping[str, Field]) -> tuple[str, tuple[str, ...]]:
    """Unloads the adapter of a body, and gives its name and the names of ignored fields.

    Raises Refusal as `LoadedAdapters.unload`.
    """
    fields, unknown = await read(request, known)
    await manager_of(request).adapters.unload(fields["lora_name"])
    # A later adapter may have the same name.
    request.app.state.explainer.forget()
    return fields["lora_name"], unknown


async def read(request: Request, known: Mapping[str, Field]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The fields of a body, and the names of ignored ones.

    Raises Refusal without the admin key where the operator has set one, and for wrong fields.
    """
    if options_of(request).admin_key is not None:
        check_admin(request)
    body, unknown = await read_known(request, known)
    fields = read_fields(known, body)
    for name in ("lora_name", "lora_path"):
        if name in known and fields[name] is None:
            raise Refusal(400, f"{name} must be given, got none", param=name)
    return fields, unknown


def update_of(request: Request, unknown: Iterable[str]) -> Response:
    """SGLang's answer: the adapters that are loaded."""
    loaded = manager_of(request).adapters.loaded
    return JSONResponse(
        {"success": True, "error_message": None, "loaded_adapters": loaded}, headers=unknown_header(unknown)
    )
