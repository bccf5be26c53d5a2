"""Requests that together use every parameter that a draw reads, as the plain fields that an engine is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tirage import register_processor
from tirage.operators import OPERATORS
from tirage.params import FIELDS
from tirage.semantics import PRESETS, resolve

Fields = Mapping[str, Any]


def requests(*, seed: int = 1, token_ids: tuple[int, ...] = (3, 5, 8)) -> list[dict[str, Any]]:
    """Fields of SamplingParams, one mapping for each request, each with a seed of its own from `seed` on.

    Every example of every parameter under the first preset that has it, every preset with all of its stages at work,
    and what names tokens, on `token_ids`.
    """
    found = [*_examples(), *map(_every_stage, PRESETS), *_on_tokens(list(token_ids)), *_with_states(), *_watermarks()]
    return [{**fields, "seed": seed + at} for at, fields in enumerate(found)]


def operators_own(*, seed: int = 1001, token_ids: tuple[int, ...] = (3, 5, 8)) -> list[dict[str, Any]]:
    """Requests that need what an operator sets up: a processor, registered here, and the model's EOS tokens."""
    register_processor("lifts", _lifted, arg_names=("ids", "by"), replace=True)
    ids = list(token_ids)
    found: list[Fields] = [
        {"logits_processors": [["lifts", {"ids": ids, "by": 2.5}]]},
        {"logits_processors": [["lifts", {"ids": ids}]], "extra_args": {"by": 1.5}, "repetition_penalty": 1.2},
        {"bad_words_token_ids": [[ids[0]], ids], "eos_token_ids": [ids[0]], "semantics": "hf", "temperature": 1.5},
    ]
    return [{**fields, "seed": seed + at} for at, fields in enumerate(found)]


def company() -> list[dict[str, Any]]:
    """Sixteen requests to run together: among them draws with a state, by a watermark, and by all earlier tokens."""
    kinds: list[Fields] = [
        {"mirostat": 2, "mirostat_tau": 3.0},
        {"adaptive_target": 0.3},
        {"top_p": 0.95},
        {"mirostat": 1},
        {"watermark": {"scheme": "gumbel", "key": 77, "context_width": 2}},
        {"watermark": {"scheme": "kgw", "key": 15485863, "bias": 4.0, "seeding_scheme": "selfhash"}, "top_p": 0.9},
        {"sequence_bias": [[[3], 1.5], [[3, 5], -2.0]], "min_p": 0.2, "min_keep": 4},
        {"dry_multiplier": 0.8, "dry_allowed_length": 1, "xtc_probability": 0.5, "no_repeat_ngram_size": 3},
    ]
    shared: Fields = {"temperature": 0.9, "frequency_penalty": 0.2}
    return [{**shared, **kinds[seed % len(kinds)], "seed": seed} for seed in range(16)]


def names(given: list[dict[str, Any]]) -> list[str]:
    """The parameters that some of these requests set, sorted."""
    return sorted({name for fields in given for name in fields})


def _lifted(logits: Any, args: list[dict[str, Any]]) -> Any:
    for row, given in zip(logits, args, strict=True):
        row[given["ids"]] += given["by"]
    return logits


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
    # A row carries one state; `_with_states` has the other.
    merged.pop("adaptive_target", None)
    return merged


def _on_tokens(ids: list[int]) -> Iterator[Fields]:
    yield {"logit_bias": {str(i): 2.5 for i in ids}}
    yield {"allowed_token_ids": ids}
    yield {"bad_words_token_ids": [ids, [ids[0]]]}
    yield {"sequence_bias": [[[ids[0]], 1.5], [ids, -2.0]]}
    yield {"xtc_probability": 1.0, "xtc_threshold": 0.0, "xtc_protected_ids": ids}
    yield {"dry_multiplier": 1.0, "dry_allowed_length": 1, "dry_breaker_token_ids": ids}
    yield {"dry_multiplier": 1.0, "dry_base": 1.2, "dry_last_n": 12}
    yield {"temperature": 0.0, "repetition_penalty": 1.3}
    yield {}


def _with_states() -> Iterator[Fields]:
    yield {"adaptive_target": 0.3, "min_p": 0.02, "repetition_penalty": 1.2, "temperature": 0.8}
    for semantics in ("canonical", "llamacpp"):
        yield {"adaptive_target": 0.2, "adaptive_decay": 0.6, "semantics": semantics}
        for version in (1, 2):
            yield {"mirostat": version, "mirostat_tau": 3.0, "mirostat_eta": 0.4, "semantics": semantics}
    yield {"mirostat": 2, "mirostat_tau": 2.0, "frequency_penalty": 0.4, "top_k": 30, "no_repeat_ngram_size": 3}


def _watermarks() -> Iterator[Fields]:
    yield {"watermark": {"scheme": "gumbel", "key": 77, "context_width": 2}}
    yield {"watermark": {"scheme": "synthid", "key": [5, 17, 29, 41], "ngram_len": 3, "sampling_table_size": 512}}
    for scheme in ("lefthash", "selfhash"):
        yield {"watermark": {"scheme": "kgw", "key": 15485863, "bias": 4.0, "seeding_scheme": scheme}, "top_p": 0.9}
    yield {"watermark": {"scheme": "kgw", "key": 15485863, "bias": 4.0}, "temperature": 0.0}
    yield {"watermark": {"scheme": "kgw", "key": 15485863}, "mirostat": 2, "repetition_penalty": 1.2}
