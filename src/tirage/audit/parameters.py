"""Parameters that change the law of a token: whether draws with them follow the law of the listed log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.audit.context import AuditContext, LawProbe, choose, draw_until, shares_of, widened
from tirage.audit.evidence import Prediction
from tirage.audit.finding import Finding, judged
from tirage.audit.position import Position, laws, listed_only, params_of

Faults = Callable[[Position, Any], Mapping[str, Mapping[str, Any]]]
_NEAR = 0.02
"""A threshold may be off by this share without another set of tokens, or the position is not used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LawCheck:
    """A parameter, values to try, and the faults that servers have: each as the parameters that it amounts to.

    `filters` says that the parameter removes tokens; else only the ratios of listed tokens are looked at.
    """

    parameter: str
    values: Sequence[float]
    faults: Faults
    filters: bool = True

    async def run(self, context: AuditContext) -> Finding:
        """The finding on this parameter."""
        probes = choose(context, self.values, lambda position, value: self.probe(context, position, value))
        evidence = context.evidence()
        drawn = await draw_until(context, probes, evidence)
        value = getattr(probes[0].params, self.parameter)
        kept = f"{self.parameter}={value:g}: the draws follow the law"
        broken = f"{self.parameter}={value:g}: {evidence.fault}"
        shares = shares_of(probes[0], drawn[0])
        return judged(self.parameter, evidence, kept=kept, broken=broken, shares=shares)

    def probe(self, context: AuditContext, position: Position, value: Any) -> LawProbe | None:
        """What a position tells of a value; None where the set of tokens hangs by a hair."""
        near = [value - 1e-9, value + 1e-9] if isinstance(value, int) else [value * (1 - _NEAR), value * (1 + _NEAR)]
        near = near if self.filters and not isinstance(value, int) else []
        named = self.faults(position, value)
        rows = [{self.parameter: value}, *({self.parameter: each} for each in near), *named.values()]
        low, high = laws(position, [params_of(row) for row in rows])
        if self.filters and not _firm(position, high[: 1 + len(near)], low[0], value):
            return None
        if not self.filters:
            low, high = listed_only(low), listed_only(high)
        return LawProbe(
            position=position,
            params=context.params(**{self.parameter: value}),
            prediction=predicted(low[0], high[0], dict(zip(named, high[1 + len(near) :], strict=True)), position),
        )


def predicted(
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    faults: Mapping[str, NDArray[np.float64]],
    position: Position,
    learn: str = "",
) -> Prediction:
    """The prediction for bounds [K] and laws of faults [K], with room for the noise of the position."""
    least, most = widened(low, high, position.noise)
    named = {name: law / law.sum() for name, law in faults.items()}
    return Prediction(low=least, high=most, faults=named, learn=position.prompt + learn)


def _firm(position: Position, near: NDArray[np.float64], low: NDArray[np.float64], value: Any) -> bool:
    """Whether the set of tokens is the same for all values nearby, is among the listed ones, and ends with no tie."""
    kept = near[0] > 0
    if kept[-1] or (near > 0).any(0).sum() != kept.sum() or (near > 0).all(0).sum() != kept.sum():
        return False
    count = int(kept.sum())
    if count >= len(position.keys) or ((low > 0) != kept).any():
        return False
    return bool(position.logprobs[count - 1] - position.logprobs[count] > 3 * position.noise)


def _temperature(position: Position, value: float) -> dict[str, dict[str, Any]]:
    return {
        "it is ignored": {},
        "it is applied twice, as its square": {"temperature": value**2},
        "logits are multiplied by it": {"temperature": 1 / value},
    }


def _top_k(position: Position, value: int) -> dict[str, dict[str, Any]]:
    fewer = {"one token fewer is kept": {"top_k": value - 1}} if value > 1 else {}
    return {"it is ignored": {}, "one token more is kept": {"top_k": value + 1}, **fewer}


def _top_p(position: Position, value: float) -> dict[str, dict[str, Any]]:
    count = 1 + int(np.searchsorted(np.cumsum(np.exp(position.logprobs)), value))
    fewer = {"the token that crosses the threshold is removed": {"top_k": count - 1}} if count > 1 else {}
    more = {"the token after the one that crosses the threshold is kept": {"top_k": count + 1}}
    return {"it is ignored": {}, **fewer, **more}


def _min_p(position: Position, value: float) -> dict[str, dict[str, Any]]:
    return {
        "it is ignored": {},
        "it is compared with the probability, not with its ratio to the largest": {"epsilon_cutoff": value},
    }


LAW_CHECKS = (
    LawCheck(parameter="temperature", values=(0.5, 0.7, 1.5), faults=_temperature, filters=False),
    LawCheck(parameter="top_k", values=(2, 3, 4, 5), faults=_top_k),
    LawCheck(parameter="top_p", values=(0.4, 0.5, 0.6, 0.7, 0.8, 0.9), faults=_top_p),
    LawCheck(parameter="min_p", values=(0.05, 0.1, 0.2, 0.3, 0.5), faults=_min_p),
)


async def check_logit_bias(context: AuditContext) -> Finding:
    """Whether a bias is added to the logit of its token."""
    from tirage.audit.server import NotTestedError

    if not context.ids:
        raise NotTestedError("the server tells no token ids, which logit_bias is given by")
    probes = choose(context, (3.0, -3.0, 1.5), lambda position, value: _bias_probe(context, position, value))
    evidence = context.evidence()
    drawn = await draw_until(context, probes, evidence)
    [(token, value)] = dict(probes[0].params.logit_bias or {}).items()
    about = f"logit_bias={{{token}: {value:g}}}"
    return judged(
        "logit_bias",
        evidence,
        kept=f"{about}: the draws follow the law",
        broken=f"{about}: {evidence.fault}",
        shares=shares_of(probes[0], drawn[0]),
    )


def _bias_probe(context: AuditContext, position: Position, value: Any) -> LawProbe | None:
    """A bias on the second token of a position, or the next one whose id is known."""
    texts = zip(position.keys, position.texts, strict=True)
    ids = [key if isinstance(key, int) else context.ids.get(text) for key, text in texts]
    index = next((i for i in (1, 0, 2) if ids[i] is not None), None)
    if index is None:
        return None
    named = {"it is ignored": {}, "it is subtracted": {"logit_bias": {index: -value}}}
    rows = [{"logit_bias": {index: value}}, *named.values()]
    found = listed_only(laws(position, [params_of(row) for row in rows])[1])
    return LawProbe(
        position=position,
        params=context.params(logit_bias={ids[index]: value}),
        prediction=predicted(found[0], found[0], dict(zip(named, found[1:], strict=True)), position),
    )
