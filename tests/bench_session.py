"""Run by tests/test_bench_clients.py: the request functions of a peer's benchmark client, against a server.

python bench_session.py sglang|vllm URL
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import aiohttp

PROMPT = "Once upon a time"
ROUTES = {
    "async_request_sglang_generate": "/generate",
    "async_request_openai_completions": "/v1/completions",
    "async_request_openai_chat_completions": "/v1/chat/completions",
}
ARGUMENTS: dict[str, Any] = {
    "disable_stream": False, "disable_ignore_eos": False, "return_logprob": False, "logprob_start_len": -1,
    "top_logprobs_num": 0, "token_ids_logprob": None, "return_routed_experts": False, "temperature": 0.0,
    "top_p": 1.0, "cache_report": False, "header": None, "print_requests": False,
}  # fmt: skip
"""The options of SGLang's command line at their defaults."""
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "whole": {"disable_stream": True},
    "logprobs": {"return_logprob": True, "top_logprobs_num": 2, "token_ids_logprob": [300, 5], "logprob_start_len": 0},
    "sampled": {"temperature": 0.8, "top_p": 0.9, "disable_ignore_eos": True},
    "cache": {"cache_report": True},
}
BODIES: dict[str, dict[str, Any]] = {
    "plain": {}, "echo of the defaults": {"top_k": -1, "repetition_penalty": 1.0, "min_p": 0.0, "seed": 7},
}  # fmt: skip


def main(peer: str, url: str) -> None:
    client = importlib.import_module(f"bench_{peer}")
    calls = sglang(client, url) if peer == "sglang" else vllm(client, url)
    for name, output in calls:
        print(json.dumps({"call": name, "success": output.success, "error": output.error,
                          "text": output.generated_text, "tokens": tokens(output)}))  # fmt: skip


def tokens(output: Any) -> int:
    return output.output_tokens if hasattr(output, "output_tokens") else output.output_len


def sglang(client: Any, url: str) -> Iterator[tuple[str, Any]]:
    for function, route in ROUTES.items():
        for variant, options in VARIANTS.items():
            client.args = Namespace(**{**ARGUMENTS, **options})
            given = client.RequestFuncInput(
                prompt=PROMPT, api_url=url + route, prompt_len=5, output_len=8, model="tiny", lora_name=None,
                image_data=None, extra_request_body={},
            )  # fmt: skip
            yield f"{function} {variant}", asyncio.run(getattr(client, function)(given))


def vllm(client: Any, url: str) -> Iterator[tuple[str, Any]]:
    for function, route in ROUTES.items():
        if not hasattr(client, function):
            continue
        for variant, body in BODIES.items():
            logprobs = 3 if variant == "plain" and "chat" not in function else None
            given = client.RequestFuncInput(
                prompt=PROMPT, api_url=url + route, prompt_len=5, output_len=8, model="tiny", logprobs=logprobs,
                extra_body=body, ignore_eos=True, request_id="bench-1",
            )  # fmt: skip
            yield f"{function} {variant}", asyncio.run(one(getattr(client, function), given))


async def one(function: Any, given: Any) -> Any:
    async with aiohttp.ClientSession() as session:
        return await function(given, session)


if __name__ == "__main__":
    main(*sys.argv[1:])
