"""Worker processes that decode images and audio, so that a hostile file can neither crash the server nor read it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from tirage.workers.children import Child, Children

Kind = Literal["image", "audio"]
SECONDS = 15.0
"""The longest time that decoding one image or audio item may take."""
_STARTUP_S = 60.0
_PLACES = 2
_NEEDS: dict[Kind, tuple[str, ...]] = {"image": ("PIL",), "audio": ("soundfile", "soxr")}


class DecodeError(Exception):
    """What is wrong with an image or an audio item, as `rule, got value`."""


class MediaWorkers:
    """At most two worker processes, started when needed and kept."""

    def __init__(self, *, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self.children = Children(MediaWorker, limit=_PLACES)

    def decode(self, kind: Kind, data: bytes, **task: Any) -> tuple[dict[str, Any], bytes]:
        """The decoded file: a description, and its pixels or samples as bytes.

        Raises DecodeError when the file is refused or takes too long; in the latter case the worker was killed.
        """
        with self.children.one(kind) as child:
            head, made = child.ask({"kind": kind, **task}, data, self._seconds)
        if "error" in head:
            raise DecodeError(head["error"])
        return head, made

    def close(self) -> None:
        """Ends the idle workers."""
        self.children.close()


class MediaWorker(Child):
    """One worker process; of this process's environment it gets PATH alone."""

    def __init__(self, kind: str) -> None:
        kept = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT") if name in os.environ}
        super().__init__(Path(__file__).with_name("media_worker.py"), kind, environment=kept)
        self._started = False

    def ask(self, task: dict[str, Any], data: bytes, seconds: float) -> tuple[dict[str, Any], bytes]:
        """The worker's answer; raises DecodeError when it takes too long or dies."""
        first, self._started = not self._started, True
        late = DecodeError(f"decoded within {seconds:g} s and 1 GB, got one that is not")
        with self._deadline(seconds + _STARTUP_S * first):
            try:
                self.input.write(json.dumps(task | {"bytes": len(data)}).encode() + b"\n" + data)
                self.input.flush()
                head = json.loads(self.output.readline())
                made = self.output.read(head["bytes"])
            except (OSError, ValueError):
                raise late from None
        if len(made) != head["bytes"]:
            raise late
        return head, made

    @contextlib.contextmanager
    def _deadline(self, seconds: float) -> Iterator[None]:
        """Kills the worker after `seconds`, which ends every wait for it."""
        timer = threading.Timer(seconds, self.process.kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def missing(kind: Kind) -> str | None:
    """The first missing package that decoding this kind needs; None when all are installed."""
    return next((name for name in _NEEDS[kind] if importlib.util.find_spec(name) is None), None)
