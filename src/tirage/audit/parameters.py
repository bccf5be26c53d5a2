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
from tirage.audit.position import Position, softmax
from tirage.audit.server import NotTestedError

Laws = Callable[[Position, float], Mapping[str, NDArray[np.float64]]]
_KEPT = "kept"
_NEAR = 0.02
"""A threshold may be off by this share without another set of tokens, or the position is not used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LawCheck:
    """A parameter, values to try, and what draws with one of them follow at a position.

    `laws` has the law that is promised under `"kept"`, and those of the faults that servers have: [K] of the listed
    tokens, given that one of them is drawn, or [K + 1] with all others. It is empty where a position does not do.
    """

    parameter: str
    values: Sequence[float]
    laws: Laws

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
        """What a position tells of a value; None where it does not do."""
        found = dict(self.laws(position, value))
        kept = found.pop(_KEPT, None)
        if kept is None:
            return None
        params = context.params(**{self.parameter: value})
        return LawProbe(position=position, params=params, prediction=predicted(kept, kept, found, position))


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
    return Prediction(low=least, high=most, faults=named, learn=f"{position.prompt}{learn}")


def _temperature(position: Position, value: float) -> dict[str, NDArray[np.float64]]:
    named = {
        _KEPT: value,
        "it is ignored": 1.0,
        "it is applied twice, as its square": value**2,
        "logits are multiplied by it": 1 / value,
    }
    return {name: softmax(position.logprobs / temperature) for name, temperature in named.items()}


def _first(position: Position, count: int) -> NDArray[np.float64]:
    """The law [K + 1] of the first `count` tokens alone."""
    law = np.exp(np.append(position.logprobs, -np.inf))
    law[count:] = 0.0
    return law / law.sum()


def _cut(position: Position, counts: Sequence[int]) -> dict[str, NDArray[np.float64]]:
    """The laws of a parameter that keeps the first tokens, as many for all values nearby; two at least.

    One token less, or one more, and all tokens are the faults.
    """
    count = counts[0]
    if len(set(counts)) > 1 or not 2 <= count < len(position.keys):
        return {}
    if position.logprobs[count - 1] - position.logprobs[count] < 3 * position.noise:
        return {}
    return {
        _KEPT: _first(position, count),
        "it is ignored": np.append(np.exp(position.logprobs), position.tail),
        "a token more is kept": _first(position, count + 1),
        "a token fewer is kept": _first(position, count - 1),
    }


def _top_k(position: Position, value: float) -> dict[str, NDArray[np.float64]]:
    return _cut(position, [int(value)])


def _top_p(position: Position, value: float) -> dict[str, NDArray[np.float64]]:
    mass = np.cumsum(np.exp(position.logprobs))
    return _cut(position, [1 + int(np.searchsorted(mass, share)) for share in _nearby(value)])


def _min_p(position: Position, value: float) -> dict[str, NDArray[np.float64]]:
    ratios = np.exp(position.logprobs - position.logprobs[0])
    return _cut(position, [int((ratios >= share).sum()) for share in _nearby(value)])


def _nearby(value: float) -> tuple[float, float, float]:
    return value, value * (1 - _NEAR), value * (1 + _NEAR)


LAW_CHECKS = (
    LawCheck(parameter="temperature", values=(0.5, 0.7, 1.5), laws=_temperature),
    LawCheck(parameter="top_k", values=(2, 3, 4, 5), laws=_top_k),
    LawCheck(parameter="top_p", values=(0.4, 0.5, 0.6, 0.7, 0.8, 0.9), laws=_top_p),
    LawCheck(parameter="min_p", values=(0.05, 0.1, 0.2, 0.3, 0.5), laws=_min_p),
)


async def check_logit_bias(context: AuditContext) -> Finding:
    """Whether a bias is added to the logit of its token. Raises NotTestedError for a server that tells no token ids."""
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
    shift = np.zeros(len(position.keys))
    shift[index] = value
    named = {"it is ignored": 0.0, "it is subtracted": -1.0}
    faults = {name: softmax(position.logprobs + sign * shift) for name, sign in named.items()}
    kept = softmax(position.logprobs + shift)
    params = context.params(logit_bias={ids[index]: value})
    return LawProbe(position=position, params=params, prediction=predicted(kept, kept, faults, position))
