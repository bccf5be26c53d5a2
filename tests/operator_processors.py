"""Processors as an operator would have them: SGLang's documented one, and some that misbehave."""

from __future__ import annotations

from typing import Any, ClassVar

from sglang_examples import IMPORT, PROCESSOR

from tirage.compat.sglang import CustomLogitProcessor

_names: dict[str, Any] = {}
exec(PROCESSOR.replace(IMPORT, "from tirage.compat.sglang import CustomLogitProcessor"), _names)
DeterministicLogitProcessor = _names["DeterministicLogitProcessor"]
"""The example of SGLang's documentation with its import line changed, and nothing else."""


class CountingLogitProcessor(CustomLogitProcessor):
    """Forces the token whose id is the number of tokens drawn so far."""

    name: ClassVar[str | None] = "counting"
    arg_names: ClassVar[tuple[str, ...] | None] = ()

    def __call__(self, logits: Any, custom_param_list: list[dict[str, Any]]) -> Any:
        for row, given in enumerate(custom_param_list):
            logits[row, :] = -float("inf")
            logits[row, len(given["__req__"].output_ids) + len(given["__req__"].origin_input_ids)] = 0.0
        return logits


class FailingLogitProcessor(CustomLogitProcessor):
    """Fails for requests that want it to."""

    def __call__(self, logits: Any, custom_param_list: list[dict[str, Any]]) -> Any:
        if any(given.get("fail") for given in custom_param_list):
            raise RuntimeError("told to fail")
        return logits


class ScriptLogitProcessor(CustomLogitProcessor):
    """Forces the tokens of a script, one after another, and then lets the model go on."""

    name: ClassVar[str | None] = "script"
    arg_names: ClassVar[tuple[str, ...] | None] = ("ids",)

    def __call__(self, logits: Any, custom_param_list: list[dict[str, Any]]) -> Any:
        for row, given in enumerate(custom_param_list):
            at = len(given["__req__"].output_ids)
            if at < len(given["ids"]):
                logits[row, :] = -float("inf")
                logits[row, given["ids"][at]] = 0.0
        return logits


class PickyLogitProcessor(CustomLogitProcessor):
    """Forces a token, and says beforehand which arguments it cannot work with."""

    def check(self, custom_params: dict[str, Any]) -> None:
        if custom_params["token_id"] % 2:
            raise ValueError(f"token_id must be even, got {custom_params['token_id']}")

    def __call__(self, logits: Any, custom_param_list: list[dict[str, Any]]) -> Any:
        for row, given in enumerate(custom_param_list):
            logits[row, :] = -float("inf")
            logits[row, given["token_id"]] = 0.0
        return logits
