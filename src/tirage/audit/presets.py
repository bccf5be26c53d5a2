"""Which meaning a server gives to several parameters together: the promised preset's or not, and which fits best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.audit.context import AuditContext, LawProbe, draws_of, shares_of
from tirage.audit.evidence import LEAK, Evidence, Prediction, divergence
from tirage.audit.finding import Finding, PresetFit, judged
from tirage.audit.parameters import predicted
from tirage.audit.position import Position, laws, params_of
from tirage.audit.server import NotTestedError
from tirage.errors import ParamsError

_COMBINATIONS: tuple[Mapping[str, Any], ...] = (
    {"temperature": 0.5, "top_p": 0.7},
    {"temperature": 0.5, "top_p": 0.9},
    {"top_k": 2, "top_p": 0.6},
    {"top_k": 3, "top_p": 0.8},
    {"temperature": 0.5, "min_p": 0.1},
    {"min_p": 0.2, "top_p": 0.7},
    {"min_p": 0.2, "top_p": 0.9},
)
_CANDIDATES = ("vllm", "sglang", "llamacpp", "hf", "mlx", "easydel", "fastdeploy-base")
_APART = 0.1
_MOST = 200
_POSITIONS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _PresetProbe:
    """Parameters at a position, and the laws [K + 1] of the next token under each preset: least and largest."""

    position: Position
    values: Mapping[str, Any]
    low: Mapping[str, NDArray[np.float64]]
    high: Mapping[str, NDArray[np.float64]]

    def distance(self, one: str, other: str) -> float:
        """How far two presets are apart here, in nats a draw."""
        return min(divergence(self.low[one], self.high[other]), divergence(self.low[other], self.high[one]), 3.0)


async def check_presets(context: AuditContext) -> tuple[Finding, PresetFit]:
    """Whether several parameters together mean what the promised preset says, and which preset fits best.

    Without a promise the finding says which preset fits, and is "not tested". Raises NotTestedError where no place
    tells presets apart.
    """
    names = _CANDIDATES if context.promise in (None, *_CANDIDATES) else (context.promise, *_CANDIDATES)
    with context.computing():
        probes = _choose(context, names)
        predictions = [_predictions(probe, names) for probe in probes]
    if not probes:
        raise NotTestedError("at no place found do the presets differ enough to be seen")
    stakes = {name: context.evidence() for name in names}
    drawn: list[list[int]] = [[] for _ in probes]
    decided = False
    while sum(map(len, drawn)) < _MOST and not decided:
        for which, probe in enumerate(probes):
            drawn[which] += await _add_draws(context, probe, predictions[which], stakes)
        with context.computing():
            decided = _decided(stakes, names, probes)
    with context.computing():
        fit = _fit(names, probes, stakes, drawn, context.promise)
        return _finding(context, names, probes, stakes, drawn, fit), fit


def _choose(context: AuditContext, names: Sequence[str]) -> list[_PresetProbe]:
    """Up to four places that tell apart as many pairs of presets as possible, the promised one's before others."""
    usable = [each for each in _COMBINATIONS if context.server.has(*each)]
    found = [
        probe
        for position in context.positions[:_POSITIONS]
        for values in usable
        if (probe := _probe(position, values, names)) is not None
    ]
    left = {(one, other) for i, one in enumerate(names) for other in names[i + 1 :]}
    chosen: list[_PresetProbe] = []
    while found and left and len(chosen) < 4:
        best = max(found, key=lambda probe: sum(_weight(context, probe, pair) for pair in left))
        found.remove(best)
        if not _firm(best, names):
            continue
        told = {pair for pair in left if best.distance(*pair) > _APART}
        if not told:
            break
        chosen.append(best)
        left -= told
    return chosen


def _weight(context: AuditContext, probe: _PresetProbe, pair: tuple[str, str]) -> float:
    apart = probe.distance(*pair)
    return (3.0 if context.promise in pair else 1.0) * apart if apart > _APART else 0.0


def _probe(position: Position, values: Mapping[str, Any], names: Sequence[str]) -> _PresetProbe | None:
    """The laws of all presets at a position; None where one of them keeps tokens that are not listed."""
    try:
        low, high = laws(position, [params_of(values, name) for name in names])
    except ParamsError:
        return None
    if ((low > 0) != (high > 0)).any() or (high[:, -1] > 0).any():
        return None
    return _PresetProbe(
        position=position,
        values=values,
        low=dict(zip(names, low, strict=True)),
        high=dict(zip(names, high, strict=True)),
    )


def _firm(probe: _PresetProbe, names: Sequence[str]) -> bool:
    """Whether the sets of tokens stay the same where thresholds are a little larger or smaller."""
    kept = np.array([probe.high[name] > 0 for name in names])
    for option in {"top_p", "min_p"} & set(probe.values):
        for share in (0.98, 1.02):
            params = [params_of({**probe.values, option: probe.values[option] * share}, name) for name in names]
            if ((laws(probe.position, params, tails=1)[1] > 0) != kept).any():
                return False
    return True


def _predictions(probe: _PresetProbe, names: Sequence[str]) -> dict[str, Prediction]:
    """What each preset promises at a place; all others are its faults."""
    middle = {name: (probe.low[name] + probe.high[name]) / 2 for name in names}
    return {
        name: predicted(
            probe.low[name],
            probe.high[name],
            {other: middle[other] for other in names if other != name},
            probe.position,
            learn=str(probe.values),
        )
        for name in names
    }


async def _add_draws(
    context: AuditContext,
    probe: _PresetProbe,
    predictions: Mapping[str, Prediction],
    stakes: Mapping[str, Evidence],
) -> list[int]:
    """Draws eight tokens, and adds them to the evidence against every preset."""
    params = context.params(**probe.values)
    some = next(iter(predictions.values()))
    found = await draws_of(context, LawProbe(position=probe.position, params=params, prediction=some))
    with context.computing():
        for index in found:
            for name, evidence in stakes.items():
                evidence.add(predictions[name], index)
    return found


def _decided(stakes: Mapping[str, Evidence], names: Sequence[str], probes: Sequence[_PresetProbe]) -> bool:
    """Whether all presets but those with the same laws as the best one are excluded."""
    if stakes[names[0]].outcomes < 48:
        return False
    alive = [name for name in names if not stakes[name].rejected]
    same = all(_same(probes, alive[0], other) for other in alive[1:]) if alive else True
    return same and stakes[names[0]].outcomes >= 64


def _same(probes: Sequence[_PresetProbe], one: str, other: str) -> bool:
    """Whether two presets have the same laws at all places."""
    return all(np.abs(probe.low[one] - probe.low[other]).max() < 1e-3 for probe in probes)


def _fit(
    names: Sequence[str],
    probes: Sequence[_PresetProbe],
    stakes: Mapping[str, Evidence],
    drawn: Sequence[Sequence[int]],
    promised: str | None,
) -> PresetFit:
    """The presets by how likely the draws are under each."""
    scores = {
        name: sum(
            math.log(float(probe.high[name][index]) + LEAK)
            for probe, found in zip(probes, drawn, strict=True)
            for index in found
        )
        for name in names
    }
    first = max(scores, key=lambda name: scores[name])
    best = tuple(name for name in names if _same(probes, first, name))
    return PresetFit(best=best, p_values={name: stakes[name].p_value for name in names}, promised=promised)


def _finding(
    context: AuditContext,
    names: Sequence[str],
    probes: Sequence[_PresetProbe],
    stakes: Mapping[str, Evidence],
    drawn: Sequence[Sequence[int]],
    fit: PresetFit,
) -> Finding:
    if context.promise is None:
        return Finding(
            name="preset", verdict="not tested", detail=f"no preset was promised; {fit.sentence()}", asked=False
        )
    middle = probes[0]
    prediction = predicted(middle.low[context.promise], middle.high[context.promise], {}, middle.position)
    shown = LawProbe(position=middle.position, params=context.params(**middle.values), prediction=prediction)
    evidence = stakes[context.promise]
    if not evidence.rejected:
        return _kept(context.promise, evidence, fit, shares_of(shown, drawn[0]))
    return judged("preset", evidence, kept="", broken=fit.sentence(), shares=shares_of(shown, drawn[0]))


def _kept(promise: str, evidence: Evidence, fit: PresetFit, shares: Any) -> Finding:
    """The finding on a promise that stands: obeyed where it is among the best, as others cannot be told from it."""
    path = tuple(value / math.log(10) for value in evidence.path)
    verdict = "obeyed" if promise in fit.best else "not tested"
    return Finding(
        name="preset",
        verdict=verdict,
        detail=fit.sentence(),
        p_value=evidence.p_value,
        outcomes=evidence.outcomes,
        path=path,
        shares=shares,
    )
