"""What an engine still does in another way than the preset of its name, as data.

Kept beside `semantics.py`, whose presets carry it. A line is here because it was seen in the engine (`make peers`) or
read in its source; what a preset has an option for is no difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineDifference:
    """One thing that an engine does in another way: the rule of SPEC.md that holds here, and what the engine does."""

    rule: str
    engine: str


_RACE = EngineDifference(
    "S-W7", "the uniform comes from the engine's own generator: the law is the same, the tokens are not"
)
_SORTED = EngineDifference("S-W3", "which of equal logits stays at the top-p cut is up to the sort, not the lowest id")
_MASKED = EngineDifference("S-P2", "a banned token is set to -1e10, not removed: a row with nothing else draws it")
_BEYOND = EngineDifference(
    "S-O2", "where less than p is left of the mass, what is missing goes to the most likely token"
)
_FASTDEPLOY = (_MASKED, _RACE)
_LATER = EngineDifference("S-P8", "releases of 2026 read top_k in every sampling class")

DIFFERENCES: Mapping[str, tuple[EngineDifference, ...]] = {
    "hf": (
        EngineDifference("S-P3", "temperature 0 is refused; do_sample=False is what it means here"),
        _SORTED,
        _RACE,
    ),
    "hf-cb": (EngineDifference("S-P3", "temperature 0 is refused"), _SORTED, _RACE),
    "vllm": (_RACE,),
    "vllm-v1": (_SORTED, _RACE),
    "vllm-flashinfer": (
        EngineDifference("S-S1", "rows with a seed are drawn by the torch path, whose preset is vllm-v1"),
        EngineDifference("S-O2", "top-p keeps tokens by probabilities in binary32, found by bisection"),
        _RACE,
    ),
    "sglang": (
        EngineDifference("S-O2", "the whole batch is judged in sequence as soon as one of its rows has min_p"),
        EngineDifference("S-O1", "top_k = 1 keeps all ties in a batch where another row is not greedy"),
        EngineDifference("S-P3", "a temperature below 1e-6 is greedy"),
        _RACE,
    ),
    "sglang-pytorch": (EngineDifference("S-P3", "a temperature below 1e-6 is greedy"), _SORTED, _RACE),
    "flashinfer": (_RACE,),
    "fastdeploy-base": (_BEYOND, _LATER, *_FASTDEPLOY),
    "fastdeploy-base_non_truncated": (
        EngineDifference(
            "S-W5", "beyond 20 tokens the draw is biased: one generator is shared by the threads of a block"
        ),
        _LATER,
        *_FASTDEPLOY,
    ),
    "fastdeploy-air": (
        EngineDifference("S-W5", "a draw that misses the 20 most likely tokens is made again over all of them"),
        EngineDifference("S-W3", "of equal probabilities the last writer wins"),
        _LATER,
        *_FASTDEPLOY,
    ),
    "fastdeploy-rejection": (
        EngineDifference(
            "S-O2", "without top_k, the mass that min_p took away goes to the highest token id that is left"
        ),
        *_FASTDEPLOY,
    ),
    "mindie": (EngineDifference("S-W5", "its method `exponential` draws greedily"), _RACE),
    "mindie-npu": (_RACE,),
    "gemma-topk": (_RACE,),
    "gemma-topp": (_RACE,),
    "easydel": (
        EngineDifference(
            "S-O3", "min_p compares logits with min_p times the largest logit; easydel-strict does so too"
        ),
        EngineDifference("S-P3", "a greedy row in a batch with others is drawn at temperature -1"),
        _RACE,
    ),
    "easydel-strict": (
        EngineDifference(
            "S-O3", "where all logits are negative and min_p is on, the draw is uniform over the vocabulary"
        ),
        EngineDifference("S-P3", "a greedy row in a batch with others is drawn at temperature -1"),
        _RACE,
    ),
    "llamacpp": (
        EngineDifference("S-W3", "which of equal logits stays at a cut is up to an unstable sort, not the lowest id"),
        EngineDifference(
            "S-P3", "temperature 0 with a dynatemp_range is no greedy draw: it moves between 0 and the range"
        ),
        EngineDifference(
            "S-O4", "with candidates at -inf the entropy is not a number, and typical_p keeps arbitrary tokens"
        ),
        _RACE,
    ),
    "mlx": (
        EngineDifference(
            "S-O1", "which of equal logits stays at the top-k cut is up to argpartition, not the lowest id"
        ),
        EngineDifference("S-O1", "top_k of the vocabulary's size or more is refused"),
        EngineDifference("S-O8", "xtc_threshold above 0.5 is refused"),
        _RACE,
    ),
    "trtllm": (
        EngineDifference("S-O2", "releases of 2026 close the set when its mass reaches p, which is the rule lt"),
        _SORTED,
        _RACE,
    ),
    "trtllm-legacy": (EngineDifference("S-N2", "logits are divided by the temperature plus 1e-6"), _RACE),
    "tgi": (
        EngineDifference(
            "S-H2", "a request alone in its batch is penalised by another formula: the sign of the logit counts"
        ),
        _SORTED,
        _RACE,
    ),
    "nanovllm": (_RACE,),
}
"""By preset; `canonical` and `openai` describe no engine's code."""
