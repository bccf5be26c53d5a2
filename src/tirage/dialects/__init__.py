"""Other engines' request fields: `from_x(dict)` reads them into SamplingParams, `to_x(params)` writes them.

`DIALECTS` lists all of them by name, and `convert` goes from one to another.
"""

from tirage.dialects.anthropic import from_anthropic, to_anthropic
from tirage.dialects.conversion import Conversion, LostField, convert
from tirage.dialects.easydel import from_easydel, to_easydel
from tirage.dialects.fastdeploy import from_fastdeploy, to_fastdeploy
from tirage.dialects.gemma import from_gemma, to_gemma
from tirage.dialects.hf import from_hf, to_hf
from tirage.dialects.law_change import LawChange
from tirage.dialects.llamacpp import from_llamacpp, to_llamacpp
from tirage.dialects.meaning import MeaningChange
from tirage.dialects.mindie import from_mindie, to_mindie
from tirage.dialects.mlx import from_mlx, to_mlx
from tirage.dialects.openai import from_openai, to_openai
from tirage.dialects.registry import DIALECTS, RegisteredDialect
from tirage.dialects.sglang import beams_from_sglang, from_sglang, to_sglang
from tirage.dialects.table import Dialect, DialectError, FieldMapping, ParsedParams, join, same
from tirage.dialects.vllm import from_vllm, to_vllm

__all__ = [
    "DIALECTS",
    "Conversion",
    "Dialect",
    "DialectError",
    "FieldMapping",
    "LawChange",
    "LostField",
    "MeaningChange",
    "ParsedParams",
    "RegisteredDialect",
    "beams_from_sglang",
    "convert",
    "from_anthropic",
    "from_easydel",
    "from_fastdeploy",
    "from_gemma",
    "from_hf",
    "from_llamacpp",
    "from_mindie",
    "from_mlx",
    "from_openai",
    "from_sglang",
    "from_vllm",
    "join",
    "same",
    "to_anthropic",
    "to_easydel",
    "to_fastdeploy",
    "to_gemma",
    "to_hf",
    "to_llamacpp",
    "to_mindie",
    "to_mlx",
    "to_openai",
    "to_sglang",
    "to_vllm",
]
