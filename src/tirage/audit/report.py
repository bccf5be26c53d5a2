"""The report of an audit: as a table for a terminal, as JSON, and its exit status."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tirage.audit.finding import Finding, PresetFit
from tirage.audit.limits import AuditLimits

if TYPE_CHECKING:
    from rich.table import Table

STYLES = {"obeyed": "green", "not obeyed": "bold red", "not tested": "yellow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """What an audit of the server at `url` has found: `findings`, one for each promise, in the order of the checks.

    `owner` and `model` are what the server calls itself and its model. `preset` is how well the presets fit, None where
    that could not be tested. The level of `limits` is shared out among `checks` checks. `seconds` and `arithmetic_s`
    are the time of the audit and its own part of it.
    """

    url: str
    dialect: str
    owner: str
    model: str
    findings: tuple[Finding, ...]
    preset: PresetFit | None
    limits: AuditLimits
    checks: int
    requests: int
    seconds: float
    arithmetic_s: float
    notes: tuple[str, ...] = ()

    def named(self, verdict: str) -> tuple[str, ...]:
        """The names of the promises with this verdict, those apart that the dialect has no field for."""
        return tuple(each.name for each in self.findings if each.verdict == verdict and each.asked)

    @property
    def stake(self) -> float:
        """The logarithm (base 10) of the stake that breaks a promise: the level is shared by all checks."""
        return math.log10(self.checks / self.limits.level)

    @property
    def exit_status(self) -> int:
        """1 where a promise is not obeyed, else 2 where one that the dialect has could not be tested, else 0."""
        if self.named("not obeyed"):
            return 1
        return 2 if self.named("not tested") or not self.named("obeyed") else 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "url": self.url,
            "dialect": self.dialect,
            "owner": self.owner,
            "model": self.model,
            "exit_status": self.exit_status,
            "level": self.limits.level,
            "findings": [each.to_dict() for each in self.findings],
            "preset": None if self.preset is None else self.preset.to_dict(),
            "notes": list(self.notes),
            "requests": self.requests,
            "seconds": round(self.seconds, 3),
            "arithmetic_s": round(self.arithmetic_s, 3),
        }

    def summary(self) -> str:
        """A line with the numbers of verdicts, requests and seconds."""
        count = {name: len(self.named(name)) for name in STYLES}
        kinds = ", ".join(f"{number} {name}" for name, number in count.items())
        return (
            f"{kinds}; {self.requests} requests in {self.seconds:.0f} s; "
            f"false-alarm rate of the whole audit at most {self.limits.level:g}"
        )

    def table(self) -> Table:
        """The findings as a table that rich prints."""
        from rich.table import Table
        from rich.text import Text

        table = Table(title=f"{self.url} ({self.dialect}, {self.model or 'no model name'})", title_justify="left")
        for name in ("promise", "verdict", "p", "what was seen"):
            table.add_column(name, overflow="fold")
        for each in self.findings:
            # A text of the server is shown as it is, without control characters and markup.
            detail = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in each.detail)
            p_value = "" if each.p_value is None else f"{each.p_value:.1g}"
            table.add_row(each.name, Text(each.verdict, STYLES[each.verdict]), p_value, Text(detail))
        return table
