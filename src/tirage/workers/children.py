"""Child processes for work that may hang or crash: reused for the next task, killed when a task fails."""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from tirage.workers.cancel import POLL_S, checkpoint, holding

_PACKAGES = str(Path(__file__).resolve().parents[2])
"""Where this package is imported from; last, so that it hides no other."""


class Child:
    """A running script with pipes to its `input` and `output`; its stderr is dropped.

    The script has the import path of this process, one thread for numerical libraries, and `environment`.
    """

    def __init__(self, script: Path, *arguments: str, environment: Mapping[str, str]) -> None:
        own = {"PYTHONPATH": os.pathsep.join([*filter(None, sys.path), _PACKAGES]), "OMP_NUM_THREADS": "1"}
        self._owner = os.getpid()
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**environment, **own},
            # Ctrl-C is for the program, not for what it still needs.
            start_new_session=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.input, self.output = self.process.stdin, self.process.stdout
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.output, selectors.EVENT_READ)

    @property
    def usable(self) -> bool:
        """Whether the child still runs, and this is the process that started it."""
        return self._owner == os.getpid() and self.process.poll() is None

    def line(self, deadline: float) -> bytes | None:
        """The next line of the output; a part of it when the child dies, None at `deadline` of the monotonic clock."""
        line = b""
        while not line.endswith(b"\n"):
            if not self._selector.select(min(POLL_S, max(0.0, deadline - time.monotonic()))):
                checkpoint()
                if time.monotonic() >= deadline:
                    return None
                continue
            part = os.read(self.output.fileno(), 1 << 20)
            if not part:
                return line
            line += part
        return line

    def kill(self) -> None:
        """Kills the child, unless a fork of its owner calls this."""
        if self._owner != os.getpid():
            return
        self.process.kill()
        self.process.wait()
        self._selector.close()
        for pipe in (self.input, self.output):
            with contextlib.suppress(OSError):
                pipe.close()


C = TypeVar("C", bound=Child)


class Children(Generic[C]):
    """A pool of children: at most `limit` of them work at once, and idle ones wait for a task of their kind."""

    def __init__(self, start: Callable[[str], C], *, limit: int) -> None:
        self._start = start
        self._idle: dict[str, list[C]] = {}
        self._free, self._lock = threading.Semaphore(limit), threading.Lock()
        atexit.register(self.close)

    @contextlib.contextmanager
    def one(self, kind: str) -> Iterator[C]:
        """A child of a kind for the task in the block; it is killed when the task raises anything."""
        with holding(self._free):
            child = self._take(kind)
            try:
                yield child
            except BaseException:
                child.kill()
                raise
            with self._lock:
                self._idle.setdefault(kind, []).append(child)

    def idle(self, kind: str) -> list[C]:
        """The idle children of a kind; the last one is used next."""
        with self._lock:
            return list(self._idle.get(kind, ()))

    def close(self) -> None:
        """Kills the idle children."""
        with self._lock:
            for children in self._idle.values():
                while children:
                    children.pop().kill()

    def _take(self, kind: str) -> C:
        with self._lock:
            waiting = self._idle.get(kind, [])
            while waiting:
                child = waiting.pop()
                if child.usable:
                    return child
                child.kill()
        return self._start(kind)
