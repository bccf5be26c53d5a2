"""Whether the server lives and takes requests, from what the engine does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Phase = Literal["loading", "probing", "ready", "draining", "failed"]


@dataclass(slots=True)
class Health:
    """The phase of the server's life."""

    phase: Phase = "loading"

    @property
    def taking(self) -> bool:
        """Whether requests are admitted."""
        return self.phase == "ready"
