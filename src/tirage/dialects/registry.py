"""Every dialect by its name, with its two functions: the table that documentation, tests and commands go through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tirage.dialects.anthropic import ANTHROPIC, from_anthropic, to_anthropic
from tirage.dialects.easydel import EASYDEL, from_easydel, to_easydel
from tirage.dialects.fastdeploy import FASTDEPLOY, from_fastdeploy, to_fastdeploy
from tirage.dialects.gemma import GEMMA, from_gemma, to_gemma
from tirage.dialects.hf import HF, from_hf, to_hf
from tirage.dialects.llamacpp import LLAMACPP, from_llamacpp, to_llamacpp
from tirage.dialects.mindie import MINDIE, from_mindie, to_mindie
from tirage.dialects.mlx import MLX, from_mlx, to_mlx
from tirage.dialects.openai import OPENAI, OPENAI_COMPLETIONS, from_openai, to_openai
from tirage.dialects.sglang import SGLANG, from_sglang, to_sglang
from tirage.dialects.table import Dialect
from tirage.dialects.vllm import VLLM, from_vllm, to_vllm
from tirage.params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredDialect:
    """A dialect with the public functions `from_x` and `to_x`, and the `options` with which they read and write it.

    `request` says in Markdown whose fields these are.
    """

    dialect: Dialect
    reader: Callable[..., SamplingParams]
    writer: Callable[..., Any]
    request: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def read(self, data: Any) -> SamplingParams:
        """The parameters that a request's fields ask for; DialectError with the engine's name for what is wrong."""
        return self.reader(data, **self.options)

    def write(self, params: SamplingParams, *, lossy: bool = False) -> Any:
        """The fields that say what `params` say, with `lossy` as `(dict, names lost)`; ParamsError as the writer's."""
        return self.writer(params, **self.options, lossy=lossy)


DIALECTS: Mapping[str, RegisteredDialect] = {
    "sglang": RegisteredDialect(
        dialect=SGLANG, reader=from_sglang, writer=to_sglang, request="`sampling_params` of SGLang's `/generate`"
    ),
    "openai": RegisteredDialect(
        dialect=OPENAI, reader=from_openai, writer=to_openai, request="OpenAI's chat completions"
    ),
    "openai-completions": RegisteredDialect(
        dialect=OPENAI_COMPLETIONS,
        reader=from_openai,
        writer=to_openai,
        request="OpenAI's completions",
        options={"route": "completions"},
    ),
    "anthropic": RegisteredDialect(
        dialect=ANTHROPIC, reader=from_anthropic, writer=to_anthropic, request="Anthropic's messages"
    ),
    "vllm": RegisteredDialect(dialect=VLLM, reader=from_vllm, writer=to_vllm, request="vLLM's `SamplingParams`"),
    "hf": RegisteredDialect(
        dialect=HF, reader=from_hf, writer=to_hf, request="transformers' `generate` and `GenerationConfig`"
    ),
    "fastdeploy": RegisteredDialect(
        dialect=FASTDEPLOY, reader=from_fastdeploy, writer=to_fastdeploy, request="FastDeploy's chat route"
    ),
    "llamacpp": RegisteredDialect(
        dialect=LLAMACPP, reader=from_llamacpp, writer=to_llamacpp, request="llama.cpp's `/completion`"
    ),
    "mlx": RegisteredDialect(
        dialect=MLX, reader=from_mlx, writer=to_mlx, request="mlx-lm's `make_sampler` and `make_logits_processors`"
    ),
    "easydel": RegisteredDialect(
        dialect=EASYDEL, reader=from_easydel, writer=to_easydel, request="EasyDeL's `SamplingParams`"
    ),
    "gemma": RegisteredDialect(
        dialect=GEMMA, reader=from_gemma, writer=to_gemma, request="Gemma's sampling methods and `Sampler`"
    ),
    "mindie": RegisteredDialect(
        dialect=MINDIE, reader=from_mindie, writer=to_mindie, request="MindIE's `SamplingParam`"
    ),
}
"""A new dialect is a module with its table and functions, and a line here; then tests/dialect_cases.py needs values."""
