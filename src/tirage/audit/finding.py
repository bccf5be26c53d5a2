"""What an audit has found out about one promise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tirage.audit.evidence import Evidence

Verdict = Literal["obeyed", "not obeyed", "not tested"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenShare:
    """A bar of a plot: the probability of a token as promised, from `low` to `high`, and the share of `drawn` ones."""

    token: str
    low: float
    high: float
    drawn: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The verdict on one promise, and why.

    `p_value` holds however often one looks; None where nothing was drawn. `path` has the logarithm (base 10) of the
    stake against the promise after each of the `outcomes`. `asked` is False where the dialect has no field for it.
    """

    name: str
    verdict: Verdict
    detail: str
    p_value: float | None = None
    outcomes: int = 0
    requests: int = 0
    asked: bool = True
    path: tuple[float, ...] = ()
    shares: tuple[TokenShare, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without what only plots need."""
        names = ("name", "verdict", "detail", "p_value", "outcomes", "requests", "asked")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetFit:
    """How a server's draws fit the presets.

    `best` are the presets that fit best, all with the same laws at the places looked at; `p_values` say for each preset
    how likely such draws are, at most, of a server that has it. `promised` is the one held to, None for none.
    """

    best: tuple[str, ...]
    p_values: Mapping[str, float]
    promised: str | None

    def sentence(self) -> str:
        """The result in words."""
        excluded = {name: p for name, p in self.p_values.items() if p < 0.01 and name not in self.best}
        named = " or ".join(self.best)
        if not excluded:
            return f"the draws fit {named}; no preset is excluded"
        others = ", ".join(f"{name}: p = {p:.1g}" for name, p in sorted(excluded.items(), key=lambda pair: pair[1]))
        return f"this server behaves as {named}, not as {others}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"best": list(self.best), "p_values": dict(self.p_values), "promised": self.promised}


def not_tested(name: str, reason: str, *, asked: bool = True) -> Finding:
    """The finding that there is none, and why."""
    return Finding(name=name, verdict="not tested", detail=reason, asked=asked)


def judged(
    name: str,
    evidence: Evidence,
    *,
    kept: str,
    broken: str = "",
    shares: tuple[TokenShare, ...] = (),
) -> Finding:
    """The finding that the evidence allows.

    A promise counts as obeyed only where each known way of breaking it is out of the question; without that the finding
    is "not tested". `kept` and `broken` say in words what was seen; without `broken` the fault with the most evidence.
    """
    about = {
        "name": name,
        "p_value": evidence.p_value,
        "outcomes": evidence.outcomes,
        "path": tuple(value / math.log(10) for value in evidence.path),
        "shares": shares,
    }
    if evidence.rejected:
        return Finding(verdict="not obeyed", detail=broken or evidence.fault, **about)
    left = evidence.uncleared()
    if left or not evidence.outcomes:
        ways = ", ".join(left[:3]) or "anything"
        return Finding(verdict="not tested", detail=f"{evidence.outcomes} outcomes could not rule out: {ways}", **about)
    return Finding(verdict="obeyed", detail=kept, **about)
