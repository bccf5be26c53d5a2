"""Commands on a real (pseudo-)terminal: line editing, history, lines of its width, bars, Ctrl-C and Ctrl-D."""

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
from typing import Any

import pytest
from servers import SOURCES

from tirage import LLM, SamplingParams
from tirage.cli.chat import COMMANDS, PARAMETERS
from tirage.cli.line_editing import Completer

pty = pytest.importorskip("pty", reason="pseudo-terminals are a Unix thing")
_ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")
_PATIENCE_S = 120


# Steps of 20 ms, or a reply might be over before it can be interrupted.
_TIRAGE = "import slow_model; from tirage.cli import main; main()"


class Terminal:
    """A command behind a pseudo-terminal; what it shows, without the control codes unless they are `kept`."""

    def __init__(
        self, *arguments: str, home: Path, columns: int = 200, step_s: float = 0.02, kept: bool = False, **more: str
    ) -> None:
        ours, theirs = pty.openpty()
        path = os.pathsep.join([str(SOURCES), str(Path(__file__).parent)])
        environment = {**os.environ, "TERM": "xterm", "PYTHONIOENCODING": "utf-8", "COLUMNS": str(columns)}
        environment |= {"PYTHONPATH": path, "TIRAGE_TEST_STEP_S": str(step_s), "XDG_STATE_HOME": str(home), **more}
        command = [sys.executable, "-c", _TIRAGE, *arguments]
        self._kept = kept
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
            part = part if self._kept else _ESCAPES.sub(b"", part)
            self.shown += part.decode("utf-8", "replace").replace("\r", "")

    def interrupt(self) -> None:
        """Ctrl-C: a terminal would send the signal to the program in front."""
        os.killpg(self.process.pid, signal.SIGINT)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=_PATIENCE_S)
        os.close(self._ours)


@contextlib.contextmanager
def opened(*arguments: str, **options: Any) -> Iterator[Terminal]:
    terminal = Terminal(*arguments, **options)
    try:
        yield terminal
    finally:
        terminal.close()


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Terminal]:
    with opened("chat", "--temperature", "0", "--max-tokens", "450", "--ignore-eos", home=tmp_path) as terminal:
        yield terminal


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


@pytest.mark.slow
def test_a_reply_is_broken_between_words_at_the_width_of_the_terminal(tmp_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    text = LLM("tiny").chat([{"role": "user", "content": "Hello!"}], params).text
    options = ("--temperature", "0", "--max-tokens", "60", "--ignore-eos")
    with opened("chat", *options, home=tmp_path, columns=30, step_s=0.002) as chat:
        chat.until("> $")
        chat.type("Hello!\n")
        shown = chat.until("seed ").partition("Hello!\n")[2].rpartition("\n")[0]
    lines = shown.split("\n")
    assert len(lines) > 5
    assert max(map(len, lines)) <= 29
    assert shown.split() == text.split()


@pytest.mark.slow
def test_the_lines_of_a_chat_are_remembered_in_the_next_one(tmp_path: Path) -> None:
    for typed in ("/seed 5\n", "\x1b[A\n"):
        with opened("chat", home=tmp_path) as chat:
            chat.until("> $")
            chat.type(typed)
            chat.until("seed = 5\n")
            chat.until("> $")
            chat.type("\x04")
            assert chat.process.wait(timeout=_PATIENCE_S) == 0
    history = tmp_path / "tirage" / "chat_history"
    assert history.read_text().splitlines() == ["/seed 5"]
    assert history.stat().st_mode & 0o777 == 0o600
    with opened("chat", "--no-history", home=tmp_path) as chat:
        chat.until("> $")
        chat.type("/seed 6\n")
        chat.until("seed = 6\n")
        chat.until("> $")
        chat.type("\x04")
        assert chat.process.wait(timeout=_PATIENCE_S) == 0
    assert history.read_text().splitlines() == ["/seed 5"]


@pytest.mark.slow
def test_no_color_is_obeyed_and_a_terminal_has_colour(tmp_path: Path) -> None:
    colours = re.compile(r"\x1b\[[0-9;]*3[0-9]")
    command = ("explain", "Once upon a time", "--top-k", "5", "--seed", "1")
    for more, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        with opened(*command, home=tmp_path, kept=True, **more) as terminal:
            shown = terminal.until("Token .* owns|fell")
            assert bool(colours.search(shown)) is coloured


@pytest.mark.slow
def test_the_bar_of_a_batch_moves_before_a_row_is_done(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text('{"id": 1, "prompt": "Once"}\n{"id": 2, "prompt": "There"}\n')
    options = ("--out", str(tmp_path / "out"), "--max-tokens", "60", "--ignore-eos")
    with opened("batch", str(file), *options, home=tmp_path, columns=80) as batch:
        # Half of a bar's character is shown where it is filled up to its middle.
        batch.until(r"0/2 rows .*[╸╺]")
        batch.until("2 rows done, 0 before, 0 failed")
        assert batch.process.wait(timeout=_PATIENCE_S) == 0


def test_words_are_completed_one_by_one() -> None:
    complete = Completer([*COMMANDS, *PARAMETERS])
    assert [complete("/se", i) for i in range(3)] == ["/set ", "/seed ", None]
    assert [complete("dry_b", i) for i in range(3)] == ["dry_base ", "dry_breaker_token_ids ", None]
    assert complete("/", len(COMMANDS) - 1) == "/quit "
