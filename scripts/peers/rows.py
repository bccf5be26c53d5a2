"""The rows that engines are asked about: logits of awkward shapes, every parameter that a preset takes, histories."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tirage.semantics import Semantics, resolve

SIZE = 24
"""Tokens of most rows; those of the shape `wide` have more."""

VALUES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "temperature": [{"temperature": t} for t in (0.0, 0.005, 0.3, 0.7, 1.3, 2.0)],
    "dynatemp": [{"dynatemp_range": 0.5}, {"temperature": 0.8, "dynatemp_range": 0.6, "dynatemp_exponent": 2.0}],
    "top_k": [{"top_k": k} for k in (1, 2, 3, 7, 20)],
    "top_p": [{"top_p": p} for p in (0.1, 0.3, 0.5, 0.6, 0.75, 0.9, 0.99)],
    "min_p": [{"min_p": p} for p in (0.05, 0.1, 0.25, 0.5, 1.0)],
    "typical": [{"typical_p": p} for p in (0.2, 0.5, 0.9)],
    "epsilon": [{"epsilon_cutoff": e} for e in (0.001, 0.02, 0.1)],
    "eta": [{"eta_cutoff": e} for e in (0.001, 0.02, 0.3)],
    "top_h": [{"top_h": h} for h in (0.2, 0.5, 0.9)],
    "top_n_sigma": [{"top_n_sigma": n} for n in (0.5, 1.0, 2.0)],
    "xtc": [
        {"xtc_probability": 1.0, "xtc_threshold": 0.1},
        {"xtc_probability": 1.0, "xtc_threshold": 0.25},
        {"xtc_probability": 0.5, "xtc_threshold": 0.05},
        {"xtc_probability": 1.0, "xtc_threshold": 0.1, "temperature": 0.0},
    ],
    "repetition": [{"repetition_penalty": r} for r in (0.8, 1.2, 1.7)],
    "frequency": [{"frequency_penalty": f} for f in (-0.5, 0.4, 1.5)],
    "presence": [{"presence_penalty": p} for p in (-1.0, 0.6)],
    "logit_bias": [{"logit_bias": {3: 1.5, 7: -2.25}}, {"logit_bias": {0: 8.0}}],
    "no_repeat_ngram": [{"no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 3}],
    "bad_words": [{"bad_words_token_ids": [[5], [2, 6]]}, {"bad_words_token_ids": [[5]], "eos_token_ids": [5]}],
}
"""What each operator is asked for, one row for each entry, shape and seed."""

STAGE = {"dynatemp": "temperature"}
"""The stage of an operator of `VALUES` that has another name."""

DYNAMIC = frozenset({"llamacpp"})
"""The engines with a dynamic temperature; elsewhere the parameter is tirage's own."""

HISTORIES = (((2, 0, 0, 5), (2, 1, 2)), ((1, 2, 3, 1, 2, 6), (3, 1, 2)), ((), (4, 4, 4, 1)), ((5, 6, 2), ()))
LONG = (tuple(i % 11 for i in range(90)), tuple(i * i % 13 for i in range(30)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One question: the law of float32 `logits` [V] under `params`, fields of SamplingParams, after these tokens."""

    id: str
    preset: str
    operator: str
    shape: str
    logits: list[float]
    params: dict[str, Any]
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def _dyadic(rng: np.random.Generator) -> NDArray[np.float64]:
    """Logarithms of powers of two: masses that lie exactly on thresholds."""
    powers = np.concatenate([-np.arange(1, 9.0), [-8.0], np.full(SIZE - 9, -np.inf)])
    return rng.permutation(powers) * np.log(2.0)


def logits_of(shape: str, seed: int) -> NDArray[np.float32]:
    """Float32 logits [V] of a named shape, the same for the same seed."""
    rng = np.random.default_rng([seed, crc32(shape.encode())])
    normal = rng.standard_normal(SIZE)
    made = {
        "peaked": normal * 6,
        "medium": normal * 2,
        "flat": normal * 0.05,
        "tied": np.round(normal),
        "negative": normal * 2 - 9,
        "masked": np.where(rng.random(SIZE) < 0.4, -np.inf, normal * 2),
        "boundaries": _dyadic(rng),
        "wide": rng.standard_normal(400) * 3,
    }[shape]
    return made.astype(np.float32)


SHAPES = ("peaked", "medium", "flat", "tied", "negative", "masked", "boundaries", "wide")
HISTORIC = frozenset({"repetition", "frequency", "presence", "no_repeat_ngram", "bad_words"})
MANY = 160
"""Rows of each preset with several parameters at once."""


def operators_of(semantics: Semantics) -> list[str]:
    """The operators of `VALUES` that a preset has and that mean something in its engine."""
    extra = {"bad_words"} if semantics.name in {"hf", "vllm-v1"} else set[str]()
    found = [name for name in VALUES if STAGE.get(name, name) in {*semantics.stages, *extra}]
    if "scale" in semantics.stages:
        found.insert(0, "temperature")
    return [name for name in found if name != "dynatemp" or semantics.name in DYNAMIC]


def rows_of(preset: str) -> Iterator[Row]:
    """Every row of a preset: its operators one by one, then several at once."""
    semantics = resolve(preset)
    operators = operators_of(semantics)
    for operator in operators:
        for number, params in enumerate(VALUES[operator]):
            if not _is_refused(semantics, params):
                yield from _shapes(preset, operator, number, dict(params))
    yield from _together(semantics, operators)


def _is_refused(semantics: Semantics, params: Mapping[str, Any]) -> bool:
    return semantics.greedy == "refused" and params.get("temperature") == 0.0


def _shapes(preset: str, operator: str, number: int, params: dict[str, Any]) -> Iterator[Row]:
    for shape in SHAPES:
        for seed in range(2):
            prompt, output = _history(operator, seed + number) if operator in HISTORIC else ((), ())
            yield Row(
                id=f"{preset}/{operator}/{number}/{shape}/{seed}",
                preset=preset,
                operator=operator,
                shape=shape,
                logits=[float(v) for v in logits_of(shape, seed + 10 * number)],
                params=params,
                prompt=list(prompt),
                output=list(output),
            )


def _history(operator: str, number: int) -> tuple[Sequence[int], Sequence[int]]:
    if operator in {"repetition", "frequency", "presence"} and number % 3 == 2:
        return LONG
    return HISTORIES[number % len(HISTORIES)]


def _together(semantics: Semantics, operators: Sequence[str]) -> Iterator[Row]:
    rng = np.random.default_rng(crc32(semantics.name.encode()))
    if len(operators) < 2:
        return
    for number in range(MANY):
        chosen = rng.choice(len(operators), size=min(len(operators), int(rng.integers(2, 5))), replace=False)
        params: dict[str, Any] = {}
        for at in sorted(int(i) for i in chosen):
            options = VALUES[operators[at]]
            params |= options[int(rng.integers(len(options)))]
        shape = SHAPES[int(rng.integers(len(SHAPES)))]
        prompt, output = HISTORIES[int(rng.integers(len(HISTORIES)))]
        if _is_refused(semantics, params):
            continue
        yield Row(
            id=f"{semantics.name}/together/{number}",
            preset=semantics.name,
            operator="together",
            shape=shape,
            logits=[float(v) for v in logits_of(shape, 100 + number)],
            params=params,
            prompt=list(prompt),
            output=list(output),
        )
