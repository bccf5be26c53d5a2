"""Requests whose tokens are drawn by tirage inside vLLM's server, `docs/engines/vllm.md`."""

from __future__ import annotations

import json
from typing import Any

from tirage.errors import ParamsError
from tirage.integrations.params import ENGINE_FIELDS, read_params
from tirage.params import SamplingParams
from tirage.remote.routes import RemoteRoute, fields_of

KEY = "tirage"


def inside_fields(route: RemoteRoute, params: SamplingParams) -> dict[str, Any]:
    """The fields of vLLM for what it does itself, and those of tirage, as JSON text, for the draw.

    Raises ParamsError for what neither can be asked for.
    """
    plain, default = params.to_dict(), SamplingParams().to_dict()
    drawn = {name: value for name, value in plain.items() if value != default[name] and name not in ENGINE_FIELDS}
    drawn.pop("schema", None)
    try:
        read_params(drawn, "vLLM")
    except ParamsError as error:
        raise ParamsError(f"{error}; a server cannot be asked for its tokens") from error
    kept = {name: plain[name] for name in ENGINE_FIELDS if plain[name] != default[name]}
    # Several greedy samples are refused by vLLM; beside tirage its own temperature has no effect.
    own = {**kept, "temperature": 0.0 if params.n == 1 else 1.0, "seed": params.seed, "semantics": route.dialect.preset}
    fields = fields_of(route, SamplingParams.from_dict(own))
    return {**fields, "vllm_xargs": {KEY: json.dumps(drawn)}}
