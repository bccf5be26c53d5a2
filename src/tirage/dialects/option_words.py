"""The options of Semantics in words: what differs between two presets, said to a person."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tirage.semantics import Semantics

TIES = {"index": "the lowest ids stay", "all": "all stay"}
PAST = {"both": "prompt and output", "output": "output", "prompt": "prompt"}


@dataclass(frozen=True)
class Option:
    """An option of Semantics in words: the stages that it is about, its name, and what each of its values means."""

    stages: tuple[str, ...]
    title: str
    words: Mapping[Any, str]


GREEDY = {
    "argmax": "the largest logit that filters before the temperature leave",
    "first": "the largest logit of all",
    "refused": "refused",
}

OPTIONS = {
    "top_k_ties": Option(("top_k",), "equal logits at the cut of `top_k`", TIES),
    "top_k_limit": Option(("top_k",), "`top_k` at most", {None: "any"}),
    "top_k_one": Option(("top_k",), "`top_k` 1", {"cut": "keeps ties as any other", "argmax": "is the largest logit"}),
    "top_p_ties": Option(("top_p",), "equal logits at the cut of `top_p`", TIES),
    "top_p_rule": Option(
        ("top_p",),
        "`top_p` keeps a token while the mass before it is",
        {
            "lt": "below `top_p`",
            "le": "at most `top_p`",
            "truncated": "below `top_p`; the last token keeps only its part below",
        },
    ),
    "top_p_scope": Option(
        ("top_p",),
        "`top_p` judges the mass of",
        {
            "sequential": "what earlier filters left",
            "joint": "all tokens",
            "joint_unless_min_p": "all tokens; with `min_p`, what earlier filters left",
            "joint_unless_top_k": "all tokens; with `top_k`, what earlier filters left",
        },
    ),
    "min_p_rule": Option(
        ("min_p",),
        "`min_p` keeps a probability",
        {
            "ge": "of at least `min_p` × the largest",
            "gt": "above `min_p` × the largest",
            "logit_ratio": "where the *logit* is at least `min_p` × the largest logit",
        },
    ),
    "typical_rule": Option(
        ("typical",),
        "`typical_p` stops when the mass",
        {"lt": "reaches it", "gt": "exceeds it"},
    ),
    "typical_ties": Option(("typical",), "equally typical tokens at the cut of `typical_p`", TIES),
    "xtc_rule": Option(("xtc",), "XTC removes tokens", {"ge": "at its threshold too", "gt": "above its threshold"}),
    "xtc_ties": Option(
        ("xtc",),
        "of equal logits that XTC would leave as the least likely",
        {"index": "the highest id stays", "all": "all stay"},
    ),
    "entropy_count": Option(
        ("temperature",),
        "the largest entropy of `dynatemp_range` counts",
        {"candidates": "the tokens left", "listed": "forbidden tokens too, until a filter removes them"},
    ),
    "mirostat_with": Option(
        ("mirostat",),
        "a request with `mirostat` runs",
        {"stages": "its other stages too", "temperature": "`logit_bias` and `temperature` besides, and nothing else"},
    ),
    "temperature_floor": Option(("temperature",), "temperatures above 0 are at least", {None: "as asked"}),
    "repetition_history": Option(("repetition",), "`repetition_penalty` counts", PAST),
    "frequency_history": Option(("frequency",), "`frequency_penalty` counts", PAST),
    "presence_history": Option(("presence",), "`presence_penalty` counts", PAST),
    "bad_words_history": Option((), "a bad word may begin in", {"output": "output", "both": "prompt or output"}),
    "bad_words_eos": Option((), "a bad word that is one EOS token", {"banned": "is banned", "dropped": "is ignored"}),
    "penalty_window": Option(("repetition", "frequency", "presence"), "penalties look back at", {None: "everything"}),
    "frequency_divisor": Option(
        ("frequency",),
        "`frequency_penalty` is",
        {"none": "multiplied by the count", "length": "multiplied by the count over the length"},
    ),
    "penalty_limit": Option(("frequency", "presence"), "frequency and presence penalties", {math.inf: "of any size"}),
    "greedy": Option((), "`temperature` 0", GREEDY),
    "mask_mode": Option(
        (),
        "a constraint is applied",
        {"first": "before everything", "resample": "after the draw: a token that it forbids is drawn again under it"},
    ),
}
"""Every option but names and stages; a value without words of its own is a number."""


def cell(preset: Semantics, name: str, option: Option) -> str:
    """The value of an option in words; nothing where the preset has no such stage."""
    if option.stages and not set(option.stages).intersection(preset.stages):
        return ""
    value = getattr(preset, name)
    numbers = {"penalty_window": "the last {} tokens", "penalty_limit": "of at most {:g}", "top_k_limit": "{}"}
    numbers["temperature_floor"] = "{:g}"
    return option.words[value] if value in option.words else numbers.get(name, "{}").format(value)
