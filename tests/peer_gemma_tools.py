"""Has the `gemma` package's own ToolSampler and ours talk to the same model and tools; prints what each made of it.

Run by tests/test_gemma_tools.py in the interpreter that TIRAGE_TEST_GEMMA_PYTHON names. The model says what its last
token asks for, so that the original's attention over turns, which differs, has no part in it.
"""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import dialog
import jax.numpy as jnp
import mcp
import numpy as np
from gemma import gm
from gemma.gm.text import _tokenizer
from gemma.gm.utils import _types
from peer_gemma import Letters, LetterTokenizer

from tirage.compat import gemma as ours

CALL, REPLY, LEGACY, V = 60, 61, 64, 128
EOS, TOOL, END = 1, 50, 106
WRITTEN = {
    CALL: "<|tool_call>call:add{a:1,b:2}<tool_call|>",
    LEGACY: "<|tool_call>call:add{a:3,b:4}<tool_call|>",
    REPLY: "three",
    EOS: "",
    TOOL: "<|tool_response>",
    105: "<|turn>",
    END: "<turn|>",
}


class Written(Letters):
    """Letters, and some ids that are whole phrases."""

    def EncodeAsIds(self, text: str) -> list[int]:  # noqa: N802
        return self.ids(text)

    def DecodeIds(self, ids: list[int]) -> str:  # noqa: N802
        return "".join(WRITTEN.get(i, chr(i)) for i in ids if i)


class WrittenTokenizer(LetterTokenizer):
    special_tokens = _tokenizer._Gemma4SpecialTokens
    FORMAT = dialog.Format.GEMMA4

    @property
    def _sp(self) -> Written:
        return Written()


@dataclasses.dataclass(frozen=True)
class Chain:
    """The next token is a function of the last one; after a message the first word is `opening`."""

    opening: int

    INFO = SimpleNamespace(tokenizer_version=None)

    @property
    def config(self) -> Any:
        inputs = _types.InputConfig(support_images=False, num_tokens_per_image=0, special_tokens=Written)
        return SimpleNamespace(num_embed=V, input_config=inputs)

    def init_cache(self, *, batch_size: int, dtype: Any, cache_length: int, sharding: Any = None) -> Any:
        rows = {name: jnp.zeros((batch_size, cache_length, 1, 1), dtype) for name in ("k", "v")}
        counts = {"end_index": jnp.zeros((batch_size,), "int32")}
        return {"layer_0": {**rows, **counts, "positions": jnp.zeros((batch_size, cache_length), "int32")}}

    def apply(self, variables: Any, tokens: Any, *, cache: Any, return_last_only: bool = False, **_: Any) -> Any:
        following = np.zeros(V, np.int32)
        following[[ord("\n"), CALL, LEGACY, ord(">"), REPLY]] = [self.opening, TOOL, EOS, REPLY, END]
        logits = jnp.eye(V)[jnp.asarray(following)[tokens]]
        layer = cache["layer_0"]
        grown = {"layer_0": {**layer, "end_index": layer["end_index"] + tokens.shape[1]}}
        return SimpleNamespace(logits=logits[:, -1] if return_last_only else logits, cache=grown, hidden_states=None)


class Adder(gm.tools.ToolHandlerBase):
    """The package's own handler, over a tool that adds."""

    def _tools(self) -> list[Any]:
        number = {"type": "integer"}
        schema = {"type": "object", "properties": {"a": number, "b": number}}
        return [mcp.types.Tool(name="add", description="adds", inputSchema=schema)]

    def _call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        text = str(int(arguments["a"]) + int(arguments["b"]))
        return mcp.types.CallToolResult(content=[mcp.types.TextContent(type="text", text=text)])


def talk(door: Any, opening: int) -> dict[str, Any]:
    params = {"layer": {"weight": jnp.zeros((1,))}}
    options: dict[str, Any] = {"tokenizer": WrittenTokenizer(), "cache_length": 1500, "max_out_length": 8}
    sampler = door.ToolSampler(model=Chain(opening), params=params, tool_handler=Adder(), **options)
    last = sampler.chat("what is it?").removesuffix("<turn|>")
    prompts = [turn[0] if isinstance(turn, tuple) else turn.text for turn in sampler.turns]
    replies = [turn[1] if isinstance(turn, tuple) else turn.text for turn in sampler.turns]
    if door is gm.text:
        prompts, replies = prompts[::2], replies[1::2]
    ends = ("<turn|>", "<|tool_response>")
    cut = [next((reply.removesuffix(end) for end in ends if reply.endswith(end)), reply) for reply in replies]
    return {"last": last, "prompts": prompts, "replies": cut}


def main() -> None:
    both = {"theirs": gm.text, "ours": ours}
    print(json.dumps({name: [talk(door, CALL), talk(door, LEGACY)] for name, door in both.items()}))


if __name__ == "__main__":
    main()
