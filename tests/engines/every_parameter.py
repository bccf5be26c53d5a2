"""Requests that together use every parameter that a draw reads, as the plain fields that an engine is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tirage.operators import OPERATORS
from tirage.params import FIELDS
from tirage.semantics import PRESETS, resolve

Fields = Mapping[str, Any]


def requests(*, seed: int = 1, token_ids: tuple[int, ...] = (3, 5, 8)) -> list[dict[str, Any]]:
    """Fields of SamplingParams, one mapping for each request, each with a seed of its own from `seed` on.

    Every example of every parameter under the first preset that has it, every preset with all of its stages at work,
    and what names tokens, on `token_ids`.
    """
    found = [*_examples(), *map(_every_stage, PRESETS), *_on_tokens(list(token_ids))]
    return [{**fields, "seed": seed + at} for at, fields in enumerate(found)]


def names(given: list[dict[str, Any]]) -> list[str]:
    """The parameters that some of these requests set, sorted."""
    return sorted({name for fields in given for name in fields})


def _examples() -> Iterator[Fields]:
    for operator in OPERATORS.values():
        for name, values in operator.examples.items():
            semantics = next((s for s in PRESETS if operator.name in resolve(s).stages), "canonical")
            for value in values:
                yield {**_beside(operator, name), "semantics": semantics, name: value}


def _beside(operator: Any, name: str) -> Fields:
    """What switches the stage on, for a parameter that does not by itself."""
    return (
        {} if FIELDS[name].has_off and FIELDS[name].stage else {k: v for k, v in operator.gentle.items() if k != name}
    )


def _every_stage(semantics: str) -> Fields:
    merged: dict[str, Any] = {"semantics": semantics}
    for stage in resolve(semantics).stages:
        merged |= OPERATORS[stage].gentle if stage in OPERATORS else {}
    merged.pop("logits_processors", None)
    return merged


def _on_tokens(ids: list[int]) -> Iterator[Fields]:
    yield {"logit_bias": {str(i): 2.5 for i in ids}}
    yield {"allowed_token_ids": ids}
    yield {"bad_words_token_ids": [ids, [ids[0]]]}
    yield {"xtc_probability": 1.0, "xtc_threshold": 0.0, "xtc_protected_ids": ids}
    yield {"dry_multiplier": 1.0, "dry_allowed_length": 1, "dry_breaker_token_ids": ids}
    yield {"dry_multiplier": 1.0, "dry_base": 1.2, "dry_last_n": 12}
    yield {"temperature": 0.0, "repetition_penalty": 1.3}
    yield {}
