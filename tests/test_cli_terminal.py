"""The chat on a real (pseudo-)terminal: line editing, history, and what Ctrl-C and Ctrl-D do."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import SOURCES

from tirage import LLM, SamplingParams
from tirage.cli.chat import COMMANDS, complete

pty = pytest.importorskip("pty", reason="pseudo-terminals are a Unix thing")
_ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")
_PATIENCE_S = 120


# Steps of 20 ms, or a reply might be over before it can be interrupted.
_CHAT = "import slow_model; from tirage.cli import main; main()"


class Terminal:
    """`tirage chat` behind a pseudo-terminal; what it shows, without the control codes."""

    def __init__(self, *arguments: str) -> None:
        ours, theirs = pty.openpty()
        path = os.pathsep.join([str(SOURCES), str(Path(__file__).parent)])
        environment = {**os.environ, "TERM": "xterm", "PYTHONIOENCODING": "utf-8", "COLUMNS": "200"}
        environment |= {"PYTHONPATH": path, "TIRAGE_TEST_STEP_S": "0.02"}
        command = [sys.executable, "-c", _CHAT, "chat", *arguments]
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
        )
        os.close(theirs)
        self._ours, self.shown = ours, ""

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def until(self, pattern: str, *, patience_s: float = _PATIENCE_S) -> str:
        """What is shown up to the pattern, taken away with it."""
        limit = time.monotonic() + patience_s
        while not (match := re.search(pattern, self.shown)):
            assert time.monotonic() < limit, f"{pattern!r} did not appear in {self.shown[-500:]!r}"
            self._read()
        before, self.shown = self.shown[: match.end()], self.shown[match.end() :]
        return before

    def _read(self) -> None:
        ready, _, _ = select.select([self._ours], [], [], 1.0)
        if ready:
            try:
                part = os.read(self._ours, 4096)
            except OSError:  # the other end has gone
                part = b""
            self.shown += _ESCAPES.sub(b"", part).decode("utf-8", "replace").replace("\r", "")

    def interrupt(self) -> None:
        """Ctrl-C: a terminal would send the signal to the program in front."""
        os.killpg(self.process.pid, signal.SIGINT)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=_PATIENCE_S)
        os.close(self._ours)


@pytest.fixture
def chat() -> Iterator[Terminal]:
    terminal = Terminal("--temperature", "0", "--max-tokens", "450", "--ignore-eos")
    yield terminal
    terminal.close()


@pytest.mark.slow
def test_a_chat_on_a_terminal(chat: Terminal) -> None:
    llm = LLM("tiny")
    expected = llm.chat([{"role": "user", "content": "Hello!"}], SamplingParams(temperature=0, max_tokens=5))

    chat.until("> $")
    chat.type("/set max_tokens 5\n")
    chat.until("max_tokens = 5\n")
    chat.until("> $")
    chat.type("Hello!\n")
    assert expected.text in chat.until(r"5 tokens in")
    chat.until("> $")

    # The arrow up brings lines back.
    chat.type("/reset\n")
    chat.until("starts anew\n")
    chat.until("> $")
    chat.type("\x1b[A\x1b[A\n")
    assert expected.text in chat.until(r"5 tokens in")
    chat.until("> $")

    # Tab completes a name.
    chat.type("/set repet\t1.5\n")
    chat.until(r"repetition_penalty = 1.5\n")
    chat.until("> $")
    chat.type("/explain\n")
    chat.until("first token of the last reply")
    chat.until("> $")

    # Ctrl-C on a half-typed line drops the line.
    chat.type("half a li")
    chat.until("half a li")
    for _ in range(20):
        # A signal between two of readline's reads waits for the next key, so one may not be enough.
        chat.interrupt()
        with contextlib.suppress(AssertionError):
            chat.until("> $", patience_s=3)
            break
    else:
        chat.until("> $")

    # Ctrl-D ends the chat.
    chat.type("\x04")
    assert chat.process.wait(timeout=_PATIENCE_S) == 0


@pytest.mark.slow
def test_ctrl_c_stops_the_reply_and_not_the_chat(chat: Terminal) -> None:
    chat.until("> $")
    chat.type("Hello!\n")
    chat.until(r"Hello!\n.*\w")
    chat.interrupt()
    rest = chat.until("> $")
    assert "tokens in" not in rest
    assert "Traceback" not in rest
    assert chat.process.poll() is None
    chat.type("/set max_tokens 3\n")
    chat.until("max_tokens = 3\n")
    chat.until("> $")
    chat.type("And you?\n")
    chat.until("3 tokens in")
    chat.until("> $")
    chat.type("/quit\n")
    assert chat.process.wait(timeout=_PATIENCE_S) == 0


def test_words_are_completed_one_by_one() -> None:
    assert [complete("/se", i) for i in range(3)] == ["/set ", "/seed ", None]
    assert [complete("top_", i) for i in range(5)] == ["top_p ", "top_k ", "top_a ", "top_n_sigma ", "top_h "]
    assert complete("/", len(COMMANDS) - 1) == "/quit "
