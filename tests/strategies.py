"""Hypothesis strategies: logits of every awkward shape, parameters of every preset, histories, masks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import reference
from hypothesis import strategies as st
from numpy.typing import NDArray

from tirage.operators import OPERATORS
from tirage.params import FIELDS, SamplingParams
from tirage.semantics import PRESETS, Semantics, resolve

SWITCHES = {
    name: operator.name
    for operator in OPERATORS.values()
    for name in operator.examples
    if FIELDS[name].has_off and FIELDS[name].stage
}
"""The parameters that switch a stage on, with the stage."""

VALUES: dict[str, list[Any]] = {
    name: [FIELDS[name].off, *OPERATORS[stage].examples[name]] for name, stage in SWITCHES.items()
}
"""Values to try for each parameter that a stage reads, the one that turns it off first."""

SHAPES = ("peaked", "medium", "flat", "ties", "constant", "coarse", "holes", "sorted", "huge", "zeros", "normal")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Case:
    """One row: logits, what is asked of it, its past and its randomness."""

    logits: NDArray[np.float32]
    params: SamplingParams
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()
    seed: int = 0
    step: int | None = None
    sample_index: int = 0
    mask: tuple[bool, ...] | None = None
    state: float | None = None

    @property
    def carried(self) -> float:
        """What the row carries, by default what one begins with; a number that nobody reads where it carries none."""
        return reference.first_state(self.params) if self.state is None else self.state

    @property
    def at(self) -> int:
        return len(self.output) if self.step is None else self.step

    def with_params(self, **changes: Any) -> Case:
        return replace(self, params=self.params.replace(**changes))


def logits_of(shape: str, size: int, seed: int) -> NDArray[np.float32]:
    """Float32 logits [size] of a named shape, the same for the same seed."""
    rng = np.random.default_rng([seed, size])
    normal = rng.standard_normal(size)
    made = {
        "peaked": lambda: normal * 8,
        "medium": lambda: normal * 3,
        "flat": lambda: normal * 0.01,
        "ties": lambda: rng.integers(-2, 3, size),
        "constant": lambda: np.full(size, 1.5),
        "coarse": lambda: np.round(normal * 8) / 4,
        "holes": lambda: np.where(rng.random(size) < 0.9, -np.inf, normal),
        "sorted": lambda: np.sort(normal)[::-1],
        "huge": lambda: normal * 1e37,
        "zeros": lambda: np.where(rng.random(size) < 0.5, -0.0, 0.0),
        "normal": lambda: normal,
    }[shape]()
    return np.asarray(made, np.float32)


def applies(name: str, semantics: Semantics) -> bool:
    """Whether a preset has the stage that reads parameter `name`."""
    stage = SWITCHES.get(name, name)
    return stage in semantics.stages or (name == "temperature" and "scale" in semantics.stages)


@st.composite
def params_for(draw: st.DrawFn, preset: str, vocab_size: int, active: int = 3) -> SamplingParams:
    """Parameters that a preset takes, about `active` of them switched on."""
    semantics = resolve(preset)
    names = [name for name in VALUES if applies(name, semantics)]
    chosen = draw(st.lists(st.sampled_from(names), max_size=active + 2, unique=True))
    fields = {name: draw(st.sampled_from(VALUES[name][1:])) for name in chosen}
    if "mirostat" in fields:
        fields.pop("adaptive_target", None)  # a row carries one state
    if semantics.greedy == "refused" and fields.get("temperature") == 0.0:
        del fields["temperature"]
    fields |= draw(_further(semantics, vocab_size))
    return SamplingParams(**fields, semantics=preset, max_tokens=None)


@st.composite
def _further(draw: st.DrawFn, semantics: Semantics, vocab_size: int) -> dict[str, Any]:
    """Parameters that hold ids, and what is to be reported."""
    ids = st.integers(0, vocab_size - 1)
    some = st.lists(ids, max_size=4)
    fields: dict[str, Any] = {
        "logprobs": draw(st.sampled_from([None, 0, 3])),
        "logprobs_mode": draw(st.sampled_from(["raw", "processed", "sampled"])),
        "logprob_token_ids": draw(some),
    }
    for operator in OPERATORS.values():
        fields |= {
            name: draw(st.sampled_from(tries)) for name, tries in operator.examples.items() if name not in VALUES
        }
    extra = draw(st.sampled_from(["none", "none", "bias", "allowed", "words", "stops", "protected", "sequences"]))
    if extra == "bias" and "logit_bias" in semantics.stages:
        values = st.sampled_from([0.0, 1.5, -100.0, 100.0, float("-inf"), 1e30, -0.5])
        fields["logit_bias"] = draw(st.dictionaries(ids, values, max_size=4))
    if extra == "allowed":
        fields["allowed_token_ids"] = draw(st.lists(ids, min_size=1, max_size=vocab_size))
    if extra == "words":
        fields["bad_words_token_ids"] = draw(st.lists(st.lists(ids, min_size=1, max_size=2), max_size=3))
    if extra == "stops":
        fields |= {"stop_token_ids": draw(some), "min_tokens": 2}
    if extra == "sequences" and "sequence_bias" in semantics.stages:
        some_ids, values = (
            st.lists(ids, min_size=1, max_size=3).map(tuple),
            st.sampled_from([1.5, -0.1, float("-inf"), 1e30]),
        )
        fields["sequence_bias"] = draw(st.dictionaries(some_ids, values, max_size=5))
    if extra == "protected":
        fields["xtc_protected_ids"] = draw(some)
    return fields


@st.composite
def cases(
    draw: st.DrawFn, preset: str | None = None, shapes: tuple[str, ...] = SHAPES, size: int | None = None
) -> Case:
    """A whole Case under one preset, or any."""
    preset = draw(st.sampled_from(sorted(PRESETS))) if preset is None else preset
    size = draw(st.sampled_from([1, 2, 5, 33, 70])) if size is None else size
    ids = st.lists(st.integers(0, min(size - 1, 5)), max_size=7)
    logits = logits_of(draw(st.sampled_from(shapes)), size, draw(st.integers(0, 999)))
    mask = draw(st.one_of(st.none(), st.integers(0, 2**32 - 1)))
    return Case(
        logits=logits,
        params=draw(params_for(preset, size)),
        prompt=tuple(draw(ids)),
        output=tuple(draw(ids)),
        seed=draw(st.one_of(st.integers(0, 9), st.sampled_from([-1, -(2**63), 2**63 - 1]))),
        step=draw(st.sampled_from([None, None, 0, 7, 2**32 - 1])),
        sample_index=draw(st.sampled_from([0, 0, 1, 2**32 - 1])),
        mask=None if mask is None else _random_mask(size, mask),
        state=draw(st.sampled_from([None, 0.5, 2.5, 7.0, 60.0, -1.0])),
    )


def _random_mask(size: int, seed: int) -> tuple[bool, ...]:
    rng = np.random.default_rng(seed)
    return tuple(bool(b) for b in rng.random(size) < rng.choice([0.2, 0.7, 1.0]))
