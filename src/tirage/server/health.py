"""Whether the server is alive and accepts requests, judged by the engine's progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from tirage.engine import Progress

Phase = Literal["loading", "compiling", "probing", "ready", "stalled", "draining", "failed"]


class Health:
    """The server's phase. An engine that has work but makes no progress for `patience_s` seconds is `stalled`."""

    def __init__(self, *, patience_s: float) -> None:
        self._patience_s = patience_s
        self._phase: Phase = "loading"
        self._progress: Callable[[], Progress] | None = None

    def enter(self, phase: Phase) -> None:
        """Enters a phase; draining and failed are final."""
        if self._phase not in {"draining", "failed"}:
            self._phase = phase

    def watch(self, progress: Callable[[], Progress]) -> None:
        """Sets the source of the engine's progress, by which `ready` may become `stalled`."""
        self._progress = progress

    @property
    def phase(self) -> Phase:
        """The current phase."""
        if self._phase == "ready" and self._progress is not None and self._progress().stalled_s() > self._patience_s:
            return "stalled"
        return self._phase

    @property
    def abandoned_calls(self) -> int:
        """How many calls of custom logits processors were left behind and have not returned."""
        return 0 if self._progress is None else self._progress().abandoned_calls

    @property
    def alive(self) -> bool:
        """Whether the model answers, as it still does while draining."""
        return self.phase in {"ready", "draining"}

    @property
    def accepts_requests(self) -> bool:
        """Whether new requests are accepted."""
        return self._phase == "ready"
