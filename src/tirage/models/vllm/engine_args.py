"""vLLM's engine arguments: read from a command line, and checked before vLLM sees them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tirage.errors import ParamsError, nearest
from tirage.models.vllm import installed

ONE_WORKER = "tirage draws in the engine's process, and the workers of several devices are processes of their own"
OWN: Mapping[str, str] = {
    "model": "it is the folder",
    "tokenizer": "tirage has a tokenizer of its own",
    "skip_tokenizer_init": "tirage has a tokenizer of its own",
    "max_num_seqs": "use max_running",
    "dtype": "use dtype",
    "logits_processors": "use SamplingParams(logits_processors=...)",
    "async_scheduling": "each token is drawn before the next step begins",
    "disable_log_stats": "the engine's metrics are tirage's",
    "distributed_executor_backend": ONE_WORKER,
    "tensor_parallel_size": ONE_WORKER,
    "pipeline_parallel_size": ONE_WORKER,
    "data_parallel_size": ONE_WORKER,
    "speculative_config": "tokens are drawn one at a time",
    "enable_lora": "adapters are not supported on the vLLM backend",
    "enable_prompt_embeds": "prompts are text and token ids only",
}
"""Engine arguments that are not the caller's to give, with the reason."""


def parse_engine_args(texts: Sequence[str]) -> dict[str, Any] | None:
    """The arguments of texts NAME=VALUE, where a value is JSON or else a text; None without any.

    Raises ParamsError for a text without a name or a value, and for a name that is given twice.
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.replace("-", "_")
        if not (name and equals and value):
            raise ParamsError(f"--engine-arg must be NAME=VALUE, got {text!r:.80}")
        if name in found:
            raise ParamsError(f"--engine-arg must give each name once, got {name!r} twice")
        try:
            found[name] = json.loads(value)
        except (ValueError, RecursionError):
            found[name] = value
    return found or None


def checked_args(given: Mapping[str, Any]) -> dict[str, Any]:
    """The caller's engine arguments. Raises ParamsError for one that vLLM does not have or that tirage sets."""
    known = {each.name for each in dataclasses.fields(installed.find(installed.EngineArgs))}
    for name in given:
        if name in OWN:
            raise ParamsError(f"engine_args must leave out {name!r}: {OWN[name]}")
        if name not in known:
            raise ParamsError(f"engine_args must be fields of vLLM's EngineArgs, got {name!r}{nearest(name, known)}")
    return dict(given)
