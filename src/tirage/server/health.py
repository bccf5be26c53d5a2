"""Whether the server lives and takes requests, from what the engine does and not from its being asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from tirage.engine import Progress

Phase = Literal["loading", "compiling", "probing", "ready", "stalled", "draining", "failed"]


class Health:
    """The phase of the server's life. A loop that has work and does none for `patience_s` seconds is `stalled`."""

    def __init__(self, *, patience_s: float) -> None:
        self._patience_s = patience_s
        self._phase: Phase = "loading"
        self._progress: Callable[[], Progress] | None = None

    def enter(self, phase: Phase) -> None:
        """Moves on; there is no way back from draining and failed."""
        if self._phase not in {"draining", "failed"}:
            self._phase = phase

    def watch(self, progress: Callable[[], Progress]) -> None:
        """From now on the engine's progress decides whether `ready` is true."""
        self._progress = progress

    @property
    def phase(self) -> Phase:
        """The phase now."""
        if self._phase == "ready" and self._progress is not None and self._progress().stalled_s() > self._patience_s:
            return "stalled"
        return self._phase

    @property
    def alive(self) -> bool:
        """Whether the model answers; a server that drains still does."""
        return self.phase in {"ready", "draining"}

    @property
    def taking(self) -> bool:
        """Whether requests are admitted."""
        return self._phase == "ready"
