"""How much an audit may ask, and how sure it must be."""

from __future__ import annotations

from dataclasses import dataclass

from tirage.errors import ParamsError


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLimits:
    """The most `requests` and `seconds` of an audit, how many run at once, and the chance `level` of any false alarm.

    Raises ParamsError for values out of range.
    """

    requests: int = 2000
    seconds: float = 120.0
    concurrency: int = 8
    level: float = 0.01

    def __post_init__(self) -> None:
        for name in ("requests", "concurrency"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ParamsError(f"{name} must be an integer >= 1, got {value!r}")
        if isinstance(self.seconds, bool) or not 0 < self.seconds < float("inf"):
            raise ParamsError(f"seconds must be a positive number, got {self.seconds!r}")
        if isinstance(self.level, bool) or not 0 < self.level < 1:
            raise ParamsError(
                f"level must be between 0 and 1, got {self.level!r}; 0.01 is one false alarm in 100 audits"
            )
