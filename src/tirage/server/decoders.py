"""Children that decode images and sounds, so that a hostile file meets no secret and takes nothing down with it."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

Kind = Literal["image", "audio"]
SECONDS = 15.0
"""Longest time that one image or sound may take to decode."""
_STARTUP_S = 60.0
_PLACES = 2
_NEEDS: dict[Kind, tuple[str, ...]] = {"image": ("PIL",), "audio": ("soundfile", "soxr")}


class DecodeError(Exception):
    """What is wrong with an image or a sound, as `rule, got value`."""


class Decoders:
    """At most two children at work; they are started when needed and kept for the next file."""

    def __init__(self, *, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._idle: dict[Kind, list[Child]] = {"image": [], "audio": []}
        self._places, self._lock = threading.Semaphore(_PLACES), threading.Lock()
        atexit.register(self.close)

    def decode(self, kind: Kind, data: bytes, **task: Any) -> tuple[dict[str, Any], bytes]:
        """What a child makes of a file: a description, and its pixels or samples.

        Raises DecodeError when the file is refused or takes too long; the child is dead in the latter case.
        """
        with self._places:
            child = self._take(kind)
            try:
                head, made = child.ask({"kind": kind, **task}, data, self._seconds)
            except BaseException:
                child.kill()
                raise
            with self._lock:
                self._idle[kind].append(child)
        if "error" in head:
            raise DecodeError(head["error"])
        return head, made

    def close(self) -> None:
        """Ends the idle children."""
        with self._lock:
            for children in self._idle.values():
                while children:
                    children.pop().kill()

    def _take(self, kind: Kind) -> Child:
        with self._lock:
            while self._idle[kind]:
                child = self._idle[kind].pop()
                if child.usable:
                    return child
                child.kill()
        return Child(kind)


class Child:
    """One running decoder."""

    def __init__(self, kind: Kind) -> None:
        script = str(Path(__file__).with_name("decoder.py"))
        environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
        kept = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT") if name in os.environ}
        self._kind, self._owner, self._asked = kind, os.getpid(), False
        self._process = subprocess.Popen(
            [sys.executable, "-P", script, kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment | kept,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout

    @property
    def usable(self) -> bool:
        """Whether the child still runs and belongs to this process."""
        return self._owner == os.getpid() and self._process.poll() is None

    def ask(self, task: dict[str, Any], data: bytes, seconds: float) -> tuple[dict[str, Any], bytes]:
        """The child's answer; DecodeError when it takes longer or dies."""
        first, self._asked = not self._asked, True
        late = DecodeError(f"decoded within {seconds:g} s and 1 GB, got one that is not")
        with self._deadline(seconds + _STARTUP_S * first):
            try:
                self._in.write(json.dumps(task | {"bytes": len(data)}).encode() + b"\n" + data)
                self._in.flush()
                head = json.loads(self._out.readline())
                made = self._out.read(head["bytes"])
            except (OSError, ValueError):
                raise late from None
        if len(made) != head["bytes"]:
            raise late
        return head, made

    def kill(self) -> None:
        """Ends the child now."""
        if self._owner != os.getpid():
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._in, self._out):
            with contextlib.suppress(OSError):
                pipe.close()

    @contextlib.contextmanager
    def _deadline(self, seconds: float) -> Iterator[None]:
        """Kills the child after `seconds`, which ends every wait for it."""
        timer = threading.Timer(seconds, self._process.kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def missing(kind: Kind) -> str | None:
    """The first package that a kind of file needs and that is not installed; None when all are."""
    return next((name for name in _NEEDS[kind] if importlib.util.find_spec(name) is None), None)
