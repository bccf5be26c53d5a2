"""Children that decode images and sounds, so that a hostile file meets no secret and takes nothing down with it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from tirage.children import Child, Children

Kind = Literal["image", "audio"]
SECONDS = 15.0
"""Longest time that one image or sound may take to decode."""
_STARTUP_S = 60.0
_PLACES = 2
_NEEDS: dict[Kind, tuple[str, ...]] = {"image": ("PIL",), "audio": ("soundfile", "soxr")}


class DecodeError(Exception):
    """What is wrong with an image or a sound, as `rule, got value`."""


class MediaWorkers:
    """At most two children at work."""

    def __init__(self, *, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self.children = Children(MediaWorker, limit=_PLACES)

    def decode(self, kind: Kind, data: bytes, **task: Any) -> tuple[dict[str, Any], bytes]:
        """What a child makes of a file: a description, and its pixels or samples.

        Raises DecodeError when the file is refused or takes too long; the child is dead in the latter case.
        """
        with self.children.one(kind) as child:
            head, made = child.ask({"kind": kind, **task}, data, self._seconds)
        if "error" in head:
            raise DecodeError(head["error"])
        return head, made

    def close(self) -> None:
        """Ends the idle children."""
        self.children.close()


class MediaWorker(Child):
    """One running decoder, which sees nothing of this process's environment but the path."""

    def __init__(self, kind: str) -> None:
        kept = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT") if name in os.environ}
        super().__init__(Path(__file__).with_name("media_worker.py"), kind, environment=kept)
        self._asked = False

    def ask(self, task: dict[str, Any], data: bytes, seconds: float) -> tuple[dict[str, Any], bytes]:
        """The child's answer; DecodeError when it takes longer or dies."""
        first, self._asked = not self._asked, True
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
        """Kills the child after `seconds`, which ends every wait for it."""
        timer = threading.Timer(seconds, self.process.kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def missing(kind: Kind) -> str | None:
    """The first package that a kind of file needs and that is not installed; None when all are."""
    return next((name for name in _NEEDS[kind] if importlib.util.find_spec(name) is None), None)
