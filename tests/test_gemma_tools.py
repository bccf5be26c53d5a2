"""`ToolSampler`: what the model, the tools and the conversation say to each other, over a stand-in for `dialog`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from small_transformers import LetterTokenizer, SmallTransformer

from tirage import ModelError, ParamsError
from tirage.compat.gemma import SamplingMethod, ToolSampler

EOS, END_OF_TURN, TOOL = 1, 6, 4
CALL, RESPONSE = "<|tool_call>add<tool_call|>", "<|tool_response>"


class Special:
    EOS, BOS, END_OF_TURN, BEGIN_OF_TOOL_RESPONSE = EOS, 2, END_OF_TURN, TOOL


class ToolTokenizer(LetterTokenizer):
    """Letters, in a format that has tools."""

    special_tokens = Special  # type: ignore[assignment]
    FORMAT = "gemma4"  # type: ignore[assignment]

    def decode(self, ids: Any) -> str:
        names = {EOS: "", TOOL: RESPONSE, END_OF_TURN: "<end>"}
        return "".join(names.get(i, chr(i)) for i in map(int, ids) if i)


class Conversation:
    """Turns (role, text), written with one letter for a role; the model's last turn stays open."""

    def __init__(self, *turns: Any) -> None:
        self.turns = [part for turn in turns for part in (turn.turns if isinstance(turn, Conversation) else [turn])]

    def as_text(self, *, format: str = "gemma4", add_tool_response_tag_after_call: bool = True) -> str:
        (role, text), *_ = self.turns
        if role == "model":
            return text.removeprefix(RESPONSE) if add_tool_response_tag_after_call else text
        return "".join(f"[{role[0]}:{text}]" for role, text in self.turns) + "[m:"


@pytest.fixture(autouse=True)
def dialog(monkeypatch: pytest.MonkeyPatch) -> None:
    tags = SimpleNamespace(TOOL_RESPONSE=SimpleNamespace(open=RESPONSE))
    parts = SimpleNamespace(
        Conversation=Conversation,
        Tags=tags,
        User=lambda text: ("user", text),
        Model=lambda text: ("model", text if isinstance(text, str) else RESPONSE + "".join(text)),
    )
    monkeypatch.setitem(sys.modules, "dialog", parts)


class Adder:
    """A tool handler, shaped as `gm.tools.ToolHandlerBase`."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.open = self.entered = 0

    def __enter__(self) -> Adder:
        self.open, self.entered = self.open + 1, self.entered + 1
        return self

    def __exit__(self, *_: Any) -> None:
        self.open -= 1

    def add_system_prompt(self, prompt: Conversation) -> Conversation:
        return Conversation(("system", "add"), prompt)

    def maybe_execute_tool(self, reply: str) -> list[str] | None:
        assert self.open
        self.seen.append(reply)
        return [f"={len(self.seen)}|"] if reply.endswith((RESPONSE, "<tool_call|>")) else None


class Says(SamplingMethod):
    """Says what it is told to, turn by turn; keeps the keys it was given."""

    def __init__(self, *turns: list[int]) -> None:
        self.left = [token for turn in turns for token in turn]
        self.keys: list[str] = []

    def get_next_tokens(self, logits: Any, rng: Any) -> Any:
        self.keys.append(str(rng.bit_generator.state) if hasattr(rng, "bit_generator") else repr(rng))
        return np.array([self.left.pop(0)])


def spoken(text: str, end: int) -> list[int]:
    return [*map(ord, text), end]


def sampler(**options: Any) -> tuple[ToolSampler, Adder]:
    handler, model = Adder(), SmallTransformer()
    defaults: dict[str, Any] = {"tokenizer": ToolTokenizer(), "cache_length": 250, "max_out_length": 40}
    return ToolSampler(model=model, params=model.params(), **{"tool_handler": handler, **defaults, **options}), handler


def written(chat: ToolSampler) -> str:
    assert chat.last_state is not None
    return chat.tokenizer.decode(chat.last_state.rows[0].token_ids[1:])


@pytest.mark.parametrize(("end", "tag"), [(TOOL, RESPONSE), (EOS, "")])
def test_a_tool_is_called_and_its_answer_read(end: int, tag: str) -> None:
    chat, handler = sampler()
    method = Says(spoken(CALL, end), spoken("three", END_OF_TURN))
    assert chat.chat("1+2", sampling=method) == "three"
    assert handler.seen == [CALL + tag, "three<end>"]
    # The tag that the answer begins with is there once, whether the model wrote it or stopped before it.
    assert written(chat) == f"[s:add][u:1+2][m:{CALL}{RESPONSE}=1|three<end>"
    assert (handler.open, handler.entered) == (0, 1)


def test_tools_are_called_until_the_model_needs_none() -> None:
    chat, handler = sampler(multi_turn=True)
    rounds = [spoken(CALL, TOOL), spoken(CALL, TOOL), spoken("six", END_OF_TURN)]
    assert chat.chat("1+2+3", sampling=Says(*rounds)) == "six"
    assert [reply for _, reply in chat.turns] == [CALL, CALL, "six"]
    assert chat.chat("and?", sampling=Says(spoken("ok", END_OF_TURN))) == "ok"
    assert written(chat).endswith(f"{CALL}{RESPONSE}=2|six<end>[u:and?][m:ok<end>")
    assert written(chat).count("[s:add]") == 1
    assert len(handler.seen) == 4


def test_without_multi_turn_each_chat_begins_anew_and_keeps_its_rounds() -> None:
    chat, _ = sampler()
    for _ in range(2):
        chat.chat("1+2", sampling=Says(spoken(CALL, TOOL), spoken("three", END_OF_TURN)))
        assert len(chat.turns) == 2
        assert written(chat).startswith("[s:add][u:1+2]")


@pytest.mark.slow
def test_each_round_draws_from_a_stream_of_its_own_and_a_seed_repeats_them_all() -> None:
    def keys(rng: int) -> list[str]:
        chat, _ = sampler()
        method = Says(spoken(CALL, TOOL), spoken("x" * 20, END_OF_TURN))
        chat.chat("1+2", sampling=method, rng=rng)
        return method.keys

    assert len(set(keys(3))) == len(keys(3)) == len(CALL) + 22
    assert keys(3) == keys(3) != keys(4)


def test_a_limit_holds_for_every_round() -> None:
    chat, _ = sampler()
    chat.chat("1+2", sampling=Says(spoken(CALL, TOOL), [120] * 40), max_new_tokens=len(CALL) + 1)
    assert len(chat.turns[-1][1]) == len(CALL) + 1


def test_a_failing_tool_leaves_the_conversation_alone() -> None:
    chat, handler = sampler(multi_turn=True)
    chat.chat("hi", sampling=Says(spoken("ho", END_OF_TURN)))
    before = (list(chat.turns), chat.last_state)
    handler.maybe_execute_tool = lambda reply: 1 // 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        chat.chat("1+2", sampling=Says(spoken(CALL, TOOL)))
    assert (chat.turns, chat.last_state) == before
    assert handler.open == 0


def test_answers_of_tools_are_shown_among_the_reply(capsys: pytest.CaptureFixture[str]) -> None:
    chat, _ = sampler(print_stream=True)
    chat.chat("1+2", sampling=Says(spoken(CALL, TOOL), spoken("three", END_OF_TURN)))
    assert capsys.readouterr().out == f"{CALL}=1|three\n"


def test_what_a_tool_sampler_cannot_do_without_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ParamsError, match="tool_handler must have add_system_prompt, got int"):
        sampler(tool_handler=5)
    monkeypatch.setitem(sys.modules, "dialog", None)
    with pytest.raises(ModelError, match="ToolSampler needs the dialog package and a tokenizer that names a FORMAT"):
        sampler()


PEER = os.environ.get("TIRAGE_TEST_GEMMA_PYTHON", "")


@pytest.mark.skipif(not PEER, reason="TIRAGE_TEST_GEMMA_PYTHON names no interpreter with gemma and tirage")
def test_the_package_s_own_tool_sampler_says_and_reads_the_same() -> None:
    script = Path(__file__).with_name("peer_gemma_tools.py")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    run = subprocess.run([PEER, str(script)], capture_output=True, text=True, env=environment, check=True)
    found = json.loads(run.stdout.splitlines()[-1])
    assert [talk["last"] for talk in found["theirs"]] == ["three", "three"]
    assert found["ours"] == found["theirs"]
