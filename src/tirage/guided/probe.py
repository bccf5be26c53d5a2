"""Trial compilations in child processes, so that no grammar can hold up or bring down the process that serves.

The compilers bound part of their work, but not all: a schema with thousands of properties or one large `multipleOf`
keeps them busy for many seconds. A child that exceeds the limit is killed, and the next grammar gets a new one.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tirage.errors import GrammarError

SECONDS = 1.0
"""Processor time of a trial. What passes takes about as long again in the serving process: both end within 2 s."""
_PATIENCE = 10.0
"""How many times its processor time a trial may take on a machine that is busy with other things."""
MEGABYTES = 256
_STARTUP_S = 60.0
_WORKERS = 4


class LimitError(GrammarError):
    """A grammar that asks for more time or memory than a compilation may have."""


class Probe:
    """A few children that compile grammars on trial; started when needed, kept for the next."""

    def __init__(self) -> None:
        self._idle: dict[str, list[Child]] = {}
        self._places = threading.Semaphore(_WORKERS)
        self._lock = threading.Lock()
        atexit.register(self.close)

    def try_out(self, task: dict[str, Any], load: dict[str, Any], *, seconds: float = SECONDS) -> dict[str, Any]:
        """What a child answers to a task, after it was told to `load` what the task needs.

        `seconds` is processor time; on a busy machine the answer may take ten times as long. Raises LimitError when
        the child runs over its time or memory; it is dead by then.
        """
        with self._places:
            kind = load["compiler"]
            child = self._take(kind)
            try:
                child.load(load)
                answer = child.ask(task | {"seconds": seconds}, seconds * _PATIENCE)
            except BaseException:
                child.kill()
                raise
            with self._lock:
                self._idle.setdefault(kind, []).append(child)
            return answer

    def close(self) -> None:
        """Ends the idle children."""
        with self._lock:
            for children in self._idle.values():
                while children:
                    children.pop().kill()

    def _take(self, kind: str) -> Child:
        """An idle child that has this compiler, or a new one: memory is limited to what a compiler adds."""
        with self._lock:
            children = self._idle.get(kind, [])
            while children:
                child = children.pop()
                if child.usable:
                    return child
                child.kill()
        return Child()


class Child:
    """One running worker."""

    def __init__(self) -> None:
        script = str(Path(__file__).with_name("worker.py"))
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-P", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            close_fds=True,
        )
        self._loaded: set[str] = set()

    @property
    def usable(self) -> bool:
        """Whether the child still runs and belongs to this process."""
        return self._owner == os.getpid() and self._process.poll() is None

    def load(self, task: dict[str, Any]) -> None:
        """Has the child load a compiler, once."""
        name = task["compiler"] + task.get("vocabulary", "")
        if name not in self._loaded:
            self.ask(task, _STARTUP_S)
            self._loaded.add(name)

    def ask(self, task: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The child's answer; GrammarError when it takes longer or dies."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(task).encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            raise _too_large() from None
        line = self._line(time.monotonic() + seconds)
        if line is None:
            raise _too_slow()
        if not line.endswith(b"\n"):
            self.kill()
            raise _too_slow() if -self._process.returncode in _ALARMS else _too_large()
        return json.loads(line)

    def kill(self) -> None:
        """Ends the child now."""
        if self._owner != os.getpid():
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue

    def _line(self, deadline: float) -> bytes | None:
        """The next line of the child, less when it dies, None when time is up."""
        out = self._process.stdout
        assert out is not None
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return None
                part = os.read(out.fileno(), 1 << 20)
                if not part:
                    return line
                line += part
        return line


_ALARMS = (signal.SIGPROF, signal.SIGALRM)


def _too_slow() -> LimitError:
    return LimitError(f"grammar must compile within {SECONDS + 1:g} s, got one that does not; make it smaller")


def _too_large() -> LimitError:
    return LimitError(f"grammar must compile within {MEGABYTES} MB, got one that does not; make it smaller")


PROBE = Probe()
