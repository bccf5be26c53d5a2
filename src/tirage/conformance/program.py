"""A program that is asked line by line, and may hang, crash or talk nonsense."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import IO, Any, Literal

from tirage.errors import ParamsError

Failure = Literal["crashed", "timed_out", "invalid"]
_MOST_CHARS = 1 << 22
"""Of one answer; a vocabulary of the vectors has a few dozen tokens."""
_TAIL = 8
"""Lines of a program's stderr that are kept."""
_END_S = 2.0
"""How long a program may take to end once its input has."""


class ProgramError(Exception):
    """A program that gave no answer: it `crashed`, `timed_out`, or its line is `invalid`; the message says how."""

    def __init__(self, kind: Failure, message: str) -> None:
        super().__init__(message)
        self.kind: Failure = kind


class _Process:
    """One run of a program, its output read by threads so that nothing it does can hold this one up."""

    def __init__(self, command: Sequence[str]) -> None:
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                # What it starts in turn is ended with it, and Ctrl-C is for us.
                start_new_session=os.name == "posix",
            )
        except (OSError, ValueError) as error:
            raise ParamsError(f"the program must be one that starts, got {command[0]!r}: {error}") from None
        self.lines: queue.Queue[str | None] = queue.Queue()
        self._errors: deque[str] = deque(maxlen=_TAIL)
        self._readers = [
            threading.Thread(target=reader, args=(stream,), daemon=True)
            for reader, stream in ((self._read_lines, self._process.stdout), (self._read_errors, self._process.stderr))
        ]
        for thread in self._readers:
            thread.start()

    def _read_lines(self, stream: IO[str]) -> None:
        with contextlib.suppress(ValueError, OSError):
            while line := stream.readline(_MOST_CHARS):
                self.lines.put(line)
        self.lines.put(None)

    def _read_errors(self, stream: IO[str]) -> None:
        with contextlib.suppress(ValueError, OSError):
            while line := stream.readline(_MOST_CHARS):
                self._errors.append(line.rstrip())

    def send(self, line: str) -> None:
        """Writes a line; a program that has ended is noticed when its answer is awaited."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def death(self) -> str:
        """How a process that has closed its output ended, and the end of what it said on stderr."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._readers[1].join(_END_S)
        code = self._process.poll()
        how = "closed its output" if code is None else f"ended with {_status(code)}"
        said = next((line for line in reversed(self._errors) if line.strip()), "")
        return f"it {how} before it answered" + (f"; its stderr ends with {said[:200]!r}" if said else "")

    def end(self, *, at_once: bool) -> None:
        """Closes its input, and kills it where it does not end by itself, with what it has started."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0 if at_once else _END_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.name == "posix":
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        self._process.wait()
        for thread, stream in zip(self._readers, (self._process.stdout, self._process.stderr), strict=True):
            thread.join(_END_S)
            # One that something else still holds open is left to its thread.
            if stream is not None and not thread.is_alive():
                stream.close()


def _status(code: int) -> str:
    if code >= 0:
        return f"status {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


class SamplerProgram:
    """A command that reads a JSON object per line of its stdin and answers each with one line on its stdout.

    It is started by the first request, and again by the first one after a failure. `timeout_s` is for one answer,
    `start_timeout_s` for the first one of a process. A context manager, at whose end the process ends too.
    """

    def __init__(self, command: Sequence[str], *, timeout_s: float = 10.0, start_timeout_s: float = 60.0) -> None:
        for name, value in (("timeout_s", timeout_s), ("start_timeout_s", start_timeout_s)):
            if not 0 < value < float("inf"):
                raise ParamsError(f"{name} must be a number of seconds > 0, got {value!r}")
        if not command:
            raise ParamsError("the program must be a command, got nothing; give it after --")
        self._command = list(command)
        self._timeout_s, self._start_timeout_s = timeout_s, start_timeout_s
        self._process: _Process | None = None

    def __enter__(self) -> SamplerProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request with an `id`; raises ProgramError, and the next request starts the program anew.

        Raises ParamsError for a command that cannot be started.
        """
        limit = self._timeout_s if self._process else self._start_timeout_s
        process = self._process = self._process or _Process(self._command)
        try:
            process.send(json.dumps(request))
            return _answer(_line(process, limit), request["id"])
        except BaseException:
            self.stop(at_once=True)
            raise

    def stop(self, *, at_once: bool = False) -> None:
        """Ends the process: by the end of its input, or `at_once`."""
        process, self._process = self._process, None
        if process is not None:
            process.end(at_once=at_once)


def _line(process: _Process, limit_s: float) -> str:
    try:
        line = process.lines.get(timeout=limit_s)
    except queue.Empty:
        raise ProgramError(
            "timed_out",
            f"there was no line within {limit_s:g} s; each line of input must be answered, and the output flushed, "
            "before the next one comes",
        ) from None
    if line is None:
        raise ProgramError("crashed", process.death())
    return line


def _answer(line: str, name: str) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        raise ProgramError("invalid", f"a line must be a JSON object, got {line[:80]!r}") from None
    if not isinstance(answer, dict):
        raise ProgramError("invalid", f"a line must be a JSON object, got {line[:80]!r}")
    if answer.get("id") != name:
        raise ProgramError("invalid", f"id must be that of the request, {name!r}, got {answer.get('id')!r}")
    return answer
